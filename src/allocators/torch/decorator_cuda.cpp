/* SPDX-License-Identifier: Apache-2.0 */
// Decorator of PyTorch's caching allocator for CUDA: allocations of the planned step come from a slab, which is one block of the
// caching allocator. Segments, limits, out-of-memory errors, IPC and registration with NCCL therefore stay PyTorch's; so does
// everything that is allocated while a graph is captured or into a MemPool.
#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <pthread.h>

#include "decorator_device.h"
#include "decorator_history.h"
#include "decorator_streams.h"
#include "forwarding.h"

namespace
{

namespace native = c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::cuda::CUDAStream;
using c10::cuda::MempoolId_t;

enum { DEVICES = 64, SMALL_BYTES = 1 << 20 };

// ---- devices -------------------------------------------------------------------------------------------------------

void track(const native::TraceEntry &entry);

struct Pool {
    MempoolId_t id;
    std::function<bool(cudaStream_t)> has;
};

struct Gpu : bucketpool::Device {
    bucketpool::Streams streams;
    bucketpool::History history;
    std::atomic<bool> has_served{false}; // a slab was taken
    bucketpool::Level slabs;             // bytes of slabs, under counts.lock
    uint64_t slabs_taken = 0, slabs_given_back = 0;
    std::mutex pools_lock;
    std::vector<Pool> pools; // into which some streams allocate now
    std::atomic<uint32_t> pool_count{0};

    std::atomic<bool> is_attached{false};

    // Begins to follow the device, at its first allocation: PyTorch has initialised CUDA. What other threads do meanwhile is missed by
    // the sums.
    void attach(native::CUDAAllocator *allocator)
    {
        if (is_attached)
            return;
        static std::once_flag once;
        std::call_once(once, [&] { allocator->attachAllocatorTraceTracker(track); });
        std::lock_guard<std::mutex> guard(lock);
        if (is_attached)
            return;
        const auto stats = allocator->getDeviceStats(static_cast<DeviceIndex>(number));
        std::lock_guard<std::mutex> counting(counts.lock);
        for (bool is_large : {false, true}) {
            bucketpool::Amounts &sum = is_large ? counts.large : counts.all;
            const size_t type = is_large ? 2 : 0;
            sum.taken.add(static_cast<uint64_t>(stats.allocated_bytes[type].current));
            sum.requested.add(static_cast<uint64_t>(stats.requested_bytes[type].current));
            sum.blocks.add(static_cast<uint64_t>(stats.allocation[type].current));
        }
        counts.reserved.add(static_cast<uint64_t>(stats.reserved_bytes[0].current));
        is_attached = true;
    }

    bool is_in_pool(cudaStream_t stream)
    {
        if (pool_count.load(std::memory_order_acquire) == 0)
            return false;
        std::lock_guard<std::mutex> guard(pools_lock);
        for (const Pool &pool : pools) {
            if (pool.has(stream))
                return true;
        }
        return false;
    }
};

Gpu (&gpus)[DEVICES] = *reinterpret_cast<Gpu (*)[DEVICES]>(new Gpu[DEVICES]); // for tensors that outlive other objects
std::atomic<uint64_t> tracked{0};                       // devices that record or serve, a bit each
std::atomic<uintptr_t> lowest{UINTPTR_MAX}, highest{0}; // of all slabs: most pointers are outside
std::atomic<bool> is_child{false};                      // of a fork, which cannot use CUDA
std::atomic<bool> is_cache_on{true};
thread_local bool is_slab_changing = false; // the tracker leaves the slab out

// The device of a slab's pointer, or nullptr.
Gpu *owner_of(const void *pointer)
{
    auto address = reinterpret_cast<uintptr_t>(pointer);
    if (address < lowest.load(std::memory_order_relaxed) || address >= highest.load(std::memory_order_relaxed))
        return nullptr;
    for (Gpu &gpu : gpus) {
        if (gpu.has(pointer))
            return &gpu;
    }
    return nullptr;
}

bool is_tracked(int device)
{
    return tracked.load(std::memory_order_acquire) >> device & 1;
}

// ---- the decorator -------------------------------------------------------------------------------------------------

void release(void *pointer);

struct Decorator final : Forwarding, bucketpool::Source {
    explicit Decorator(native::CUDAAllocator *allocator) : Forwarding(allocator)
    {
    }

    using Forwarding::recordStream;

