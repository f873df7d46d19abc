/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the benchmarks of the command: options, medians, and the device with its free memory. */
#include "bench/device.h"

#include <bucketpool/core/fail.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "devices/cuda_driver.h"
#include "shared/machine.h"

/* ---- options ----------------------------------------------------------------------------------------------------- */

static const choice devices[] = {{"host", 0}, {"cuda", 1}, {0, 0}};

static int parse_device(const char *name, const char *text, void *options)
{
    bench_common *o = options;
    int value = 0, code = value_device(text, devices, &value, &o->ordinal);
    (void)name;
    o->cuda = value == 1;
    return code;
}

const option_row bench_common_table[] = {
    {.kind = OPTION_HEADING, .text = "Machine:", .group = 2},
    {"device", "D", "host, cuda or cuda:N (default host)", OPTION_OWN, .choices = devices, .parse = parse_device},
    {"turns", "N", "Measure everything N times in turns and print medians (default 5)", OPTION_U64,
     offsetof(bench_common, turns), .min = 1, .max = 10000},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 3},
    {"json", NULL, "Print a bucketpool.bench/1 document", OPTION_FLAG, offsetof(bench_common, json)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, offsetof(bench_common, color),
     choices_color},
    OPTION_END,
};

/* ---- times ------------------------------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

bench_spread bench_spread_of(double *values, size_t count)
{
    if (count == 0)
        return (bench_spread){0};
    qsort(values, count, sizeof *values, compare);
    double median = count % 2 == 1 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
    return (bench_spread){median, values[0], values[count - 1]};
}

void bench_milliseconds(char text[BENCH_TIME_CHARS], double seconds)
{
    double ms = 1e3 * seconds;
    snprintf(text, BENCH_TIME_CHARS, "%.*f ms", ms < 1 ? 4 : ms < 100 ? 2 : 1, ms);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

/* Asks the driver. Makes the context current during the call. */
static bp_status ask_memory(int32_t ordinal, uint64_t *free_bytes, uint64_t *all_bytes)
{
    bp_cuda_driver driver;
    int number;
    void *context;
    size_t left = 0, total = 0;
    BP_TRY(bp_cuda_driver_load(NULL, &driver));
    int error = driver.cuDeviceGet(&number, ordinal);
    if (error == 0)
        error = driver.cuDevicePrimaryCtxRetain(&context, number);
    if (error == 0) {
        error = driver.cuCtxPushCurrent(context);
        if (error == 0) {
            error = driver.cuMemGetInfo(&left, &total);
            (void)driver.cuCtxPopCurrent(&context);
        }
        (void)driver.cuDevicePrimaryCtxRelease(number);
    }
    if (error != 0)
        return bp_fail(BP_ERR_DEVICE, "the driver did not report its free memory");
    *free_bytes = left;
    *all_bytes = total;
    return BP_OK;
}

static bp_status make_host(bench_device *d)
{
    bp_host_config config;
    BP_TRY(bp_host_config_init(&config, sizeof config));
    d->free_bytes = machine_available_bytes() / 8 * 7; /* leaves a reserve */
    config.memory_bytes = d->free_bytes;
    d->granularity = (uint64_t)sysconf(_SC_PAGESIZE);
    if (d->free_bytes == 0)
        return bp_fail(BP_ERR_UNSUPPORTED, "this system does not report its free memory");
    return bp_device_create_host(&config, &d->device);
}

static bp_status make_cuda(bench_device *d)
{
    bp_cuda_config config;
    uint64_t all;
    BP_TRY(bp_cuda_config_init(&config, sizeof config));
    config.ordinal = d->ordinal;
    BP_TRY(bp_device_create_cuda(&config, &d->device));
    const bp_cuda_info *info = bp_cuda_get_info(d->device);
    snprintf(d->model, sizeof d->model, "%s", info->name);
    d->granularity = info->recommended_granularity > info->multicast_granularity ? info->recommended_granularity
                                                                                 : info->multicast_granularity;
    return ask_memory(d->ordinal, &d->free_bytes, &all);
}

bp_status bench_device_init(bool cuda, int32_t ordinal, bench_device *d)
{
    *d = (bench_device){.cuda = cuda, .ordinal = ordinal};
    BP_TRY(cuda ? make_cuda(d) : make_host(d));
    return bp_stream_create(d->device, "bench", &d->stream);
}

void bench_device_finish(bench_device *d)
{
    bp_stream_destroy(&d->stream);
    bp_device_destroy(&d->device);
}

bp_status bench_device_used(const bench_device *d, uint64_t *bytes)
{
    bp_device_usage usage = {.size = sizeof usage};
    BP_TRY(bp_device_usage_get(d->device, &usage));
    *bytes = usage.committed_bytes + usage.allocated_bytes;
    return BP_OK;
}

bp_status bench_device_seen(const bench_device *d, uint64_t *bytes)
{
    if (d->cuda) {
        uint64_t left = 0, all = 0;
        BP_TRY(ask_memory(d->ordinal, &left, &all));
        *bytes = all - left;
        return BP_OK;
    }
    unsigned long long pages = 0;
    char text[128];
    if (!machine_read("/proc/self/statm", text, sizeof text) || sscanf(text, "%*u %llu", &pages) != 1)
        return bp_fail(BP_ERR_UNSUPPORTED, "this system does not report resident memory");
    *bytes = pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return BP_OK;
}
