/* Streams of the cuda device, and work on them. */
#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"
#include "devices/cuda.h"

#define NON_BLOCKING 1u /* does not wait for the default stream */

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bp_status cuda_stream_make(void *handle, bool owned, bool legacy, void **stream)
{
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_cuda_stream), &memory));
    bp_cuda_stream *made = memory;
    *made = (bp_cuda_stream){.handle = handle, .owned = owned, .legacy = legacy};
    *stream = made;
    return BP_OK;
}

bp_status bp_cuda_stream_create(void *self, void **stream)
{
    bp_cuda *cuda = self;
    pthread_mutex_lock(&cuda->lock);
    bp_cuda_stream *idle = cuda->idle_streams;
    if (idle != NULL)
        cuda->idle_streams = idle->next;
    pthread_mutex_unlock(&cuda->lock);
    if (idle != NULL) {
        *stream = idle;
        return BP_OK;
    }
    void *made;
    BP_TRY(cuda_stream_make(NULL, true, false, &made));
    bp_status status = bp_cuda_push(cuda);
    if (status == BP_OK) {
        int error = cuda->driver.cuStreamCreate(&((bp_cuda_stream *)made)->handle, NON_BLOCKING);
        bp_cuda_pop(cuda);
        status = bp_cuda_check(cuda, error, "a stream could not be made");
    }
    if (status != BP_OK) {
        free(made);
        return status;
    }
    *stream = made;
    return BP_OK;
}

bp_status bp_cuda_stream_import(void *self, uint64_t native, void **stream)
{
    bp_cuda *cuda = self;
    const bool legacy = native <= BP_CU_STREAM_LEGACY;
    if (native == BP_CU_STREAM_PER_THREAD)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "cuda: the per-thread default stream is another one on every thread: pass a stream of your own");
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): that is what it was */
    void *handle = (void *)(uintptr_t)(legacy ? BP_CU_STREAM_LEGACY : native), *context = NULL;
    if (!legacy) {
        BP_TRY(bp_cuda_push(cuda));
        int error = cuda->driver.cuStreamGetCtx(handle, &context);
        bp_cuda_pop(cuda);
        BP_TRY(bp_cuda_check(cuda, error, "asking for the context of a stream"));
        if (context != cuda->context)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "cuda: stream 0x%llx is of another device or context than device %d (%s): make it while "
                           "that is current",
                           (unsigned long long)native, cuda->config.ordinal, cuda->info.name);
    }
    return cuda_stream_make(handle, false, legacy, stream);
}

bp_status bp_cuda_stream_native(void *self, void *stream, uint64_t *native)
{
    (void)self;
    *native = (uintptr_t)((const bp_cuda_stream *)stream)->handle;
    return BP_OK;
}

static void keep(bp_cuda *cuda, bp_cuda_stream **list, bp_cuda_stream *stream)
{
    pthread_mutex_lock(&cuda->lock);
    stream->next = *list;
    *list = stream;
    pthread_mutex_unlock(&cuda->lock);
}

/* Kept for the next one that is made. Where the driver refuses to wait it may have work, and pools record points on it: it stays until
 * the device goes. */
bp_status bp_cuda_stream_destroy(void *self, void *stream)
{
    bp_cuda *cuda = self;
    bp_cuda_stream *s = stream;
    bp_status status = bp_cuda_stream_synchronize(cuda, s);
    if (status != BP_OK)
        keep(cuda, &cuda->stuck_streams, s);
    else if (s->owned)
        keep(cuda, &cuda->idle_streams, s);
    else
        free(s);
    return status;
}

static void end_streams(const bp_cuda *cuda, bp_cuda_stream *s, bool entered)
{
    while (s != NULL) {
        bp_cuda_stream *next = s->next;
        if (entered && s->owned)
            (void)cuda->driver.cuStreamDestroy(s->handle);
        free(s);
        s = next;
    }
}

void bp_cuda_streams_finish(bp_cuda *cuda)
{
    const bool entered = bp_cuda_push(cuda) == BP_OK;
    end_streams(cuda, cuda->idle_streams, entered);
    end_streams(cuda, cuda->stuck_streams, entered);
    if (entered)
        bp_cuda_pop(cuda);
}

/* ---- waiting -------------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_stream_synchronize(void *self, void *stream)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamSynchronize(((bp_cuda_stream *)stream)->handle);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "waiting for a stream");
}

bp_status bp_cuda_synchronize(void *self)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuCtxSynchronize();
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "waiting for the device");
}

/* ---- work ----------------------------------------------------------------------------------------------------------- */

