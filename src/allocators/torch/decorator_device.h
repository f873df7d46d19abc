/* SPDX-License-Identifier: Apache-2.0 */
/* The state of a device, which the decorators of PyTorch's allocators have in common. */
#ifndef BP_ALLOCATORS_TORCH_DECORATOR_DEVICE_H
#define BP_ALLOCATORS_TORCH_DECORATOR_DEVICE_H

#include <bucketpool/status.h>
#include <bucketpool/step_serve.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "decorator.h"

namespace bucketpool
{

inline thread_local std::string last_error;

inline int fail(const std::string &because)
{
    last_error = because;
    return -1;
}

/* A sum; its peaks since PyTorch's statistics and since bp_decorator_reset_peak begin; and all that was added and subtracted. */
struct Level {
    uint64_t now = 0, peak = 0, own_peak = 0, added = 0, subtracted = 0;
    void add(uint64_t amount)
    {
        now += amount;
        added += amount;
        peak = now > peak ? now : peak;
        own_peak = now > own_peak ? now : own_peak;
    }
    void subtract(uint64_t amount)
    {
        now -= std::min(now, amount); /* an allocation may have been missed */
        subtracted += amount;
    }
};

/* Sums over live blocks: bytes that they take, bytes as requested, and their number. */
struct Amounts {
    Level taken, requested, blocks;
    void add(uint64_t bytes)
    {
        taken.add(bp_step_round(bytes));
        requested.add(bytes);
        blocks.add(1);
    }
    void subtract(uint64_t bytes)
    {
        taken.subtract(bp_step_round(bytes));
        requested.subtract(bytes);
        blocks.subtract(1);
    }
    void reset_peaks()
    {
        for (Level *level : {&taken, &requested, &blocks})
            level->peak = level->now;
    }
};

/* Live blocks of a device: all; those of the slab and of PyTorch's pool for large blocks; those of the slab. */
struct Counts {
    std::mutex lock;
    Amounts all, large, slab;
    Level reserved; /* by PyTorch's allocator; CPU: the slab, and live blocks outside of it */
    void add(uint64_t bytes, bool is_large, bool is_slab)
    {
        std::lock_guard<std::mutex> guard(lock);
        all.add(bytes);
        if (is_large)
            large.add(bytes);
        if (is_slab)
            slab.add(bytes);
    }
    void subtract(uint64_t bytes, bool is_large, bool is_slab)
    {
        std::lock_guard<std::mutex> guard(lock);
        all.subtract(bytes);
        if (is_large)
            large.subtract(bytes);
        if (is_slab)
            slab.subtract(bytes);
    }
    void reset_peaks()
    {
        std::lock_guard<std::mutex> guard(lock);
        for (Amounts *amounts : {&all, &large, &slab})
            amounts->reset_peaks();
    }
    void reset_own_peaks()
    {
        std::lock_guard<std::mutex> guard(lock);
        all.taken.own_peak = all.taken.now;
        reserved.own_peak = reserved.now;
    }
    void reserve(uint64_t bytes, bool is_more)
    {
        std::lock_guard<std::mutex> guard(lock);
        is_more ? reserved.add(bytes) : reserved.subtract(bytes);
    }
    uint64_t live_bytes()
    {
        std::lock_guard<std::mutex> guard(lock);
        return all.taken.now;
    }
};

/* The allocations and frees of a program, of memory that was allocated while they are recorded. */
struct Recording {
    std::atomic<bool> is_on{false};
    std::mutex lock;
    std::vector<bp_step_event> events, copied;
    std::unordered_set<const void *> live;

    void begin()
    {
        std::lock_guard<std::mutex> guard(lock);
        events.clear();
        live.clear();
        is_on = true;
    }
    void end()
    {
        std::lock_guard<std::mutex> guard(lock);
        is_on = false;
        events = {};
        live = {};
    }
    size_t copy(const bp_step_event **pointer)
    {
        std::lock_guard<std::mutex> guard(lock);
        copied = events;
        *pointer = copied.data();
        return copied.size();
    }
    void allocated(const void *pointer, uint64_t bytes, uint32_t stream)
    {
        add(BP_STEP_ALLOCATE, pointer, bytes, stream);
    }
    void freed(const void *pointer) /* before the memory is allocated again */
    {
        add(BP_STEP_FREE, pointer, 0, 0);
    }
    void marked()
    {
        add(BP_STEP_MARK, nullptr, 0, 0);
    }

