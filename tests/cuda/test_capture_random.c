/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs: pools used eagerly, captured, cancelled half-way and launched again, in turn and on several streams. Every read is
 * checked when it runs, eagerly or in a graph. */
#include <bucketpool/capture.h>

#include <pthread.h>

#include "support/driver.h"
#include "support/pools.h"

#define POOLS 2
#define GRAPHS 4
#define MAX_LIVE 6    /* live at once in the program, per pool */
#define FIXED_EVERY 4 /* one in this many requests always has the same bytes: graphs may own it */

/* A read, checked by a function on the stream. */
typedef struct look {
    struct look *next;
    uint8_t *bytes;
    uint64_t count;
    uint8_t value;
} look;

static atomic_int wrong;

static void look_now(void *argument)
{
    const look *l = argument;
    for (uint64_t i = 0; i < l->count; i++) {
        if (l->bytes[i] != l->value) {
            atomic_fetch_add(&wrong, 1);
            break;
        }
    }
    memset(l->bytes, 0xee, l->count);
}

static void give_looks(look *first)
{
    for (look *l = first, *next; l != NULL; l = next) {
        next = l->next;
        give_pinned(l->bytes);
        free(l);
    }
}

/* A request that the program has acquired. */
typedef struct life {
    uint32_t index; /* of the request */
    uint8_t *address;
    uint8_t value;
    uint16_t references;
    bool used, foreign; /* foreign: live before the capture */
    uint32_t filled_on; /* stream */
} life;

typedef struct lives {
    life all[MAX_LIVE];
    uint32_t count;
} lives;

typedef struct graph {
    bp_graph *graph;
    bp_capture *captures[POOLS];
    uint32_t owned[POOLS][MAX_LIVE], owned_count[POOLS]; /* requests by index */
} graph;

typedef struct program {
    uint64_t random;
    kit *k;
    bool promised, in_capture[POOLS];
    bp_pool *pools[POOLS];
    uint32_t *ids[POOLS];
    lives lives[POOLS];
    graph graphs[GRAPHS];
    look *looks;
    uint32_t launches;
} program;

static uint32_t pick(program *p, uint32_t count)
{
    p->random ^= p->random << 13;
    p->random ^= p->random >> 7;
    p->random ^= p->random << 17;
    return (uint32_t)((p->random >> 20) % count);
}

static bp_stream *stream_at(const program *p, uint32_t stream)
{
    return p->k->streams[stream];
}

static bp_request request_at(const program *p, uint32_t index)
{
    bp_request request = bp_buckets_get_info(p->k->w.buckets)->requests[index];
    return request;
}

/* Stream that a request is acquired on. */
static uint32_t pick_stream(program *p, uint32_t index)
{
    if (!p->promised)
        return pick(p, KIT_STREAMS);
    return request_at(p, index).role == BP_ROLE_PARAM ? 0 : 1;
}

static void hand_over(const program *p, uint32_t from, uint32_t to)
{
    if (from != to)
        order(p->k->device, stream_at(p, from), stream_at(p, to));
}

static void read_on(program *p, const life *l, uint32_t stream)
{
    look *made = calloc(1, sizeof *made);
    assert_non_null(made);
    *made = (look){.next = p->looks, .bytes = take_pinned(), .count = request_at(p, l->index).bytes, .value = l->value};
    p->looks = made;
    assert_ok(bp_stream_copy(stream_at(p, stream), made->bytes, l->address, made->count));
    assert_ok(bp_stream_call(stream_at(p, stream), look_now, made));
}

static life *find_life(program *p, uint32_t pool, uint32_t index)
{
    for (uint32_t i = 0; i < p->lives[pool].count; i++) {
        if (p->lives[pool].all[i].index == index)
            return &p->lives[pool].all[i];
    }
    return NULL;
}

static void acquire(program *p, uint32_t pool, uint32_t index)
{
    uint32_t stream = pick_stream(p, index);
    uint32_t id = p->ids[pool][index];
    int got = 0, can = 0;
    void *address = NULL;
    life *l = find_life(p, pool, index);
    if (l == NULL && p->lives[pool].count == MAX_LIVE)
        return;
    assert_ok(bp_pool_can_acquire(p->pools[pool], &id, 1, NULL, 0, &can));
    assert_ok(bp_pool_try_acquire(p->pools[pool], &id, 1, stream_at(p, stream), &address, &got));
    assert_int_equal(can, got);
    if (!got)
        return;
    if (l != NULL) {
        assert_ptr_equal(address, l->address);
        l->references++;
        hand_over(p, l->filled_on, stream);
        read_on(p, l, stream);
        return;
    }
    l = &p->lives[pool].all[p->lives[pool].count++];
    *l = (life){.index = index, .address = address, .references = 1, .filled_on = stream};
    l->value = (uint8_t)(index % FIXED_EVERY == 0 ? 1 + index : 100 + pick(p, 100));
    assert_ok(bp_stream_fill(stream_at(p, stream), address, l->value, request_at(p, index).bytes));
}

