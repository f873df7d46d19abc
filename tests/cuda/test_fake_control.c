/* SPDX-License-Identifier: Apache-2.0 */
/* Controls of the emulated driver: setup, injected failures, counts, leaks, lookup by version. */
#include "fake_support.h"

#include "images.h"
#include "support/add_words.h"

#define BYTES 65536u

/* ---- every function fails when it is told to --------------------------------------------------------------------- */

/* A harmless call of each driver function. */
static int use(const char *name)
{
    int number;
    uint64_t address;
    size_t bytes;
    unsigned flags;
    void *handle;
    const char *text;
    unsigned long long physical;
#define USE(function, call)                                                                                            \
    if (strcmp(name, #function) == 0)                                                                                  \
        return call;
    USE(cuInit, cuInit(1))
    USE(cuDriverGetVersion, cuDriverGetVersion(&number))
    USE(cuGetErrorName, cuGetErrorName(0, &text))
    USE(cuGetErrorString, cuGetErrorString(0, &text))
    USE(cuGetProcAddress, cuGetProcAddress_v2("cuInit", &handle, 2000, 0, NULL))
    USE(cuDeviceGetCount, cuDeviceGetCount(&number))
    USE(cuDeviceGet, cuDeviceGet(&number, 0))
    USE(cuDeviceGetName, cuDeviceGetName(NULL, 0, 0))
    USE(cuDeviceGetAttribute, cuDeviceGetAttribute(&number, 75, 0))
    USE(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer(&number, 0, 0))
    USE(cuDeviceTotalMem, cuDeviceTotalMem_v2(&bytes, 0))
    USE(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain(NULL, 0))
    USE(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2(99))
    USE(cuDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState(0, &flags, &number))
    USE(cuCtxPushCurrent, cuCtxPushCurrent_v2(NULL))
    USE(cuCtxPopCurrent, (cuCtxGetCurrent(&handle), cuCtxPushCurrent_v2(handle), cuCtxPopCurrent_v2(NULL)))
    USE(cuCtxGetCurrent, cuCtxGetCurrent(&handle))
    USE(cuCtxSetCurrent, cuCtxSetCurrent(&number))
    USE(cuCtxGetDevice, cuCtxGetDevice(&number))
    USE(cuCtxSynchronize, cuCtxSynchronize())
    USE(cuMemGetInfo, cuMemGetInfo_v2(&bytes, &bytes))
    USE(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity(&bytes, &on_device, 0))
    USE(cuMulticastGetGranularity, cuMulticastGetGranularity(&bytes, NULL, 0))
    USE(cuMemAddressReserve, cuMemAddressReserve(&address, 1, 0, 0, 0))
    USE(cuMemAddressFree, cuMemAddressFree(0, 0))
    USE(cuMemCreate, cuMemCreate(&physical, 1, &on_device, 0))
    USE(cuMemRelease, cuMemRelease(0))
    USE(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle(&physical, NULL))
    USE(cuMemMap, cuMemMap(0, 0, 0, 0, 0))
    USE(cuMemUnmap, cuMemUnmap(0, 0))
    USE(cuMemSetAccess, cuMemSetAccess(0, 0, NULL, 0))
    USE(cuMemGetAddressRange, cuMemGetAddressRange_v2(NULL, NULL, 0))
    USE(cuMemAlloc, cuMemAlloc_v2(&address, 0))
    USE(cuMemFree, cuMemFree_v2(0))
    USE(cuMemAllocAsync, cuMemAllocAsync(&address, 0, NULL))
    USE(cuMemFreeAsync, cuMemFreeAsync(1, NULL))
    USE(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool(&handle, 0))
    USE(cuMemPoolGetAttribute, cuMemPoolGetAttribute(NULL, 4, &address))
    USE(cuMemPoolSetAttribute, cuMemPoolSetAttribute(NULL, 4, &address))
    USE(cuMemPoolTrimTo, cuMemPoolTrimTo(NULL, 0))
    USE(cuMemHostRegister, cuMemHostRegister_v2(NULL, 0, 0))
    USE(cuMemHostUnregister, cuMemHostUnregister(NULL))
    USE(cuStreamCreate, cuStreamCreate(NULL, 0))
    USE(cuStreamDestroy, cuStreamDestroy_v2(NULL))
    USE(cuStreamSynchronize, cuStreamSynchronize(NULL))
    USE(cuStreamQuery, cuStreamQuery(NULL))
    USE(cuStreamGetCtx, cuStreamGetCtx(NULL, &handle))
    USE(cuStreamGetFlags, cuStreamGetFlags(NULL, &flags))
    USE(cuStreamWaitEvent, cuStreamWaitEvent(NULL, NULL, 0))
    USE(cuLaunchHostFunc, cuLaunchHostFunc(NULL, NULL, NULL))
    USE(cuStreamWaitValue32, cuStreamWaitValue32_v2(NULL, 0, 1, 0))
    USE(cuMemsetD8Async, cuMemsetD8Async(0, 0, 1, NULL))
    USE(cuMemcpyAsync, cuMemcpyAsync(0, 0, 1, NULL))
    USE(cuEventCreate, cuEventCreate(NULL, 0))
    USE(cuEventDestroy, cuEventDestroy_v2(NULL))
    USE(cuEventRecord, cuEventRecord(NULL, NULL))
    USE(cuEventSynchronize, cuEventSynchronize(NULL))
    USE(cuEventQuery, cuEventQuery(NULL))
    USE(cuStreamBeginCapture, cuStreamBeginCapture_v2(NULL, 0))
    USE(cuStreamEndCapture, cuStreamEndCapture(NULL, NULL))
    USE(cuStreamIsCapturing, cuStreamIsCapturing(NULL, &number))
    USE(cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_v2(NULL, &number, NULL, NULL, NULL, NULL))
    USE(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode(NULL))
    USE(cuGraphInstantiate, cuGraphInstantiateWithFlags(NULL, NULL, 0))
    USE(cuGraphLaunch, cuGraphLaunch(NULL, NULL))
    USE(cuGraphExecDestroy, cuGraphExecDestroy(NULL))
    USE(cuGraphDestroy, cuGraphDestroy(NULL))
    USE(cuModuleLoadData, cuModuleLoadData(&handle, NULL))
    USE(cuModuleUnload, cuModuleUnload(NULL))
    USE(cuModuleGetFunction, cuModuleGetFunction(&handle, NULL, ""))
    USE(cuFuncLoad, cuFuncLoad(NULL))
    USE(cuFuncGetAttribute, cuFuncGetAttribute(&number, 1, NULL))
    USE(cuFuncSetAttribute, cuFuncSetAttribute(NULL, 8, 0))
    USE(cuLaunchKernel, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL))
#undef USE
    fail_msg("no use of %s", name);
    return 0;
}

TEST(every_function_fails_on_demand)
{
    (void)start_default_driver();
    size_t count = 0;
    for (const char *name; (name = fake_cuda_function(count)) != NULL; count++) {
        int usual = use(name);
        uint64_t before = fake_cuda_calls(name);
        assert_int_not_equal(usual, 999);
        assert_true(fake_cuda_fail(name, 2, 999));
        assert_int_equal(use(name), usual);
        assert_int_equal(use(name), 999);
        assert_int_equal(use(name), usual);
        assert_int_equal(fake_cuda_calls(name), before + 3);
        assert_true(fake_cuda_fail(name, 0, 46));
        for (int i = 0; i < 3; i++)
            assert_int_equal(use(name), 46);
        fake_cuda_fail_none();
        assert_int_equal(use(name), usual);
    }
    assert_true(count > 50);
    assert_false(fake_cuda_fail("cuNothing", 1, 1));
    assert_int_equal(fake_cuda_calls("cuNothing"), UINT64_MAX);
    fake_cuda_forgive();
    stop_driver();
}

TEST(failures_do_nothing)
{
    void *stream = NULL;
    unsigned long long handle = 7;
    (void)start_default_driver();
    assert_true(fake_cuda_fail("cuStreamCreate", 1, 2));
    assert_int_equal(cuStreamCreate(&stream, 1), 2);
    assert_null(stream);
    assert_true(fake_cuda_fail("cuMemCreate", 1, 2));
    assert_int_equal(cuMemCreate(&handle, BYTES, &on_device, 0), 2);
    assert_int_equal(handle, 7);
    assert_true(fake_cuda_fail("cuMemCreate", 1, FAKE_CUDA_FORGETS));
    okay(cuMemCreate(&handle, BYTES, &on_device, 0));
    assert_int_equal(handle, 7);
    assert_int_equal(fake_cuda_used(0), 0);
    stop_driver();
}

/* ---- setup ------------------------------------------------------------------------------------------------------- */

TEST(nothing_works_before_init)
{
    int count;
    void *context;
    const char *name;
    fake_cuda_reset();
    assert_int_equal(cuDeviceGetCount(&count), 3);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), 3);
    okay(cuDriverGetVersion(&count));
    assert_int_equal(count, 13000);
    okay(cuGetErrorName(201, &name));
    assert_string_equal(name, "CUDA_ERROR_INVALID_CONTEXT");
    fake_cuda_reset();
}

