/* SPDX-License-Identifier: Apache-2.0 */
/* Segments for PyTorch: addresses, waits of successive users, refusals. */
#include <pthread.h>

#include <bucketpool/torch_allocator.h>

#include "support/driver.h"
#include "support/pools.h"

#define MIB ((uint64_t)1 << 20)
#define STREAMS 3

typedef struct bench {
    bp_device *device;
    bp_stream *streams[STREAMS];
} bench;

static void *native(bp_stream *stream)
{
    uint64_t handle;
    assert_ok(bp_stream_native(stream, &handle));
    return (void *)(uintptr_t)handle; /* NOLINT(performance-no-int-to-ptr): that is what it was */
}

static void serve(bench *b, uint64_t bytes)
{
    bp_torch_config config;
    *b = (bench){.device = new_cuda()};
    for (size_t i = 0; i < STREAMS; i++)
        assert_ok(bp_stream_create(b->device, NULL, &b->streams[i]));
    assert_ok(bp_torch_config_init(&config, sizeof config));
    config.device = b->device;
    config.bytes = bytes;
    assert_ok(bp_torch_serve(&config));
}

static void stop(bench *b)
{
    assert_ok(bp_torch_stop(0));
    for (size_t i = 0; i < STREAMS; i++)
        bp_stream_destroy(&b->streams[i]);
    assert_int_equal(usage_of(b->device).committed_bytes, 0);
    bp_device_destroy(&b->device);
}

static void *get(const bench *b, uint64_t bytes, size_t stream)
{
    return bp_torch_malloc(bytes, 0, native(b->streams[stream]));
}

static void put(const bench *b, void *address, uint64_t bytes, size_t stream)
{
    bp_torch_free(address, bytes, 0, native(b->streams[stream]));
}

static bp_torch_statistics numbers(void)
{
    bp_torch_statistics statistics = {.size = sizeof statistics};
    assert_ok(bp_torch_statistics_get(0, &statistics));
    return statistics;
}

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

/* ---- places --------------------------------------------------------------------------------------------------------- */

TEST(segments)
{
    bench b;
    serve(&b, 64 * MIB);
    uint8_t *small = get(&b, 2 * MIB, 0), *large = get(&b, 20 * MIB, 0), *huge = get(&b, 42 * MIB, 1);
    assert_non_null(small);
    assert_true(large == small + 2 * MIB && huge == large + 20 * MIB);
    assert_int_equal((uintptr_t)small % (2 * MIB), 0);
    assert_null(get(&b, 2 * MIB, 0));
    assert_says(numbers().because, "67108864 of 67108864 bytes are handed out");
    put(&b, large, 20 * MIB, 0);
    assert_null(get(&b, 22 * MIB, 0));
    assert_says(numbers().because, "the largest free range has 20971520");
    assert_fails(bp_torch_stop(0), BP_ERR_SCHEDULE, "2 segments of 46137344 bytes");
    assert_ptr_equal(get(&b, 20 * MIB, 0), large); /* on the same stream: no wait */
    bp_torch_statistics s = numbers();
    assert_int_equal(s.bytes, 64 * MIB);
    assert_int_equal(s.live_bytes, 64 * MIB);
    assert_int_equal(s.peak_live_bytes, 64 * MIB);
    assert_int_equal(s.live_segments, 3);
    assert_int_equal(s.segments, 4);
    assert_int_equal(s.refused, 2);
    assert_int_equal(s.waits, 0);
    struct { /* of an older caller, and of a newer one */
        size_t size;
        uint64_t bytes, live_bytes;
    } older = {.size = sizeof older};
    struct {
        bp_torch_statistics known;
        uint64_t later;
    } newer = {.known.size = sizeof newer, .later = 5};
    assert_ok(bp_torch_statistics_get(0, (bp_torch_statistics *)(void *)&older));
    assert_ok(bp_torch_statistics_get(0, &newer.known));
    assert_true(older.size == sizeof older && older.bytes == 64 * MIB && older.live_bytes == 64 * MIB);
    assert_true(newer.known.size == sizeof newer && newer.known.segments == 4 && newer.later == 0);
    older.size = sizeof older.size;
    assert_fails(bp_torch_statistics_get(0, (bp_torch_statistics *)(void *)&older), BP_ERR_INVALID_ARGUMENT, "is 8");
    put(&b, small, 2 * MIB, 0);
    put(&b, large, 20 * MIB, 0);
    put(&b, huge, 42 * MIB, 1);
    stop(&b);
}