static void release(program *p, uint32_t pool, life *l)
{
    uint32_t id = p->ids[pool][l->index], stream = pick(p, KIT_STREAMS);
    if (l->references == 1 && l->foreign && p->in_capture[pool])
        return;
    if (!l->used && l->references == 1 && pick(p, 3) == 0 && bp_pool_cancel(p->pools[pool], &id, 1) == BP_OK) {
        *l = p->lives[pool].all[--p->lives[pool].count];
        return;
    }
    if (pick(p, 2) == 0) {
        hand_over(p, l->filled_on, stream);
        read_on(p, l, stream);
    }
    assert_ok(bp_pool_release(p->pools[pool], &id, 1, stream_at(p, stream)));
    l->used = true;
    if (--l->references == 0)
        *l = p->lives[pool].all[--p->lives[pool].count];
}

static void use(program *p, uint32_t pool, life *l)
{
    uint32_t id = p->ids[pool][l->index], stream = pick(p, KIT_STREAMS);
    assert_ok(bp_pool_use(p->pools[pool], &id, 1, stream_at(p, stream)));
    l->used = true;
    hand_over(p, l->filled_on, stream);
    read_on(p, l, stream);
}

static void step(program *p, uint32_t pool)
{
    lives *live = &p->lives[pool];
    uint32_t what = pick(p, 8);
    if (what < 4 || live->count == 0)
        acquire(p, pool, pick(p, (uint32_t)p->k->requests));
    else if (what < 6)
        release(p, pool, &live->all[pick(p, live->count)]);
    else
        use(p, pool, &live->all[pick(p, live->count)]);
}

/* Of requests acquired inside the capture. */
static void release_all(program *p, uint32_t pool)
{
    lives *live = &p->lives[pool];
    for (uint32_t i = 0; i < live->count;) {
        if (live->all[i].foreign && live->all[i].references == 1)
            i++;
        else
            release(p, pool, &live->all[i]);
    }
}

/* ---- graphs --------------------------------------------------------------------------------------------------------- */

static void forget(graph *g)
{
    bp_graph_destroy(&g->graph);
    for (uint32_t pool = 0; pool < POOLS; pool++)
        bp_capture_destroy(&g->captures[pool]);
}

/* Only requests with constant bytes can be owned; the others end before. */
static void begin_pool(program *p, uint32_t pool, graph *g, lives *before)
{
    lives *live = &p->lives[pool];
    uint32_t owned[MAX_LIVE];
    for (uint32_t i = 0; i < live->count;) {
        if (live->all[i].index % FIXED_EVERY == 0 && live->all[i].references == 1) {
            i++;
            continue;
        }
        release(p, pool, &live->all[i]);
    }
    *before = *live;
    g->owned_count[pool] = live->count;
    for (uint32_t i = 0; i < live->count; i++) {
        live->all[i].foreign = true;
        live->all[i].filled_on = 0; /* before the capture: on all its streams */
        g->owned[pool][i] = live->all[i].index;
        owned[i] = p->ids[pool][live->all[i].index];
    }
    bp_capture_config config;
    assert_ok(bp_capture_config_init(&config, sizeof config));
    config.owned = owned;
    config.owned_count = live->count;
    assert_ok(bp_capture_begin(p->pools[pool], &config, &g->captures[pool]));
    p->in_capture[pool] = true;
}

static void capture(program *p, graph *g)
{
    lives before[POOLS];
    uint32_t which = 1 + pick(p, (1u << POOLS) - 1), steps = pick(p, 8) == 0 ? 400 : 5 + pick(p, 30);
    bool abandon = pick(p, 4) == 0;
    forget(g);
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        g->owned_count[pool] = 0;
        if (which >> pool & 1)
            begin_pool(p, pool, g, &before[pool]);
    }
    assert_ok(bp_graph_begin(stream_at(p, 0)));
    for (uint32_t s = 1; s < KIT_STREAMS; s++)
        hand_over(p, 0, s);
    for (uint32_t i = 0; i < steps; i++) {
        uint32_t pool = pick(p, POOLS);
        if (which >> pool & 1)
            step(p, pool);
    }
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        if (!abandon && (which >> pool & 1))
            release_all(p, pool);
    }
    for (uint32_t s = 1; s < KIT_STREAMS; s++)
        hand_over(p, s, 0);
    assert_ok(bp_graph_end(stream_at(p, 0), &g->graph));
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        p->in_capture[pool] = false;
        if (!(which >> pool & 1))
            continue;
        if (abandon)
            bp_capture_destroy(&g->captures[pool]);
        else
            assert_ok(bp_capture_end(g->captures[pool]));
        p->lives[pool] = before[pool];
    }
    if (abandon)
        forget(g);
}

