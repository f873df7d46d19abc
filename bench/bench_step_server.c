/* SPDX-License-Identifier: Apache-2.0 */
/* The server of a step plan: processor time of an allocation and its free, in steps of 319, 3,077 and 50,000 allocations (a Llama on one GPU, the
 * same under FSDP2, a step of many microbatches), on one stream and on three, and of creating the server. Beside it, the lock alone.
 * Run: bench_step_server */
#include <bucketpool/pack.h>
#include <bucketpool/step_serve.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "measure.h"

enum { SIZES = 500, LIVE = 400, TURNS = 21 };

/* An allocation, or the free of one of this step. */
typedef struct op {
    uint32_t item;
    bool frees;
} op;

typedef struct step {
    op *ops;
    size_t op_count;
    bp_step_plan_item *items;
    uint64_t *offsets; /* where the items are now */
    uint32_t count;
    uint64_t slab_bytes;
} step;

static double processor_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void *allocated(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL)
        exit(1);
    return memory;
}

/* Allocations and frees of mostly the last live ones: a forward pass that keeps, and a backward pass that frees. */
static void make_ops(step *s, uint64_t *state)
{
    uint32_t *live = allocated(s->count, sizeof *live);
    size_t live_count = 0;
    for (uint32_t made = 0; made < s->count || live_count > 0;) {
        const bool is_forward = made < s->count / 2;
        bool frees = live_count > 0 && bench_random(state) % 100 < (is_forward ? 40 : 60);
        if (made == s->count || live_count >= LIVE)
            frees = true;
        if (!frees) {
            live[live_count++] = made;
            s->ops[s->op_count++] = (op){made++, false};
            continue;
        }
        size_t depth = bench_random(state) % 4 == 0 ? bench_random(state) % live_count : bench_random(state) % 3;
        size_t at = live_count - 1 - (depth < live_count ? depth : 0);
        s->ops[s->op_count++] = (op){live[at], true};
        memmove(live + at, live + at + 1, (--live_count - at) * sizeof *live);
    }
    free(live);
}

