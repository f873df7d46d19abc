/* SPDX-License-Identifier: Apache-2.0 */
/* PyTorch's pluggable allocator: one arena per device, its pieces with the order between successive users, and the two functions that
 * PyTorch calls. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/cuda.h>
#include <bucketpool/device.h>
#include <bucketpool/torch_allocator.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "core/process.h"
#include "devices/memory/slabs.h"

#define VARIABLE "BUCKETPOOL_TORCH_BYTES"
#define STEP 512u /* unit of sizes and addresses: PyTorch's own division of segments */
#define ALIGNMENT (2u << 20)

/* State of a free piece: the wait that its next user needs, in ascending order. CLEAN: none. MARKED: for a point of a stream. UNKNOWN:
 * for all work of the device. */
typedef enum piece_state { CLEAN, MARKED, UNKNOWN, LIVE } piece_state;

typedef struct piece {
    uint64_t offset, bytes;
    piece_state state;
    bool captured;     /* live: handed out to a capture */
    bp_stream *stream; /* MARKED: stream of the point */
    uint64_t point;
} piece;

typedef struct import {
    uint64_t native;
    bp_stream *stream;
} import;

typedef struct arena {
    bp_device *device;
    int32_t ordinal;
    bp_slabs slabs; /* one slab, or none if a pool serves */
    bp_pool *pool;
    uint32_t request;
    bp_stream *holder; /* stream on which the pool's request is held */
    uint8_t *address;
    piece *pieces; /* sorted by address */
    size_t count, capacity;
    import *imports; /* streams that PyTorch passed */
    size_t import_count, import_capacity;
    bp_torch_statistics statistics;
} arena;

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

/* Best fit: finds the smallest run of free pieces with room for `bytes`, the lowest among equals. Prefers pieces without a host wait. */
static bp_status find_run(const arena *a, uint64_t bytes, bool captured, size_t *first)
{
    uint64_t largest = 0;
    const piece_state max = captured ? CLEAN : UNKNOWN;
    for (piece_state state = captured ? CLEAN : MARKED; state <= max; state++) {
        uint64_t best = UINT64_MAX;
        bool found = false;
        largest = 0;
        for (size_t i = 0; i < a->count; i++) {
            const size_t begin = i;
            uint64_t run = 0;
            for (; i < a->count && a->pieces[i].state <= state; i++)
                run += a->pieces[i].bytes;
            largest = run > largest ? run : largest;
            if (run >= bytes && run < best) {
                best = run;
                *first = begin;
                found = true;
            }
        }
        if (found)
            return BP_OK;
    }
    const bp_torch_statistics *s = &a->statistics;
    return bp_fail(
        BP_ERR_NO_DEVICE_MEMORY,
        "device %d: a segment of %llu bytes for PyTorch does not fit: %llu of %llu bytes are handed out, and the "
        "largest %s range has %llu; serve more bytes",
        (int)a->ordinal, (unsigned long long)bytes, (unsigned long long)s->live_bytes, (unsigned long long)s->bytes,
        captured ? "never used (a graph is being captured)" : "free", (unsigned long long)largest);
}

/* Number of pieces from `first` on that make up `bytes`. */
static size_t count_pieces(const arena *a, size_t first, uint64_t bytes)
{
    size_t count = 0;
    for (uint64_t have = 0; have < bytes; count++)
        have += a->pieces[first + count].bytes;
    return count;
}

/* Merges `count` pieces from `first` on. */
static void join(arena *a, size_t first, size_t count)
{
    for (size_t i = 1; i < count; i++)
        a->pieces[first].bytes += a->pieces[first + i].bytes;
    memmove(&a->pieces[first + 1], &a->pieces[first + count], (a->count - first - count) * sizeof *a->pieces);
    a->count -= count - 1;
}

/* Merges a free piece with the next one if both wait for the same stream; the later point covers both. */
static void join_equal(arena *a, size_t first)
{
    piece *p = &a->pieces[first];
    const piece *next = p + 1;
    if (first + 1 >= a->count || p->state != next->state || p->state == LIVE ||
        (p->state == MARKED && p->stream != next->stream))
        return;
    if (p->state == MARKED && next->point > p->point)
        p->point = next->point;
    join(a, first, 2);
}

