/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdio.h>

#include "data.h"
#include "try.h"
#include "work.h"

/* ---- tensors -------------------------------------------------------------------------------------------------------- */

static void add(model *m, const char *name, tensor t)
{
    tensor *added = &m->tensors[m->count++];
    *added = t;
    added->copies = t.copies == 0 ? 1 : t.copies;
    added->numel = t.shape[0] * (t.dims > 1 ? t.shape[1] : 1) * added->copies;
    if (t.unit == BP_OUTSIDE)
        (void)snprintf(added->name, sizeof added->name, "%s", name);
    else
        (void)snprintf(added->name, sizeof added->name, "units.%d.%s", (int)t.unit, name);
}

static void add_norm(model *m, int32_t unit, const char *name)
{
    add(m, name, (tensor){.unit = unit, .dims = 1, .shape = {m->options->hidden}, .dtype = BP_DTYPE_FP32});
}

/* Values of products keep about the size of what goes in. */
static void add_weight(model *m, int32_t unit, const char *name, uint64_t rows, uint64_t columns, uint32_t copies,
                       bp_dtype dtype)
{
    add(m, name,
        (tensor){.unit = unit,
                 .dims = 2,
                 .shape = {rows, columns},
                 .copies = copies,
                 .dtype = dtype,
                 .spread = sqrtf(1.5f / (float)columns)});
}

static void add_unit(model *m, uint32_t u)
{
    const options *o = m->options;
    uint64_t hidden = o->hidden, inner = m->inner[u];
    bool narrow = o->precision == PRECISION_BF16 || (o->precision == PRECISION_MIXED && u % 3 != 1);
    bp_dtype dtype = narrow ? BP_DTYPE_BF16 : BP_DTYPE_FP32;
    int32_t unit = (int32_t)u;
    m->first[u] = m->count;
    add_norm(m, unit, "norm");
    switch (model_kind(m, u)) {
    case 'a':
        add_weight(m, unit, "qkv", 3 * hidden, hidden, 1, dtype);
        add_weight(m, unit, "out", hidden, hidden, 1, dtype);
        break;
    case 'm':
        add_weight(m, unit, "up", inner, hidden, 1, dtype);
        add_weight(m, unit, "down", hidden, inner, 1, dtype);
        break;
    default:
        add_weight(m, unit, "router", EXPERTS, hidden, 1, BP_DTYPE_FP32);
        add_weight(m, unit, "experts.*.up", inner, hidden, EXPERTS, dtype);
        add_weight(m, unit, "experts.*.down", hidden, inner, EXPERTS, dtype);
    }
}

void model_make(const options *o, model *m)
{
    *m = (model){.options = o};
    while (o->stack[m->units] != '\0') {
        uint32_t u = m->units++;
        m->inner[u] = model_kind(m, u) == 'e' ? o->hidden : o->hidden * (2 + u % 3);
        add_unit(m, u);
    }
    m->first[m->units] = m->count;
    add_weight(m, BP_OUTSIDE, "embedding", o->vocab, o->hidden, 1, BP_DTYPE_FP32);
    m->tensors[m->count - 1].spread = 1.0f;
    add_norm(m, BP_OUTSIDE, "norm");
    add_weight(m, BP_OUTSIDE, "output", o->vocab, o->hidden, 1, BP_DTYPE_FP32);
}

char model_kind(const model *m, uint32_t unit)
{
    return m->options->stack[unit];
}

uint32_t model_tensor(const model *m, int32_t unit, uint32_t which)
{
    return m->first[unit == BP_OUTSIDE ? m->units : (uint32_t)unit] + which;
}

uint32_t model_stored(bp_dtype dtype)
{
    return dtype == BP_DTYPE_BF16 ? STORED_BF16 : STORED_FP32;
}

uint64_t model_numel(const model *m)
{
    uint64_t numel = 0;
    for (uint32_t i = 0; i < m->count; i++)
        numel += m->tensors[i].numel;
    return numel;
}

float model_value(const model *m, uint32_t index, uint64_t element)
{
    const tensor *t = &m->tensors[index];
    if (t->spread == 0.0f)
        return 1.0f;
    uint64_t random = data_random(m->options->seed, 1 + index, element);
    return t->spread * ((float)(random >> 40) * 0x1p-23f - 1.0f);
}

/* ---- for the library ------------------------------------------------------------------------------------------------ */

static bp_status describe(const model *m, bp_model *described)
{
    for (uint32_t u = 0; u < m->units; u++) {
        char name[32];
        uint32_t unit;
        (void)snprintf(name, sizeof name, "units.%u", u);
        TRY(bp_model_add_unit(described, name, BP_OUTSIDE, &unit));
    }
    for (uint32_t i = 0; i < m->count; i++) {
        const tensor *t = &m->tensors[i];
        bp_parameter p;
        TRY(bp_parameter_init(&p, sizeof p));
        p.name = t->name;
        p.unit = t->unit;
        p.dims = t->dims;
        p.shape[0] = t->shape[0];
        p.shape[1] = t->shape[1];
        p.dtype = t->dtype;
        p.copies = t->copies;
        TRY(bp_model_add_parameter(described, &p));
    }
    return bp_model_validate(described);
}

bp_status model_describe(const model *m, bp_model **described)
{
    bp_model *made;
    TRY(bp_model_create("fsdp_train", &made));
    bp_status status = describe(m, made);
    if (status != BP_OK) {
        bp_model_destroy(&made);
        return status;
    }
    *described = made;
    return BP_OK;
}