/* Best fit, not first fit; sizes in between are rounded. */
TEST(best_fit)
{
    bench b;
    serve(&b, 32 * MIB);
    uint8_t *six = get(&b, 6 * MIB, 0), *between = get(&b, 513, 0), *four = get(&b, 4 * MIB, 0), *last = get(&b, 1, 0);
    assert_true(between == six + 6 * MIB && four == between + 1024 && last == four + 4 * MIB);
    put(&b, six, 6 * MIB, 0);
    put(&b, four, 4 * MIB, 0);
    assert_ptr_equal(get(&b, 3 * MIB, 0), four);
    assert_ptr_equal(get(&b, 5 * MIB, 0), six);
    put(&b, four, 3 * MIB, 0);
    put(&b, between, 513, 0);
    assert_ptr_equal(get(&b, 4 * MIB + 1536, 0), six + 5 * MIB); /* the piece between two free ranges joins them */
    assert_int_equal(numbers().waits, 0);
    put(&b, six, 0, 0);
    put(&b, six + 5 * MIB, 0, 0);
    put(&b, last, 1, 0);
    assert_ptr_equal(get(&b, 32 * MIB, 0), six);
    put(&b, six, 0, 0);
    stop(&b);
}

TEST(strays)
{
    bench b;
    int elsewhere = 0;
    serve(&b, 4 * MIB);
    uint8_t *a = get(&b, 2 * MIB, 0);
    put(&b, a + 512, 2 * MIB, 0);
    put(&b, a - 512, 2 * MIB, 0);
    put(&b, &elsewhere, 2 * MIB, 0);
    put(&b, NULL, 2 * MIB, 0);
    bp_torch_free(a, 2 * MIB, -1, NULL);
    bp_torch_free(a, 2 * MIB, BP_TORCH_DEVICES, NULL);
    assert_int_equal(numbers().live_segments, 1);
    put(&b, a, 2 * MIB, 0);
    put(&b, a, 2 * MIB, 0);
    assert_int_equal(numbers().strays, 4);
    assert_null(bp_torch_malloc(0, 0, native(b.streams[0])));
    assert_null(bp_torch_malloc(SIZE_MAX, 0, native(b.streams[0])));
    assert_null(bp_torch_malloc(2 * MIB, 0, (void *)2)); /* the per-thread default stream */
    assert_int_equal(numbers().refused, 3);
    stop(&b);
}

/* ---- order ---------------------------------------------------------------------------------------------------------- */

TEST(other_streams_wait)
{
    bench b;
    gate g = {0};
    flag beside = 0, after = 0, same = 0;
    serve(&b, 4 * MIB);
    void *first = get(&b, 2 * MIB, 0);
    block(b.streams[0], &g);
    put(&b, first, 2 * MIB, 0);
    void *fresh = get(&b, 4 * MIB, 2); /* includes memory freed on stream 0 */
    assert_ptr_equal(fresh, first);
    raise_on(b.streams[2], &after);
    raise_on(b.streams[1], &beside); /* includes none of it */
    assert_true(is_raised_soon(&beside));
    assert_true(stays_down(&after));
    raise_on(b.streams[0], &same);
    assert_true(stays_down(&same));
    unblock(&g);
    assert_true(is_raised_soon(&after) && is_raised_soon(&same));
    assert_int_equal(numbers().waits, 1);
    put(&b, fresh, 4 * MIB, 2);
    stop(&b);
}

TEST(two_to_wait_for)
{
    bench b;
    gate g = {0};
    flag after = 0;
    serve(&b, 6 * MIB);
    uint8_t *one = get(&b, 2 * MIB, 0), *two = get(&b, 2 * MIB, 1);
    block(b.streams[1], &g);
    put(&b, one, 2 * MIB, 0);
    put(&b, two, 2 * MIB, 1);
    assert_ptr_equal(get(&b, 5 * MIB, 2), one);
    raise_on(b.streams[2], &after);
    assert_true(stays_down(&after));
    unblock(&g);
    assert_true(is_raised_soon(&after));
    assert_int_equal(numbers().waits, 2);
    assert_ptr_equal(get(&b, MIB, 0), one + 5 * MIB); /* the rest was never used */
    assert_int_equal(numbers().waits, 2);
    put(&b, one, 5 * MIB, 2);
    put(&b, one + 5 * MIB, MIB, 0);
    stop(&b);
}

