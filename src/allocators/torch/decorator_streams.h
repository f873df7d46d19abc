/* SPDX-License-Identifier: Apache-2.0 */
// CUDA's streams and events for the server of a step.
#ifndef BP_ALLOCATORS_TORCH_DECORATOR_STREAMS_H
#define BP_ALLOCATORS_TORCH_DECORATOR_STREAMS_H

#include <bucketpool/step_serve.h>

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace bucketpool
{

enum { KEPT_EVENTS = 64 };

// Makes a device current, and the former one behind it, which need not have a context: it gets none. Errors are ignored: at the end
// of the process the driver has gone.
struct OnDevice {
    c10::DeviceIndex before = 0, wanted;
    explicit OnDevice(int device) : wanted(static_cast<c10::DeviceIndex>(device))
    {
        if (c10::cuda::GetDevice(&before) == cudaSuccess && before != wanted)
            (void)c10::cuda::SetDevice(wanted);
    }
    ~OnDevice()
    {
        if (before != wanted)
            (void)c10::cuda::MaybeSetDevice(before);
    }
};

// Streams by number, in the order of their first use; 0 is the default stream. The events of each are those that its server
// recorded, by number modulo KEPT_EVENTS: an entry that was replaced is a later event.
struct Streams {
    int device = 0;
    std::mutex lock;
    std::atomic<uint32_t> count{1};
    std::atomic<cudaStream_t> all[BP_STEP_STREAMS] = {};
    std::unique_ptr<cudaEvent_t[]> events[BP_STEP_STREAMS];

    // Of live memory, streams without a number that use it.
    std::atomic<uint32_t> others_count{0};
    std::unordered_map<const void *, std::vector<cudaStream_t>> others;
    cudaEvent_t others_event = nullptr;
    std::once_flag others_once;
    uint32_t others_number = 0; // of the stream that stands for them

    // BP_STEP_STREAMS: the stream is not followed, because there are too many, or it is not PyTorch's: then it may be destroyed, and
    // another one get its handle, which has not waited for what this one waited for.
    uint32_t number_of(c10::cuda::CUDAStream of, uint32_t limit = BP_STEP_STREAMS - 1)
    {
        cudaStream_t stream = of.stream();
        for (uint32_t i = 0, n = count.load(std::memory_order_acquire); i < n; i++) {
            if (all[i].load(std::memory_order_relaxed) == stream)
                return i;
        }
        std::lock_guard<std::mutex> guard(lock);
        uint32_t n = count;
        for (uint32_t i = 0; i < n; i++) {
            if (all[i] == stream)
                return i;
        }
        const bool is_foreign = of.id() != 0 && of.id() == reinterpret_cast<c10::StreamId>(stream);
        if (is_foreign || n >= limit)
            return BP_STEP_STREAMS;
        all[n] = stream;
        count = n + 1;
        return n;
    }

    // A stream without a number uses memory.
    void use(const void *pointer, cudaStream_t stream)
    {
        std::lock_guard<std::mutex> guard(lock);
        others_count++;
        others[pointer].push_back(stream);
    }

    // Memory that such streams used is freed. A stream with a number waits for them, and stands for them: the last number is kept for
    // it. BP_STEP_STREAMS: there are none. False: they cannot be waited for now.
    bool stand_in(const void *pointer, uint32_t *number)
    {
        *number = BP_STEP_STREAMS;
        if (others_count == 0)
            return true;
        OnDevice device(Streams::device);
        std::vector<cudaStream_t> users;
        {
            std::lock_guard<std::mutex> guard(lock);
            const auto found = others.find(pointer);
            if (found == others.end())
                return true;
            users = std::move(found->second);
            others_count -= static_cast<uint32_t>(users.size());
            others.erase(found);
        }
        std::call_once(others_once, [&] {
            others_number = number_of(c10::cuda::getStreamFromPool(false, device.wanted), BP_STEP_STREAMS);
        });
        *number = others_number;
        std::lock_guard<std::mutex> guard(lock);
        cudaStream_t stream = all[*number];
        bool is_done =
            !is_captured(stream) &&
            (others_event != nullptr || cudaEventCreateWithFlags(&others_event, cudaEventDisableTiming) == cudaSuccess);
        for (cudaStream_t user : users)
            is_done = is_done && !is_captured(user) && cudaEventRecord(others_event, user) == cudaSuccess &&
                      cudaStreamWaitEvent(stream, others_event, 0) == cudaSuccess;
        if (!is_done)
            (void)cudaGetLastError();
        return is_done;
    }

    static bool is_captured(cudaStream_t stream)
    {
        cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
        if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
            return status != cudaStreamCaptureStatusNone;
        (void)cudaGetLastError(); // the legacy stream, while another one is captured
        return true;
    }
};

// Called by the server, under its lock.
inline bool record_event(void *context, uint32_t stream, uint64_t point)
{
    auto *streams = static_cast<Streams *>(context);
    OnDevice guard(streams->device); // whose default stream 0 is; memory may be freed where another device is current
    cudaStream_t handle = streams->all[stream];
    if (Streams::is_captured(handle))
        return false;
    if (streams->events[stream] == nullptr)
        streams->events[stream].reset(new cudaEvent_t[KEPT_EVENTS]());
    cudaEvent_t &event = streams->events[stream][point % KEPT_EVENTS];
    if (event == nullptr) {
        if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) {
            event = nullptr;
            (void)cudaGetLastError();
            return false;
        }
    }
    if (cudaEventRecord(event, handle) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

inline bool wait_for_event(void *context, uint32_t stream, uint32_t before, uint64_t point)
{
    auto *streams = static_cast<Streams *>(context);
    OnDevice guard(streams->device);
    cudaStream_t handle = streams->all[stream];
    if (Streams::is_captured(handle))
        return false;
    if (cudaStreamWaitEvent(handle, streams->events[before][point % KEPT_EVENTS], 0) == cudaSuccess)
        return true;
    (void)cudaGetLastError();
    return false;
}

} // namespace bucketpool

#endif
