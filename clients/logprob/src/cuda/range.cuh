/* SPDX-License-Identifier: Apache-2.0 */
/* Passes over rows: the smallest and largest logit and copies, a block per row, and sums of columns. */
#ifndef BP_LOGPROB_CUDA_RANGE_CUH
#define BP_LOGPROB_CUDA_RANGE_CUH

#include "cuda/rows.cuh"

namespace device
{

/* ---- ranges ------------------------------------------------------------------------------------------------------ */

/* Independent of element order: reads aligned vectors, and the ends of a row element by element. */
struct range {
    float min, largest;
};

BP_DEVICE range no_range()
{
    return {INFINITY, -INFINITY};
}

BP_DEVICE range united(const range &a, const range &b)
{
    return {min_nan(a.min, b.min), max_nan(a.largest, b.largest)};
}

/* Range of four words in parallel, and of the elements of a word. */
template <class X> struct word_range {
    uint32_t min[4], largest[4];

    BP_DEVICE void add(word_range &all, const uint32_t (&words)[4])
    {
        BP_UNROLL
        for (int k = 0; k < 4; k++) {
            all.min[k] = X::smaller(all.min[k], words[k]);
            all.largest[k] = X::larger(all.largest[k], words[k]);
        }
    }

    BP_DEVICE range of(const word_range &all)
    {
        range r = no_range();
        BP_UNROLL
        for (int k = 0; k < 4; k++) {
            float min[X::in_word], largest[X::in_word];
            X::widen(all.min[k], min);
            X::widen(all.largest[k], largest);
            BP_UNROLL
            for (int i = 0; i < static_cast<int>(X::in_word); i++)
                r = united(r, {min[i], largest[i]});
        }
        return r;
    }
};

#define BP_RANGE_VECTORS 8 /* loads in flight */

/* Vectors `first`, `first` + `step`, ... of `count` aligned ones. */
template <class X> BP_DEVICE range range_of_vectors(const char *vectors, uint32_t count, uint32_t first, uint32_t step)
{
    word_range<X> all;
    BP_UNROLL
    for (int k = 0; k < 4; k++) {
        all.min[k] = X::highest;
        all.largest[k] = X::lowest;
    }
    uint32_t i = first;
    for (; i < count && count - i > (BP_RANGE_VECTORS - 1) * step; i += BP_RANGE_VECTORS * step) {
        uint32_t words[BP_RANGE_VECTORS][4];
        BP_UNROLL
        for (uint32_t k = 0; k < BP_RANGE_VECTORS; k++)
            load_words<4>(vectors + 16 * (static_cast<uint64_t>(i) + k * step), words[k]);
        BP_UNROLL
        for (int k = 0; k < BP_RANGE_VECTORS; k++)
            word_range<X>::add(all, words[k]);
    }
    BP_NO_UNROLL
    for (; i < count; i += step) {
        uint32_t words[4];
        load_words<4>(vectors + 16 * static_cast<uint64_t>(i), words);
        word_range<X>::add(all, words);
    }
    return word_range<X>::of(all);
}

/* A thread's part of a row, with at most one element before the first and one after the last aligned vector. */
template <class X> BP_DEVICE range range_of_thread(const char *row, uint32_t columns)
{
    const uint32_t width = 4 * X::in_word, thread = threadIdx.x;
    const uint32_t before = min(columns, (16 - misalignment(row, 16)) % 16 / X::bytes);
    const uint32_t vectors = (columns - before) / width, behind = before + vectors * width;
    range r = range_of_vectors<X>(row + before * X::bytes, vectors, thread, blockDim.x);
    if (thread < before) {
        const float x = value_at<X>(row + thread * X::bytes);
        r = united(r, {x, x});
    }
    if (thread < columns - behind) {
        const float x = value_at<X>(row + (static_cast<uint64_t>(behind) + thread) * X::bytes);
        r = united(r, {x, x});
    }
    return r;
}

BP_DEVICE range range_of_warp(range r)
{
    BP_UNROLL
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2)
        r = united(r, {shuffle_xor(r.min, distance), shuffle_xor(r.largest, distance)});
    return r;
}