/* Makes one live piece; the remainder of the last one keeps its state. All or nothing: BP_ERR_NO_HOST_MEMORY. */
static bp_status take_run(arena *a, size_t first, uint64_t bytes)
{
    BP_TRY(bp_grow_array((void **)&a->pieces, &a->capacity, a->count, sizeof *a->pieces));
    const size_t count = count_pieces(a, first, bytes);
    piece *last = &a->pieces[first + count - 1];
    const uint64_t of_last = a->pieces[first].offset + bytes - last->offset;
    if (of_last < last->bytes) {
        memmove(last + 1, last, (a->count - (first + count - 1)) * sizeof *last);
        a->count++;
        last[0].bytes = of_last;
        last[1].offset += of_last;
        last[1].bytes -= of_last;
    }
    join(a, first, count);
    a->pieces[first].state = LIVE;
    return BP_OK;
}

/* ---- segments --------------------------------------------------------------------------------------------------------- */

/* PyTorch passes few distinct streams, which live as long as the process. */
static bp_status stream_of(arena *a, uint64_t native, bp_stream **stream)
{
    for (size_t i = 0; i < a->import_count; i++) {
        if (a->imports[i].native == native) {
            *stream = a->imports[i].stream;
            return BP_OK;
        }
    }
    BP_TRY(bp_grow_array((void **)&a->imports, &a->import_capacity, a->import_count, sizeof *a->imports));
    BP_TRY(bp_stream_import(a->device, native, NULL, stream));
    a->imports[a->import_count++] = (import){native, *stream};
    return BP_OK;
}

static bp_status arena_allocate(arena *a, uint64_t bytes, uint64_t native, void **address)
{
    bp_stream *stream;
    uint64_t capture;
    size_t first;
    if (bytes == 0 || !bp_round_up_u64(bytes, STEP, &bytes))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "device %d: PyTorch asked for %s", (int)a->ordinal,
                       bytes == 0 ? "0 bytes" : "more than 64 bits");
    BP_TRY(stream_of(a, native, &stream));
    BP_TRY(bp_stream_capture_of(stream, &capture));
    BP_TRY(find_run(a, bytes, capture != 0, &first));

    bool unknown = false;
    for (size_t i = first, end = first + count_pieces(a, first, bytes); i < end; i++)
        unknown |= a->pieces[i].state == UNKNOWN;
    if (unknown) { /* after all work of the device, every free piece is clean */
        BP_TRY(bp_device_synchronize(a->device));
        for (size_t i = a->count; i-- > 0;) {
            piece *p = &a->pieces[i];
            if (p->state != LIVE)
                *p = (piece){.offset = p->offset, .bytes = p->bytes};
            join_equal(a, i);
        }
        BP_TRY(find_run(a, bytes, false, &first));
    }

    for (size_t i = first, end = first + count_pieces(a, first, bytes); i < end; i++) {
        const piece *p = &a->pieces[i];
        if (p->state != MARKED || p->stream == stream)
            continue;
        BP_TRY(bp_stream_wait_point(stream, p->stream, p->point));
        a->statistics.waits++;
    }
    BP_TRY(take_run(a, first, bytes));
    a->pieces[first].captured = capture != 0;

    bp_torch_statistics *s = &a->statistics;
    s->segments++;
    s->live_segments++;
    s->live_bytes += bytes;
    s->peak_live_bytes = s->live_bytes > s->peak_live_bytes ? s->live_bytes : s->peak_live_bytes;
    *address = a->address + a->pieces[first].offset;
    return BP_OK;
}

