/* Streams and their timelines of points. */
#include "devices/device.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

/* ---- points ------------------------------------------------------------------------------------------------------ */

static void destroy_points(bp_device *device, bp_stream_points *points, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        (void)device->ops->event_destroy(device->self, points->events[i]);
    bp_device_discount(&device->live_events, count);
    free(points);
}

static bp_status create_points(bp_device *device, bp_stream_points **points)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_stream_points), &memory));
    bp_stream_points *created = memory;
    for (uint32_t i = 0; i < BP_STREAM_POINTS; i++) {
        bp_status status = device->ops->event_create(device->self, &created->events[i]);
        if (status != BP_OK) {
            destroy_points(device, created, i);
            return status;
        }
        bp_device_count(&device->live_events, 1);
        atomic_init(&created->marked[i], i - BP_STREAM_POINTS); /* before all points */
    }
    *points = created;
    return BP_OK;
}

bp_status bp_stream_record_point(bp_stream *stream, uint32_t *point)
{
    if (!bp_stream_is_usable(stream, stream->device))
        return bp_stream_check(stream, stream->device, "bp_stream_record_point");
    bp_stream_points *points = atomic_load_explicit(&stream->points, memory_order_relaxed);
    /* Acquire and release: a younger point covers what an older one covers, whichever of the two is recorded first. */
    uint32_t taken = atomic_fetch_add_explicit(&stream->recorded, 1, memory_order_acq_rel);
    uint32_t entry = taken % BP_STREAM_POINTS;
    BP_TRY(stream->device->ops->event_record(stream->device->self, points->events[entry], stream->raw));
    atomic_store_explicit(&points->marked[entry], taken, memory_order_release);
    *point = taken;
    return BP_OK;
}

/* The event to wait on for `point`. Its own is always safe: it marks the point, or a younger one once it was
 * recorded again. That younger one may be very young, so the oldest of the ring is preferred; unless another thread
 * has taken that and not recorded it yet, or failed to: then its event still marks a point that may be older than
 * `point`. */
static void *find_event(const bp_stream *stream, const bp_stream_points *points, uint32_t point)
{
    uint32_t taken = atomic_load_explicit(&stream->recorded, memory_order_acquire);
    if (taken - point > BP_STREAM_POINTS) {
        uint32_t oldest = taken % BP_STREAM_POINTS;
        uint32_t marked = atomic_load_explicit(&points->marked[oldest], memory_order_acquire);
        if (marked - point < UINT32_MAX / 2)
            return points->events[oldest];
    }
    return points->events[point % BP_STREAM_POINTS];
}

bp_status bp_stream_wait_point(bp_stream *waiter, bp_stream *stream, uint32_t point)
{
    if (!bp_stream_is_usable(waiter, stream->device))
        return bp_stream_check(waiter, stream->device, "bp_stream_wait_point");
    if (waiter == stream)
        return BP_OK;
    /* Sequentially consistent: either the points are gone, or destroying them waits until this is done. */
    atomic_fetch_add(&stream->waiting, 1);
    bp_stream_points *points = atomic_load(&stream->points);
    bp_status status = BP_OK;
    if (points != NULL)
        status = stream->device->ops->stream_wait(stream->device->self, waiter->raw, find_event(stream, points, point));
    atomic_fetch_sub(&stream->waiting, 1);
    return status;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void name_stream(bp_stream *stream, const char *name)
{
    if (name != NULL)
        snprintf(stream->name, sizeof stream->name, "%s", name);
    else
        snprintf(stream->name, sizeof stream->name, "stream.%u", stream->number);
}

static bp_status make_raw(bp_device *device, bool import, uint64_t native, void **raw)
{
    return import ? device->ops->stream_import(device->self, native, raw)
                  : device->ops->stream_create(device->self, raw);
}

static bp_status create_stream(bp_device *device, bool import, uint64_t native, const char *name, bp_stream **stream)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_stream), &memory));
    bp_stream *created = memory;
    bp_stream_points *points;
    bp_status status = create_points(device, &points);
    if (status == BP_OK) {
        status = make_raw(device, import, native, &created->raw);
        if (status != BP_OK)
            destroy_points(device, points, BP_STREAM_POINTS);
    }
    if (status != BP_OK) {
        free(created);
        return status;
    }
    created->device = device;
    created->number = atomic_fetch_add(&device->stream_numbers, 1);
    name_stream(created, name);
    atomic_init(&created->points, points);
    atomic_init(&created->alive, true);
    bp_device_retain(device);
    bp_device_count(&device->live_streams, 1);
    created->next = atomic_load(&device->streams);
    while (!atomic_compare_exchange_weak(&device->streams, &created->next, created)) {
    }
    *stream = created;
    return BP_OK;
}

