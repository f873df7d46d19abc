/* SPDX-License-Identifier: Apache-2.0 */
/* Hands out ranges of the slab, and takes them back. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include "allocators/serve/server.h"

static bp_step_block describe_block(const bp_step_server *s, uint32_t atom)
{
    const serve_block *block = &s->blocks[atom];
    bp_step_block made = {.offset = s->atoms[atom],
                          .bytes = s->atoms[block->end] - s->atoms[atom],
                          .requested_bytes = s->requests[atom],
                          .stream = block->owner,
                          .kind = NONE,
                          .item = NONE};
    if (block->item == NONE)
        return made;
    made.kind = serve_kind_of(s, block->item);
    made.item = block->item - s->kinds[made.kind].first;
    made.requested_bytes = s->class_bytes[s->items[block->item].class];
    return made;
}

/* ---- deviations ---------------------------------------------------------------------------------------------------- */

static void note(bp_step_server *s, bp_step_outcome outcome, uint64_t bytes, uint32_t stream, uint32_t item)
{
    uint32_t slot = (uint32_t)bp_hash_number(bytes << 8 ^ stream << 3 ^ outcome) % DEVIATION_SLOTS;
    for (; s->deviation_slots[slot] != NONE; slot = (slot + 1) % DEVIATION_SLOTS) {
        bp_step_deviation *known = &s->deviations[s->deviation_slots[slot]];
        if (known->bytes == bytes && known->stream == stream && known->outcome == outcome) {
            known->count++;
            return;
        }
    }
    if (s->deviation_count == BP_STEP_DEVIATIONS)
        return;
    const uint32_t kind = item != NONE ? serve_kind_of(s, item) : s->active;
    s->deviation_slots[slot] = s->deviation_count;
    s->deviations[s->deviation_count++] = (bp_step_deviation){
        .outcome = outcome,
        .stream = stream,
        .bytes = bytes,
        .count = 1,
        .mark = s->statistics.marks,
        .kind = kind,
        .item = item != NONE ? item - s->kinds[kind].first : s->kinds[kind].position,
    };
}

/* ---- handing out --------------------------------------------------------------------------------------------------- */

/* Hands out atoms for an item, or for none (NONE), if they are not live. */
static bp_step_outcome hand_out(bp_step_server *s, uint32_t item, uint32_t first, uint32_t end, uint32_t stream,
                                uint64_t *offset)
{
    if (serve_any(s->busy, first, end))
        return BP_STEP_BUSY;
    if (!serve_order(s, stream, first, end))
        return BP_STEP_UNORDERED;
    serve_set(s->busy, first, end, true);
    s->starts[first / 64] |= (uint64_t)1 << first % 64;
    s->blocks[first] = (serve_block){.end = end, .item = item, .users = 1u << stream, .owner = stream};
    bp_step_statistics *counts = &s->statistics;
    counts->live++;
    counts->live_bytes += s->atoms[end] - s->atoms[first];
    if (counts->live_bytes > counts->peak_live_bytes)
        counts->peak_live_bytes = counts->live_bytes;
    *offset = s->atoms[first];
    return BP_STEP_SERVED;
}

bp_step_outcome bp_step_server_allocate(bp_step_server *server, uint64_t bytes, uint32_t stream, uint64_t *offset)
{
    bp_step_outcome outcome = BP_STEP_UNKNOWN;
    if (bytes == 0)
        return outcome;
    pthread_mutex_lock(&server->lock);
    uint32_t item = NONE;
    if (stream < BP_STEP_STREAMS) {
        serve_see(server, stream);
        item = serve_follow(server, bytes, stream, &outcome);
    }
    if (server->is_paused)
        outcome = BP_STEP_PAUSED;
    else if (item != NONE && server->items[item].first == server->items[item].end)
        outcome = BP_STEP_UNPLANNED;
    else if (item != NONE)
        outcome = hand_out(server, item, server->items[item].first, server->items[item].end, stream, offset);
    server->statistics.outcomes[outcome]++;
    if (outcome != BP_STEP_SERVED && outcome != BP_STEP_PAUSED)
        note(server, outcome, bytes, stream, item);
    pthread_mutex_unlock(&server->lock);
    return outcome;
}

/* The smallest range that is free and large enough, cut to whole atoms. */
static bool find_range(const bp_step_server *s, uint64_t bytes, uint32_t *first, uint32_t *end)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < s->atom_count;) {
        const uint32_t begin = i;
        while (i < s->atom_count && !(s->busy[i / 64] >> i % 64 & 1))
            i++;
        const uint64_t size = s->atoms[i] - s->atoms[begin];
        if (size >= bytes && size < best) {
            best = size;
            *first = begin;
        }
        i += i == begin;
    }
    if (best == UINT64_MAX)
        return false;
    for (*end = *first + 1; s->atoms[*end] - s->atoms[*first] < bytes;)
        ++*end;
    return true;
}

