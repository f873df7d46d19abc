/* SPDX-License-Identifier: Apache-2.0 */
/* Packed sequences: rearranging tokens between orders, loss sums (a block per piece of a sequence), and seeds. */
#ifndef BP_LOGPROB_CUDA_SEQUENCES_CUH
#define BP_LOGPROB_CUDA_SEQUENCES_CUH

#include "cuda/rows.cuh"

namespace device
{

/* ---- rearranging ------------------------------------------------------------------------------------------------- */

/* Unit of a lane's copies. */
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

/* Word `number` of a filled token. */
template <class W> BP_DEVICE W fill_word(const uint8_t *fill, uint64_t number)
{
    const uint32_t first = static_cast<uint32_t>(number % (BP_FILL_BYTES / W::bytes)) * W::bytes;
    W w = {};
    BP_UNROLL
    for (uint32_t i = 0; i < W::bytes; i++)
        w.parts[i / 4] |= static_cast<uint32_t>(fill[first + i]) << 8 * (i % 4);
    return w;
}

#define BP_WORDS_AT_ONCE 4 /* loads in flight per lane */

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

/* Places [begin, end) of dense tokens, word by word. */
template <class W> BP_DEVICE void move_words(const bp_rearrange_work &work, uint64_t begin, uint64_t end)
{
    const bp_cp_order from = static_cast<bp_cp_order>(work.from_order), to = static_cast<bp_cp_order>(work.to_order);
    const bp_cp_shift shift = static_cast<bp_cp_shift>(work.shift);
    uint64_t run;
    for (uint64_t i = begin; i < end; i += run) {
        const bp_token_place place = bp_place_at(&work.group, to, i);
        const uint64_t source = bp_source_of(&work.group, from, shift, &place);
        run = bp_lesser(bp_run_at(&work.group, from, to, shift, &place), end - i);
        BP_NO_UNROLL
        for (uint64_t k = 0; k < run; k++) {
            W w = fill_word<W>(work.fill, 0);
            if (source != BP_NOWHERE)
                W::load(static_cast<const char *>(work.from) + (source + k) * W::bytes, w);
            W::store(static_cast<char *>(work.to) + (place.position + k) * W::bytes, w);
        }
    }
}

/* Vectors of a lane, a warp's vectors apart, from place `index` on. False: they are not in one run, or not aligned where they go, or
 * realigning them would read memory beyond the run. */
template <class W> BP_DEVICE bool move_vectors(const bp_rearrange_work &work, uint64_t index)
{
    constexpr uint32_t each = 16 / W::bytes, last = (BP_VECTORS_AT_ONCE - 1) * BP_LANES * each;
    const bp_cp_order from = static_cast<bp_cp_order>(work.from_order), to = static_cast<bp_cp_order>(work.to_order);
    const bp_cp_shift shift = static_cast<bp_cp_shift>(work.shift);
    const bp_token_place place = bp_place_at(&work.group, to, index);
    const uint64_t run = bp_run_at(&work.group, from, to, shift, &place);
    char *token = static_cast<char *>(work.to) + place.position * W::bytes;
    if (run < last + each || misalignment(token, 16) != 0)
        return false;
    uint32_t words[BP_VECTORS_AT_ONCE][4];
    const uint64_t source = bp_source_of(&work.group, from, shift, &place);
    const char *first = static_cast<const char *>(work.from) + (source == BP_NOWHERE ? 0 : source * W::bytes);
    const uint32_t off = misalignment(first, 16);
    if (source == BP_NOWHERE) {
        const W w = fill_word<W>(work.fill, 0);
        BP_UNROLL
        for (uint32_t k = 0; k < 4 * BP_VECTORS_AT_ONCE; k++)
            words[k / 4][k % 4] = W::bytes == 1   ? w.parts[0] * 0x01010101u
                                  : W::bytes == 2 ? w.parts[0] * 0x00010001u
                                                  : w.parts[k % (W::bytes == 8 ? 2 : 1)];
    } else if (off == 0) {
        BP_UNROLL
        for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++)
            load_words<4>(first + k * (16 * BP_LANES), words[k]);
    } else {
        if (source * W::bytes < off || run < last + 2 * each)
            return false;
        BP_UNROLL
        for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++)
            load_shifted<4>(first + k * (16 * BP_LANES), off, words[k]);
    }
    BP_UNROLL
    for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++)
        store_words<4>(token + k * (16 * BP_LANES), words[k]);
    return true;
}

/* Calls `vectors` for the first place of each lane's vectors where all of them lie in the group, and `single` for the places of a vector where
 * it returns false. Vectors have `EACH` places; the first one begins `head` places before the group's first. */
