/* What it takes to have memory on a GPU: a pool's slab, made and destroyed, against the driver's allocators; and a layer's buffers in
 * turn, from a pool and from the allocators that keep what was freed. */
#include "bench/gpu/gpu.h"
#include "bench/measure.h"
#include "bench/pools.h"

#include <stdio.h>

#define GIB ((uint64_t)1 << 30)
#define MIB ((uint64_t)1 << 20)

typedef int make_function(uint64_t *address, size_t bytes);

typedef struct memory {
    const gpu *gpu;
    bp_device *device;
    bp_plan *plan;
    uint64_t bytes;
    void *stream;
    const world *world;
} memory;

/* ---- once and for all ----------------------------------------------------------------------------------------------- */

static double run_pool(void *user, size_t pairs)
{
    const memory *m = user;
    bp_pool *pool;
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++) {
        must(bp_pool_create(m->device, m->plan, NULL, &pool));
        bp_pool_destroy(&pool);
    }
    return bench_now_ns() - begin;
}

/* Without the time that giving it back takes. */
static double run_create(void *user, size_t pairs)
{
    const memory *m = user;
    bp_pool *pool;
    double took = 0;
    for (size_t i = 0; i < pairs; i++) {
        double begin = bench_now_ns();
        must(bp_pool_create(m->device, m->plan, NULL, &pool));
        took += bench_now_ns() - begin;
        bp_pool_destroy(&pool);
    }
    return took;
}

static double run_plain(void *user, size_t pairs)
{
    const memory *m = user;
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++) {
        uint64_t address;
        gpu_must(m->gpu, m->gpu->driver.cuMemAlloc(&address, m->bytes), "cuMemAlloc");
        gpu_must(m->gpu, m->gpu->driver.cuMemFree(address), "cuMemFree");
    }
    return bench_now_ns() - begin;
}

/* With a synchronisation after each: then the driver's pool gives the memory back, as it does by default. */
static double run_stream_ordered(void *user, size_t pairs)
{
    const memory *m = user;
    const bp_cuda_driver *driver = &m->gpu->driver;
    double begin = bench_now_ns();
    for (size_t i = 0; i < pairs; i++) {
        uint64_t address;
        gpu_must(m->gpu, driver->cuMemAllocAsync(&address, m->bytes, m->stream), "cuMemAllocAsync");
        gpu_must(m->gpu, driver->cuMemFreeAsync(address, m->stream), "cuMemFreeAsync");
        gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    }
    return bench_now_ns() - begin;
}

static void creation(const gpu *g, uint64_t bytes, const char *group)
{
    if (!bench_begin(group) || !gpu_has_room(g, 4 * bytes))
        return;
    memory m = {.gpu = g, .device = gpu_device(g), .plan = one_slab_plan(bytes), .bytes = bytes};
    gpu_must(g, g->driver.cuStreamCreate(&m.stream, 1), "making a stream");
    bench_turns(15);
    bench_bytes(bytes);
    bench_add_run("cuMemAlloc, cuMemFree", run_plain, &m, 1);
    bench_add_run("pool: create, destroy", run_pool, &m, 1);
    bench_add_run("pool: create", run_create, &m, 1);
    bench_add_run("cuMemAllocAsync, cuMemFreeAsync, synchronised", run_stream_ordered, &m, 1);
    bench_end();
    gpu_must(g, g->driver.cuStreamDestroy(m.stream), "destroying a stream");
    bp_plan_destroy(&m.plan);
    bp_device_destroy(&m.device);
}

/* ---- in turn -------------------------------------------------------------------------------------------------------- */

#define TURNS 64u

/* Layer after layer, each stays while the next is there: allocate, and free the one before. */
static double run_layers_of_pool(void *user, size_t pairs)
{
    const memory *m = user;
    const world *w = m->world;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++) {
        void *address;
        if (i < pairs)
            must(bp_pool_acquire(w->pool, &w->ids[i % w->count], 1, w->streams[0], &address));
        if (i > 0)
            must(bp_pool_release(w->pool, &w->ids[(i - 1) % w->count], 1, w->streams[0]));
    }
    double took = bench_now_ns() - begin;
    must(bp_stream_synchronize(w->streams[0]));
    return took;
}

/* What is freed in stream order may be late in coming back. */
static uint64_t allocate_in_order(const memory *m)
{
    const bp_cuda_driver *driver = &m->gpu->driver;
    uint64_t address;
    if (driver->cuMemAllocAsync(&address, m->bytes, m->stream) == 0)
        return address;
    gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    gpu_must(m->gpu, driver->cuMemAllocAsync(&address, m->bytes, m->stream), "cuMemAllocAsync");
    return address;
}