static bool is_owned(const graph *g, uint32_t pool, uint32_t index)
{
    uint32_t i = 0;
    while (i < g->owned_count[pool] && g->owned[pool][i] != index)
        i++;
    return i < g->owned_count[pool];
}

/* Only the graph's owned requests are live. */
static void make_room(program *p, const graph *g)
{
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        lives *live = &p->lives[pool];
        for (uint32_t i = 0; i < live->count;) {
            if (is_owned(g, pool, live->all[i].index))
                i++;
            else
                release(p, pool, &live->all[i]);
        }
        for (uint32_t i = 0; i < g->owned_count[pool]; i++) {
            if (find_life(p, pool, g->owned[pool][i]) == NULL)
                acquire(p, pool, g->owned[pool][i]);
        }
    }
}

static void launch(program *p, const graph *g)
{
    uint32_t stream = pick(p, KIT_STREAMS), armed = 0;
    if (g->graph == NULL)
        return;
    if (pick(p, 4) != 0)
        make_room(p, g);
    for (uint32_t pool = 0; pool < POOLS; pool++) { /* the requests that it reads are live */
        for (uint32_t i = 0; i < g->owned_count[pool]; i++) {
            const life *l = find_life(p, pool, g->owned[pool][i]);
            if (l != NULL)
                hand_over(p, l->filled_on, stream);
        }
    }
    bool can = true;
    for (uint32_t pool = 0; can && pool < POOLS; pool++) {
        if (g->captures[pool] == NULL)
            continue;
        bp_status status = bp_capture_before_launch(g->captures[pool], stream_at(p, stream));
        can = status == BP_OK;
        if (!can)
            assert_int_equal(status, BP_ERR_SCHEDULE);
        armed |= (uint32_t)can << pool;
    }
    if (can) {
        assert_ok(bp_graph_launch(g->graph, stream_at(p, stream)));
        p->launches++;
    }
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        if (armed >> pool & 1)
            assert_ok(bp_capture_launched(g->captures[pool], can ? stream_at(p, stream) : NULL));
        for (uint32_t i = 0; can && i < g->owned_count[pool]; i++) {
            life *l = find_life(p, pool, g->owned[pool][i]);
            if (l != NULL)
                l->used = true;
        }
    }
}

/* ---- programs ------------------------------------------------------------------------------------------------------- */

static void renew_stream(program *p)
{
    uint32_t s = pick(p, KIT_STREAMS);
    if (p->promised)
        return;
    bp_stream_destroy(&p->k->streams[s]);
    assert_ok(bp_stream_create(p->k->device, NULL, &p->k->streams[s]));
}

/* Number of launches. */
static uint32_t run(const allocator_row *row, bool promised, uint64_t seed)
{
    kit k = begin_kit(new_cuda(), UNITS, TRAINING, row->policy, 0);
    program p = {.random = seed * 0x9e3779b97f4a7c15u + 1, .k = &k, .promised = promised};
    bp_pool_config config = config_of(row);
    if (seed % 3 == 0)
        config.overflow_bytes = 8192;
    atomic_store(&wrong, 0);
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        open_pool(&k, &config);
        p.pools[pool] = k.pool;
        p.ids[pool] = calloc(k.requests, sizeof(uint32_t));
        assert_non_null(p.ids[pool]);
        memcpy(p.ids[pool], k.ids, k.requests * sizeof(uint32_t));
        if (config.overflow_bytes > 0)
            assert_ok(bp_pool_allow_overflow(k.pool, 1));
        if (promised) {
            promise_stream(&k, BP_ROLE_PARAM, k.streams[0]);
            promise_stream(&k, BP_ROLE_GRAD, k.streams[1]);
        }
    }
    for (int i = 0; i < 400; i++) {
        uint32_t what = pick(&p, 40);
        if (what == 0)
            capture(&p, &p.graphs[pick(&p, GRAPHS)]);
        else if (what < 10)
            launch(&p, &p.graphs[pick(&p, GRAPHS)]);
        else if (what == 10 && pick(&p, 4) == 0)
            renew_stream(&p);
        else
            step(&p, pick(&p, POOLS));
    }
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        while (p.lives[pool].count > 0)
            release(&p, pool, &p.lives[pool].all[0]);
    }
    for (int s = 0; s < KIT_STREAMS; s++)
        assert_ok(bp_stream_synchronize(k.streams[s]));
    for (uint32_t g = 0; g < GRAPHS; g++)
        forget(&p.graphs[g]);
    give_looks(p.looks);
    if (atomic_load(&wrong) != 0)
        fail_msg("%s, promised streams %d, seed %llu: %d reads found other bytes", row->name, promised,
                 (unsigned long long)seed, atomic_load(&wrong));
    for (uint32_t pool = 0; pool < POOLS; pool++) {
        free(p.ids[pool]);
        k.pool = p.pools[pool];
        if (pool + 1 < POOLS)
            bp_pool_destroy(&k.pool);
    }
    end_kit(&k);
    return p.launches;
}

