/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device on the emulated driver: loading, requested memory properties, current contexts, and failures of each driver call. */
#include <bucketpool/capture.h>
#include <bucketpool/cuda.h>

#include "devices/cuda.h"
#include "fake_cuda.h"
#include "support/pools.h"

static bp_cuda_driver table;

static void configure(const fake_cuda_config *config)
{
    fake_cuda_reset();
    fake_cuda_configure(config);
    fake_cuda_table(&table);
    assert_int_equal(table.cuInit(0), config->devices > 0 ? 0 : BP_CU_NO_DEVICE);
}

static fake_cuda_config defaults(void)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    return config;
}

static bp_cuda_config on_table(void)
{
    bp_cuda_config config;
    assert_ok(bp_cuda_config_init(&config, sizeof config));
    return config;
}

static bp_device *make(const bp_cuda_config *config)
{
    bp_device *device = NULL;
    assert_ok(bp_device_create_cuda_from(config, &table, &device));
    return device;
}

static bp_cuda_info info_of(const bp_device *device)
{
    const bp_cuda_info info = *bp_cuda_get_info(device);
    return info;
}

/* Asserts that nothing is left and no rule was broken. */
static void assert_clean(void)
{
    assert_string_equal(fake_cuda_leaks(), "");
    assert_string_equal(fake_cuda_broken(), "");
    assert_int_equal(fake_cuda_used(0), 0);
}

/* ---- finding it ---------------------------------------------------------------------------------------------------- */