bp_step_outcome bp_step_server_allocate_anywhere(bp_step_server *server, uint64_t bytes, uint32_t stream,
                                                 uint64_t *offset)
{
    bp_step_outcome outcome = BP_STEP_BUSY;
    if (bytes == 0 || stream >= BP_STEP_STREAMS)
        return outcome;
    pthread_mutex_lock(&server->lock);
    serve_see(server, stream);
    uint32_t first = 0, end = 0;
    if (find_range(server, bytes, &first, &end)) {
        server->requests[first] = bytes;
        outcome = hand_out(server, NONE, first, end, stream, offset);
        server->statistics.anywhere += outcome == BP_STEP_SERVED;
    }
    pthread_mutex_unlock(&server->lock);
    return outcome;
}

/* ---- taking back --------------------------------------------------------------------------------------------------- */

/* The atom at which a live block begins at this offset, or NONE. */
static uint32_t start_at(const bp_step_server *s, uint64_t offset)
{
    const uint32_t atom = serve_atom_at(s, offset);
    return atom != NONE && s->starts[atom / 64] >> atom % 64 & 1 ? atom : NONE;
}

static void take_back(bp_step_server *s, uint32_t first, bp_step_block *freed)
{
    const uint32_t item = s->blocks[first].item, end = s->blocks[first].end;
    if (freed != NULL)
        *freed = describe_block(s, first);
    serve_set(s->busy, first, end, false);
    s->starts[first / 64] &= ~((uint64_t)1 << first % 64);
    serve_release(s, s->blocks[first].users, first, end, item != NONE && s->items[item].precedes_stream);
    s->statistics.live--;
    s->statistics.live_bytes -= s->atoms[end] - s->atoms[first];
    s->statistics.frees++;
}

bp_status bp_step_server_free(bp_step_server *server, uint64_t offset, bp_step_block *block)
{
    pthread_mutex_lock(&server->lock);
    const uint32_t atom = start_at(server, offset);
    if (atom != NONE)
        take_back(server, atom, block);
    pthread_mutex_unlock(&server->lock);
    return atom != NONE
               ? BP_OK
               : bp_fail(BP_ERR_INVALID_ARGUMENT, "step server: free of offset %llu, where nothing live begins",
                         (unsigned long long)offset);
}

/* The atom at which the live block that has this offset begins, or else that of the next block; NONE: there is none. */
static uint32_t block_from(const bp_step_server *s, uint64_t offset)
{
    uint32_t low = 0, high = s->atom_count;
    if (offset >= s->atoms[high])
        return NONE;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        *(s->atoms[middle] <= offset ? &low : &high) = middle;
    }
    if (s->busy[low / 64] >> low % 64 & 1) {
        uint32_t word = low / 64;
        uint64_t bits = s->starts[word] & serve_bits_to(low + 1);
        while (bits == 0)
            bits = s->starts[--word];
        return word * 64 + 63 - (uint32_t)__builtin_clzll(bits);
    }
    uint64_t bits = s->starts[low / 64] & serve_bits_from(low);
    for (uint32_t word = low / 64; word < s->words;) {
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
        bits = ++word < s->words ? s->starts[word] : 0;
    }
    return NONE;
}

bp_status bp_step_server_use(bp_step_server *server, uint64_t offset, uint32_t stream)
{
    if (stream >= BP_STEP_STREAMS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "step server: stream %u; streams are below %u", stream,
                       BP_STEP_STREAMS);
    pthread_mutex_lock(&server->lock);
    const uint32_t atom = block_from(server, offset);
    const bool is_live = atom != NONE && server->atoms[atom] <= offset;
    if (is_live) {
        serve_see(server, stream);
        server->blocks[atom].users |= 1u << stream;
    }
    pthread_mutex_unlock(&server->lock);
    return is_live ? BP_OK
                   : bp_fail(BP_ERR_INVALID_ARGUMENT, "step server: use of offset %llu, where nothing is live",
                             (unsigned long long)offset);
}

void bp_step_server_mark(bp_step_server *server)
{
    pthread_mutex_lock(&server->lock);
    serve_mark(server);
    pthread_mutex_unlock(&server->lock);
}

void bp_step_server_pause(bp_step_server *server, bool paused)
{
    pthread_mutex_lock(&server->lock);
    server->is_paused = paused;
    pthread_mutex_unlock(&server->lock);
}

