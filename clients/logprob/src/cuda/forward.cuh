/* SPDX-License-Identifier: Apache-2.0 */
/* Logits to results or partials, a block per row and a warp per tile; partials of all ranks to results, a thread per token. */
#ifndef BP_LOGPROB_CUDA_FORWARD_CUH
#define BP_LOGPROB_CUDA_FORWARD_CUH

#include "cuda/tiles.cuh"

namespace device
{

/* ---- results of a row ---------------------------------------------------------------------------------------------- */

/* In double precision: tokens are few, and an error here would reach every element of the gradient. */
struct statistics {
    float max;
    double log_sum, energy, mean; /* mean: of x */
};

/* `sum`, `weighted` and `total` over the whole vocabulary. */
BP_DEVICE statistics statistics_of(float max, double sum, double weighted, double total, uint64_t vocab)
{
    /* NaN: a row of only -inf has no distribution */
    return {max, sum != 0 ? log(sum) : static_cast<double>(NAN), weighted / sum, total / static_cast<double>(vocab)};
}

BP_DEVICE void write_statistics(const bp_results_work &work, const place &at, const statistics &of, float scale)
{
    if (work.entropy.data != nullptr)
        output_at(work.entropy, at, 0) = static_cast<float>(of.log_sum - of.energy);
    if (work.logsumexp.data != nullptr)
        output_at(work.logsumexp, at, 0) = static_cast<float>(static_cast<double>(of.max) * scale + of.log_sum);
    if (work.mean_logprob.data != nullptr)
        output_at(work.mean_logprob, at, 0) = static_cast<float>((of.mean - of.max) * scale - of.log_sum);
    if (work.saved.max != nullptr) {
        work.saved.max[at.token] = of.max;
        work.saved.log_sum[at.token] = static_cast<float>(of.log_sum);
    }
    if (work.saved.energy != nullptr)
        work.saved.energy[at.token] = static_cast<float>(of.energy);
}

BP_DEVICE void write_zeros(const bp_results_work &work, const place &at)
{
    if (work.entropy.data != nullptr)
        output_at(work.entropy, at, 0) = 0;
    if (work.logsumexp.data != nullptr)
        output_at(work.logsumexp, at, 0) = 0;
    if (work.mean_logprob.data != nullptr)
        output_at(work.mean_logprob, at, 0) = 0;
    if (work.saved.max != nullptr)
        work.saved.max[at.token] = work.saved.log_sum[at.token] = 0;
    if (work.saved.energy != nullptr)
        work.saved.energy[at.token] = 0;
}

/* Of target k, whose x is `x`. */
BP_DEVICE void write_logprob(const bp_results_work &work, const bp_tokens_work &tokens, const place &at, uint32_t k,
                             float x, float max, double log_sum, float scale)
{
    const int64_t target = target_of(tokens, at, k);
    const bool counts = bp_is_in_vocabulary(&tokens, target) != 0 && bp_is_ignored(&tokens, target) == 0;
    const bool bad = bp_is_bad(&tokens, target) != 0;
    if (work.logprob.data != nullptr)
        output_at(work.logprob, at, k) = bad      ? NAN
                                         : counts ? static_cast<float>((static_cast<double>(x) - max) * scale - log_sum)
                                                  : 0.0f;
    if (bad)
        lower(tokens.bad, bp_bad_target(work.first_token + at.token, target, tokens.vocab_first));
}

/* x of target k; 0 if it is outside this shard. */
template <class X, form FORM>
BP_DEVICE float target_logit(const bp_tokens_work &tokens, const bp_logits_work &logits, const place &at, uint32_t k,
                             const char *row)
{
    const uint64_t column = bp_behind(target_of(tokens, at, k), logits.first);
    return column < logits.columns ? changed_by<FORM>(logits, value_at<X>(row + column * X::bytes)).x : 0;
}

/* Zeros, by the threads that write the results of other rows. */
BP_DEVICE void write_masked(const bp_results_work &work, const bp_tokens_work &tokens, const place &at)
{
    if (threadIdx.x == 0)
        write_zeros(work, at);
    if (threadIdx.x < tokens.targets && work.logprob.data != nullptr)
        output_at(work.logprob, at, threadIdx.x) = 0;
}

/* ---- forward --------------------------------------------------------------------------------------------------------- */

/* Tiles kept in shared memory; longer rows take several rounds. */
#define BP_TILES_KEPT 256u

/* For the threads that write results of targets. */
struct shared_statistics {
    double log_sum;
    float max, energy;
};

template <form FORM>
BP_DEVICE void finish_row(const bp_forward_work &work, const place &at, const sums &all, float scale,
                          shared_statistics &passed)
{
    if (work.partials != nullptr) {
        work.partials[at.token] = {all.max, has_bad_target(work.tokens, at) ? BP_SUM_BAD : all.sum,
                                   work.level >= BP_SUMS_WEIGHTED ? all.weighted : 0,
                                   work.level >= BP_SUMS_TOTAL ? all.total : 0};
        return;
    }
    const statistics made = statistics_of(all.max, all.sum, all.weighted, all.total, work.tokens.vocab);
    write_statistics(work.results, at, made, scale);
    passed = {made.log_sum, made.max, static_cast<float>(made.energy)};
}

template <class X, form FORM> BP_DEVICE void make_forward(const bp_forward_work &work)
{
    BP_SHARED(sums, kept, BP_TILES_KEPT);
    BP_SHARED(shared_statistics, passed, 1);
    const uint32_t columns = column_count(work.logits), tiles = (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    const bool has_target = threadIdx.x < work.tokens.targets; /* thread k writes the results of target k */
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at)) {
            if (work.partials == nullptr)
                write_masked(work.results, work.tokens, at);
            continue;
        }
        const char *row = row_of<X>(work.logits, at);
        const uint32_t skipped = misalignment(row, 16) / X::bytes;
        const float scale = checked_scale_of(work.tokens, at);
        sums all = no_sums();
        for (uint32_t begin = 0; begin < tiles; begin += BP_TILES_KEPT) {
            const uint32_t count = min(tiles - begin, BP_TILES_KEPT);
            for (uint32_t i = warp; i < count; i += warps) {
                const uint32_t first = (begin + i) * BP_TILE_COLUMNS;
                tile_words<X> tile;
                load_tile<X>(row, columns, first, lane, tile);
                const sums made = sums_of<X, FORM>(work.logits, tile, lane, skipped, columns - first, scale);
                if (lane == 0)
                    kept[i] = made;
            }
            wait_for_block();
            if (warp == 0) {
                const sums round = merged_by_warp<FORM>(kept, count, lane, scale);
                all = begin == 0 ? round : merged(all, round, scale);
                if (lane == 0 && begin + count == tiles)
                    finish_row<FORM>(work, at, all, scale, *passed);
            }
            wait_for_block();
        }
        if (!has_target)
            continue;
        const float x = target_logit<X, FORM>(work.tokens, work.logits, at, threadIdx.x, row);
        if (work.partials != nullptr)
            work.target_logits[token * work.tokens.targets + threadIdx.x] = x;
        else
            write_logprob(work.results, work.tokens, at, threadIdx.x, x, passed->max, passed->log_sum, scale);
    }
}