TEST(finding)
{
    fake_cuda_config config = defaults();
    bp_device *device = NULL;
    configure(&config);
    bp_cuda_config cuda = on_table();
    cuda.ordinal = 1;
    assert_fails(bp_device_create_cuda_from(&cuda, &table, &device), BP_ERR_NO_DEVICE, "no device 1", "has 1");
    cuda.ordinal = -1;
    assert_fails(bp_device_create_cuda_from(&cuda, &table, &device), BP_ERR_NO_DEVICE, "no device -1");
    cuda.ordinal = 0;
    cuda.memory = (bp_cuda_memory)7;
    assert_fails(bp_device_create_cuda_from(&cuda, &table, &device), BP_ERR_INVALID_ARGUMENT, "kind of memory 7");
    cuda.memory = BP_CUDA_VIRTUAL;
    cuda.size = 8;
    assert_fails(bp_device_create_cuda_from(&cuda, &table, &device), BP_ERR_INVALID_ARGUMENT,
                 "the size of a struct is 8");
    assert_fails(bp_device_create_cuda_from(&cuda, &table, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_null(device);
    config.devices = 0;
    configure(&config);
    cuda = on_table();
    assert_fails(bp_device_create_cuda_from(&cuda, &table, &device), BP_ERR_NO_DEVICE, "no GPU");
    assert_clean();
}

TEST(loading)
{
    bp_cuda_driver driver;
    const char *fake = getenv("FAKE_DRIVER");
    assert_non_null(fake);
    assert_fails(bp_cuda_driver_load(NULL, NULL), BP_ERR_INVALID_ARGUMENT, "table");
    assert_fails(bp_cuda_driver_load("/nowhere/libcuda.so.1", &driver), BP_ERR_NO_DEVICE, "no CUDA driver", "/nowhere");
    assert_fails(bp_cuda_driver_load("libc.so.6", &driver), BP_ERR_NO_DEVICE, "libc.so.6", "not a CUDA driver");
    assert_fails(bp_cuda_driver_load(getenv("FAKE_STUB"), &driver), BP_ERR_NO_DEVICE, "stub");
    assert_fails(bp_cuda_driver_load(getenv("FAKE_OLD"), &driver), BP_ERR_NO_DEVICE, "CUDA 11.8");
    static const struct {
        int version, devices;
        const char *fails; /* this function, NULL: none */
        int with;
        const char *words; /* NULL: it is found */
    } rows[] = {{12000, 1, NULL, 0, NULL},
                {13000, 1, NULL, 0, NULL},
                {11080, 1, NULL, 0, "11.8"},
                {0, 1, NULL, 0, "of an unknown version: cuDriverGetVersion returned version 0"},
                {13000, 0, NULL, 0, "no GPU"},
                {13000, 1, "cuInit", 999, "does not start"},
                {13000, 1, "cuInit", 802, "CUDA_ERROR_SYSTEM_NOT_READY"},
                {13000, 1, "cuDriverGetVersion", 999, "of an unknown version: cuDriverGetVersion returned error 999"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fake_cuda_config config = defaults();
        config.version = rows[i].version;
        config.devices = rows[i].devices;
        fake_cuda_reset();
        fake_cuda_configure(&config);
        if (rows[i].fails != NULL)
            assert_true(fake_cuda_fail(rows[i].fails, 1, rows[i].with));
        if (rows[i].words != NULL) {
            assert_fails(bp_cuda_driver_load(fake, &driver), BP_ERR_NO_DEVICE, rows[i].words);
            continue;
        }
        assert_ok(bp_cuda_driver_load(fake, &driver));
        assert_non_null(driver.cuStreamGetCaptureInfo);
        assert_int_equal(driver.cuMulticastGetGranularity != NULL, rows[i].version > 12000);
    }
    fake_cuda_reset();
}

/* ---- memory properties ----------------------------------------------------------------------------------------------- */

TEST(handles_and_granularity)
{
    static const struct {
        int fabric_attribute, fabric_answer, file_attribute, no_fabric, expected;
    } cases[] = {{1, 0, 1, 0, 9},   {1, 800, 1, 0, 1}, {1, 801, 1, 0, 1}, {0, 0, 1, 0, 1},
                 {1, 800, 0, 0, 0}, {1, 0, 1, 1, 1},   {0, 0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fake_cuda_config config = defaults();
        config.fabric = cases[i].fabric_answer;
        config.recommended = 131072;
        configure(&config);
        fake_cuda_set_attribute(128, cases[i].fabric_attribute);
        fake_cuda_set_attribute(103, cases[i].file_attribute);
        bp_cuda_config cuda = on_table();
        cuda.no_fabric = cases[i].no_fabric;
        bp_device *device = make(&cuda);
        assert_int_equal(info_of(device).handle_types, cases[i].expected);
        assert_int_equal(info_of(device).recommended_granularity, 131072);
        assert_int_equal(info_of(device).multicast_granularity, 0);
        bp_device_destroy(&device);
        assert_clean();
    }
    fake_cuda_config config = defaults();
    config.multicast = 1 << 20;
    configure(&config);
    bp_cuda_config cuda = on_table();
    bp_device *device = make(&cuda);
    assert_int_equal(info_of(device).multicast_granularity, 1 << 20);
    kit k = begin_kit(device, UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config pool = pool_config();
    open_pool(&k, &pool);
    for (size_t s = 0; s < bp_pool_get_info(k.pool)->slab_count; s++) {
        const bp_pool_slab slab = bp_pool_get_info(k.pool)->slabs[s];
        assert_int_equal(slab.bytes % (1 << 20), 0);
        assert_int_equal((uintptr_t)slab.address % (1 << 20), 0);
        fake_cuda_segment segment;
        assert_int_equal(fake_cuda_segments((uintptr_t)slab.address, slab.bytes, &segment, 1), 1); /* one allocation */
        assert_true(segment.accessible);
        assert_int_equal(segment.bytes, slab.bytes);
        assert_int_equal(segment.handle_types, info_of(device).handle_types);
    }
    end_kit(&k);
    assert_clean();
}

/* Plain allocations work; so do devices without the stream-ordered allocator, or without virtual memory. */
TEST(plain_memory)
{
    for (int pools = 0; pools < 2; pools++) {
        fake_cuda_config config = defaults();
        configure(&config);
        fake_cuda_set_attribute(115, pools);
        fake_cuda_set_attribute(102, 0);
        bp_cuda_config cuda = on_table();
        bp_device *none = NULL;
        assert_fails(bp_device_create_cuda_from(&cuda, &table, &none), BP_ERR_UNSUPPORTED, "virtual memory",
                     "BP_CUDA_PLAIN");
        cuda.memory = BP_CUDA_PLAIN;
        cuda.memory_bytes = UINT64_C(24) << 20;
        kit k = begin_kit(make(&cuda), UNITS, TRAINING, BP_POLICY_MAX, 0);
        bp_pool_config pool = pool_config();
        open_pool(&k, &pool);
        assert_int_equal(info_of(k.device).stream_ordered, pools);
        uint32_t id = param(&k, 0), dynamic;
        void *address = take(&k, id, k.streams[0]);
        assert_ok(bp_stream_fill(k.streams[0], address, 7, 512));
        drop(&k, id, k.streams[0]);
        bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 1024);
        bind.placement = BP_PLACE_DYNAMIC;
        assert_ok(bp_pool_bind(k.pool, &bind, &dynamic));
        for (int i = 0; i < 5; i++)
            drop(&k, dynamic, (take(&k, dynamic, k.streams[i % 3]), k.streams[(i + 1) % 3]));
        bp_pool *second = NULL;
        pool.overflow_bytes = UINT64_C(32) << 20;
        assert_fails(bp_pool_create(k.device, k.plan, &pool, &second), BP_ERR_NO_DEVICE_MEMORY, "left of memory_bytes");
        end_kit(&k);
        assert_clean();
    }
}

/* ---- whose context is current ---------------------------------------------------------------------------------------- */

static void *current(void)
{
    void *context = NULL;
    assert_int_equal(table.cuCtxGetCurrent(&context), 0);
    return context;
}

static void use_everything(bp_device *device)
{
    KIT k = start_kit(device, UNITS, TRAINING, BP_POLICY_MAX, 0);
    walk(&k, 1, NULL, false);
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    assert_ok(bp_capture_begin(k.pool, NULL, &capture));
    assert_ok(bp_graph_begin(k.streams[0]));
    drop(&k, param(&k, 0), (take(&k, param(&k, 0), k.streams[0]), k.streams[0]));
    assert_ok(bp_graph_end(k.streams[0], &graph));
    assert_ok(bp_capture_end(capture));
    assert_ok(bp_capture_before_launch(capture, k.streams[1]));
    assert_ok(bp_graph_launch(graph, k.streams[1]));
    assert_ok(bp_capture_launched(capture, k.streams[1]));
    assert_ok(bp_device_synchronize(k.device));
    bp_graph_destroy(&graph);
    bp_capture_destroy(&capture);
}

/* Without a context, and with another device's, every call works and leaves the current context unchanged. */
TEST(current_context)
{
    fake_cuda_config config = defaults();
    config.devices = 2;
    config.peers = 1;
    configure(&config);
    assert_null(current());
    bp_cuda_config cuda = on_table();
    bp_device *device = make(&cuda);
    assert_null(current());
    assert_int_equal(info_of(device).peers, 1);
    use_everything(device);
    assert_null(current());
    void *other = NULL, *popped;
    int second;
    assert_int_equal(table.cuDeviceGet(&second, 1), 0);
    assert_int_equal(table.cuDevicePrimaryCtxRetain(&other, second), 0);
    assert_int_equal(table.cuCtxPushCurrent(other), 0);
    use_everything(make(&cuda));
    assert_ptr_equal(current(), other);
    assert_int_equal(table.cuCtxPopCurrent(&popped), 0);
    assert_null(current());
    assert_int_equal(table.cuDevicePrimaryCtxRelease(second), 0);
    assert_clean();
}

/* ---- streams of others ------------------------------------------------------------------------------------------------ */

static bp_cuda_driver asked; /* functions that the wrappers call */

static int create_in_context(unsigned long long *handle, size_t bytes, const bp_cu_allocation_prop *prop,
                             unsigned long long flags)
{
    void *context = NULL;
    return asked.cuCtxGetCurrent(&context) == 0 && context != NULL ? asked.cuMemCreate(handle, bytes, prop, flags)
                                                                   : BP_CU_INVALID_CONTEXT;
}

static int release_in_context(unsigned long long handle)
{
    void *context = NULL;
    return asked.cuCtxGetCurrent(&context) == 0 && context != NULL ? asked.cuMemRelease(handle) : BP_CU_INVALID_CONTEXT;
}

/* No rule allows allocating on a thread without a context. */
TEST(memory_in_context)
{
    fake_cuda_config config = defaults();
    configure(&config);
    asked = table;
    table.cuMemCreate = create_in_context;
    table.cuMemRelease = release_in_context;
    bp_cuda_config cuda = on_table();
    kit k = begin_kit(make(&cuda), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config pools = pool_config();
    open_pool(&k, &pools);
    end_kit(&k);
    assert_clean();
}

TEST(imported_streams)
{
    fake_cuda_config config = defaults();
    config.devices = 2;
    configure(&config);
    bp_cuda_config cuda = on_table();
    bp_device *device = make(&cuda);
    cuda.ordinal = 1;
    bp_device *second = make(&cuda);
    bp_stream *foreign, *stream = NULL, *own;
    uint64_t native;
    assert_ok(bp_stream_create(second, "foreign", &foreign));
    assert_ok(bp_stream_native(foreign, &native));
    assert_fails(bp_stream_import(device, native, NULL, &stream), BP_ERR_INVALID_ARGUMENT, "another device");
    assert_fails(bp_stream_import(device, 2, NULL, &stream), BP_ERR_INVALID_ARGUMENT, "per-thread");
    assert_null(stream);
    assert_ok(bp_stream_create(device, "own", &own));
    assert_ok(bp_stream_native(own, &native));
    for (uint64_t handle = 0; handle < 3; handle++) { /* the default stream by both names, and one of a runtime */
        assert_ok(bp_stream_import(device, handle < 2 ? handle : native, "theirs", &stream));
        uint64_t again;
        assert_ok(bp_stream_native(stream, &again));
        assert_int_equal(again, handle < 2 ? 1 : native);
        kit k = begin_kit(make(&(bp_cuda_config){.size = sizeof cuda}), NULL, TRAINING, BP_POLICY_MAX, 0);
        k.w = make_scenario(model_of(UNITS), TRAINING);
        k.plan = make_plan(&k.w, BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
        bp_pool *pool;
        bp_pool_config pools = pool_config();
        assert_ok(bp_pool_create(device, k.plan, &pools, &pool));
        open_pool(&k, &pools);
        bp_pool *unused = k.pool;
        k.pool = pool;
        drop(&k, param(&k, 0), (take(&k, param(&k, 0), stream), own));
        drop(&k, param(&k, 0), (take(&k, param(&k, 0), own), stream));
        take(&k, param(&k, 0), own);
        assert_ok(bp_stream_synchronize(own));
        bp_pool_destroy(&k.pool);
        k.pool = unused;
        end_kit(&k);
        bp_stream_destroy(&stream);
    }
    assert_ok(bp_stream_synchronize(own)); /* destroying an import leaves the stream alone */
    bp_stream_destroy(&own);
    bp_stream_destroy(&foreign);
    bp_device_destroy(&device);
    bp_device_destroy(&second);
    assert_clean();
}

TEST(stream_pool)
{
    fake_cuda_config config = defaults();
    configure(&config);
    bp_cuda_config cuda = on_table();
    bp_device *device = make(&cuda);
    for (int i = 0; i < 10; i++) {
        bp_stream *a, *b;
        assert_ok(bp_stream_create(device, NULL, &a));
        assert_ok(bp_stream_create(device, NULL, &b));
        bp_stream_destroy(&a);
        bp_stream_destroy(&b);
    }
    assert_int_equal(fake_cuda_calls("cuStreamCreate"), 2);
    assert_int_equal(fake_cuda_calls("cuEventCreate"), 2 * 256);
    bp_device_destroy(&device);
    assert_clean();
}

/* If the driver refuses to synchronise, a destroyed stream may have work: pools continue to record points on it. */
TEST(stream_that_cannot_be_waited_for)
{
    for (int imported = 0; imported < 2; imported++) {
        fake_cuda_config config = defaults();
        configure(&config);
        bp_cuda_config cuda = on_table();
        kit k = begin_kit(make(&cuda), UNITS, TRAINING, BP_POLICY_MAX, 0);
        bp_pool_config pools = pool_config();
        open_pool(&k, &pools);
        bp_stream *stream;
        uint64_t native;
        assert_ok(bp_stream_native(k.streams[3], &native));
        if (imported)
            assert_ok(bp_stream_import(k.device, native, "theirs", &stream));
        else
            assert_ok(bp_stream_create(k.device, "ours", &stream));
        take(&k, param(&k, 0), stream);
        for (int i = 1; i <= 2; i++)
            assert_true(fake_cuda_fail("cuStreamSynchronize", (uint64_t)i, 700));
        bp_stream_destroy(&stream);
        drop(&k, param(&k, 0), k.streams[1]);
        take(&k, param(&k, 0), k.streams[2]);
        drop(&k, param(&k, 0), k.streams[2]);
        bp_pool_destroy(&k.pool);
        for (int i = 0; i < KIT_STREAMS; i++)
            bp_stream_destroy(&k.streams[i]);
        assert_int_equal(usage_of(k.device).events, BP_STREAM_POINTS); /* other streams may wait for them yet */
        bp_device_destroy(&k.device);
        bp_plan_destroy(&k.plan);
        free_scenario(&k.w);
        free(k.ids);
        assert_clean();
    }
}

/* ---- out of memory ---------------------------------------------------------------------------------------------------- */

TEST(out_of_memory)
{
    fake_cuda_config config = defaults();
    config.memory = 3 * 65536;
    configure(&config);
    bp_cuda_config cuda = on_table();
    kit k = begin_kit(make(&cuda), UNITS, TRAINING, BP_POLICY_MAX, 0);
    bp_pool_config pool = pool_config();
    pool.persistent_bytes = 65536;
    pool.overflow_bytes = 65536; /* the fourth slab: three are made before */
    assert_fails(bp_pool_create(k.device, k.plan, &pool, &k.pool), BP_ERR_NO_DEVICE_MEMORY, "65536 bytes",
                 "0 of 196608");
    assert_null(k.pool);
    assert_int_equal(fake_cuda_used(0), 0);
    pool.overflow_bytes = 0;
    open_pool(&k, &pool);
    walk(&k, 1, NULL, false);
    end_kit(&k);
    config.memory = UINT64_C(1) << 30;
    configure(&config);
    cuda = on_table();
    cuda.memory_bytes = 2 * 65536;
    bp_device *device = make(&cuda);
    uint64_t handle, second, third;
    for (int i = 0; i < 5; i++) { /* failed calls do not count */
        assert_true(fake_cuda_fail("cuMemCreate", 1, 2));
        assert_fails(bp_device_commit(device, 65536, &handle), BP_ERR_NO_DEVICE_MEMORY, "65536");
    }
    assert_ok(bp_device_commit(device, 65536, &handle));
    assert_ok(bp_device_commit(device, 65536, &second));
    assert_fails(bp_device_commit(device, 65536, &third), BP_ERR_NO_DEVICE_MEMORY, "0 of 131072",
                 "left of memory_bytes");
    assert_fails(bp_device_decommit(device, 65536, handle + 12345), BP_ERR_INVALID_ARGUMENT, "not committed");
    assert_ok(bp_device_decommit(device, 65536, handle));
    assert_ok(bp_device_commit(device, 65536, &handle));
    assert_ok(bp_device_decommit(device, 65536, handle));
    assert_ok(bp_device_decommit(device, 65536, second));
    bp_device_destroy(&device);
    assert_clean();
}

/* ---- every call fails -------------------------------------------------------------------------------------------------- */

/* Runs as far as possible, then undoes everything. True if no call failed. */
static bool try_everything(void)
{
    bp_cuda_config cuda = on_table();
    bp_device *device = NULL;
    bp_stream *streams[3] = {0};
    bp_event *event = NULL;
    bp_pool *pool = NULL;
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    scenario w = make_scenario(model_of("300 300 300"), TRAINING);
    bp_plan *plan = make_plan(&w, BP_POLICY_MAX, 0, BP_FALLBACK_PERSISTENT);
    static uint8_t page[8192] __attribute__((aligned(4096)));
    const uint32_t ids[] = {0, 1, 2, 3, 4, 5};
    uint32_t dynamic = 0;
    void *address = NULL;
    bp_bind bind = bind_of("", 0, BP_ROLE_PARAM, BP_DTYPE_BF16, 1024);
    bind.placement = BP_PLACE_DYNAMIC;
    bp_status status = bp_device_create_cuda_from(&cuda, &table, &device);
    for (int i = 0; status == BP_OK && i < 3; i++)
        status = bp_stream_create(device, NULL, &streams[i]);
#define TRY(call) status = status == BP_OK ? (call) : status
    TRY(bp_pool_create(device, plan, NULL, &pool));
    TRY(bp_pool_bind(pool, &bind, &dynamic));
    TRY(bp_pool_set_zero(pool, &dynamic, 1, BP_ZERO_ALL));
    TRY(bp_event_create(device, &event));
    bool pinned = false;
    TRY(bp_device_pin(device, page, sizeof page));
    pinned = status == BP_OK;
    for (int i = 0; status == BP_OK && i < 3; i++) {
        TRY(bp_pool_acquire(pool, &ids[0], 1, streams[i], &address));
        TRY(bp_stream_copy(streams[i], address, page, 512));
        TRY(bp_event_record(event, streams[i]));
        TRY(bp_stream_wait(streams[(i + 1) % 3], event));
        TRY(bp_event_synchronize(event));
        TRY(bp_pool_release(pool, &ids[0], 1, streams[(i + 1) % 3]));
        TRY(bp_pool_acquire(pool, &dynamic, 1, streams[i], &address));
        TRY(bp_pool_release(pool, &dynamic, 1, streams[(i + 1) % 3]));
    }
    TRY(bp_capture_begin(pool, NULL, &capture));
    bool capturing = false;
    TRY(bp_graph_begin(streams[0]));
    capturing = status == BP_OK;
    TRY(bp_pool_acquire(pool, &ids[1], 1, streams[0], &address));
    TRY(bp_stream_fill(streams[0], address, 3, 512));
    TRY(bp_pool_release(pool, &ids[1], 1, streams[0]));
    if (capturing) {
        bp_status ended = bp_graph_end(streams[0], &graph);
        TRY(ended);
    }
    TRY(bp_capture_end(capture));
    TRY(bp_capture_before_launch(capture, streams[1]));
    bool armed = status == BP_OK;
    TRY(bp_graph_launch(graph, streams[1]));
    if (armed)
        TRY(bp_capture_launched(capture, status == BP_OK ? streams[1] : NULL));
    TRY(bp_pool_acquire(pool, &ids[1], 1, streams[2], &address));
    TRY(bp_stream_synchronize(streams[2]));
    TRY(bp_device_synchronize(device));
    if (pinned) {
        bp_status unpinned = bp_device_unpin(device, page, sizeof page);
        TRY(unpinned);
    }
#undef TRY
    if (status != BP_OK)
        assert_true(strlen(bp_error_detail()) > 10);
    bp_capture_destroy(&capture);
    bp_graph_destroy(&graph);
    bp_pool_destroy(&pool);
    bp_event_destroy(&event);
    for (int i = 0; i < 3; i++)
        bp_stream_destroy(&streams[i]);
    bp_device_destroy(&device);
    bp_plan_destroy(&plan);
    free_scenario(&w);
    return status == BP_OK;
}

/* A failed free leaves the object behind; no recovery exists. */
static bool gives_back(const char *function)
{
    static const char *const undo[] = {"cuMemRelease",     "cuMemUnmap",
                                       "cuMemAddressFree", "cuMemFreeAsync",
                                       "cuMemFree",        "cuStreamDestroy",
                                       "cuEventDestroy",   "cuGraphExecDestroy",
                                       "cuGraphDestroy",   "cuDevicePrimaryCtxRelease",
                                       "cuCtxPopCurrent",  "cuMemHostUnregister",
                                       "cuCtxPushCurrent", "cuStreamSynchronize",
                                       "cuCtxSynchronize", "cuStreamEndCapture"};
    for (size_t i = 0; i < sizeof undo / sizeof *undo; i++) {
        if (strcmp(undo[i], function) == 0)
            return true;
    }
    return false;
}

TEST(each_call_fails)
{
    unsigned long failed = 0;
    for (size_t f = 0; fake_cuda_function(f) != NULL; f++) {
        const char *function = fake_cuda_function(f);
        for (uint64_t nth = 1;; nth += 1 + nth / 8) {
            fake_cuda_config config = defaults();
            configure(&config);
            uint64_t before = fake_cuda_calls(function);
            if (!fake_cuda_fail(function, nth, 999) || nth > 2000)
                break;
            bool fine = try_everything();
            uint64_t used = fake_cuda_calls(function) - before;
            failed += !fine;
            if (!fine && !gives_back(function) && strstr(bp_error_detail(), function) == NULL)
                fail_msg("use %llu of %s: \"%s\" does not name it", (unsigned long long)nth, function,
                         bp_error_detail());
            if (!gives_back(function) && *fake_cuda_broken() + *fake_cuda_leaks() != '\0')
                fail_msg("use %llu of %s: %s%s", (unsigned long long)nth, function, fake_cuda_broken(),
                         fake_cuda_leaks());
            if (used < nth)
                break;
        }
    }
    assert_true(failed > 100);
    fake_cuda_reset();
}

/* Captures with owned and other requests, and launches; after a failure recovers as the headers describe. */
static bool capture_and_launch(kit *k, uint32_t owned)
{
    bp_capture *capture = NULL;
    bp_graph *graph = NULL;
    bp_capture_config config;
    uint32_t id = param(k, 1);
    bool fine = false;
    assert_ok(bp_capture_config_init(&config, sizeof config));
    config.owned = &owned;
    config.owned_count = 1;
    if (bp_capture_begin(k->pool, &config, &capture) != BP_OK)
        return false;
    bool inside = bp_graph_begin(k->streams[0]) == BP_OK;
    bp_status status = inside ? BP_OK : BP_ERR_DEVICE;
    for (int i = 0; status == BP_OK && i < 2; i++) {
        status = bp_pool_acquire(k->pool, &owned, 1, k->streams[0], NULL);
        if (status == BP_OK)
            status = bp_pool_acquire(k->pool, &id, 1, k->streams[0], NULL);
        if (status == BP_OK)
            status = bp_pool_release(k->pool, &id, 1, k->streams[0]);
        if (status == BP_OK)
            status = bp_pool_release(k->pool, &owned, 1, k->streams[0]);
    }
    if (inside && bp_graph_end(k->streams[0], &graph) != BP_OK) {
        status = BP_ERR_DEVICE;
        (void)bp_graph_end(k->streams[0], &graph); /* if that call failed */
    }
    if (status == BP_OK && bp_capture_end(capture) == BP_OK &&
        bp_capture_before_launch(capture, k->streams[1]) == BP_OK) {
        fine = bp_graph_launch(graph, k->streams[1]) == BP_OK;
        if (fine && bp_capture_launched(capture, k->streams[1]) != BP_OK) { /* the call can be repeated */
            fine = false;
            assert_ok(bp_capture_launched(capture, k->streams[1]));
        } else if (!fine) {
            assert_ok(bp_capture_launched(capture, NULL));
        }
    }
    bp_capture_destroy(&capture);
    bp_graph_destroy(&graph);
    return fine;
}

TEST(pool_serves_after_failures)
{
    static const char *const calls[] = {"cuCtxPushCurrent",     "cuEventCreate",       "cuEventRecord",
                                        "cuStreamWaitEvent",    "cuStreamSynchronize", "cuStreamGetCaptureInfo",
                                        "cuStreamBeginCapture", "cuStreamEndCapture",  "cuGraphInstantiate",
                                        "cuGraphLaunch"};
    unsigned failed = 0;
    for (size_t f = 0; f < sizeof calls / sizeof *calls; f++) {
        bool fine = false;
        for (uint64_t nth = 1; !fine; nth += 1 + nth / 8) {
            fake_cuda_config config = defaults();
            configure(&config);
            bp_cuda_config cuda = on_table();
            KIT k = begin_kit(make(&cuda), UNITS, TRAINING, BP_POLICY_MAX, 0);
            bp_pool_config pools = pool_config();
            open_pool(&k, &pools);
            uint32_t owned = param(&k, 0);
            take(&k, owned, k.streams[2]);
            drop(&k, param(&k, 1), (take(&k, param(&k, 1), k.streams[2]), k.streams[3]));
            assert_true(fake_cuda_fail(calls[f], nth, 999));
            fine = capture_and_launch(&k, owned);
            failed += !fine;
            fake_cuda_fail_none();
            assert_false(bp_pool_is_capturing(k.pool));
            assert_int_equal(live_count(k.pool), 1);
            if (!fine && !capture_and_launch(&k, owned))
                fail_msg("after use %llu of %s failed: %s", (unsigned long long)nth, calls[f], bp_error_detail());
            drop(&k, owned, k.streams[2]);
            walk(&k, 1, NULL, false);
        }
    }
    assert_true(failed > 20);
}