  private:
    void add(bp_step_action action, const void *pointer, uint64_t bytes, uint32_t stream)
    {
        if (!is_on)
            return;
        std::lock_guard<std::mutex> guard(lock);
        if (action == BP_STEP_ALLOCATE)
            live.insert(pointer);
        if (is_on && (action != BP_STEP_FREE || live.erase(pointer) > 0))
            events.push_back({reinterpret_cast<uint64_t>(pointer), bytes, stream, static_cast<uint32_t>(action)});
    }
};

/* Memory from which slabs are taken. */
struct Source {
    virtual char *take(int device, uint64_t bytes, std::string *because) = 0; /* nullptr: because */
    virtual bool may_take(int device) = 0;                                    /* now */
    virtual void give_back(int device, char *slab, uint64_t bytes) = 0;
    virtual ~Source() = default;
};

/* A device, with its recording and its slab. The server and the slab are read without a lock where memory is allocated and
 * freed; `lock` is for what begins and ends. A server stays until the process ends, because another thread may be in it. */
struct Device {
    int number = 0;
    Source *source = nullptr;
    std::mutex lock;

    std::atomic<bp_step_server *> server{nullptr}; /* while waiting, serving or stopping */
    std::atomic<uint32_t> state{BP_DECORATOR_OFF};
    std::atomic<char *> slab{nullptr};
    std::atomic<uint64_t> slab_bytes{0};
    bool is_taking = false; /* a slab, without `lock` */
    std::atomic<uint64_t> wait_bytes{0};
    std::atomic<uint32_t> marks_waited{0};
    std::atomic<uint32_t> first_mark{0}; /* the slab is not allocated before so many marks */
    std::string because;

    Counts counts;
    Recording recording;

    /* A slab does not change while its memory is live; for other pointers, one that is taken meanwhile may have other bytes. */
    bool has(const void *pointer) const
    {
        const char *begin = slab.load(std::memory_order_acquire);
        return begin != nullptr && pointer >= begin && pointer < begin + slab_bytes.load(std::memory_order_acquire) &&
               slab.load(std::memory_order_relaxed) == begin;
    }

    uint64_t offset_of(const void *pointer) const
    {
        return static_cast<uint64_t>(static_cast<const char *>(pointer) - slab.load());
    }

    /* ---- serving ---- */

    /* The source is called without `lock`: it may wait for other locks, such as Python's for call stacks, whose owner frees memory. */
    void take_slab()
    {
        bp_step_server *from = nullptr;
        uint64_t bytes = 0;
        std::string reason;
        {
            std::lock_guard<std::mutex> guard(lock);
            if (state != BP_DECORATOR_WAITING || is_taking || !source->may_take(number))
                return;
            is_taking = true;
            from = server;
            bytes = slab_bytes;
        }
        char *memory = source->take(number, bytes, &reason);
        {
            std::lock_guard<std::mutex> guard(lock);
            is_taking = false;
            if (state == BP_DECORATOR_WAITING && server == from) {
                because = reason;
                slab = memory;
                state = memory != nullptr ? BP_DECORATOR_SERVING : BP_DECORATOR_FAILED;
                if (memory != nullptr)
                    bp_step_server_pause(from, false);
                else
                    server = nullptr;
                return;
            }
        }
        if (memory != nullptr) /* serving was stopped meanwhile */
            source->give_back(number, memory, bytes);
    }

    /* Memory of the slab, or nullptr. What the server has handed out keeps the slab. */
    char *allocate(uint64_t bytes, uint32_t stream)
    {
        bp_step_server *from = server.load(std::memory_order_acquire);
        uint64_t offset = 0;
        if (from == nullptr)
            return nullptr;
        if (state == BP_DECORATOR_WAITING && marks_waited >= first_mark &&
            (counts.live_bytes() <= wait_bytes || marks_waited >= first_mark + 2))
            take_slab();
        if (bp_step_server_allocate(from, bytes, stream, &offset) != BP_STEP_SERVED)
            return nullptr;
        counts.add(bytes, true, true);
        return slab.load(std::memory_order_relaxed) + offset;
    }

