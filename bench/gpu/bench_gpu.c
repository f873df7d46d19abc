/* SPDX-License-Identifier: Apache-2.0 */
/* Figures of kernels and pools on a GPU, against copies and driver calls. Exits 77 if nothing could be measured, with the reason as the
 * last line. bench/torch/allocator.py measures PyTorch's caching allocator in the same sizes and order. */
#include "gpu/gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] = " [--list] [--driver LIBRARY] [--nccl LIBRARY] [--divide N]\n"
                            "--list: print the names of the groups, one per line, the most important first\n"
                            "--only: run the group with this name, as --list with the same --divide prints it\n"
                            "--json: rewritten after each group\n"
                            "--divide: divide logit and head shapes, numbers of tokens, and offloaded bytes by N";

/* ---- the GPU ----------------------------------------------------------------------------------------------------- */

int gpu_symbol(void *library, const char *name, void *function, size_t size)
{
    void *found = library != NULL ? dlsym(library, name) : NULL;
    if (found == NULL)
        return 0;
    memcpy(function, &found, size);
    return 1;
}

void gpu_must(const gpu *g, int error, const char *what)
{
    const char *name = NULL;
    if (error == 0)
        return;
    g->driver.cuGetErrorName(error, &name);
    fprintf(stderr, "bench: %s: %s (%d)\n", what, name != NULL ? name : "unknown", error);
    exit(1);
}

int gpu_has_room(const gpu *g, uint64_t bytes)
{
    if (bytes <= g->free_bytes)
        return 1;
    bench_skip("needs %.1f GiB of device memory, but %.1f GiB are free", (double)bytes / (1u << 30),
               (double)g->free_bytes / (1u << 30));
    return 0;
}

uint64_t gpu_divided(const gpu *g, uint64_t count)
{
    return 1 + (count - 1) / g->divisor;
}

static bp_status create_device(const gpu *g, bp_device **device)
{
    bp_cuda_config config;
    must(bp_cuda_config_init(&config, sizeof config));
    config.driver = g->library_name;
    return bp_device_create_cuda(&config, device);
}

bp_device *gpu_device(const gpu *g)
{
    bp_device *device;
    must(create_device(g, &device));
    return device;
}

/* 0: no GPU, bp_error_detail has the reason. The context stays current on this thread. */
static int open_gpu(gpu *g)
{
    bp_device *device;
    int number;
    size_t left, total;
    if (bp_cuda_driver_load(g->library_name, &g->driver) != BP_OK || create_device(g, &device) != BP_OK)
        return 0;
    g->library = dlopen(g->library_name != NULL ? g->library_name : "libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    g->info = *bp_cuda_get_info(device);
    gpu_must(g, g->driver.cuDeviceGet(&number, 0), "the first GPU");
    gpu_must(g, g->driver.cuDevicePrimaryCtxRetain(&g->context, number), "its context");
    gpu_must(g, g->driver.cuCtxPushCurrent(g->context), "making the context current");
    gpu_must(g, g->driver.cuMemGetInfo(&left, &total), "asking for memory");
    g->free_bytes = left;
    g->total_bytes = total;
    bp_device_destroy(&device);
    return 1;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define PATTERN_BYTES ((uint64_t)8 << 20)

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

uint64_t gpu_parts_bytes(const gpu_part *parts, size_t count)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        bytes += rounded(parts[i].bytes);
    return bytes;
}

uint64_t gpu_place(const gpu *g, const gpu_part *parts, size_t count)
{
    uint64_t memory;
    gpu_must(g, g->driver.cuMemAlloc(&memory, gpu_parts_bytes(parts, count)), "memory for a group");
    char *next = (char *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr): a device address */
    for (size_t i = 0; i < count; i++) {
        *parts[i].at = next;
        next += rounded(parts[i].bytes);
    }
    return memory;
}

void gpu_free(const gpu *g, uint64_t memory)
{
    gpu_must(g, g->driver.cuMemFree(memory), "freeing a group's memory");
}

static void *host_memory(uint64_t bytes)
{
    void *memory = malloc(bytes);
    if (memory == NULL)
        must(BP_ERR_NO_HOST_MEMORY);
    return memory;
}

void gpu_fill(bp_stream *stream, char *to, uint64_t bytes, uint16_t min)
{
    uint64_t state = BENCH_SEED, done = bytes < PATTERN_BYTES ? bytes : PATTERN_BYTES;
    uint16_t *pattern = host_memory(PATTERN_BYTES);
    for (size_t i = 0; i < done / 2; i++)
        pattern[i] = (uint16_t)((bench_random(&state) & 0x80ffu) | min);
    must(bp_stream_copy(stream, to, pattern, done));
    for (uint64_t more; done < bytes; done += more) { /* doubling copies of the pattern */
        more = bytes - done < done ? bytes - done : done;
        must(bp_stream_copy(stream, to + done, to, more));
    }
    must(bp_stream_synchronize(stream));
    free(pattern);
}

void gpu_fill_tokens(bp_stream *stream, uint64_t tokens, uint64_t vocab, float upstream, char *targets, char *upstreams)
{
    int64_t *target = host_memory(8 * tokens);
    float *each = host_memory(4 * tokens);
    for (uint64_t i = 0; i < tokens; i++) {
        target[i] = (int64_t)(i * 7919 % vocab);
        each[i] = upstream;
    }
    must(bp_stream_copy(stream, targets, target, 8 * tokens));
    must(bp_stream_copy(stream, upstreams, each, 4 * tokens));
    must(bp_stream_synchronize(stream));
    free(target);
    free(each);
}

/* ---- the program ------------------------------------------------------------------------------------------------- */

/* Most important first, because a run may end early. */
static void groups(const gpu *g)
{
    gpu_head(g);
    gpu_logprob(g);
    gpu_cp(g);
    gpu_pairs(g);
    gpu_memory(g);
    gpu_offload(g);
    gpu_registration(g);
}

int main(int argc, char **argv)
{
    gpu g = {.nccl = "libnccl.so.2"};
    int divide = 1, list = 0;
    const bench_option options[] = {{"--driver", .text = &g.library_name},
                                    {"--nccl", .text = &g.nccl},
                                    {"--divide", .number = &divide},
                                    {"--list", .flag = &list}};
    bench_start(argc, argv, 201, usage, options, sizeof options / sizeof *options, 0);
    g.divisor = divide > 1 ? (uint64_t)divide : 1;
    bench_begin_names(list);
    groups(&g);
    bench_end_names();
    if (list)
        return 0;
    if (!open_gpu(&g)) {
        printf("%s\n", bp_error_detail());
        return 77;
    }
    printf("%s, driver of CUDA %d.%d, %.1f GiB free\n\n", g.info.name, g.info.driver_version / 1000,
           g.info.driver_version % 1000 / 10, (double)g.free_bytes / (double)(1u << 30));
    bench_measured_on(g.info.name, g.total_bytes, g.free_bytes);
    groups(&g);
    void *popped;
    gpu_must(&g, g.driver.cuCtxPopCurrent(&popped), "popping the context");
    gpu_must(&g, g.driver.cuDevicePrimaryCtxRelease(0), "releasing the context");
    return bench_finish_groups();
}
