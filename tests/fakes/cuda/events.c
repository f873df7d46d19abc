/* SPDX-License-Identifier: Apache-2.0 */
/* Events: positions in a stream or in a capture. */
#include "driver.h"

/* CUevent_flags. */
enum { BLOCKING_SYNC = 1, DISABLE_TIMING = 2, INTERPROCESS = 4 };

static int find(void *handle, fake_event **event)
{
    bool gone = false;
    fake_event *found = handle != NULL ? fake_object_find(handle, FAKE_EVENT, &gone) : NULL;
    if (found == NULL) {
        if (handle != NULL)
            fake_break("handles_end_with_their_objects", "event %p %s", handle, gone ? "is destroyed" : "is unknown");
        return INVALID_HANDLE;
    }
    *event = found;
    return OK;
}

static int create(void **event, unsigned flags)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    bool shared_with_times = (flags & INTERPROCESS) && !(flags & DISABLE_TIMING);
    if (event == NULL || flags > (BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS) || shared_with_times)
        return INVALID_VALUE;
    fake_event *created = fake_new(sizeof *created);
    fake_object_add(&created->object, FAKE_EVENT);
    created->context = context;
    *event = created;
    return OK;
}

int cuEventCreate(void **event, unsigned flags)
{
    FAKE_ENTER(cuEventCreate);
    return fake_leave(create(event, flags));
}

static int destroy(void *handle)
{
    fake_context *context;
    fake_event *event;
    FAKE_TRY(fake_current(&context));
    FAKE_TRY(find(handle, &event));
    fake_nodes_clear(&event->nodes);
    event->object.alive = false;
    return OK;
}

int cuEventDestroy_v2(void *event)
{
    FAKE_ENTER(cuEventDestroy);
    return fake_leave(destroy(event));
}

static int record_captured(fake_event *event, fake_stream *stream)
{
    if (stream->capture->invalidated)
        return CAPTURE_INVALIDATED;
    event->capture = stream->capture->id;
    event->mark = (fake_mark){NULL, 0};
    fake_nodes_set(&event->nodes, &stream->dependencies);
    return OK;
}

static int record(void *handle, void *stream_handle)
{
    fake_event *event;
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(stream_handle, &stream));
    FAKE_TRY(find(handle, &event));
    if (event->context != stream->context)
        return INVALID_HANDLE;
    FAKE_TRY(fake_capture_check_legacy(stream, true));
    if (stream->capture != NULL)
        return record_captured(event, stream);
    FAKE_TRY(fake_enqueue(stream, &(fake_work){.kind = FAKE_NOTHING}, NULL, 0));
    fake_nodes_clear(&event->nodes);
    event->capture = 0;
    event->mark = (fake_mark){stream, stream->enqueued};
    return OK;
}

int cuEventRecord(void *event, void *stream)
{
    FAKE_ENTER(cuEventRecord);
    return fake_leave(record(event, stream));
}

static int wait(void *stream_handle, void *handle, unsigned flags)
{
    fake_event *event;
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(stream_handle, &stream));
    FAKE_TRY(find(handle, &event));
    if (flags != 0)
        return flags == 1 ? NOT_SUPPORTED : INVALID_VALUE; /* external events are not emulated */
    FAKE_TRY(fake_capture_check_legacy(stream, true));
    if (stream->legacy && event->capture != 0) {
        fake_capture_invalidate(fake_capture_find(event->capture));
        return CAPTURE_IMPLICIT;
    }
    if (stream->capture != NULL || event->capture != 0)
        return fake_capture_wait(stream, event);
    return fake_enqueue(stream, &(fake_work){.kind = FAKE_NOTHING}, &event->mark, 1);
}

int cuStreamWaitEvent(void *stream, void *event, unsigned flags)
{
    FAKE_ENTER(cuStreamWaitEvent);
    return fake_leave(wait(stream, event, flags));
}

static int check_outside(const fake_event *event)
{
    if (event->capture == 0)
        return OK;
    fake_capture_invalidate(fake_capture_find(event->capture));
    return CAPTURED_EVENT;
}

static int synchronize(void *handle)
{
    fake_context *context;
    fake_event *event;
    FAKE_TRY(fake_current(&context));
    FAKE_TRY(find(handle, &event));
    FAKE_TRY(check_outside(event));
    FAKE_TRY(fake_capture_check_unsafe(fake_this_thread()));
    fake_await(event->mark);
    return OK;
}

int cuEventSynchronize(void *event)
{
    FAKE_ENTER(cuEventSynchronize);
    return fake_leave(synchronize(event));
}

static int query(void *handle)
{
    fake_event *event;
    FAKE_TRY(find(handle, &event));
    FAKE_TRY(check_outside(event));
    FAKE_TRY(fake_capture_check_unsafe(fake_this_thread()));
    return fake_is_reached(&event->mark) ? OK : NOT_READY;
}

int cuEventQuery(void *event)
{
    FAKE_ENTER(cuEventQuery);
    return fake_leave(query(event));
}
