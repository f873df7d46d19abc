/* SPDX-License-Identifier: Apache-2.0 */
/* Derives models from models: the module layouts of Megatron-Core (parameters are fused, unstacked, dropped or moved) and of transformers 5
 * (experts are stacked), and one rank's shard under tensor and expert parallelism.
 * Source: Megatron-LM d98e8a64, core/transformer/{attention,mlp,moe/experts,moe/router,multi_token_prediction}.py; transformers 5.23,
 * conversion_mapping.py. */
#include "planner/model/model.h"

#include <bucketpool/core/fail.h>

#include <stdbool.h>
#include <string.h>

#define MAX_SOURCES 3
#define MAX_NAME 512
#define MAX_LEAF 64 /* longer than any leaf that a rule writes; parameters with longer names are not changed */

/* Parameters of one module that are fused: concatenated along the first dimension. `stacked`: the name where experts are stacked, NULL:
 * not fused there. */
static const struct {
    const char *sources[MAX_SOURCES];
    const char *fused, *stacked;
} fusions[] = {
    {{"q_proj", "k_proj", "v_proj"}, "linear_qkv", NULL},
    {{"gate_proj", "up_proj"}, "linear_fc1", "gate_up_proj"},
    {{"w1", "w3"}, "linear_fc1", "gate_up_proj"},
    {{"in_proj_qkvz", "in_proj_ba"}, "in_proj", NULL},
};

/* Stacks of experts that become one matrix per expert, [out, in] as in nn.Linear. Families use both orders under one name; the dimension
 * that tensor parallelism splits tells which. */
static const struct {
    const char *stack, *module;
    const char *matrix;
    int32_t in_out_split; /* dimension that tensor parallelism splits if the stack is [expert, in, out]; -1: never */
} unstackings[] = {
    {".experts.gate_up_proj", ".experts.*.", "linear_fc1.weight", 2},
    {".experts.gate_up_proj_bias", ".experts.*.", "linear_fc1.bias", -1},
    {".experts.down_proj", ".experts.*.", "linear_fc2.weight", 1},
    {".experts.down_proj_bias", ".experts.*.", "linear_fc2.bias", -1},
    {".input_linear.weight", ".experts.*.", "linear_fc1.weight", -1},
    {".output_linear.weight", ".experts.*.", "linear_fc2.weight", -1},
};

static bool ends_with(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

/* Parameters in some published code that are buffers in Megatron-Core and transformers. */
static bool is_buffer(const bp_parameter *p)
{
    return ends_with(p->name, ".e_score_correction_bias");
}

/* "module." + "leaf" + ".weight" of "module.leaf.weight". */
typedef struct name_parts {
    size_t module_length; /* with the dot */
    size_t leaf_length;
    const char *kind; /* ".weight" or ".bias" */
} name_parts;

/* Largest distance between parameters of one module in the model's order. Keeps the pass linear on hostile models. */
#define MODULE_REACH 256

/* The parameter "<module><leaf><kind>" of the same unit, near `from`. */
static const bp_parameter *const *find_sibling(const bp_model *model, const bp_parameter *const *from,
                                               const name_parts *parts, const char *leaf)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%.*s%s%s", (int)parts->module_length, (*from)->name, leaf, parts->kind);
    size_t at = (size_t)(from - model->parameters);
    size_t begin = at > MODULE_REACH ? at - MODULE_REACH : 0;
    for (size_t i = begin; i < model->parameter_count && i <= at + MODULE_REACH; i++) {
        const bp_parameter *p = model->parameters[i];
        if (p->unit == (*from)->unit && strcmp(p->name, name) == 0)
            return &model->parameters[i];
    }
    return NULL;
}

static bool can_stack(const bp_parameter *a, const bp_parameter *b)
{
    return a->dims == b->dims && a->dims > 0 && a->dtype == b->dtype && a->copies == b->copies &&
           a->flags == b->flags && memcmp(a->shape + 1, b->shape + 1, (a->dims - 1) * sizeof *a->shape) == 0;
}

/* Appends `source` to `fused` along the first dimension. tp_parts stays that of the first source: Megatron splits the fused rows, also
 * where there are fewer key-value heads than ranks. */
static void stack(bp_parameter *fused, const bp_parameter *source)
{
    if (fused->tp_dim != source->tp_dim)
        fused->tp_dim = -1;
    fused->shape[0] += source->shape[0]; /* each fits in the model's 63-bit total, so the sum cannot wrap */
}

typedef enum fusion_result { FUSION_NONE, FUSION_FIRST, FUSION_ABSORBED } fusion_result;

