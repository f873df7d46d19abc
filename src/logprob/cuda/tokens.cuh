/* The rows of a call, and what belongs to each. */
#ifndef BP_LOGPROB_CUDA_TOKENS_CUH
#define BP_LOGPROB_CUDA_TOKENS_CUH

#include "logprob/cuda/device.cuh"
#include "logprob/work.h"

namespace device
{

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

BP_DEVICE bool is_masked(const bp_tokens_work &tokens, const place &at)
{
    return tokens.has_mask != 0 && tokens.mask[offset_of(at, tokens.mask_batch_stride, tokens.mask_stride)] == 0;
}

BP_DEVICE int64_t target_of(const bp_tokens_work &tokens, const place &at)
{
    const int64_t offset = offset_of(at, tokens.target_batch_stride, tokens.target_stride);
    return tokens.target_is_64 != 0 ? static_cast<const int64_t *>(tokens.target)[offset]
                                    : static_cast<const int32_t *>(tokens.target)[offset];
}

/* How far an id is behind the first: at least the number of ids where it is none of them, however far away. */
BP_DEVICE uint64_t behind(int64_t id, int64_t first)
{
    return static_cast<uint64_t>(id) - static_cast<uint64_t>(first);
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

} // namespace device

#endif
