/* The memory that serves one device of PyTorch, in pieces, and the order of those who use it one after the other. */
#include "torch/arena.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* One clean piece. */
static bp_status torch_pieces_init(bp_torch_pieces *pieces, uint64_t bytes)
{
    *pieces = (bp_torch_pieces){0};
    BP_TRY(bp_grow_array((void **)&pieces->pieces, &pieces->capacity, 0, sizeof *pieces->pieces));
    pieces->pieces[pieces->count++] = (bp_torch_piece){.bytes = bytes};
    return BP_OK;
}

static void torch_pieces_finish(bp_torch_pieces *pieces)
{
    free(pieces->pieces);
    *pieces = (bp_torch_pieces){0};
}

/* ---- finding ---------------------------------------------------------------------------------------------------------- */

/* The first of the smallest run of free pieces with room for `bytes`, the lowest of these; of pieces that wait for no more than `most`. False: there
 * is none, and *largest is the bytes of the largest. */
static bool torch_pieces_find(const bp_torch_pieces *pieces, uint64_t bytes, bp_torch_piece_state most, size_t *first,
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

/* How many pieces from `first` on make up `bytes`. */
static size_t torch_pieces_span(const bp_torch_pieces *pieces, size_t first, uint64_t bytes)
{
    size_t count = 0;
    for (uint64_t have = 0; have < bytes; count++)
        have += pieces->pieces[first + count].bytes;
    return count;
}

/* The live piece that begins there; false: there is none. */
static bool torch_pieces_live_at(const bp_torch_pieces *pieces, uint64_t offset, size_t *index)
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

/* Makes one live piece of them; what is left of the last stays as it was. All or nothing: BP_ERR_NO_HOST_MEMORY. */
static bp_status torch_pieces_take(bp_torch_pieces *pieces, size_t first, uint64_t bytes)
{
    BP_TRY(bp_grow_array((void **)&pieces->pieces, &pieces->capacity, pieces->count, sizeof *pieces->pieces));
    size_t count = torch_pieces_span(pieces, first, bytes);
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

/* A live piece becomes free as `as` says (state, stream, point) and joins neighbours that wait for the same. */
static void torch_pieces_give(bp_torch_pieces *pieces, size_t index, const bp_torch_piece *as)
{
    bp_torch_piece *piece = &pieces->pieces[index];
    *piece = (bp_torch_piece){piece->offset, piece->bytes, as->state, false, as->stream, as->point};
    if (index + 1 < pieces->count && wait_for_the_same(piece, piece + 1))
        join_two(pieces, index);
    if (index > 0 && wait_for_the_same(piece - 1, piece))
        join_two(pieces, index - 1);
}

/* The device has done all its work: everything free is clean. */
static void torch_pieces_clean(bp_torch_pieces *pieces)
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

/* ---- streams ---------------------------------------------------------------------------------------------------------- */

/* PyTorch names a few streams, which live as long as the process. */
static bp_status stream_of(bp_torch_arena *arena, uint64_t native, bp_stream **stream)
{
    for (size_t i = 0; i < arena->import_count; i++) {
        if (arena->imports[i].native == native) {
            *stream = arena->imports[i].stream;
            return BP_OK;
        }
    }
    BP_TRY(
        bp_grow_array((void **)&arena->imports, &arena->import_capacity, arena->import_count, sizeof *arena->imports));
    BP_TRY(bp_stream_import(arena->device, native, NULL, stream));
    arena->imports[arena->import_count++] = (bp_torch_import){native, *stream};
    return BP_OK;
}

/* ---- segments --------------------------------------------------------------------------------------------------------- */

/* Rather where the host need not wait. */
static bp_status arena_find(const bp_torch_arena *arena, uint64_t bytes, bool captured, size_t *first)
{
    uint64_t largest = 0;
    const bp_torch_piece_state most = captured ? BP_TORCH_CLEAN : BP_TORCH_UNKNOWN;
    for (bp_torch_piece_state s = captured ? BP_TORCH_CLEAN : BP_TORCH_MARKED; s <= most; s++) {
        if (torch_pieces_find(&arena->pieces, bytes, s, first, &largest))
            return BP_OK;
    }
    const bp_torch_statistics *s = &arena->statistics;
    return bp_fail(
        BP_ERR_NO_DEVICE_MEMORY,
        "device %d: a segment of %llu bytes for PyTorch does not fit: %llu of %llu bytes are handed out, and the "
        "largest %s range has %llu: serve more bytes",
        (int)arena->ordinal, (unsigned long long)bytes, (unsigned long long)s->live_bytes, (unsigned long long)s->bytes,
        captured ? "never used (a graph is being captured)" : "free", (unsigned long long)largest);
}

static bool must_synchronize(const bp_torch_pieces *pieces, size_t first, uint64_t bytes)
{
    size_t count = torch_pieces_span(pieces, first, bytes);
    bool unknown = false;
    for (size_t i = first; i < first + count; i++)
        unknown |= pieces->pieces[i].state == BP_TORCH_UNKNOWN;
    return unknown;
}

/* The stream waits for whom the pieces wait for. */
static bp_status arena_order(bp_torch_arena *arena, size_t first, uint64_t bytes, bp_stream *stream)
{
    size_t count = torch_pieces_span(&arena->pieces, first, bytes);
    for (size_t i = first; i < first + count; i++) {
        const bp_torch_piece *piece = &arena->pieces.pieces[i];
        if (piece->state != BP_TORCH_MARKED || piece->stream == stream)
            continue;
        BP_TRY(bp_stream_wait_point(stream, piece->stream, piece->point));
        arena->statistics.waits++;
    }
    return BP_OK;
}

static void count_live(bp_torch_statistics *s, uint64_t bytes)
{
    s->segments++;
    s->live_segments++;
    s->live_bytes += bytes;
    s->peak_live_bytes = s->live_bytes > s->peak_live_bytes ? s->live_bytes : s->peak_live_bytes;
}

bp_status bp_torch_arena_allocate(bp_torch_arena *arena, uint64_t bytes, uint64_t native, void **address)
{
    bp_stream *stream;
    uint64_t capture;
    size_t first;
    if (bytes == 0 || !bp_round_up_u64(bytes, BP_TORCH_STEP, &bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "device %d: PyTorch asked for %s", (int)arena->ordinal,
                       bytes == 0 ? "0 bytes" : "more than 64 bits");
    BP_TRY(stream_of(arena, native, &stream));
    BP_TRY(bp_stream_capture_of(stream, &capture));
    BP_TRY(arena_find(arena, bytes, capture != 0, &first));
    if (must_synchronize(&arena->pieces, first, bytes)) {
        BP_TRY(bp_device_synchronize(arena->device));
        torch_pieces_clean(&arena->pieces);
        BP_TRY(arena_find(arena, bytes, false, &first));
    }
    BP_TRY(arena_order(arena, first, bytes, stream));
    BP_TRY(torch_pieces_take(&arena->pieces, first, bytes));
    arena->pieces.pieces[first].captured = capture != 0;
    count_live(&arena->statistics, bytes);
    *address = arena->address + arena->pieces.pieces[first].offset;
    return BP_OK;
}

/* What the next user of the piece has to wait for. */
static bp_torch_piece mark(bp_torch_arena *arena, const bp_torch_piece *piece, uint64_t native)
{
    bp_torch_piece as = {.state = BP_TORCH_UNKNOWN};
    uint64_t capture;
    bool recorded;
    if (piece->captured) /* graphs run on any stream */
        return as;
    if (stream_of(arena, native, &as.stream) != BP_OK || bp_stream_capture_of(as.stream, &capture) != BP_OK ||
        capture != 0 || bp_stream_record_point(as.stream, &as.point, &recorded) != BP_OK)
        return as;
    as.state = recorded ? BP_TORCH_MARKED : BP_TORCH_CLEAN;
    return as;
}

void bp_torch_arena_free(bp_torch_arena *arena, const void *address, uint64_t native)
{
    bp_torch_statistics *s = &arena->statistics;
    uint64_t offset =
        (uint64_t)((uintptr_t)address - (uintptr_t)arena->address); /* wraps below: then it is no piece's */
    size_t index;
    if (!torch_pieces_live_at(&arena->pieces, offset, &index)) {
        s->strays++;
        return;
    }
    const bp_torch_piece *piece = &arena->pieces.pieces[index];
    s->live_segments--;
    s->live_bytes -= piece->bytes;
    bp_torch_piece as = mark(arena, piece, native);
    torch_pieces_give(&arena->pieces, index, &as);
}

/* ---- making ----------------------------------------------------------------------------------------------------------- */

static bp_status own_device(const bp_torch_config *config, bp_device **device)
{
    bp_cuda_config cuda;
    if (config->device != NULL) {
        bp_device_retain(config->device);
        *device = config->device;
        return BP_OK;
    }
    BP_TRY(bp_cuda_config_init(&cuda, sizeof cuda));
    cuda.ordinal = config->ordinal;
    return bp_device_create_cuda(&cuda, device);
}

static bp_status check_ordinal(const bp_torch_arena *arena)
{
    const bp_cuda_info *info = bp_cuda_get_info(arena->device);
    if (info == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: device %s is not a cuda device",
                       bp_device_name(arena->device));
    if (info->ordinal != arena->ordinal)
        return bp_fail(BP_ERR_MISMATCH, "bp_torch_serve: PyTorch's device %d was to be served from device %d (%s)",
                       (int)arena->ordinal, (int)info->ordinal, info->name);
    return BP_OK;
}

static bp_status hold(bp_torch_arena *arena)
{
    void *address;
    const bp_pool_info *info = bp_pool_get_info(arena->pool);
    if (arena->request >= info->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: pool %.80s has %zu requests, not number %u",
                       info->name, info->request_count, arena->request);
    const bp_plan_request *request = &info->requests[arena->request];
    if (request->placement != BP_PLACE_PERSISTENT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: request %u of pool %.80s is not persistent",
                       arena->request, info->name);
    if (bp_pool_references(arena->pool, arena->request) > 0)
        return bp_fail(BP_ERR_SCHEDULE, "bp_torch_serve: request %u of pool %.80s is held already", arena->request,
                       info->name);
    BP_TRY(bp_stream_create(arena->device, "torch", &arena->holder));
    bp_status status = bp_pool_acquire(arena->pool, &arena->request, 1, arena->holder, &address);
    if (status == BP_OK)
        status = bp_stream_synchronize(arena->holder); /* zeros, where they were asked for */
    if (status != BP_OK) {
        bp_stream_destroy(&arena->holder);
        return status;
    }
    uint64_t skipped = (BP_TORCH_STEP - (uintptr_t)address % BP_TORCH_STEP) % BP_TORCH_STEP;
    skipped = bp_least_u64(skipped, request->bytes);
    arena->address = (uint8_t *)address + skipped;
    arena->statistics.bytes = request->bytes - skipped;
    return BP_OK;
}

static bp_status arena_find_memory(bp_torch_arena *arena, const bp_torch_config *config)
{
    if (arena->pool != NULL)
        return hold(arena);
    bp_slabs_init(arena->device, &arena->slabs);
    BP_TRY(bp_slabs_add(&arena->slabs, config->bytes, BP_TORCH_ALIGNMENT));
    arena->address = arena->slabs.slabs[0].address;
    arena->statistics.bytes = arena->slabs.slabs[0].bytes;
    return BP_OK;
}

static void arena_give_back(bp_torch_arena *arena)
{
    for (size_t i = arena->import_count; i-- > 0;)
        bp_stream_destroy(&arena->imports[i].stream);
    free(arena->imports);
    if (arena->holder != NULL)
        (void)bp_pool_release(arena->pool, &arena->request, 1, arena->holder);
    bp_stream_destroy(&arena->holder);
    if (arena->slabs.device != NULL)
        bp_slabs_finish(&arena->slabs);
    torch_pieces_finish(&arena->pieces);
    bp_device_release(arena->device);
    free(arena);
}

bp_status bp_torch_arena_create(const bp_torch_config *config, bp_torch_arena **arena)
{
    void *memory;
    bp_torch_config source = *config;
    if (config->pool != NULL)
        source.device = bp_pool_get_info(config->pool)->device;
    BP_TRY(bp_new_array(1, sizeof **arena, &memory));
    bp_torch_arena *made = memory;
    *made = (bp_torch_arena){.ordinal = config->ordinal, .pool = config->pool, .request = config->request};
    bp_status status = own_device(&source, &made->device);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    status = check_ordinal(made);
    if (status == BP_OK)
        status = arena_find_memory(made, config);
    if (status == BP_OK)
        status = torch_pieces_init(&made->pieces, made->statistics.bytes);
    if (status != BP_OK) {
        arena_give_back(made);
        return status;
    }
    *arena = made;
    return BP_OK;
}

bp_status bp_torch_arena_destroy(bp_torch_arena *arena)
{
    BP_TRY(bp_device_synchronize(arena->device));
    arena_give_back(arena);
    return BP_OK;
}
