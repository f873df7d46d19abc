/* What the driver's streams do: they fill buckets with patterns and look whether these are still there. Where the host cannot reach the
 * device's memory, bytes go through page-locked memory, a piece at a time. */
#include <time.h>

#include "driver_state.h"

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
    uint64_t most = o->driver->config.max_pause_us;
    if (most == 0)
        return;
    uint64_t number = pattern_seed(o->driver->config.seed, o->request, iteration_of(o) ^ o->number << 32, o->step);
    uint64_t us = number % (most + 1);
    nanosleep(&(struct timespec){(time_t)(us / 1000000), (long)(us % 1000000) * 1000}, NULL);
}

/* How many bytes the next piece has; `o->done` is where it begins. */
static uint64_t next_piece(const operation *o)
{
    uint64_t left = o->bytes - o->done;
    return left < o->piece ? left : o->piece;
}

/* true: that was the last piece, and the operation is ready to be run again. */
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

/* Whether `o`, in `iteration`, comes before the first corruption so far. */
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
        return; /* a piece before this one */
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
    if (is_stopped(o)) /* then the fill may have been passed over too */
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
