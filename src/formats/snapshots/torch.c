/* Reads snapshots of PyTorch's allocator: the segments at the end, and a trace for each device. Replaying the traces
 * backwards gives the allocations and segments of the start. Source of the format: docs.pytorch.org, "Understanding
 * CUDA Memory Usage". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/file.h"
#include "formats/snapshots/snapshot_file.h"

typedef enum bp_torch_action {
    BP_TORCH_OTHER,
    BP_TORCH_ALLOC,
    BP_TORCH_FREE,
    BP_TORCH_MAP,
    BP_TORCH_UNMAP
} bp_torch_action;

typedef struct bp_torch_event {
    uint64_t address, bytes, stream, time_ns;
    bp_pickle_ref frames;
    uint32_t request; /* of an allocation or its end */
    bp_torch_action action;
} bp_torch_event;

/* An action at an address: an event of the trace, or a block that is live at the end. */
typedef struct bp_torch_moment {
    uint64_t address, bytes;
    uint32_t event : 31, allocates : 1; /* BP_TORCH_END: a block that is live at the end */
    bp_pickle_ref frames;
} bp_torch_moment;
#define BP_TORCH_END 0x7fffffffu

/* State of reading a device; its arrays are freed afterwards, the pool remains. */
typedef struct bp_torch_device {
    bp_snapshot_reader *reader;
    bp_snapshot_pool *pool;
    size_t number;
    bp_torch_event *events;
    size_t event_count, mapping_count;
    bp_torch_moment *moments;
    size_t moment_count;
    uint64_t *mapped; /* by slab: mapped bytes at the moment of the replay */
} bp_torch_device;

static bool torch_is_mapping(const bp_torch_event *event)
{
    return event->action == BP_TORCH_MAP || event->action == BP_TORCH_UNMAP;
}

/* ---- segments ---------------------------------------------------------------------------------------------------- */

static int by_address(const void *left, const void *right)
{
    const bp_snapshot_slab *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

/* Replays an event that maps or unmaps, forward or backward. True if the slab's residency changed. */
static bool play_mapping(bp_torch_device *d, const bp_torch_event *event, bool forward, size_t *slab)
{
    size_t low = 0, high = d->pool->slab_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(d->pool->slabs[middle].address <= event->address ? &low : &high) = middle;
    }
    *slab = low;
    uint64_t *mapped = &d->mapped[low], before = *mapped;
    bool more = (event->action == BP_TORCH_MAP) == forward;
    *mapped = more ? before + event->bytes : before - (event->bytes < before ? event->bytes : before);
    return (before > 0) != (*mapped > 0);
}

/* Makes slabs of the segments at the end and in the trace. */
static bp_status torch_find_slabs(bp_torch_device *d)
{
    bp_snapshot_pool *pool = d->pool;
    for (size_t i = 0; i < d->event_count; i++) {
        if (torch_is_mapping(&d->events[i]))
            pool->slabs[pool->slab_count++] =
                (bp_snapshot_slab){.address = d->events[i].address, .bytes = d->events[i].bytes};
    }

    /* Segments that overlap, at different times, are merged into one slab; planned_bytes is what it has at the end. */
    size_t kept = 0;
    bp_snapshot_slab *slabs = pool->slabs;
    qsort(slabs, pool->slab_count, sizeof *slabs, by_address);
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_slab *last = kept > 0 ? &slabs[kept - 1] : NULL;
        if (last == NULL || slabs[i].address - last->address >= last->bytes) {
            slabs[kept++] = slabs[i];
            continue;
        }
        uint64_t end = slabs[i].address - last->address + slabs[i].bytes;
        last->bytes = end > last->bytes ? end : last->bytes;
        last->planned_bytes += slabs[i].planned_bytes;
    }
    pool->slab_count = kept;

    void *mapped = NULL, *changes = NULL;
    BP_TRY(bp_snapshot_scratch(d->reader, pool->slab_count, sizeof *d->mapped, &mapped));
    d->mapped = mapped;
    BP_TRY(bp_snapshot_room(d->reader, d->mapping_count, sizeof *pool->slab_events, &changes));
    pool->slab_events = changes;
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_slab *slab = &pool->slabs[i];
        d->mapped[i] = slab->planned_bytes;
        slab->group = "segment";
        slab->resident = slab->planned_bytes > 0;
        slab->planned_bytes = 0;
    }
    size_t slab = 0;
    for (size_t i = d->event_count; i-- > 0;) {
        if (torch_is_mapping(&d->events[i]))
            play_mapping(d, &d->events[i], false, &slab);
    }
    for (size_t i = 0; i < pool->slab_count; i++)
        pool->slabs[i].resident_at_start = d->mapped[i] > 0;
    for (size_t i = 0; i < d->event_count; i++) {
        const bp_torch_event *event = &d->events[i];
        if (torch_is_mapping(event) && play_mapping(d, event, true, &slab))
            pool->slab_events[pool->slab_event_count++] = (bp_snapshot_slab_event){
                .gained = event->action == BP_TORCH_MAP, .slab = (uint32_t)slab, .time_ns = event->time_ns};
    }
    return BP_OK;
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

