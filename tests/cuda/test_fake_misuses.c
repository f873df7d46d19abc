/* SPDX-License-Identifier: Apache-2.0 */
/* Detection of misuse that causes no error: one test for each misuse of rules.h, by name. Unmapped memory faults. */
#include "fake_support.h"

#include "rules.h"
#include "support/add_words.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES 65536u

static const char *kernels_library;
static int answer;

static void call_the_driver(void *argument)
{
    answer = cuStreamSynchronize(argument);
}

static void host_functions_call_no_driver(void *stream)
{
    okay(cuLaunchHostFunc(stream, call_the_driver, stream));
    okay(cuStreamSynchronize(stream));
    assert_int_equal(answer, 800);
}

static void handles_end_with_their_objects(void *stream)
{
    void *event, *other;
    okay(cuEventCreate(&event, 2));
    okay(cuEventDestroy_v2(event));
    assert_int_equal(cuEventRecord(event, stream), 400);
    okay(cuStreamCreate(&other, 1));
    okay(cuStreamDestroy_v2(other));
    assert_int_equal(cuStreamSynchronize(other), 400);
}

static void contexts_outlive_their_use(void *stream)
{
    void *other, *popped;
    okay(cuDevicePrimaryCtxRetain(&other, 1));
    okay(cuCtxPushCurrent_v2(other));
    okay(cuDevicePrimaryCtxRelease_v2(1));
    assert_int_equal(cuCtxSynchronize(), 709);
    okay(cuCtxPopCurrent_v2(&popped));
}

static void contexts_end_empty(void *stream)
{
    void *other, *popped, *left;
    uint64_t address;
    okay(cuDevicePrimaryCtxRetain(&other, 1));
    okay(cuCtxPushCurrent_v2(other));
    okay(cuStreamCreate(&left, 1));
    okay(cuMemAlloc_v2(&address, 100));
    okay(cuCtxPopCurrent_v2(&popped));
    okay(cuDevicePrimaryCtxRelease_v2(1));
    assert_non_null(strstr(fake_cuda_broken(), "released with 2 objects"));
    assert_int_equal(fake_cuda_used(1), 0);
    assert_int_equal(cuStreamSynchronize(left), 400);
    assert_int_equal(cuMemFree_v2(address), 1);
}

static void captured_streams_stay(void *stream)
{
    void *other;
    okay(cuStreamCreate(&other, 1));
    okay(cuStreamBeginCapture_v2(other, 0));
    okay(cuStreamDestroy_v2(other));
}

static void physical_handles_are_released_once(void *stream)
{
    unsigned long long handle;
    okay(cuMemCreate(&handle, BYTES, &on_device, 0));
    okay(cuMemRelease(handle));
    assert_int_equal(cuMemRelease(handle), 1);
}

static void memory_is_freed_once(void *stream)
{
    uint64_t address;
    okay(cuMemAllocAsync(&address, 100, stream));
    okay(cuMemFreeAsync(address, stream));
    assert_int_equal(cuMemFreeAsync(address, stream), 1);
}

static void freed_memory_is_not_used(void *stream)
{
    atomic_int open = 0;
    uint64_t address;
    okay(cuMemAllocAsync(&address, 100, stream));
    okay(cuLaunchHostFunc(stream, wait_at_gate, &open));
    okay(cuMemFreeAsync(address, stream));
    assert_int_equal(cuMemsetD8Async(address, 1, 100, stream), 1);
    atomic_store(&open, 1);
    okay(cuStreamSynchronize(stream));
}

