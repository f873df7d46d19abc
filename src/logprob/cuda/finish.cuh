/* Partials of all ranks to outputs and statistics, a thread a token. In double precision: there are few tokens, and what is lost here
 * would be lost in every element of the gradient. */
#ifndef BP_LOGPROB_CUDA_FINISH_CUH
#define BP_LOGPROB_CUDA_FINISH_CUH

#include "logprob/cuda/tokens.cuh"

#include <math.h>

namespace device
{

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
    /* 0: a row of nothing but -inf has no distribution */
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

/* The value at the lowest token. Where an earlier call found that one, and this call's token of that number is bad too, it is this
 * call's. */
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
