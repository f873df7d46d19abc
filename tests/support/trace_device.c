/* SPDX-License-Identifier: Apache-2.0 */
#include "trace_device.h"

#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"
#include "devices/device.h"

typedef struct trace_device {
    bp_device_ops ops; /* without the functions that the inner device lacks */
    char name[64];
    bp_device *inner;
    const bp_device_ops *inner_ops;
    void *inner_self;
    device_trace *trace;
    void *user;
} trace_device;

const char *device_operation_name(device_operation operation)
{
    switch (operation) {
    case OP_RESERVE: return "reserve";
    case OP_UNRESERVE: return "unreserve";
    case OP_COMMIT: return "commit";
    case OP_DECOMMIT: return "decommit";
    case OP_MAP: return "map";
    case OP_UNMAP: return "unmap";
    case OP_PROTECT: return "protect";
    case OP_ALLOCATE: return "allocate";
    case OP_FREE: return "free";
    case OP_STREAM_CREATE: return "stream_create";
    case OP_STREAM_IMPORT: return "stream_import";
    case OP_STREAM_DESTROY: return "stream_destroy";
    case OP_STREAM_SYNCHRONIZE: return "stream_synchronize";
    case OP_SYNCHRONIZE: return "synchronize";
    case OP_CALL: return "call";
    case OP_FILL: return "fill";
    case OP_COPY: return "copy";
    case OP_EVENT_CREATE: return "event_create";
    case OP_EVENT_DESTROY: return "event_destroy";
    case OP_EVENT_RECORD: return "event_record";
    case OP_STREAM_WAIT: return "stream_wait";
    case OP_EVENT_SYNCHRONIZE: return "event_synchronize";
    case OP_PIN: return "pin";
    case OP_UNPIN: return "unpin";
    case OP_CAPTURE_OF: return "capture_of";
    case OP_GRAPH_BEGIN: return "graph_begin";
    case OP_GRAPH_END: return "graph_end";
    case OP_GRAPH_LAUNCH: return "graph_launch";
    case OP_GRAPH_DESTROY: return "graph_destroy";
    }
    return "invalid";
}

/* Passes the call to the test's function. Clears the detail first, to see if that function records one. */
static bp_status show(trace_device *trace, const device_call *call)
{
    char before[BP_DETAIL_BYTES];
    snprintf(before, sizeof before, "%s", bp_error_detail());
    bp_error_record(BP_OK, "");
    bp_status status = trace->trace(trace->user, call);
    if (status == BP_OK)
        return bp_error_record(BP_OK, before);
    if (bp_error_detail()[0] == '\0')
        return bp_fail(status, "injected failure of %s on device %s: %s", device_operation_name(call->operation),
                       trace->name, bp_status_name(status));
    return status;
}

#define SHOW(operation_, ...) BP_TRY(show(self, &(device_call){(operation_), __VA_ARGS__}))

static void destroy(void *self)
{
    trace_device *trace = self;
    bp_device_release(trace->inner);
    free(trace);
}

static bp_status traits(void *self, bp_device_traits *traits)
{
    trace_device *trace = self;
    return trace->inner_ops->traits(trace->inner_self, traits);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static bp_status reserve(void *self, uint64_t bytes, uint64_t alignment, void **address)
{
    trace_device *trace = self;
    SHOW(OP_RESERVE, .bytes = bytes);
    return trace->inner_ops->reserve(trace->inner_self, bytes, alignment, address);
}

static bp_status unreserve(void *self, void *address, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_UNRESERVE, .address = address, .bytes = bytes);
    return trace->inner_ops->unreserve(trace->inner_self, address, bytes);
}

static bp_status commit(void *self, uint64_t bytes, uint64_t *handle)
{
    trace_device *trace = self;
    SHOW(OP_COMMIT, .bytes = bytes);
    return trace->inner_ops->commit(trace->inner_self, bytes, handle);
}

static bp_status decommit(void *self, uint64_t handle)
{
    trace_device *trace = self;
    SHOW(OP_DECOMMIT, .handle = handle);
    return trace->inner_ops->decommit(trace->inner_self, handle);
}

static bp_status map(void *self, void *address, uint64_t bytes, uint64_t handle)
{
    trace_device *trace = self;
    SHOW(OP_MAP, .address = address, .bytes = bytes, .handle = handle);
    return trace->inner_ops->map(trace->inner_self, address, bytes, handle);
}

