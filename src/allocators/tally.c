/* SPDX-License-Identifier: Apache-2.0 */
/* Shared counts of a pool, the rare cases: bytes that the thread's lane lacks, and reading. */
#include "allocators/tally.h"

#include <stddef.h>

bp_lane *bp_tally_join(bp_tally *t)
{
    uint32_t i = 0;
    for (const void *none = NULL; i < BP_LANES; i++, none = NULL) {
        if (atomic_compare_exchange_strong_explicit(&t->owners[i], &none, bp_tally_thread(), memory_order_relaxed,
                                                    memory_order_relaxed))
            break;
    }
    return &t->lanes[i];
}

/* Sum of the lanes' words: spare bytes, and changes above. All accesses to these words are sequentially consistent. Two equal sums in
 * succession mean that no lane changed in between: the sum belongs to a moment. */
static uint64_t spare_of_all(const bp_tally *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= BP_LANES; i++)
        sum += atomic_load((_Atomic uint64_t *)&t->lanes[i].spare);
    return sum;
}

/* Takes at most `bytes` of a lane; returns how many. */
static uint64_t take_from(bp_lane *lane, uint64_t bytes)
{
    uint64_t spare = atomic_load(&lane->spare), taken;
    do
        taken = (spare & BP_SPARE_BYTES) < bytes ? spare & BP_SPARE_BYTES : bytes;
    while (taken > 0 && !atomic_compare_exchange_weak(&lane->spare, &spare, spare - taken + BP_SPARE_CHANGE));
    return taken;
}

/* The mark rises only if at one moment no lane had spare bytes: then all bytes below it were live, or taken by acquires that have their
 * memory, and so are those of this acquire. */
void bp_tally_take(bp_tally *t, uint64_t bytes)
{
    uint64_t before, after;
    do {
        bytes -= take_from(bp_tally_lane(t), bytes);
        for (uint32_t i = 0; i <= BP_LANES; i++)
            bytes -= take_from(&t->lanes[i], bytes);
        before = spare_of_all(t);
        after = spare_of_all(t);
    } while (bytes > 0 && (before != after || (before & BP_SPARE_BYTES) != 0));
    atomic_fetch_add(&t->peak, bytes);
}

uint64_t bp_tally_acquires(const bp_tally *t)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i <= BP_LANES; i++)
        sum += atomic_load_explicit((_Atomic uint64_t *)&t->lanes[i].acquires, memory_order_relaxed);
    return sum;
}

uint64_t bp_tally_live(const bp_tally *t, uint64_t *peak)
{
    uint64_t before, mark, after;
    do {
        before = spare_of_all(t);
        mark = atomic_load((_Atomic uint64_t *)&t->peak);
        after = spare_of_all(t);
    } while (before != after);
    if (peak != NULL)
        *peak = mark;
    return (mark - before) & BP_SPARE_BYTES;
}
