/* SPDX-License-Identifier: Apache-2.0 */
/* Streams: creation, lookup, synchronization, destruction. */
#include "driver.h"

fake_stream *fake_stream_new(fake_context *context, unsigned flags, bool legacy)
{
    fake_stream *stream = fake_new(sizeof *stream);
    fake_object_add(&stream->object, FAKE_STREAM);
    stream->context = context;
    stream->flags = flags;
    stream->legacy = legacy;
    stream->random = fake_random(&fake.random);
    pthread_cond_init(&stream->arrived, NULL);
    stream->next = fake.streams;
    fake.streams = stream;
    return stream;
}

int fake_stream_find(void *handle, fake_stream **stream)
{
    uintptr_t value = (uintptr_t)handle;
    if (value <= 1) {
        fake_context *context;
        FAKE_TRY(fake_current(&context));
        *stream = context->legacy;
        return OK;
    }
    if (value == 2)
        return NOT_SUPPORTED; /* the per-thread stream is not emulated */
    bool gone = false;
    fake_stream *found = fake_object_find(handle, FAKE_STREAM, &gone);
    if (found == NULL) {
        fake_break("handles_end_with_their_objects", "stream %p %s", handle, gone ? "is destroyed" : "is unknown");
        return INVALID_HANDLE;
    }
    *stream = found;
    return OK;
}

int fake_stream_for_work(void *handle, fake_stream **stream)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    return fake_stream_find(handle, stream);
}

void fake_await_stream(fake_stream *stream)
{
    fake_await((fake_mark){stream, stream->enqueued});
}

void fake_await_context(const fake_context *context)
{
    for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next)
        if (stream->context == context)
            fake_await_stream(stream);
}

static int create(void **stream, unsigned flags)
{
    fake_context *context;
    FAKE_TRY(fake_current(&context));
    if (stream == NULL || flags > 1)
        return INVALID_VALUE;
    *stream = fake_stream_new(context, flags, false);
    return OK;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    FAKE_ENTER(cuStreamCreate);
    return fake_leave(create(stream, flags));
}

static int destroy(void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    if (stream->legacy)
        return INVALID_HANDLE;
    fake_capture_stream_gone(stream);
    stream->object.alive = false;
    pthread_cond_signal(&stream->arrived);
    return OK;
}

int cuStreamDestroy_v2(void *stream)
{
    FAKE_ENTER(cuStreamDestroy);
    return fake_leave(destroy(stream));
}

/* The legacy stream is done when all blocking streams are. */
static bool is_done(const fake_stream *stream, bool wait)
{
    bool done = true;
    for (fake_stream *other = fake.streams; other != NULL; other = other->next) {
        bool counts = other == stream || (stream->legacy && other->context == stream->context && !(other->flags & 1u));
        if (!counts)
            continue;
        if (wait)
            fake_await_stream(other);
        done = done && other->completed == other->enqueued;
    }
    return done;
}

static int synchronize(void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    FAKE_TRY(fake_capture_check_wait(stream));
    FAKE_TRY(fake_capture_check_unsafe(fake_this_thread()));
    (void)is_done(stream, true);
    return OK;
}

int cuStreamSynchronize(void *stream)
{
    FAKE_ENTER(cuStreamSynchronize);
    return fake_leave(synchronize(stream));
}

static int query(void *handle)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    FAKE_TRY(fake_capture_check_wait(stream));
    FAKE_TRY(fake_capture_check_unsafe(fake_this_thread()));
    return is_done(stream, false) ? OK : NOT_READY;
}

int cuStreamQuery(void *stream)
{
    FAKE_ENTER(cuStreamQuery);
    return fake_leave(query(stream));
}

static int get_context(void *handle, void **context)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_find(handle, &stream));
    if (context == NULL)
        return INVALID_VALUE;
    *context = stream->context;
    return OK;
}

int cuStreamGetCtx(void *stream, void **context)
{
    FAKE_ENTER(cuStreamGetCtx);
    return fake_leave(get_context(stream, context));
}

int cuStreamGetCtx_v2(void *stream, void **context, void **green)
{
    FAKE_ENTER(cuStreamGetCtx);
    int result = get_context(stream, context);
    if (result == OK && green != NULL)
        *green = NULL;
    return fake_leave(result);
}

int cuStreamGetFlags(void *handle, unsigned *flags)
{
    FAKE_ENTER(cuStreamGetFlags);
    fake_stream *stream;
    int result = fake_stream_find(handle, &stream);
    if (result == OK && flags != NULL)
        *flags = stream->flags;
    return fake_leave(result == OK && flags == NULL ? INVALID_VALUE : result);
}