enum { MOST_FRAMES = 32, MOST_DEVICES = 128 };

static bp_status torch_read_number(const bp_snapshot_at *at, const char *name, uint64_t *number)
{
    bp_snapshot_at member = bp_snapshot_member(at, name);
    return bp_snapshot_number(&member, UINT64_MAX, number);
}

static bp_status read_range(const bp_snapshot_at *at, const char *address_name, const char *size_name,
                            uint64_t *address, uint64_t *bytes)
{
    BP_TRY(torch_read_number(at, address_name, address));
    BP_TRY(torch_read_number(at, size_name, bytes));
    if (*bytes > UINT64_MAX - *address)
        return bp_snapshot_fail(at, "%llu bytes at 0x%llx exceed 64-bit addresses", (unsigned long long)*bytes,
                                (unsigned long long)*address);
    return BP_OK;
}

/* Old versions of PyTorch write no times: then the index of an event is its time. */
static bp_status read_trace(bp_torch_device *d, const bp_snapshot_at *trace)
{
    static const struct {
        const char *name;
        bp_torch_action action;
    } actions[] = {{"alloc", BP_TORCH_ALLOC},     {"free_completed", BP_TORCH_FREE}, {"segment_alloc", BP_TORCH_MAP},
                   {"segment_map", BP_TORCH_MAP}, {"segment_free", BP_TORCH_UNMAP},  {"segment_unmap", BP_TORCH_UNMAP}};
    void *entries = NULL;
    if (trace->value.kind > BP_PICKLE_NONE && !bp_pickle_is_list(trace->value))
        return bp_snapshot_fail(trace, "expected a list");
    size_t count = bp_pickle_is_list(trace->value) ? trace->value.count : 0;
    BP_TRY(bp_snapshot_scratch(d->reader, count, sizeof *d->events, &entries));
    d->events = entries;
    uint64_t earliest = 0;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at item = bp_snapshot_item(trace, i);
        bp_torch_event *event = &d->events[d->event_count];
        bp_snapshot_at action = bp_snapshot_member(&item, "action"), time = bp_snapshot_member(&item, "time_us");
        bp_snapshot_at stream = bp_snapshot_member(&item, "stream");
        event->action = BP_TORCH_OTHER;
        for (size_t k = 0; action.value.kind == BP_PICKLE_STRING && k < sizeof actions / sizeof *actions; k++) {
            if (strlen(actions[k].name) == action.value.count &&
                memcmp(actions[k].name, action.value.text, action.value.count) == 0)
                event->action = actions[k].action;
        }
        if (event->action == BP_TORCH_OTHER)
            continue;
        BP_TRY(read_range(&item, "addr", "size", &event->address, &event->bytes));
        BP_TRY(bp_snapshot_number_or_0(&stream, &event->stream));
        uint64_t time_us = 0;
        BP_TRY(bp_snapshot_number_or_0(&time, &time_us));
        if (time_us > UINT64_MAX / 1000)
            return bp_snapshot_fail(&time, "time %llu exceeds 64 bits in nanoseconds", (unsigned long long)time_us);
        earliest = time_us * 1000 > earliest ? time_us * 1000 : earliest;
        event->time_ns = earliest;
        event->frames = bp_pickle_find(item.reader->pickle, item.value, "frames");
        d->event_count++;
        d->mapping_count += torch_is_mapping(event);
    }
    for (size_t i = 0; earliest == 0 && i < d->event_count; i++)
        d->events[i].time_ns = i * 1000;
    return BP_OK;
}

