/* The part of one rank under tensor and expert parallelism. */
#include "model/model.h"

#include <stdbool.h>

#include "core/fail.h"

static bp_status split_tensor(bp_parameter *p, uint32_t tp)
{
    if (p->tp_dim < 0)
        return BP_OK;
    uint64_t parts = p->tp_parts != 0 ? p->tp_parts : p->shape[p->tp_dim];
    if (parts % tp != 0 || p->shape[p->tp_dim] % tp != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "tp %u does not divide the %llu parts that parameter %s splits into",
                       tp, (unsigned long long)parts, p->name);
    p->shape[p->tp_dim] /= tp;
    p->tp_parts = (uint32_t)(p->tp_parts / tp);
    return BP_OK;
}

static bp_status split_experts(bp_parameter *p, uint32_t ep)
{
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
        splits = splits || model->parameters[i].tp_dim >= 0;
    if (tp > 1 && !splits)
        return bp_fail(BP_ERR_UNSUPPORTED,
                       "tp %u: model \"%s\" does not say how its parameters split; a config.json or "
                       "units.json with tp_dim does",
                       tp, model->name);
    bp_model *local;
    BP_TRY(bp_model_copy_frame(model, &local));
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < model->parameter_count; i++) {
        bp_parameter p = model->parameters[i];
        status = split_tensor(&p, tp);
        if (status == BP_OK)
            status = split_experts(&p, ep);
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
