/* SPDX-License-Identifier: Apache-2.0 */
/* A pool driven through its schedule. */
#include <bucketpool/device_ops.h>
#include <bucketpool/pool.h>

#include "devices/device.h"
#include "support/pools.h"

typedef struct walker {
    kit *k;
    void **now; /* addresses of live requests, by request */
    uint64_t *bytes;
    uint8_t *tags;
    check *checks;
    size_t checks_used;
    bool memory;
} walker;

/* True if an interval of the request begins, or ends, at the step. */
static bool has_edge(const kit *k, size_t request, uint32_t step, bool begin)
{
    size_t count;
    const bp_interval *intervals = intervals_of(k->w.schedule, request, &count);
    for (size_t i = 0; i < count; i++) {
        if ((begin ? intervals[i].begin : intervals[i].end) == step)
            return true;
    }
    return false;
}

static void assert_disjoint(const walker *w, size_t request)
{
    const char *begin = w->now[request], *end = begin + w->bytes[request];
    for (size_t i = 0; i < w->k->requests; i++) {
        const char *other = w->now[i];
        if (i != request && other != NULL)
            assert_true(end <= other || other + w->bytes[i] <= begin);
    }
}

static void begin_holds(walker *w, uint32_t step, void **addresses, bool stable)
{
    kit *k = w->k;
    uint32_t ids[SNAPSHOT_LIVE];
    size_t which[SNAPSHOT_LIVE], count = 0;
    void *got[SNAPSHOT_LIVE];
    for (size_t i = 0; i < k->requests; i++) {
        if (!has_edge(k, i, step, true))
            continue;
        ids[count] = k->ids[i];
        which[count++] = i;
    }
    if (count == 0)
        return;
    assert_ok(bp_pool_acquire(k->pool, ids, count, k->streams[0], got));
    for (size_t j = 0; j < count; j++) {
        size_t i = which[j];
        assert_non_null(got[j]);
        assert_ptr_equal(got[j], address_of(k, ids[j]));
        assert_int_equal((uintptr_t)got[j] % ALIGNMENT, 0);
        if (stable && addresses[i] != NULL)
            assert_ptr_equal(got[j], addresses[i]);
        if (addresses != NULL)
            addresses[i] = got[j];
        w->now[i] = got[j];
        assert_disjoint(w, i);
        if (w->memory)
            assert_ok(bp_stream_fill(k->streams[0], got[j], ++w->tags[i], w->bytes[i]));
    }
    order(k->device, k->streams[0], k->streams[1]);
}

static void end_holds(walker *w, uint32_t step)
{
    kit *k = w->k;
    uint32_t ids[SNAPSHOT_LIVE];
    size_t count = 0;
    for (size_t i = 0; i < k->requests; i++) {
        if (!has_edge(k, i, step, false))
            continue;
        ids[count++] = k->ids[i];
        if (w->memory) {
            check *c = &w->checks[w->checks_used++];
            *c = (check){.address = w->now[i], .bytes = w->bytes[i], .value = w->tags[i]};
            check_on(k->streams[1], c);
        }
        w->now[i] = NULL;
    }
    if (count == 0)
        return;
    assert_ok(bp_pool_release(k->pool, ids, count, k->streams[1]));
}

static bool has_memory(const bp_device *device)
{
    void *self;
    bp_device_traits traits = {.size = sizeof traits};
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_ok(ops->traits(self, &traits));
    return !traits.no_memory;
}

void walk(kit *k, unsigned times, void **addresses, bool stable)
{
    size_t steps = bp_schedule_get_info(k->w.schedule)->step_count;
    walker w = {.k = k,
                .now = calloc(k->requests, sizeof *w.now),
                .bytes = calloc(k->requests, sizeof *w.bytes),
                .tags = calloc(k->requests, 1),
                .checks = calloc(times * steps * k->requests, sizeof *w.checks)};
    assert_true(w.now != NULL && w.bytes != NULL && w.tags != NULL && w.checks != NULL);
    w.memory = has_memory(k->device);
    for (size_t i = 0; i < k->requests; i++) {
        bp_request request = bp_buckets_get_info(k->w.buckets)->requests[i];
        w.bytes[i] = request.bytes;
        w.tags[i] = (uint8_t)(i * 37);
    }
    for (unsigned t = 0; t < times; t++) {
        for (uint32_t step = 0; step <= steps; step++) {
            end_holds(&w, step);
            if (step < steps)
                begin_holds(&w, step, addresses, stable);
        }
    }
    assert_ok(bp_device_synchronize(k->device));
    for (size_t i = 0; i < w.checks_used; i++)
        assert_int_equal(w.checks[i].wrong, 0);
    free(w.now);
    free(w.bytes);
    free(w.tags);
    free(w.checks);
}
