/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs of streams, events and graphs with every conflict ordered by events: the bytes must equal those of a serial run. Vector
 * clocks track the known order. Conversely, where a program leaves an order open, the emulated driver varies it. */
#include "fake_support.h"

#define STREAMS 4u /* the last one is blocking, next to the legacy one */
#define QUEUES (STREAMS + 1)
#define CELLS 12u
#define CELL_BYTES 512u
#define MARKS 16u
#define STEPS 60u

typedef struct vclock {
    unsigned at[QUEUES]; /* per queue: number of pieces of work that are known to come before */
} vclock;

typedef struct mark {
    void *event;
    vclock reached;
    bool recorded;
} mark;

typedef struct cell_use {
    unsigned writer, written; /* queue and number of the last write; 0: none yet */
    unsigned read[QUEUES];    /* number of the last read of each queue since */
} cell_use;

/* A program in progress, eager or captured. */
typedef struct program {
    uint64_t random;
    uint64_t memory;
    void *queues[QUEUES];
    bool usable[QUEUES];
    vclock known[QUEUES];
    unsigned given[QUEUES];
    mark marks[MARKS];
    cell_use cells[CELLS];
} program;

/* Effect of a piece of work on the bytes, for the serial run and for replays of graphs. */
typedef struct effect {
    bool copy;
    unsigned to, from;
    unsigned char value;
} effect;

/* splitmix64, by Sebastiano Vigna. */
static unsigned pick(program *p, unsigned count)
{
    uint64_t z = p->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ (z >> 31)) % count);
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

static bool is_known(const program *p, unsigned queue, unsigned other, unsigned number)
{
    return queue == other || p->known[queue].at[other] >= number;
}

static void learn(vclock *clock, const vclock *more)
{
    for (unsigned i = 0; i < QUEUES; i++)
        if (clock->at[i] < more->at[i])
            clock->at[i] = more->at[i];
}

static void record(program *p, mark *m, unsigned queue)
{
    okay(cuEventRecord(m->event, p->queues[queue]));
    m->reached = p->known[queue];
    m->reached.at[queue] = p->given[queue];
    m->recorded = true;
}

static void await(program *p, const mark *m, unsigned queue)
{
    okay(cuStreamWaitEvent(p->queues[queue], m->event, 0));
    learn(&p->known[queue], &m->reached);
}

/* Uses an old event that covers it, if there is one, else a new one. */
static void order(program *p, unsigned queue, unsigned other, unsigned number)
{
    if (number == 0 || is_known(p, queue, other, number))
        return;
    unsigned start = pick(p, MARKS);
    for (unsigned i = 0; i < MARKS; i++) {
        mark *m = &p->marks[(start + i) % MARKS];
        if (m->recorded && m->reached.at[other] >= number) {
            await(p, m, queue);
            return;
        }
    }
    record(p, &p->marks[start], other);
    await(p, &p->marks[start], queue);
}

static void order_read(program *p, unsigned queue, unsigned cell)
{
    order(p, queue, p->cells[cell].writer, p->cells[cell].written);
}

static void order_write(program *p, unsigned queue, unsigned cell)
{
    order_read(p, queue, cell);
    for (unsigned i = 0; i < QUEUES; i++)
        order(p, queue, i, p->cells[cell].read[i]);
}

