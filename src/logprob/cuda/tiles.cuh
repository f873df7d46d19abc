/* A tile of a row in the registers of a warp: vector i of lane l holds the columns from (32 i + l) * width on, wherever in memory the row
 * begins. */
#ifndef BP_LOGPROB_CUDA_TILES_CUH
#define BP_LOGPROB_CUDA_TILES_CUH

#include "logprob/cuda/vectors.cuh"
#include "logprob/work.h"

namespace device
{

template <class X> struct tile_words {
    static constexpr uint32_t width = 4 * X::in_word; /* columns of a vector */
    static constexpr uint32_t apart = BP_LANES * width;
    static constexpr int vectors = static_cast<int>(BP_TILE_COLUMNS / apart);
    uint32_t words[vectors][4];
};

/* Where lanes of a warp hand words to each other: their vectors side by side, and one more. */
struct stage {
    uint32_t words[4 * (BP_LANES + 1)];
};

/* All loads are on their way before the first is needed. */
template <class X> BP_DEVICE void load_aligned(const char *first, tile_words<X> &tile)
{
    BP_UNROLL
    for (int i = 0; i < tile.vectors; i++)
        load_words<4>(first + static_cast<uint32_t>(i) * tile.apart * X::bytes, tile.words[i]);
}

/* Vectors that were loaded from `shift` bytes too far to the left. `behind`: the vector after the last. Vector by vector, so that few
 * registers are in use. */
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

/* The last tile of an aligned row: -inf behind the last column. */
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

/* Word by word, for the first and the last tile of other rows. */
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

} // namespace device

#endif
