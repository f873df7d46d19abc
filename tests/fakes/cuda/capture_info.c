/* SPDX-License-Identifier: Apache-2.0 */
/* cuStreamGetCaptureInfo in the ABI of each version. */
#include "driver.h"

/* CUstreamCaptureStatus. */
enum { NONE = 0, ACTIVE = 1, INVALIDATED = 2 };

static int get(void *handle, int *status, uint64_t *id, void **graph, void ***dependencies, size_t *count)
{
    fake_stream *stream;
    FAKE_TRY(fake_stream_find(handle, &stream));
    if (status == NULL)
        return INVALID_VALUE;
    FAKE_TRY(fake_capture_check_legacy(stream, false));
    const fake_capture *capture = stream->capture;
    *status = capture == NULL ? NONE : capture->invalidated ? INVALIDATED : ACTIVE;
    if (*status != ACTIVE)
        return OK;
    if (id != NULL)
        *id = capture->id;
    if (graph != NULL)
        *graph = capture->graph;
    if (dependencies != NULL)
        *dependencies = (void **)stream->dependencies.nodes;
    if (count != NULL)
        *count = stream->dependencies.count;
    return OK;
}

int cuStreamIsCapturing(void *stream, int *status)
{
    FAKE_ENTER(cuStreamIsCapturing);
    return fake_leave(get(stream, status, NULL, NULL, NULL, NULL));
}

int cuStreamGetCaptureInfo(void *stream, int *status, uint64_t *id)
{
    FAKE_ENTER(cuStreamGetCaptureInfo);
    return fake_leave(get(stream, status, id, NULL, NULL, NULL));
}

int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void ***dependencies,
                              size_t *count)
{
    FAKE_ENTER(cuStreamGetCaptureInfo);
    return fake_leave(get(stream, status, id, graph, dependencies, count));
}

int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void ***dependencies,
                              const void **edges, size_t *count)
{
    FAKE_ENTER(cuStreamGetCaptureInfo);
    if (edges != NULL && dependencies == NULL)
        return fake_leave(INVALID_VALUE);
    int result = get(stream, status, id, graph, dependencies, count);
    if (result == OK && *status == ACTIVE && edges != NULL)
        *edges = NULL; /* no edge has data */
    return fake_leave(result);
}

FAKE_API bool fake_cuda_stream_is_capturing(void *handle)
{
    pthread_mutex_lock(&fake.lock);
    fake_stream *stream = (uintptr_t)handle > 2 ? fake_object_find(handle, FAKE_STREAM, NULL) : NULL;
    bool capturing = stream != NULL && stream->capture != NULL;
    pthread_mutex_unlock(&fake.lock);
    return capturing;
}

FAKE_API bool fake_cuda_in_host_function(void)
{
    pthread_mutex_lock(&fake.lock);
    bool inside = fake_this_thread()->in_host_function;
    pthread_mutex_unlock(&fake.lock);
    return inside;
}
