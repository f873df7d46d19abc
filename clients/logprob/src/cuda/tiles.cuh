/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of a row and their sums: a warp per tile. The lane and the order in which columns are added depend on the column only. Fused
 * operations are explicit (-fmad=false), so sums have the same bits in all kernels. */
#ifndef BP_LOGPROB_CUDA_TILES_CUH
#define BP_LOGPROB_CUDA_TILES_CUH

#include "cuda/rows.cuh"

namespace device
{

/* ---- sums relative to a maximum: merged in a fixed order -------------------------------------------------------------- */

typedef bp_partial sums;

BP_DEVICE sums no_sums()
{
    return {-INFINITY, 0, 0, 0};
}

/* Reference of the differences: 0 for a maximum of -inf, which would make them NaN. */
BP_DEVICE float reference(float max)
{
    return max == -INFINITY ? 0 : max;
}

/* exp(d) for d in [-256, 0], corrected for the rounding of the exponent. */
BP_DEVICE float exp_exact(float d)
{
    const float exponent = d * LOG2_E;
    const float rest = fmaf(d, LOG2_E_REST, fmaf(d, LOG2_E, -exponent));
    const float e = exp2_fast(exponent);
    return fmaf(e * LN_2, rest, e);
}

/* `part` relative to `max`. */
BP_DEVICE sums rebased(const sums &part, float max, float scale)
{
    const float d = no_lower((part.max - reference(max)) * scale), e = exp_exact(d);
    return {max, part.sum * e, e * fmaf(d, part.sum, part.weighted), part.total};
}

BP_DEVICE sums merged(const sums &a, const sums &b, float scale)
{
    const float max = max_nan(a.max, b.max);
    const sums c = rebased(a, max, scale), d = rebased(b, max, scale);
    return {max, c.sum + d.sum, c.weighted + d.weighted, c.total + d.total};
}

/* ---- warp reductions; every lane gets the result ----------------------------------------------------------------------- */

BP_DEVICE float largest_of_warp(float x)
{
    BP_UNROLL
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2)
        x = max_nan(x, shuffle_xor(x, distance));
    return x;
}

BP_DEVICE float sum_of_warp(float x)
{
    BP_UNROLL
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2)
        x += shuffle_xor(x, distance);
    return x;
}

BP_DEVICE float sum_of_8(const float (&x)[8])
{
    return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
}

/* Merges the sums of tiles: rebases them to the largest maximum, then adds. */
template <form FORM> BP_DEVICE sums merged_by_warp(const sums *list, uint32_t count, uint32_t lane, float scale)
{
    sums all = no_sums();
    for (uint32_t i = lane; i < count; i += BP_LANES)
        all.max = max_nan(all.max, list[i].max);
    all.max = largest_of_warp(all.max);
    for (uint32_t i = lane; i < count; i += BP_LANES) {
        const sums part = rebased(list[i], all.max, scale);
        all.sum += part.sum;
        all.weighted += part.weighted;
        all.total += part.total;
    }
    return {all.max, sum_of_warp(all.sum), FORM >= ENTROPY ? sum_of_warp(all.weighted) : 0,
            FORM >= GENERAL ? sum_of_warp(all.total) : 0};
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A tile in the registers of a warp: vector i of lane l holds columns [(32 i + l) * width, + width). Vectors of a row that is not aligned lie as
 * in memory, `skipped` columns further left. The first `skipped` columns of lane 0 are then those of its next vector, so that a lane's sums are
 * over columns of one lane, to which `turn` hands them once a tile. */
template <class X> struct tile_words {
    static constexpr uint32_t width = 4 * X::in_word; /* columns of a vector */
    static constexpr uint32_t apart = BP_LANES * width;
    static constexpr int vectors = static_cast<int>(BP_TILE_COLUMNS / apart), at_once = vectors;
    static constexpr bool clamps_first = true;
    uint32_t words[vectors][4];

    BP_DEVICE void get(const tile_words &tile, int i, uint32_t (&vector)[4])
    {
        BP_UNROLL
        for (int k = 0; k < 4; k++)
            vector[k] = tile.words[i][k];
    }
};

/* The same in shared memory, from the lane's first vector on. */
template <class X> struct shared_tile {
    static constexpr int at_once = 2;           /* vectors in registers */
    static constexpr bool clamps_first = false; /* tiles can be summed again, and instructions are the limit */
    const char *first;

    BP_DEVICE void get(const shared_tile &tile, int i, uint32_t (&vector)[4])
    {
        load_shared_words<4>(tile.first + i * static_cast<int>(16 * BP_LANES), vector);
    }
};

/* Issues all loads before the first use. */
template <class X> BP_DEVICE void load_aligned(const char *first, tile_words<X> &tile)
{
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++)
        load_words<4>(first + static_cast<uint32_t>(i) * tile.apart * X::bytes, tile.words[i]);
}

