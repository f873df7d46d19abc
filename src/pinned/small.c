/* Small pieces: one slab, made when the first piece is asked for, and divided by jemalloc or by whole pages. */
#include "pinned/small.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "pinned/pinned.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

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

/* ---- whole pages ------------------------------------------------------------------------------------------------- */

/* Whole pages, the first gap that fits. The pieces, in order, are all there is to know: what is freed is part of the gap around it. */

static bp_status small_plain_start(bp_small *small)
{
    (void)small;
    return BP_OK;
}

static uintptr_t round_up(uintptr_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

static uint8_t *small_plain_take(bp_small *small, uint64_t bytes, uint64_t alignment)
{
    const uint64_t page = bp_page_bytes(), step = alignment > page ? alignment : page;
    const uintptr_t slab = (uintptr_t)small->slab.address, slab_end = slab + small->slab.bytes;
    uintptr_t from = slab;
    for (size_t i = 0; i <= small->pieces.count; i++) {
        const bp_pinned_piece *next = i < small->pieces.count ? &small->pieces.pieces[i] : NULL;
        const uintptr_t to = next != NULL ? (uintptr_t)next->address : slab_end;
        const uintptr_t at = round_up(from, step);
        if (at <= to && bytes <= to - at)
            return small->slab.address + (at - slab);
        if (next != NULL)
            from = round_up((uintptr_t)next->address + next->bytes, page);
    }
    return NULL;
}

static void small_plain_give(bp_small *small, uint8_t *address, uint64_t bytes)
{
    (void)small;
    (void)address;
    (void)bytes;
}

static uint64_t small_plain_used(const bp_small *small)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < small->pieces.count; i++)
        bytes += round_up(small->pieces.pieces[i].bytes, bp_page_bytes());
    return bytes;
}

static void small_plain_finish(bp_small *small)
{
    (void)small;
}

const bp_small_ops bp_small_plain = {small_plain_start, small_plain_take, small_plain_give, small_plain_used,
                                     small_plain_finish};

/* ---- the slab ---------------------------------------------------------------------------------------------------- */

/* The slab of small pieces is made when the first one is asked for. */

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
