/* SPDX-License-Identifier: Apache-2.0 */
// Decorator of PyTorch's allocator for the CPU: allocations of the planned step come from one mapping, whose pages stay.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

#include "decorator_device.h"
#include "forwarding.h"

namespace
{

using bucketpool::Device;

Device &cpu = *new Device; // for tensors that outlive the library's other objects
Forwarding *installed = nullptr;

struct Mapping final : bucketpool::Source {
    char *take(int, uint64_t bytes, std::string *because) override
    {
        void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            *because = "no " + std::to_string(bytes) + " bytes for the slab: " + std::strerror(errno);
            return nullptr;
        }
        madvise(memory, bytes, MADV_HUGEPAGE);
        cpu.counts.reserve(bytes, true);
        return static_cast<char *>(memory);
    }
    bool may_take(int) override
    {
        return true;
    }
    void give_back(int, char *slab, uint64_t bytes) override
    {
        munmap(slab, bytes);
        cpu.counts.reserve(bytes, false);
    }
};

std::atomic<bool> is_child{false}; // of a fork: locks may be held by threads that it lacks
std::atomic<bool> is_poisoning{false};
std::atomic<bool> is_tracking{false}; // memory that PyTorch's allocator gives is counted

// Both kinds of memory, since PyTorch may free through raw_deleter() whatever it allocated.
void release(void *pointer)
{
    if (!cpu.has(pointer)) {
        installed->native->raw_deleter()(pointer);
        return;
    }
    if (is_child)
        return; // its copy of the slab ends with it
    if (is_poisoning) {
        bp_step_block block;
        if (bp_step_server_find(cpu.server, cpu.offset_of(pointer), &block) && block.offset == cpu.offset_of(pointer))
            std::memset(pointer, 0xee, block.bytes);
    }
    cpu.recording.freed(pointer);
    c10::profiledCPUMemoryReporter().Delete(pointer);
    cpu.free(pointer);
}

// Frees what PyTorch's allocator gave while it was tracked.
void release_tracked(void *pointer)
{
    if (!is_child) {
        const uint64_t bytes = malloc_usable_size(pointer);
        cpu.recording.freed(pointer);
        cpu.counts.subtract(bytes, false, false);
        cpu.counts.reserve(bytes, false);
    }
    installed->native->raw_deleter()(pointer);
}

struct Decorator final : Forwarding {
    using Forwarding::Forwarding;

    c10::DataPtr allocate(size_t bytes) override
    {
        if (bytes == 0 || is_child || !is_tracking.load(std::memory_order_acquire))
            return native->allocate(bytes);
        if (char *memory = cpu.allocate(bytes, 0)) {
            cpu.recording.allocated(memory, bytes, 0);
            c10::profiledCPUMemoryReporter().New(memory, bytes);
            return {memory, memory, &release, c10::Device(c10::kCPU)};
        }
        c10::DataPtr data = native->allocate(bytes);
        if (data.compare_exchange_deleter(native->raw_deleter(), &release_tracked)) {
            const uint64_t usable = malloc_usable_size(data.get());
            cpu.counts.add(usable, false, false);
            cpu.counts.reserve(usable, true);
            cpu.recording.allocated(data.get(), bytes, 0);
        }
        return data;
    }
    c10::DeleterFnPtr raw_deleter() const override
    {
        return &release;
    }
};

void after_fork()
{
    is_child = true;
}

} // namespace

extern "C" {

const char *bp_decorator_error(void)
{
    return bucketpool::last_error.c_str();
}

int bp_decorator_install(void)
{
    if (installed != nullptr)
        return 0;
    c10::Allocator *found = c10::GetCPUAllocator();
    if (found->raw_deleter() == nullptr)
        return bucketpool::fail("the CPU's allocator has no deleter; another library has replaced it");
    installed = new Decorator(found);
    cpu.source = new Mapping;
    pthread_atfork(nullptr, nullptr, after_fork);
    c10::SetCPUAllocator(installed, 255);
    return 0;
}

int bp_decorator_record(int)
{
    cpu.recording.begin();
    is_tracking = true;
    return 0;
}

size_t bp_decorator_events(int, const bp_step_event **events)
{
    return cpu.recording.copy(events);
}

void bp_decorator_forget(int)
{
    cpu.recording.end();
}

int bp_decorator_serve(int, const bp_step_plan *plan, uint64_t wait_bytes)
{
    is_tracking = true;
    return cpu.serve(plan, nullptr, wait_bytes);
}

int bp_decorator_replace(int, const bp_step_plan *plan)
{
    return cpu.replace(plan);
}

void bp_decorator_stop(int)
{
    cpu.stop();
}
void bp_decorator_mark(int)
{
    cpu.mark();
}
bp_step_server *bp_decorator_server(int)
{
    return cpu.server;
}
void bp_decorator_poison(int is_on)
{
    is_poisoning = is_on != 0;
}

void bp_decorator_get_status(int, bp_decorator_status *status)
{
    cpu.get_status(status);
}

void bp_decorator_reset_peak(int)
{
    cpu.counts.reset_own_peaks();
}
}
