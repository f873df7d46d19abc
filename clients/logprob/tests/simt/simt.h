/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's side of clients/logprob/src/cuda/device.cuh on a CPU: threads of a block are fibers that run one at a time from barrier to barrier, in a
 * seeded order. Shared memory starts as NaN. Device memory is plain memory, so that ASan detects overruns. */
#ifndef SIMT_H
#define SIMT_H

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace simt
{

struct index {
    unsigned x = 1, y = 1, z = 1;
};

/* Of the running thread. */
struct position {
    index thread, block;
};

extern thread_local position here;
extern thread_local index grid, block;

enum class barrier_kind { BLOCK, WARP, SHUFFLE };

/* Barrier of the block's or the warp's threads. `detail`: must be equal on all of them. */
void wait_at(barrier_kind kind, unsigned detail);
/* Value of the lane with index `lane ^ distance`. */
uint32_t exchange(uint32_t value, unsigned distance);
/* The value of the next lane of the warp; the last one is handed that of the first. */
uint32_t next(uint32_t value);
/* The block's shared memory of this number, the same for all its threads. */
void *shared(unsigned number, std::size_t bytes);
/* Shared memory of the launch. */
char *launch_shared();
unsigned launch_shared_bytes();
/* Asynchronous copies of the running thread: done at once or when they are waited for, at random. */
void copy_later(char *to, const char *from, unsigned bytes);
void end_copies();
void wait_for_copies(unsigned left);
void report_misaligned(unsigned bytes);

/* Accesses to global memory, and their bytes, by the functions of device.cuh; elements read through pointers are not counted. */
struct traffic {
    std::atomic<uint64_t> loaded, stored, accesses;
};
extern traffic moved;

inline void count_load(unsigned bytes)
{
    moved.loaded += bytes;
    moved.accesses++;
}

inline void count_store(unsigned bytes)
{
    moved.stored += bytes;
    moved.accesses++;
}

/* A misaligned access ends the program on a GPU. */
inline void check_alignment(const void *address, unsigned bytes)
{
    if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0)
        report_misaligned(bytes);
}

} // namespace simt

#define threadIdx simt::here.thread
#define blockIdx simt::here.block
#define blockDim simt::block
#define gridDim simt::grid

#define BP_DEVICE [[maybe_unused]] static inline
#define BP_KERNEL_OF(threads, blocks) extern "C" void
#define BP_ARGUMENT const
#define BP_UNROLL
#define BP_NO_UNROLL
#define BP_UNROLL_BY(count)
#define BP_SHARED(type, name, count)                                                                                   \
    type *const name = static_cast<type *>(simt::shared(__COUNTER__, (count) * sizeof(type)))
#define BP_LAUNCH_SHARED(name) char *const name = simt::launch_shared()

namespace device
{

template <int WORDS> void load_shared_words(const char *from, uint32_t (&words)[WORDS])
{
    simt::check_alignment(from, 4 * WORDS);
    std::memcpy(words, from, sizeof words);
}

BP_DEVICE void store_shared_words(char *to, const uint32_t (&words)[4])
{
    simt::check_alignment(to, sizeof words);
    std::memcpy(to, words, sizeof words);
}

template <int WORDS> void load_words(const char *from, uint32_t (&words)[WORDS])
{
    simt::count_load(4 * WORDS);
    load_shared_words<WORDS>(from, words);
}

template <int WORDS> void store_words(char *to, const uint32_t (&words)[WORDS])
{
    simt::count_store(4 * WORDS);
    simt::check_alignment(to, 4 * WORDS);
    std::memcpy(to, words, sizeof words);
}

BP_DEVICE uint32_t launch_shared_bytes()
{
    return simt::launch_shared_bytes();
}

BP_DEVICE void copy_to_shared(char *to, const char *from)
{
    simt::check_alignment(to, 16);
    simt::check_alignment(from, 16);
    simt::count_load(16);
    simt::copy_later(to, from, 16);
}

BP_DEVICE void end_copies()
{
    simt::end_copies();
}

template <int LEFT> void wait_for_copies()
{
    simt::wait_for_copies(LEFT);
}

BP_DEVICE uint32_t load_1(const char *from)
{
    simt::count_load(1);
    return static_cast<uint8_t>(*from);
}

BP_DEVICE uint32_t load_2(const char *from)
{
    simt::count_load(2);
    uint16_t value;
    simt::check_alignment(from, sizeof value);
    std::memcpy(&value, from, sizeof value);
    return value;
}

BP_DEVICE uint32_t load_4(const char *from)
{
    simt::count_load(4);
    uint32_t value;
    simt::check_alignment(from, sizeof value);
    std::memcpy(&value, from, sizeof value);
    return value;
}

BP_DEVICE void store_1(char *to, uint32_t value)
{
    simt::count_store(1);
    *to = static_cast<char>(value);
}

BP_DEVICE void store_2(char *to, uint32_t value)
{
    simt::count_store(2);
    const uint16_t half = static_cast<uint16_t>(value);
    simt::check_alignment(to, sizeof half);
    std::memcpy(to, &half, sizeof half);
}

BP_DEVICE void store_4(char *to, uint32_t value)
{
    simt::count_store(4);
    simt::check_alignment(to, sizeof value);
    std::memcpy(to, &value, sizeof value);
}

BP_DEVICE uint32_t funnel(uint32_t low, uint32_t high, uint32_t shift)
{
    return static_cast<uint32_t>((static_cast<uint64_t>(high) << 32 | low) >> (shift & 31));
}

BP_DEVICE float as_float(uint32_t bits)
{
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

BP_DEVICE uint32_t as_bits(float x)
{
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

float max_nan(float a, float b);
uint32_t max_nan_bf16x2(uint32_t a, uint32_t b);
uint32_t max_nan_fp16x2(uint32_t a, uint32_t b);
float min_nan(float a, float b);
uint32_t min_nan_bf16x2(uint32_t a, uint32_t b);
uint32_t min_nan_fp16x2(uint32_t a, uint32_t b);
float exp2_fast(float x);
float widen_fp16(uint32_t half);
uint32_t narrow_bf16x2(float low, float high);
uint32_t narrow_fp16x2(float low, float high);

BP_DEVICE float shuffle_xor(float x, uint32_t distance)
{
    return as_float(simt::exchange(as_bits(x), distance));
}

BP_DEVICE uint32_t shuffle_next(uint32_t x)
{
    return simt::next(x);
}

BP_DEVICE void wait_for_warp()
{
    simt::wait_at(simt::barrier_kind::WARP, 0);
}

BP_DEVICE void wait_for_block()
{
    simt::wait_at(simt::barrier_kind::BLOCK, 0);
}

BP_DEVICE void lower(uint64_t *min, uint64_t value)
{
    simt::check_alignment(min, sizeof value);
    *min = value < *min ? value : *min;
}

} // namespace device

#endif