static void note_write(program *p, unsigned queue, unsigned cell)
{
    p->cells[cell] = (cell_use){.writer = queue, .written = p->given[queue]};
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

static uint64_t address(const program *p, unsigned cell)
{
    return p->memory + (uint64_t)cell * CELL_BYTES;
}

static void apply(unsigned char *bytes, const effect *e)
{
    if (e->copy)
        memmove(bytes + (size_t)e->to * CELL_BYTES, bytes + (size_t)e->from * CELL_BYTES, CELL_BYTES);
    else
        memset(bytes + (size_t)e->to * CELL_BYTES, e->value, CELL_BYTES);
}

static effect work(program *p, unsigned queue)
{
    effect e = {.copy = pick(p, 2) == 0, .to = pick(p, CELLS), .value = (unsigned char)(1 + pick(p, 250))};
    e.from = (e.to + 1 + pick(p, CELLS - 1)) % CELLS;
    order_write(p, queue, e.to);
    if (e.copy) {
        order_read(p, queue, e.from);
        okay(cuMemcpyAsync(address(p, e.to), address(p, e.from), CELL_BYTES, p->queues[queue]));
        p->given[queue]++;
        p->cells[e.from].read[queue] = p->given[queue];
    } else {
        okay(cuMemsetD8Async(address(p, e.to), e.value, CELL_BYTES, p->queues[queue]));
        p->given[queue]++;
    }
    note_write(p, queue, e.to);
    return e;
}

static unsigned pick_queue(program *p)
{
    unsigned queue;
    do
        queue = pick(p, QUEUES);
    while (!p->usable[queue]);
    return queue;
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

typedef struct graph {
    void *executable;
    effect effects[STEPS];
    unsigned count;
} graph;

static void forget_order(program *p)
{
    memset(p->known, 0, sizeof p->known);
    memset(p->given, 0, sizeof p->given);
    memset(p->cells, 0, sizeof p->cells);
    for (unsigned i = 0; i < MARKS; i++)
        p->marks[i].recorded = false;
}

/* A separate program, captured from its first queue, which other queues join and leave. */
static void capture(const program *eager, graph *made)
{
    program *p = malloc(sizeof *p);
    assert_non_null(p);
    *p = *eager;
    forget_order(p);
    p->usable[QUEUES - 1] = false; /* the legacy stream */
    p->usable[STREAMS - 1] = false;
    okay(cuStreamBeginCapture_v2(p->queues[0], 2));
    for (unsigned i = 1; i + 1 < STREAMS; i++) {
        record(p, &p->marks[i], 0);
        await(p, &p->marks[i], i);
    }
    made->count = 5 + pick(p, STEPS - 5);
    for (unsigned i = 0; i < made->count; i++)
        made->effects[i] = work(p, pick_queue(p));
    for (unsigned i = 1; i + 1 < STREAMS; i++) {
        record(p, &p->marks[i], i);
        await(p, &p->marks[i], 0);
    }
    void *captured;
    okay(cuStreamEndCapture(p->queues[0], &captured));
    okay(cuGraphInstantiateWithFlags(&made->executable, captured, 0));
    okay(cuGraphDestroy(captured));
    free(p);
}

/* One piece of work that touches every cell. */
static void launch(program *p, const graph *g, unsigned char *bytes)
{
    unsigned queue = pick_queue(p);
    for (unsigned cell = 0; cell < CELLS; cell++)
        order_write(p, queue, cell);
    okay(cuGraphLaunch(g->executable, p->queues[queue]));
    p->given[queue]++;
    for (unsigned cell = 0; cell < CELLS; cell++)
        note_write(p, queue, cell);
    for (unsigned i = 0; i < g->count; i++)
        apply(bytes, &g->effects[i]);
}

/* ---- programs ---------------------------------------------------------------------------------------------------- */

static void begin(program *p, uint64_t seed)
{
    *p = (program){.random = seed};
    for (unsigned i = 0; i < STREAMS; i++)
        okay(cuStreamCreate(&p->queues[i], i + 1 < STREAMS ? 1 : 0));
    for (unsigned i = 0; i < QUEUES; i++)
        p->usable[i] = true;
    for (unsigned i = 0; i < MARKS; i++)
        okay(cuEventCreate(&p->marks[i].event, 2));
    okay(cuMemAlloc_v2(&p->memory, CELLS * CELL_BYTES));
    okay(cuMemsetD8Async(p->memory, 0, CELLS * CELL_BYTES, NULL));
    okay(cuCtxSynchronize());
}

static void end(program *p)
{
    okay(cuMemFree_v2(p->memory));
    for (unsigned i = 0; i < MARKS; i++)
        okay(cuEventDestroy_v2(p->marks[i].event));
    for (unsigned i = 0; i < STREAMS; i++)
        okay(cuStreamDestroy_v2(p->queues[i]));
}

static void run_program(uint64_t seed)
{
    static unsigned char bytes[CELLS * CELL_BYTES];
    static graph graphs[2];
    program *p = malloc(sizeof *p);
    assert_non_null(p);
    begin(p, seed);
    memset(bytes, 0, sizeof bytes);
    for (unsigned i = 0; i < 2; i++)
        capture(p, &graphs[i]), p->random++;
    for (unsigned i = 0; i < MARKS; i++)
        p->marks[i].recorded = false;
    for (unsigned i = 0; i < STEPS; i++) {
        if (pick(p, 8) == 0) {
            launch(p, &graphs[pick(p, 2)], bytes);
        } else {
            effect e = work(p, pick_queue(p));
            apply(bytes, &e);
        }
        if (pick(p, 4) == 0)
            record(p, &p->marks[pick(p, MARKS)], pick_queue(p));
    }
    okay(cuCtxSynchronize());
    if (memcmp(bytes, fake_at(p->memory), sizeof bytes) != 0)
        fail_msg("program %llu has other bytes than in its serial order", (unsigned long long)seed);
    for (unsigned i = 0; i < 2; i++)
        okay(cuGraphExecDestroy(graphs[i].executable));
    end(p);
    free(p);
}

TEST(random_programs)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.delay_us = 60;
    (void)start_driver(&config);
    for (uint64_t seed = 1; seed <= 60; seed++)
        run_program(seed);
    stop_driver();
}

/* ---- order that is left open ------------------------------------------------------------------------------------- */

static atomic_int last; /* who wrote last: 1 or 2 */

/* True if both orders of two writes occurred. */
static bool takes_both_orders(void (*both)(void *a, void *b), void *a, void *b)
{
    bool seen[3] = {false};
    for (int i = 0; i < 400 && !(seen[1] && seen[2]); i++) {
        both(a, b);
        okay(cuCtxSynchronize());
        seen[atomic_load(&last)] = true;
    }
    return seen[1] && seen[2];
}

static void write_one(void *argument)
{
    atomic_store(&last, 1);
}

static void write_two(void *argument)
{
    atomic_store(&last, 2);
}

static void write_on_two_streams(void *a, void *b)
{
    okay(cuLaunchHostFunc(a, write_one, NULL));
    okay(cuLaunchHostFunc(b, write_two, NULL));
}

static void *racing;

static void launch_racing(void *a, void *b)
{
    okay(cuGraphLaunch(racing, a));
}

/* Two writes on a fork that is joined, without work between them. */
static void capture_race(void *a, void *b, void *event)
{
    void *captured;
    okay(cuStreamBeginCapture_v2(a, 0));
    okay(cuEventRecord(event, a));
    okay(cuStreamWaitEvent(b, event, 0));
    write_on_two_streams(a, b);
    okay(cuEventRecord(event, b));
    okay(cuStreamWaitEvent(a, event, 0));
    okay(cuStreamEndCapture(a, &captured));
    okay(cuGraphInstantiateWithFlags(&racing, captured, 0));
    okay(cuGraphDestroy(captured));
}

TEST(open_order_varies)
{
    fake_cuda_config config;
    void *a, *b, *event;
    fake_cuda_config_init(&config);
    config.delay_us = 100;
    (void)start_driver(&config);
    okay(cuStreamCreate(&a, 1));
    okay(cuStreamCreate(&b, 1));
    okay(cuEventCreate(&event, 2));
    assert_true(takes_both_orders(write_on_two_streams, a, b));
    capture_race(a, b, event);
    assert_true(takes_both_orders(launch_racing, a, b));
    okay(cuGraphExecDestroy(racing));
    okay(cuEventDestroy_v2(event));
    okay(cuStreamDestroy_v2(a));
    okay(cuStreamDestroy_v2(b));
    stop_driver();
}