    /* Any free memory of the slab, or nullptr: the last resort before an allocation fails. */
    char *allocate_anywhere(uint64_t bytes, uint32_t stream)
    {
        std::lock_guard<std::mutex> guard(lock); /* the slab stays */
        uint64_t offset = 0;
        if (state != BP_DECORATOR_SERVING ||
            bp_step_server_allocate_anywhere(server, bytes, stream, &offset) != BP_STEP_SERVED)
            return nullptr;
        counts.add(bytes, true, true);
        return slab.load() + offset;
    }

    /* Frees memory of the slab; after the last block the slab is given back, when nothing is served any more. A pointer where nothing
     * begins would corrupt what lives there: the process ends. */
    bp_step_block free(void *pointer)
    {
        bp_step_block block = {};
        if (bp_step_server_free(server, offset_of(pointer), &block) != BP_OK) {
            std::fprintf(stderr, "bucketpool: %p was freed, where no tensor of the slab begins\n", pointer);
            std::abort();
        }
        counts.subtract(block.requested_bytes, true, true);
        if (state == BP_DECORATOR_STOPPING)
            give_back_slab();
        return block;
    }

    void give_back_slab()
    {
        char *memory = nullptr;
        uint64_t bytes = 0;
        {
            std::lock_guard<std::mutex> guard(lock);
            bp_step_block first;
            if (state != BP_DECORATOR_STOPPING || bp_step_server_find(server, 0, &first))
                return;
            server = nullptr;
            memory = slab.exchange(nullptr);
            bytes = slab_bytes;
            state = BP_DECORATOR_OFF;
        }
        if (memory != nullptr)
            source->give_back(number, memory, bytes);
    }

    static bool begins_with_process(const bp_step_plan *plan)
    {
        const bp_step_plan_info *info = bp_step_plan_get_info(plan);
        return std::any_of(info->kinds, info->kinds + info->kind_count,
                           [](const auto &kind) { return kind.is_first != 0; });
    }

    int serve(const bp_step_plan *plan, const bp_step_server_config *config, uint64_t wait)
    {
        bp_step_server *made = nullptr;
        if (state != BP_DECORATOR_OFF && state != BP_DECORATOR_FAILED)
            return fail("a plan is being served; stop it first, and free what lives in its slab");
        if (bp_step_server_create(plan, config, &made) != BP_OK)
            return fail(bp_error_detail());
        bp_step_server_pause(made, true);
        {
            std::lock_guard<std::mutex> guard(lock);
            because.clear();
            slab_bytes = bp_step_plan_get_info(plan)->bytes;
            wait_bytes = wait;
            marks_waited = 0;
            first_mark = !begins_with_process(plan);
            state = BP_DECORATOR_WAITING;
            server = made;
        }
        if (wait == 0)
            take_slab();
        return state == BP_DECORATOR_FAILED ? fail(because) : 0;
    }

    int replace(const bp_step_plan *plan)
    {
        std::lock_guard<std::mutex> guard(lock);
        if (state != BP_DECORATOR_SERVING)
            return fail("nothing is served");
        return bp_step_server_replace(server, plan) == BP_OK ? 0 : fail(bp_error_detail());
    }

    void stop()
    {
        {
            std::lock_guard<std::mutex> guard(lock);
            if (state != BP_DECORATOR_WAITING && state != BP_DECORATOR_SERVING)
                return;
            bp_step_server_pause(server, true);
            state = BP_DECORATOR_STOPPING;
        }
        give_back_slab();
    }

    void mark()
    {
        recording.marked();
        if (bp_step_server *from = server.load())
            bp_step_server_mark(from);
        if (state == BP_DECORATOR_WAITING)
            marks_waited++;
    }

    void get_status(bp_decorator_status *status)
    {
        std::lock_guard<std::mutex> guard(lock);
        *status = {};
        status->state = state;
        status->is_recording = recording.is_on;
        status->slab = reinterpret_cast<uint64_t>(slab.load());
        status->slab_bytes = slab != nullptr ? slab_bytes.load() : 0;
        {
            std::lock_guard<std::mutex> counting(counts.lock);
            status->live_bytes = counts.all.taken.now;
            status->peak_live_bytes = counts.all.taken.own_peak;
            status->reserved_bytes = counts.reserved.now;
            status->peak_reserved_bytes = counts.reserved.own_peak;
        }
        std::snprintf(status->because, sizeof status->because, "%s", because.c_str());
    }
};

} // namespace bucketpool

#endif