/* Blocks without an address follow each other. */
static bp_status read_blocks(bp_torch_device *d, const bp_snapshot_at *segment, uint64_t address)
{
    bp_snapshot_at blocks = bp_snapshot_member(segment, "blocks");
    size_t count = bp_pickle_is_list(blocks.value) ? blocks.value.count : 0;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at block = bp_snapshot_item(&blocks, i), own = bp_snapshot_member(&block, "address");
        uint64_t bytes = 0;
        if (own.value.kind != BP_PICKLE_ABSENT)
            BP_TRY(bp_snapshot_number(&own, UINT64_MAX, &address));
        BP_TRY(torch_read_number(&block, "size", &bytes));
        if (bytes > UINT64_MAX - address)
            return bp_snapshot_fail(&block, "exceeds 64-bit addresses");
        bp_snapshot_at state = bp_snapshot_member(&block, "state");
        const bp_pickle_value *v = &state.value;
        if (v->kind == BP_PICKLE_STRING && v->count >= 7 && memcmp(v->text, "active_", 7) == 0)
            d->moments[d->moment_count++] =
                (bp_torch_moment){.address = address,
                                  .bytes = bytes,
                                  .event = BP_TORCH_END,
                                  .frames = bp_pickle_find(d->reader->pickle, block.value, "frames")};
        address += bytes;
    }
    return BP_OK;
}

static bool torch_is_of_device(const bp_torch_device *d, const bp_snapshot_at *segment)
{
    bp_snapshot_at device = bp_snapshot_member(segment, "device");
    const bp_pickle_value *v = &device.value;
    return v->kind == BP_PICKLE_ABSENT ? d->number == 0
                                       : v->kind == BP_PICKLE_INTEGER && !v->is_negative && v->magnitude == d->number;
}

/* Allocates for all actions and slabs, then reads the blocks and segments of the end. */
static bp_status read_segments(bp_torch_device *d, const bp_snapshot_at *segments)
{
    size_t count = bp_pickle_is_list(segments->value) ? segments->value.count : 0, blocks = 0, own = 0;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at segment = bp_snapshot_item(segments, i), list = bp_snapshot_member(&segment, "blocks");
        bool is_own = torch_is_of_device(d, &segment);
        own += is_own;
        blocks += is_own && bp_pickle_is_list(list.value) ? list.value.count : 0;
    }
    void *moments = NULL, *slabs = NULL;
    size_t most = blocks + d->event_count - d->mapping_count;
    BP_TRY(bp_snapshot_scratch(d->reader, most, sizeof *d->moments, &moments));
    BP_TRY(bp_snapshot_room(d->reader, own + d->mapping_count, sizeof *d->pool->slabs, &slabs));
    d->moments = moments;
    d->pool->slabs = slabs;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at segment = bp_snapshot_item(segments, i);
        if (!torch_is_of_device(d, &segment))
            continue;
        bp_snapshot_slab *slab = &d->pool->slabs[d->pool->slab_count++];
        BP_TRY(read_range(&segment, "address", "total_size", &slab->address, &slab->bytes));
        slab->planned_bytes = slab->bytes; /* mapped bytes at the end, until segments are merged into slabs */
        BP_TRY(read_blocks(d, &segment, slab->address));
    }
    return BP_OK;
}

/* ---- requests: one for every allocation -------------------------------------------------------------------------------------------- */

