/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what each environment variable of the libraries changes, a line each. It runs as any user, and privileged (test_hardening.py).
 *
 * usage: privileged DRIVER    DRIVER: library of the emulated CUDA driver */
#include <bucketpool/bucketpool.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

#include "allocators/pool.h"
#include "comms/timeout.h"
#include "shared/machine.h"

static void check(bp_status status)
{
    if (status == BP_OK)
        return;
    fprintf(stderr, "%s: %s\n", bp_status_name(status), bp_error_detail());
    exit(1);
}

static bp_plan *make_plan(void)
{
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plan;
    bp_given_bucket bucket = {.size = sizeof bucket, .dtype = BP_DTYPE_BF16, .numel = 100};
    check(bp_model_create("privileged", &model));
    check(bp_model_add_unit(model, "unit", BP_OUTSIDE, NULL));
    check(bp_model_add_bucket(model, &bucket));
    check(bp_buckets_create(model, NULL, &buckets));
    check(bp_schedule_create_training(buckets, NULL, &schedule));
    check(bp_plan_create(buckets, schedule, NULL, &plan));
    bp_schedule_destroy(&schedule);
    bp_buckets_destroy(&buckets);
    bp_model_destroy(&model);
    return plan;
}

static void show_pool(const bp_plan *plan)
{
    bp_device *device;
    bp_pool *pool;
    check(bp_device_create_host(NULL, &device));
    check(bp_pool_create(device, plan, NULL, &pool));
    printf("guard %d\n", bp_pool_get_info(pool)->guarded);
    printf("check %d\n", pool->capture.check == BP_CAPTURE_CHECK_ALWAYS);
    printf("annotated %d\n", bp_pool_get_info(pool)->annotated);
    bp_pool_destroy(&pool);
    bp_device_destroy(&device);
}

/* Not a number of bytes, so that nothing is allocated. */
static void show_segments(void)
{
    bp_torch_statistics statistics = {.size = sizeof statistics};
    void *segment = bp_torch_malloc(4096, 1, NULL);
    bp_status status = bp_torch_statistics_get(1, &statistics);
    printf("segments %s\n", segment == NULL && status != BP_OK ? bp_error_detail() : "served");
}

/* ---- what NCCL's variables change: the reason for a window that it does not grant ------------------------------------- */

static int version(int *number)
{
    *number = 22700;
    return 0;
}

static const char *text(int result)
{
    (void)result;
    return "";
}

static const char *text_of(void *comm)
{
    (void)comm;
    return "";
}

static int one(void *comm, int *number)
{
    (void)comm;
    *number = 1;
    return 0;
}

static int zero(void *comm, int *number)
{
    (void)comm;
    *number = 0;
    return 0;
}

static int nothing(void *comm)
{
    (void)comm;
    return 0;
}

static int gather(const void *from, void *to, size_t count, int dtype, void *comm, void *stream)
{
    (void)from, (void)to, (void)count, (void)dtype, (void)comm, (void)stream;
    return 0;
}

static int reduce(const void *from, void *to, size_t count, int dtype, int op, void *comm, void *stream)
{
    (void)op;
    return gather(from, to, count, dtype, comm, stream);
}

static int refuse_window(void *comm, void *address, size_t bytes, void **window, int flags)
{
    (void)comm, (void)address, (void)bytes, (void)flags;
    *window = NULL;
    return 0;
}

static int deregister(void *comm, void *window)
{
    (void)comm, (void)window;
    return 0;
}

static void show_registration(bp_device *device, const bp_plan *plan)
{
    const bp_nccl_functions functions = {.size = sizeof functions,
                                         .ncclGetVersion = version,
                                         .ncclGetErrorString = text,
                                         .ncclGetLastError = text_of,
                                         .ncclCommCount = one,
                                         .ncclCommUserRank = zero,
                                         .ncclCommCuDevice = zero,
                                         .ncclCommGetAsyncError = zero,
                                         .ncclCommAbort = nothing,
                                         .ncclAllGather = gather,
                                         .ncclAllReduce = reduce,
                                         .ncclReduceScatter = reduce,
                                         .ncclCommWindowRegister = refuse_window,
                                         .ncclCommWindowDeregister = deregister};
    bp_pool *pool;
    bp_comm *control, *comm;
    bp_nccl_config config;
    bp_registration *registration;
    bp_registration_entry entry;
    check(bp_pool_create(device, plan, NULL, &pool));
    check(bp_comm_create_self(&control));
    check(bp_nccl_config_init(&config, sizeof config));
    config.comm = pool; /* not used by these functions */
    config.functions = &functions;
    config.device = device;
    config.control = control;
    check(bp_comm_create_nccl(&config, &comm));
    check(bp_registration_entry_init(&entry, sizeof entry));
    entry.comm = comm;
    check(bp_registration_create(pool, &entry, 1, &registration));
    printf("window %s\n", bp_registration_get_info(registration)->windows[0].because);
    bp_registration_destroy(&registration);
    bp_comm_destroy(&comm);
    bp_comm_destroy(&control);
    bp_pool_destroy(&pool);
}

int main(int count, char **words)
{
    uint64_t timeout_ms = 0;
    bp_device *device;
    bp_cuda_config config;
    bp_plan *plan = make_plan();
    printf("privileged %d\n", getauxval(AT_SECURE) != 0);
    show_pool(plan);
    show_segments();
    check(bp_timeout_choose(0, &timeout_ms));
    printf("timeout %llu\n", (unsigned long long)timeout_ms);
    printf("cache %llu\n", (unsigned long long)machine_cache_bytes());
    bool found = bp_device_create_cuda(NULL, &device) == BP_OK; /* by the name libcuda.so.1 */
    printf("driver %s\n", found ? bp_cuda_get_info(device)->name : "none");
    if (found)
        bp_device_destroy(&device);
    check(bp_cuda_config_init(&config, sizeof config));
    config.driver = count > 1 ? words[1] : NULL;
    check(bp_device_create_cuda(&config, &device));
    show_registration(device, plan);
    bp_device_destroy(&device);
    bp_plan_destroy(&plan);
    return 0;
}
