/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"

#include "fiber.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <vector>

namespace simt
{

thread_local position here;
thread_local index grid, block;
traffic moved;

static const unsigned LANES = 32;

struct copy {
    char *to;
    const char *from;
    unsigned bytes;
};

struct lane {
    fiber context;
    index place;
    bool waits = false;
    barrier_kind kind = barrier_kind::BLOCK;
    unsigned detail = 0;
    unsigned exchanges = 0;
    uint32_t handed[2] = {}; /* double buffer: the slowest lane reads one while the fastest writes the other */
    std::deque<std::vector<copy>> copies; /* groups, the last one open */
};

/* A running block. */
struct running {
    std::vector<std::unique_ptr<lane>> lanes;
    std::map<unsigned, std::unique_ptr<char[]>> memory;
    std::unique_ptr<char[]> launch_memory; /* exactly its size, so that ASan detects overruns */
    unsigned launch_bytes = 0;
    std::vector<std::vector<unsigned>> ready; /* threads of each warp */
    std::mt19937_64 random;
    std::vector<unsigned> warps; /* in order of priority */
    bool has_priorities = false;
    unsigned current = 0;
    void (*kernel)(const void *) = nullptr;
    const void *argument = nullptr;
    std::string wrong;
};

static thread_local running *now;

void *shared(unsigned number, std::size_t bytes)
{
    std::unique_ptr<char[]> &memory = now->memory[number];
    if (!memory) {
        memory.reset(new char[bytes]);
        std::memset(memory.get(), 0xff, bytes);
    }
    return memory.get();
}

char *launch_shared()
{
    return now->launch_memory.get();
}

unsigned launch_shared_bytes()
{
    return now->launch_bytes;
}

void report_misaligned(unsigned bytes)
{
    if (now->wrong.empty())
        now->wrong = "thread " + std::to_string(now->current) + " accesses " + std::to_string(bytes) +
                     " bytes at a misaligned address";
}

/* ---- barriers ------------------------------------------------------------------------------------------------------ */

static std::string describe(const lane &l)
{
    static const char *const names[] = {"the block's barrier", "the warp's barrier", "a shuffle"};
    if (l.context.is_over())
        return "has ended";
    return std::string("is at ") + names[static_cast<int>(l.kind)] + " (" + std::to_string(l.detail) + ")";
}

/* Range of threads that take part in the thread's barrier. */
static std::pair<unsigned, unsigned> barrier_threads(unsigned thread, barrier_kind kind)
{
    const unsigned all = static_cast<unsigned>(now->lanes.size()), first = thread / LANES * LANES;
    return kind == barrier_kind::BLOCK ? std::make_pair(0u, all) : std::make_pair(first, std::min(first + LANES, all));
}

/* Releases the barrier if all threads have arrived. */
static void release_complete_barrier(unsigned thread)
{
    const lane &one = *now->lanes[thread];
    const auto [first, end] = barrier_threads(thread, one.kind);
    for (unsigned i = first; i < end; i++) {
        const lane &other = *now->lanes[i];
        const bool is_on_its_way = !other.waits || (other.kind != barrier_kind::BLOCK && i / LANES != thread / LANES);
        if (!other.context.is_over() && is_on_its_way)
            return;
        if (other.context.is_over() || other.kind != one.kind || other.detail != one.detail) {
            if (now->wrong.empty())
                now->wrong = "thread " + std::to_string(thread) + " " + describe(one) + ", thread " +
                             std::to_string(i) + " " + describe(other);
            return;
        }
    }
    for (unsigned i = first; i < end; i++) {
        now->lanes[i]->waits = false;
        now->ready[i / LANES].push_back(i);
    }
}

void wait_at(barrier_kind kind, unsigned detail)
{
    lane &mine = *now->lanes[now->current];
    mine.waits = true;
    mine.kind = kind;
    mine.detail = detail;
    mine.context.pause();
}

static uint32_t handed_by(unsigned other, uint32_t value, unsigned detail)
{
    lane &mine = *now->lanes[now->current];
    const unsigned turn = mine.exchanges++ % 2;
    mine.handed[turn] = value;
    wait_at(barrier_kind::SHUFFLE, detail);
    return now->lanes[other]->handed[turn];
}

uint32_t exchange(uint32_t value, unsigned distance)
{
    return handed_by(now->current ^ distance, value, distance);
}

uint32_t next(uint32_t value)
{
    const unsigned lane = now->current % LANES;
    return handed_by(now->current - lane + (lane + 1) % LANES, value, 0);
}

/* ---- copies -------------------------------------------------------------------------------------------------------- */

static void run_copies(const std::vector<copy> &copies)
{
    for (const copy &c : copies)
        std::memcpy(c.to, c.from, c.bytes);
}

void copy_later(char *to, const char *from, unsigned bytes)
{
    if (now->random() % 2 == 0)
        std::memcpy(to, from, bytes);
    else
        now->lanes[now->current]->copies.back().push_back({to, from, bytes});
}

void end_copies()
{
    now->lanes[now->current]->copies.emplace_back();
}

void wait_for_copies(unsigned left)
{
    std::deque<std::vector<copy>> &copies = now->lanes[now->current]->copies;
    while (copies.size() > left + 1) {
        run_copies(copies.front());
        copies.pop_front();
    }
}

/* A GPU would copy into the shared memory of another block. */
static bool has_copies_left(const lane &l)
{
    return std::any_of(l.copies.begin(), l.copies.end(), [](const std::vector<copy> &c) { return !c.empty(); });
}

/* ---- blocks -------------------------------------------------------------------------------------------------------- */

static void run_thread(void *block_of_it)
{
    const running *r = static_cast<const running *>(block_of_it);
    r->kernel(r->argument);
}

/* In every other block, warps run as far as they can in a random order of priority: the only way to show races over long distances. */
static void choose_priorities(running &r)
{
    r.has_priorities = r.random() % 2 != 0;
    r.warps.resize((r.lanes.size() + LANES - 1) / LANES);
    std::iota(r.warps.begin(), r.warps.end(), 0);
    std::shuffle(r.warps.begin(), r.warps.end(), r.random);
    r.ready.assign(r.warps.size(), {});
}

/* A random thread of a warp that can run. False: none can. */
static bool take_next(running &r)
{
    const size_t first = r.has_priorities ? 0 : r.random() % r.warps.size();
    for (size_t i = 0; i < r.warps.size(); i++) {
        std::vector<unsigned> &ready = r.ready[r.warps[(first + i) % r.warps.size()]];
        if (ready.empty())
            continue;
        std::swap(ready[r.random() % ready.size()], ready.back());
        r.current = ready.back();
        ready.pop_back();
        return true;
    }
    return false;
}

static void begin_block(running &r)
{
    choose_priorities(r);
    r.memory.clear();
    r.launch_memory.reset(new char[r.launch_bytes]);
    std::memset(r.launch_memory.get(), 0xff, r.launch_bytes);
    for (unsigned i = 0; i < r.lanes.size(); i++) {
        lane &l = *r.lanes[i];
        l.waits = false;
        l.exchanges = 0;
        l.copies.assign(1, {});
        l.context.begin(run_thread, &r);
        r.ready[i / LANES].push_back(i);
    }
}

static void run_block(running &r, const index &place)
{
    begin_block(r);
    while (r.wrong.empty() && take_next(r)) {
        lane &l = *r.lanes[r.current];
        here = {l.place, place};
        l.context.resume();
        if (l.waits)
            release_complete_barrier(r.current);
    }
    for (unsigned i = 0; i < r.lanes.size() && r.wrong.empty(); i++) {
        if (!r.lanes[i]->context.is_over())
            r.wrong = "thread " + std::to_string(i) + " " + describe(*r.lanes[i]) + ", and waits forever";
        else if (has_copies_left(*r.lanes[i]))
            r.wrong = "thread " + std::to_string(i) + " has ended, and has not waited for its copies";
    }
}

/* Lanes, with their stacks, stay for later launches of any thread: new contexts need system calls, and new stacks page faults. */
static std::mutex idle_lock;
static std::vector<std::unique_ptr<lane>> idle;

static void take_lanes(running &r)
{
    const std::lock_guard<std::mutex> guard(idle_lock);
    for (unsigned z = 0; z < block.z; z++)
        for (unsigned y = 0; y < block.y; y++)
            for (unsigned x = 0; x < block.x; x++) {
                if (idle.empty())
                    idle.push_back(std::make_unique<lane>());
                r.lanes.push_back(std::move(idle.back()));
                r.lanes.back()->place = {x, y, z};
                idle.pop_back();
            }
}

static void give_back_lanes(running &r)
{
    const std::lock_guard<std::mutex> guard(idle_lock);
    std::move(r.lanes.rbegin(), r.lanes.rend(), std::back_inserter(idle)); /* the next launch takes the last */
}

std::string launch(index g, index b, uint64_t seed, void (*kernel)(const void *), const void *argument,
                   unsigned shared_bytes)
{
    running r;
    std::vector<uint64_t> order;
    grid = g;
    block = b;
    now = &r;
    r.random.seed(seed);
    r.kernel = kernel;
    r.argument = argument;
    r.launch_bytes = shared_bytes;
    take_lanes(r);
    for (uint64_t i = 0; i < static_cast<uint64_t>(g.x) * g.y * g.z; i++)
        order.push_back(i);
    std::shuffle(order.begin(), order.end(), r.random);
    for (size_t i = 0; i < order.size() && r.wrong.empty(); i++) {
        const uint64_t row = order[i] / g.x;
        run_block(r, {static_cast<unsigned>(order[i] % g.x), static_cast<unsigned>(row % g.y),
                      static_cast<unsigned>(row / g.y)});
    }
    give_back_lanes(r);
    now = nullptr;
    return r.wrong;
}

} // namespace simt