/* Bits of a vector's word `k` that lie in the first `bytes` of the vector. */
BP_DEVICE uint32_t first_bits(uint32_t bytes, uint32_t k)
{
    const uint32_t in_word = bytes > 4 * k ? min(bytes - 4 * k, 4) : 0;
    return in_word == 0 ? 0 : 0xffffffffu >> (32 - 8 * in_word);
}

/* Replaces the first bytes of `vector` by those of `next`. */
BP_DEVICE void take_first(uint32_t (&vector)[4], const uint32_t (&next)[4], uint32_t bytes)
{
    BP_UNROLL
    for (uint32_t k = 0; k < 4; k++)
        vector[k] = (vector[k] & ~first_bits(bytes, k)) | (next[k] & first_bits(bytes, k));
}

/* A tile at an end of its row, padded with -inf. `first`: the lane's first column, which wraps around before the row. */
template <class X>
BP_DEVICE void load_end(const char *row, uint32_t columns, uint32_t first, uint32_t skipped, tile_words<X> &tile)
{
    const uint32_t partial = columns - (columns + skipped) % tile.width;
    uint32_t end[4];
    load_elements<X, 4>(row, columns, partial, end);
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        const uint32_t column = first + static_cast<uint32_t>(i) * tile.apart;
        const bool whole = column < columns && columns - column >= tile.width;
        if (whole)
            load_words<4>(row + static_cast<uint64_t>(column) * X::bytes, tile.words[i]);
        BP_UNROLL
        for (int k = 0; k < 4; k++)
            tile.words[i][k] = whole ? tile.words[i][k] : column == partial ? end[k] : X::lowest;
    }
    if (first + skipped == 0 && skipped != 0)
        load_elements<X, 4>(row, columns, first, tile.words[0]);
}

template <class X>
BP_DEVICE void load_tile(const char *row, uint32_t columns, uint32_t begin, uint32_t lane, tile_words<X> &tile)
{
    const uint32_t shift = misalignment(row, 16), skipped = shift / X::bytes, left = columns - begin;
    const char *first = row + (static_cast<uint64_t>(begin) + lane * tile.width) * X::bytes - shift;
    const bool inside = shift == 0 ? left >= BP_TILE_COLUMNS : begin > 0 && left >= BP_TILE_COLUMNS + tile.width;
    if (inside)
        load_aligned(first, tile);
    else
        load_end<X>(row, columns, begin + lane * tile.width - skipped, skipped, tile);
    if (shift == 0 || lane != 0)
        return;
    uint32_t behind[4];
    if (inside)
        load_words<4>(first + BP_TILE_COLUMNS * X::bytes, behind);
    else
        load_elements<X, 4>(row, columns, begin + BP_TILE_COLUMNS - skipped, behind);
    BP_UNROLL
    for (int i = 0; i + 1 < tile.vectors; i++)
        take_first(tile.words[i], tile.words[i + 1], shift);
    take_first(tile.words[tile.vectors - 1], behind, shift);
}

/* ---- sums of a tile ------------------------------------------------------------------------------------------------ */

/* NaN if any element is NaN. `Tile`: tile_words or shared_tile. */
template <class X, class Tile> BP_DEVICE float largest(const Tile &tile)
{
    uint32_t word[4] = {X::lowest, X::lowest, X::lowest, X::lowest};
    BP_UNROLL_BY(Tile::at_once)
    for (int i = 0; i < tile_words<X>::vectors; i++) {
        uint32_t vector[4];
        Tile::get(tile, i, vector);
        BP_UNROLL
        for (int k = 0; k < 4; k++)
            word[k] = X::larger(word[k], vector[k]);
    }
    float x[X::in_word];
    X::widen(X::larger(X::larger(word[0], word[1]), X::larger(word[2], word[3])), x);
    return largest_of_warp(max_nan(x[0], x[X::in_word - 1]));
}