static void arena_free(arena *a, const void *address, uint64_t native)
{
    bp_torch_statistics *s = &a->statistics;
    const uint64_t offset =
        (uint64_t)((uintptr_t)address - (uintptr_t)a->address); /* wraps below the arena: no piece */
    size_t low = 0, high = a->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (a->pieces[middle].offset < offset)
            low = middle + 1;
        else
            high = middle;
    }
    piece *p = &a->pieces[low];
    if (low == a->count || p->offset != offset || p->state != LIVE) {
        s->strays++;
        return;
    }
    s->live_segments--;
    s->live_bytes -= p->bytes;

    piece freed = {.offset = p->offset, .bytes = p->bytes, .state = UNKNOWN};
    uint64_t capture;
    bool recorded;
    if (!p->captured && /* graphs run on any stream */
        stream_of(a, native, &freed.stream) == BP_OK && bp_stream_capture_of(freed.stream, &capture) == BP_OK &&
        capture == 0 && bp_stream_record_point(freed.stream, &freed.point, &recorded) == BP_OK)
        freed.state = recorded ? MARKED : CLEAN;
    *p = freed;
    join_equal(a, low);
    if (low > 0)
        join_equal(a, low - 1);
}

/* ---- arenas ------------------------------------------------------------------------------------------------------ */

/* Acquires the pool's request for as long as the arena lives. */
static bp_status acquire_memory(arena *a)
{
    void *address;
    const bp_pool_info *info = bp_pool_get_info(a->pool);
    if (a->request >= info->request_count)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: pool %.80s has %zu requests, not number %u",
                       info->name, info->request_count, a->request);
    const bp_plan_request *request = &info->requests[a->request];
    if (request->placement != BP_PLACE_PERSISTENT)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: request %u of pool %.80s is not persistent",
                       a->request, info->name);
    if (bp_pool_references(a->pool, a->request) > 0)
        return bp_fail(BP_ERR_SCHEDULE, "bp_torch_serve: request %u of pool %.80s is held already", a->request,
                       info->name);
    BP_TRY(bp_stream_create(a->device, "torch", &a->holder));
    bp_status status = bp_pool_acquire(a->pool, &a->request, 1, a->holder, &address);
    if (status == BP_OK)
        status = bp_stream_synchronize(a->holder); /* zeroing, if requested */
    if (status != BP_OK) {
        bp_stream_destroy(&a->holder);
        return status;
    }
    const uint64_t skipped = bp_min_u64((STEP - (uintptr_t)address % STEP) % STEP, request->bytes);
    a->address = (uint8_t *)address + skipped;
    a->statistics.bytes = request->bytes - skipped;
    return BP_OK;
}

/* Checks the device, and gets the memory as one clean piece. */
static bp_status arena_build(arena *a, uint64_t bytes)
{
    const bp_cuda_info *info = bp_cuda_get_info(a->device);
    if (info == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_torch_serve: device %s is not a cuda device",
                       bp_device_name(a->device));
    if (info->ordinal != a->ordinal)
        return bp_fail(BP_ERR_MISMATCH, "bp_torch_serve: PyTorch's device %d cannot be served from device %d (%s)",
                       (int)a->ordinal, (int)info->ordinal, info->name);
    if (a->pool != NULL) {
        BP_TRY(acquire_memory(a));
    } else {
        a->slabs.device = a->device;
        BP_TRY(bp_slabs_add(&a->slabs, bytes, ALIGNMENT));
        a->address = a->slabs.slabs[0].address;
        a->statistics.bytes = a->slabs.slabs[0].bytes;
    }
    BP_TRY(bp_grow_array((void **)&a->pieces, &a->capacity, 0, sizeof *a->pieces));
    a->pieces[a->count++] = (piece){.bytes = a->statistics.bytes};
    return BP_OK;
}

static void arena_destroy(arena *a)
{
    BP_KEEP_ERROR;
    for (size_t i = a->import_count; i-- > 0;)
        bp_stream_destroy(&a->imports[i].stream);
    free(a->imports);
    if (a->holder != NULL)
        (void)bp_pool_release(a->pool, &a->request, 1, a->holder);
    bp_stream_destroy(&a->holder);
    if (a->slabs.device != NULL)
        bp_slabs_finish(&a->slabs);
    free(a->pieces);
    bp_device_release(a->device);
    free(a);
}

