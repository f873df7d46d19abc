/* Planned pieces: each is memory of its own. */
#include "pinned/pinned.h"

bp_status bp_planned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_pinned_piece piece = {.bytes = bytes};
    BP_TRY(bp_pieces_reserve(&pinned->planned));
    BP_TRY(bp_pinned_get_pages(pinned, bytes, alignment, &piece.pages));
    piece.address = piece.pages.address;
    bp_pieces_add(&pinned->planned, &piece);
    *address = piece.address;
    return BP_OK;
}

bp_status bp_planned_free(bp_pinned *pinned, size_t index)
{
    BP_TRY(bp_pinned_give_back_pages(pinned, &pinned->planned.pieces[index].pages));
    bp_pieces_remove(&pinned->planned, index);
    return BP_OK;
}
