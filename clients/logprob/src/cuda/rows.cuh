/* SPDX-License-Identifier: Apache-2.0 */
/* Rows and per-token values of a call, element types and what is made of an element: loading and storing vectors at any alignment, without
 * touching memory outside the row. */
#ifndef BP_LOGPROB_CUDA_ROWS_CUH
#define BP_LOGPROB_CUDA_ROWS_CUH

#include "cuda/device.cuh"
#include "work.h"

#include <math.h>

namespace device
{

/* ---- tokens ------------------------------------------------------------------------------------------------------ */

struct place {
    uint64_t token;
    int64_t batch, position;
};

BP_DEVICE uint64_t token_count(const bp_tokens_work &tokens)
{
    return tokens.batch * tokens.sequence;
}

BP_DEVICE place place_of(const bp_tokens_work &tokens, uint64_t token)
{
    const uint64_t batch = token / tokens.sequence;
    return {token, static_cast<int64_t>(batch), static_cast<int64_t>(token - batch * tokens.sequence)};
}

BP_DEVICE int64_t offset_of(const place &at, int64_t batch_stride, int64_t stride)
{
    return at.batch * batch_stride + at.position * stride;
}

BP_DEVICE int64_t target_of(const bp_tokens_work &tokens, const place &at, uint32_t k)
{
    const int64_t offset =
        offset_of(at, tokens.target_batch_stride, tokens.target_stride) + static_cast<int64_t>(k) * tokens.target_step;
    return tokens.target_is_64 != 0 ? static_cast<const int64_t *>(tokens.target)[offset]
                                    : static_cast<const int32_t *>(tokens.target)[offset];
}

/* A token is also masked if all its targets are ignored. */
BP_DEVICE bool is_masked(const bp_tokens_work &tokens, const place &at)
{
    if (tokens.mask != nullptr && tokens.mask[offset_of(at, tokens.mask_batch_stride, tokens.mask_stride)] == 0)
        return true;
    bool ignored = tokens.ignores != 0;
    BP_NO_UNROLL
    for (uint32_t k = 0; k < tokens.targets && ignored; k++)
        ignored = target_of(tokens, at, k) == tokens.ignored;
    return ignored;
}

BP_DEVICE bool has_bad_target(const bp_tokens_work &tokens, const place &at)
{
    bool bad = false;
    BP_NO_UNROLL
    for (uint32_t k = 0; k < tokens.targets && tokens.bad != nullptr; k++)
        bad = bad || bp_is_bad(&tokens, target_of(tokens, at, k)) != 0;
    return bad;
}

/* 1 / temperature; NaN outside the temperatures of logprob.h, so that everything made of it is NaN. */
BP_DEVICE float scale_of(const bp_tokens_work &tokens, const place &at)
{
    if (tokens.temperature == nullptr)
        return tokens.scale;
    const float t = tokens.temperature[offset_of(at, tokens.temperature_batch_stride, tokens.temperature_stride)];
    return t >= 1.2e-38f && t <= 8.5e37f ? 1 / t : NAN;
}

/* For forward passes: NaN also for a token with a bad target. */
BP_DEVICE float checked_scale_of(const bp_tokens_work &tokens, const place &at)
{
    return has_bad_target(tokens, at) ? NAN : scale_of(tokens, at);
}

BP_DEVICE float &output_at(const bp_output_work &of, const place &at, uint32_t k)
{
    return of.data[offset_of(at, of.batch_stride, of.stride) + static_cast<int64_t>(k) * of.step];
}

BP_DEVICE float upstream_at(const bp_upstream_work &of, const place &at, uint32_t k)
{
    return of.data != nullptr ? of.data[offset_of(at, of.batch_stride, of.stride) + static_cast<int64_t>(k) * of.step]
                              : 0;
}

BP_DEVICE uint32_t column_count(const bp_logits_work &logits)
{
    return static_cast<uint32_t>(logits.columns);
}

template <class X> BP_DEVICE const char *row_of(const bp_logits_work &logits, const place &at)
{
    return static_cast<const char *>(logits.data) +
           offset_of(at, logits.batch_stride, logits.stride) * static_cast<int64_t>(X::bytes);
}

/* ---- exponentials -------------------------------------------------------------------------------------------------- */

constexpr float LOG2_E = 1.44269504088896340736f; /* nearest float, and its error */
constexpr float LOG2_E_REST = 1.92596299112661746887e-8f;
constexpr float LN_2 = 0.69314718055994530942f;

/* Clamps differences to where exp is 0: -inf times 0 would be NaN. */
BP_DEVICE float no_lower(float difference)
{
    return max_nan(difference, -256);
}

/* ---- elements, as they lie in 32-bit words ----------------------------------------------------------------------- */

struct fp32 {
    static constexpr uint32_t bytes = 4, in_word = 1;
    static constexpr uint32_t lowest = 0xff800000u, highest = 0x7f800000u; /* bits of -inf and inf */

