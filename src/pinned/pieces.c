#include "pinned/pieces.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

bp_status bp_pieces_reserve(bp_pieces *pieces)
{
    return bp_grow_array((void **)&pieces->pieces, &pieces->capacity, pieces->count, sizeof *pieces->pieces);
}

/* The first piece at or behind `address`. */
static size_t lower_bound(const bp_pieces *pieces, const void *address)
{
    size_t first = 0, end = pieces->count;
    while (first < end) {
        const size_t middle = first + (end - first) / 2;
        if ((uintptr_t)pieces->pieces[middle].address < (uintptr_t)address)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

void bp_pieces_add(bp_pieces *pieces, const bp_pinned_piece *piece)
{
    const size_t index = lower_bound(pieces, piece->address);
    bp_pinned_piece *place = &pieces->pieces[index];
    memmove(place + 1, place, (pieces->count - index) * sizeof *place);
    *place = *piece;
    pieces->count++;
    pieces->bytes += piece->bytes;
}

bool bp_pieces_find(const bp_pieces *pieces, const void *address, size_t *index)
{
    const size_t found = lower_bound(pieces, address);
    if (found == pieces->count || pieces->pieces[found].address != address)
        return false;
    *index = found;
    return true;
}

void bp_pieces_remove(bp_pieces *pieces, size_t index)
{
    bp_pinned_piece *place = &pieces->pieces[index];
    pieces->bytes -= place->bytes;
    pieces->count--;
    memmove(place, place + 1, (pieces->count - index) * sizeof *place);
}

void bp_pieces_finish(bp_pieces *pieces)
{
    free(pieces->pieces);
}
