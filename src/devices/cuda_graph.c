/* Captures and graphs of the cuda device. */
#include "core/fail.h"
#include "devices/cuda.h"

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