TEST(configuration)
{
    fake_cuda_config config;
    int number;
    size_t bytes, left;
    fake_cuda_config_init(&config);
    config.devices = 3;
    config.version = 12040;
    config.granularity = 1 << 20;
    config.recommended = 2 << 20;
    config.multicast = 4 << 20;
    config.memory = 10 << 20;
    config.fabric = 801;
    (void)start_driver(&config);
    fake_cuda_set_attribute(115, 0);
    okay(cuDeviceGetCount(&number));
    assert_int_equal(number, 3);
    okay(cuMemGetAllocationGranularity(&bytes, &on_device, 1));
    assert_int_equal(bytes, 2 << 20);
    okay(cuMulticastGetGranularity(&bytes, &(bp_cu_multicast_prop){.devices = 2, .bytes = 1}, 1));
    assert_int_equal(bytes, 4 << 20);
    okay(cuMemGetInfo_v2(&left, &bytes));
    assert_int_equal(bytes, 10 << 20);
    okay(cuDeviceGetAttribute(&number, 132, 2));
    assert_int_equal(number, 1);
    okay(cuDeviceGetAttribute(&number, 115, 1));
    assert_int_equal(number, 0);
    bp_cu_allocation_prop fabric = {.type = 1, .handle_types = 9, .location_type = 1};
    unsigned long long handle;
    assert_int_equal(cuMemCreate(&handle, 1 << 20, &fabric, 0), 801);
    stop_driver();
}

