/* SPDX-License-Identifier: Apache-2.0 */
/* Every rank computes the first values of whole buckets and keeps its shard of them. */
#include <stdlib.h>
#include <string.h>

#include "trainer.h"
#include "try.h"

static void fill(const model *m, uint32_t bucket_index, float *values)
{
    for (uint32_t i = 0; i < m->count; i++) {
        const tensor *t = &m->tensors[i];
        for (uint64_t e = 0; t->bucket == bucket_index && e < t->numel; e++)
            values[t->offset + e] = model_value(m, i, e);
    }
}

static bp_status load_shard(trainer *t, const bucket *b, const float *values)
{
    work w = {.items = b->shard, .x = b->optimizer, .out = b->state, .stored = model_stored(b->info.dtype)};
    memcpy(t->staging.transfer, values + t->sharding.rank * b->shard, b->shard * sizeof *values);
    TRY(bp_stream_fill(t->compute, b->optimizer, 0, b->bytes[BP_ROLE_OPTIMIZER]));
    TRY(bp_stream_copy(t->compute, b->optimizer, t->staging.transfer, b->shard * sizeof *values));
    TRY(engine_run(&t->engine, OPERATION_narrow, &w, t->compute));
    if (b->info.unit == BP_OUTSIDE) /* its padding stays as it is */
        TRY(bp_stream_fill(t->compute, b->grad, 0, b->bytes[BP_ROLE_GRAD]));
    return bp_stream_synchronize(t->compute);
}

bp_status first_values(trainer *t)
{
    bp_status status = BP_OK;
    for (uint32_t i = 0; status == BP_OK && i < t->sharding.count; i++) {
        const bucket *b = &t->sharding.list[i];
        float *values = calloc(b->info.padded_numel, sizeof *values);
        if (values == NULL)
            return fail_memory();
        fill(&t->model, i, values);
        status = load_shard(t, b, values);
        free(values);
        engine_begin_step(&t->engine);
    }
    return status;
}