/* A free whose point could not be recorded: the next user waits for the device. */
TEST(unmarked)
{
    bench b;
    bool (*make_fail)(const char *, uint64_t, int);
    *(void **)&make_fail = driver_symbol("fake_cuda_fail");
    if (make_fail == NULL)
        skip();
    serve(&b, 4 * MIB);
    gate g = {0};
    pthread_t opener;
    flag done = 0;
    void *a = get(&b, 2 * MIB, 0);
    block(b.streams[0], &g);
    raise_on(b.streams[0], &done);
    assert_true(make_fail("cuEventRecord", 1, 999));
    put(&b, a, 2 * MIB, 0);
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    assert_ptr_equal(get(&b, 4 * MIB, 1), a);
    assert_int_equal(atomic_load(&done), 1);
    assert_int_equal(pthread_join(opener, NULL), 0);
    assert_int_equal(numbers().waits, 0);
    put(&b, a, 4 * MIB, 1);
    stop(&b);
}

/* ---- captures ------------------------------------------------------------------------------------------------------- */

TEST(captures)
{
    bench b;
    bp_graph *graph;
    serve(&b, 8 * MIB);
    uint8_t *used = get(&b, 2 * MIB, 0);
    put(&b, used, 2 * MIB, 0);
    assert_ok(bp_graph_begin(b.streams[1]));
    uint8_t *captured = get(&b, 2 * MIB, 1);
    assert_ptr_equal(captured, used + 2 * MIB); /* not memory that an outside stream used */
    assert_null(get(&b, 6 * MIB, 1));
    assert_says(numbers().because, "never used (a graph is being captured) range has 4194304");
    uint8_t *within = get(&b, 2 * MIB, 1);
    put(&b, within, 2 * MIB, 1); /* its end is unknown, so it is reused later */
    uint8_t *more = get(&b, 2 * MIB, 1);
    assert_ptr_equal(more, within + 2 * MIB);
    assert_null(get(&b, 2 * MIB, 1));
    assert_ok(bp_stream_fill(b.streams[1], captured, 1, 2 * MIB));
    assert_ok(bp_graph_end(b.streams[1], &graph));

    gate g = {0};
    pthread_t opener;
    flag replayed = 0;
    block(b.streams[2], &g);
    assert_ok(bp_graph_launch(graph, b.streams[2]));
    raise_on(b.streams[2], &replayed);
    put(&b, captured, 2 * MIB, 1);               /* the graph runs on another stream than PyTorch passed */
    assert_ptr_equal(get(&b, 2 * MIB, 0), used); /* not that */
    put(&b, used, 2 * MIB, 0);
    assert_int_equal(pthread_create(&opener, NULL, unblock_later, &g), 0);
    assert_ptr_equal(get(&b, 4 * MIB, 0), used); /* the host waits */
    assert_int_equal(atomic_load(&replayed), 1);
    put(&b, used, 4 * MIB, 0);
    assert_int_equal(pthread_join(opener, NULL), 0);
    put(&b, more, 2 * MIB, 1);
    bp_graph_destroy(&graph);
    assert_ptr_equal(get(&b, 8 * MIB, 0), used);
    put(&b, used, 8 * MIB, 0);
    stop(&b);
}

/* ---- sources of memory ------------------------------------------------------------------------------------------------ */

TEST(pool)
{
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 6 * MIB;
    open_pool(&k, &config);
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 6 * MIB);
    bind.placement = BP_PLACE_PERSISTENT;
    bp_torch_config torch;
    assert_ok(bp_torch_config_init(&torch, sizeof torch));
    torch.pool = k.pool;
    torch.request = param(&k, 0);
    assert_fails(bp_torch_serve(&torch), BP_ERR_INVALID_ARGUMENT, "is not persistent");
    assert_ok(bp_pool_bind(k.pool, &bind, &torch.request));
    void *address = take(&k, torch.request, k.streams[0]);
    assert_fails(bp_torch_serve(&torch), BP_ERR_SCHEDULE, "is held already");
    drop(&k, torch.request, k.streams[0]);
    torch.ordinal = 1;
    assert_fails(bp_torch_serve(&torch), BP_ERR_MISMATCH, "device 1 cannot be served from device 0");
    torch.ordinal = 0;
    assert_ok(bp_torch_serve(&torch));
    assert_fails(bp_torch_serve(&torch), BP_ERR_SCHEDULE, "served already, from 6291456 bytes");
    assert_int_equal(live_count(k.pool), 1);
    assert_ptr_equal(bp_torch_malloc(6 * MIB, 0, native(k.streams[1])), address);
    bp_torch_free(address, 6 * MIB, 0, native(k.streams[1]));
    assert_ok(bp_torch_stop(0));
    assert_int_equal(live_count(k.pool), 0);
}