TEST(memory_is_counted)
{
    fake_cuda_config config;
    unsigned long long handles[4];
    fake_cuda_config_init(&config);
    config.memory = 3 * BYTES;
    (void)start_driver(&config);
    for (size_t i = 0; i < 3; i++)
        okay(cuMemCreate(&handles[i], BYTES, &on_device, 0));
    assert_int_equal(cuMemCreate(&handles[3], BYTES, &on_device, 0), 2);
    assert_int_equal(fake_cuda_used(0), 3 * BYTES);
    okay(cuMemRelease(handles[1]));
    okay(cuMemCreate(&handles[1], BYTES, &on_device, 0));
    assert_non_null(strstr(fake_cuda_leaks(), "65536 bytes: 1 handles, 0 mappings"));
    for (size_t i = 0; i < 3; i++)
        okay(cuMemRelease(handles[i]));
    assert_int_equal(fake_cuda_used(0), 0);
    stop_driver();
}

static void set_threshold(void *pool, uint64_t bytes)
{
    okay(cuMemPoolSetAttribute(pool, 4, &bytes));
}

static void allocate_and_free(void *stream, uint64_t bytes)
{
    uint64_t address;
    okay(cuMemAllocAsync(&address, bytes, stream));
    okay(cuMemFreeAsync(address, stream));
    okay(cuStreamSynchronize(stream));
}

