/* SPDX-License-Identifier: Apache-2.0 */
#include "naive_allocator.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

void naive_init(naive_allocator *n, const bp_caching_settings *settings)
{
    memset(n, 0, sizeof *n);
    n->settings = *settings;
    n->lowest_address = (uint64_t)1 << 63;
}

static uint64_t up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* The next of the equal divisions between two powers of two. */
static uint64_t round_request(const bp_caching_settings *settings, uint64_t bytes)
{
    uint64_t power = 1;
    while (power * 2 <= bytes)
        power *= 2;
    unsigned row = 0;
    while (row < 15 && MIB << (row + 1) <= bytes)
        row++;
    uint64_t divisions = settings->roundup_power2_divisions[row];
    if (bytes < 512)
        return 512;
    return divisions > 1 && bytes > 512 * divisions ? up(bytes, power / divisions) : up(bytes, 512);
}

static void insert(naive_allocator *n, naive_block block)
{
    size_t at = n->count++;
    for (; at > 0 && n->blocks[at - 1].address > block.address; at--)
        n->blocks[at] = n->blocks[at - 1];
    n->blocks[at] = block;
}

static void erase(naive_allocator *n, size_t at)
{
    memmove(n->blocks + at, n->blocks + at + 1, (--n->count - at) * sizeof *n->blocks);
}

/* Joins free neighbours, and unmapped ones, of each segment. */
static void join(naive_allocator *n)
{
    for (size_t i = 1; i < n->count;) {
        naive_block *a = &n->blocks[i - 1], *b = &n->blocks[i];
        bool joins = a->base == b->base && a->state == b->state &&
                     (a->state == BP_CACHING_FREE || a->state == BP_CACHING_UNMAPPED);
        if (joins) {
            a->bytes += b->bytes;
            erase(n, i);
        } else {
            i++;
        }
    }
}

static size_t find(const naive_allocator *n, uint64_t address)
{
    size_t i = 0;
    while (i < n->count && n->blocks[i].address != address)
        i++;
    return i;
}

uint64_t naive_find(const naive_allocator *n, uint64_t address, bp_caching_state state)
{
    size_t i = find(n, address);
    return i < n->count && n->blocks[i].state == state ? n->blocks[i].bytes : 0;
}

typedef struct wanted {
    uint64_t bytes, stream;
    uint32_t pool;
    bool is_small;
} wanted;

static bool is_of(const naive_block *b, const wanted *w)
{
    return b->stream == w->stream && b->pool == w->pool && b->is_small == w->is_small;
}

static bool before(const naive_block *a, const naive_block *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->address < b->address;
}

/* The smallest free block behind `after` (in order of bytes and address) that suffices. */
static naive_block *smallest(naive_allocator *n, const wanted *w, const naive_block *after)
{
    naive_block *best = NULL;
    for (size_t i = 0; i < n->count; i++) {
        naive_block *b = &n->blocks[i];
        if (b->state == BP_CACHING_FREE && is_of(b, w) && b->bytes >= w->bytes && (after == NULL || before(after, b)) &&
            (best == NULL || before(b, best)))
            best = b;
    }
    return best;
}

static uint64_t growth(const naive_allocator *n, const naive_block *b)
{
    const naive_block *next = b + 1;
    bool grows = next < n->blocks + n->count && next->base == b->base && next->state == BP_CACHING_UNMAPPED;
    return b->bytes + (grows ? next->bytes : 0);
}

static naive_block *cached(naive_allocator *n, const wanted *w)
{
    naive_block *found = smallest(n, w, NULL);
    for (naive_block *next; found != NULL && n->settings.expandable_segments; found = next) {
        next = smallest(n, w, found);
        if (next == NULL || growth(n, next) >= growth(n, found))
            break;
    }
    uint64_t limit = n->settings.max_split_bytes;
    if (found == NULL || limit == 0)
        return found;
    if (w->bytes < limit)
        return found->bytes < limit ? found : NULL;
    return found->bytes < w->bytes + n->settings.max_rounding_bytes ? found : NULL;
}

