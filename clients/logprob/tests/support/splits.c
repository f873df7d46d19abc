#include "support/harness.h"

#include "splits.h"

#include <string.h>

#include "support/scenarios.h"

split_batch random_split(uint32_t count, uint32_t ranks, uint32_t most)
{
    split_batch b = {.count = count, .data = count - random_below(2), .ranks = ranks, .rank = random_below(ranks)};
    const uint64_t multiple = ranks == 1 ? 1 + random_below(3) : 2 * (uint64_t)ranks;
    assert_true(count <= MOST_SEQUENCES);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t length = random_below(4) == 0 ? 0 : random_below(most), more = random_below(5) == 0 ? multiple : 0;
        b.packed[i + 1] = b.packed[i] + length;
        b.padded[i + 1] = b.padded[i] + (length + multiple - 1) / multiple * multiple + more;
    }
    assert_true(b.padded[count] <= MOST_TOKENS);
    return b;
}

bp_sequence_group group_of(const split_batch *b, uint32_t first, uint32_t count)
{
    bp_sequence_group group = {.padded_tokens = b->padded[b->count],
                               .count = count,
                               .data = b->data < first ? 0 : b->data - first,
                               .ranks = b->ranks,
                               .rank = b->rank};
    group.data = group.data < count ? group.data : count;
    memcpy(group.packed, b->packed + first, (count + 1) * sizeof *group.packed);
    memcpy(group.padded, b->padded + first, (count + 1) * sizeof *group.padded);
    return group;
}

bool is_padding(const split_batch *b, token t)
{
    return t.offset >= b->packed[t.sequence + 1] - b->packed[t.sequence];
}

static uint32_t list_whole(const split_batch *b, const uint64_t *starts, token *tokens)
{
    uint32_t count = 0;
    for (uint32_t s = 0; s < b->count; s++)
        for (uint64_t o = 0; o < starts[s + 1] - starts[s]; o++)
            tokens[count++] = (token){s, o};
    return count;
}

/* Chunks `rank` and 2 R - 1 - `rank` of the 2 R chunks. */
static uint32_t list_rank(const split_batch *b, uint32_t rank, token *tokens)
{
    uint32_t count = 0;
    const uint32_t chunks = b->ranks == 1 ? 1 : 2 * b->ranks;
    for (uint32_t s = 0; s < b->count; s++) {
        const uint64_t each = (b->padded[s + 1] - b->padded[s]) / chunks;
        for (uint32_t chunk = 0; chunk < chunks; chunk++)
            for (uint64_t o = 0; o < each; o++)
                if (chunk == rank || chunk + rank == chunks - 1)
                    tokens[count++] = (token){s, chunk * each + o};
    }
    return count;
}

uint32_t list_order(const split_batch *b, bp_cp_order order, token *tokens)
{
    uint32_t count = 0;
    if (order == BP_CP_PACKED || order == BP_CP_PADDED)
        return list_whole(b, order == BP_CP_PACKED ? b->packed : b->padded, tokens);
    if (order == BP_CP_LOCAL)
        return list_rank(b, b->rank, tokens);
    for (uint32_t rank = 0; rank < b->ranks; rank++)
        count += list_rank(b, rank, tokens + count);
    return count;
}

/* Applies the shift to a token; 0: there is none. */
static int shifted(const split_batch *b, bp_cp_shift shift, token *t)
{
    const uint64_t length = b->packed[t->sequence + 1] - b->packed[t->sequence];
    if (shift == BP_CP_KEEP)
        return 1;
    if (is_padding(b, *t) || (t->offset == length - 1 && shift == BP_CP_NEXT))
        return 0;
    t->offset = (t->offset + 1) % length;
    return 1;
}

uint32_t list_sources(const split_batch *b, bp_cp_order from, bp_cp_order to, bp_cp_shift shift, int64_t *sources)
{
    token there[MOST_TOKENS], places[MOST_TOKENS];
    int64_t found[MOST_TOKENS]; /* by place in padded order */
    const uint32_t tokens = list_order(b, from, there), count = list_order(b, to, places);
    memset(found, 0xff, sizeof found);
    for (uint32_t i = 0; i < tokens; i++)
        found[b->padded[there[i].sequence] + there[i].offset] = i;
    for (uint32_t i = 0; i < count; i++) {
        token t = places[i];
        sources[i] = shifted(b, shift, &t) ? found[b->padded[t.sequence] + t.offset] : NO_PLACE;
    }
    return count;
}
