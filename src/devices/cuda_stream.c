/* Streams of the cuda device, and work on them. */
#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"
#include "devices/cuda.h"

#define NON_BLOCKING 1u /* does not wait for the default stream */

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static bp_cuda_stream *take_idle(bp_cuda *cuda)
{
    pthread_mutex_lock(&cuda->lock);
    bp_cuda_stream *idle = cuda->idle_streams;
    if (idle != NULL)
        cuda->idle_streams = idle->next;
    pthread_mutex_unlock(&cuda->lock);
    return idle;
}

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
    bp_cuda_stream *idle = take_idle(cuda);
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

/* Whose stream it is, by its context. */
static bp_status check_context(bp_cuda *cuda, uint64_t native)
{
    void *context = NULL;
    void *handle = (void *)(uintptr_t)native; /* NOLINT(performance-no-int-to-ptr): that is what it was */
    BP_TRY(bp_cuda_push(cuda));
    int error = cuda->driver.cuStreamGetCtx(handle, &context);
    bp_cuda_pop(cuda);
    BP_TRY(bp_cuda_check(cuda, error, "asking for the context of a stream"));
    if (context != cuda->context)
        return bp_fail(
            BP_ERR_INVALID_ARGUMENT,
            "cuda: stream 0x%llx is of another device or context than device %d (%s): make it while that is current",
            (unsigned long long)native, cuda->config.ordinal, cuda->info.name);
    return BP_OK;
}

bp_status bp_cuda_stream_import(void *self, uint64_t native, void **stream)
{
    bp_cuda *cuda = self;
    const bool legacy = native <= BP_CU_STREAM_LEGACY;
    if (native == BP_CU_STREAM_PER_THREAD)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "cuda: the per-thread default stream is another one on every thread: pass a stream of your own");
    if (!legacy)
        BP_TRY(check_context(cuda, native));
    /* NOLINTNEXTLINE(performance-no-int-to-ptr): that is what it was */
    return cuda_stream_make((void *)(uintptr_t)(legacy ? BP_CU_STREAM_LEGACY : native), false, legacy, stream);
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
