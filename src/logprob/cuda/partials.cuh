/* Logits to partials: a block makes a row, a warp a tile of it. Which lane adds which columns, and in which order, depends on the column
 * alone. */
#ifndef BP_LOGPROB_CUDA_PARTIALS_CUH
#define BP_LOGPROB_CUDA_PARTIALS_CUH

#include "logprob/cuda/sums.cuh"
#include "logprob/cuda/tiles.cuh"
#include "logprob/cuda/tokens.cuh"

namespace device
{

/* NaN when there is one. */
template <class X> BP_DEVICE float largest(const tile_words<X> &tile)
{
    uint32_t word[4] = {X::lowest, X::lowest, X::lowest, X::lowest};
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        BP_UNROLL
        for (int k = 0; k < 4; k++)
            word[k] = X::larger(word[k], tile.words[i][k]);
    }
    float x[X::in_word];
    X::widen(X::larger(X::larger(word[0], word[1]), X::larger(word[2], word[3])), x);
    return largest_of_warp(max_nan(x[0], x[X::in_word - 1]));
}

/* A tile's sums, in all lanes. Eight running sums a lane, so that each is short. */
template <class X, bool ENTROPY> BP_DEVICE sums sums_of(const tile_words<X> &tile, float scale)
{
    const float max = largest(tile), from = reference(max);
    float sum[8] = {}, weighted[8] = {};
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        BP_UNROLL
        for (int k = 0; k < 4; k++) {
            float x[X::in_word];
            X::widen(tile.words[i][k], x);
            BP_UNROLL
            for (int j = 0; j < static_cast<int>(X::in_word); j++) {
                const int to = X::in_word == 2 ? 2 * k + j : 4 * (i & 1) + k;
                const float d = (x[j] - from) * scale, e = exp2_fast(d * LOG2_E);
                sum[to] += e;
                if (ENTROPY)
                    weighted[to] = fmaf(e, no_lower(d), weighted[to]);
            }
        }
    }
    return {max, sum_of_warp(sum_of_8(sum)), ENTROPY ? sum_of_warp(sum_of_8(weighted)) : 0.0f};
}

/* Tiles that are kept at once; rows of more are made in rounds. */
#define BP_TILES_KEPT 256u

template <class X, bool ENTROPY> BP_DEVICE void make_partials(const bp_partials_work &work)
{
    BP_SHARED(sums, kept, BP_TILES_KEPT);
    BP_SHARED(stage, stages, BP_MOST_THREADS / BP_LANES);
    const uint32_t columns = column_count(work.logits), tiles = (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at))
            continue;
        const char *row = row_of<X>(work.logits, at);
        const uint64_t target = behind(target_of(work.tokens, at), work.logits.first);
        sums all = no_sums();
        for (uint32_t begin = 0; begin < tiles; begin += BP_TILES_KEPT) {
            const uint32_t count = least(tiles - begin, BP_TILES_KEPT);
            for (uint32_t i = warp; i < count; i += warps) {
                tile_words<X> tile;
                load_tile<X>(row, columns, (begin + i) * BP_TILE_COLUMNS, lane, stages[warp], tile);
                const sums made = sums_of<X, ENTROPY>(tile, work.logits.scale);
                if (lane == 0)
                    kept[i] = made;
            }
            wait_for_block();
            if (warp == 0) {
                const sums round = merged_by_warp(kept, count, lane, work.logits.scale);
                all = begin == 0 ? round : merged(all, round, work.logits.scale);
            }
            wait_for_block();
        }
        bp_partial &partial = work.partials[token];
        if (threadIdx.x == 0) {
            partial.max = all.max;
            partial.sum = all.sum;
            partial.weighted = ENTROPY ? all.weighted : 0;
        }
        if (threadIdx.x == blockDim.x - 1) /* another warp than the one that merges */
            partial.target = target < columns ? value_at<X>(row + target * X::bytes) : 0;
    }
}

} // namespace device

#endif