static void place(step *s, uint64_t *begins, uint64_t *ends)
{
    bp_packing *packing = NULL;
    must(bp_packing_create(&packing));
    for (size_t i = 0; i < s->op_count; i++)
        (s->ops[i].frees ? ends : begins)[s->ops[i].item] = i;
    for (uint32_t i = 0; i < s->count; i++) {
        must(bp_packing_add_item(packing, (s->items[i].bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT, NULL));
        must(bp_packing_add_interval(packing, i, begins[i], ends[i]));
    }
    bp_pack_config config;
    must(bp_pack_config_init(&config, sizeof config));
    config.work = 1 << 20;
    bp_pack_result result = {.size = sizeof result};
    must(bp_pack(packing, &config, s->offsets, &result));
    for (uint32_t i = 0; i < s->count; i++)
        s->items[i].offset = s->offsets[i] * BP_STEP_ALIGNMENT;
    s->slab_bytes = result.bytes * BP_STEP_ALIGNMENT;
    bp_packing_destroy(&packing);
}

static step make_step(uint32_t count, uint32_t streams)
{
    uint64_t state = BENCH_SEED, sizes[SIZES];
    step s = {.count = count};
    s.ops = allocated(2 * (size_t)count, sizeof *s.ops);
    s.items = allocated(count, sizeof *s.items);
    s.offsets = allocated(count, sizeof *s.offsets);
    for (size_t i = 0; i < SIZES; i++)
        sizes[i] = 1 + bench_random(&state) % (1u << (9 + bench_random(&state) % 16));
    for (uint32_t i = 0; i < count; i++) {
        bool is_aside = bench_random(&state) % 35 == 0; /* as 45 of 1,681 under FSDP2 */
        s.items[i] = (bp_step_plan_item){.bytes = sizes[bench_random(&state) % SIZES],
                                         .stream = is_aside ? (uint32_t)(bench_random(&state) % streams) : 0,
                                         .place = BP_STEP_NO_PLACE};
    }
    make_ops(&s, &state);
    uint64_t *begins = allocated(count, sizeof *begins), *ends = allocated(count, sizeof *ends);
    place(&s, begins, ends);
    free(begins);
    free(ends);
    return s;
}

static bool record(void *context, uint32_t stream, uint64_t point)
{
    (void)context, (void)stream, (void)point;
    return true;
}

static bool wait_for(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    (void)context, (void)stream, (void)before, (void)point;
    return true;
}

static bp_step_server *create(const bp_step_plan *plan)
{
    bp_step_server *server = NULL;
    bp_step_server_config config;
    must(bp_step_server_config_init(&config, sizeof config));
    config.record = record;
    config.wait = wait_for;
    must(bp_step_server_create(plan, &config, &server));
    return server;
}

static void run_step(bp_step_server *server, step *s)
{
    bp_step_server_mark(server);
    for (size_t i = 0; i < s->op_count; i++) {
        const uint32_t item = s->ops[i].item;
        if (s->ops[i].frees)
            must(bp_step_server_free(server, s->offsets[item], NULL));
        else if (bp_step_server_allocate(server, s->items[item].bytes, s->items[item].stream, &s->offsets[item]) !=
                     BP_STEP_SERVED ||
                 s->offsets[item] != s->items[item].offset) {
            fprintf(stderr, "bench: item %u is not served at its address\n", item);
            exit(1);
        }
    }
}

/* The loop, and two uncontended locks a pair. */
static void run_locks(pthread_mutex_t *lock, step *s)
{
    for (size_t i = 0; i < s->op_count; i++) {
        pthread_mutex_lock(lock);
        s->offsets[s->ops[i].item] = s->ops[i].frees;
        pthread_mutex_unlock(lock);
    }
}

static void measure(uint32_t count, uint32_t streams)
{
    static const uint64_t handles[] = {0, 1, 2};
    static const uint32_t mark = 0;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    step s = make_step(count, streams);
    const bp_step_plan_kind kind = {.items = s.items, .item_count = count, .marks = &mark, .mark_count = 1, .steps = 3};
    bp_step_plan *plan = NULL;
    must(bp_step_plan_from_info(
        &(bp_step_plan_info){
            .bytes = s.slab_bytes, .kinds = &kind, .kind_count = 1, .streams = handles, .stream_count = streams},
        &plan));
    double creations[TURNS], pairs[TURNS], locks[TURNS];
    bp_step_server *server = create(plan);
    run_step(server, &s);
    run_step(server, &s);
    const uint32_t steps = 1 + 60000 / count;
    bp_step_statistics before = {.size = sizeof before}, after = {.size = sizeof after};
    must(bp_step_server_get_statistics(server, &before));
    for (size_t turn = 0; turn < TURNS; turn++) {
        double start = processor_ns();
        for (uint32_t i = 0; i < steps; i++)
            run_step(server, &s);
        pairs[turn] = (processor_ns() - start) / steps / count;
        start = processor_ns();
        for (uint32_t i = 0; i < steps; i++)
            run_locks(&lock, &s);
        locks[turn] = (processor_ns() - start) / steps / count;
        start = processor_ns();
        bp_step_server *another = create(plan);
        creations[turn] = (processor_ns() - start) / 1e6;
        bp_step_server_destroy(&another);
    }
    must(bp_step_server_get_statistics(server, &after));
    printf("%6u allocations, %u stream%s: %6.1f ns a pair (locks %.1f), %.1f waits a step; created in %.2f ms\n", count,
           streams, streams == 1 ? " " : "s", bench_median(pairs, TURNS), bench_median(locks, TURNS),
           (double)(after.waits - before.waits) / (TURNS * steps), bench_median(creations, TURNS));
    bp_step_server_destroy(&server);
    bp_step_plan_destroy(&plan);
    free(s.ops);
    free(s.items);
    free(s.offsets);
}

int main(void)
{
    static const uint32_t counts[] = {319, 3077, 50000}, streams[] = {1, 3};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (size_t k = 0; k < sizeof streams / sizeof *streams; k++)
            measure(counts[i], streams[k]);
    }
    return 0;
}