TEST(programs)
{
    const char *first = getenv("FIRST"), *count = getenv("COUNT");
    uint64_t from = first != NULL ? strtoull(first, NULL, 10) : 1,
             rounds = count != NULL ? strtoull(count, NULL, 10) : 3;
    uint32_t launches = 0;
    for (uint64_t seed = from; seed < from + rounds; seed++) {
        for (size_t i = 0; i < ALLOCATOR_COUNT; i++) {
            if (ALLOCATORS[i].pooled)
                launches += run(&ALLOCATORS[i], seed % 4 == 3, seed);
        }
    }
    assert_true(launches > 0);
}

/* ---- threads -------------------------------------------------------------------------------------------------------- */

static atomic_bool beside_is_over;

/* Acquires whatever is free beside launches. */
static void *run_beside(void *argument)
{
    program *p = argument;
    for (int i = 0; i < 300; i++) {
        uint32_t index = pick(p, (uint32_t)p->k->requests), id = p->ids[0][index];
        int got = 0;
        void *address = NULL;
        pause_us(100);
        if (bp_pool_try_acquire(p->pools[0], &id, 1, stream_at(p, 3), &address, &got) != BP_OK) {
            atomic_fetch_add(&wrong, 1);
            break;
        }
        if (!got)
            continue;
        const life l = {.index = index, .address = address, .value = (uint8_t)(100 + pick(p, 100))};
        if (bp_stream_fill(stream_at(p, 3), address, l.value, request_at(p, index).bytes) != BP_OK)
            atomic_fetch_add(&wrong, 1);
        read_on(p, &l, 3);
        if (bp_pool_release(p->pools[0], &id, 1, stream_at(p, 3)) != BP_OK)
            atomic_fetch_add(&wrong, 1);
    }
    atomic_store(&beside_is_over, true);
    return NULL;
}

TEST(threads)
{
    KIT k = start_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_SCHEDULED, 0);
    program p = {.random = 99, .k = &k, .pools = {k.pool}, .ids = {k.ids}}, beside = p;
    graph g = {0};
    atomic_store(&wrong, 0);
    begin_pool(&p, 0, &g, &(lives){0});
    assert_ok(bp_graph_begin(stream_at(&p, 0)));
    hand_over(&p, 0, 1);
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t id = param(&k, i);
        life l = {.index = 0, .value = (uint8_t)(1 + i)};
        while (k.ids[l.index] != id)
            l.index++;
        l.address = take(&k, id, stream_at(&p, 0));
        assert_ok(bp_stream_fill(stream_at(&p, 0), l.address, l.value, request_at(&p, l.index).bytes));
        hand_over(&p, 0, 1);
        read_on(&p, &l, 1);
        drop(&k, id, stream_at(&p, 1));
    }
    hand_over(&p, 1, 0);
    assert_ok(bp_graph_end(stream_at(&p, 0), &g.graph));
    assert_ok(bp_capture_end(g.captures[0]));
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run_beside, &beside), 0);
    while (!atomic_load(&beside_is_over)) {
        launch(&p, &g);
        pause_us(1000);
    }
    pthread_join(thread, NULL);
    launch(&p, &g);
    assert_ok(bp_device_synchronize(k.device));
    assert_int_equal(atomic_load(&wrong), 0);
    assert_true(p.launches > 0);
    forget(&g);
    give_looks(p.looks);
    give_looks(beside.looks);
}