bp_status bp_stream_create(bp_device *device, const char *name, bp_stream **stream)
{
    if (device == NULL || stream == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_create: needs a device and an output");
    return create_stream(device, false, 0, name, stream);
}

bp_status bp_stream_import(bp_device *device, uint64_t native, const char *name, bp_stream **stream)
{
    if (device == NULL || stream == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_import: needs a device and an output");
    if (device->ops->stream_import == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_stream_import: device %s has no native streams", device->ops->name);
    return create_stream(device, true, native, name, stream);
}

void bp_stream_destroy(bp_stream **stream)
{
    if (stream == NULL || *stream == NULL)
        return;
    bp_stream *s = *stream;
    *stream = NULL;
    if (!atomic_exchange(&s->alive, false))
        return;
    bp_device *device = s->device;
    /* Until its work is done others wait for its points. Where the provider refuses to wait they stay until the
     * device goes. */
    bool done = device->ops->stream_synchronize(device->self, s->raw) == BP_OK;
    done = device->ops->stream_destroy(device->self, s->raw) == BP_OK || done;
    if (done) {
        bp_stream_points *points = atomic_exchange(&s->points, NULL);
        while (atomic_load(&s->waiting) != 0)
            sched_yield();
        destroy_points(device, points, BP_STREAM_POINTS);
    }
    bp_device_discount(&device->live_streams, 1);
    bp_device_release(device);
}

void bp_stream_free(bp_stream *stream)
{
    bp_stream_points *points = atomic_load(&stream->points);
    if (points != NULL)
        destroy_points(stream->device, points, BP_STREAM_POINTS);
    free(stream);
}

bp_status bp_stream_check(const bp_stream *stream, const bp_device *device, const char *function)
{
    if (stream == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no stream", function);
    if (!atomic_load_explicit(&stream->alive, memory_order_relaxed))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: stream %s (number %u) was destroyed", function, stream->name,
                       stream->number);
    if (stream->device != device)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: stream %s is of another device (%s) than the call (%s)", function,
                       stream->name, bp_device_name(stream->device), bp_device_name(device));
    return BP_OK;
}

/* ---- work -------------------------------------------------------------------------------------------------------- */

const char *bp_stream_name(const bp_stream *stream)
{
    return stream->name;
}

static bp_status check_own(const bp_stream *stream, const char *function)
{
    return bp_stream_check(stream, stream != NULL ? stream->device : NULL, function);
}

bp_status bp_stream_synchronize(bp_stream *stream)
{
    BP_TRY(check_own(stream, "bp_stream_synchronize"));
    return stream->device->ops->stream_synchronize(stream->device->self, stream->raw);
}

bp_status bp_stream_call(bp_stream *stream, bp_host_function *function, void *argument)
{
    BP_TRY(check_own(stream, "bp_stream_call"));
    if (function == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_call: no function for stream %s", stream->name);
    return stream->device->ops->call(stream->device->self, stream->raw, function, argument);
}

bp_status bp_stream_fill(bp_stream *stream, void *address, uint8_t value, uint64_t bytes)
{
    BP_TRY(check_own(stream, "bp_stream_fill"));
    if (bytes == 0)
        return BP_OK;
    if (address == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_fill: no address for %llu bytes on stream %s",
                       (unsigned long long)bytes, stream->name);
    return stream->device->ops->fill(stream->device->self, stream->raw, address, value, bytes);
}

bp_status bp_stream_copy(bp_stream *stream, void *to, const void *from, uint64_t bytes)
{
    BP_TRY(check_own(stream, "bp_stream_copy"));
    if (bytes == 0)
        return BP_OK;
    if (to == NULL || from == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_copy: no %s for %llu bytes on stream %s",
                       to == NULL ? "destination" : "source", (unsigned long long)bytes, stream->name);
    return stream->device->ops->copy(stream->device->self, stream->raw, to, from, bytes);
}
