/* The slab of small pieces is made when the first one is asked for. */
#include "pinned/pinned.h"

static bp_status make_slab(bp_pinned *pinned)
{
    bp_small *small = &pinned->small;
    if (small->slab.bytes == 0)
        BP_TRY(bp_pinned_get_pages(pinned, pinned->config.slab_bytes, BP_HUGE_PAGE_BYTES, &small->slab));
    bp_status status = small->ops->start(small);
    small->ready = status == BP_OK;
    if (!small->ready && bp_pinned_give_back_pages(pinned, &small->slab) == BP_OK)
        small->slab = (bp_pages){.bytes = 0};
    return status;
}

static bp_status fail_full(const bp_small *small, uint64_t bytes, uint64_t alignment)
{
    return bp_fail(
        BP_ERR_NO_HOST_MEMORY,
        "pinned memory: no room for %llu bytes at a multiple of %llu in the slab of %llu bytes, of which %llu "
        "are used by %zu pieces: free some, or ask for a larger slab_bytes",
        (unsigned long long)bytes, (unsigned long long)alignment, (unsigned long long)small->slab.bytes,
        (unsigned long long)small->ops->used(small), small->pieces.count);
}

bp_status bp_small_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_small *small = &pinned->small;
    BP_TRY(bp_pieces_reserve(&small->pieces));
    if (!small->ready)
        BP_TRY(make_slab(pinned));
    uint8_t *at = small->ops->take(small, bytes, alignment);
    if (at == NULL)
        return fail_full(small, bytes, alignment);
    bp_pieces_add(&small->pieces, &(bp_pinned_piece){.address = at, .bytes = bytes});
    *address = at;
    return BP_OK;
}

void bp_small_free(bp_pinned *pinned, size_t index)
{
    bp_small *small = &pinned->small;
    const bp_pinned_piece piece = small->pieces.pieces[index];
    small->ops->give(small, piece.address, piece.bytes);
    bp_pieces_remove(&small->pieces, index);
}
