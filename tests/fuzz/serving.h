/* SPDX-License-Identifier: Apache-2.0 */
/* Serves every plan that a reader accepts, at every level of strict assignment, on the device without memory. */
#ifndef BP_FUZZ_SERVING_H
#define BP_FUZZ_SERVING_H

#include <bucketpool/bucketpool.h>

#include "pipeline.h"

/* Larger plans take longer and find nothing new. */
#define FUZZ_MAX_REQUESTS 64

typedef struct fuzz_range {
    uintptr_t begin, end;
} fuzz_range;

/* Acquires what the pool can serve, one request at a time, and releases everything. */
static inline void fuzz_walk(bp_pool *pool, const uint32_t *ids, size_t count, bp_stream *stream)
{
    fuzz_range held[FUZZ_MAX_REQUESTS];
    uint32_t live[FUZZ_MAX_REQUESTS];
    size_t live_count = 0;
    for (size_t i = 0; i < count; i++) {
        void *address;
        uint64_t bytes;
        int acquired = 0, can = 0;
        if (bp_pool_can_acquire(pool, &ids[i], 1, NULL, 0, &can) != BP_OK ||
            bp_pool_try_acquire(pool, &ids[i], 1, stream, &address, &acquired) != BP_OK ||
            (can != acquired && /* the device gives each address once */
             (acquired || bp_pool_acquire(pool, &ids[i], 1, stream, NULL) != BP_ERR_NO_DEVICE_MEMORY)))
            fuzz_stop("a request can be neither had nor refused");
        if (!acquired)
            continue;
        if (bp_pool_address(pool, ids[i], &address, &bytes) != BP_OK)
            fuzz_stop("a live request has no address");
        held[live_count] = (fuzz_range){(uintptr_t)address, (uintptr_t)address + bytes};
        for (size_t k = 0; k < live_count; k++) {
            if (held[k].begin < held[live_count].end && held[live_count].begin < held[k].end)
                fuzz_stop("two live requests share bytes");
        }
        live[live_count++] = ids[i];
    }
    if (bp_pool_release(pool, live, live_count, stream) != BP_OK)
        fuzz_stop("live requests cannot be released");
    bp_pool_statistics statistics = {.size = sizeof statistics};
    if (bp_pool_statistics_get(pool, &statistics) != BP_OK || statistics.live_bytes != 0 ||
        statistics.live_requests != 0)
        fuzz_stop("something stays live");
}

static inline void fuzz_serve_with(bp_device *device, const bp_plan *plan, const bp_pool_config *config)
{
    const bp_plan_info *info = bp_plan_get_info(plan);
    bp_pool *pool = NULL;
    bp_stream *stream = NULL;
    uint32_t ids[FUZZ_MAX_REQUESTS];
    size_t count = 0;
    if (!fuzz_good(bp_pool_create(device, plan, config, &pool)))
        return;
    if (bp_stream_create(device, NULL, &stream) != BP_OK)
        fuzz_stop("no stream");
    if (config->overflow_bytes > 0)
        fuzz_good(bp_pool_allow_overflow(pool, 1)); /* fails if all requests have 0 bytes */
    for (uint32_t i = 0; i < info->request_count; i++) {
        const bp_plan_request *r = &info->requests[i];
        uint32_t id;
        bp_status found = bp_plan_find(plan, r->unit, r->ordinal, (bp_role)r->role, r->dtype, r->bytes, &id);
        if (found == BP_OK && id == i)
            ids[count++] = i;
        else if (found != BP_ERR_MISMATCH || bp_pool_acquire(pool, &i, 1, stream, NULL) != BP_ERR_SCHEDULE)
            fuzz_stop("a request without memory is found or served");
    }
    for (int round = 0; round < 2; round++)
        fuzz_walk(pool, ids, count, stream);
    if (bp_pool_set_stream(pool, ids, count, stream) != BP_OK)
        fuzz_stop("no stream can be promised");
    fuzz_walk(pool, ids, count, stream);
    bp_stream_destroy(&stream);
    bp_pool_destroy(&pool);
}

static inline void fuzz_serve(const bp_plan *plan)
{
    bp_device *device = NULL;
    if (bp_plan_get_info(plan)->request_count > FUZZ_MAX_REQUESTS)
        return;
    if (bp_device_create_null(&device) != BP_OK)
        fuzz_stop("no device");
    for (int strict = BP_STRICT_OFF; strict <= BP_STRICT_ERROR; strict++) {
        for (int overflow = 0; overflow < 2; overflow++) {
            bp_pool_config config;
            bp_pool_config_init(&config, sizeof config);
            config.strict = (bp_strict)strict;
            config.overflow_bytes = overflow ? 4096 : 0;
            config.extra_requests = 1;
            fuzz_serve_with(device, plan, &config);
        }
    }
    bp_device_destroy(&device);
}

#endif
