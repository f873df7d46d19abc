/* Stages of a run: steps and sealing. */
#include "allocators/pool.h"

#include "allocators/annotations.h"
#include "allocators/capture.h"
#include "allocators/explain.h"
#include "core/fail.h"

bp_status bp_pool_seal(bp_pool *pool)
{
    if (pool == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_seal: no pool");
    uint32_t count = bp_request_count(pool);
    for (uint32_t id = 0; id < count; id++) {
        const bp_entry *r = &pool->entries[id];
        char name[BP_REQUEST_BYTES];
        bool live = BP_WORD_ID(atomic_load_explicit(r->word, memory_order_acquire)) == id;
        if (live && (r->kind == BP_KIND_DYNAMIC ||
                     (r->kind == BP_KIND_CHOSEN && r->first >= pool->overflow_first && pool->overflow_count > 0)))
            return bp_fail(BP_ERR_SCHEDULE, "pool %s cannot be sealed: %s holds %s memory", pool->info.name,
                           bp_explain_request(pool, id, name), r->kind == BP_KIND_DYNAMIC ? "dynamic" : "overflow");
    }
    atomic_store_explicit(&pool->sealed, 1, memory_order_relaxed);
    return BP_OK;
}

int bp_pool_is_sealed(const bp_pool *pool)
{
    return atomic_load_explicit((atomic_uint *)&pool->sealed, memory_order_relaxed) != 0;
}

void bp_pool_set_step(bp_pool *pool, uint64_t step)
{
    atomic_store_explicit(&pool->step, step, memory_order_relaxed);
    if (pool->annotations != NULL)
        bp_annotations_step(pool, step);
}