    c10::DataPtr served(Gpu &gpu, char *memory, size_t bytes)
    {
        c10::Device device(c10::kCUDA, static_cast<DeviceIndex>(gpu.number));
        if (gpu.history.is_recording())
            gpu.history.allocated(memory, bytes, c10::cuda::getCurrentCUDAStream(device.index()).stream());
        if (c10::memoryProfilingEnabled())
            report(gpu, memory, static_cast<int64_t>(bp_step_round(bytes)));
        if (const auto *trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr))
            (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(memory));
        return {memory, memory, &release, device};
    }

    // For torch.profiler with profile_memory.
    void report(Gpu &gpu, void *pointer, int64_t bytes)
    {
        auto stats = getDeviceStats(static_cast<DeviceIndex>(gpu.number));
        c10::reportMemoryUsageToProfiler(pointer, bytes, static_cast<size_t>(stats.allocated_bytes[0].current),
                                         static_cast<size_t>(stats.reserved_bytes[0].current),
                                         c10::Device(c10::kCUDA, static_cast<DeviceIndex>(gpu.number)));
    }

    c10::DataPtr allocate(size_t bytes) override
    {
        DeviceIndex device = 0;
        if (bytes == 0 || tracked.load(std::memory_order_acquire) == 0 || is_child || !is_cache_on)
            return native->allocate(bytes);
        C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
        const CUDAStream stream = c10::cuda::getCurrentCUDAStream(device);
        Gpu &gpu = gpus[device];
        if (!is_tracked(device) || gpu.is_in_pool(stream.stream()))
            return native->allocate(bytes);
        gpu.attach(native);
        const uint32_t number = gpu.streams.number_of(stream);
        if (number < BP_STEP_STREAMS) {
            if (char *memory = gpu.allocate(bytes, number)) {
                gpu.recording.allocated(memory, bytes, number);
                return served(gpu, memory, bytes);
            }
        }
        c10::DataPtr data = allocate_natively(gpu, bytes, number);
        if (number < BP_STEP_STREAMS && !gpu.has(data.get()))
            gpu.recording.allocated(data.get(), bytes, number);
        return data;
    }

    // Before an allocation fails, free ranges of the slab serve it.
    c10::DataPtr allocate_natively(Gpu &gpu, size_t bytes, uint32_t stream)
    {
        if (gpu.slab.load() == nullptr || stream >= BP_STEP_STREAMS)
            return native->allocate(bytes);
        try {
            return native->allocate(bytes);
        } catch (const c10::OutOfMemoryError &) {
            char *memory = gpu.allocate_anywhere(bytes, stream);
            if (memory == nullptr)
                throw;
            gpu.recording.allocated(memory, bytes, stream);
            return served(gpu, memory, bytes);
        }
    }

    void raw_delete(void *pointer) override
    {
        if (owner_of(pointer) != nullptr)
            release(pointer);
        else
            native->raw_delete(pointer);
    }

    void recordStream(const c10::DataPtr &data, CUDAStream stream) override
    {
        Gpu *gpu = owner_of(data.get());
        if (gpu == nullptr)
            return native->recordStream(data, stream);
        const uint32_t number = gpu->streams.number_of(stream);
        const uint64_t offset = gpu->offset_of(data.get());
        bp_step_block block;
        if (number < BP_STEP_STREAMS) {
            TORCH_CHECK(bp_step_server_use(gpu->server, offset, number) == BP_OK, "bucketpool: ", bp_error_detail());
        } else if (bp_step_server_find(gpu->server, offset, &block) && block.offset <= offset) {
            gpu->streams.use(gpu->slab.load() + block.offset, stream.stream());
        }
    }

    // For PyTorch's allocator the slab is one block.
    const void *block_of(const void *pointer) override
    {
        Gpu *gpu = owner_of(pointer);
        return gpu != nullptr ? gpu->slab.load() : pointer;
    }

    void *getBaseAllocation(void *pointer, size_t *size) override
    {
        return native->getBaseAllocation(const_cast<void *>(block_of(pointer)), size);
    }

    native::ShareableHandle shareIpcHandle(void *pointer) override
    {
        Gpu *gpu = owner_of(pointer);
        if (gpu == nullptr)
            return native->shareIpcHandle(pointer);
        native::ShareableHandle handle = native->shareIpcHandle(gpu->slab);
        handle.offset += static_cast<ptrdiff_t>(gpu->offset_of(pointer));
        return handle;
    }

