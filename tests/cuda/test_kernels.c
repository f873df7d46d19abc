/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of the cuda device on the emulated driver: current contexts, driver calls of a launch, refusals, failures of each call. */
#include <bucketpool/cuda.h>
#include <bucketpool/device_ops.h>

#include <pthread.h>

#include "devices/cuda.h"
#include "fake_cuda.h"
#include "images.h"
#include "support/add_words.h"
#include "support/pools.h"

#define WORDS 1024u
#define BYTES (WORDS * (uint64_t)sizeof(uint32_t))

static bp_cuda_driver table;

static void configure(int devices, int version)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.devices = devices;
    config.version = version;
    config.kernels = getenv("FAKE_KERNELS");
    fake_cuda_reset();
    fake_cuda_configure(&config);
    assert_ok(bp_cuda_driver_load(getenv("FAKE_DRIVER"), &table));
}

static bp_device *make(int ordinal)
{
    bp_cuda_config config;
    bp_device *device = NULL;
    assert_ok(bp_cuda_config_init(&config, sizeof config));
    config.ordinal = ordinal;
    assert_ok(bp_device_create_cuda_from(&config, &table, &device));
    return device;
}

static void assert_clean(void)
{
    assert_string_equal(fake_cuda_leaks(), "");
    assert_string_equal(fake_cuda_broken(), "");
}

/* A device with a module, its kernel, a stream and zeroed words. */
typedef struct bench {
    bp_device *device;
    bp_stream *stream;
    bp_cuda_module *module;
    bp_cuda_kernel *kernel;
    void *words;
    uint64_t handle;
} bench;

static bench begin(bp_device *device)
{
    bench b = {.device = device};
    void *self;
    const bp_device_ops *ops = bp_device_table(device, &self);
    assert_ok(bp_stream_create(device, "work", &b.stream));
    assert_ok(bp_cuda_module_create(device, add_words_ptx, &b.module));
    assert_ok(bp_cuda_module_kernel(b.module, ADD_WORDS, &b.kernel));
    assert_ok(ops->reserve(self, 65536, 65536, &b.words));
    assert_ok(ops->commit(self, 65536, &b.handle));
    assert_ok(ops->map(self, b.words, 65536, b.handle));
    assert_ok(bp_stream_fill(b.stream, b.words, 0, BYTES));
    return b;
}

static void leave(bench *b)
{
    void *self;
    const bp_device_ops *ops = bp_device_table(b->device, &self);
    bp_stream_destroy(&b->stream);
    bp_cuda_module_destroy(&b->module);
    assert_ok(ops->unmap(self, b->words, 65536));
    assert_ok(ops->decommit(self, b->handle));
    assert_ok(ops->unreserve(self, b->words, 65536));
    bp_device_destroy(&b->device);
}

static void end(bench *b)
{
    leave(b);
    assert_clean();
}

static bp_cuda_grid grid_of(uint32_t blocks, uint32_t threads)
{
    return (bp_cuda_grid){{blocks, 1, 1}, {threads, 1, 1}, 0};
}

static bp_status add(const bench *b, uint32_t number, bp_stream *stream)
{
    add_words_work work = {(uintptr_t)b->words, WORDS, number};
    void *arguments[] = {&work};
    const bp_cuda_grid grid = grid_of(WORDS / 256, 256);
    return bp_cuda_launch(b->kernel, &grid, arguments, stream);
}

static void assert_words(const bench *b, uint32_t number)
{
    assert_ok(bp_device_synchronize(b->device));
    const uint32_t *words = b->words;
    for (uint32_t i = 0; i < WORDS; i++)
        assert_int_equal(words[i], number);
}

static void *current(void)
{
    void *context = NULL;
    assert_int_equal(table.cuCtxGetCurrent(&context), 0);
    return context;
}

/* ---- launching ------------------------------------------------------------------------------------------------------ */

static void *launch_in_thread(void *argument)
{
    const bench *b = argument;
    assert_null(current());
    bp_status status = add(b, 100, b->stream);
    assert_null(current());
    return status == BP_OK ? argument : NULL;
}