    BP_DEVICE void widen(uint32_t word, float (&x)[1])
    {
        x[0] = as_float(word);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[1])
    {
        return as_bits(x[0]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return as_bits(max_nan(as_float(a), as_float(b)));
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return as_bits(min_nan(as_float(a), as_float(b)));
    }
    BP_DEVICE uint32_t load(const char *from)
    {
        return load_4(from);
    }
    BP_DEVICE void store(char *to, uint32_t word)
    {
        store_4(to, word);
    }
};

/* Two 16-bit elements per word, the lower one first. */
struct halves {
    static constexpr uint32_t bytes = 2, in_word = 2;

    BP_DEVICE uint32_t load(const char *from)
    {
        return load_2(from);
    }
    BP_DEVICE void store(char *to, uint32_t half)
    {
        store_2(to, half);
    }
};

struct bf16 : halves {
    static constexpr uint32_t lowest = 0xff80ff80u, highest = 0x7f807f80u;

    BP_DEVICE void widen(uint32_t word, float (&x)[2])
    {
        x[0] = as_float(word << 16);
        x[1] = as_float(word & 0xffff0000u);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[2])
    {
        return narrow_bf16x2(x[0], x[1]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return max_nan_bf16x2(a, b);
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return min_nan_bf16x2(a, b);
    }
};

struct fp16 : halves {
    static constexpr uint32_t lowest = 0xfc00fc00u, highest = 0x7c007c00u;