/* Decides if the parameter, an element of the model's array, is the first source of a fused parameter (written to *fused and `name`), a later source, or not fused. */
static fusion_result fuse(const bp_model *model, const bp_parameter *const *at, bp_layout layout, bp_parameter *fused,
                          char name[MAX_NAME])
{
    const bp_parameter *p = *at;
    const char *kind = strrchr(p->name, '.'), *leaf = kind;
    if (p->dims == 0 || strlen(p->name) >= MAX_NAME - MAX_LEAF || kind == NULL ||
        (strcmp(kind, ".weight") != 0 && strcmp(kind, ".bias") != 0))
        return FUSION_NONE;
    while (leaf > p->name && leaf[-1] != '.')
        leaf--;
    const name_parts parts = {(size_t)(leaf - p->name), (size_t)(kind - leaf), kind};
    for (size_t f = 0; f < sizeof fusions / sizeof *fusions; f++) {
        int own = -1;
        const char *fused_name = layout == BP_LAYOUT_STACKED ? fusions[f].stacked : fusions[f].fused;
        for (int i = 0; i < MAX_SOURCES && fusions[f].sources[i] != NULL; i++) {
            if (strlen(fusions[f].sources[i]) == parts.leaf_length &&
                strncmp(fusions[f].sources[i], leaf, parts.leaf_length) == 0)
                own = i;
        }
        if (own < 0 || fused_name == NULL)
            continue;
        const bp_parameter *const *first = find_sibling(model, at, &parts, fusions[f].sources[0]);
        if (first == NULL)
            return FUSION_NONE;
        bp_parameter whole = **first;
        bool is_source = own == 0;
        for (int i = 1; i < MAX_SOURCES && fusions[f].sources[i] != NULL; i++) {
            /* searched from the first source, so that all sources get the same answer */
            const bp_parameter *const *other = find_sibling(model, first, &parts, fusions[f].sources[i]);
            if (other == NULL || !can_stack(*first, *other))
                return FUSION_NONE;
            is_source = is_source || other == at;
            stack(&whole, *other);
        }
        if (!is_source)
            return FUSION_NONE;
        if (own > 0)
            return FUSION_ABSORBED;
        snprintf(name, MAX_NAME, "%.*s%s%s", (int)parts.module_length, p->name, fused_name, parts.kind);
        *fused = whole;
        fused->name = name;
        return FUSION_FIRST;
    }
    return FUSION_NONE;
}

/* Turns a stack of experts into one parameter per expert, named in `name`. */
static bool unstack(bp_parameter *p, char name[MAX_NAME])
{
    bool is_stack = p->expert_dim == 0 && p->dims >= 2 && p->copies == 1 && strlen(p->name) < MAX_NAME - MAX_LEAF;
    for (size_t u = 0; is_stack && u < sizeof unstackings / sizeof *unstackings; u++) {
        if (!ends_with(p->name, unstackings[u].stack) || p->shape[0] > UINT32_MAX)
            continue;
        size_t module = strlen(p->name) - strlen(unstackings[u].stack);
        int32_t split = unstackings[u].in_out_split;
        bool transposed = split >= 0 && (p->tp_dim < 0 || p->tp_dim == split);
        snprintf(name, MAX_NAME, "%.*s%s%s", (int)module, p->name, unstackings[u].module, unstackings[u].matrix);
        p->name = name;
        p->copies = (uint32_t)p->shape[0];
        p->flags |= BP_PARAMETER_EXPERT_COPIES;
        p->expert_dim = -1;
        p->dims--;
        memmove(p->shape, p->shape + 1, p->dims * sizeof *p->shape);
        p->tp_dim = p->tp_dim > 0 ? p->tp_dim - 1 : -1;
        if (transposed && p->dims == 2) {
            uint64_t rows = p->shape[0];
            p->shape[0] = p->shape[1];
            p->shape[1] = rows;
            p->tp_dim = p->tp_dim >= 0 ? 1 - p->tp_dim : -1;
        }
        return true;
    }
    return false;
}

static bp_status add_as_megatron(const bp_model *model, const bp_parameter *const *at, bp_model *out)
{
    const bp_parameter *parameter = *at;
    if (is_buffer(parameter))
        return BP_OK;
    bp_parameter p = *parameter;
    char name[MAX_NAME];
    if (!unstack(&p, name) && fuse(model, at, BP_LAYOUT_MEGATRON, &p, name) == FUSION_ABSORBED)
        return BP_OK;
    if (p.flags & BP_PARAMETER_JOINT) {
        p.unit = BP_OUTSIDE;
        p.flags &= ~(uint32_t)(BP_PARAMETER_PREDICTION | BP_PARAMETER_GEMM);
    }
    return bp_model_add_parameter(out, &p);
}

/* Makes the experts' copies of a matrix one tensor: "experts.*.down_proj.weight" becomes "experts.down_proj", a bias
 * "experts.down_proj_bias". */