/* One call if any context is current, which stays; without one, the device's is made current around it. */
TEST(contexts_and_calls)
{
    configure(1, 13000);
    bench b = begin(make(0));
    assert_null(current());
    assert_ok(add(&b, 1, b.stream));
    assert_null(current());
    bp_cuda_scope scope, inner;
    assert_ok(bp_cuda_enter(b.device, &scope));
    void *own = current();
    assert_non_null(own);
    uint64_t before = fake_cuda_calls_all();
    for (int i = 0; i < 5; i++)
        assert_ok(add(&b, 2, b.stream));
    assert_int_equal(fake_cuda_calls_all() - before, 5);
    assert_ok(bp_cuda_enter(b.device, &inner));
    bp_cuda_leave(&inner);
    assert_ptr_equal(current(), own);
    bp_cuda_leave(&scope);
    bp_cuda_leave(&scope); /* not entered */
    assert_null(current());
    pthread_t thread;
    void *answer = NULL;
    assert_int_equal(pthread_create(&thread, NULL, launch_in_thread, &b), 0);
    pthread_join(thread, &answer);
    assert_non_null(answer);
    assert_words(&b, 111);
    end(&b);
}

/* If the driver does not launch with another device's context current, the call is repeated with the right one. */
TEST(another_current_context)
{
    configure(2, 13000);
    bench first = begin(make(0)), second = begin(make(1));
    bp_cuda_scope scope;
    assert_ok(bp_cuda_enter(second.device, &scope));
    void *other = current();
    assert_ok(add(&first, 3, first.stream));
    assert_ok(add(&second, 4, second.stream));
    assert_ptr_equal(current(), other);
    bp_cuda_leave(&scope);
    assert_words(&first, 3);
    assert_words(&second, 4);
    assert_fails(add(&first, 5, second.stream), BP_ERR_INVALID_ARGUMENT, "add_words", "GPU 0", "another device");
    assert_words(&second, 4);
    leave(&first);
    end(&second);
}

TEST(default_stream)
{
    configure(1, 13000);
    bench b = begin(make(0));
    bp_stream *legacy;
    assert_ok(bp_stream_synchronize(b.stream));
    assert_ok(bp_stream_import(b.device, 0, "default", &legacy));
    assert_ok(add(&b, 6, legacy));
    assert_null(current());
    bp_stream_destroy(&legacy);
    assert_words(&b, 6);
    end(&b);
}

static bp_status let_through(void *user, const device_call *call)
{
    *(unsigned *)user += call->operation == OP_STREAM_CREATE;
    return BP_OK;
}

/* Modules of a decorated device take streams of the inner device, and vice versa. */
TEST(trace_device)
{
    configure(1, 13000);
    unsigned streams = 0;
    bp_device *inner = make(0), *outer = NULL;
    bp_stream *own;
    assert_ok(trace_device_create(inner, let_through, &streams, &outer));
    bench b = begin(outer);
    assert_ok(bp_stream_create(inner, "inner", &own));
    assert_ok(bp_stream_synchronize(b.stream));
    assert_ok(add(&b, 7, own));
    assert_ok(bp_stream_synchronize(own));
    assert_ok(add(&b, 1, b.stream));
    assert_int_equal(streams, 1);
    bp_stream_destroy(&own);
    bp_device_destroy(&inner);
    assert_words(&b, 8);
    end(&b);
}

/* Also the first launch, with and without lazy loading (drivers from 12.4 on). */
TEST(captured_launches)
{
    static const int versions[] = {12000, 12030, 12040, 13000};
    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        configure(1, versions[i]);
        assert_int_equal(table.cuFuncLoad != NULL, versions[i] >= 12040);
        bench b = begin(make(0));
        bp_graph *graph;
        assert_ok(bp_stream_synchronize(b.stream));
        assert_ok(bp_graph_begin(b.stream));
        assert_ok(add(&b, 1, b.stream));
        assert_ok(add(&b, 20, b.stream));
        bp_cuda_module *none = NULL;
        char *image = strdup(add_words_ptx);
        assert_fails(bp_cuda_module_create(b.device, image, &none), BP_ERR_CAPTURE, "captured");
        free(image);
        assert_fails(add(&b, 1, b.stream), BP_ERR_CAPTURE, "add_words", "901");
        assert_fails(bp_graph_end(b.stream, &graph), BP_ERR_CAPTURE, "invalid");
        assert_ok(bp_graph_begin(b.stream));
        assert_ok(add(&b, 1, b.stream));
        assert_ok(add(&b, 20, b.stream));
        assert_ok(bp_graph_end(b.stream, &graph));
        assert_words(&b, 0);
        for (int j = 0; j < 3; j++)
            assert_ok(bp_graph_launch(graph, b.stream));
        assert_words(&b, 63);
        bp_graph_destroy(&graph);
        end(&b);
    }
}

/* ---- modules -------------------------------------------------------------------------------------------------------- */

