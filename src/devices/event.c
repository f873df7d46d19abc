/* Events of callers; those of timelines are the provider's own objects. */
#include "devices/device.h"

#include <stdlib.h>

#include "core/fail.h"
#include "core/memory.h"

struct bp_event {
    bp_device *device;
    void *raw; /* the provider's event */
};

bp_status bp_event_create(bp_device *device, bp_event **event)
{
    if (device == NULL || event == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_event_create: needs a device and an output");
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
    bp_device *device = (*event)->device;
    if (!bp_device_is_here(device)) {
        *event = NULL;
        return;
    }
    (void)device->ops->event_destroy(device->self, (*event)->raw);
    bp_device_discount(&device->live_events, 1);
    free(*event);
    *event = NULL;
    bp_device_release(device);
}

static bp_status event_check(const bp_event *event, const bp_stream *stream, const char *function)
{
    if (event == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%s: no event", function);
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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_event_synchronize: no event");
    BP_TRY(bp_device_check(event->device, "bp_event_synchronize"));
    return event->device->ops->event_synchronize(event->device->self, event->raw);
}