static bp_status add_stacked(const bp_model *model, const bp_parameter *const *at, bp_model *out)
{
    const bp_parameter *parameter = *at;
    bp_parameter p = *parameter;
    char fused[MAX_NAME], name[MAX_NAME];
    if (is_buffer(parameter) || p.flags & BP_PARAMETER_PREDICTION)
        return BP_OK;
    if (!(p.flags & BP_PARAMETER_EXPERT_COPIES) || p.dims == BP_MAX_DIMS || strlen(p.name) >= MAX_NAME - MAX_LEAF)
        return bp_model_add_parameter(out, parameter);
    if (fuse(model, at, BP_LAYOUT_STACKED, &p, fused) == FUSION_ABSORBED)
        return BP_OK;
    const char *star = strstr(p.name, ".*."), *kind = strrchr(p.name, '.');
    if (star != NULL) {
        const char *leaf = star + 3;
        bool is_weight = kind > leaf && strcmp(kind, ".weight") == 0,
             is_bias = kind > leaf && strcmp(kind, ".bias") == 0;
        snprintf(name, sizeof name, "%.*s.%.*s%s", (int)(star - p.name), p.name,
                 is_weight || is_bias ? (int)(kind - leaf) : (int)strlen(leaf), leaf, is_bias ? "_bias" : "");
        p.name = name;
    }
    memmove(p.shape + 1, p.shape, p.dims * sizeof *p.shape);
    p.shape[0] = p.copies;
    p.dims++;
    p.copies = 1;
    p.flags &= ~(uint32_t)BP_PARAMETER_EXPERT_COPIES;
    p.expert_dim = 0;
    p.tp_dim = p.tp_dim >= 0 ? p.tp_dim + 1 : -1;
    return bp_model_add_parameter(out, &p);
}

bp_status bp_model_with_layout(const bp_model *model, bp_layout layout, bp_model **out)
{
    if (model == NULL || out == NULL || layout < BP_LAYOUT_HF || layout > BP_LAYOUT_STACKED)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_with_layout: needs a model and a layout, got layout %d",
                       layout);
    bp_model *copy;
    BP_TRY(bp_model_copy_frame(model, &copy));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < model->parameter_count; i++) {
        if (layout == BP_LAYOUT_MEGATRON)
            status = add_as_megatron(model, &model->parameters[i], copy);
        else if (layout == BP_LAYOUT_STACKED)
            status = add_stacked(model, &model->parameters[i], copy);
        else
            status = bp_model_add_parameter(copy, model->parameters[i]);
    }
    if (status == BP_OK && layout == BP_LAYOUT_STACKED && model->prediction_numel > 0)
        status =
            bp_model_add_note(copy, "prediction layers, which transformers does not build, are left out (layout hf "
                                    "has them)");
    if (status != BP_OK) {
        bp_model_destroy(&copy);
        return status;
    }
    *out = copy;
    return BP_OK;
}

/* ---- sharding by tensor and expert parallelism -------------------------------------------------------------------- */

static bp_status shard_parameter(bp_parameter *p, uint32_t tp, uint32_t ep)
{
    if (p->tp_dim >= 0) {
        uint64_t parts = p->tp_parts != 0 ? p->tp_parts : p->shape[p->tp_dim];
        if (parts % tp != 0 || p->shape[p->tp_dim] % tp != 0)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "tp %u does not divide the %llu parts that parameter %s splits into", tp,
                           (unsigned long long)parts, p->name);
        p->shape[p->tp_dim] /= tp;
        p->tp_parts = (uint32_t)(p->tp_parts / tp);
    }
    uint64_t experts = p->flags & BP_PARAMETER_EXPERT_COPIES ? p->copies
                       : p->expert_dim >= 0                  ? p->shape[p->expert_dim]
                                                             : ep;
    if (experts % ep != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "ep %u does not divide the %llu experts of parameter %s", ep,
                       (unsigned long long)experts, p->name);
    if (p->flags & BP_PARAMETER_EXPERT_COPIES)
        p->copies /= ep;
    else if (p->expert_dim >= 0)
        p->shape[p->expert_dim] /= ep;
    return BP_OK;
}

bp_status bp_model_shard(const bp_model *model, uint32_t tp, uint32_t ep, bp_model **out)
{
    if (model == NULL || out == NULL || tp == 0 || ep == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_model_shard: needs a model, tp %u and ep %u of at least 1", tp, ep);
    bool splits = false;
    for (size_t i = 0; i < model->parameter_count; i++)
        splits = splits || model->parameters[i]->tp_dim >= 0;
    if (tp > 1 && !splits)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "tp %u: model \"%s\" does not say how its parameters split; a config.json or "
                       "units.json with tp_dim does",
                       tp, model->name);
    bp_model *local;
    BP_TRY(bp_model_copy_frame(model, &local));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < model->parameter_count; i++) {
        bp_parameter p = *model->parameters[i];
        status = shard_parameter(&p, tp, ep);
        if (status == BP_OK)
            status = bp_model_add_parameter(local, &p);
    }
    if (status != BP_OK) {
        bp_model_destroy(&local);
        return status;
    }
    *out = local;
    return BP_OK;
}
