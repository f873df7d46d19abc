/* SPDX-License-Identifier: Apache-2.0 */
/* Serves the buckets of a plan, the way a runtime does: docs/start/runtime.md shows this program. */
#include <bucketpool/bucketpool.h>
#include <bucketpool/formats.h>
#include <stdio.h>

#define TRY(call)                                                                                                      \
    if ((call) != BP_OK)                                                                                               \
    return fprintf(stderr, "%s\n", bp_error_detail()), 1

int main(int argc, char **argv)
{
    bp_plan *plan;
    bp_device *device;
    bp_pool *pool;
    bp_stream *gather, *compute;
    bp_event *gathered;
    TRY(bp_plan_read(argc > 1 ? argv[1] : "plan.json", &plan)); /* bucketpool plan MODEL -o plan.json */
    TRY(bp_device_create_host(NULL, &device));                  /* GPUs: bp_device_create_cuda */
    TRY(bp_pool_create(device, plan, NULL, &pool));
    TRY(bp_stream_create(device, "gather", &gather)); /* your own: bp_stream_import */
    TRY(bp_stream_create(device, "compute", &compute));
    TRY(bp_event_create(device, &gathered));
    const bp_plan_info *info = bp_plan_get_info(plan);
    for (uint32_t id = 0; id < info->request_count; id++) { /* by name: bp_plan_find */
        void *address;
        TRY(bp_pool_acquire(pool, &id, 1, gather, &address)); /* `gather` waits for whoever had the memory */
        TRY(bp_stream_fill(gather, address, 1, info->requests[id].bytes)); /* your all-gather */
        TRY(bp_event_record(gathered, gather));
        TRY(bp_stream_wait(compute, gathered)); /* then your layer, on `compute` */
        TRY(bp_pool_release(pool, &id, 1, compute));
    }
    TRY(bp_device_synchronize(device));
    bp_pool_statistics s = {.size = sizeof s};
    TRY(bp_pool_statistics_get(pool, &s));
    printf("%llu buckets from %llu bytes\n", (unsigned long long)s.acquires, (unsigned long long)s.slab_bytes);
    bp_event_destroy(&gathered), bp_stream_destroy(&gather), bp_stream_destroy(&compute);
    bp_pool_destroy(&pool), bp_device_destroy(&device), bp_plan_destroy(&plan);
}
