/* SPDX-License-Identifier: Apache-2.0 */
/* The part that all devices share: creation from a table, references, usage, events, graphs, reserved address space. */
#include "devices/device.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/memory.h"

/* The first required function that a table lacks; NULL: complete. */
static const char *missing_function(const bp_device_ops *ops)
{
    const struct {
        bool present;
        const char *name;
    } functions[] = {
        {ops->destroy != NULL, "destroy"},
        {ops->traits != NULL, "traits"},
        {ops->reserve != NULL, "reserve"},
        {ops->unreserve != NULL, "unreserve"},
        {ops->commit != NULL, "commit"},
        {ops->decommit != NULL, "decommit"},
        {ops->map != NULL, "map"},
        {ops->unmap != NULL, "unmap"},
        {ops->allocate != NULL, "allocate"},
        {ops->free != NULL, "free"},
        {ops->stream_create != NULL, "stream_create"},
        {ops->stream_destroy != NULL, "stream_destroy"},
        {ops->stream_synchronize != NULL, "stream_synchronize"},
        {ops->synchronize != NULL, "synchronize"},
        {ops->call != NULL, "call"},
        {ops->fill != NULL, "fill"},
        {ops->copy != NULL, "copy"},
        {ops->event_create != NULL, "event_create"},
        {ops->event_destroy != NULL, "event_destroy"},
        {ops->event_record != NULL, "event_record"},
        {ops->stream_wait != NULL, "stream_wait"},
        {ops->event_synchronize != NULL, "event_synchronize"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (!functions[i].present)
            return functions[i].name;
    return NULL;
}

bp_status bp_device_create(const bp_device_ops *ops, void *self, bp_device **device)
{
    bp_device_ops own = {.size = sizeof own};
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create: the output is NULL");
    BP_TRY(bp_struct_read("bp_device_create", ops, false, &own, sizeof own));
    ops = &own;
    if (ops->name == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create: the table has no name");
    const char *missing = missing_function(ops);
    if (missing != NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create: device %s lacks function %s", ops->name, missing);
    const int graphs = (ops->capture_of != NULL) + (ops->graph_begin != NULL) + (ops->graph_end != NULL) +
                       (ops->graph_launch != NULL) + (ops->graph_destroy != NULL);
    const bool half_pinning = (ops->pin != NULL) != (ops->unpin != NULL);
    if (half_pinning || (graphs > 0 && graphs < 5))
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_create: device %s has only some of %s; expected all or none",
                       ops->name, half_pinning ? "pin and unpin" : "capture_of and graph_*");

    bp_device_traits traits = {.size = sizeof traits};
    bp_status status = ops->traits(self, &traits);
    if (status == BP_OK &&
        (!bp_is_power_of_two(traits.granularity) || (traits.page_bytes != 0 && !bp_is_power_of_two(traits.page_bytes))))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_device_create: device %s has granularity %llu and pages of %llu bytes, expected powers "
                       "of two",
                       ops->name, (unsigned long long)traits.granularity, (unsigned long long)traits.page_bytes);
    if (status == BP_OK && traits.page_bytes != 0 && ops->protect == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_device_create: device %s lacks function protect, but has pages of %llu bytes", ops->name,
                       (unsigned long long)traits.page_bytes);
    void *memory;
    bp_process process;
    if (status == BP_OK)
        status = bp_process_init(&process);
    if (status == BP_OK)
        status = bp_new_array(1, sizeof(bp_device), &memory);
    if (status != BP_OK) {
        ops->destroy(self);
        return status;
    }
    bp_device *created = memory;
    created->table = own;
    created->ops = &created->table;
    created->self = self;
    created->traits = traits;
    created->process = process;
    atomic_init(&created->references, 1);
    pthread_mutex_init(&created->rings_lock, NULL); /* cannot fail for a plain mutex */
    *device = created;
    return BP_OK;
}

const bp_device_ops *bp_device_table(const bp_device *device, void **self)
{
    *self = device->self;
    return device->ops;
}

void bp_device_retain(bp_device *device)
{
    atomic_fetch_add_explicit(&device->references, 1, memory_order_relaxed);
}

void bp_device_release(bp_device *device)
{
    if (!bp_device_is_here(device) || atomic_fetch_sub_explicit(&device->references, 1, memory_order_acq_rel) > 1)
        return;
    BP_KEEP_ERROR;
    bp_stream *stream = atomic_load_explicit(&device->streams, memory_order_acquire);
    while (stream != NULL) {
        bp_stream *next = stream->next;
        bp_stream_free(stream);
        stream = next;
    }
    bp_stream_free_rings(device);
    device->ops->destroy(device->self);
    pthread_mutex_destroy(&device->rings_lock);
    free(device);
}

void bp_device_destroy(bp_device **device)
{
    if (device == NULL || *device == NULL)
        return;
    bp_device_release(*device);
    *device = NULL;
}

const char *bp_device_name(const bp_device *device)
{
    return device->ops->name;
}

int bp_device_is_inherited(const bp_device *device)
{
    return !bp_device_is_here(device);
}

int bp_device_is_host_accessible(const bp_device *device)
{
    return device->traits.host_accessible != 0;
}

bp_status bp_device_synchronize(bp_device *device)
{
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_synchronize: the device is NULL");
    BP_TRY(bp_device_check(device, "bp_device_synchronize"));
    return device->ops->synchronize(device->self);
}

static bp_status check_pages(const bp_device *device, const void *address, uint64_t bytes, const char *function)
{
    if (device == NULL || address == NULL || bytes == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the device or the memory is NULL", function);
    return bp_device_check(device, function);
}

bp_status bp_device_pin(bp_device *device, void *address, uint64_t bytes)
{
    BP_TRY(check_pages(device, address, bytes, "bp_device_pin"));
    return device->ops->pin != NULL ? device->ops->pin(device->self, address, bytes) : BP_OK;
}

bp_status bp_device_unpin(bp_device *device, void *address, uint64_t bytes)
{
    BP_TRY(check_pages(device, address, bytes, "bp_device_unpin"));
    return device->ops->unpin != NULL ? device->ops->unpin(device->self, address, bytes) : BP_OK;
}

/* ---- usage ------------------------------------------------------------------------------------------------------- */

void bp_device_count(bp_device_counter *counter, uint64_t amount)
{
    uint64_t now = atomic_fetch_add_explicit(&counter->now, amount, memory_order_relaxed) + amount;
    uint64_t peak = atomic_load_explicit(&counter->peak, memory_order_relaxed);
    while (peak < now && !atomic_compare_exchange_weak_explicit(&counter->peak, &peak, now, memory_order_relaxed,
                                                                memory_order_relaxed)) {
    }
}

void bp_device_discount(bp_device_counter *counter, uint64_t amount)
{
    atomic_fetch_sub_explicit(&counter->now, amount, memory_order_relaxed);
}

bp_status bp_device_commit(bp_device *device, uint64_t bytes, uint64_t *handle)
{
    BP_TRY(device->ops->commit(device->self, bytes, handle));
    bp_device_count(&device->committed_bytes, bytes);
    return BP_OK;
}

bp_status bp_device_decommit(bp_device *device, uint64_t bytes, uint64_t handle)
{
    BP_TRY(device->ops->decommit(device->self, handle));
    bp_device_discount(&device->committed_bytes, bytes);
    return BP_OK;
}

bp_status bp_device_allocate(bp_device *device, uint64_t bytes, bp_stream *stream, void **address)
{
    BP_TRY(device->ops->allocate(device->self, bytes, stream->raw, address));
    bp_device_count(&device->allocated_bytes, bytes);
    return BP_OK;
}

bp_status bp_device_free(bp_device *device, void *address, uint64_t bytes, bp_stream *stream)
{
    BP_TRY(device->ops->free(device->self, address, bytes, stream->raw));
    bp_device_discount(&device->allocated_bytes, bytes);
    return BP_OK;
}

bp_status bp_device_usage_get(const bp_device *device, bp_device_usage *usage)
{
    if (device == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_device_usage_get: the device is NULL");
    const bp_device_usage now = {.size = sizeof now,
                                 .committed_bytes = atomic_load(&device->committed_bytes.now),
                                 .peak_committed_bytes = atomic_load(&device->committed_bytes.peak),
                                 .allocated_bytes = atomic_load(&device->allocated_bytes.now),
                                 .peak_allocated_bytes = atomic_load(&device->allocated_bytes.peak),
                                 .streams = atomic_load(&device->live_streams.now),
                                 .events = atomic_load(&device->live_events.now)};
    return bp_struct_write("bp_device_usage_get", &now, sizeof now, usage);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

/* Events of callers; those of timelines are provider objects. */
struct bp_event {
    bp_device *device;
    void *raw; /* the provider's event */
};

bp_status bp_event_create(bp_device *device, bp_event **event)
{
    if (device == NULL || event == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_event_create: the device or the output is NULL");
    BP_TRY(bp_device_check(device, "bp_event_create"));
    void *memory;
    BP_TRY(bp_new_array(1, sizeof(bp_event), &memory));
    bp_event *created = memory;
    bp_status status = device->ops->event_create(device->self, &created->raw);
    if (status != BP_OK) {
        free(created);
        return status;
    }
    created->device = device;
    bp_device_retain(device);
    bp_device_count(&device->live_events, 1);
    *event = created;
    return BP_OK;
}

void bp_event_destroy(bp_event **event)
{
    if (event == NULL || *event == NULL)
        return;
    bp_event *gone = *event;
    bp_device *device = gone->device;
    *event = NULL;
    if (!bp_device_is_here(device))
        return;
    BP_KEEP_ERROR;
    (void)device->ops->event_destroy(device->self, gone->raw);
    bp_device_discount(&device->live_events, 1);
    free(gone);
    bp_device_release(device);
}

static bp_status event_check(const bp_event *event, const bp_stream *stream, const char *function)
{
    if (event == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: the event is NULL", function);
    return bp_stream_check(stream, event->device, function);
}

bp_status bp_event_record(bp_event *event, bp_stream *stream)
{
    BP_TRY(event_check(event, stream, "bp_event_record"));
    return event->device->ops->event_record(event->device->self, event->raw, stream->raw);
}

bp_status bp_stream_wait(bp_stream *stream, bp_event *event)
{
    BP_TRY(event_check(event, stream, "bp_stream_wait"));
    return event->device->ops->stream_wait(event->device->self, stream->raw, event->raw);
}

bp_status bp_event_synchronize(bp_event *event)
{
    if (event == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_event_synchronize: the event is NULL");
    BP_TRY(bp_device_check(event->device, "bp_event_synchronize"));
    return event->device->ops->event_synchronize(event->device->self, event->raw);
}

/* ---- graphs ------------------------------------------------------------------------------------------------------ */

/* Captured work. */
struct bp_graph {
    bp_device *device;
    void *raw; /* the provider's graph */
};

static bp_status graph_check(const bp_stream *stream, const char *function)
{
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, function));
    if (stream->device->ops->graph_begin == NULL)
        return bp_fail(BP_ERR_UNSUPPORTED, "%s: device %s does not support graphs", function,
                       bp_device_name(stream->device));
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_graph_end: the output is NULL");
    bp_device *device = stream->device;
    void *memory = NULL, *raw;
    bp_status room = bp_new_array(1, sizeof(bp_graph), &memory);
    bp_status status = device->ops->graph_end(device->self, stream->raw, &raw); /* ends the capture also on failure */
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_graph_launch: the graph is NULL");
    BP_TRY(bp_stream_check(stream, graph->device, "bp_graph_launch"));
    return graph->device->ops->graph_launch(graph->device->self, graph->raw, stream->raw);
}

void bp_graph_destroy(bp_graph **graph)
{
    if (graph == NULL || *graph == NULL)
        return;
    bp_graph *gone = *graph;
    bp_device *device = gone->device;
    *graph = NULL;
    if (!bp_device_is_here(device))
        return;
    BP_KEEP_ERROR;
    (void)device->ops->graph_destroy(device->self, gone->raw);
    free(gone);
    bp_device_release(device);
}

bp_status bp_stream_capture_of(bp_stream *stream, uint64_t *capture)
{
    BP_TRY(bp_stream_check(stream, stream != NULL ? stream->device : NULL, "bp_stream_capture_of"));
    if (capture == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_stream_capture_of: the output is NULL");
    const bp_device *device = stream->device;
    if (device->ops->capture_of != NULL)
        return device->ops->capture_of(device->self, stream->raw, capture);
    *capture = 0;
    return BP_OK;
}

/* ---- reserved address space ---------------------------------------------------------------------------------------- */

void bp_address_space_init(bp_address_space *space, const char *device, uint64_t granularity)
{
    *space = (bp_address_space){.device = device, .granularity = granularity};
    pthread_mutex_init(&space->lock, NULL);
}

void bp_address_space_finish(bp_address_space *space)
{
    for (size_t i = 0; i < space->count; i++)
        munmap(space->ranges[i].address, space->ranges[i].bytes);
    free(space->ranges);
    pthread_mutex_destroy(&space->lock);
}

bp_status bp_address_space_check_bytes(const bp_address_space *space, uint64_t bytes, const char *operation)
{
    if (bytes == 0 || bytes % space->granularity != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes, expected a multiple of %llu", space->device,
                       operation, (unsigned long long)bytes, (unsigned long long)space->granularity);
    return BP_OK;
}

bp_status bp_address_space_check(bp_address_space *space, const void *address, uint64_t bytes, uint64_t step,
                                 const char *operation)
{
    uintptr_t at = (uintptr_t)address;
    bool reserved = false;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < space->count && !reserved; i++) {
        const bp_address_range *range = &space->ranges[i];
        uintptr_t start = (uintptr_t)range->address;
        reserved = at >= start && bytes <= range->bytes && at - start <= range->bytes - bytes;
    }
    pthread_mutex_unlock(&space->lock);
    if (!reserved)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes at %p, which are not reserved", space->device,
                       operation, (unsigned long long)bytes, address);
    if (bytes == 0 || bytes % step != 0 || at % step != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: %s of %llu bytes at %p, expected multiples of %llu", space->device,
                       operation, (unsigned long long)bytes, address, (unsigned long long)step);
    return BP_OK;
}

/* Maps address space that starts at a multiple of `alignment`: maps more and cuts off both ends. In whole pages, which can exceed the granularity of
 * a device without memory. */
static bp_status map_aligned(const bp_address_space *space, uint64_t bytes, uint64_t alignment, void **address)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t whole, mapped;
    int reason = ENOMEM;
    void *memory = MAP_FAILED;
    alignment = alignment > page ? alignment : page;
    if (bp_round_up_u64(bytes, page, &whole) && bp_add_u64(whole, alignment, &mapped)) {
        memory = mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        reason = errno;
    }
    if (memory == MAP_FAILED)
        return bp_fail(BP_ERR_NO_DEVICE_MEMORY, "%s: no address space for %llu bytes aligned to %llu: %s",
                       space->device, (unsigned long long)bytes, (unsigned long long)alignment, strerror(reason));
    uint64_t before = -(uintptr_t)memory & (alignment - 1), after = mapped - before - whole;
    char *aligned = (char *)memory + before;
    if ((before > 0 && munmap(memory, before) != 0) || (after > 0 && munmap(aligned + whole, after) != 0)) {
        reason = errno;
        munmap(memory, mapped);
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: reserve of %llu bytes aligned to %llu: %s", space->device,
                       (unsigned long long)bytes, (unsigned long long)alignment, strerror(reason));
    }
    *address = aligned;
    return BP_OK;
}

bp_status bp_address_space_reserve(void *self, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_address_space *space = self;
    BP_TRY(bp_address_space_check_bytes(space, bytes, "reserve"));
    if (alignment < space->granularity || !bp_is_power_of_two(alignment))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "%s: reserve with alignment %llu, expected a power of two of at least %llu", space->device,
                       (unsigned long long)alignment, (unsigned long long)space->granularity);
    bp_address_range range = {.bytes = bytes};
    pthread_mutex_lock(&space->lock);
    bp_status status = bp_grow_array((void **)&space->ranges, &space->capacity, space->count, sizeof *space->ranges);
    if (status == BP_OK)
        status = map_aligned(space, bytes, alignment, &range.address);
    if (status == BP_OK)
        space->ranges[space->count++] = range;
    pthread_mutex_unlock(&space->lock);
    if (status == BP_OK)
        *address = range.address;
    return status;
}

bp_status bp_address_space_unreserve(void *self, void *address, uint64_t bytes)
{
    bp_address_space *space = self;
    bool found = false;
    int reason = 0;
    pthread_mutex_lock(&space->lock);
    for (size_t i = 0; i < space->count; i++) {
        bp_address_range *range = &space->ranges[i];
        if (range->address != address || range->bytes != bytes)
            continue;
        found = true;
        if (munmap(address, bytes) == 0)
            *range = space->ranges[--space->count];
        else
            reason = errno;
        break;
    }
    pthread_mutex_unlock(&space->lock);
    if (!found)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: unreserve of %llu bytes at %p, which were not reserved as one",
                       space->device, (unsigned long long)bytes, address);
    if (reason != 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY, "%s: unreserve of %llu bytes at %p: %s", space->device,
                       (unsigned long long)bytes, address, strerror(reason));
    return BP_OK;
}
