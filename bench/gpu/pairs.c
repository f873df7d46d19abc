/* SPDX-License-Identifier: Apache-2.0 */
/* Acquire and release on a GPU, against the driver calls they need. Windows start with empty streams and are short, so that no driver queue
 * fills up. */
#include "gpu/gpu.h"
#include "pools.h"

#define PAIRS 256u
#define EVENTS 8u
#define BYTES 4096u

/* Driver calls alone, on the pool's streams. */
typedef struct bare {
    const gpu *gpu;
    void *streams[2];
    void *events[2][EVENTS];
    unsigned records, waits;
} bare;

static bare bare_on(const gpu *g, const pool_fixture *w, unsigned records, unsigned waits)
{
    bare b = {.gpu = g, .records = records, .waits = waits};
    for (int s = 0; s < 2; s++) {
        uint64_t native;
        must(bp_stream_native(w->streams[s], &native));
        b.streams[s] = (void *)(uintptr_t)native; /* NOLINT(performance-no-int-to-ptr): a native handle */
        for (unsigned i = 0; i < EVENTS; i++)
            gpu_must(g, g->driver.cuEventCreate(&b.events[s][i], 2), "making an event");
    }
    return b;
}

/* Like the pool: the acquiring stream waits for the releasing one's record of eight pairs ago. */
static void run_bare(void *user, size_t pairs)
{
    const bare b = *(const bare *)user;
    const bp_cuda_driver *driver = &b.gpu->driver;
    int error = 0;
    for (size_t i = 0; i < pairs; i++) {
        if (b.waits > 0)
            error |= driver->cuStreamWaitEvent(b.streams[0], b.events[1][i % EVENTS], 0);
        if (b.records > 1)
            error |= driver->cuEventRecord(b.events[0][i % EVENTS], b.streams[0]);
        error |= driver->cuEventRecord(b.events[1][i % EVENTS], b.streams[1]);
    }
    gpu_must(b.gpu, error, "an event");
}

typedef struct timed {
    const pool_fixture *fixture;
    bench_loop *loop;
    void *user;
} timed;

/* Runs a few untimed pairs first, because the previous window was of another entry. */
static double run_timed(void *user, size_t pairs)
{
    const timed *t = user;
    double begin = 0, took = 0;
    for (int counts = 0; counts <= 1; counts++) {
        begin = bench_now_ns();
        t->loop(t->user, counts ? pairs : 16);
        took = bench_now_ns() - begin;
        must(bp_stream_synchronize(t->fixture->streams[0]));
        must(bp_stream_synchronize(t->fixture->streams[1]));
    }
    return took;
}

/* Units of a model whose requests are promised to stream 0, or to none. `records` and `waits`: per pair of the driver alone; the pool takes
 * as many if `waits` is set, else none. */
static void group(const gpu *g, const char *name, int promised, unsigned records, unsigned waits, const char *bare_name,
                  const char *pool_name)
{
    if (!bench_begin(name))
        return;
    pool_fixture w = pool_fixture_create(&(pool_fixture_options){
        .units = 50, .buckets = 4, .bytes = BYTES, .device = gpu_device(g), .promised = promised});
    bare alone = bare_on(g, &w, records, waits);
    work pool = work_on(&w, waits > 0), unit = pool;
    unit.arrays = 2;
    unit.each = 4;
    timed timed_alone = {&w, run_bare, &alone}, timed_pool = {&w, run_pairs, &pool},
          timed_unit = {&w, run_pairs, &unit};
    const int with_more = promised && waits > 0;
    expect(&w, &pool, waits > 0 ? records : 0, waits);
    bench_add_run(bare_name, run_timed, &timed_alone, PAIRS);
    if (with_more)
        bench_add_run("driver alone, repeated (noise)", run_timed, &timed_alone, PAIRS);
    bench_add_run(pool_name, run_timed, &timed_pool, PAIRS);
    if (with_more) {
        expect(&w, &unit, records, waits);
        bench_add_run("pool, promised stream, two streams, a unit of 4 in one call", run_timed, &timed_unit, PAIRS);
    }
    bench_end();
    for (unsigned i = 0; i < 2 * EVENTS; i++)
        gpu_must(g, g->driver.cuEventDestroy(alone.events[i / EVENTS][i % EVENTS]), "destroying an event");
    pool_fixture_destroy(&w);
}

void gpu_pairs(const gpu *g)
{
    group(g, "gpu: a record and a wait", 1, 1, 1, "driver alone: cuEventRecord, cuStreamWaitEvent",
          "pool, promised stream, two streams");
    group(g, "gpu: two records and a wait", 0, 2, 1, "driver alone: 2 cuEventRecord, cuStreamWaitEvent",
          "pool, any stream, two streams");
    group(g, "gpu: no driver call", 1, 1, 0, "driver alone: cuEventRecord", "pool, promised stream");
}
