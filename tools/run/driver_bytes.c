/* SPDX-License-Identifier: Apache-2.0 */
/* Fills and checks of the driver's streams. If the host cannot reach device memory, bytes are staged in page-locked
 * memory, piece by piece. */
#include "run/driver.h"

#include <string.h>
#include <time.h>

#include "run/driver_state.h"

/* ---- patterns ---------------------------------------------------------------------------------------------------- */

#define WORD sizeof(uint64_t)
#define BLOCK 64 /* words; a constant, so that compilers vectorise the loops */

/* Neighbouring words differ by an odd number before they are mixed. Shifts, additions and exclusive or have vector
 * forms on all targets, 64-bit products do not. */
#define STRIDE 0x9e3779b97f4a7c15u

static inline uint64_t mix(uint64_t x)
{
    x ^= x >> 29;
    x += x << 17;
    return x ^ x >> 32;
}

static inline uint64_t word(uint64_t seed, uint64_t index)
{
    return mix(seed + index * STRIDE);
}

/* Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (splitmix64). */
static uint64_t scramble(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

uint64_t pattern_seed(uint64_t run, uint32_t request, uint64_t iteration, uint32_t interval)
{
    uint64_t seed = scramble(run + STRIDE);
    seed = scramble(seed ^ request);
    seed = scramble((seed + STRIDE) ^ iteration);
    return scramble((seed + 2 * STRIDE) ^ interval);
}

uint64_t pattern_seed_at(uint64_t seed, uint64_t offset)
{
    return seed + offset / WORD * STRIDE;
}

static uint8_t pattern_byte(uint64_t seed, uint64_t offset)
{
    uint64_t value = word(seed, offset / WORD);
    uint8_t bytes[WORD];
    memcpy(bytes, &value, WORD); /* in memory order, independent of endianness */
    return bytes[offset % WORD];
}

void pattern_fill(void *memory, uint64_t bytes, uint64_t seed)
{
    unsigned char *at = memory;
    uint64_t index = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK];
        for (unsigned i = 0; i < BLOCK; i++)
            block[i] = mix(first + i * STRIDE);
        memcpy(at + index * WORD, block, sizeof block);
    }
    for (uint64_t offset = index * WORD; offset < bytes; offset++)
        at[offset] = pattern_byte(seed, offset);
}

/* The first mismatch of a range. */
static bool find_difference(const unsigned char *memory, uint64_t begin, uint64_t end, uint64_t seed,
                            pattern_difference *difference)
{
    for (uint64_t offset = begin; offset < end; offset++) {
        *difference = (pattern_difference){offset, pattern_byte(seed, offset), memory[offset]};
        if (difference->found != difference->expected)
            return true;
    }
    return false;
}

bool pattern_check(const void *memory, uint64_t bytes, uint64_t seed, pattern_difference *difference)
{
    const unsigned char *at = memory;
    uint64_t index = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK], differs = 0;
        memcpy(block, at + index * WORD, sizeof block);
        for (unsigned i = 0; i < BLOCK; i++)
            differs |= block[i] ^ mix(first + i * STRIDE);
        if (differs != 0) { /* also if a concurrent write has fixed it meanwhile */
            find_difference(at, index * WORD, (index + BLOCK) * WORD, seed, difference);
            return false;
        }
    }
    return !find_difference(at, index * WORD, bytes, seed, difference);
}

/* The word is multiplied, so that matching bytes do not cancel the seed. */
static inline uint64_t blend(uint64_t value, uint64_t position)
{
    return mix((value << 7) + value + mix(position + STRIDE / 2));
}

uint64_t pattern_digest(const void *memory, uint64_t bytes, uint64_t seed)
{
    const unsigned char *at = memory;
    uint64_t index = 0, sums[BLOCK] = {0}, digest = 0;
    for (; (index + BLOCK) * WORD <= bytes; index += BLOCK) {
        uint64_t first = seed + index * STRIDE, block[BLOCK];
        memcpy(block, at + index * WORD, sizeof block);
        for (unsigned i = 0; i < BLOCK; i++)
            sums[i] += blend(block[i], first + i * STRIDE);
    }
    for (unsigned i = 0; i < BLOCK; i++)
        digest += sums[i];
    for (; index * WORD < bytes; index++) {
        uint64_t left = bytes - index * WORD, value = 0;
        memcpy(&value, at + index * WORD, left < WORD ? (size_t)left : WORD);
        digest += blend(value, seed + index * STRIDE);
    }
    return digest;
}

/* ---- fills and checks -------------------------------------------------------------------------------------------- */

static bool is_stopped(const operation *o)
{
    return atomic_load_explicit(&o->driver->stopped, memory_order_relaxed);
}