bp_status bp_cuda_call(void *self, void *stream, bp_host_function *function, void *argument)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuLaunchHostFunc(((bp_cuda_stream *)stream)->handle, function, argument);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "a function on a stream");
}

bp_status bp_cuda_fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error =
        cuda->driver.cuMemsetD8Async((uintptr_t)address, value, (size_t)bytes, ((bp_cuda_stream *)stream)->handle);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "filling memory");
}

bp_status bp_cuda_copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error =
        cuda->driver.cuMemcpyAsync((uintptr_t)to, (uintptr_t)from, (size_t)bytes, ((bp_cuda_stream *)stream)->handle);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "copying memory");
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* The driver's own. On the path of acquire and release: one call each where nothing is wrong. */

#define WITHOUT_TIMES 2u

bp_status bp_cuda_event_create(void *self, void **event)
{
    bp_cuda *cuda = self;
    void *created;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventCreate(&created, WITHOUT_TIMES);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "an event could not be made");
    *event = created;
    return BP_OK;
}

bp_status bp_cuda_event_destroy(void *self, void *event)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventDestroy(event);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "an event could not be destroyed");
}

/* Streams and events know their context, so that nothing has to be made current; but for the default stream, and where the thread has no
 * context at all. */
bp_status bp_cuda_event_record(void *self, void *event, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int error = s->legacy ? BP_CU_INVALID_CONTEXT : cuda->driver.cuEventRecord(event, s->handle);
    if (error == BP_CU_INVALID_CONTEXT) {
        BP_TRY(bp_cuda_push(cuda));
        error = cuda->driver.cuEventRecord(event, s->handle);
        bp_cuda_pop(cuda);
    }
    return bp_cuda_check(cuda, error, "recording an event");
}

bp_status bp_cuda_stream_wait(void *self, void *stream, void *event)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int error = s->legacy ? BP_CU_INVALID_CONTEXT : cuda->driver.cuStreamWaitEvent(s->handle, event, 0);
    if (error == BP_CU_INVALID_CONTEXT) {
        BP_TRY(bp_cuda_push(cuda));
        error = cuda->driver.cuStreamWaitEvent(s->handle, event, 0);
        bp_cuda_pop(cuda);
    }
    return bp_cuda_check(cuda, error, "a stream's wait for an event");
}

bp_status bp_cuda_event_synchronize(void *self, void *event)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuEventSynchronize(event);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "waiting for an event");
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

#define THREAD_LOCAL 1 /* other threads may allocate meanwhile */
#define ACTIVE 1
#define INVALIDATED 2

bp_status bp_cuda_capture_of(void *self, void *stream, uint64_t *capture)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    int status = 0;
    uint64_t id = 0;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamGetCaptureInfo(s->handle, &status, &id, NULL, NULL, NULL);
    bp_cuda_pop(cuda);
    if (error == BP_CU_SUCCESS && status == INVALIDATED)
        error = BP_CU_CAPTURE_INVALIDATED;
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, "asking whether a stream is captured");
    *capture = status != ACTIVE ? 0 : id != 0 ? id : UINT64_MAX;
    return BP_OK;
}

bp_status bp_cuda_graph_begin(void *self, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    if (s->legacy)
        return bp_fail(BP_ERR_CAPTURE,
                       "cuda: the default stream cannot be captured: capture with a stream of your own");
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamBeginCapture(s->handle, THREAD_LOCAL);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "beginning to capture a graph");
}

/* The executable form is kept, the captured one has no further use. */
bp_status bp_cuda_graph_end(void *self, void *stream, void **graph)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    void *captured = NULL, *executable;
    BP_TRY(bp_cuda_push(cuda));
    const char *what = "ending the capture of a graph";
    int error = cuda->driver.cuStreamEndCapture(s->handle, &captured);
    if (error == BP_CU_SUCCESS) {
        what = "making a captured graph executable";
        error = cuda->driver.cuGraphInstantiate(&executable, captured, 0);
    }
    if (captured != NULL)
        (void)cuda->driver.cuGraphDestroy(captured);
    bp_cuda_pop(cuda);
    if (error != BP_CU_SUCCESS)
        return bp_cuda_fail(&cuda->driver, error, what);
    *graph = executable;
    return BP_OK;
}

bp_status bp_cuda_graph_launch(void *self, void *graph, void *stream)
{
    bp_cuda *cuda = self;
    const bp_cuda_stream *s = stream;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuGraphLaunch(graph, s->handle);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "launching a graph");
}

bp_status bp_cuda_graph_destroy(void *self, void *graph)
{
    bp_cuda *cuda = self;
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuGraphExecDestroy(graph);
    bp_cuda_pop(cuda);
    return bp_cuda_check(cuda, error, "a graph could not be destroyed");
}