/* ---- looking at it ------------------------------------------------------------------------------------------------- */

bool bp_step_server_find(bp_step_server *server, uint64_t offset, bp_step_block *block)
{
    pthread_mutex_lock(&server->lock);
    const uint32_t atom = block_from(server, offset);
    if (atom != NONE)
        *block = describe_block(server, atom);
    pthread_mutex_unlock(&server->lock);
    return atom != NONE;
}

bp_status bp_step_server_get_statistics(bp_step_server *server, bp_step_statistics *statistics)
{
    pthread_mutex_lock(&server->lock);
    bp_step_statistics now = server->statistics;
    now.size = sizeof now;
    now.kind = server->active;
    now.item = server->kinds[server->active].position;
    pthread_mutex_unlock(&server->lock);
    return bp_struct_write("bp_step_server_get_statistics", &now, sizeof now, statistics);
}

void bp_step_server_reset_peak(bp_step_server *server)
{
    pthread_mutex_lock(&server->lock);
    server->statistics.peak_live_bytes = server->statistics.live_bytes;
    pthread_mutex_unlock(&server->lock);
}

uint64_t bp_step_server_waits(bp_step_server *server, uint32_t stream, uint32_t before)
{
    if (stream >= BP_STEP_STREAMS || before >= BP_STEP_STREAMS)
        return 0;
    pthread_mutex_lock(&server->lock);
    const uint64_t waits = server->streams[stream].waits[before];
    pthread_mutex_unlock(&server->lock);
    return waits;
}

size_t bp_step_server_deviations(bp_step_server *server, bp_step_deviation *deviations, size_t capacity)
{
    pthread_mutex_lock(&server->lock);
    const size_t count = server->deviation_count;
    for (size_t i = 0; deviations != NULL && i < count && i < capacity; i++)
        deviations[i] = server->deviations[i];
    pthread_mutex_unlock(&server->lock);
    return count;
}

/* ---- verification -------------------------------------------------------------------------------------------------- */

static bp_status check_blocks(const bp_step_server *s)
{
    uint64_t bytes = 0, blocks = 0;
    uint32_t free_from = 0; /* atoms before it are accounted for */
    for (uint32_t atom = 0; atom < s->atom_count; atom++) {
        const bool is_busy = s->busy[atom / 64] >> atom % 64 & 1;
        if (!(s->starts[atom / 64] >> atom % 64 & 1)) {
            if (is_busy != (atom < free_from))
                return bp_fail(BP_ERR_MISMATCH, "step server: the bytes at %llu are %s, but a block %s",
                               (unsigned long long)s->atoms[atom], is_busy ? "live" : "free",
                               is_busy ? "does not have them" : "has them");
            continue;
        }
        const serve_block *of = &s->blocks[atom];
        const serve_item *item = of->item != NONE ? &s->items[of->item] : NULL;
        const bool ends = of->end > atom && of->end <= s->atom_count;
        const bp_step_block block = ends ? describe_block(s, atom) : (bp_step_block){.offset = s->atoms[atom]};
        if (atom < free_from || !ends || (item != NULL && (item->first != atom || item->end != of->end)) ||
            block.bytes < block.requested_bytes || block.offset % BP_STEP_ALIGNMENT != 0)
            return bp_fail(
                BP_ERR_MISMATCH,
                "step server: a block of %llu bytes at %llu for %llu; it overlaps another one, is too small, "
                "or ends behind the slab of %llu",
                (unsigned long long)block.bytes, (unsigned long long)block.offset,
                (unsigned long long)block.requested_bytes, (unsigned long long)s->atoms[s->atom_count]);
        for (free_from = atom; free_from < of->end; free_from++) {
            if (!(s->busy[free_from / 64] >> free_from % 64 & 1))
                return bp_fail(BP_ERR_MISMATCH, "step server: the bytes at %llu belong to a block, and are free",
                               (unsigned long long)s->atoms[free_from]);
        }
        blocks++;
        bytes += block.bytes;
    }
    if (blocks != s->statistics.live || bytes != s->statistics.live_bytes)
        return bp_fail(BP_ERR_MISMATCH, "step server: %llu blocks of %llu bytes are live; counted are %llu of %llu",
                       (unsigned long long)blocks, (unsigned long long)bytes, (unsigned long long)s->statistics.live,
                       (unsigned long long)s->statistics.live_bytes);
    return BP_OK;
}

bp_status bp_step_server_check(bp_step_server *server)
{
    pthread_mutex_lock(&server->lock);
    bp_status status = check_blocks(server);
    pthread_mutex_unlock(&server->lock);
    return status;
}