static bool has_memory(const naive_allocator *n, uint64_t bytes)
{
    return n->settings.device_bytes == 0 || n->reserved + bytes <= n->settings.device_bytes;
}

static uint64_t page_of(const naive_allocator *n, bool is_small)
{
    return is_small ? 2 * MIB : n->settings.large_segment_bytes;
}

/* The first free or unmapped run in which the request fits, which begins or continues with unmapped addresses. */
static naive_block *expand(naive_allocator *n, const wanted *w)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        for (size_t i = 0; i < n->count; i++) {
            naive_block *b = &n->blocks[i];
            bool unmapped = b->state == BP_CACHING_UNMAPPED && is_of(b, w);
            bool follows = i > 0 && n->blocks[i - 1].base == b->base && n->blocks[i - 1].state == BP_CACHING_FREE;
            uint64_t room = 0;
            size_t first = follows ? i - 1 : i, last = first;
            if (!unmapped)
                continue;
            for (; last < n->count && room < w->bytes && n->blocks[last].base == b->base &&
                   (n->blocks[last].state == BP_CACHING_FREE || n->blocks[last].state == BP_CACHING_UNMAPPED);
                 last++)
                room += n->blocks[last].bytes;
            if (room < w->bytes)
                continue;
            uint64_t address = n->blocks[first].address;
            for (;;) { /* maps what is missing, one unmapped block after the other */
                naive_block *start = &n->blocks[find(n, address)], *next = start + (start->state == BP_CACHING_FREE);
                uint64_t have = start->state == BP_CACHING_FREE ? start->bytes : 0;
                if (have >= w->bytes)
                    return start;
                uint64_t missing = w->bytes - have, part = next->bytes < missing ? next->bytes : missing;
                part = up(part, page_of(n, w->is_small));
                if (!has_memory(n, part))
                    return NULL;
                naive_block rest = *next;
                rest.address += part;
                rest.bytes -= part;
                next->bytes = part;
                next->state = BP_CACHING_FREE;
                n->reserved += part;
                if (rest.bytes > 0)
                    insert(n, rest);
                join(n);
            }
        }
        uint64_t device = n->settings.device_bytes != 0 ? n->settings.device_bytes : (uint64_t)1 << 40;
        uint64_t bytes = up(device + device / 8, page_of(n, w->is_small));
        n->lowest_address -= bytes;
        insert(n, (naive_block){.address = n->lowest_address,
                                .bytes = bytes,
                                .stream = w->stream,
                                .base = n->lowest_address,
                                .pool = w->pool,
                                .is_small = w->is_small,
                                .is_expandable = true,
                                .state = BP_CACHING_UNMAPPED});
    }
    return NULL;
}

static naive_block *obtain(naive_allocator *n, const wanted *w)
{
    if (n->settings.expandable_segments)
        return expand(n, w);
    uint64_t bytes = w->is_small           ? 2 * MIB
                     : w->bytes < 10 * MIB ? n->settings.large_segment_bytes
                                           : up(w->bytes, 2 * MIB);
    if (!has_memory(n, bytes))
        return NULL;
    uint64_t address = n->lowest_address -= bytes;
    insert(n, (naive_block){.address = address,
                            .bytes = bytes,
                            .stream = w->stream,
                            .base = address,
                            .pool = w->pool,
                            .is_small = w->is_small});
    n->reserved += bytes;
    return &n->blocks[find(n, address)];
}

static bool is_whole(const naive_allocator *n, size_t i)
{
    return (i == 0 || n->blocks[i - 1].base != n->blocks[i].base) &&
           (i + 1 == n->count || n->blocks[i + 1].base != n->blocks[i].base);
}

