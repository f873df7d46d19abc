/* Whole pages, the first gap that fits. The pieces, in order, are all there is to know: what is freed is part of the gap around it. */
#include "pinned/small.h"

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