    void beginAllocateToPool(DeviceIndex device, MempoolId_t id, std::function<bool(cudaStream_t)> filter) override
    {
        native->beginAllocateToPool(device, id, filter); // may fail
        Gpu &gpu = gpus[device];
        std::lock_guard<std::mutex> guard(gpu.pools_lock);
        gpu.pools.push_back({id, std::move(filter)});
        gpu.pool_count++;
    }

    void endAllocateToPool(DeviceIndex device, MempoolId_t id) override
    {
        native->endAllocateToPool(device, id);
        Gpu &gpu = gpus[device];
        std::lock_guard<std::mutex> guard(gpu.pools_lock);
        for (auto pool = gpu.pools.begin(); pool != gpu.pools.end(); ++pool) {
            if (pool->id == id) {
                gpu.pools.erase(pool);
                gpu.pool_count--;
                break;
            }
        }
    }

    void enable(bool value) override
    {
        is_cache_on = value;
        native->enable(value);
    }

    // ---- statistics ----

    void resetPeakStats(DeviceIndex device) override
    {
        native->resetPeakStats(device);
        gpus[device].counts.reset_peaks();
    }

    void resetAccumulatedStats(DeviceIndex device) override
    {
        native->resetAccumulatedStats(device);
        Gpu &gpu = gpus[device];
        std::lock_guard<std::mutex> guard(gpu.counts.lock);
        for (bucketpool::Level *level :
             {&gpu.counts.slab.taken, &gpu.counts.slab.requested, &gpu.counts.slab.blocks, &gpu.slabs})
            level->added = level->subtracted = 0;
        gpu.slabs_taken = gpu.slabs_given_back = 0;
    }

    // The slab is one allocation in PyTorch's statistics; here it is those that live in it. What is live now is exact. Peaks are those of
    // sums that are followed since the device records or serves, in which PyTorch's blocks have the bytes of their requests,
    // rounded: up to 1 MiB less than a block that was not split.
    native::DeviceStats counted(DeviceIndex device, native::DeviceStats stats) override
    {
        Gpu &gpu = gpus[device];
        if (!gpu.has_served)
            return stats;
        std::lock_guard<std::mutex> guard(gpu.counts.lock);
        const bucketpool::Amounts &slab = gpu.counts.slab;
        const bucketpool::Level one{gpu.slabs.now > 0, 0, gpu.slabs_taken, gpu.slabs_given_back};
        for (bool is_large : {false, true}) {
            const size_t type = is_large ? 2 : 0; // StatType::LARGE_POOL, AGGREGATE
            const bucketpool::Amounts &sum = is_large ? gpu.counts.large : gpu.counts.all;
            adjust(stats.allocated_bytes[type], slab.taken, gpu.slabs, sum.taken);
            adjust(stats.active_bytes[type], slab.taken, gpu.slabs, sum.taken);
            adjust(stats.requested_bytes[type], slab.requested, gpu.slabs, sum.requested);
            adjust(stats.allocation[type], slab.blocks, one, sum.blocks);
            adjust(stats.active[type], slab.blocks, one, sum.blocks);
        }
        return stats;
    }

    template <typename Stat>
    static void adjust(Stat &stat, const bucketpool::Level &slab, const bucketpool::Level &as_native,
                       const bucketpool::Level &sum)
    {
        stat.current += static_cast<int64_t>(slab.now) - static_cast<int64_t>(as_native.now);
        stat.allocated += static_cast<int64_t>(slab.added) - static_cast<int64_t>(as_native.added);
        stat.freed += static_cast<int64_t>(slab.subtracted) - static_cast<int64_t>(as_native.subtracted);
        stat.peak = std::max(stat.current, static_cast<int64_t>(sum.peak));
    }

    // The slab's block becomes its live allocations and the gaps between them.
    native::SnapshotInfo shown(native::SnapshotInfo info) override
    {
        for (auto &segment : info.segments) {
            size_t address = segment.address;
            decltype(segment.blocks) blocks;
            for (auto &block : segment.blocks) {
                Gpu *gpu = owner_of(reinterpret_cast<void *>(address));
                if (gpu != nullptr && gpu->offset_of(reinterpret_cast<void *>(address)) == 0)
                    show_slab(*gpu, block, &blocks, &segment);
                else
                    blocks.push_back(block);
                address += block.size;
            }
            segment.blocks = std::move(blocks);
        }
        for (size_t device = 0; device < info.device_traces.size() && device < DEVICES; device++)
            gpus[device].history.add_to(&info.device_traces[device], static_cast<DeviceIndex>(device));
        return info;
    }

