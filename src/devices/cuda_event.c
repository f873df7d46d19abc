/* Events of the cuda device: the driver's own. On the path of acquire and release: one call each where nothing is wrong. */
#include "core/fail.h"
#include "devices/cuda.h"

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
