/* The device that a bench measures, its stream, and time on that stream. */
#include "bench/command/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "devices/cuda_driver.h"
#include "shared/machine.h"

/* ---- times ------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bench_median(double *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof *values, compare);
    return count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

bench_spread bench_spread_of(double *values, size_t count)
{
    double median = bench_median(values, count);
    return count > 0 ? (bench_spread){median, values[0], values[count - 1]} : (bench_spread){0};
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static bp_status make_host(bench_device *d)
{
    bp_host_config config;
    bp_status status = bp_host_config_init(&config, sizeof config);
    if (status != BP_OK)
        return status;
    d->free_bytes = machine_available_bytes() / 8 * 7; /* not the last page */
    config.memory_bytes = d->free_bytes;
    d->granularity = (uint64_t)sysconf(_SC_PAGESIZE);
    if (d->free_bytes == 0)
        return bp_error_record(BP_ERR_UNSUPPORTED, "this system does not say how much memory is free");
    return bp_device_create_host(&config, &d->device);
}

/* What the driver says. The context is current for the question only. */
static bp_status ask_memory(int32_t ordinal, uint64_t *free_bytes, uint64_t *all_bytes)
{
    bp_cuda_driver driver;
    int number;
    void *context;
    size_t left = 0, total = 0;
    bp_status status = bp_cuda_driver_load(NULL, &driver);
    if (status != BP_OK)
        return status;
    if (driver.cuDeviceGet(&number, ordinal) != 0 || driver.cuDevicePrimaryCtxRetain(&context, number) != 0)
        return bp_error_record(BP_ERR_DEVICE, "the driver does not say how much memory is free");
    int error = driver.cuCtxPushCurrent(context);
    if (error == 0) {
        error = driver.cuMemGetInfo(&left, &total);
        (void)driver.cuCtxPopCurrent(&context);
    }
    (void)driver.cuDevicePrimaryCtxRelease(number);
    if (error != 0)
        return bp_error_record(BP_ERR_DEVICE, "the driver does not say how much memory is free");
    *free_bytes = left;
    *all_bytes = total;
    return BP_OK;
}

static bp_status make_cuda(int32_t ordinal, bench_device *d)
{
    bp_cuda_config config;
    uint64_t all;
    bp_status status = bp_cuda_config_init(&config, sizeof config);
    config.ordinal = ordinal;
    if (status == BP_OK)
        status = bp_device_create_cuda(&config, &d->device);
    if (status != BP_OK)
        return status;
    const bp_cuda_info *info = bp_cuda_get_info(d->device);
    snprintf(d->model, sizeof d->model, "%s", info->name);
    d->granularity = info->recommended_granularity > info->multicast_granularity ? info->recommended_granularity
                                                                                 : info->multicast_granularity;
    return ask_memory(ordinal, &d->free_bytes, &all);
}

bp_status bench_device_init(bool cuda, int32_t ordinal, bench_device *d)
{
    *d = (bench_device){.cuda = cuda, .ordinal = ordinal};
    bp_status status = cuda ? make_cuda(ordinal, d) : make_host(d);
    return status == BP_OK ? bp_stream_create(d->device, "bench", &d->stream) : status;
}

void bench_device_finish(bench_device *d)
{
    bp_stream_destroy(&d->stream);
    bp_device_destroy(&d->device);
}

bp_status bench_device_used(const bench_device *d, uint64_t *bytes)
{
    bp_device_usage usage = {.size = sizeof usage};
    bp_status status = bp_device_usage_get(d->device, &usage);
    if (status == BP_OK)
        *bytes = usage.committed_bytes + usage.allocated_bytes;
    return status;
}

/* Resident pages of the process. */
static bp_status ask_resident(uint64_t *bytes)
{
    unsigned long long pages = 0;
    char text[128];
    bool read = machine_read("/proc/self/statm", text, sizeof text) && sscanf(text, "%*u %llu", &pages) == 1;
    *bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return read ? BP_OK : bp_error_record(BP_ERR_UNSUPPORTED, "this system does not say how much memory is resident");
}

bp_status bench_device_seen(const bench_device *d, uint64_t *bytes)
{
    uint64_t left = 0, all = 0;
    if (!d->cuda)
        return ask_resident(bytes);
    bp_status status = ask_memory(d->ordinal, &left, &all);
    if (status == BP_OK)
        *bytes = all - left;
    return status;
}
