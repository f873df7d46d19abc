/* Logits to partials, a block per row and a warp per tile; the partials of all ranks to outputs and statistics, a thread per token. The
 * lane and the order in which columns are added depend on the column only. Fused operations are explicit (-fmad=false), so sums have the
 * same bits with and without entropy. */
#ifndef BP_LOGPROB_CUDA_PARTIALS_CUH
#define BP_LOGPROB_CUDA_PARTIALS_CUH

#include "logprob/cuda/rows.cuh"

namespace device
{

/* ---- sums relative to a maximum: merged in a fixed order -------------------------------------------------------------- */

/* bp_partial without the target. */
struct sums {
    float max, sum, weighted;
};

BP_DEVICE sums no_sums()
{
    return {-INFINITY, 0, 0};
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
    return {max, part.sum * e, e * fmaf(d, part.sum, part.weighted)};
}

BP_DEVICE sums merged(const sums &a, const sums &b, float scale)
{
    const float max = max_nan(a.max, b.max);
    const sums c = rebased(a, max, scale), d = rebased(b, max, scale);
    return {max, c.sum + d.sum, c.weighted + d.weighted};
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
BP_DEVICE sums merged_by_warp(const sums *list, uint32_t count, uint32_t lane, float scale)
{
    sums all = no_sums();
    for (uint32_t i = lane; i < count; i += BP_LANES)
        all.max = max_nan(all.max, list[i].max);
    all.max = largest_of_warp(all.max);
    for (uint32_t i = lane; i < count; i += BP_LANES) {
        const sums part = rebased(list[i], all.max, scale);
        all.sum += part.sum;
        all.weighted += part.weighted;
    }
    return {all.max, sum_of_warp(all.sum), sum_of_warp(all.weighted)};
}

/* ---- tiles ------------------------------------------------------------------------------------------------------- */

/* A tile in the registers of a warp: vector i of lane l holds columns [(32 i + l) * width, + width), whatever the alignment of the row. */
template <class X> struct tile_words {
    static constexpr uint32_t width = 4 * X::in_word; /* columns of a vector */
    static constexpr uint32_t apart = BP_LANES * width;
    static constexpr int vectors = static_cast<int>(BP_TILE_COLUMNS / apart);
    uint32_t words[vectors][4];
};

/* Shared memory in which the lanes of a warp pass words: their vectors in order, and one more. */
struct stage {
    uint32_t words[4 * (BP_LANES + 1)];
};

/* Issues all loads before the first use. */
template <class X> BP_DEVICE void load_aligned(const char *first, tile_words<X> &tile)
{
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++)
        load_words<4>(first + static_cast<uint32_t>(i) * tile.apart * X::bytes, tile.words[i]);
}

/* Realigns vectors that were loaded `shift` bytes too far left. `behind`: the vector after the last. One vector at a time, to save
 * registers. */
template <class X>
BP_DEVICE void shift_tile(tile_words<X> &tile, const char *behind, uint32_t shift, uint32_t lane, stage &stage)
{
    uint32_t last[4] = {};
    if (lane == 0)
        load_words<4>(behind, last);
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        BP_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            stage.words[4 * lane + k] = tile.words[i][k];
            if (lane == 0)
                stage.words[4 * BP_LANES + k] = i + 1 < tile.vectors ? tile.words[(i + 1) % tile.vectors][k] : last[k];
        }
        wait_for_warp();
        BP_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t *from = &stage.words[4 * lane + shift / 4 + k];
            tile.words[i][k] = shift % 4 == 0 ? from[0] : funnel(from[0], from[1], 8 * (shift % 4));
        }
        wait_for_warp();
    }
}

/* Last tile of an aligned row, padded with -inf. */
template <class X>
BP_DEVICE void load_end(const char *row, uint32_t columns, uint32_t begin, uint32_t lane, tile_words<X> &tile)
{
    const uint32_t partial = columns - columns % tile.width;
    uint32_t end[4];
    load_elements<X, 4>(row, columns, partial, end);
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        const uint32_t column = begin + lane * tile.width + static_cast<uint32_t>(i) * tile.apart;
        if (column < partial)
            load_words<4>(row + static_cast<uint64_t>(column) * X::bytes, tile.words[i]);
        BP_UNROLL
        for (int k = 0; k < 4; k++)
            tile.words[i][k] = column < partial ? tile.words[i][k] : column == partial ? end[k] : X::lowest;
    }
}

/* Word by word, for the first and last tile of unaligned rows. */
template <class X>
BP_DEVICE void gather_tile(const char *row, uint32_t columns, uint32_t begin, uint32_t lane, stage &stage,
                           tile_words<X> &tile)
{
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++) {
        BP_UNROLL
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t at = k * BP_LANES + lane;
            uint32_t word[1];
            load_elements<X, 1>(row, columns, begin + static_cast<uint32_t>(i) * tile.apart + at * X::in_word, word);
            stage.words[at] = word[0];
        }
        wait_for_warp();
        BP_UNROLL
        for (uint32_t k = 0; k < 4; k++)
            tile.words[i][k] = stage.words[4 * lane + k];
        wait_for_warp();
    }
}

