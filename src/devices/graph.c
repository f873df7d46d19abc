/* Graphs: work that is captured instead of run. */
#include "devices/device.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"

struct bp_graph {
    bp_device *device;
    void *raw; /* the provider's graph */
};

static bp_status graph_check(const bp_stream *stream, const char *function)
{
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, function));
    if (stream->device->ops->graph_begin == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: device %s has no graphs", function, bp_device_name(stream->device));
    return BP_OK;
}

bp_status bp_graph_begin(bp_stream *stream)
{
    BP_TRY(graph_check(stream, "bp_graph_begin"));
    return stream->device->ops->graph_begin(stream->device->self, stream->raw);
}

bp_status bp_graph_end(bp_stream *stream, bp_graph **graph)
{
    BP_TRY(graph_check(stream, "bp_graph_end"));
    if (graph == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_graph_end: needs an output");
    bp_device *device = stream->device;
    void *memory = NULL, *raw;
    bp_status room = bp_new_array(1, sizeof(bp_graph), &memory);
    bp_status status = device->ops->graph_end(device->self, stream->raw, &raw); /* ends the capture whatever happens */
    if (room != BP_OK && status == BP_OK)
        (void)device->ops->graph_destroy(device->self, raw);
    if (room != BP_OK || status != BP_OK) {
        free(memory);
        return status != BP_OK ? status : room;
    }
    bp_graph *created = memory;
    created->device = device;
    created->raw = raw;
    bp_device_retain(device);
    *graph = created;
    return BP_OK;
}

bp_status bp_graph_launch(bp_graph *graph, bp_stream *stream)
{
    if (graph == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_graph_launch: no graph");
    BP_TRY(bp_stream_check(stream, graph->device, "bp_graph_launch"));
    return graph->device->ops->graph_launch(graph->device->self, graph->raw, stream->raw);
}

void bp_graph_destroy(bp_graph **graph)
{
    if (graph == NULL || *graph == NULL)
        return;
    bp_device *device = (*graph)->device;
    if (!bp_device_is_here(device)) {
        *graph = NULL;
        return;
    }
    (void)device->ops->graph_destroy(device->self, (*graph)->raw);
    free(*graph);
    *graph = NULL;
    bp_device_release(device);
}

bp_status bp_stream_capture_of(bp_stream *stream, uint64_t *capture)
{
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, "bp_stream_capture_of"));
    if (capture == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_capture_of: needs an output");
    const bp_device *device = stream->device;
    if (device->ops->capture_of != NULL)
        return device->ops->capture_of(device->self, stream->raw, capture);
    *capture = 0;
    return BP_OK;
}
