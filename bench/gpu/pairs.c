/* Acquire and release on a GPU against the calls of the driver that they cannot do without. Windows of an entry start with empty streams
 * and are short, so that no queue of the driver fills up. */
#include "bench/gpu/gpu.h"
#include "bench/pools.h"

#include <stdio.h>
#include <stdlib.h>

#define PAIRS 256u
#define EVENTS 8u
#define BYTES 4096u

typedef struct run {
    const gpu *gpu;
    const world *world;
    bp_stream *acquiring, *releasing;
    const uint32_t *ids;
    size_t each; /* ids in a call */
    /* bare: */
    void *streams[2];
    void *events[2][EVENTS];
    unsigned records, waits;
} run;

static void settle(const run *r)
{
    must(bp_stream_synchronize(r->acquiring));
    must(bp_stream_synchronize(r->releasing));
}

static void loop_pool(const run *user, size_t pairs)
{
    const run r = *user;
    void *addresses[8];
    for (size_t i = 0; i < pairs; i++) {
        const uint32_t *ids = r.ids + i % (8 / r.each) * r.each;
        must(bp_pool_acquire(r.world->pool, ids, r.each, r.acquiring, addresses));
        must(bp_pool_release(r.world->pool, ids, r.each, r.releasing));
    }
}

/* As the pool does: the acquiring stream waits for the releasing one's record of eight pairs ago. */
static void loop_bare(const run *user, size_t pairs)
{
    const run r = *user;
    const bp_cuda_driver *driver = &r.gpu->driver;
    int error = 0;
    for (size_t i = 0; i < pairs; i++) {
        if (r.waits > 0)
            error |= driver->cuStreamWaitEvent(r.streams[0], r.events[1][i % EVENTS], 0);
        if (r.records > 1)
            error |= driver->cuEventRecord(r.events[0][i % EVENTS], r.streams[0]);
        error |= driver->cuEventRecord(r.events[1][i % EVENTS], r.streams[1]);
    }
    gpu_must(r.gpu, error, "an event");
}

/* A few pairs first, whose time does not count: the window before was another's. */
static double window(const run *r, void (*loop)(const run *, size_t), size_t pairs)
{
    loop(r, 16);
    settle(r);
    double begin = bench_now_ns();
    loop(r, pairs);
    double took = bench_now_ns() - begin;
    settle(r);
    return took;
}

static double run_pool(void *user, size_t pairs)
{
    return window(user, loop_pool, pairs);
}

static double run_bare(void *user, size_t pairs)
{
    return window(user, loop_bare, pairs);
}

static run pool_run(const gpu *g, const world *w, int two_streams, size_t each)
{
    return (run){.gpu = g,
                 .world = w,
                 .acquiring = w->streams[0],
                 .releasing = w->streams[two_streams ? 1 : 0],
                 .ids = w->ids,
                 .each = each};
}

/* On the same streams. */
static run bare_run(const gpu *g, const world *w, unsigned records, unsigned waits)
{
    run r = pool_run(g, w, 1, 1);
    r.records = records;
    r.waits = waits;
    for (int s = 0; s < 2; s++) {
        uint64_t native;
        must(bp_stream_native(w->streams[s], &native));
        r.streams[s] = (void *)(uintptr_t)native; /* NOLINT(performance-no-int-to-ptr): that is what it was */
        for (unsigned i = 0; i < EVENTS; i++)
            gpu_must(g, g->driver.cuEventCreate(&r.events[s][i], 2), "making an event");
    }
    return r;
}

static void end_bare(run *r)
{
    for (unsigned i = 0; i < 2 * EVENTS; i++)
        gpu_must(r->gpu, r->gpu->driver.cuEventDestroy(r->events[i / EVENTS][i % EVENTS]), "destroying an event");
}

/* The figures' names say what a pair takes: proves it. */
static void expect(run *r, uint64_t records, uint64_t waits)
{
    loop_pool(r, 64);
    bp_pool_statistics before = world_statistics(r->world);
    loop_pool(r, 64);
    bp_pool_statistics after = world_statistics(r->world);
    if (after.records - before.records == 64 * records && after.waits - before.waits == 64 * waits)
        return;
    fprintf(stderr, "bench: a pair takes %g records and %g waits\n", (double)(after.records - before.records) / 64,
            (double)(after.waits - before.waits) / 64);
    exit(1);
}

/* Units of a model, whose requests are promised to stream 0 or to none. */
static world make_world(const gpu *g, int promised)
{
    return world_create(
        &(world_options){.units = 50, .buckets = 4, .bytes = BYTES, .device = gpu_device(g), .promised = promised});
}

static void one_record(const gpu *g)
{
    if (!bench_begin("gpu: a record and a wait"))
        return;
    world promised = make_world(g, 1);
    run bare = bare_run(g, &promised, 1, 1), two = pool_run(g, &promised, 1, 1), unit = pool_run(g, &promised, 1, 4);
    expect(&two, 1, 1);
    expect(&unit, 1, 1);
    bench_add_run("driver alone: cuEventRecord, cuStreamWaitEvent", run_bare, &bare, PAIRS);
    bench_add_run("driver alone, once more: what the noise is", run_bare, &bare, PAIRS);
    bench_add_run("pool, promised stream, two streams", run_pool, &two, PAIRS);
    bench_add_run("pool, promised stream, two streams, a unit of 4 in one call", run_pool, &unit, PAIRS);
    bench_end();
    end_bare(&bare);
    world_destroy(&promised);
}

static void two_records(const gpu *g)
{
    if (!bench_begin("gpu: two records and a wait"))
        return;
    world any = make_world(g, 0);
    run bare = bare_run(g, &any, 2, 1), two = pool_run(g, &any, 1, 1);
    expect(&two, 2, 1);
    bench_add_run("driver alone: 2 cuEventRecord, cuStreamWaitEvent", run_bare, &bare, PAIRS);
    bench_add_run("pool, any stream, two streams", run_pool, &two, PAIRS);
    bench_end();
    end_bare(&bare);
    world_destroy(&any);
}

static void no_event(const gpu *g)
{
    if (!bench_begin("gpu: no call of the driver"))
        return;
    world promised = make_world(g, 1);
    run bare = bare_run(g, &promised, 1, 0), one = pool_run(g, &promised, 0, 1);
    expect(&one, 0, 0);
    bench_add_run("driver alone: cuEventRecord", run_bare, &bare, PAIRS);
    bench_add_run("pool, promised stream", run_pool, &one, PAIRS);
    bench_end();
    end_bare(&bare);
    world_destroy(&promised);
}

void gpu_pairs(const gpu *g)
{
    one_record(g);
    two_records(g);
    no_event(g);
}