/* A request that begins between two of PyTorch's steps: the bytes before the next step are left out. */
TEST(pool_between_steps)
{
    KIT k = begin_kit(new_cuda(), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config config = pool_config();
    config.persistent_bytes = 6 * MIB;
    open_pool(&k, &config);
    bp_bind first = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_UINT8, 256),
            bind = bind_of("", 1, BP_ROLE_PARAM, BP_DTYPE_UINT8, 4 * MIB);
    first.placement = bind.placement = BP_PLACE_PERSISTENT;
    bp_torch_config torch;
    assert_ok(bp_torch_config_init(&torch, sizeof torch));
    torch.pool = k.pool;
    assert_ok(bp_pool_bind(k.pool, &first, &torch.request));
    assert_ok(bp_pool_bind(k.pool, &bind, &torch.request));
    uint8_t *whole = address_of(&k, torch.request);
    const uint64_t skipped = (512 - (uintptr_t)whole % 512) % 512;
    assert_true(skipped > 0);
    assert_ok(bp_torch_serve(&torch));
    assert_int_equal(numbers().bytes, 4 * MIB - skipped);
    assert_null(bp_torch_malloc(4 * MIB, 0, native(k.streams[1])));
    uint8_t *address = bp_torch_malloc(4 * MIB - 512, 0, native(k.streams[1]));
    assert_ptr_equal(address, whole + skipped);
    assert_null(bp_torch_malloc(1, 0, native(k.streams[1])));
    bp_torch_free(address, 4 * MIB - 512, 0, native(k.streams[1]));
    assert_ok(bp_torch_stop(0));
}

TEST(configuration)
{
    bp_device *host = new_host();
    bp_torch_config config;
    assert_fails(bp_torch_config_init(&config, 3), BP_ERR_INVALID_ARGUMENT, "size of a struct is 3");
    assert_ok(bp_torch_config_init(&config, sizeof config));
    assert_fails(bp_torch_serve(&config), BP_ERR_INVALID_ARGUMENT, "either a pool or a number of bytes");
    config.bytes = MIB;
    config.ordinal = BP_TORCH_DEVICES;
    assert_fails(bp_torch_serve(&config), BP_ERR_INVALID_ARGUMENT, "device 64, expected 0 to 63");
    config.ordinal = 0;
    config.device = host;
    assert_fails(bp_torch_serve(&config), BP_ERR_INVALID_ARGUMENT, "cuda device");
    config.device = new_cuda();
    config.bytes = UINT64_MAX / 2 + 1;
    assert_int_not_equal(bp_torch_serve(&config), BP_OK);
    assert_fails(bp_torch_stop(0), BP_ERR_SCHEDULE, "device 0 is not served");
    bp_torch_statistics statistics = {.size = sizeof statistics};
    assert_fails(bp_torch_statistics_get(0, &statistics), BP_ERR_SCHEDULE, "device 0 is not served");
    bp_device_destroy(&config.device);
    bp_device_destroy(&host);
}

TEST(environment)
{
    static const char *const wrong[] = {"", "0", "g", "8x", "8gb", "-1", "99999999999999999999", "99999999999t"};
    bp_torch_statistics s = {.size = sizeof s};
    (void)driver(); /* the device that has this index then */
    unsetenv("BUCKETPOOL_TORCH_BYTES");
    assert_null(bp_torch_malloc(MIB, 0, NULL));
    assert_fails(bp_torch_statistics_get(0, &s), BP_ERR_SCHEDULE, "nor BUCKETPOOL_TORCH_BYTES is set");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        setenv("BUCKETPOOL_TORCH_BYTES", wrong[i], 1);
        assert_null(bp_torch_malloc(MIB, 0, NULL));
        assert_fails(bp_torch_statistics_get(0, &s), BP_ERR_SCHEDULE, "expected a number of bytes");
    }
    setenv("BUCKETPOOL_TORCH_BYTES", "4M", 1);
    assert_null(bp_torch_malloc(MIB, -1, NULL));
    void *address = bp_torch_malloc(4 * MIB, 0, NULL); /* the default stream */
    assert_non_null(address);
    assert_null(bp_torch_malloc(MIB, 0, NULL));
    s = numbers();
    assert_int_equal(s.bytes, 4 * MIB);
    bp_torch_free(address, 4 * MIB, 0, NULL);
    assert_ok(bp_torch_stop(0));
    unsetenv("BUCKETPOOL_TORCH_BYTES");
}

/* ---- many ------------------------------------------------------------------------------------------------------------- */

#define HELD 12