template <uint32_t EACH, class Work, class Vectors, class Single>
BP_DEVICE void for_vectors(const Work &work, uint64_t places, uint32_t head, Vectors vectors, Single single)
{
    constexpr uint32_t apart = BP_LANES * EACH, of_warp = BP_VECTORS_AT_ONCE * apart;
    const uint64_t threads = static_cast<uint64_t>(gridDim.x) * blockDim.x, end = places + head;
    const uint64_t thread = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    const uint64_t first = thread / BP_LANES * of_warp + threadIdx.x % BP_LANES * EACH;
    for (uint64_t at = first; at < end; at += threads * (BP_VECTORS_AT_ONCE * EACH)) {
        if (at >= head && at + (of_warp - apart + EACH) <= end && vectors(work, at - head))
            continue;
        BP_NO_UNROLL
        for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++) {
            const uint64_t begin = at + k * apart;
            if (begin < end)
                single(work, begin < head ? 0 : begin - head, bp_lesser(begin + EACH, end) - head);
        }
    }
}

/* One lane per word of a token, up to a warp. */
template <class W> BP_DEVICE void rearrange_long_tokens(const bp_rearrange_work &work)
{
    const bp_cp_order from = static_cast<bp_cp_order>(work.from_order), to = static_cast<bp_cp_order>(work.to_order);
    const uint64_t places = bp_group_places(&work.group, to), words = work.token_bytes / W::bytes;
    const uint32_t lanes = bp_lanes_of_token(words), lane = threadIdx.x % lanes;
    const uint64_t tokens = blockDim.x / lanes, step = gridDim.x * tokens; /* per block, per grid */
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

template <class W> BP_DEVICE void rearrange_tokens(const bp_rearrange_work &work)
{
    if (W::bytes == 16 || bp_is_dense(&work) == 0) {
        rearrange_long_tokens<W>(work);
        return;
    }
    const bp_cp_order to = static_cast<bp_cp_order>(work.to_order);
    const uint64_t start = bp_place_at(&work.group, to, 0).position * W::bytes;
    for_vectors<16 / W::bytes>(work, bp_group_places(&work.group, to),
                               misalignment(static_cast<const char *>(work.to) + start, 16) / W::bytes, move_vectors<W>,
                               move_words<W>);
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

/* Local tokens of a sequence: the data are the first `head` tokens, and `tail` tokens from `chunk` on. */
struct slice {
    uint64_t begin, chunk, head, tail;
};

/* Number of a chunk's tokens within the sequence's length. */
BP_DEVICE uint64_t reached(uint64_t length, uint64_t begin, uint64_t chunk)
{
    const uint64_t left = length > begin ? length - begin : 0;
    return left < chunk ? left : chunk;
}

BP_DEVICE slice slice_of(const bp_sequence_group &group, uint32_t sequence)
{
    const uint64_t ranks = group.ranks, padded = group.padded[sequence + 1] - group.padded[sequence];
    const uint64_t length = sequence < group.data ? bp_sequence_length(&group, sequence) : 0;
    const uint64_t begin = group.padded[sequence] / ranks, chunk = ranks == 1 ? padded : padded / (2 * ranks);
    const uint64_t head = reached(length, group.rank * chunk, chunk);
    const uint64_t tail = reached(length, (2 * ranks - 1 - group.rank) * chunk, chunk); /* 0 on one rank */
    return {begin, chunk, head, tail};
}

BP_DEVICE bool is_data(const slice &s, uint64_t index)
{
    return index < s.head || (index >= s.chunk && index - s.chunk < s.tail);
}

BP_DEVICE bp_loss_record no_record()
{
    return {0, 0, 0, INFINITY, -INFINITY};
}

BP_DEVICE bp_loss_record merged(const bp_loss_record &a, const bp_loss_record &b)
{
    return {a.logprob + b.logprob, a.entropy + b.entropy, a.valid + b.valid, min_nan(a.logit_min, b.logit_min),
            max_nan(a.logit_max, b.logit_max)};
}

BP_DEVICE float value_or(const float *plane, int64_t stride, uint64_t position, bool is_valid, float otherwise)
{
    return is_valid && plane != nullptr ? plane[static_cast<int64_t>(position) * stride] : otherwise;
}

#define BP_TOKENS_AT_ONCE 4 /* per thread, so that their loads overlap */

/* Tokens `begin`, `begin` + BP_SUMS_THREADS, ... before `end`. */
BP_DEVICE bp_loss_record record_of_thread(const bp_sums_work &work, const slice &s, uint64_t begin, uint64_t end)
{
    bp_loss_record all = no_record();
    for (uint64_t first = begin; first < end; first += BP_TOKENS_AT_ONCE * BP_SUMS_THREADS) {
        bp_loss_record one[BP_TOKENS_AT_ONCE];
        bool is_valid[BP_TOKENS_AT_ONCE];
        BP_UNROLL
        for (uint32_t k = 0; k < BP_TOKENS_AT_ONCE; k++) {
            const uint64_t i = first + k * BP_SUMS_THREADS;
            is_valid[k] =
                i < end && is_data(s, i) && work.mask[static_cast<int64_t>(s.begin + i) * work.mask_stride] != 0;
        }
        BP_UNROLL
        for (uint32_t k = 0; k < BP_TOKENS_AT_ONCE; k++) {
            const uint64_t at = s.begin + first + k * BP_SUMS_THREADS;
            one[k] = {value_or(work.logprob, work.logprob_stride, at, is_valid[k], 0),
                      value_or(work.entropy, work.entropy_stride, at, is_valid[k], 0), is_valid[k],
                      value_or(work.logit_min, work.logit_min_stride, at, is_valid[k], INFINITY),
                      value_or(work.logit_max, work.logit_max_stride, at, is_valid[k], -INFINITY)};
        }
        BP_UNROLL
        for (uint32_t k = 0; k < BP_TOKENS_AT_ONCE; k++)
            all = merged(all, one[k]);
    }
    return all;
}

/* Merges all lanes into lane 0, in a fixed tree. */
BP_DEVICE bp_loss_record merged_by_warp(bp_loss_record *kept, uint32_t lane)
{
    bp_loss_record all = kept[lane];
    for (uint32_t i = lane + BP_LANES; i < BP_SUMS_THREADS; i += BP_LANES)
        all = merged(all, kept[i]);
    kept[lane] = all;
    for (uint32_t distance = BP_LANES / 2; distance > 0; distance /= 2) {
        wait_for_warp();
        if (lane < distance)
            kept[lane] = all = merged(all, kept[lane + distance]);
    }
    return all;
}

BP_DEVICE void sum_pieces(const bp_sums_work &work)
{
    BP_SHARED(bp_loss_record, kept, BP_SUMS_THREADS);
    for (uint32_t number = blockIdx.x; number < work.first_piece[work.group.count]; number += gridDim.x) {
        const bp_sums_piece piece = bp_sums_piece_at(&work, number);
        kept[threadIdx.x] =
            record_of_thread(work, slice_of(work.group, piece.sequence), piece.begin + threadIdx.x, piece.end);
        wait_for_block();
        if (threadIdx.x < BP_LANES) {
            const bp_loss_record all = merged_by_warp(kept, threadIdx.x);
            if (threadIdx.x == 0)
                *piece.record = all;
        }
        wait_for_block();
    }
}

/* A block per sequence, a thread per piece. */
BP_DEVICE void merge_pieces(const bp_sums_work &work)
{
    BP_SHARED(bp_loss_record, kept, BP_SUMS_THREADS);
    for (uint32_t sequence = blockIdx.x; sequence < work.group.count; sequence += gridDim.x) {
        const uint32_t first = work.first_piece[sequence], count = work.first_piece[sequence + 1] - first;
        if (count == 1)
            continue;
        kept[threadIdx.x] = threadIdx.x < count ? work.pieces[first + threadIdx.x] : no_record();
        wait_for_block();
        if (threadIdx.x < BP_LANES) {
            const bp_loss_record all = merged_by_warp(kept, threadIdx.x);
            if (threadIdx.x == 0)
                work.records[sequence] = all;
        }
        wait_for_block();
    }
}

/* ---- seeds --------------------------------------------------------------------------------------------------------- */

BP_DEVICE void seed_places(const bp_seed_work &work, uint64_t begin, uint64_t end)
{
    for (uint64_t index = begin; index < end; index++) {
        const bp_token_place place = bp_place_at(&work.group, BP_CP_LOCAL, index);
        const int64_t at = static_cast<int64_t>(place.position);
        const bool is_valid = bp_is_data(&work.group, &place) != 0 && work.mask[at * work.mask_stride] != 0;
        work.seed[at * work.seed_stride] = is_valid ? work.value : 0;
    }
}

/* As move_vectors, of four tokens each. */
BP_DEVICE bool seed_vectors(const bp_seed_work &work, uint64_t index)
{
    constexpr uint32_t apart = BP_LANES * 4, whole = (BP_VECTORS_AT_ONCE - 1) * apart + 4;
    const bp_token_place place = bp_place_at(&work.group, BP_CP_LOCAL, index);
    const uint64_t run = bp_run_at(&work.group, BP_CP_LOCAL, BP_CP_LOCAL, BP_CP_KEEP, &place);
    const char *mask = reinterpret_cast<const char *>(work.mask + place.position);
    char *seed = reinterpret_cast<char *>(work.seed + place.position);
    if (run < whole || work.mask_stride != 1 || work.seed_stride != 1 || misalignment(mask, 4) != 0 ||
        misalignment(seed, 16) != 0)
        return false;
    const uint64_t data = bp_data_of_run(&work.group, &place, run);
    uint32_t counts[BP_VECTORS_AT_ONCE];
    BP_UNROLL
    for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++)
        counts[k] = load_4(mask + k * apart);
    BP_UNROLL
    for (uint32_t k = 0; k < BP_VECTORS_AT_ONCE; k++) {
        uint32_t words[4];
        BP_UNROLL
        for (uint32_t i = 0; i < 4; i++)
            words[i] = k * apart + i < data && (counts[k] >> 8 * i & 0xff) != 0 ? as_bits(work.value) : 0;
        store_words<4>(seed + k * (16 * BP_LANES), words);
    }
    return true;
}

BP_DEVICE void make_seeds(const bp_seed_work &work)
{
    const uint64_t start = bp_place_at(&work.group, BP_CP_LOCAL, 0).position;
    for_vectors<4>(work, bp_group_places(&work.group, BP_CP_LOCAL),
                   misalignment(reinterpret_cast<const char *>(work.seed + start), 16) / 4, seed_vectors, seed_places);
}

} // namespace device

#endif
