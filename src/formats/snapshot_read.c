/* Reads a snapshot: the object, and which of its two halves counts. */
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"
#include "formats/detail.h"
#include "formats/file.h"
#include "formats/reader.h"
#include "formats/snapshot_file.h"

static bp_status read_root(bp_snapshot_reader *reader)
{
    bp_snapshot_at root = {.reader = reader, .value = bp_pickle_get(reader->pickle, reader->pickle->root)};
    bp_snapshot_at ours = bp_snapshot_member(&root, "bucketpool");
    bp_snapshot_at segments = bp_snapshot_member(&root, "segments"),
                   traces = bp_snapshot_member(&root, "device_traces");
    if (root.value.kind != BP_PICKLE_DICTIONARY)
        return bp_snapshot_fail(&root, "not a snapshot: expected a dictionary");
    if (ours.value.kind != BP_PICKLE_ABSENT)
        return bp_snapshot_read_ours(&ours);
    if (segments.value.kind == BP_PICKLE_ABSENT || traces.value.kind == BP_PICKLE_ABSENT)
        return bp_snapshot_fail(&root, "not a snapshot: expected \"bucketpool\", or \"segments\" and "
                                       "\"device_traces\" as PyTorch writes them");
    return bp_snapshot_read_torch(&root);
}

/* Times of recording, as far as they are not said: those of the events. */
static void widen_times(bp_snapshot *snapshot)
{
    bp_snapshot_info *info = &snapshot->info;
    bool any = info->is_ours;
    for (size_t p = 0; p < info->pool_count; p++) {
        const bp_snapshot_pool *pool = &snapshot->info.pools[p];
        for (size_t i = 0; i < pool->event_count; i++) {
            uint64_t time = pool->events[i].time_ns;
            info->first_time_ns = any && info->first_time_ns < time ? info->first_time_ns : time;
            info->last_time_ns = any && info->last_time_ns > time ? info->last_time_ns : time;
            any = true;
        }
        for (size_t i = 0; i < pool->slab_event_count; i++) {
            uint64_t time = pool->slab_events[i].time_ns;
            info->first_time_ns = any && info->first_time_ns < time ? info->first_time_ns : time;
            info->last_time_ns = any && info->last_time_ns > time ? info->last_time_ns : time;
            any = true;
        }
    }
    if (info->last_time_ns < info->first_time_ns)
        info->last_time_ns = info->first_time_ns;
}

/* Whoever adds live bytes up need not check. */
static bp_status check_sums(const bp_snapshot *snapshot, const char *origin)
{
    for (size_t p = 0; p < snapshot->info.pool_count; p++) {
        const bp_snapshot_pool *pool = &snapshot->info.pools[p];
        uint64_t requests = 0, slabs = 0;
        bool fits = true;
        for (size_t i = 0; i < pool->request_count; i++)
            fits = fits && bp_add_u64(requests, pool->requests[i].bytes, &requests);
        for (size_t i = 0; i < pool->slab_count; i++)
            fits = fits && bp_add_u64(slabs, pool->slabs[i].bytes, &slabs);
        if (!fits)
            return bp_fail(BP_ERR_FORMAT,
                           "%.300s: pool %zu: the bytes of its requests or slabs add up to more "
                           "than 64 bits",
                           origin, p);
    }
    return BP_OK;
}

bp_status bp_snapshot_parse(const void *data, size_t bytes, const char *origin, bp_snapshot **snapshot)
{
    if (data == NULL || origin == NULL || snapshot == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_snapshot_parse: data, origin and snapshot must not be NULL");
    const size_t budget = bp_reader_budget(bytes) / 2; /* half for values, half for tables: these outlive the values */
    bp_pickle pickle = {0};
    BP_TRY(bp_pickle_parse(data, bytes, budget, origin, &pickle));
    bp_snapshot *read = calloc(1, sizeof *read);
    if (read == NULL) {
        bp_pickle_finish(&pickle);
        return bp_fail_memory(sizeof *read);
    }
    read->info = (bp_snapshot_info){.version = "", .label = "", .coordinates = ""};
    bp_snapshot_reader reader = {
        .origin = origin, .pickle = &pickle, .snapshot = read, .budget = budget, .left = budget};
    bp_status status = read_root(&reader);
    if (status == BP_OK)
        status = check_sums(read, origin);
    free(reader.copied);
    bp_pickle_finish(&pickle);
    if (status != BP_OK) {
        bp_snapshot_free(read);
        return status;
    }
    widen_times(read);
    *snapshot = read;
    return BP_OK;
}

bp_status bp_snapshot_read(const char *path, bp_snapshot **snapshot)
{
    if (path == NULL || snapshot == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_snapshot_read: path and snapshot must not be NULL");
    char *data = NULL;
    size_t bytes = 0;
    BP_TRY(bp_file_read(path, BP_PICKLE_MOST_BYTES, &data, &bytes));
    bp_status status = bp_snapshot_parse(data, bytes, path, snapshot);
    free(data);
    return status;
}

void bp_snapshot_destroy(bp_snapshot **snapshot)
{
    if (snapshot == NULL || *snapshot == NULL)
        return;
    bp_snapshot_free(*snapshot);
    *snapshot = NULL;
}

const bp_snapshot_info *bp_snapshot_get_info(const bp_snapshot *snapshot)
{
    return snapshot != NULL ? &snapshot->info : NULL;
}