static bp_status unmap(void *self, void *address, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_UNMAP, .address = address, .bytes = bytes);
    return trace->inner_ops->unmap(trace->inner_self, address, bytes);
}

static bp_status protect(void *self, void *address, uint64_t bytes, bp_access access)
{
    trace_device *trace = self;
    SHOW(OP_PROTECT, .access = (uint32_t)access, .address = address, .bytes = bytes);
    return trace->inner_ops->protect(trace->inner_self, address, bytes, access);
}

static bp_status allocate(void *self, uint64_t bytes, void *stream, void **address)
{
    trace_device *trace = self;
    SHOW(OP_ALLOCATE, .bytes = bytes, .stream = stream);
    return trace->inner_ops->allocate(trace->inner_self, bytes, stream, address);
}

static bp_status free_memory(void *self, void *address, uint64_t bytes, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_FREE, .address = address, .bytes = bytes, .stream = stream);
    return trace->inner_ops->free(trace->inner_self, address, bytes, stream);
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

static bp_status create_stream(void *self, void **stream)
{
    trace_device *trace = self;
    SHOW(OP_STREAM_CREATE, .stream = NULL);
    return trace->inner_ops->stream_create(trace->inner_self, stream);
}

static bp_status import_stream(void *self, uint64_t native, void **stream)
{
    trace_device *trace = self;
    SHOW(OP_STREAM_IMPORT, .stream = NULL);
    return trace->inner_ops->stream_import(trace->inner_self, native, stream);
}

static bp_status destroy_stream(void *self, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_STREAM_DESTROY, .stream = stream);
    return trace->inner_ops->stream_destroy(trace->inner_self, stream);
}

static bp_status synchronize_stream(void *self, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_STREAM_SYNCHRONIZE, .stream = stream);
    return trace->inner_ops->stream_synchronize(trace->inner_self, stream);
}

static bp_status synchronize(void *self)
{
    trace_device *trace = self;
    SHOW(OP_SYNCHRONIZE, .stream = NULL);
    return trace->inner_ops->synchronize(trace->inner_self);
}

static bp_status call(void *self, void *stream, bp_host_function *function, void *argument)
{
    trace_device *trace = self;
    SHOW(OP_CALL, .stream = stream);
    return trace->inner_ops->call(trace->inner_self, stream, function, argument);
}

static bp_status fill(void *self, void *stream, void *address, uint8_t value, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_FILL, .address = address, .bytes = bytes, .stream = stream);
    return trace->inner_ops->fill(trace->inner_self, stream, address, value, bytes);
}

static bp_status copy(void *self, void *stream, void *to, const void *from, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_COPY, .address = to, .bytes = bytes, .stream = stream);
    return trace->inner_ops->copy(trace->inner_self, stream, to, from, bytes);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static bp_status create_event(void *self, void **event)
{
    trace_device *trace = self;
    SHOW(OP_EVENT_CREATE, .event = NULL);
    return trace->inner_ops->event_create(trace->inner_self, event);
}

static bp_status destroy_event(void *self, void *event)
{
    trace_device *trace = self;
    SHOW(OP_EVENT_DESTROY, .event = event);
    return trace->inner_ops->event_destroy(trace->inner_self, event);
}

static bp_status record_event(void *self, void *event, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_EVENT_RECORD, .stream = stream, .event = event);
    return trace->inner_ops->event_record(trace->inner_self, event, stream);
}

static bp_status wait_for_event(void *self, void *stream, void *event)
{
    trace_device *trace = self;
    SHOW(OP_STREAM_WAIT, .stream = stream, .event = event);
    return trace->inner_ops->stream_wait(trace->inner_self, stream, event);
}

static bp_status synchronize_event(void *self, void *event)
{
    trace_device *trace = self;
    SHOW(OP_EVENT_SYNCHRONIZE, .event = event);
    return trace->inner_ops->event_synchronize(trace->inner_self, event);
}

/* ---- graphs and host memory -------------------------------------------------------------------------------------- */

static bp_status native_of_stream(void *self, void *stream, uint64_t *native)
{
    trace_device *trace = self;
    return trace->inner_ops->stream_native(trace->inner_self, stream, native);
}

