/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, and their timelines of release events. */
#include "devices/device.h"

#include <bucketpool/core/fail.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* ---- points ------------------------------------------------------------------------------------------------------ */

static void destroy_points(bp_device *device, bp_stream_points *points, uint32_t count)
{
    BP_KEEP_ERROR;
    for (uint32_t i = 0; i < count; i++)
        (void)device->ops->event_destroy(device->self, points->events[i]);
    free(points);
}

/* Takes an unused ring, or makes one. */
static bp_status stream_take_points(bp_device *device, bp_stream_points **points)
{
    pthread_mutex_lock(&device->rings_lock);
    bp_stream_points *unused = device->unused_rings;
    if (unused != NULL)
        device->unused_rings = unused->next;
    pthread_mutex_unlock(&device->rings_lock);
    if (unused == NULL) {
        void *memory;
        BP_TRY(bp_new_array(1, sizeof(bp_stream_points), &memory));
        unused = memory;
        for (uint32_t i = 0; i < BP_STREAM_POINTS; i++) {
            bp_status status = device->ops->event_create(device->self, &unused->events[i]);
            if (status != BP_OK) {
                destroy_points(device, unused, i);
                return status;
            }
        }
    }
    for (uint32_t i = 0; i < BP_STREAM_POINTS; i++) /* older than all points */
        atomic_store_explicit(&unused->marked[i], (uint64_t)i - BP_STREAM_POINTS, memory_order_relaxed);
    bp_device_count(&device->live_events, BP_STREAM_POINTS);
    *points = unused;
    return BP_OK;
}

static void leave_points(bp_device *device, bp_stream_points *points)
{
    pthread_mutex_lock(&device->rings_lock);
    points->next = device->unused_rings;
    device->unused_rings = points;
    pthread_mutex_unlock(&device->rings_lock);
    bp_device_discount(&device->live_events, BP_STREAM_POINTS);
}

/* Returns the ring of a stream that is over; two threads may try. */
static void leave_captured(bp_stream *stream)
{
    bp_stream_points *points = atomic_exchange(&stream->captured, NULL);
    if (points != NULL)
        leave_points(stream->device, points);
}

void bp_stream_free_rings(bp_device *device)
{
    while (device->unused_rings != NULL) {
        bp_stream_points *points = device->unused_rings;
        device->unused_rings = points->next;
        destroy_points(device, points, BP_STREAM_POINTS);
    }
}

/* Destroying waits until every call that took a number is through: a call that finds the stream open may use `raw` until then. Both
 * taking a number and closing are sequentially consistent, so that one of the two sees the other. */
static bool begin_use(bp_stream *stream, uint64_t *number)
{
    *number = atomic_fetch_add(&stream->recorded, 1);
    return !atomic_load(&stream->closing);
}

static void end_use(bp_stream *stream)
{
    atomic_fetch_add_explicit(&stream->through, 1, memory_order_release);
}

/* A later point covers the work of an earlier one, in whichever order they are recorded: a call that takes a number sees the work
 * enqueued before the numbers below it were taken. */
static bp_status record_point(bp_stream *stream, bp_stream_points *points, uint64_t *point, bool *recorded)
{
    uint64_t taken;
    bp_status status = BP_OK;
    *recorded = begin_use(stream, &taken);
    if (*recorded) {
        uint32_t entry = taken % BP_STREAM_POINTS;
        status = stream->device->ops->event_record(stream->device->self, points->events[entry], stream->raw);
        if (status == BP_OK)
            atomic_store_explicit(&points->marked[entry], taken, memory_order_release);
        *point = taken;
    }
    end_use(stream);
    return status;
}

bp_status bp_stream_record_point(bp_stream *stream, uint64_t *point, bool *recorded)
{
    return record_point(stream, stream->points, point, recorded);
}

bp_status bp_stream_record_captured(bp_stream *stream, uint64_t *point, bool *recorded)
{
    bp_stream_points *points = atomic_load_explicit(&stream->captured, memory_order_acquire);
    *recorded = false;
    if (bp_stream_is_over(stream))
        return BP_OK;
    if (points == NULL)
        return bp_fail(BP_ERR_CAPTURE,
                       "stream %s was made after the capture began; make streams before bp_capture_begin",
                       stream->name);
    return record_point(stream, points, point, recorded);
}

static bp_status wait_point(bp_stream *waiter, const bp_stream *stream, const bp_stream_points *points, uint64_t point)
{
    if (!bp_stream_is_usable(waiter, stream->device))
        return bp_stream_check(waiter, stream->device, "bp_stream_wait_point");
    if (waiter == stream || bp_stream_is_over(stream))
        return BP_OK;

    /* The point's own event is always safe: it marks the point, or a later one after it was recorded again. As that one may be very late,
     * the oldest event of the ring is preferred. Exceptions: another thread has taken it and not recorded it yet, or failed to, or it
     * belongs to the other ring. Then its mark may be older than `point`. */
    void *event = points->events[point % BP_STREAM_POINTS];
    uint64_t taken = atomic_load_explicit(&stream->recorded, memory_order_acquire);
    if (taken - point > BP_STREAM_POINTS) {
        uint32_t oldest = taken % BP_STREAM_POINTS;
        uint64_t marked = atomic_load_explicit(&points->marked[oldest], memory_order_acquire);
        if ((int64_t)(marked - point) >= 0)
            event = points->events[oldest];
    }
    return stream->device->ops->stream_wait(stream->device->self, waiter->raw, event);
}