TEST(modules)
{
    configure(1, 13000);
    bench b = begin(make(0));
    bp_cuda_kernel *again = NULL;
    assert_ok(bp_cuda_module_kernel(b.module, ADD_WORDS, &again));
    assert_ptr_equal(again, b.kernel);
    assert_fails(bp_cuda_module_kernel(b.module, "nothing", &again), BP_ERR_INVALID_ARGUMENT, "\"nothing\"");
    assert_fails(bp_cuda_module_kernel(b.module, NULL, &again), BP_ERR_INVALID_ARGUMENT, "name");
    assert_fails(bp_cuda_module_kernel(NULL, ADD_WORDS, &again), BP_ERR_INVALID_ARGUMENT, "module");
    assert_ptr_equal(again, b.kernel);
    bp_cuda_module *module = NULL;
    bp_device *host = NULL;
    assert_ok(bp_device_create_host(NULL, &host));
    assert_fails(bp_cuda_module_create(host, add_words_ptx, &module), BP_ERR_INVALID_ARGUMENT, "is not cuda");
    bp_cuda_scope scope;
    assert_ok(bp_cuda_enter(host, &scope));
    assert_null(current());
    bp_cuda_leave(&scope);
    assert_fails(bp_cuda_enter(NULL, &scope), BP_ERR_INVALID_ARGUMENT, "device");
    bp_device_destroy(&host);
    assert_fails(bp_cuda_module_create(NULL, add_words_ptx, &module), BP_ERR_INVALID_ARGUMENT, "is not cuda");
    assert_fails(bp_cuda_module_create(b.device, NULL, &module), BP_ERR_INVALID_ARGUMENT, "image");
    assert_fails(bp_cuda_module_create(b.device, add_words_ptx, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_fails(bp_cuda_module_create(b.device, "text", &module), BP_ERR_INVALID_ARGUMENT, "neither a fatbin");
    assert_null(module);
    bp_cuda_module_destroy(&module);
    bp_cuda_module_destroy(NULL);
    end(&b);
}

/* One module for all users of an image; kernels outlive the first of them. */
TEST(shared_modules)
{
    configure(2, 13000);
    bench b = begin(make(0));
    bp_device *other = make(1);
    bp_cuda_module *again = NULL, *there = NULL, *copy = NULL;
    bp_cuda_kernel *kernel = NULL;
    char *image = strdup(add_words_ptx);
    assert_ok(bp_cuda_module_create(b.device, add_words_ptx, &again));
    assert_ok(bp_cuda_module_create(other, add_words_ptx, &there));
    assert_ok(bp_cuda_module_create(b.device, image, &copy));
    assert_ptr_equal(again, b.module);
    assert_true(there != again && copy != again && copy != there);
    assert_ok(bp_cuda_module_kernel(again, ADD_WORDS, &kernel));
    assert_ptr_equal(kernel, b.kernel);
    bp_cuda_module_destroy(&copy);
    bp_cuda_module_destroy(&b.module);
    assert_ok(add(&b, 1, b.stream));
    assert_words(&b, 1);
    b.module = again;
    bp_cuda_module_destroy(&there);
    bp_device_destroy(&other);
    end(&b);
    free(image);
}

/* More than 48 KiB of shared memory, up to the GPU's limit less the kernel's own. */
TEST(shared_memory)
{
    configure(1, 13000);
    bench b = begin(make(0));
    bp_cuda_grid grid = grid_of(WORDS / 256, 256);
    add_words_work work = {(uintptr_t)b.words, WORDS, 1};
    void *arguments[] = {&work};
    uint32_t bytes = 0;
    grid.shared_bytes = 49153;
    assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, b.stream), BP_ERR_DEVICE, "49153 shared bytes");
    assert_fails(bp_cuda_kernel_allow_shared(NULL, &bytes), BP_ERR_INVALID_ARGUMENT, "kernel");
    assert_fails(bp_cuda_kernel_allow_shared(b.kernel, NULL), BP_ERR_INVALID_ARGUMENT, "output");
    assert_true(fake_cuda_fail("cuFuncSetAttribute", 1, 999));
    assert_fails(bp_cuda_kernel_allow_shared(b.kernel, &bytes), BP_ERR_DEVICE, "shared memory");
    assert_ok(bp_cuda_kernel_allow_shared(b.kernel, &bytes));
    assert_int_equal(bytes, 232448 - 1024);
    grid.shared_bytes = bytes;
    assert_ok(bp_cuda_launch(b.kernel, &grid, arguments, b.stream));
    assert_int_equal(bp_cuda_multiprocessors(b.device), 4);
    assert_int_equal(bp_cuda_multiprocessors(NULL), 0);
    grid.shared_bytes = bytes + 1;
    assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, b.stream), BP_ERR_DEVICE, "shared bytes");
    assert_words(&b, 1);
    end(&b);
}

