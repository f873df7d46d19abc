/* SPDX-License-Identifier: Apache-2.0 */
/* Results and gradient in one kernel, which reads a row from memory once: a block per row, whose tiles stay in shared memory between both
 * passes, as far as they fit. Tiles that do not fit are read again, from the L2 cache in most cases: the last ones read are the first to be
 * read again. Tiles lie in shared memory as in memory: where rows are REALIGNED, each has a vector more, begins `skipped` columns into its place,
 * and logits and gradient have the same distance, in columns, from an aligned vector. */
#ifndef BP_LOGPROB_CUDA_FUSED_CUH
#define BP_LOGPROB_CUDA_FUSED_CUH

#include "cuda/forward.cuh"
#include "cuda/gradient.cuh"

namespace device
{

/* ---- a warp's tiles -------------------------------------------------------------------------------------------------- */

/* Tiles `warp`, `warp` + `warps`, ... of a row, and their places in shared memory: the first tiles keep theirs, the others share the last two
 * by turns. There are at least two places, or one for each tile. */
template <class X, bool REALIGNED> struct warp_tiles {
    static constexpr uint32_t bytes = BP_TILE_COLUMNS * X::bytes + (REALIGNED ? 16 : 0);
    const char *row;
    char *places; /* of the block */
    uint32_t columns, skipped, lane, warp, warps, count, kept, places_each;
};

template <class X, bool REALIGNED> BP_DEVICE uint32_t first_column(const warp_tiles<X, REALIGNED> &tiles, uint32_t j)
{
    return (tiles.warp + j * tiles.warps) * BP_TILE_COLUMNS;
}

template <class X, bool REALIGNED> BP_DEVICE char *place_of_tile(const warp_tiles<X, REALIGNED> &tiles, uint32_t j)
{
    const uint32_t place = j < tiles.kept ? j : tiles.kept + ((j - tiles.kept) & 1);
    return tiles.places + (place * tiles.warps + tiles.warp) * tiles.bytes;
}

template <class X, bool REALIGNED>
BP_DEVICE warp_tiles<X, REALIGNED> tiles_of_warp(const char *row, uint32_t columns, uint32_t tiles, char *places,
                                                 uint32_t places_bytes)
{
    const uint32_t warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    const uint32_t each = places_bytes / (warps * warp_tiles<X, REALIGNED>::bytes);
    return {row,
            places,
            columns,
            REALIGNED ? misalignment(row, 16) / X::bytes : 0,
            threadIdx.x % BP_LANES,
            warp,
            warps,
            tiles > warp ? (tiles - warp + warps - 1) / warps : 0,
            each > 2 ? each - 2 : 0,
            each};
}

/* Copies tile j to its place, padded with -inf, as one group of copies. */
template <class X, bool REALIGNED> BP_DEVICE void fetch_tile(const warp_tiles<X, REALIGNED> &tiles, uint32_t j)
{
    typedef tile_words<X> shape;
    const uint32_t first = first_column(tiles, j), left = tiles.columns - first;
    const uint32_t begin = first + tiles.lane * shape::width - tiles.skipped; /* wraps around before the row */
    const char *from = tiles.row + static_cast<int64_t>(static_cast<int32_t>(begin)) * X::bytes;
    char *to = place_of_tile(tiles, j) + tiles.lane * 16;
    if (REALIGNED ? first > 0 && left >= BP_TILE_COLUMNS + shape::width : left >= BP_TILE_COLUMNS) {
        BP_UNROLL
        for (uint32_t i = 0; i < shape::vectors; i++)
            copy_to_shared(to + i * (16 * BP_LANES), from + i * (16 * BP_LANES));
        if (REALIGNED && tiles.lane == 0)
            copy_to_shared(to + shape::vectors * (16 * BP_LANES), from + shape::vectors * (16 * BP_LANES));
        return;
    }
    const uint32_t vectors = shape::vectors + (REALIGNED && tiles.lane == 0 ? 1 : 0);
    BP_NO_UNROLL
    for (uint32_t i = 0; i < vectors; i++) {
        const uint32_t column = begin + i * shape::apart;
        if (column < tiles.columns && tiles.columns - column >= shape::width) {
            copy_to_shared(to + i * (16 * BP_LANES), from + i * (16 * BP_LANES));
        } else {
            uint32_t words[4];
            load_elements<X, 4>(tiles.row, tiles.columns, column, words);
            store_shared_words(to + i * (16 * BP_LANES), words);
        }
    }
}

/* ---- both passes over them --------------------------------------------------------------------------------------------- */

/* Gives lane 0's vectors the first columns of its next ones, as tile_words has them, or takes them `back`. */
template <class X> BP_DEVICE void pass_first(char *place, uint32_t skipped, uint32_t lane, bool back)
{
    char *at = place + lane * (16 * BP_LANES), *behind = at + 16 * BP_LANES;
    uint32_t own[4], next[4];
    const bool has_vector = lane < tile_words<X>::vectors;
    if (has_vector) {
        load_shared_words<4>(at, own);
        load_shared_words<4>(behind, next);
    }
    wait_for_warp();
    if (has_vector && back) {
        take_first(next, own, skipped * X::bytes);
        store_shared_words(behind, next);
    } else if (has_vector) {
        take_first(own, next, skipped * X::bytes);
        store_shared_words(at, own);
    }
    wait_for_warp();
}

/* Two tiles are under way while one is summed. */
template <class X, form FORM, bool REALIGNED>
BP_DEVICE void sum_tiles(const bp_logits_work &logits, const warp_tiles<X, REALIGNED> &tiles, float scale, sums *kept)
{
    for (uint32_t j = 0; j < 2; j++) {
        if (j < tiles.count)
            fetch_tile(tiles, j);
        end_copies();
    }
    for (uint32_t j = 0; j < tiles.count; j++) {
        wait_for_copies<1>();
        const shared_tile<X> tile = {place_of_tile(tiles, j) + tiles.lane * 16};
        if (tiles.skipped != 0) {
            wait_for_warp();
            pass_first<X>(place_of_tile(tiles, j), tiles.skipped, tiles.lane, false);
        }
        const sums made =
            sums_of<X, FORM>(logits, tile, tiles.lane, tiles.skipped, tiles.columns - first_column(tiles, j), scale);
        if (tiles.skipped != 0) {
            wait_for_warp();
            pass_first<X>(place_of_tile(tiles, j), tiles.skipped, tiles.lane, true);
        }
        if (tiles.lane == 0)
            kept[tiles.warp + j * tiles.warps] = made;
        if (j + 2 < tiles.count)
            fetch_tile(tiles, j + 2);
        end_copies();
    }
    wait_for_copies<0>();
}

/* Vector `at` columns into a place. `length`: columns of the tile; `whole`: all of the vector's are. */
template <class X, class Y, form FORM>
BP_DEVICE void store_of_place(const bp_logits_work &logits, const row_state &state, const char *place, uint32_t at,
                              uint32_t skipped, uint32_t length, bool whole, char *out)
{
    typedef piece<X, Y> shape;
    const uint32_t column = at - skipped; /* of the tile; wraps around before it */
    uint32_t in[shape::in_words], made[shape::out_words];
    load_shared_words<shape::in_words>(place + at * X::bytes, in);
    gradients_of<X, Y, FORM>(logits, state, in, made);
    if (whole || (column < length && length - column >= shape::columns)) {
        store_words<shape::out_words>(out + column * Y::bytes, made);
        return;
    }
    BP_UNROLL
    for (uint32_t i = 0; i < shape::columns; i++) {
        if (column + i < length)
            Y::store(out + (column + i) * Y::bytes, made[i / Y::in_word] >> 16 * (i % Y::in_word));
    }
}

template <class X, class Y, form FORM, bool REALIGNED>
BP_DEVICE void store_tile(const bp_logits_work &logits, const row_state &state, const warp_tiles<X, REALIGNED> &tiles,
                          uint32_t j, char *row_out)
{
    typedef piece<X, Y> shape;
    constexpr int vectors = static_cast<int>(BP_TILE_COLUMNS / shape::apart);
    const uint32_t begin = first_column(tiles, j), length = min(tiles.columns - begin, BP_TILE_COLUMNS);
    const bool whole = !REALIGNED && length == BP_TILE_COLUMNS;
    const char *place = place_of_tile(tiles, j);
    char *out = row_out + static_cast<uint64_t>(begin) * Y::bytes;
    const uint32_t first = tiles.lane * shape::columns;
    BP_UNROLL_BY(4)
    for (int i = 0; i < vectors; i++)
        store_of_place<X, Y, FORM>(logits, state, place, first + static_cast<uint32_t>(i) * shape::apart, tiles.skipped,
                                   length, whole, out);
    if (REALIGNED && first < tiles.skipped)
        store_of_place<X, Y, FORM>(logits, state, place, first + BP_TILE_COLUMNS, tiles.skipped, length, false, out);
}

/* From the last tile to the first. Where tile j - 2 has lost its place to tile j, it is read again as soon as j is done; a tile is not
 * written before. */
template <class X, class Y, form FORM, bool REALIGNED>
BP_DEVICE void store_tiles(const bp_logits_work &logits, const row_state &state, const warp_tiles<X, REALIGNED> &tiles,
                           char *out)
{
    for (uint32_t j = tiles.count; j-- > 0;) {
        wait_for_copies<1>();
        wait_for_warp();
        store_tile<X, Y, FORM>(logits, state, tiles, j, out);
        wait_for_warp();
        if (j >= tiles.places_each)
            fetch_tile(tiles, j - 2);
        end_copies();
    }
    wait_for_copies<0>();
}

template <class X, class Y> BP_DEVICE void store_zero_row(const bp_fused_work &both, const place &at, char *out)
{
    const gradient_row row = row_at<X, Y>(both.forward.tokens, both.forward.logits, at, out);
    const uint32_t lane = threadIdx.x % BP_LANES, warp = threadIdx.x / BP_LANES, warps = blockDim.x / BP_LANES;
    store_head<Y, PLAIN>(row, both.forward.logits, {}, threadIdx.x, 0);
    for (uint32_t i = warp; i < piece_count(row.body); i += warps)
        store_zeros<Y, piece<X, Y>::out_words>(row.body, i * BP_PIECE_COLUMNS + lane * piece<X, Y>::columns);
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

template <class X, class Y, bool REALIGNED, form FORM> BP_DEVICE void make_fused(const bp_fused_work &both)
{
    BP_LAUNCH_SHARED(memory); /* sums of the tiles, then tiles */
    BP_SHARED(shared_statistics, passed, 1);
    BP_SHARED(upstreams, up, 1);
    BP_SHARED(place, where, 1); /* saves registers */
    const bp_forward_work &work = both.forward;
    const bp_logits_work &logits = work.logits;
    const uint32_t columns = column_count(logits), tiles = (columns + BP_TILE_COLUMNS - 1) / BP_TILE_COLUMNS;
    const uint32_t kept_bytes = tiles * static_cast<uint32_t>(sizeof(sums));
    sums *kept = reinterpret_cast<sums *>(static_cast<char *>(memory));
    const bool has_target = threadIdx.x < work.tokens.targets; /* thread k writes the results of target k */
    for (uint64_t token = blockIdx.x; token < token_count(work.tokens); token += gridDim.x) {
        const place at = place_of(work.tokens, token);
        const char *row = row_of<X>(logits, at);
        char *out = out_of<Y>(both.gradient.out, at, both.gradient.out_batch_stride, both.gradient.out_stride);
        const warp_tiles<X, REALIGNED> mine =
            tiles_of_warp<X, REALIGNED>(row, columns, tiles, memory + kept_bytes, launch_shared_bytes() - kept_bytes);
        if (is_masked(work.tokens, at)) {
            write_masked(work.results, work.tokens, at);
            store_zero_row<X, Y>(both, at, out);
            continue;
        }
        const float scale = checked_scale_of(work.tokens, at);
        const target_element target = target_of_thread<X>(work.tokens, logits, at, row, 0, columns);
        const float x = has_target ? target_logit<X, FORM>(work.tokens, logits, at, threadIdx.x, row) : 0;
        if (threadIdx.x == blockDim.x - 1) {
            *up = upstreams_of<FORM>(both.gradient, at);
            *where = at;
        }
        sum_tiles<X, FORM>(logits, mine, scale, kept);
        wait_for_block();
        if (threadIdx.x < BP_LANES) {
            const sums all = merged_by_warp<FORM>(kept, tiles, mine.lane, scale);
            if (threadIdx.x == 0)
                finish_row<FORM>(work, *where, all, scale, *passed);
        }
        wait_for_block();
        if (has_target)
            write_logprob(work.results, work.tokens, *where, threadIdx.x, x, passed->max, passed->log_sum, scale);
        const row_state state = state_of<FORM>(*up, passed->max, static_cast<float>(passed->log_sum), passed->energy,
                                               scale, work.tokens.vocab);
        store_tiles<X, Y, FORM>(
            logits, state, mine,
            out_of<Y>(both.gradient.out, *where, both.gradient.out_batch_stride, both.gradient.out_stride));
        wait_for_block();
        store_target<Y, FORM>(both.gradient, *where, target, state.max, state.log_sum, passed->energy, scale, out);
        wait_for_block(); /* the next row overwrites shared memory */
    }
}

} // namespace device

#endif
