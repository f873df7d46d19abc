/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of the emulation: it must detect errors of kernels, and compute within a GPU's error bounds. */
#include "launch.h"

#include <cstdio>
#include <cstdlib>
#include <set>
#include <vector>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                                                \
            std::exit(1);                                                                                              \
        }                                                                                                              \
    } while (0)

static bool contains(const std::string &text, const char *part)
{
    return text.find(part) != std::string::npos;
}

/* ---- scheduling ---------------------------------------------------------------------------------------------------- */

static std::vector<unsigned> met;

static void note_place(const void *)
{
    met.push_back(blockIdx.z * 10000 + blockIdx.y * 1000 + blockIdx.x * 100 + threadIdx.y * 10 + threadIdx.x);
}

static void every_thread_runs_once_in_any_order()
{
    std::set<std::vector<unsigned>> orders;
    for (uint64_t seed = 0; seed < 5; seed++) {
        met.clear();
        CHECK(simt::launch({3, 2, 2}, {4, 3, 1}, seed, note_place, nullptr).empty());
        CHECK(met.size() == 144);
        CHECK(std::set<unsigned>(met.begin(), met.end()).size() == 144);
        orders.insert(met);
    }
    CHECK(orders.size() == 5);
}

/* ---- barriers ------------------------------------------------------------------------------------------------------ */

struct relay {
    bool waits;
    unsigned *out;
};

/* Each thread reads its neighbour's value. */
static void pass_on(const void *argument)
{
    const relay &r = *static_cast<const relay *>(argument);
    BP_SHARED(unsigned, words, 64);
    words[threadIdx.x] = threadIdx.x;
    if (r.waits)
        device::wait_for_block();
    r.out[threadIdx.x] = words[(threadIdx.x + 33) % 64];
}

static void a_missing_barrier_shows()
{
    unsigned out[64];
    unsigned wrong = 0;
    for (uint64_t seed = 0; seed < 20; seed++) {
        relay r = {true, out};
        CHECK(simt::launch({1, 1, 1}, {64, 1, 1}, seed, pass_on, &r).empty());
        for (unsigned i = 0; i < 64; i++)
            CHECK(out[i] == (i + 33) % 64);
        r.waits = false;
        CHECK(simt::launch({1, 1, 1}, {64, 1, 1}, seed, pass_on, &r).empty());
        for (unsigned i = 0; i < 64; i++)
            wrong += out[i] == 0xffffffffu; /* initial contents of the memory */
    }
    CHECK(wrong > 100);
}

static void half_waits(const void *)
{
    if (threadIdx.x < 32)
        device::wait_for_block();
}

static void one_lane_lags(const void *)
{
    if (threadIdx.x % 32 == 5)
        device::wait_for_warp();
    else
        device::shuffle_xor(1, 1);
}

static void distances_differ(const void *)
{
    device::shuffle_xor(1, threadIdx.x == 9 ? 2 : 1);
}

/* Warps may be at different warp barriers. */
static void warps_may_be_at_different_barriers(const void *)
{
    for (unsigned i = 0; i < threadIdx.x / 32; i++)
        device::wait_for_warp();
    device::wait_for_block();
}

static void threads_that_do_not_meet_are_reported()
{
    for (uint64_t seed = 0; seed < 10; seed++) {
        CHECK(contains(simt::launch({1, 1, 1}, {64, 1, 1}, seed, half_waits, nullptr), "the block's barrier"));
        CHECK(contains(simt::launch({1, 1, 1}, {64, 1, 1}, seed, one_lane_lags, nullptr), "the warp's barrier"));
        CHECK(contains(simt::launch({1, 1, 1}, {32, 1, 1}, seed, distances_differ, nullptr), "a shuffle (2)"));
        CHECK(simt::launch({2, 1, 1}, {128, 1, 1}, seed, warps_may_be_at_different_barriers, nullptr).empty());
    }
}

/* ---- shuffles ------------------------------------------------------------------------------------------------------ */

static void exchange_often(const void *argument)
{
    float *sums = static_cast<float *const *>(argument)[0];
    float sum = static_cast<float>(threadIdx.x);
    for (unsigned distance = 16; distance > 0; distance /= 2)
        sum += device::shuffle_xor(sum, distance);
    sums[threadIdx.x] = sum;
}