static void work_has_access(void *stream)
{
    unsigned long long handle;
    uint64_t address;
    okay(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    assert_int_equal(cuMemsetD8Async(address, 1, 100, stream), 1);
    okay(cuMemCreate(&handle, BYTES, &on_device, 0));
    okay(cuMemMap(address, BYTES, 0, handle, 0));
    assert_int_equal(cuMemsetD8Async(address, 1, 100, stream), 1);
    okay(cuMemSetAccess(address, BYTES, &(bp_cu_access){.location_type = 1, .location_id = 1, .flags = 3}, 1));
    assert_int_equal(cuMemsetD8Async(address, 1, 100, stream), 1);
    okay(cuMemSetAccess(address, BYTES, &for_device, 1));
    okay(cuMemsetD8Async(address, 1, 100, stream));
    okay(cuStreamSynchronize(stream));
    unmap_memory(address, BYTES, handle);
}

static void *module, *kernel;

static int launch_adder(uint64_t address, void *stream)
{
    add_words_work work = {address, 1, 1};
    void *arguments[] = {&work};
    return cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static void modules_outlive_their_launches(void *stream)
{
    atomic_int open = 0;
    uint64_t address;
    okay(cuMemAlloc_v2(&address, 100));
    okay(cuModuleLoadData(&module, add_words_ptx));
    okay(cuModuleGetFunction(&kernel, module, ADD_WORDS));
    okay(cuLaunchHostFunc(stream, wait_at_gate, &open));
    okay(launch_adder(address, stream));
    okay(cuModuleUnload(module));
    atomic_store(&open, 1);
    okay(cuMemFree_v2(address));
}

static void kernels_are_loaded_before_captures(void *stream)
{
    uint64_t address;
    void *graph;
    okay(cuMemAlloc_v2(&address, 100));
    okay(cuModuleLoadData(&module, add_words_ptx));
    okay(cuModuleGetFunction(&kernel, module, ADD_WORDS));
    okay(cuStreamBeginCapture_v2(stream, 0));
    okay(launch_adder(address, stream));
    okay(cuStreamEndCapture(stream, &graph));
    okay(cuGraphDestroy(graph));
    okay(cuModuleUnload(module));
    okay(cuMemFree_v2(address));
}

static void registered_memory_stays_mapped(void *stream)
{
    unsigned long long handle;
    uint64_t address = map_memory(BYTES, &handle);
    fake_cuda_mark_registered(address, BYTES, true);
    fake_cuda_mark_registered(address, BYTES, false);
    okay(cuMemUnmap(address, BYTES));
    assert_string_equal(fake_cuda_broken(), "");
    okay(cuMemMap(address, BYTES, 0, handle, 0));
    fake_cuda_mark_registered(address, BYTES, true);
    okay(cuMemUnmap(address, BYTES));
    fake_cuda_mark_registered(address, BYTES, false);
    okay(cuMemRelease(handle));
    okay(cuMemAddressFree(address, BYTES));
}

static const struct {
    const char *id;
    void (*function)(void *stream);
} misuses[] = {
#define ROW(id, sentence, source) {#id, id},
    BP_CUDA_MISUSES(ROW)
#undef ROW
};

TEST(misuses_are_seen)
{
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.devices = 2;
    config.kernels = kernels_library;
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++) {
        void *stream;
        (void)start_driver(&config);
        okay(cuStreamCreate(&stream, 1));
        assert_string_equal(fake_cuda_broken(), "");
        misuses[i].function(stream);
        assert_memory_equal(fake_cuda_broken(), misuses[i].id, strlen(misuses[i].id));
        fake_cuda_forgive();
        okay(cuStreamDestroy_v2(stream));
        stop_driver();
    }
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

/* True if a process that runs this dies. */
static bool is_deadly(void (*function)(void))
{
    pid_t child = fork();
    if (child == 0) {
        int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
        (void)dup2(nowhere, STDERR_FILENO);
        (void)setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        function();
        _exit(0);
    }
    int status = 0;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

/* 0 if the run succeeded and the process lives. */
static void demand(int result)
{
    if (result != 0)
        _exit(0); /* the test fails: another death was expected */
}

static int host_faults;

static uint64_t child_memory(void **stream)
{
    fake_cuda_config config;
    void *context;
    unsigned long long handle;
    uint64_t address = 0;
    fake_cuda_config_init(&config);
    config.host_faults = host_faults;
    fake_cuda_configure(&config);
    demand(cuInit(0));
    demand(cuDevicePrimaryCtxRetain(&context, 0));
    demand(cuCtxPushCurrent_v2(context));
    demand(cuStreamCreate(stream, 1));
    demand(cuMemAddressReserve(&address, BYTES, 0, 0, 0));
    demand(cuMemCreate(&handle, BYTES, &on_device, 0));
    demand(cuMemMap(address, BYTES, 0, handle, 0));
    return address;
}

static void touch(uint64_t address)
{
    *(volatile unsigned char *)fake_at(address) = 1;
}

static void touch_without_access(void)
{
    void *stream;
    touch(child_memory(&stream));
}

static void touch_with_access(void)
{
    void *stream;
    uint64_t address = child_memory(&stream);
    if (cuMemSetAccess(address, BYTES, &for_device, 1) != 0)
        abort();
    touch(address);
    touch(address + BYTES - 1);
}

static void touch_after_access(void)
{
    void *stream;
    uint64_t address = child_memory(&stream);
    demand(cuMemSetAccess(address, BYTES, &for_device, 1));
    demand(cuMemSetAccess(address, BYTES, &(bp_cu_access){.location_type = 1}, 1));
    touch(address);
}

/* Work writes, and the host reads only the view. */
static void look_at_the_view(void)
{
    void *stream;
    uint64_t address = child_memory(&stream), plain = 0;
    if (cuMemSetAccess(address, BYTES, &for_device, 1) != 0 || cuMemAlloc_v2(&plain, 100) != 0 ||
        cuMemsetD8Async(address, 3, BYTES, stream) != 0 || cuMemcpyAsync(plain, address, 100, stream) != 0 ||
        cuStreamSynchronize(stream) != 0)
        abort();
    const unsigned char *mapped = fake_cuda_view(address + 77), *allocated = fake_cuda_view(plain + 99);
    if (*mapped != 3 || *allocated != 3)
        abort();
}

static void touch_allocation(void)
{
    void *stream;
    uint64_t plain;
    (void)child_memory(&stream);
    demand(cuMemAlloc_v2(&plain, 100));
    touch(plain);
}

static void touch_unmapped(void)
{
    void *stream;
    uint64_t address = child_memory(&stream);
    demand(cuMemSetAccess(address, BYTES, &for_device, 1));
    demand(cuMemUnmap(address, BYTES));
    touch(address);
}

static void unmap_under_work(void)
{
    static atomic_int open;
    void *stream;
    uint64_t address = child_memory(&stream);
    demand(cuMemSetAccess(address, BYTES, &for_device, 1));
    demand(cuLaunchHostFunc(stream, wait_at_gate, &open));
    demand(cuMemsetD8Async(address, 1, BYTES, stream));
    demand(cuMemUnmap(address, BYTES));
    atomic_store(&open, 1);
    (void)cuStreamSynchronize(stream);
}

static void launch_over_unmapped(void)
{
    void *stream, *graph, *executable;
    uint64_t address = child_memory(&stream);
    demand(cuMemSetAccess(address, BYTES, &for_device, 1));
    demand(cuStreamBeginCapture_v2(stream, 0));
    demand(cuMemsetD8Async(address, 1, BYTES, stream));
    demand(cuStreamEndCapture(stream, &graph));
    demand(cuGraphInstantiateWithFlags(&executable, graph, 0));
    demand(cuMemUnmap(address, BYTES));
    demand(cuGraphLaunch(executable, stream));
    (void)cuStreamSynchronize(stream);
}

/* Another stream uses memory before its allocating stream has reached the allocation. */
static void use_before_allocation(void)
{
    static atomic_int open;
    void *stream, *other;
    uint64_t ordered;
    (void)child_memory(&stream);
    demand(cuStreamCreate(&other, 1));
    demand(cuLaunchHostFunc(stream, wait_at_gate, &open));
    demand(cuMemAllocAsync(&ordered, 100, stream));
    demand(cuMemsetD8Async(ordered, 1, 100, other));
    (void)cuStreamSynchronize(other);
}

TEST(memory_faults)
{
    fake_cuda_reset();
    assert_true(is_deadly(touch_without_access));
    assert_false(is_deadly(touch_with_access));
    assert_true(is_deadly(touch_unmapped));
    assert_true(is_deadly(touch_after_access));
    assert_true(is_deadly(unmap_under_work));
    assert_true(is_deadly(launch_over_unmapped));
    assert_true(is_deadly(use_before_allocation));
}

TEST(the_host_faults_when_it_should)
{
    fake_cuda_reset();
    assert_false(is_deadly(look_at_the_view));
    assert_false(is_deadly(touch_allocation));
    host_faults = 1;
    assert_false(is_deadly(look_at_the_view));
    assert_true(is_deadly(touch_with_access));
    assert_true(is_deadly(touch_allocation));
    assert_true(is_deadly(unmap_under_work));
    assert_true(is_deadly(launch_over_unmapped));
    assert_true(is_deadly(use_before_allocation));
    host_faults = 0;
}

TEST(new_memory_is_dirty)
{
    unsigned long long handle;
    (void)start_default_driver();
    uint64_t address = map_memory(BYTES, &handle);
    const unsigned char *bytes = fake_at(address);
    for (size_t i = 0; i < BYTES; i += 4095)
        assert_int_not_equal(bytes[i], 0);
    unmap_memory(address, BYTES, handle);
    stop_driver();
}

int main(int count, char **arguments)
{
    kernels_library = count > 1 ? arguments[1] : NULL;
    return run_suite();
}