/* The module keeps its device alive. */
TEST(device_destroyed_first)
{
    configure(1, 13000);
    bp_device *device = make(0);
    bp_cuda_module *module = NULL;
    assert_ok(bp_cuda_module_create(device, add_words_ptx, &module));
    bp_device_destroy(&device);
    bp_cuda_kernel *kernel = NULL;
    assert_ok(bp_cuda_module_kernel(module, ADD_WORDS, &kernel));
    bp_cuda_module_destroy(&module);
    assert_null(module);
    assert_clean();
}

/* Drivers before CUDA 12.4 load a kernel at its lookup, and lack the function to load it. */
TEST(without_loading_functions)
{
    configure(1, 13000);
    table.cuFuncLoad = NULL;
    bp_device *device = make(0);
    bp_device_destroy(&device);
    assert_clean();
}

/* ---- errors --------------------------------------------------------------------------------------------------------- */

TEST(refused_launches)
{
    configure(1, 13000);
    bench b = begin(make(0));
    add_words_work work = {(uintptr_t)b.words, WORDS, 1};
    void *arguments[] = {&work};
    for (int i = 0; i < 6; i++) {
        bp_cuda_grid grid = grid_of(3, 5);
        (i < 3 ? grid.blocks : grid.threads)[i % 3] = 0;
        assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, b.stream), BP_ERR_INVALID_ARGUMENT, "add_words",
                     "is empty");
    }
    bp_cuda_grid grid = grid_of(1, 1025);
    assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, b.stream), BP_ERR_DEVICE, "add_words",
                 "1 x 1 x 1 blocks of 1025 x 1 x 1 threads");
    grid = grid_of(1, 1);
    grid.shared_bytes = 1 << 20;
    assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, b.stream), BP_ERR_DEVICE, "1048576 shared bytes");
    assert_fails(bp_cuda_launch(NULL, &grid, arguments, b.stream), BP_ERR_INVALID_ARGUMENT, "kernel");
    assert_fails(bp_cuda_launch(b.kernel, NULL, arguments, b.stream), BP_ERR_INVALID_ARGUMENT, "grid");
    assert_fails(bp_cuda_launch(b.kernel, &grid, arguments, NULL), BP_ERR_INVALID_ARGUMENT, "the stream is NULL");
    bp_stream *gone, *copy;
    assert_ok(bp_stream_create(b.device, "gone", &gone));
    copy = gone;
    bp_stream_destroy(&gone);
    assert_fails(add(&b, 1, copy), BP_ERR_INVALID_ARGUMENT, "gone", "destroyed");
    assert_words(&b, 0);
    end(&b);
}