BP_DEVICE void write_range(const bp_range_work &work, const place &at, const range &r)
{
    if (work.min != nullptr)
        work.min[offset_of(at, work.min_batch_stride, work.min_stride)] = r.min;
    if (work.largest != nullptr)
        work.largest[offset_of(at, work.largest_batch_stride, work.largest_stride)] = r.largest;
}

template <class X> BP_DEVICE void make_ranges(const bp_range_work &work)
{
    BP_SHARED(range, kept, BP_MAX_THREADS / BP_LANES);
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at)) {
            if (threadIdx.x == 0)
                write_range(work, at, {0, 0});
            continue;
        }
        const range mine = range_of_warp(range_of_thread<X>(row_of<X>(work.logits, at), column_count(work.logits)));
        if (threadIdx.x % BP_LANES == 0)
            kept[threadIdx.x / BP_LANES] = mine;
        wait_for_block();
        if (threadIdx.x == 0) {
            range all = kept[0];
            for (uint32_t warp = 1; warp < blockDim.x / BP_LANES; warp++)
                all = united(all, kept[warp]);
            write_range(work, at, all);
        }
        wait_for_block();
    }
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

BP_DEVICE bool row_counts(const bp_rows_work &work, uint64_t row)
{
    const uint64_t at = work.mask_first + row;
    const int64_t batch = static_cast<int64_t>(at / work.mask_count),
                  position = static_cast<int64_t>(at % work.mask_count);
    return work.mask[batch * work.mask_batch_stride + position * work.mask_stride] != 0;
}

/* A block per row. Copies without conversion keep all bits; masked rows become zeros. */
template <class X, class Y, bool SAME> BP_DEVICE void copy_rows(const bp_rows_work &work)
{
    for (uint64_t row = blockIdx.x; row < work.rows; row += gridDim.x) {
        const bool counts = work.mask == nullptr || row_counts(work, row);
        const int64_t number = static_cast<int64_t>(row);
        const char *from =
            static_cast<const char *>(work.from) + number * work.from_stride * static_cast<int64_t>(X::bytes);
        char *to = static_cast<char *>(work.to) + number * work.to_stride * static_cast<int64_t>(Y::bytes);
        for (uint64_t column = threadIdx.x; column < work.columns; column += blockDim.x) {
            uint32_t element = 0;
            if (counts && SAME) {
                element = X::load(from + column * X::bytes);
            } else if (counts) {
                const float y[Y::in_word] = {value_at<X>(from + column * X::bytes)};
                element = Y::narrow(y);
            }
            Y::store(to + column * Y::bytes, element);
        }
    }
}

/* ---- sums of columns ----------------------------------------------------------------------------------------------- */

#define BP_COLUMN_LOADS 8 /* in flight */

/* A thread per column. */
template <class X> BP_DEVICE void sum_columns(const bp_columns_work &work)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t column = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; column < work.columns;
         column += step) {
        const char *at = static_cast<const char *>(work.from) + column * X::bytes;
        const int64_t stride = work.stride * static_cast<int64_t>(X::bytes);
        uint64_t row = 0;
        float sum = 0;
        for (; row + BP_COLUMN_LOADS <= work.rows; row += BP_COLUMN_LOADS) {
            float x[BP_COLUMN_LOADS];
            BP_UNROLL
            for (int i = 0; i < BP_COLUMN_LOADS; i++)
                x[i] = value_at<X>(at + (static_cast<int64_t>(row) + i) * stride);
            BP_UNROLL
            for (int i = 0; i < BP_COLUMN_LOADS; i++)
                sum += x[i];
        }
        BP_NO_UNROLL
        for (; row < work.rows; row++)
            sum += value_at<X>(at + static_cast<int64_t>(row) * stride);
        work.to[column] = work.adds != 0 ? work.to[column] + sum : sum;
    }
}

} // namespace device

#endif