    void history(bool on, native::CreateContextFn recorder, size_t max, native::RecordContext when) override
    {
        for (Gpu &gpu : gpus)
            gpu.history.turn(on, recorder, max, when);
    }

    template <typename Block, typename Segment>
    static void show_slab(Gpu &gpu, const Block &whole, std::vector<Block> *blocks, Segment *segment)
    {
        uint64_t at = 0, live = 0, requested = 0;
        bp_step_block next;
        bp_step_server *server = gpu.server;
        auto add = [&](uint64_t bytes, uint64_t request, bool is_live) {
            Block made = whole;
            made.size = bytes;
            made.requested_size = request;
            made.allocated = made.active = is_live;
            made.context_when_allocated = is_live ? gpu.history.context_of(gpu.slab.load() + next.offset) : nullptr;
            if (bytes > 0)
                blocks->push_back(std::move(made));
        };
        while (server != nullptr && bp_step_server_find(server, at, &next)) {
            add(next.offset - at, 0, false);
            add(next.bytes, next.requested_bytes, true);
            live += next.bytes;
            requested += next.requested_bytes;
            at = next.offset + next.bytes;
        }
        add(whole.size - at, 0, false);
        segment->allocated_size -= whole.size - live;
        segment->active_size -= whole.size - live;
        segment->requested_size -= whole.requested_size - requested;
    }

    // ---- slabs ----

    char *take(int device, uint64_t bytes, std::string *because) override
    {
        bucketpool::OnDevice guard(device);
        char *memory = nullptr;
        try {
            native->emptyCache();
            is_slab_changing = true;
            memory = static_cast<char *>(native->raw_alloc(bytes));
            is_slab_changing = false;
            // PyTorch orders the work of one stream on its memory; other streams' users of the slab come behind it.
            C10_CUDA_CHECK(cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(guard.wanted).stream()));
            count_slab(gpus[device], bytes, true);
            const auto begin = reinterpret_cast<uintptr_t>(memory);
            static std::mutex lock; // devices may take their slabs at the same time
            std::lock_guard<std::mutex> widening(lock);
            lowest = std::min(lowest.load(), begin);
            highest = std::max(highest.load(), begin + bytes);
            return memory;
        } catch (const c10::Error &error) {
            *because = error.what_without_backtrace();
        }
        is_slab_changing = true;
        if (memory != nullptr)
            native->raw_delete(memory);
        is_slab_changing = false;
        return nullptr;
    }

    // PyTorch uses the memory again behind the work of all streams. A slab that cannot be given back is lost.
    void give_back(int device, char *slab, uint64_t bytes) override
    {
        Gpu &gpu = gpus[device];
        const c10::Device place(c10::kCUDA, static_cast<DeviceIndex>(device));
        c10::DataPtr data(slab, slab, native->raw_deleter(), place);
        try {
            for (uint32_t i = 0; i < gpu.streams.count; i++)
                native->recordStream(data, i == 0
                                               ? c10::cuda::getDefaultCUDAStream(place.index())
                                               : c10::cuda::getStreamFromExternal(gpu.streams.all[i], place.index()));
            is_slab_changing = true;
            native->raw_delete(data.release_context());
            count_slab(gpu, bytes, false);
        } catch (const c10::Error &) {
            (void)data.release_context();
        }
        is_slab_changing = false;
    }

    // A stream that is being captured must not be waited for.
    bool may_take(int device) override
    {
        return gpus[device].pool_count == 0;
    }

    static void count_slab(Gpu &gpu, uint64_t bytes, bool is_taken)
    {
        std::lock_guard<std::mutex> guard(gpu.counts.lock);
        is_taken ? gpu.slabs.add(bytes) : gpu.slabs.subtract(bytes);
        ++(is_taken ? gpu.slabs_taken : gpu.slabs_given_back);
        gpu.has_served = true;
    }
};

Decorator *decorator = nullptr;

void release(void *pointer)
{
    Gpu *gpu = owner_of(pointer);
    uint32_t stand_in = 0;
    if (is_child || gpu == nullptr || !gpu->streams.stand_in(pointer, &stand_in))
        return; // memory whose users cannot be waited for is not served again
    if (stand_in < BP_STEP_STREAMS)
        (void)bp_step_server_use(gpu->server, gpu->offset_of(pointer), stand_in);
    gpu->recording.freed(pointer);
    if (gpu->history.is_recording()) { // before another thread gets the memory
        bp_step_block live;
        if (bp_step_server_find(gpu->server, gpu->offset_of(pointer), &live))
            gpu->history.freed(pointer, live.requested_bytes, gpu->streams.all[live.stream]);
    }
    const bp_step_block block = gpu->free(pointer);
    if (c10::memoryProfilingEnabled())
        decorator->report(*gpu, pointer, -static_cast<int64_t>(bp_step_round(block.requested_bytes)));
    if (const auto *trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr))
        (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(pointer));
}