typedef struct segment {
    uint8_t *address;
    uint64_t bytes;
    size_t stream;
    check check;
} segment;

/* Each segment keeps its user's bytes, whoever had the memory before. */
TEST(random)
{
    bench b;
    segment held[HELD] = {0};
    unsigned seed = 7, turns = is_brief() ? 150 : 600;
    serve(&b, 2 * MIB);
    for (unsigned i = 0; i < turns; i++) {
        segment *s = &held[(unsigned)rand_r(&seed) % HELD];
        if (s->address == NULL) {
            s->bytes = 512u * (1 + (unsigned)rand_r(&seed) % 900);
            s->stream = (unsigned)rand_r(&seed) % STREAMS;
            s->address = get(&b, s->bytes, s->stream);
            if (s->address == NULL)
                continue;
            s->check = (check){.address = s->address, .bytes = 512, .value = (uint8_t)(1 + i % 250)};
            assert_ok(bp_stream_fill(b.streams[s->stream], s->address, s->check.value, s->bytes));
            check_on(b.streams[s->stream], &s->check);
            continue;
        }
        put(&b, s->address, s->bytes, s->stream);
        assert_ok(bp_stream_synchronize(b.streams[s->stream])); /* reads the check while others continue */
        assert_int_equal(atomic_load(&s->check.wrong), 0);
        s->address = NULL;
    }
    for (size_t i = 0; i < HELD; i++) {
        if (held[i].address != NULL)
            put(&b, held[i].address, held[i].bytes, held[i].stream);
    }
    assert_ok(bp_device_synchronize(b.device));
    assert_int_equal(numbers().live_bytes, 0);
    assert_true(numbers().waits > 0);
    stop(&b);
}

static void *take_and_give(void *argument)
{
    bench *b = argument;
    for (unsigned i = 0; i < 40; i++) {
        void *address = get(b, MIB, i % STREAMS);
        if (address == NULL)
            return b;
        put(b, address, MIB, i % STREAMS);
    }
    return NULL;
}

TEST(threads)
{
    bench b;
    pthread_t threads[4];
    void *wrong;
    serve(&b, 4 * MIB);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_and_give, &b), 0);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(pthread_join(threads[i], &wrong), 0);
        assert_null(wrong);
    }
    assert_int_equal(numbers().segments, 160);
    stop(&b);
}

static void *take_from_the_second(void *taken)
{
    void *address = bp_torch_malloc(MIB, 1, NULL);
    bp_torch_free(address, MIB, 1, NULL);
    atomic_store((flag *)taken, address != NULL ? 1 : 2);
    return NULL;
}

static void *take_all(void *user)
{
    bench *b = user;
    return get(b, 4 * MIB, 0);
}

/* A thread that waits for its device must not block a thread whose work the device waits for, as in collectives of one process. */
TEST(devices_do_not_wait_for_each_other)
{
    bench b;
    bp_graph *graph;
    bp_torch_config config;
    bp_cuda_config cuda;
    assert_ok(bp_cuda_config_init(&cuda, sizeof cuda));
    cuda.ordinal = 1;
    assert_ok(bp_torch_config_init(&config, sizeof config));
    if (bp_device_create_cuda_from(&cuda, driver(), &config.device) != BP_OK)
        skip(); /* one GPU */
    config.ordinal = 1;
    config.bytes = 2 * MIB;
    assert_ok(bp_torch_serve(&config));
    serve(&b, 4 * MIB);
    assert_ok(bp_graph_begin(b.streams[1]));
    void *captured = get(&b, 2 * MIB, 1);
    assert_ok(bp_graph_end(b.streams[1], &graph));
    put(&b, captured, 2 * MIB, 1);

    gate g = {0};
    flag taken = 0;
    pthread_t waits, takes;
    void *all;
    block(b.streams[2], &g);
    assert_int_equal(pthread_create(&waits, NULL, take_all, &b), 0);
    assert_true(stays_down(&taken)); /* by now it waits for the device */
    assert_int_equal(pthread_create(&takes, NULL, take_from_the_second, &taken), 0);
    const bool soon = is_raised_soon(&taken);
    unblock(&g);
    assert_int_equal(pthread_join(waits, &all), 0);
    assert_int_equal(pthread_join(takes, NULL), 0);
    assert_true(soon);
    assert_int_equal(atomic_load(&taken), 1);
    assert_ptr_equal(all, captured);
    put(&b, all, 4 * MIB, 0);
    bp_graph_destroy(&graph);
    stop(&b);
    assert_ok(bp_torch_stop(1));
    bp_device_destroy(&config.device);
}