/* All or nothing. */
static bp_status arena_create(const bp_torch_config *config, arena **created)
{
    void *memory;
    bp_device *device = config->pool != NULL ? bp_pool_get_info(config->pool)->device : config->device;
    BP_TRY(bp_new_array(1, sizeof(arena), &memory));
    arena *a = memory;
    *a = (arena){.ordinal = config->ordinal, .pool = config->pool, .request = config->request, .device = device};
    bp_status status = BP_OK;
    if (device != NULL) {
        bp_device_retain(device);
    } else {
        bp_cuda_config cuda;
        status = bp_cuda_config_init(&cuda, sizeof cuda);
        cuda.ordinal = config->ordinal;
        if (status == BP_OK)
            status = bp_device_create_cuda(&cuda, &a->device);
    }
    if (status != BP_OK) {
        free(a);
        return status;
    }
    status = arena_build(a, config->bytes);
    if (status != BP_OK) {
        arena_destroy(a);
        return status;
    }
    *created = a;
    return BP_OK;
}

/* ---- serving ----------------------------------------------------------------------------------------------------- */

/* A lock per device: a thread that waits for one must not block threads whose work it waits for (collectives within one process). */
static pthread_mutex_t locks[BP_TORCH_DEVICES];
static arena *arenas[BP_TORCH_DEVICES];
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bp_process process; /* process of the locks: in a forked child they may be held for ever, so it is not served */
static bp_status begun;
static pthread_mutex_t refusal_lock = PTHREAD_MUTEX_INITIALIZER;   /* taken last */
static char refusal[sizeof((bp_torch_statistics *)NULL)->because]; /* why a device is not served */

static void make_locks(void)
{
    for (size_t i = 0; i < BP_TORCH_DEVICES; i++)
        pthread_mutex_init(&locks[i], NULL); /* cannot fail for a plain mutex */
    begun = bp_process_init(&process);
}

static bp_status lock(const char *function, int ordinal)
{
    pthread_once(&once, make_locks);
    if (begun != BP_OK)
        return bp_fail(begun, "%s: the fork handler could not be registered", function);
    BP_TRY(bp_process_check(&process, function, "the allocator of", "PyTorch"));
    pthread_mutex_lock(&locks[ordinal]);
    return BP_OK;
}

static void unlock(int ordinal)
{
    pthread_mutex_unlock(&locks[ordinal]);
}

static const bp_torch_config torch_config_defaults = {.size = sizeof torch_config_defaults};

bp_status bp_torch_config_init(bp_torch_config *config, size_t size)
{
    return bp_struct_init("bp_torch_config_init", config, size, &torch_config_defaults, sizeof torch_config_defaults);
}

static bp_status check_index(const char *function, int ordinal)
{
    if (ordinal < 0 || ordinal >= BP_TORCH_DEVICES)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: device %d, expected 0 to %d", function, ordinal,
                       BP_TORCH_DEVICES - 1);
    return BP_OK;
}

bp_status bp_torch_serve(const bp_torch_config *config)
{
    bp_torch_config own = torch_config_defaults;
    BP_TRY(bp_struct_read("bp_torch_serve", config, false, &own, sizeof own));
    BP_TRY(check_index("bp_torch_serve", own.ordinal));
    if ((own.pool == NULL) == (own.bytes == 0) || (own.pool != NULL && own.device != NULL))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_torch_serve: device %d needs either a pool or a number of bytes, and with a pool no device",
                       (int)own.ordinal);
    BP_TRY(lock("bp_torch_serve", own.ordinal));
    arena **served = &arenas[own.ordinal];
    bp_status status = *served == NULL
                           ? arena_create(&own, served)
                           : bp_fail(BP_ERR_SCHEDULE, "bp_torch_serve: device %d is served already, from %llu bytes",
                                     (int)own.ordinal, (unsigned long long)(*served)->statistics.bytes);
    unlock(own.ordinal);
    return status;
}

static bp_status not_served(const char *function, int ordinal)
{
    pthread_mutex_lock(&refusal_lock);
    bp_status status = bp_fail(BP_ERR_SCHEDULE, "%s: device %d is not served%s%s", function, ordinal,
                               *refusal != '\0' ? ": " : "", refusal);
    pthread_mutex_unlock(&refusal_lock);
    return status;
}

