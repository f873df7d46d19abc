/* What a snapshot answers. */
#include "core/fail.h"
#include "formats/snapshot_file.h"

static bp_status fail_size(size_t expected)
{
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "a snapshot and an output of size %zu at least are expected", expected);
}

static bp_status fail_index(const char *what, size_t index, size_t count)
{
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s %zu of a snapshot with %zu", what, index, count);
}

bp_status bp_snapshot_about_get(const bp_snapshot *snapshot, bp_snapshot_about *about)
{
    if (snapshot == NULL || about == NULL || about->size < sizeof *about)
        return fail_size(sizeof *about);
    *about = snapshot->about;
    return BP_OK;
}

bp_status bp_snapshot_pool_get(const bp_snapshot *snapshot, size_t pool, bp_snapshot_pool *out)
{
    if (snapshot == NULL || out == NULL || out->size < sizeof *out)
        return fail_size(sizeof *out);
    if (pool >= snapshot->about.pools)
        return fail_index("pool", pool, snapshot->about.pools);
    *out = snapshot->pools[pool].about;
    return BP_OK;
}

/* One list of a pool: its entries are those of the output. */
#define DEFINE_GET(name, list, what)                                                                                   \
    bp_status bp_snapshot_##name##_get(const bp_snapshot *snapshot, size_t pool, size_t index,                         \
                                       bp_snapshot_##name *name)                                                       \
    {                                                                                                                  \
        if (snapshot == NULL || name == NULL || name->size < sizeof *name)                                             \
            return fail_size(sizeof *name);                                                                            \
        if (pool >= snapshot->about.pools)                                                                             \
            return fail_index("pool", pool, snapshot->about.pools);                                                    \
        if (index >= snapshot->pools[pool].about.list)                                                                 \
            return fail_index(what, index, snapshot->pools[pool].about.list);                                          \
        *name = snapshot->pools[pool].list[index];                                                                     \
        return BP_OK;                                                                                                  \
    }

DEFINE_GET(role, roles, "role")
DEFINE_GET(slab, slabs, "slab")
DEFINE_GET(request, requests, "request")
DEFINE_GET(stream, streams, "stream")
DEFINE_GET(live, live, "live request")
DEFINE_GET(event, events, "event")
DEFINE_GET(slab_event, slab_events, "slab event")

bp_status bp_snapshot_statistic_get(const bp_snapshot *snapshot, size_t pool, size_t index, const char **name,
                                    uint64_t *value)
{
    if (snapshot == NULL || name == NULL || value == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_snapshot_statistic_get: nothing may be NULL");
    if (pool >= snapshot->about.pools)
        return fail_index("pool", pool, snapshot->about.pools);
    if (index >= snapshot->pools[pool].about.statistics)
        return fail_index("statistic", index, snapshot->pools[pool].about.statistics);
    *name = snapshot->pools[pool].statistics[index].name;
    *value = snapshot->pools[pool].statistics[index].value;
    return BP_OK;
}