/* The default pool retains freed bytes up to its threshold, until it is trimmed. */
TEST(pools_keep_freed_memory)
{
    void *pool, *stream;
    uint64_t threshold = 1;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    okay(cuDeviceGetDefaultMemPool(&pool, 0));
    okay(cuMemPoolGetAttribute(pool, 4, &threshold));
    assert_int_equal(threshold, 0);
    allocate_and_free(stream, BYTES);
    assert_int_equal(fake_cuda_used(0), 0);
    set_threshold(pool, 3 * BYTES);
    allocate_and_free(stream, 2 * BYTES);
    assert_int_equal(fake_cuda_used(0), 2 * BYTES);
    allocate_and_free(stream, 4 * BYTES);
    assert_int_equal(fake_cuda_used(0), 3 * BYTES);
    assert_non_null(strstr(fake_cuda_leaks(), "a threshold of 196608 bytes, 196608 kept"));
    set_threshold(pool, 0);
    assert_int_equal(fake_cuda_used(0), 3 * BYTES);
    okay(cuMemPoolTrimTo(pool, BYTES));
    assert_int_equal(fake_cuda_used(0), BYTES);
    okay(cuMemPoolTrimTo(pool, 0));
    assert_int_equal(cuMemPoolSetAttribute(pool, 5, &threshold), 1);
    assert_int_equal(cuDeviceGetDefaultMemPool(&pool, 1), 101);
    okay(cuStreamDestroy_v2(stream));
    stop_driver();
}

/* ---- host functions ---------------------------------------------------------------------------------------------- */

typedef struct meeting {
    atomic_int inside, met, patience_ms;
} meeting;

/* Blocks until two threads are inside, or times out. */
static void meet(void *argument)
{
    meeting *m = argument;
    atomic_fetch_add(&m->inside, 1);
    for (int i = 0; i < atomic_load(&m->patience_ms) && atomic_load(&m->inside) < 2; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (atomic_load(&m->inside) == 2)
        atomic_store(&m->met, 1);
    else
        atomic_store(&m->inside, 0);
}

TEST(host_functions_may_be_serial)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    for (int serial = 0; serial < 2; serial++) {
        meeting m = {.patience_ms = serial ? 30 : 5000};
        void *streams[2];
        config.serial_host = serial;
        (void)start_driver(&config);
        for (int i = 0; i < 2; i++)
            okay(cuStreamCreate(&streams[i], 1));
        for (int i = 0; i < 2; i++)
            okay(cuLaunchHostFunc(streams[i], meet, &m));
        for (int i = 0; i < 2; i++) {
            okay(cuStreamSynchronize(streams[i]));
            okay(cuStreamDestroy_v2(streams[i]));
        }
        assert_int_equal(atomic_load(&m.met), !serial);
        stop_driver();
    }
}

static void raise_word(void *word)
{
    __atomic_store_n((uint32_t *)word, 3, __ATOMIC_SEQ_CST);
}

/* A stream waits for a word without a host function, so that another stream can write it. */
TEST(streams_wait_for_words)
{
    static _Alignas(4096) uint32_t words[1024];
    const uint64_t address = (uint64_t)(uintptr_t)words;
    fake_cuda_config config;
    void *streams[2];
    fake_cuda_config_init(&config);
    config.serial_host = 1;
    (void)start_driver(&config);
    for (int i = 0; i < 2; i++)
        okay(cuStreamCreate(&streams[i], 1));
    assert_int_equal(cuStreamWaitValue32_v2(streams[0], address, 1, 0), 1);
    okay(cuMemHostRegister_v2(words, sizeof words, 0));
    assert_int_equal(cuStreamWaitValue32_v2(streams[0], address, 1, 1), 801);
    okay(cuStreamWaitValue32_v2(streams[0], address, 2, 0));
    assert_int_equal(cuStreamQuery(streams[0]), 600);
    okay(cuLaunchHostFunc(streams[1], raise_word, words));
    okay(cuStreamSynchronize(streams[0]));
    okay(cuStreamSynchronize(streams[1]));
    okay(cuMemHostUnregister(words));
    for (int i = 0; i < 2; i++)
        okay(cuStreamDestroy_v2(streams[i]));
    stop_driver();
}