static int by_address_and_time(const void *left, const void *right)
{
    const bp_torch_moment *a = left, *b = right;
    if (a->address != b->address)
        return a->address < b->address ? -1 : 1;
    return (a->event > b->event) - (a->event < b->event);
}

/* Names a request after the innermost Python frame outside PyTorch, else of Python, else the innermost frame. */
static bp_status name_request(bp_torch_device *d, bp_pickle_ref frames, bp_snapshot_request *request)
{
    bp_snapshot_at list = {.reader = d->reader, .value = bp_pickle_get(d->reader->pickle, frames)}, chosen = list;
    size_t count = !bp_pickle_is_list(list.value) ? 0 : list.value.count < MOST_FRAMES ? list.value.count : MOST_FRAMES;
    bool found = false, has_python = false;
    for (size_t i = 0; i < count && !found; i++) {
        bp_snapshot_at frame = bp_snapshot_item(&list, i), filename = bp_snapshot_member(&frame, "filename");
        const bp_pickle_value *v = &filename.value;
        bool is_python = v->kind == BP_PICKLE_STRING && v->count > 3 && memcmp(v->text + v->count - 3, ".py", 3) == 0;
        found = is_python && memmem(v->text, v->count, "/torch/", 7) == NULL;
        if (found || i == 0 || (is_python && !has_python))
            chosen = frame;
        has_python = has_python || is_python;
    }
    request->bucket = request->unit = "";
    if (count > 0) {
        bp_snapshot_at name = bp_snapshot_member(&chosen, "name"), filename = bp_snapshot_member(&chosen, "filename");
        bp_snapshot_at line = bp_snapshot_member(&chosen, "line");
        if (name.value.kind == BP_PICKLE_STRING)
            BP_TRY(bp_snapshot_text(&name, &request->bucket));
        if (filename.value.kind == BP_PICKLE_STRING)
            BP_TRY(bp_snapshot_text(&filename, &request->unit));
        if (line.value.kind == BP_PICKLE_INTEGER && !line.value.is_negative && line.value.magnitude <= UINT32_MAX)
            request->ordinal = (uint32_t)line.value.magnitude;
    }
    return BP_OK;
}

/* True if the action begins a request: an allocation, or the end of one that was live at the start. The actions of
 * an address are visited in order. */
static bool begins_request(const bp_torch_moment *moment, bool open)
{
    return !open || moment->allocates;
}

/* True if a request is live at the address after the action. */
static bool is_open_after(const bp_torch_moment *moment)
{
    return moment->allocates || moment->event == BP_TORCH_END;
}

static bool is_same_address(const bp_torch_device *d, size_t moment)
{
    return moment > 0 && d->moments[moment - 1].address == d->moments[moment].address;
}

static bp_status find_requests(bp_torch_device *d)
{
    for (size_t i = 0; i < d->event_count; i++) {
        const bp_torch_event *event = &d->events[i];
        if (!torch_is_mapping(event))
            d->moments[d->moment_count++] = (bp_torch_moment){.address = event->address,
                                                              .bytes = event->bytes,
                                                              .event = (uint32_t)i & BP_TORCH_END,
                                                              .allocates = event->action == BP_TORCH_ALLOC,
                                                              .frames = event->frames};
    }
    qsort(d->moments, d->moment_count, sizeof *d->moments, by_address_and_time);

    /* exactly as many as there are requests */
    size_t requests = 0, live = 0;
    bool open = false;
    for (size_t i = 0; i < d->moment_count; i++) {
        const bp_torch_moment *moment = &d->moments[i];
        open = open && is_same_address(d, i);
        bool begins = begins_request(moment, open);
        requests += begins;
        live += begins && !moment->allocates;
        open = is_open_after(moment);
    }
    void *all = NULL, *at_start = NULL;
    BP_TRY(bp_snapshot_room(d->reader, requests, sizeof *d->pool->requests, &all));
    BP_TRY(bp_snapshot_room(d->reader, live, sizeof *d->pool->live, &at_start));
    d->pool->requests = all;
    d->pool->live = at_start;

    uint32_t id = 0;
    open = false;
    for (size_t i = 0; i < d->moment_count; i++) {
        bp_torch_moment moment = d->moments[i];
        bp_torch_event *event = moment.event != BP_TORCH_END ? &d->events[moment.event] : NULL;
        open = open && is_same_address(d, i);
        if (begins_request(&moment, open)) {
            if (event != NULL && !moment.allocates)
                moment.frames = BP_PICKLE_NO_REF; /* the frames of its end, not of its allocation */
            id = (uint32_t)d->pool->request_count++;
            bp_snapshot_request *request = &d->pool->requests[id];
            request->role = request->dtype = "";
            request->placement = "dynamic";
            request->bytes = moment.bytes;
            BP_TRY(name_request(d, moment.frames, request));
            if (!moment.allocates)
                d->pool->live[d->pool->live_count++] = (bp_snapshot_live){.id = id, .address = moment.address};
        }
        if (event != NULL)
            event->request = id;
        d->pool->requests[id].references += event == NULL;
        open = is_open_after(&moment);
    }
    return BP_OK;
}

