/* SPDX-License-Identifier: Apache-2.0 */
/* Threads on one server: each writes its number to the memory that it gets, and finds it there when it frees it, while others mark, pause
 * and look. Run under ThreadSanitizer as well, which sees bytes that two threads have. */
#include "support/harness.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#include "programs.h"
#include "support/brief.h"
#include "support/scenarios.h"

enum { THREADS = 4, HELD = 24, LOOKERS = 2 };

typedef struct arena {
    bp_step_server *server;
    const step_script *script;
    uint8_t *slab;
    atomic_bool is_over;
    uint64_t points[BP_STEP_STREAMS]; /* under the server's lock */
    unsigned wrong_points;
} arena;

typedef struct held {
    uint64_t offset, bytes;
} held;

typedef struct worker {
    arena *a;
    uint8_t number;
    unsigned allocations; /* while the server is not paused */
    uint64_t random;
    held held[HELD];
    unsigned wrong, served, anywhere, frees;
} worker;

static uint32_t below(worker *w, uint32_t limit)
{
    w->random = w->random * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(w->random >> 33) % limit;
}

static bool record(void *context, uint32_t stream, uint64_t point)
{
    arena *a = context;
    a->wrong_points += point != ++a->points[stream];
    return true;
}

static bool wait_for(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    arena *a = context;
    a->wrong_points += stream == before || point == 0 || point > a->points[before];
    return true;
}

static void free_held(worker *w, held *h)
{
    if (h->bytes == 0)
        return;
    for (uint64_t i = 0; i < h->bytes; i++)
        w->wrong += w->a->slab[h->offset + i] != w->number;
    bp_step_block block = {0};
    w->wrong += bp_step_server_free(w->a->server, h->offset, &block) != BP_OK || block.offset != h->offset ||
                block.requested_bytes != h->bytes;
    w->frees++;
    h->bytes = 0;
}

static void *work(void *argument)
{
    worker *w = argument;
    const step_script *s = w->a->script;
    for (unsigned i = 0; i < w->allocations;) {
        held *h = &w->held[below(w, HELD)];
        free_held(w, h);
        const bp_step_plan_item *item = &s->items[i % s->item_count];
        uint64_t offset = 0;
        bp_step_outcome outcome = bp_step_server_allocate(w->a->server, item->bytes, w->number % 3u, &offset);
        const bool is_paused = outcome == BP_STEP_PAUSED;
        w->served += outcome == BP_STEP_SERVED;
        if (outcome != BP_STEP_SERVED && below(w, 8) == 0) {
            outcome = bp_step_server_allocate_anywhere(w->a->server, item->bytes, w->number, &offset);
            w->anywhere += outcome == BP_STEP_SERVED;
        }
        if (outcome == BP_STEP_SERVED) {
            *h = (held){offset, item->bytes};
            memset(w->a->slab + offset, w->number, item->bytes);
            if (below(w, 4) == 0)
                w->wrong += bp_step_server_use(w->a->server, offset + item->bytes - 1, below(w, 8)) != BP_OK;
        }
        if (below(w, 128) == 0)
            bp_step_server_mark(w->a->server);
        i += !is_paused;
        if (is_paused || below(w, 16) == 0)
            sched_yield();
    }
    for (size_t i = 0; i < HELD; i++)
        free_held(w, &w->held[i]);
    return NULL;
}

static void *look(void *argument)
{
    worker *w = argument;
    bp_step_server *server = w->a->server;
    bp_step_deviation deviations[BP_STEP_DEVIATIONS];
    while (!atomic_load(&w->a->is_over)) {
        bp_step_statistics statistics = {.size = sizeof statistics};
        bp_step_block block = {0};
        w->wrong += bp_step_server_check(server) != BP_OK;
        w->wrong += bp_step_server_get_statistics(server, &statistics) != BP_OK ||
                    statistics.live_bytes > statistics.peak_live_bytes;
        for (uint64_t at = 0; bp_step_server_find(server, at, &block); at = block.offset + block.bytes)
            w->wrong += block.offset + block.bytes <= at;
        w->wrong += bp_step_server_deviations(server, deviations, BP_STEP_DEVIATIONS) > BP_STEP_DEVIATIONS;
        bp_step_server_waits(server, 1, 2);
        if (below(w, 64) == 0)
            bp_step_server_pause(server, below(w, 4) == 0);
        sched_yield();
    }
    bp_step_server_pause(server, false);
    return NULL;
}

static void run_threads(uint64_t number, unsigned allocations)
{
    seed(number);
    const program_options options = {.items = 200, .kinds = 1, .streams = 3, .sizes = 40};
    SCOPED(program_destroy) program *p = program_create(&options);
    SCOPED(bp_step_plan_destroy) bp_step_plan *plan = program_plan(p, number % 2 == 1);
    arena a = {.script = &p->kinds[0], .slab = calloc(1, p->slab_bytes + 1)};
    assert_non_null(a.slab);
    bp_step_server_config config;
    assert_ok(bp_step_server_config_init(&config, sizeof config));
    config.context = &a;
    config.record = record;
    config.wait = wait_for;
    assert_ok(bp_step_server_create(plan, &config, &a.server));
    worker workers[THREADS + LOOKERS];
    pthread_t threads[THREADS + LOOKERS];
    for (size_t i = 0; i < THREADS + LOOKERS; i++) {
        workers[i] =
            (worker){.a = &a, .number = (uint8_t)(1 + i), .allocations = allocations, .random = 77 * i + number};
        assert_int_equal(pthread_create(&threads[i], NULL, i < THREADS ? work : look, &workers[i]), 0);
    }
    unsigned served = 0, anywhere = 0, frees = 0;
    for (size_t i = 0; i < THREADS + LOOKERS; i++) {
        if (i == THREADS)
            atomic_store(&a.is_over, true);
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(workers[i].wrong, 0);
        served += workers[i].served;
        anywhere += workers[i].anywhere;
        frees += workers[i].frees;
    }
    bp_step_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_step_server_get_statistics(a.server, &statistics));
    assert_int_equal(statistics.outcomes[BP_STEP_SERVED], served);
    assert_int_equal(statistics.anywhere, anywhere);
    assert_int_equal(statistics.frees, frees);
    assert_int_equal(statistics.live, 0);
    assert_int_equal(a.wrong_points, 0);
    assert_true(served > 0 && anywhere > 0);
    assert_ok(bp_step_server_check(a.server));
    bp_step_server_destroy(&a.server);
    free(a.slab);
}

TEST(threads)
{
    for (int i = 0; i < 4; i++)
        run_threads((uint64_t)i, 4000 * (unsigned)share_of(5));
}
