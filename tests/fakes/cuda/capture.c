/* SPDX-License-Identifier: Apache-2.0 */
/* Captures: streams join them, and mistakes invalidate them. */
#include "driver.h"

#include <stdlib.h>

/* CUstreamCaptureMode. */
enum { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

void fake_capture_invalidate(fake_capture *capture)
{
    if (capture != NULL)
        capture->invalidated = true;
}

fake_capture *fake_capture_find(uint64_t id)
{
    fake_capture *capture = fake.captures;
    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static bool is_blocking_in(const fake_stream *stream, const fake_context *context)
{
    return stream->context == context && !(stream->flags & 1u) && stream->capture != NULL;
}

int fake_capture_check_legacy(const fake_stream *stream, bool invalidate)
{
    int result = OK;
    if (!stream->legacy)
        return OK;
    for (fake_stream *other = fake.streams; other != NULL; other = other->next) {
        if (!is_blocking_in(other, stream->context))
            continue;
        result = CAPTURE_IMPLICIT;
        if (invalidate)
            fake_capture_invalidate(other->capture);
    }
    return result;
}

int fake_capture_check_unsafe(fake_thread *thread)
{
    int result = OK;
    for (fake_capture *capture = fake.captures; capture != NULL; capture = capture->next) {
        bool own = capture->thread == thread->number && capture->mode != RELAXED;
        bool others = capture->mode == GLOBAL && thread->mode == GLOBAL;
        if (thread->mode == RELAXED || !(own || others))
            continue;
        fake_capture_invalidate(capture);
        result = CAPTURE_UNSUPPORTED;
    }
    return result;
}

int fake_capture_node(fake_stream *stream, const fake_work *work)
{
    if (stream->capture->invalidated)
        return CAPTURE_INVALIDATED;
    fake_node *node = fake_graph_add(stream->capture->graph, work, &stream->dependencies);
    stream->dependencies.count = 0;
    fake_nodes_add(&stream->dependencies, node);
    return OK;
}

int fake_submit(fake_stream *stream, const fake_work *work)
{
    FAKE_TRY(fake_capture_check_legacy(stream, true));
    if (stream->capture != NULL)
        return fake_capture_node(stream, work);
    return fake_enqueue(stream, work, NULL, 0);
}

int fake_capture_check_wait(fake_stream *stream)
{
    FAKE_TRY(fake_capture_check_legacy(stream, true));
    if (stream->capture == NULL)
        return OK;
    bool before = stream->capture->invalidated;
    fake_capture_invalidate(stream->capture);
    return before ? CAPTURE_INVALIDATED : CAPTURE_UNSUPPORTED;
}

int fake_capture_check_context(const fake_context *context)
{
    int result = OK;
    for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next) {
        if (stream->context != context || stream->capture == NULL)
            continue;
        fake_capture_invalidate(stream->capture);
        result = CAPTURE_UNSUPPORTED;
    }
    return result;
}

static void end(fake_capture *capture)
{
    for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next)
        if (stream->capture == capture) {
            stream->capture = NULL;
            stream->dependencies.count = 0;
        }
    for (fake_capture **link = &fake.captures; *link != NULL; link = &(*link)->next)
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    free(capture);
}

static void abandon(fake_capture *capture)
{
    capture->graph->object.alive = false;
    fake_graph_free(capture->graph);
    end(capture);
}

void fake_capture_stream_gone(fake_stream *stream)
{
    fake_capture *capture = stream->capture;
    if (capture == NULL)
        return;
    fake_break("captured_streams_stay", "stream %p was destroyed in capture %llu", (void *)stream,
               (unsigned long long)capture->id);
    fake_capture_invalidate(capture);
    stream->capture = NULL;
    stream->dependencies.count = 0;
    if (capture->origin == stream)
        abandon(capture);
}

void fake_captures_forget(void)
{
    while (fake.captures != NULL)
        end(fake.captures);
}