static bp_status pin(void *self, void *address, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_PIN, .address = address, .bytes = bytes);
    return trace->inner_ops->pin(trace->inner_self, address, bytes);
}

static bp_status unpin(void *self, void *address, uint64_t bytes)
{
    trace_device *trace = self;
    SHOW(OP_UNPIN, .address = address, .bytes = bytes);
    return trace->inner_ops->unpin(trace->inner_self, address, bytes);
}

static bp_status capture_of_stream(void *self, void *stream, uint64_t *capture)
{
    trace_device *trace = self;
    SHOW(OP_CAPTURE_OF, .stream = stream);
    return trace->inner_ops->capture_of(trace->inner_self, stream, capture);
}

static bp_status begin_graph(void *self, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_GRAPH_BEGIN, .stream = stream);
    return trace->inner_ops->graph_begin(trace->inner_self, stream);
}

static bp_status end_graph(void *self, void *stream, void **graph)
{
    trace_device *trace = self;
    SHOW(OP_GRAPH_END, .stream = stream);
    return trace->inner_ops->graph_end(trace->inner_self, stream, graph);
}

static bp_status launch_graph(void *self, void *graph, void *stream)
{
    trace_device *trace = self;
    SHOW(OP_GRAPH_LAUNCH, .stream = stream, .graph = graph);
    return trace->inner_ops->graph_launch(trace->inner_self, graph, stream);
}

static bp_status destroy_graph(void *self, void *graph)
{
    trace_device *trace = self;
    SHOW(OP_GRAPH_DESTROY, .graph = graph);
    return trace->inner_ops->graph_destroy(trace->inner_self, graph);
}

/* ---- the device -------------------------------------------------------------------------------------------------- */

static const bp_device_ops trace_ops = {
    .size = sizeof trace_ops,
    .destroy = destroy,
    .traits = traits,
    .reserve = reserve,
    .unreserve = unreserve,
    .commit = commit,
    .decommit = decommit,
    .map = map,
    .unmap = unmap,
    .protect = protect,
    .allocate = allocate,
    .free = free_memory,
    .stream_create = create_stream,
    .stream_import = import_stream,
    .stream_destroy = destroy_stream,
    .stream_synchronize = synchronize_stream,
    .synchronize = synchronize,
    .call = call,
    .fill = fill,
    .copy = copy,
    .event_create = create_event,
    .event_destroy = destroy_event,
    .event_record = record_event,
    .stream_wait = wait_for_event,
    .event_synchronize = synchronize_event,
    .stream_native = native_of_stream,
    .pin = pin,
    .unpin = unpin,
    .capture_of = capture_of_stream,
    .graph_begin = begin_graph,
    .graph_end = end_graph,
    .graph_launch = launch_graph,
    .graph_destroy = destroy_graph,
};

/* Removes the functions that the inner device lacks. */
static void leave_out(bp_device_ops *ops, const bp_device_ops *inner)
{
    if (inner->protect == NULL)
        ops->protect = NULL;
    if (inner->stream_import == NULL)
        ops->stream_import = NULL;
    if (inner->stream_native == NULL)
        ops->stream_native = NULL;
    if (inner->pin == NULL) {
        ops->pin = NULL;
        ops->unpin = NULL;
    }
    if (inner->graph_begin == NULL) {
        ops->capture_of = NULL;
        ops->graph_begin = NULL;
        ops->graph_end = NULL;
        ops->graph_launch = NULL;
        ops->graph_destroy = NULL;
    }
}

bp_status trace_device_create(bp_device *inner, device_trace *trace, void *user, bp_device **device)
{
    if (inner == NULL || trace == NULL || device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "trace_device_create: needs a device, a function and an output");
    BP_TRY(bp_device_check(inner, "trace_device_create"));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(trace_device), &memory));
    trace_device *created = memory;
    created->inner = inner;
    created->inner_ops = bp_device_table(inner, &created->inner_self);
    created->trace = trace;
    created->user = user;
    snprintf(created->name, sizeof created->name, "trace(%s)", bp_device_name(inner));
    created->ops = trace_ops;
    created->ops.name = created->name;
    leave_out(&created->ops, created->inner_ops);
    bp_device_retain(inner);
    BP_TRY(bp_device_create(&created->ops, created, device));
    (*device)->decorated = inner;
    return BP_OK;
}