static double run_layers_stream_ordered(void *user, size_t pairs)
{
    const memory *m = user;
    const bp_cuda_driver *driver = &m->gpu->driver;
    uint64_t now = 0, before = 0;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++, before = now) {
        if (i < pairs)
            now = allocate_in_order(m);
        if (i > 0)
            gpu_must(m->gpu, driver->cuMemFreeAsync(before, m->stream), "cuMemFreeAsync");
    }
    double took = bench_now_ns() - begin;
    gpu_must(m->gpu, driver->cuStreamSynchronize(m->stream), "cuStreamSynchronize");
    return took;
}

static double run_layers_plain(void *user, size_t pairs)
{
    const memory *m = user;
    uint64_t now = 0, before = 0;
    double begin = bench_now_ns();
    for (size_t i = 0; i <= pairs; i++, before = now) {
        if (i < pairs)
            gpu_must(m->gpu, m->gpu->driver.cuMemAlloc(&now, m->bytes), "cuMemAlloc");
        if (i > 0)
            gpu_must(m->gpu, m->gpu->driver.cuMemFree(before), "cuMemFree");
    }
    return bench_now_ns() - begin;
}

/* The driver's default pool, which gives freed memory back at the next synchronisation unless a threshold tells it to keep some. */
typedef struct default_pool {
    void *pool;
    uint64_t threshold; /* before */
    int (*set)(void *pool, int attribute, void *value);
    int (*trim)(void *pool, size_t keep);
} default_pool;

enum { RELEASE_THRESHOLD = 4 };

/* Lets the pool keep what is freed: what frameworks set. 0: this driver cannot. */
static int keep_freed(const gpu *g, default_pool *p)
{
    int (*find)(void **, int), (*get)(void *, int, void *), number;
    uint64_t all = UINT64_MAX;
    return gpu_symbol(g->library, "cuDeviceGetDefaultMemPool", &find, sizeof find) &&
           gpu_symbol(g->library, "cuMemPoolGetAttribute", &get, sizeof get) &&
           gpu_symbol(g->library, "cuMemPoolSetAttribute", &p->set, sizeof p->set) &&
           gpu_symbol(g->library, "cuMemPoolTrimTo", &p->trim, sizeof p->trim) &&
           g->driver.cuDeviceGet(&number, 0) == 0 && find(&p->pool, number) == 0 &&
           get(p->pool, RELEASE_THRESHOLD, &p->threshold) == 0 && p->set(p->pool, RELEASE_THRESHOLD, &all) == 0;
}

/* Groups that follow measure memory that is given back. */
static void give_back(const gpu *g, default_pool *p)
{
    gpu_must(g, p->set(p->pool, RELEASE_THRESHOLD, &p->threshold), "restoring the release threshold");
    gpu_must(g, p->trim(p->pool, 0), "cuMemPoolTrimTo");
}

static void layers(const gpu *g, uint64_t bytes, const char *group)
{
    if (!bench_begin(group) || !gpu_has_room(g, 8 * bytes))
        return;
    world w = world_create(
        &(world_options){.device = gpu_device(g), .units = 8, .buckets = 1, .bytes = bytes, .promised = 1});
    memory m = {.gpu = g, .bytes = bytes, .world = &w};
    default_pool pool;
    const int kept = keep_freed(g, &pool);
    gpu_must(g, g->driver.cuStreamCreate(&m.stream, 1), "making a stream");
    bench_turns(51);
    bench_bytes(bytes);
    bench_add_run("pool: acquire, release", run_layers_of_pool, &m, TURNS);
    bench_add_run(kept ? "cuMemAllocAsync, cuMemFreeAsync, freed memory kept" : "cuMemAllocAsync, cuMemFreeAsync",
                  run_layers_stream_ordered, &m, TURNS);
    bench_add_run("cuMemAlloc, cuMemFree", run_layers_plain, &m, 4);
    bench_end();
    if (kept)
        give_back(g, &pool);
    gpu_must(g, g->driver.cuStreamDestroy(m.stream), "destroying a stream");
    world_destroy(&w);
}

void gpu_memory(const gpu *g)
{
    layers(g, 16 * MIB, "gpu: layers of 16 MiB in turn");
    layers(g, 256 * MIB, "gpu: layers of 256 MiB in turn");
    creation(g, 32 * MIB, "gpu: memory of 32 MiB");
    creation(g, GIB, "gpu: memory of 1 GiB");
    creation(g, 8 * GIB, "gpu: memory of 8 GiB");
}
