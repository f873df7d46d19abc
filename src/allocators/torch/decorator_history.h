/* SPDX-License-Identifier: Apache-2.0 */
// The history of PyTorch's allocator (torch.cuda.memory._record_memory_history) for what lives in a slab: snapshots then have its events
// and call stacks beside PyTorch's.
#ifndef BP_ALLOCATORS_TORCH_DECORATOR_HISTORY_H
#define BP_ALLOCATORS_TORCH_DECORATOR_HISTORY_H

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <type_traits>
#include <unordered_map>
#include <vector>

namespace bucketpool
{

class History
{
    using TraceEntry = c10::cuda::CUDACachingAllocator::TraceEntry;
    using Context = decltype(TraceEntry::context_);
    using Stream = decltype(TraceEntry::stream_);
    using ApproximateTime = decltype(TraceEntry::time_.approx_t_);

    struct Event {
        TraceEntry::Action action;
        const void *address;
        size_t bytes;
        cudaStream_t stream;
        time_t microseconds;
        Context context;
    };

    std::atomic<bool> is_on{false};
    std::mutex lock;
    c10::cuda::CUDACachingAllocator::CreateContextFn recorder = nullptr;
    c10::cuda::CUDACachingAllocator::RecordContext when = c10::cuda::CUDACachingAllocator::RecordContext::NEVER;
    size_t max_events = 0;
    std::deque<Event> events;
    std::unordered_map<const void *, Context> contexts; // of live blocks

    void add(TraceEntry::Action action, const void *address, size_t bytes, cudaStream_t stream, const Context &context)
    {
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
        events.push_back({action, address, bytes, stream, static_cast<time_t>(microseconds), context});
        if (events.size() > max_events)
            events.pop_front();
    }

    // Constructors of releases differ; entries that the release adds have its defaults.
    template <typename Entry> static Entry entry_of(const Event &event, c10::DeviceIndex device)
    {
        using Pool = c10::cuda::MempoolId_t;
        const auto address = reinterpret_cast<size_t>(event.address);
        const auto stream = reinterpret_cast<Stream>(event.stream);
        auto made = [&] {
            if constexpr (std::is_constructible_v<Entry, TraceEntry::Action, c10::DeviceIndex, size_t, size_t, Stream,
                                                  Pool, ApproximateTime>)
                return Entry(event.action, device, address, event.bytes, stream, Pool{0, 0}, ApproximateTime{});
            else
                return Entry(event.action, device, address, event.bytes, stream, ApproximateTime{});
        }();
        made.context_ = event.context;
        made.time_.t_ = event.microseconds;
        return made;
    }

  public:
    void turn(bool on, c10::cuda::CUDACachingAllocator::CreateContextFn context_recorder, size_t max,
              c10::cuda::CUDACachingAllocator::RecordContext record)
    {
        std::lock_guard<std::mutex> guard(lock);
        recorder = context_recorder;
        max_events = max;
        when = record;
        if (!on) {
            events.clear();
            contexts.clear();
        }
        is_on = on;
    }

    bool is_recording() const
    {
        return is_on;
    }

    // Call stacks are taken outside of the lock: they may need Python's.
    void allocated(const void *address, size_t bytes, cudaStream_t stream)
    {
        if (!is_on)
            return;
        const bool has_context = recorder != nullptr && when != c10::cuda::CUDACachingAllocator::RecordContext::NEVER;
        const Context context = has_context ? recorder() : nullptr;
        std::lock_guard<std::mutex> guard(lock);
        add(TraceEntry::ALLOC, address, bytes, stream, context);
        if (context != nullptr)
            contexts[address] = context;
    }

    void freed(const void *address, size_t bytes, cudaStream_t stream)
    {
        if (!is_on)
            return;
        const bool has_context = recorder != nullptr && when == c10::cuda::CUDACachingAllocator::RecordContext::ALL;
        const Context context = has_context ? recorder() : nullptr;
        std::lock_guard<std::mutex> guard(lock);
        add(TraceEntry::FREE_REQUESTED, address, bytes, stream, context);
        add(TraceEntry::FREE_COMPLETED, address, bytes, stream, context);
        contexts.erase(address);
    }

    Context context_of(const void *address)
    {
        std::lock_guard<std::mutex> guard(lock);
        const auto found = contexts.find(address);
        return found != contexts.end() ? found->second : nullptr;
    }

    // Merges the events into those of PyTorch, by time.
    template <typename Entry> void add_to(std::vector<Entry> *trace, c10::DeviceIndex device)
    {
        std::lock_guard<std::mutex> guard(lock);
        if (events.empty())
            return;
        const auto earlier = [](const Entry &a, const Entry &b) { return a.time_.t_ < b.time_.t_; };
        const auto theirs = static_cast<std::ptrdiff_t>(trace->size());
        for (const Event &event : events)
            trace->push_back(entry_of<Entry>(event, device));
        std::inplace_merge(trace->begin(), trace->begin() + theirs, trace->end(), earlier);
    }
};

} // namespace bucketpool

#endif
