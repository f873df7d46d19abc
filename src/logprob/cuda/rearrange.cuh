/* Tokens from one order to another: as many lanes a token as it has words, at most a warp's. */
#ifndef BP_LOGPROB_CUDA_REARRANGE_CUH
#define BP_LOGPROB_CUDA_REARRANGE_CUH

#include "logprob/cuda/device.cuh"
/* after it */
#include "logprob/cuda/shapes.h"

namespace device
{

/* What a lane moves at once. */
template <uint32_t BYTES> struct word {
    static constexpr uint32_t bytes = BYTES;
    uint32_t parts[BYTES / 4];

    BP_DEVICE void load(const char *from, word &w)
    {
        load_words<static_cast<int>(BYTES / 4)>(from, w.parts);
    }
    BP_DEVICE void store(char *to, const word &w)
    {
        store_words<static_cast<int>(BYTES / 4)>(to, w.parts);
    }
};

#define BP_SMALL_WORD(size)                                                                                            \
    template <> struct word<size> {                                                                                    \
        static constexpr uint32_t bytes = size;                                                                        \
        uint32_t parts[1];                                                                                             \
                                                                                                                       \
        BP_DEVICE void load(const char *from, word &w)                                                                 \
        {                                                                                                              \
            w.parts[0] = load_##size(from);                                                                            \
        }                                                                                                              \
        BP_DEVICE void store(char *to, const word &w)                                                                  \
        {                                                                                                              \
            store_##size(to, w.parts[0]);                                                                              \
        }                                                                                                              \
    };

BP_SMALL_WORD(1)
BP_SMALL_WORD(2)
BP_SMALL_WORD(4)

/* Word `number` of a token that is filled. */
template <class W> BP_DEVICE W fill_word(const uint8_t *fill, uint64_t number)
{
    const uint32_t first = static_cast<uint32_t>(number % (BP_FILL_BYTES / W::bytes)) * W::bytes;
    W w = {};
    BP_UNROLL
    for (uint32_t i = 0; i < W::bytes; i++)
        w.parts[i / 4] |= static_cast<uint32_t>(fill[first + i]) << 8 * (i % 4);
    return w;
}

#define BP_WORDS_AT_ONCE 4 /* on their way, of a lane */

/* Words `lane`, `lane` + `lanes`, ... */
template <class W> BP_DEVICE void copy_token(char *to, const char *from, uint64_t words, uint32_t lane, uint32_t lanes)
{
    uint64_t i = lane;
    for (; i + (BP_WORDS_AT_ONCE - 1) * lanes < words; i += BP_WORDS_AT_ONCE * lanes) {
        W w[BP_WORDS_AT_ONCE];
        BP_UNROLL
        for (uint32_t k = 0; k < BP_WORDS_AT_ONCE; k++)
            W::load(from + (i + k * lanes) * W::bytes, w[k]);
        BP_UNROLL
        for (uint32_t k = 0; k < BP_WORDS_AT_ONCE; k++)
            W::store(to + (i + k * lanes) * W::bytes, w[k]);
    }
    BP_NO_UNROLL
    for (; i < words; i += lanes) {
        W w;
        W::load(from + i * W::bytes, w);
        W::store(to + i * W::bytes, w);
    }
}

template <class W>
BP_DEVICE void fill_token(char *to, const uint8_t *fill, uint64_t words, uint32_t lane, uint32_t lanes)
{
    BP_NO_UNROLL
    for (uint64_t i = lane; i < words; i += lanes)
        W::store(to + i * W::bytes, fill_word<W>(fill, i));
}

template <class W> BP_DEVICE void rearrange_tokens(const bp_rearrange_work &work)
{
    const bp_cp_order from = static_cast<bp_cp_order>(work.from_order), to = static_cast<bp_cp_order>(work.to_order);
    const uint64_t places = bp_group_places(&work.group, to), words = work.token_bytes / W::bytes;
    const uint32_t lanes = bp_lanes_of_token(words), lane = threadIdx.x % lanes;
    const uint64_t tokens = blockDim.x / lanes, step = gridDim.x * tokens; /* of a block, of the grid */
    for (uint64_t index = blockIdx.x * tokens + threadIdx.x / lanes; index < places; index += step) {
        const bp_token_place place = bp_place_at(&work.group, to, index);
        const uint64_t source = bp_source_of(&work.group, from, static_cast<bp_cp_shift>(work.shift), &place);
        char *token = static_cast<char *>(work.to) + static_cast<int64_t>(place.position) * work.to_stride;
        if (source == BP_NOWHERE)
            fill_token<W>(token, work.fill, words, lane, lanes);
        else
            copy_token<W>(token, static_cast<const char *>(work.from) + static_cast<int64_t>(source) * work.from_stride,
                          words, lane, lanes);
    }
}

} // namespace device

#endif