    BP_DEVICE void widen(uint32_t word, float (&x)[2])
    {
        x[0] = widen_fp16(word & 0xffffu);
        x[1] = widen_fp16(word >> 16);
    }
    BP_DEVICE uint32_t narrow(const float (&x)[2])
    {
        return narrow_fp16x2(x[0], x[1]);
    }
    BP_DEVICE uint32_t larger(uint32_t a, uint32_t b)
    {
        return max_nan_fp16x2(a, b);
    }
    BP_DEVICE uint32_t smaller(uint32_t a, uint32_t b)
    {
        return min_nan_fp16x2(a, b);
    }
};

/* One element as fp32. */
template <class X> BP_DEVICE float value_at(const char *from)
{
    float x[X::in_word];
    X::widen(X::load(from), x);
    return x[0];
}

/* ---- forms of kernels -------------------------------------------------------------------------------------------- */

/* Each includes those before. GENERAL has all sums and upstream gradients, rounding and soft cap. */
enum form { PLAIN, ENTROPY, GENERAL };

/* x of a logit, from x as it lies in memory, and dx/dlogit with the rounding taken as the identity. */
struct changed {
    float x, slope;
};

template <form FORM> BP_DEVICE changed changed_by(const bp_logits_work &logits, float x)
{
    if (FORM != GENERAL)
        return {x, 1};
    if (logits.rounding == BP_DTYPE_BF16) {
        float y[2];
        bf16::widen(narrow_bf16x2(x, 0), y);
        x = y[0];
    } else if (logits.rounding == BP_DTYPE_FP16) {
        x = widen_fp16(narrow_fp16x2(x, 0) & 0xffffu);
    }
    if (logits.cap == 0)
        return {x, 1};
    const float t = tanhf(x * (1 / logits.cap));
    return {logits.cap * t, fmaf(-t, t, 1)};
}

/* ---- vectors: the columns that a thread loads or stores at once ------------------------------------------------------ */

BP_DEVICE uint32_t min(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Distance of an address from the multiple of `bytes` (a power of two) below it. */
BP_DEVICE uint32_t misalignment(const char *address, uint32_t bytes)
{
    return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address)) & (bytes - 1);
}

/* The words that start `shift` bytes into two adjacent aligned vectors. */
template <int WORDS>
BP_DEVICE void shifted(const uint32_t (&low)[WORDS], const uint32_t (&high)[WORDS], uint32_t shift,
                       uint32_t (&words)[WORDS])
{
    uint32_t both[2 * WORDS];
    BP_UNROLL
    for (int i = 0; i < WORDS; i++) {
        both[i] = low[i];
        both[WORDS + i] = high[i];
    }
    BP_UNROLL
    for (int step = WORDS / 2; step > 0; step /= 2) {
        BP_UNROLL
        for (int i = 0; i + step < 2 * WORDS; i++)
            both[i] = (shift & (4u * static_cast<uint32_t>(step))) != 0 ? both[i + step] : both[i];
    }
    BP_UNROLL
    for (int i = 0; i < WORDS; i++)
        words[i] = funnel(both[i], both[i + 1], 8 * (shift & 3));
}

template <int WORDS> BP_DEVICE void load_shifted(const char *from, uint32_t shift, uint32_t (&words)[WORDS])
{
    uint32_t low[WORDS], high[WORDS];
    load_words<WORDS>(from - shift, low);
    load_words<WORDS>(from - shift + 4 * WORDS, high);
    shifted<WORDS>(low, high, shift, words);
}

/* Element by element at the ends of a row, padded with -inf. */
template <class X, int WORDS>
BP_DEVICE void load_elements(const char *row, uint32_t columns, uint32_t column, uint32_t (&words)[WORDS])
{
    BP_UNROLL
    for (int i = 0; i < WORDS; i++) {
        words[i] = X::lowest;
        BP_UNROLL
        for (uint32_t k = 0; k < X::in_word; k++) {
            const uint32_t c = column + static_cast<uint32_t>(i) * X::in_word + k, half = 16 * k;
            if (c < columns) {
                const uint32_t element = X::load(row + static_cast<uint64_t>(c) * X::bytes);
                words[i] = X::in_word == 1 ? element : (words[i] & ~(0xffffu << half)) | element << half;
            }
        }
    }
}

/* `shift`: the misalignment of the row's vectors. */
template <class X, int WORDS>
BP_DEVICE void load_vector(const char *row, uint32_t columns, uint32_t column, uint32_t shift, uint32_t (&words)[WORDS])
{
    constexpr uint32_t bytes = 4 * WORDS;
    const uint64_t begin = static_cast<uint64_t>(column) * X::bytes, end = static_cast<uint64_t>(columns) * X::bytes;
    if (shift == 0 && begin + bytes <= end)
        load_words<WORDS>(row + begin, words);
    else if (begin >= shift && begin - shift + 2 * bytes <= end)
        load_shifted<WORDS>(row + begin, shift, words);
    else
        load_elements<X, WORDS>(row, columns, column, words);
}

/* Stores to an aligned address, at the end of a row only the elements in it. */
template <class Y, int WORDS>
BP_DEVICE void store_vector(char *row, uint32_t columns, uint32_t column, const uint32_t (&words)[WORDS])
{
    char *to = row + static_cast<uint64_t>(column) * Y::bytes;
    if (columns - column >= WORDS * Y::in_word) {
        store_words<WORDS>(to, words);
        return;
    }
    BP_UNROLL
    for (uint32_t i = 0; i < WORDS * Y::in_word; i++) {
        if (column + i < columns)
            Y::store(to + i * Y::bytes, words[i / Y::in_word] >> 16 * (i % Y::in_word));
    }
}

} // namespace device

#endif