/* ---- begin and end ----------------------------------------------------------------------------------------------- */

static int begin(void *handle, int mode)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    if (mode < GLOBAL || mode > RELAXED)
        return INVALID_VALUE;
    if (stream->legacy)
        return CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return ILLEGAL_STATE;
    fake_capture *capture = fake_new(sizeof *capture);
    *capture = (fake_capture){.id = ++fake.captures_begun, .mode = mode, .thread = fake_this_thread()->number};
    capture->origin = stream;
    capture->graph = fake_graph_new();
    capture->next = fake.captures;
    fake.captures = capture;
    stream->capture = capture;
    stream->dependencies.count = 0;
    return OK;
}

int cuStreamBeginCapture_v2(void *stream, int mode)
{
    FAKE_ENTER(cuStreamBeginCapture);
    return fake_leave(begin(stream, mode));
}

static void mark_before(const fake_node *node, bool *seen)
{
    if (seen[node->index])
        return;
    seen[node->index] = true;
    for (size_t i = 0; i < node->dependency_count; i++)
        mark_before(node->dependencies[i], seen);
}

/* True if every node precedes the origin's next one. */
static bool is_joined(const fake_capture *capture)
{
    const fake_nodes *last = &capture->origin->dependencies, *nodes = &capture->graph->nodes;
    bool *seen = fake_new(nodes->count + 1), joined = true;
    for (size_t i = 0; i < last->count; i++)
        mark_before(last->nodes[i], seen);
    for (size_t i = 0; i < nodes->count; i++)
        joined = joined && seen[i];
    free(seen);
    return joined;
}

static int finish(void *handle, void **graph)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_for_work(handle, &stream));
    if (graph == NULL)
        return INVALID_VALUE;
    fake_capture *capture = stream->capture;
    if (capture == NULL)
        return ILLEGAL_STATE;
    if (capture->origin != stream)
        return CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && capture->thread != fake_this_thread()->number)
        return CAPTURE_WRONG_THREAD;
    int result = capture->invalidated ? CAPTURE_INVALIDATED : is_joined(capture) ? OK : CAPTURE_UNJOINED;
    *graph = result == OK ? capture->graph : NULL;
    if (result == OK)
        end(capture);
    else
        abandon(capture);
    return result;
}

int cuStreamEndCapture(void *stream, void **graph)
{
    FAKE_ENTER(cuStreamEndCapture);
    return fake_leave(finish(stream, graph));
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    FAKE_ENTER(cuThreadExchangeStreamCaptureMode);
    if (mode == NULL || *mode < GLOBAL || *mode > RELAXED)
        return fake_leave(INVALID_VALUE);
    fake_thread *thread = fake_this_thread();
    int before = thread->mode;
    thread->mode = *mode;
    *mode = before;
    return fake_leave(OK);
}

FAKE_API bool fake_cuda_any_capture(void)
{
    pthread_mutex_lock(&fake.lock);
    bool any = fake.captures != NULL;
    pthread_mutex_unlock(&fake.lock);
    return any;
}

int fake_capture_wait(fake_stream *stream, const fake_event *event)
{
    fake_capture *capture = fake_capture_find(event->capture);
    fake_capture *own = stream->capture;
    if (own != NULL && own->invalidated)
        return CAPTURE_INVALIDATED;
    if (own == NULL && capture == NULL)
        return INVALID_VALUE;
    if (event->capture == 0 || capture == NULL) { /* eager, or of a finished capture */
        fake_capture_invalidate(own);
        return CAPTURE_ISOLATION;
    }
    if (capture->invalidated)
        return CAPTURE_INVALIDATED;
    if (own != NULL && own != capture) {
        fake_capture_invalidate(own);
        fake_capture_invalidate(capture);
        return CAPTURE_MERGE;
    }
    stream->capture = capture;
    for (size_t i = 0; i < event->nodes.count; i++)
        fake_nodes_add(&stream->dependencies, event->nodes.nodes[i]);
    return OK;
}