bp_status bp_stream_wait_point(bp_stream *waiter, bp_stream *stream, uint64_t point)
{
    return wait_point(waiter, stream, stream->points, point);
}

bp_status bp_stream_wait_captured(bp_stream *waiter, bp_stream *stream, uint64_t point)
{
    return wait_point(waiter, stream, atomic_load_explicit(&stream->captured, memory_order_acquire), point);
}

bp_status bp_stream_prepare_captures(bp_device *device)
{
    for (bp_stream *s = atomic_load_explicit(&device->streams, memory_order_acquire); s != NULL; s = s->next) {
        if (atomic_load(&s->captured) != NULL || !atomic_load(&s->alive))
            continue;
        bp_stream_points *points, *none = NULL;
        BP_TRY(stream_take_points(device, &points));
        if (!atomic_compare_exchange_strong(&s->captured, &none, points)) /* another thread was first */
            leave_points(device, points);
        else if (bp_stream_is_over(s)) /* destroyed meanwhile */
            leave_captured(s);
    }
    return BP_OK;
}

bp_status bp_stream_quiesce(bp_stream *stream)
{
    uint64_t number; /* number of a point that is never waited for */
    bp_status status = BP_OK;
    if (begin_use(stream, &number))
        status = stream->device->ops->stream_synchronize(stream->device->self, stream->raw);
    end_use(stream);
    return status;
}

/* ---- creation and destruction ------------------------------------------------------------------------------------ */

static bp_status stream_create_stream(bp_device *device, bool import, uint64_t native, const char *name,
                                      bp_stream **stream)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_stream), &memory));
    bp_stream *created = memory;
    bp_stream_points *points;
    bp_status status = stream_take_points(device, &points);
    if (status == BP_OK) {
        status = import ? device->ops->stream_import(device->self, native, &created->raw)
                        : device->ops->stream_create(device->self, &created->raw);
        if (status != BP_OK)
            leave_points(device, points);
    }
    if (status != BP_OK) {
        free(created);
        return status;
    }
    created->device = device;
    created->number = atomic_fetch_add(&device->stream_numbers, 1);
    if (name != NULL)
        snprintf(created->name, sizeof created->name, "%s", name);
    else
        snprintf(created->name, sizeof created->name, "stream.%u", created->number);
    created->points = points;
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_create: the device or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_stream_create"));
    return stream_create_stream(device, false, 0, name, stream);
}

bp_status bp_stream_import(bp_device *device, uint64_t native, const char *name, bp_stream **stream)
{
    if (device == NULL || stream == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_import: the device or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_stream_import"));
    if (device->ops->stream_import == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_stream_import: device %s has no native streams", device->ops->name);
    return stream_create_stream(device, true, native, name, stream);
}

void bp_stream_destroy(bp_stream **stream)
{
    if (stream == NULL || *stream == NULL)
        return;
    bp_stream *s = *stream;
    *stream = NULL;
    if (!bp_device_is_here(s->device) || !atomic_exchange(&s->alive, false))
        return;
    bp_device *device = s->device;
    /* Until its work is complete, others wait for its points and record some. If the provider refuses to synchronise, that lasts until
     * the device is destroyed. */
    BP_KEEP_ERROR;
    bool done = device->ops->stream_synchronize(device->self, s->raw) == BP_OK;
    atomic_store(&s->closing, true);
    while (atomic_load(&s->through) != atomic_load(&s->recorded))
        sched_yield();
    done = device->ops->stream_destroy(device->self, s->raw) == BP_OK || done;
    if (done) {
        atomic_store(&s->over, true);
        leave_points(device, s->points);
        leave_captured(s);
    } else {
        atomic_store(&s->closing, false);
    }
    bp_device_discount(&device->live_streams, 1);
    bp_device_release(device);
}

void bp_stream_free(bp_stream *stream)
{
    if (!bp_stream_is_over(stream)) /* its rings were not returned */
        destroy_points(stream->device, stream->points, BP_STREAM_POINTS);
    if (atomic_load(&stream->captured) != NULL)
        destroy_points(stream->device, atomic_load(&stream->captured), BP_STREAM_POINTS);
    free(stream);
}

bp_status bp_stream_check(const bp_stream *stream, const bp_device *device, const char *function)
{
    if (stream == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the stream is NULL", function);
    BP_TRY(bp_device_check(stream->device, function));
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

bp_status bp_stream_native(const bp_stream *stream, uint64_t *native)
{
    BP_TRY(check_own(stream, "bp_stream_native"));
    if (native == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_native: the output is NULL");
    if (stream->device->ops->stream_native == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_stream_native: device %s has no native streams",
                       bp_device_name(stream->device));
    return stream->device->ops->stream_native(stream->device->self, stream->raw, native);
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_call: the function for stream %s is NULL", stream->name);
    return stream->device->ops->call(stream->device->self, stream->raw, function, argument);
}

bp_status bp_stream_fill(bp_stream *stream, void *address, uint8_t value, uint64_t bytes)
{
    BP_TRY(check_own(stream, "bp_stream_fill"));
    if (bytes == 0)
        return BP_OK;
    if (address == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_fill: the address of %llu bytes on stream %s is NULL",
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