// PyTorch's allocator tells what it allocates and frees, under its lock.
void track(const native::TraceEntry &entry)
{
    if (!gpus[entry.device_].is_attached.load(std::memory_order_acquire))
        return;
    Gpu &gpu = gpus[entry.device_];
    const bool is_large = bp_step_round(entry.size_) > SMALL_BYTES;
    switch (entry.action_) {
    case native::TraceEntry::SEGMENT_ALLOC:
    case native::TraceEntry::SEGMENT_MAP: gpu.counts.reserve(entry.size_, true); return;
    case native::TraceEntry::SEGMENT_FREE:
    case native::TraceEntry::SEGMENT_UNMAP: gpu.counts.reserve(entry.size_, false); return;
    case native::TraceEntry::ALLOC:
        if (!is_slab_changing)
            gpu.counts.add(entry.size_, is_large, false);
        return;
    case native::TraceEntry::FREE_REQUESTED: break;
    default: return;
    }
    if (is_slab_changing)
        return;
    gpu.counts.subtract(entry.size_, is_large, false);
    gpu.recording.freed(reinterpret_cast<void *>(entry.addr_));
}

int check_device(int device)
{
    if (decorator == nullptr)
        return bucketpool::fail("the decorator is not installed");
    if (device < 0 || device >= DEVICES)
        return bucketpool::fail("no CUDA device " + std::to_string(device));
    return 0;
}

void begin(int device)
{
    gpus[device].number = gpus[device].streams.device = device;
    gpus[device].source = decorator;
    tracked |= uint64_t{1} << device;
}

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
    if (decorator != nullptr)
        return 0;
    native::CUDAAllocator *found = native::get();
    if (found == nullptr)
        return bucketpool::fail("PyTorch has no CUDA allocator");
    if (found->name() != "native")
        return bucketpool::fail("PyTorch's allocator is \"" + found->name() +
                                "\"; steps are served with \"native\" only (PYTORCH_CUDA_ALLOC_CONF, backend)");
    if (!found->isEnabled() || std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING") != nullptr)
        return bucketpool::fail(
            "PyTorch's cache is off (PYTORCH_NO_CUDA_MEMORY_CACHING); steps are served with it only");
    decorator = new Decorator(found);
    pthread_atfork(nullptr, nullptr, after_fork);
    native::allocator.store(decorator);
    c10::SetAllocator(c10::kCUDA, decorator, 0);
    return 0;
}

int bp_decorator_record(int device)
{
    if (check_device(device) != 0)
        return -1;
    begin(device);
    gpus[device].recording.begin();
    return 0;
}

size_t bp_decorator_events(int device, const bp_step_event **events)
{
    return gpus[device].recording.copy(events);
}

void bp_decorator_forget(int device)
{
    gpus[device].recording.end();
}

int bp_decorator_serve(int device, const bp_step_plan *plan, uint64_t wait_bytes)
{
    if (check_device(device) != 0)
        return -1;
    bp_step_server_config config;
    (void)bp_step_server_config_init(&config, sizeof config);
    config.context = &gpus[device].streams;
    config.record = bucketpool::record_event;
    config.wait = bucketpool::wait_for_event;
    begin(device);
    if (wait_bytes == 0) { // the slab is taken now
        try {
            decorator->init(c10::cuda::device_count());
            gpus[device].attach(decorator->native);
        } catch (const c10::Error &error) {
            return bucketpool::fail(error.what_without_backtrace());
        }
    }
    return gpus[device].serve(plan, &config, wait_bytes);
}

int bp_decorator_replace(int device, const bp_step_plan *plan)
{
    return gpus[device].replace(plan);
}

void bp_decorator_stop(int device)
{
    gpus[device].stop();
}

void bp_decorator_mark(int device)
{
    gpus[device].mark();
}

bp_step_server *bp_decorator_server(int device)
{
    return gpus[device].server;
}

void bp_decorator_get_status(int device, bp_decorator_status *status)
{
    gpus[device].get_status(status);
}

void bp_decorator_reset_peak(int device)
{
    gpus[device].counts.reset_own_peaks();
}

void bp_decorator_poison(int)
{
}
}