template <class X>
BP_DEVICE void load_tile(const char *row, uint32_t columns, uint32_t begin, uint32_t lane, stage &stage,
                         tile_words<X> &tile)
{
    const uint32_t shift = misalignment(row, 16), left = columns - begin;
    const char *first = row + (static_cast<uint64_t>(begin) + lane * tile.width) * X::bytes;
    if (shift == 0 && left >= BP_TILE_COLUMNS) {
        load_aligned(first, tile);
    } else if (shift == 0) {
        load_end<X>(row, columns, begin, lane, tile);
    } else if (begin > 0 && left >= BP_TILE_COLUMNS + tile.width) {
        load_aligned(first - shift, tile);
        shift_tile(tile, first - shift + BP_TILE_COLUMNS * X::bytes, shift, lane, stage);
    } else {
        gather_tile<X>(row, columns, begin, lane, stage, tile);
    }
}

/* ---- partials ---------------------------------------------------------------------------------------------------- */

/* NaN if any element is NaN. */
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

/* A tile's sums, in all lanes. Eight running sums per lane keep each one short. */
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

/* Tiles kept in shared memory; longer rows take several rounds. */
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
        if (threadIdx.x == blockDim.x - 1) /* not in the warp that merges */
            partial.target = target < columns ? value_at<X>(row + target * X::bytes) : 0;
    }
}

/* ---- outputs ----------------------------------------------------------------------------------------------------- */

/* In double precision: tokens are few, and an error here would reach every element of the gradient. */
struct outputs {
    float logprob, entropy, max, log_sum, energy;
};

BP_DEVICE outputs outputs_of(const bp_finish_work &work, uint64_t token, bool has_target)
{
    const uint64_t tokens = token_count(work.tokens);
    const bp_partial *partials = work.partials + token;
    float max = -INFINITY, target = 0;
    double sum = 0, weighted = 0;
    for (uint32_t rank = 0; rank < work.ranks; rank++) {
        max = max_nan(max, partials[rank * tokens].max);
        target += partials[rank * tokens].target;
    }
    for (uint32_t rank = 0; rank < work.ranks; rank++) {
        const bp_partial part = partials[rank * tokens];
        const double d = part.max == -INFINITY ? 0 : (static_cast<double>(part.max) - max) * work.scale, e = exp(d);
        sum += e * part.sum;
        weighted += e != 0 ? e * (part.weighted + part.sum * d) : 0;
    }
    /* 0: a row of only -inf has no distribution */
    const double log_sum = sum != 0 ? log(sum) : static_cast<double>(NAN), energy = weighted / sum;
    const double logprob = (static_cast<double>(target) - max) * work.scale - log_sum;
    return {has_target ? static_cast<float>(logprob) : 0.0f, static_cast<float>(log_sum - energy), max,
            static_cast<float>(log_sum), static_cast<float>(energy)};
}

BP_DEVICE void write_outputs(const bp_finish_work &work, const place &at, const outputs &made)
{
    if (work.logprob != nullptr)
        work.logprob[offset_of(at, work.logprob_batch_stride, work.logprob_stride)] = made.logprob;
    if (work.entropy != nullptr)
        work.entropy[offset_of(at, work.entropy_batch_stride, work.entropy_stride)] = made.entropy;
    if (work.saved.max != nullptr) {
        work.saved.max[at.token] = made.max;
        work.saved.log_sum[at.token] = made.log_sum;
    }
    if (work.saved.energy != nullptr)
        work.saved.energy[at.token] = made.energy;
}

BP_DEVICE void make_outputs(const bp_finish_work &work)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t token = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         token < token_count(work.tokens); token += step) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at)) {
            write_outputs(work, at, {0, 0, 0, 0, 0});
            continue;
        }
        const bool has_target = behind(target_of(work.tokens, at), work.vocab_first) < work.vocab;
        write_outputs(work, at, outputs_of(work, token, has_target));
        if (work.bad != nullptr && !has_target)
            lower(&work.bad->token, token);
    }
}

/* Records the value of the lowest bad token. If an earlier call recorded the same token, this call's value replaces it. */
BP_DEVICE void note_bad_value(const bp_finish_work &work)
{
    const uint64_t token = work.bad->token;
    if (token >= token_count(work.tokens))
        return;
    const place at = place_of(work.tokens, token);
    if (is_masked(work.tokens, at))
        return;
    const int64_t target = target_of(work.tokens, at);
    if (behind(target, work.vocab_first) >= work.vocab)
        work.bad->value = target;
}

} // namespace device

#endif