/* The oversize blocks of the pool, the smallest that suffices alone, else the largest ones. */
static bool release_oversize(naive_allocator *n, const wanted *w)
{
    uint64_t limit = n->settings.max_split_bytes, released = 0, target = w->bytes < limit ? limit : w->bytes;
    if (limit == 0 || n->settings.expandable_segments)
        return false;
    wanted large = *w;
    large.bytes = target;
    naive_block *alone = smallest(n, &large, NULL);
    if (alone != NULL) {
        n->reserved -= alone->bytes;
        erase(n, (size_t)(alone - n->blocks));
        return true;
    }
    while (released < target) {
        naive_block *largest = NULL;
        for (size_t i = 0; i < n->count; i++) {
            naive_block *b = &n->blocks[i];
            if (b->state == BP_CACHING_FREE && is_of(b, w) && b->bytes >= limit &&
                (largest == NULL || before(largest, b)))
                largest = b;
        }
        if (largest == NULL)
            return false;
        released += largest->bytes;
        n->reserved -= largest->bytes;
        erase(n, (size_t)(largest - n->blocks));
    }
    return true;
}

void naive_release(naive_allocator *n, uint32_t pool)
{
    uint64_t bases[NAIVE_BLOCKS]; /* of segments that were unmapped in part */
    size_t base_count = 0;
    for (size_t i = 0; i < n->count;) {
        naive_block b = n->blocks[i];
        if (b.state != BP_CACHING_FREE || b.pool != pool || (!b.is_expandable && !is_whole(n, i))) {
            i++;
            continue;
        }
        uint64_t page = page_of(n, b.is_small), begin = b.address, end = b.address + b.bytes;
        if (b.is_expandable) { /* whole pages */
            begin = b.base + up(b.address - b.base, page);
            end = b.base + (end - b.base) / page * page;
            if (begin >= end) {
                i++;
                continue;
            }
        }
        n->reserved -= end - begin;
        erase(n, i);
        if (!b.is_expandable)
            continue;
        bases[base_count++] = b.base;
        naive_block part = b;
        uint64_t edges[] = {b.address, begin, end, b.address + b.bytes};
        for (int k = 0; k < 3; k++) {
            part.address = edges[k];
            part.bytes = edges[k + 1] - edges[k];
            part.state = k == 1 ? BP_CACHING_UNMAPPED : BP_CACHING_FREE;
            if (part.bytes > 0)
                insert(n, part);
        }
        i = find(n, begin) + 1;
    }
    join(n);
    for (size_t k = 0; k < base_count; k++) {
        size_t i = find(n, bases[k]);
        if (i < n->count && n->blocks[i].state == BP_CACHING_UNMAPPED && is_whole(n, i))
            erase(n, i);
    }
}

uint64_t naive_allocate(naive_allocator *n, uint64_t requested, uint64_t stream, uint32_t pool)
{
    wanted w = {round_request(&n->settings, requested), stream, pool, false};
    w.is_small = w.bytes <= MIB;
    naive_block *found = cached(n, &w);
    if (found == NULL)
        found = obtain(n, &w);
    if (found == NULL && release_oversize(n, &w))
        found = obtain(n, &w);
    if (found == NULL && pool == 0) {
        naive_release(n, 0);
        found = obtain(n, &w);
    }
    if (found == NULL)
        return 0;
    uint64_t rest = found->bytes - w.bytes, limit = n->settings.max_split_bytes;
    bool splits =
        w.is_small || n->settings.expandable_segments ? rest >= 512 : rest > MIB && (limit == 0 || w.bytes < limit);
    naive_block block = *found;
    found->state = BP_CACHING_ALLOCATED;
    found->requested_bytes = requested;
    if (splits) {
        found->bytes = w.bytes;
        block.address += w.bytes;
        block.bytes = rest;
        insert(n, block);
        return block.address - w.bytes;
    }
    return block.address;
}

void naive_request_free(naive_allocator *n, uint64_t address)
{
    n->blocks[find(n, address)].state = BP_CACHING_PENDING;
}

void naive_complete_free(naive_allocator *n, uint64_t address)
{
    n->blocks[find(n, address)].state = BP_CACHING_FREE;
    join(n);
}