TEST(leaks_are_reported)
{
    void *stream, *event;
    uint64_t address;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    okay(cuEventCreate(&event, 2));
    okay(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    assert_non_null(strstr(fake_cuda_leaks(), "1 streams\n"));
    assert_non_null(strstr(fake_cuda_leaks(), "1 events\n"));
    assert_non_null(strstr(fake_cuda_leaks(), "a reservation of 65536 bytes"));
    assert_non_null(strstr(fake_cuda_leaks(), "1 references of the primary context of device 0"));
    fake_cuda_reset();
    assert_string_equal(fake_cuda_leaks(), "");
}

/* ---- lookup ------------------------------------------------------------------------------------------------------ */

static void *look_up(const char *name, int version, int status)
{
    void *function = &status;
    int found = -1;
    okay(cuGetProcAddress_v2(name, &function, version, 0, &found));
    assert_int_equal(found, status);
    return function;
}

static void is_found(const char *name, int version, void (*wanted)(void))
{
    void *found = look_up(name, version, 0);
    assert_memory_equal(&found, &wanted, sizeof found);
}

TEST(lookup_by_version)
{
    void *function;
    (void)start_default_driver();
    is_found("cuStreamGetCaptureInfo", 11000, (void (*)(void))cuStreamGetCaptureInfo);
    is_found("cuStreamGetCaptureInfo", 12000, (void (*)(void))cuStreamGetCaptureInfo_v2);
    is_found("cuStreamGetCaptureInfo", 13000, (void (*)(void))cuStreamGetCaptureInfo_v3);
    is_found("cuCtxSynchronize", 12000, (void (*)(void))cuCtxSynchronize);
    is_found("cuCtxSynchronize", 13000, (void (*)(void))cuCtxSynchronize_v2);
    is_found("cuFuncLoad", 12040, (void (*)(void))cuFuncLoad);
    assert_null(look_up("cuFuncLoad", 12000, 2));
    is_found("cuMemAlloc", 12000, (void (*)(void))cuMemAlloc_v2);
    assert_null(look_up("cuMemAlloc", 3000, 2));
    assert_null(look_up("cuNothing", 12000, 1));
    assert_int_equal(cuGetProcAddress_v2("cuInit", &function, 13010, 0, NULL), 1);
    stop_driver();
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.version = 12000;
    (void)start_driver(&config);
    assert_null(look_up("cuMulticastGetGranularity", 12000, 1));
    assert_int_equal(cuGetProcAddress_v2("cuInit", &function, 12010, 0, NULL), 1);
    stop_driver();
}

/* ---- kernels ----------------------------------------------------------------------------------------------------- */

static const char *kernels_library;

TEST(images)
{
    static const unsigned char shorter[] = {0x50, 0xed, 0x55, 0};
    char fatbin[IMAGE_BYTES], cubin[64], newer[64];
    fake_cuda_config config;
    void *module = NULL;
    fake_cuda_config_init(&config);
    config.kernels = kernels_library;
    config.version = 12020;
    (void)start_driver(&config);
    make_fatbin(fatbin, (image_code[]){{80, 0, 7, 0, 0}, {0}});
    make_cubin(cubin, 90, ELF_OF_CUDA_12);
    const void *const images[] = {fatbin, cubin, add_words_ptx, " \n// made by hand\n.version 8.2\n.target sm_90"};
    for (size_t i = 0; i < sizeof images / sizeof *images; i++) {
        okay(cuModuleLoadData(&module, images[i]));
        assert_non_null(strstr(fake_cuda_leaks(), "1 modules"));
        okay(cuModuleUnload(module));
    }
    assert_int_equal(cuModuleLoadData(&module, shorter), 200);
    assert_int_equal(cuModuleLoadData(&module, ""), 200);
    assert_int_equal(cuModuleLoadData(&module, "// .version 8.0"), 200);
    /* of newer drivers, or another GPU */
    make_cubin(newer, 90, ELF_OF_CUDA_13);
    assert_int_equal(cuModuleLoadData(&module, newer), 200);
    assert_int_equal(cuModuleLoadData(&module, ".version 8.3\n.target sm_80"), 222);
    assert_int_equal(cuModuleLoadData(&module, ".version 8.0\n.target sm_100"), 209);
    make_cubin(cubin, 80, ELF_OF_CUDA_12);
    assert_int_equal(cuModuleLoadData(&module, cubin), 209);
    stop_driver();
    (void)start_default_driver();
    assert_int_equal(cuModuleLoadData(&module, add_words_ptx), 209);
    assert_int_equal(cuModuleLoadData(&module, shorter), 200);
    stop_driver();
}

/* Kernels access memory that the host cannot, and memory mapped or allocated since the last launch. */
TEST(kernels_reach_memory)
{
    fake_cuda_config config;
    void *module, *kernel, *stream;
    fake_cuda_config_init(&config);
    config.kernels = kernels_library;
    for (int host_faults = 0; host_faults < 2; host_faults++) {
        config.host_faults = host_faults;
        (void)start_driver(&config);
        okay(cuStreamCreate(&stream, 1));
        okay(cuModuleLoadData(&module, add_words_ptx));
        okay(cuModuleGetFunction(&kernel, module, ADD_WORDS));
        unsigned long long handle;
        uint64_t memory[3] = {map_memory(BYTES, &handle)};
        okay(cuMemAlloc_v2(&memory[1], BYTES));
        okay(cuMemAllocAsync(&memory[2], BYTES, stream));
        for (int i = 0; i < 3; i++) {
            add_words_work work = {memory[i], BYTES / 4, 5};
            void *arguments[] = {&work};
            okay(cuMemsetD8Async(memory[i], 0, BYTES, stream));
            okay(cuLaunchKernel(kernel, BYTES / 4 / 256, 1, 1, 256, 1, 1, 0, stream, arguments, NULL));
        }
        okay(cuStreamSynchronize(stream));
        for (int i = 0; i < 3; i++) {
            const uint32_t *words = fake_cuda_view(memory[i]);
            assert_int_equal(words[0], 5);
            assert_int_equal(words[BYTES / 4 - 1], 5);
        }
        okay(cuMemFreeAsync(memory[2], stream));
        okay(cuMemFree_v2(memory[1]));
        unmap_memory(memory[0], BYTES, handle);
        okay(cuModuleUnload(module));
        okay(cuStreamDestroy_v2(stream));
        stop_driver();
    }
}

/* ---- queries of the emulated NCCL -------------------------------------------------------------------------------- */

TEST(segments)
{
    fake_cuda_segment segments[4];
    unsigned long long first, second;
    uint64_t address = 0;
    (void)start_default_driver();
    okay(cuMemAddressReserve(&address, 3 * BYTES, 0, 0, 0));
    okay(cuMemCreate(&first, BYTES, &on_device, 0));
    okay(cuMemCreate(&second, BYTES, &on_device, 0));
    okay(cuMemMap(address, BYTES, 0, first, 0));
    okay(cuMemMap(address + BYTES, BYTES, 0, second, 0));
    okay(cuMemSetAccess(address, BYTES, &for_device, 1));
    assert_int_equal(fake_cuda_segments(address + 1, BYTES, segments, 4), 2);
    assert_int_equal(segments[0].address, address);
    assert_int_equal(segments[0].physical, first);
    assert_int_equal(segments[0].handle_types, 1);
    assert_true(segments[0].accessible);
    assert_int_equal(segments[1].physical, second);
    assert_false(segments[1].accessible);
    assert_int_equal(fake_cuda_segments(address, BYTES, segments, 4), 1);
    assert_int_equal(fake_cuda_segments(address, 3 * BYTES, segments, 4), 0);
    okay(cuMemUnmap(address, 2 * BYTES));
    assert_int_equal(fake_cuda_segments(address, 1, segments, 4), 0);
    okay(cuMemRelease(first));
    okay(cuMemRelease(second));
    okay(cuMemAddressFree(address, 3 * BYTES));
    stop_driver();
}

TEST(captures_are_seen)
{
    void *stream, *graph;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    assert_false(fake_cuda_any_capture());
    okay(cuStreamBeginCapture_v2(stream, 0));
    assert_true(fake_cuda_any_capture());
    assert_true(fake_cuda_stream_is_capturing(stream));
    assert_false(fake_cuda_in_host_function());
    okay(cuStreamEndCapture(stream, &graph));
    assert_false(fake_cuda_stream_is_capturing(stream));
    okay(cuGraphDestroy(graph));
    okay(cuStreamDestroy_v2(stream));
    stop_driver();
}

/* No source says if virtual memory may be managed during captures: the strictness is configurable. */
TEST(mapping_in_captures_is_a_setting)
{
    void *stream, *graph;
    uint64_t address;
    for (int strict = 0; strict < 2; strict++) {
        fake_cuda_config config;
        fake_cuda_config_init(&config);
        config.vmm_unsafe = strict;
        (void)start_driver(&config);
        okay(cuStreamCreate(&stream, 1));
        okay(cuStreamBeginCapture_v2(stream, 1));
        assert_int_equal(cuMemAddressReserve(&address, BYTES, 0, 0, 0), strict ? 900 : 0);
        assert_int_equal(cuStreamEndCapture(stream, &graph), strict ? 901 : 0);
        if (!strict) {
            okay(cuGraphDestroy(graph));
            okay(cuMemAddressFree(address, BYTES));
        }
        okay(cuStreamDestroy_v2(stream));
        stop_driver();
    }
}

/* A thread may leave the restricted mode, as libraries do around their allocations. */
TEST(capture_mode_of_a_thread)
{
    void *stream, *graph;
    uint64_t address;
    int mode = 2;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    okay(cuStreamBeginCapture_v2(stream, 0));
    okay(cuThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, 0);
    okay(cuMemAlloc_v2(&address, 16));
    okay(cuThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, 2);
    assert_int_equal(cuMemFree_v2(address), 900);
    assert_int_equal(cuStreamEndCapture(stream, &graph), 901);
    assert_null(graph);
    okay(cuMemFree_v2(address));
    okay(cuStreamDestroy_v2(stream));
    stop_driver();
}

/* A graph launched in a capture becomes part of the other graph. */
TEST(graphs_hold_graphs)
{
    void *stream, *captured, *inner, *outer;
    uint64_t address;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    okay(cuMemAlloc_v2(&address, 16));
    okay(cuStreamBeginCapture_v2(stream, 0));
    okay(cuMemsetD8Async(address, 7, 16, stream));
    okay(cuStreamEndCapture(stream, &captured));
    okay(cuGraphInstantiateWithFlags(&inner, captured, 0));
    okay(cuGraphDestroy(captured));
    okay(cuStreamBeginCapture_v2(stream, 0));
    okay(cuGraphLaunch(inner, stream));
    okay(cuMemsetD8Async(address, 8, 8, stream));
    okay(cuStreamEndCapture(stream, &captured));
    okay(cuGraphExecDestroy(inner));
    okay(cuGraphInstantiateWithFlags(&outer, captured, 0));
    okay(cuGraphDestroy(captured));
    okay(cuGraphLaunch(outer, stream));
    okay(cuGraphExecDestroy(outer));
    okay(cuStreamSynchronize(stream));
    const unsigned char *bytes = fake_at(address);
    assert_int_equal(bytes[0], 8);
    assert_int_equal(bytes[15], 7);
    okay(cuMemFree_v2(address));
    okay(cuStreamDestroy_v2(stream));
    stop_driver();
}

TEST(queries)
{
    void *stream, *event;
    atomic_int open = 0;
    (void)start_default_driver();
    okay(cuStreamCreate(&stream, 1));
    okay(cuEventCreate(&event, 2));
    okay(cuStreamQuery(stream));
    okay(cuLaunchHostFunc(stream, wait_at_gate, &open));
    okay(cuEventRecord(event, stream));
    assert_int_equal(cuStreamQuery(stream), 600);
    assert_int_equal(cuEventQuery(event), 600);
    okay(cuStreamQuery(NULL));
    atomic_store(&open, 1);
    okay(cuEventSynchronize(event));
    okay(cuEventQuery(event));
    okay(cuEventDestroy_v2(event));
    okay(cuStreamDestroy_v2(stream));
    stop_driver();
}

int main(int count, char **arguments)
{
    kernels_library = count > 1 ? arguments[1] : NULL;
    return run_suite();
}
