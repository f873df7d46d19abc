#include "torch/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

bp_status bp_torch_pieces_init(bp_torch_pieces *pieces, uint64_t bytes)
{
    *pieces = (bp_torch_pieces){0};
    BP_TRY(bp_grow_array((void **)&pieces->pieces, &pieces->capacity, 0, sizeof *pieces->pieces));
    pieces->pieces[pieces->count++] = (bp_torch_piece){.bytes = bytes};
    return BP_OK;
}

void bp_torch_pieces_finish(bp_torch_pieces *pieces)
{
    free(pieces->pieces);
    *pieces = (bp_torch_pieces){0};
}

/* ---- finding ---------------------------------------------------------------------------------------------------------- */

bool bp_torch_pieces_find(const bp_torch_pieces *pieces, uint64_t bytes, bp_torch_piece_state most, size_t *first,
                          uint64_t *largest)
{
    uint64_t best = UINT64_MAX;
    bool found = false;
    *largest = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        size_t begin = i;
        uint64_t run = 0;
        for (; i < pieces->count && pieces->pieces[i].state <= most; i++)
            run += pieces->pieces[i].bytes;
        *largest = run > *largest ? run : *largest;
        if (run >= bytes && run < best) {
            best = run;
            *first = begin;
            found = true;
        }
    }
    return found;
}

size_t bp_torch_pieces_span(const bp_torch_pieces *pieces, size_t first, uint64_t bytes)
{
    size_t count = 0;
    for (uint64_t have = 0; have < bytes; count++)
        have += pieces->pieces[first + count].bytes;
    return count;
}

bool bp_torch_pieces_live_at(const bp_torch_pieces *pieces, uint64_t offset, size_t *index)
{
    size_t low = 0, high = pieces->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (pieces->pieces[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    *index = low;
    return low < pieces->count && pieces->pieces[low].offset == offset && pieces->pieces[low].state == BP_TORCH_LIVE;
}

/* ---- taking and giving ------------------------------------------------------------------------------------------------ */

/* `count` entries from `first` on become one. */
static void join(bp_torch_pieces *pieces, size_t first, size_t count)
{
    for (size_t i = 1; i < count; i++)
        pieces->pieces[first].bytes += pieces->pieces[first + i].bytes;
    memmove(&pieces->pieces[first + 1], &pieces->pieces[first + count],
            (pieces->count - first - count) * sizeof *pieces->pieces);
    pieces->count -= count - 1;
}

static void pieces_split(bp_torch_pieces *pieces, size_t index, uint64_t bytes)
{
    bp_torch_piece *piece = &pieces->pieces[index];
    memmove(piece + 1, piece, (pieces->count - index) * sizeof *piece);
    pieces->count++;
    piece[0].bytes = bytes;
    piece[1].offset += bytes;
    piece[1].bytes -= bytes;
}

bp_status bp_torch_pieces_take(bp_torch_pieces *pieces, size_t first, uint64_t bytes)
{
    BP_TRY(bp_grow_array((void **)&pieces->pieces, &pieces->capacity, pieces->count, sizeof *pieces->pieces));
    size_t count = bp_torch_pieces_span(pieces, first, bytes);
    const bp_torch_piece *last = &pieces->pieces[first + count - 1];
    uint64_t of_last = pieces->pieces[first].offset + bytes - last->offset;
    if (of_last < last->bytes)
        pieces_split(pieces, first + count - 1, of_last);
    join(pieces, first, count);
    pieces->pieces[first].state = BP_TORCH_LIVE;
    pieces->pieces[first].captured = false;
    return BP_OK;
}

static bool wait_for_the_same(const bp_torch_piece *a, const bp_torch_piece *b)
{
    return a->state == b->state && a->state != BP_TORCH_LIVE && (a->state != BP_TORCH_MARKED || a->stream == b->stream);
}

/* The later point of the two: it stands for both. */
static void join_two(bp_torch_pieces *pieces, size_t first)
{
    bp_torch_piece *a = &pieces->pieces[first];
    const bp_torch_piece *b = a + 1;
    if (a->state == BP_TORCH_MARKED && b->point > a->point)
        a->point = b->point;
    join(pieces, first, 2);
}

void bp_torch_pieces_give(bp_torch_pieces *pieces, size_t index, const bp_torch_piece *as)
{
    bp_torch_piece *piece = &pieces->pieces[index];
    *piece = (bp_torch_piece){piece->offset, piece->bytes, as->state, false, as->stream, as->point};
    if (index + 1 < pieces->count && wait_for_the_same(piece, piece + 1))
        join_two(pieces, index);
    if (index > 0 && wait_for_the_same(piece - 1, piece))
        join_two(pieces, index - 1);
}

void bp_torch_pieces_clean(bp_torch_pieces *pieces)
{
    for (size_t i = 0; i < pieces->count; i++) {
        bp_torch_piece *piece = &pieces->pieces[i];
        if (piece->state != BP_TORCH_LIVE)
            *piece = (bp_torch_piece){.offset = piece->offset, .bytes = piece->bytes};
    }
    for (size_t i = pieces->count; i-- > 1;)
        if (wait_for_the_same(&pieces->pieces[i - 1], &pieces->pieces[i]))
            join_two(pieces, i - 1);
}
