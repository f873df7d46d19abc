/* SPDX-License-Identifier: Apache-2.0 */
// CUDA's streams and events for the server of a step.
#ifndef BP_ALLOCATORS_TORCH_DECORATOR_STREAMS_H
#define BP_ALLOCATORS_TORCH_DECORATOR_STREAMS_H

#include <bucketpool/step_serve.h>

#include <c10/cuda/CUDAFunctions.h>

#include <atomic>
#include <memory>
#include <mutex>

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

    // BP_STEP_STREAMS: there are too many.
    uint32_t number_of(cudaStream_t stream)
    {
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
        if (n < BP_STEP_STREAMS) {
            all[n] = stream;
            count = n + 1;
        }
        return n;
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