/* Hands a lane's running sums to the lane and place that they have in an aligned row. */
template <class X> BP_DEVICE void turn(float (&x)[8], uint32_t skipped)
{
    constexpr uint32_t width = tile_words<X>::width;
    BP_UNROLL
    for (uint32_t step = width / 2; step > 0; step /= 2) {
        float turned[8];
        BP_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            turned[i] = (skipped & step) != 0 ? x[i / width * width + (i + step) % width] : x[i];
        BP_UNROLL
        for (uint32_t i = 0; i < 8; i++)
            x[i] = turned[i];
    }
    BP_UNROLL
    for (uint32_t i = 0; i < 8; i++) {
        const float next = as_float(shuffle_next(as_bits(x[i])));
        x[i] = i % width + skipped >= width ? next : x[i];
    }
}

/* Eight running sums per lane keep each one short. CLAMPS: d of -inf, whose product with e = 0 would be NaN. Other d that are clamped change no
 * bits. */
template <class X, form FORM, bool CLAMPS, class Tile>
BP_DEVICE sums clamped_sums_of(const bp_logits_work &logits, const Tile &tile, uint32_t lane, uint32_t skipped,
                               uint32_t left, float scale)
{
    typedef tile_words<X> shape;
    /* rounding and soft cap are monotonic: the largest x is that of the largest logit */
    const float max = changed_by<FORM>(logits, largest<X>(tile)).x, from = reference(max);
    float sum[8] = {}, weighted[8] = {}, total[8] = {};
    BP_UNROLL_BY(Tile::at_once)
    for (int i = 0; i < shape::vectors; i++) {
        uint32_t vector[4];
        Tile::get(tile, i, vector);
        BP_UNROLL
        for (int k = 0; k < 4; k++) {
            float x[X::in_word];
            X::widen(vector[k], x);
            BP_UNROLL
            for (int j = 0; j < static_cast<int>(X::in_word); j++) {
                const int to = X::in_word == 2 ? 2 * k + j : 4 * (i & 1) + k;
                if (FORM == GENERAL) {
                    const uint32_t in_vector = static_cast<uint32_t>(k) * X::in_word + static_cast<uint32_t>(j);
                    const uint32_t vector_of = static_cast<uint32_t>(i) + (lane == 0 && in_vector < skipped ? 1 : 0);
                    const uint32_t column = lane * shape::width + vector_of * shape::apart + in_vector - skipped;
                    x[j] = changed_by<FORM>(logits, x[j]).x;
                    total[to] += column < left ? x[j] : 0;
                    x[j] = column < left ? x[j] : -INFINITY;
                }
                const float d = (x[j] - from) * scale, e = exp2_fast(d * LOG2_E);
                sum[to] += e;
                if (FORM >= ENTROPY)
                    weighted[to] = fmaf(e, CLAMPS ? no_lower(d) : d, weighted[to]);
            }
        }
    }
    if (skipped != 0) {
        turn<X>(sum, skipped);
        if (FORM >= ENTROPY)
            turn<X>(weighted, skipped);
        if (FORM >= GENERAL)
            turn<X>(total, skipped);
    }
    return {max, sum_of_warp(sum_of_8(sum)), FORM >= ENTROPY ? sum_of_warp(sum_of_8(weighted)) : 0.0f,
            FORM >= GENERAL ? sum_of_warp(sum_of_8(total)) : 0.0f};
}

/* A tile's sums, in all lanes. `left`: columns of the row from the tile's first on; tiles are padded with -inf. */
template <class X, form FORM, class Tile>
BP_DEVICE sums sums_of(const bp_logits_work &logits, const Tile &tile, uint32_t lane, uint32_t skipped, uint32_t left,
                       float scale)
{
    if (FORM == PLAIN || Tile::clamps_first)
        return clamped_sums_of<X, FORM, true>(logits, tile, lane, skipped, left, scale);
    const sums made = clamped_sums_of<X, FORM, false>(logits, tile, lane, skipped, left, scale);
    return made.weighted == made.weighted ? made
                                          : clamped_sums_of<X, FORM, true>(logits, tile, lane, skipped, left, scale);
}

} // namespace device

#endif