static void shuffles_exchange_within_warps()
{
    float sums[96], *to = sums;
    for (uint64_t seed = 0; seed < 5; seed++) {
        CHECK(simt::launch({1, 1, 1}, {96, 1, 1}, seed, exchange_often, &to).empty());
        for (unsigned i = 0; i < 96; i++)
            CHECK(sums[i] == static_cast<float>(496 + i / 32 * 1024));
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

static void halves_are_widened_and_narrowed()
{
    for (uint32_t half = 0; half < 0x10000; half++) {
        const float of_fp16 = device::widen_fp16(half), of_bf16 = device::as_float(half << 16);
        if (!std::isnan(of_fp16))
            CHECK(device::narrow_fp16x2(of_fp16, 0) == half);
        if (!std::isnan(of_bf16))
            CHECK(device::narrow_bf16x2(0, of_bf16) == half << 16);
    }
    CHECK(device::widen_fp16(0x3c01) == 1 + 1.0f / 1024);
    CHECK(device::widen_fp16(0x8001) == -std::ldexp(1.0f, -24));
    /* ties go to even; overflow gives infinity */
    CHECK(device::narrow_fp16x2(1 + 1.0f / 2048, 1 + 3.0f / 2048) == 0x3c023c00u);
    CHECK(device::narrow_fp16x2(65519, 65520) == 0x7c007bffu);
    CHECK(device::narrow_bf16x2(1 + 1.0f / 256, 1 + 3.0f / 256) == 0x3f823f80u);
    CHECK(device::narrow_bf16x2(NAN, 3.4e38f) == 0x7f807fffu);
}

static void maxima_keep_nan()
{
    CHECK(std::isnan(device::max_nan(NAN, 1)) && std::isnan(device::max_nan(1, NAN)));
    CHECK(!std::signbit(device::max_nan(-0.0f, 0.0f)) && !std::signbit(device::max_nan(0.0f, -0.0f)));
    CHECK(device::max_nan_bf16x2(0xff803f80u, 0xc000bf80u) == 0xc0003f80u);
    CHECK(device::max_nan_fp16x2(0x7e00fc00u, 0x3c00bc00u) == 0x7fffbc00u);
    CHECK(std::isnan(device::min_nan(NAN, 1)) && std::isnan(device::min_nan(1, NAN)));
    CHECK(device::min_nan(-INFINITY, 3) == -INFINITY && device::min_nan(2, 3) == 2);
    CHECK(std::signbit(device::min_nan(-0.0f, 0.0f)) && std::signbit(device::min_nan(0.0f, -0.0f)));
    CHECK(device::min_nan_bf16x2(0xff803f80u, 0xc000bf80u) == 0xff80bf80u);
    CHECK(device::min_nan_fp16x2(0x7e00fc00u, 0x3c00bc00u) == 0x7ffffc00u);
}

/* Threads 0 to 3 at bytes 0, 4, 8 and 12. */
template <int WORDS> static void load_apart(const void *argument)
{
    uint32_t words[WORDS];
    device::load_words(static_cast<const char *>(argument) + 4 * threadIdx.x, words);
}

static void store_apart(const void *argument)
{
    device::store_2(static_cast<char *>(const_cast<void *>(argument)) + threadIdx.x, 1);
}

static void misaligned_accesses_are_found()
{
    alignas(16) char memory[48] = {};
    CHECK(contains(simt::launch({}, {2, 1, 1}, 0, load_apart<2>, memory), "thread 1 accesses 8 bytes"));
    CHECK(contains(simt::launch({}, {4, 1, 1}, 0, load_apart<4>, memory), "accesses 16 bytes"));
    CHECK(simt::launch({}, {1, 1, 1}, 0, load_apart<4>, memory).empty());
    CHECK(contains(simt::launch({}, {2, 1, 1}, 0, store_apart, memory), "thread 1 accesses 2 bytes"));
}

/* Errors reach PTX's bound, and do not exceed it. */
static void exp2_error_reaches_the_bound_of_ptx()
{
    double worst = 0;
    for (int i = 1; i < 2000000; i++) {
        const float x = static_cast<float>(i) * -6e-5f;
        const double exact = std::exp2(static_cast<double>(x));
        worst = std::fmax(worst, std::fabs(device::exp2_fast(x) / exact - 1));
    }
    CHECK(worst > 2.2e-7 && worst < 3e-7); /* 2^-22, and half a unit of rounding */
    CHECK(device::exp2_fast(0) == 1 && device::exp2_fast(-INFINITY) == 0 && device::exp2_fast(-126.5f) == 0);
    CHECK(std::isnan(device::exp2_fast(NAN)));
}

int main()
{
    every_thread_runs_once_in_any_order();
    a_missing_barrier_shows();
    threads_that_do_not_meet_are_reported();
    shuffles_exchange_within_warps();
    halves_are_widened_and_narrowed();
    maxima_keep_nan();
    misaligned_accesses_are_found();
    exp2_error_reaches_the_bound_of_ptx();
    return 0;
}