static bp_status torch_add_events(bp_torch_device *d)
{
    void *entries = NULL;
    BP_TRY(bp_snapshot_room(d->reader, d->event_count - d->mapping_count, sizeof *d->pool->events, &entries));
    d->pool->events = entries;
    for (size_t i = 0; i < d->event_count; i++) {
        const bp_torch_event *event = &d->events[i];
        if (torch_is_mapping(event))
            continue;
        bp_snapshot_event *out = &d->pool->events[d->pool->event_count++];
        *out = (bp_snapshot_event){.kind = event->action == BP_TORCH_ALLOC ? BP_EVENT_ACQUIRE : BP_EVENT_RELEASE,
                                   .id = event->request,
                                   .stream = event->stream,
                                   .time_ns = event->time_ns,
                                   .address = event->address};
    }
    return BP_OK;
}

/* ---- file ---------------------------------------------------------------------------------------------------------------------------- */

static bp_status read_device(bp_torch_device *d, const bp_snapshot_at *root, const bp_snapshot_at *trace)
{
    bp_snapshot_at segments = bp_snapshot_member(root, "segments");
    char name[32];
    snprintf(name, sizeof name, "cuda:%zu", d->number);
    *d->pool = (bp_snapshot_pool){.allocator = "", .fingerprint = ""};
    BP_TRY(bp_snapshot_copy(d->reader, name, strlen(name), &d->pool->name));
    d->pool->device = d->pool->name;
    BP_TRY(read_trace(d, trace));
    BP_TRY(read_segments(d, &segments));
    BP_TRY(torch_find_slabs(d));
    BP_TRY(find_requests(d));
    return torch_add_events(d);
}

bp_status bp_snapshot_read_torch(const bp_snapshot_at *root)
{
    bp_snapshot_reader *reader = root->reader;
    bp_snapshot_at traces = bp_snapshot_member(root, "device_traces");
    void *pools = NULL;
    size_t count = 0;
    BP_TRY(bp_snapshot_list(&traces, sizeof *reader->snapshot->info.pools, &pools, &count));
    reader->snapshot->info.pools = pools;
    if (count > MOST_DEVICES)
        return bp_snapshot_fail(&traces, "%zu devices, expected at most %d", count, MOST_DEVICES);
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at trace = bp_snapshot_item(&traces, i);
        bp_torch_device device = {
            .reader = reader, .pool = &reader->snapshot->info.pools[reader->snapshot->info.pool_count], .number = i};
        bp_status status = read_device(&device, root, &trace);
        free(device.events);
        free(device.moments);
        free(device.mapped);
        if (status != BP_OK)
            return status;
        bool is_empty = device.pool->slab_count == 0 && device.event_count == 0;
        reader->snapshot->info.pool_count += !is_empty;
    }
    return BP_OK;
}