static uint64_t iteration_of(const operation *o)
{
    return o->replayed ? atomic_load_explicit(&o->driver->replay_time, memory_order_relaxed) : o->iteration;
}

static uint64_t seed_of(const operation *o)
{
    uint64_t iteration = o->replayed && !o->hold.always ? iteration_of(o) : o->hold.iteration;
    return pattern_seed(o->driver->config.seed, o->request, iteration, o->hold.interval);
}

static void pause_at_random(const operation *o)
{
    uint64_t max = o->driver->config.max_pause_us;
    if (max == 0)
        return;
    uint64_t number = pattern_seed(o->driver->config.seed, o->request, iteration_of(o) ^ o->number << 32, o->step);
    uint64_t us = number % (max + 1);
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

/* Bytes of the next piece, which begins at `o->done`. */
static uint64_t next_piece(const operation *o)
{
    uint64_t left = o->bytes - o->done;
    return left < o->piece ? left : o->piece;
}

/* true after the last piece; the operation is then reset for a replay. */
static bool end_piece(operation *o, uint64_t bytes)
{
    o->done += bytes;
    if (o->done < o->bytes)
        return false;
    o->done = 0;
    return true;
}

static void fill(void *argument)
{
    operation *o = argument;
    if (is_stopped(o))
        return;
    pause_at_random(o);
    uint64_t bytes = next_piece(o);
    unsigned char *at = o->staged != NULL ? o->staged : o->hold.address + o->done;
    pattern_fill(at, bytes, pattern_seed_at(seed_of(o), o->done));
    atomic_fetch_add_explicit(&o->driver->filled_bytes, bytes, memory_order_relaxed);
    end_piece(o, bytes);
}

/* true: `o` in `iteration` precedes the first corruption so far. */
static bool is_first(const driver *d, const operation *o, uint64_t iteration)
{
    const driver_position *first = &d->result.first.at;
    if (iteration != first->iteration)
        return iteration < first->iteration;
    return o->step != first->step ? o->step < first->step : o->number < d->first_number;
}

static void note_corruption(operation *o, const pattern_difference *difference)
{
    driver *d = o->driver;
    uint64_t iteration = iteration_of(o);
    if (o->wrong)
        return; /* an earlier piece is the first mismatch */
    o->wrong = true;
    pthread_mutex_lock(&d->lock);
    if (atomic_fetch_add(&d->corrupted, 1) == 0 || is_first(d, o, iteration)) {
        d->first_number = o->number;
        d->result.first = (driver_corruption){{iteration, o->step}, o->request, *difference};
    }
    pthread_mutex_unlock(&d->lock);
}

static void check(void *argument)
{
    operation *o = argument;
    pattern_difference difference;
    if (is_stopped(o)) /* the fill may have been skipped too */
        return;
    pause_at_random(o);
    uint64_t bytes = next_piece(o), seed = pattern_seed_at(seed_of(o), o->done);
    const unsigned char *at = o->staged != NULL ? o->staged : o->hold.address + o->done;
    o->wrong = o->wrong && o->done > 0;
    if (!pattern_check(at, bytes, seed, &difference)) {
        difference.offset += o->done;
        note_corruption(o, &difference);
    }
    atomic_fetch_add_explicit(&o->driver->digest, pattern_digest(at, bytes, seed), memory_order_relaxed);
    atomic_fetch_add_explicit(&o->driver->checked_bytes, bytes, memory_order_relaxed);
    if (end_piece(o, bytes))
        atomic_fetch_add_explicit(&o->driver->checked, 1, memory_order_relaxed);
}

void driver_next_iteration(void *argument)
{
    driver *d = argument;
    atomic_fetch_add_explicit(&d->replay_time, 1, memory_order_relaxed);
}

bp_status driver_enqueue_fill(operation *o, bp_stream *stream)
{
    bp_status status = BP_OK;
    for (uint64_t at = 0; status == BP_OK && at < o->bytes; at += o->piece) {
        uint64_t left = o->bytes - at, bytes = left < o->piece ? left : o->piece;
        status = bp_stream_call(stream, fill, o);
        if (status == BP_OK && o->staged != NULL)
            status = bp_stream_copy(stream, o->hold.address + at, o->staged, bytes);
    }
    return status;
}

bp_status driver_enqueue_check(operation *o, bp_stream *stream)
{
    bp_status status = BP_OK;
    for (uint64_t at = 0; status == BP_OK && at < o->bytes; at += o->piece) {
        uint64_t left = o->bytes - at, bytes = left < o->piece ? left : o->piece;
        if (o->staged != NULL)
            status = bp_stream_copy(stream, o->staged, o->hold.address + at, bytes);
        if (status == BP_OK)
            status = bp_stream_call(stream, check, o);
    }
    return status;
}