bp_status bp_torch_stop(int32_t ordinal)
{
    BP_TRY(check_index("bp_torch_stop", ordinal));
    BP_TRY(lock("bp_torch_stop", ordinal));
    arena *a = arenas[ordinal];
    const bp_torch_statistics *s = a != NULL ? &a->statistics : NULL;
    bp_status status;
    if (a == NULL)
        status = not_served("bp_torch_stop", ordinal);
    else if (s->live_segments > 0)
        status = bp_fail(
            BP_ERR_SCHEDULE,
            "bp_torch_stop: device %d: PyTorch has %llu segments of %llu bytes; drop the tensors and the pool first",
            (int)ordinal, (unsigned long long)s->live_segments, (unsigned long long)s->live_bytes);
    else
        status = bp_device_synchronize(a->device); /* on failure the arena stays */
    if (status == BP_OK) {
        arena_destroy(a);
        arenas[ordinal] = NULL;
    }
    unlock(ordinal);
    return status;
}

bp_status bp_torch_statistics_get(int32_t ordinal, bp_torch_statistics *statistics)
{
    BP_TRY(check_index("bp_torch_statistics_get", ordinal));
    BP_TRY(lock("bp_torch_statistics_get", ordinal));
    const arena *a = arenas[ordinal];
    bp_status status = a != NULL ? BP_OK : not_served("bp_torch_statistics_get", ordinal);
    if (status == BP_OK)
        status = bp_struct_write("bp_torch_statistics_get", &a->statistics, sizeof a->statistics, statistics);
    unlock(ordinal);
    return status;
}

/* ---- entry points for PyTorch -------------------------------------------------------------------------------------------- */

/* Parses a number of bytes such as "8g": digits, then nothing, k, m, g or t. */
static bool read_bytes(const char *text, uint64_t *bytes)
{
    static const char units[] = "kmgt";
    const char *c = text;
    uint64_t value = 0;
    for (; *c >= '0' && *c <= '9'; c++) {
        if (!bp_mul_u64(value, 10, &value) || !bp_add_u64(value, (uint64_t)(*c - '0'), &value))
            return false;
    }
    const char *unit = c > text && *c != '\0' ? strchr(units, *c | 0x20) : NULL;
    if (unit != NULL) {
        if (!bp_mul_u64(value, 1ull << (10 * (unit - units + 1)), &value))
            return false;
        c++;
    }
    *bytes = value;
    return *c == '\0' && value > 0;
}

static void refuse_unserved(void)
{
    pthread_mutex_lock(&refusal_lock);
    snprintf(refusal, sizeof refusal, "%s", bp_error_detail());
    pthread_mutex_unlock(&refusal_lock);
}

void *bp_torch_malloc(size_t bytes, int device, void *stream)
{
    void *address = NULL;
    if (check_index("bp_torch_malloc", device) != BP_OK) {
        refuse_unserved();
        return NULL;
    }
    if (lock("bp_torch_malloc", device) != BP_OK)
        return NULL;
    bp_status status = BP_OK;
    if (arenas[device] == NULL) {
        bp_torch_config config = torch_config_defaults;
        const char *variable = secure_getenv(VARIABLE);
        config.ordinal = device;
        if (variable == NULL)
            status = bp_fail(BP_ERR_SCHEDULE, "neither bp_torch_serve was called for it nor " VARIABLE " is set");
        else if (!read_bytes(variable, &config.bytes))
            status =
                bp_fail(BP_ERR_INVALID_ARGUMENT, VARIABLE "=%.40s: expected a number of bytes, such as 8g", variable);
        else
            status = arena_create(&config, &arenas[device]);
    }
    arena *a = arenas[device];
    if (status == BP_OK)
        status = arena_allocate(a, bytes, (uintptr_t)stream, &address);
    if (status != BP_OK && a == NULL) {
        refuse_unserved();
    } else if (status != BP_OK) {
        snprintf(a->statistics.because, sizeof a->statistics.because, "%s", bp_error_detail());
        a->statistics.refused++;
    }
    unlock(device);
    return address;
}

void bp_torch_free(void *address, size_t bytes, int device, void *stream)
{
    (void)bytes;
    if (device < 0 || device >= BP_TORCH_DEVICES || address == NULL || lock("bp_torch_free", device) != BP_OK)
        return;
    if (arenas[device] != NULL)
        arena_free(arenas[device], address, (uintptr_t)stream);
    unlock(device);
}