TEST(each_call_fails)
{
    static const struct {
        const char *function;
        int error;
        bp_status status;
        const char *words;
    } cases[] = {
        {"cuModuleLoadData", 209, BP_ERR_UNSUPPORTED, "no code for device 0"},
        {"cuModuleLoadData", 218, BP_ERR_UNSUPPORTED, "PTX"},
        {"cuModuleLoadData", 221, BP_ERR_UNSUPPORTED, "PTX"},
        {"cuModuleLoadData", 222, BP_ERR_UNSUPPORTED, "driver, of CUDA 13.0"},
        {"cuModuleLoadData", 223, BP_ERR_UNSUPPORTED, "PTX"},
        {"cuModuleLoadData", 2, BP_ERR_NO_DEVICE_MEMORY, "loading kernels"},
        {"cuModuleLoadData", 999, BP_ERR_DEVICE, "999"},
        {"cuModuleGetFunction", 999, BP_ERR_DEVICE, "loading a kernel"},
        {"cuModuleGetFunction", 500, BP_ERR_INVALID_ARGUMENT, "add_words"},
        {"cuFuncLoad", 2, BP_ERR_NO_DEVICE_MEMORY, "loading a kernel"},
        {"cuLaunchKernel", 719, BP_ERR_DEVICE, "CUDA_ERROR_LAUNCH_FAILED"},
        {"cuLaunchKernel", 400, BP_OK, ""}, /* once: the second call is fine */
        {"cuCtxPushCurrent", 999, BP_ERR_DEVICE, "current"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        configure(1, 13000);
        bench b = begin(make(0));
        bp_cuda_module *module = NULL;
        bp_cuda_kernel *kernel = NULL;
        const bp_cuda_grid grid = grid_of(WORDS / 256, 256);
        add_words_work work = {(uintptr_t)b.words, WORDS, 1};
        void *arguments[] = {&work};
        assert_true(fake_cuda_fail(cases[i].function, 1, cases[i].error));
        char *image = strdup(add_words_ptx); /* loaded again */
        bp_status status = bp_cuda_module_create(b.device, image, &module);
        if (status == BP_OK)
            status = bp_cuda_module_kernel(module, ADD_WORDS, &kernel);
        if (status == BP_OK)
            status = bp_cuda_launch(kernel, &grid, arguments, b.stream);
        assert_int_equal(status, cases[i].status);
        if (status != BP_OK && strstr(bp_error_detail(), cases[i].words) == NULL)
            fail_msg("\"%s\" does not say \"%s\"", bp_error_detail(), cases[i].words);
        assert_words(&b, status == BP_OK ? 1 : 0);
        bp_cuda_module_destroy(&module);
        end(&b);
        free(image);
    }
}

/* The code that the driver takes decides, not the newest of the image: the error names both versions, the GPU and what to do. */
TEST(images_and_drivers)
{
    static const image_code of_12[] = {{80, ELF_OF_CUDA_12, 0, 0, 0},
                                       {90, ELF_OF_CUDA_12, 0, 0, 0},
                                       {100, ELF_OF_CUDA_13, 0, 0, 0},
                                       {80, 0, 7, 0, 0},
                                       {0}};
    static const image_code of_13[] = {
        {80, ELF_OF_CUDA_13, 0, 0, 0}, {90, ELF_OF_CUDA_13, 0, 0, 0}, {80, 0, 9, 0, 0}, {0}};
    static const image_code both[] = {
        {80, ELF_OF_CUDA_13, 0, 0, 0}, {90, ELF_OF_CUDA_13, 0, 0, 0}, {80, 0, 7, 0, 0}, {0}};
    static const image_code zstd[] = {{90, ELF_OF_CUDA_12, 0, 0, ZSTD}, {80, 0, 7, 0, ZSTD}, {0}};
    static const image_code ptx_9_1[] = {{80, 0, 9, 1, 0}, {0}};
    static const image_code two_ptx[] = {{90, 0, 8, 3, 0}, {80, 0, 7, 0, 0}, {0}};
    static const struct {
        const image_code *image;
        int version, major, minor;
        const char *words; /* NULL: it loads */
    } cases[] = {
        {of_12, 12000, 8, 0, NULL},
        {of_12, 12000, 8, 9, NULL},
        {of_12, 12000, 9, 0, NULL},
        {of_12, 12080, 10, 0, NULL},
        {of_12, 12090, 10, 3, NULL},
        {of_12, 13000, 11, 0, NULL}, /* PTX */
        {of_12, 12000, 7, 5, "has no code for device 0 (Emulated GPU, compute capability 7.5)"},
        {of_13, 13000, 9, 0, NULL},
        {of_13, 13000, 12, 0, NULL},
        {of_13, 12090, 9, 0,
         "code for device 0 (Emulated GPU, compute capability 9.0) needs a driver of CUDA 13.0 (580) or later, and "
         "this "
         "one is of CUDA 12.9 (200); update the driver, or compile the kernels for drivers of CUDA 12.9"},
        {both, 12020, 9, 0, NULL}, /* PTX */
        {both, 12020, 8, 6, NULL},
        {both, 12020, 7, 5, "has no code for device 0"},
        {of_13, 12020, 8, 6, "code for device 0 (Emulated GPU, compute capability 8.6) needs a driver of CUDA 13.0"},
        {of_13, 12080, 12, 0,
         "PTX for device 0 (Emulated GPU, compute capability 12.0) needs a driver of CUDA 13.0 (580)"},
        {ptx_9_1, 13000, 9, 0, "needs a driver of CUDA 13.1 (590) or later, and this one is of CUDA 13.0 (222)"},
        {ptx_9_1, 13010, 9, 0, NULL},
        {two_ptx, 12020, 9, 0, NULL}, /* the older PTX */
        {two_ptx, 12030, 9, 0, NULL},
        {zstd, 12040, 9, 0, NULL},
        {zstd, 12030, 9, 0, "needs a driver of CUDA 12.4 (550) or later, and this one is of CUDA 12.3 (200)"},
        {zstd, 12000, 8, 0, "PTX for device 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char image[IMAGE_BYTES];
        bp_cuda_module *module = NULL;
        configure(1, cases[i].version);
        fake_cuda_set_attribute(75, cases[i].major);
        fake_cuda_set_attribute(76, cases[i].minor);
        bp_device *device = make(0);
        make_fatbin(image, cases[i].image);
        if (cases[i].words == NULL)
            assert_ok(bp_cuda_module_create(device, image, &module));
        else
            assert_fails(bp_cuda_module_create(device, image, &module), BP_ERR_UNSUPPORTED, cases[i].words);
        bp_cuda_module_destroy(&module);
        bp_device_destroy(&device);
        assert_clean();
    }
}

/* Wrong sizes in the headers: code beyond the end does not count, and the search ends. */
TEST(damaged_fatbins)
{
    static const struct {
        unsigned place, bytes; /* of the field */
        uint64_t value;
        const char *words;
    } cases[] = {
        {8, 8, 127, "has no code for device 0"},              /* of all entries: one byte less */
        {16 + 4, 4, 65, "has no code for device 0"},          /* of the entry's header */
        {16 + 4, 4, 47, "has no code for device 0"},          /* shorter than a header is */
        {16 + 8, 8, 65, "has no code for device 0"},          /* of the entry's code */
        {16 + 8, 8, UINT64_MAX - 63, "no code for device 0"}, /* with the header's 64 bytes 0 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char image[IMAGE_BYTES];
        bp_cuda_module *module = NULL;
        configure(1, 13000);
        bp_device *device = make(0);
        make_fatbin(image, (image_code[]){{90, ELF_OF_CUDA_12, 0, 0, 0}, {0}});
        put_bytes(image + cases[i].place, cases[i].value, cases[i].bytes);
        if (cases[i].value > UINT32_MAX)
            put_bytes(image + 8, UINT64_MAX, 8);
        assert_fails(bp_cuda_module_create(device, image, &module), BP_ERR_UNSUPPORTED, cases[i].words);
        bp_device_destroy(&device);
        assert_clean();
    }
}

/* Of text that the library does not know, the driver's error counts. */
TEST(other_images)
{
    bp_cuda_module *module = NULL;
    configure(1, 13000);
    bp_device *device = make(0);
    assert_fails(bp_cuda_module_create(device, "other", &module), BP_ERR_INVALID_ARGUMENT,
                 "neither a fatbin nor a cubin nor PTX (200)");
    assert_true(fake_cuda_fail("cuModuleLoadData", 1, 2));
    assert_fails(bp_cuda_module_create(device, "other", &module), BP_ERR_NO_DEVICE_MEMORY, "loading kernels");
    assert_fails(bp_cuda_module_create(device, "/* no end", &module), BP_ERR_INVALID_ARGUMENT, "neither");
    assert_ok(bp_cuda_module_create(device, "/* by hand: **/ // or not\n.version 7.0\n.target sm_80\n", &module));
    bp_cuda_module_destroy(&module);
    bp_device_destroy(&device);
    assert_clean();
}

/* Each version of PTX with the release of CUDA that added it: PTX ISA, release history. */
TEST(versions_of_ptx)
{
    static const struct {
        const char *version;
        int driver;
    } cases[] = {{"7.8", 12000}, {"8.0", 12000}, {"8.1", 12010}, {"8.2", 12020}, {"8.3", 12030}, {"8.4", 12040},
                 {"8.5", 12050}, {"8.6", 12070}, {"8.7", 12080}, {"8.8", 12090}, {"9.0", 13000}, {"9.1", 13010}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int older = 0; older <= (cases[i].driver > 12000); older++) {
            char text[64], words[64];
            bp_cuda_module *module = NULL;
            snprintf(text, sizeof text, ".version %s\n.target sm_80\n", cases[i].version);
            snprintf(words, sizeof words, "needs a driver of CUDA %d.%d (", cases[i].driver / 1000,
                     cases[i].driver % 1000 / 10);
            configure(1, !older ? cases[i].driver : cases[i].driver == 13000 ? 12090 : cases[i].driver - 10);
            bp_device *device = make(0);
            if (older)
                assert_fails(bp_cuda_module_create(device, text, &module), BP_ERR_UNSUPPORTED, words);
            else
                assert_ok(bp_cuda_module_create(device, text, &module));
            bp_cuda_module_destroy(&module);
            bp_device_destroy(&device);
        }
}