/* ---- finish -------------------------------------------------------------------------------------------------------- */

BP_DEVICE const bp_partial &partial_of(const bp_finish_work &work, uint32_t rank, uint64_t token)
{
    const char *of_rank = reinterpret_cast<const char *>(work.partials) + rank * work.rank_bytes;
    return reinterpret_cast<const bp_partial *>(of_rank)[token];
}

BP_DEVICE bool is_bad_on_a_rank(const bp_finish_work &work, uint64_t token)
{
    bool bad = false;
    for (uint32_t rank = 0; rank < work.ranks; rank++)
        bad = bad || partial_of(work, rank, token).sum == BP_SUM_BAD;
    return bad;
}

BP_DEVICE statistics statistics_of_ranks(const bp_finish_work &work, uint64_t token, float scale)
{
    float max = -INFINITY;
    double sum = 0, weighted = 0, total = 0;
    for (uint32_t rank = 0; rank < work.ranks; rank++)
        max = max_nan(max, partial_of(work, rank, token).max);
    for (uint32_t rank = 0; rank < work.ranks; rank++) {
        const bp_partial part = partial_of(work, rank, token);
        const double d = part.max == -INFINITY ? 0 : (static_cast<double>(part.max) - max) * scale, e = exp(d);
        sum += e * part.sum;
        weighted += e != 0 ? e * (part.weighted + part.sum * d) : 0;
        total += part.total;
    }
    return statistics_of(max, sum, weighted, total, work.tokens.vocab);
}

/* The sum over ranks: 0 on all but one. */
BP_DEVICE float target_logit_of_ranks(const bp_finish_work &work, uint64_t number)
{
    float x = 0;
    for (uint32_t rank = 0; rank < work.ranks; rank++) {
        const char *of_rank = reinterpret_cast<const char *>(work.target_logits) + rank * work.rank_bytes;
        x += reinterpret_cast<const float *>(of_rank)[number];
    }
    return x;
}

BP_DEVICE void make_results(const bp_finish_work &work)
{
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t token = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
         token < token_count(work.tokens); token += step) {
        const place at = place_of(work.tokens, token);
        if (is_masked(work.tokens, at)) {
            write_zeros(work.results, at);
            for (uint32_t k = 0; k < work.tokens.targets && work.results.logprob.data != nullptr; k++)
                output_at(work.results.logprob, at, k) = 0;
            continue;
        }
        const bool bad = is_bad_on_a_rank(work, token);
        const float scale = bad ? NAN : scale_of(work.tokens, at);
        const statistics made = statistics_of_ranks(work, token, scale);
        write_statistics(work.results, at, made, scale);
        for (uint32_t k = 0; k < work.tokens.targets; k++)
            write_logprob(work.results, work.tokens, at, k,
                          target_logit_of_ranks(work, token * work.tokens.targets + k), made.max, made.log_sum, scale);
        if (bad && !has_bad_target(work.tokens, at) && work.tokens.bad != nullptr)
            lower(work.tokens.bad, bp_bad_target(work.results.first_token + token, target_of(work.tokens, at, 0),
                                                 work.tokens.vocab_first));
    }
}

} // namespace device

#endif
