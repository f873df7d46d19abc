/* SPDX-License-Identifier: Apache-2.0 */
/* Makes pools of the traces of PyTorch's allocator: requests from allocations, slabs from segments. */
#include "view/recording.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "planner/steps/attribution.h"
#include "planner/steps/steps.h"
#include "view/ranges.h"

typedef struct reader {
    const bp_trace *trace;
    view_device *device;
    bp_snapshot_pool *pool;
    bp_allocations allocations;
    bp_stack_places places;
    bp_attribution attribution;
    bp_steps steps;
    uint64_t *times_ns;  /* by event */
    uint32_t *ends;      /* by event: the allocation that ends there, or BP_TRACE_NONE */
    view_ranges *mapped; /* by slab, while events are undone */
    uint64_t work;
    bool counts_events; /* a microsecond for each, as bucketpool.torch.trace writes them */
} reader;

static bp_status new_array(size_t count, size_t element_bytes, void **array)
{
    *array = calloc(count + 1, element_bytes);
    if (*array != NULL)
        return BP_OK;
    bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while a recording is read");
    return BP_ERR_NO_HOST_MEMORY;
}

static bool is_mapping(const bp_trace_event *event)
{
    return event->action >= BP_TRACE_SEGMENT_ALLOC && event->action <= BP_TRACE_SEGMENT_UNMAP;
}

static bool is_gain(const bp_trace_event *event)
{
    return event->action == BP_TRACE_SEGMENT_ALLOC || event->action == BP_TRACE_SEGMENT_MAP;
}

/* Events of the same microsecond stay in order: their nanoseconds count up. */
static bp_status make_times(reader *r)
{
    const bp_trace *trace = r->trace;
    void *times;
    if (trace->event_count > 0 && trace->events[trace->event_count - 1].time_us >= UINT64_MAX / 1000)
        return bp_error_record(BP_ERR_FORMAT, "the time of its last event exceeds 64 bits in nanoseconds");
    BP_TRY(new_array(trace->event_count, sizeof *r->times_ns, &times));
    r->times_ns = times;
    r->counts_events = true;
    for (size_t i = 0; i < trace->event_count; i++) {
        if (i > 0 && trace->events[i].time_us != trace->events[i - 1].time_us + 1)
            r->counts_events = false;
        uint64_t time_ns = trace->events[i].time_us * 1000, before = i > 0 ? r->times_ns[i - 1] : 0;
        bool is_same = i > 0 && trace->events[i].time_us == trace->events[i - 1].time_us;
        r->times_ns[i] = !is_same ? time_ns : before % 1000 < 999 ? before + 1 : before;
    }
    return BP_OK;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static bp_status find_allocations(reader *r)
{
    BP_TRY(bp_allocations_init(r->trace, &r->allocations));
    BP_TRY(bp_stack_places_init(r->trace, &r->places));
    BP_TRY(bp_steps_init(r->trace, &r->allocations, &r->places, &r->steps));
    return bp_attribution_init(r->trace, &r->allocations, &r->places, &r->attribution);
}

/* The text of a stack's module, copied once. */
static bp_status module_of(reader *r, uint32_t stack, const char **module)
{
    const bp_stack_place *place = &r->places.all[stack];
    char **copy = &r->device->modules[stack];
    if (*copy == NULL)
        *copy = strndup(place->module, place->module_bytes);
    *module = *copy;
    return *copy != NULL ? BP_OK : bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory while a recording is read");
}

static bp_status make_requests(reader *r)
{
    bp_snapshot_pool *pool = r->pool;
    void *requests, *live, *modules;
    BP_TRY(new_array(r->allocations.count, sizeof *pool->requests, &requests));
    pool->requests = requests;
    BP_TRY(new_array(r->allocations.live_at_start, sizeof *pool->live, &live));
    pool->live = live;
    BP_TRY(new_array(r->trace->stack_count, sizeof *r->device->modules, &modules));
    r->device->modules = modules;
    r->device->stack_count = r->trace->stack_count;
    pool->request_count = r->allocations.count;
    for (size_t i = 0; i < r->allocations.count; i++) {
        const bp_allocation *a = &r->allocations.all[i];
        const bp_stack_place *place = a->stack != BP_TRACE_NONE ? &r->places.all[a->stack] : NULL;
        bp_snapshot_request *request = &pool->requests[i];
        *request = (bp_snapshot_request){.unit = "",
                                         .bucket = "",
                                         .role = bp_memory_kind_name((bp_memory_kind)r->attribution.kinds[i]),
                                         .dtype = "",
                                         .placement = "dynamic",
                                         .bytes = bp_step_round(a->bytes),
                                         .references = a->end == BP_TRACE_NONE};
        if (place != NULL && place->frame != NULL) {
            request->unit = place->frame->file;
            request->bucket = strcmp(place->frame->function, "<module>") != 0 ? place->frame->function : "";
            request->ordinal = place->frame->line <= UINT32_MAX ? (uint32_t)place->frame->line : 0;
        }
        if (place != NULL && place->module_bytes > 0)
            BP_TRY(module_of(r, a->stack, &request->unit));
        if (a->begin == BP_TRACE_NONE)
            pool->live[pool->live_count++] =
                (bp_snapshot_live){.id = (uint32_t)i, .address = a->address, .stream = r->trace->streams[a->stream]};
    }
    return BP_OK;
}

/* In the order in which pictures stack them: memory that stays is below. */
static bp_status make_roles(reader *r)
{
    static const uint8_t order[] = {BP_MEMORY_EARLIER,   BP_MEMORY_PARAMETERS,    BP_MEMORY_OPTIMIZER_STATE,
                                    BP_MEMORY_GRADIENTS, BP_MEMORY_COMMUNICATION, BP_MEMORY_ACTIVATIONS,
                                    BP_MEMORY_LOGITS,    BP_MEMORY_WORKSPACE,     BP_MEMORY_UNKNOWN};
    _Static_assert(sizeof order == BP_MEMORY_KINDS, "all kinds");
    bool found[BP_MEMORY_KINDS] = {false};
    void *roles;
    BP_TRY(new_array(BP_MEMORY_KINDS, sizeof *r->pool->roles, &roles));
    r->pool->roles = roles;
    for (size_t i = 0; i < r->allocations.count; i++)
        found[r->attribution.kinds[i]] = true;
    for (size_t i = 0; i < sizeof order; i++) {
        if (found[order[i]])
            r->pool->roles[r->pool->role_count++].role = bp_memory_kind_name((bp_memory_kind)order[i]);
    }
    return BP_OK;
}

static bp_status make_events(reader *r)
{
    const bp_trace *trace = r->trace;
    bp_snapshot_pool *pool = r->pool;
    void *ends, *events;
    BP_TRY(new_array(trace->event_count, sizeof *r->ends, &ends));
    r->ends = ends;
    memset(ends, 0xff, (trace->event_count + 1) * sizeof *r->ends);
    size_t count = 0;
    for (size_t i = 0; i < r->allocations.count; i++) {
        const bp_allocation *a = &r->allocations.all[i];
        count += (a->begin != BP_TRACE_NONE) + (a->end != BP_TRACE_NONE);
        if (a->end != BP_TRACE_NONE)
            r->ends[a->end] = (uint32_t)i;
    }
    BP_TRY(new_array(count, sizeof *pool->events, &events));
    pool->events = events;
    uint32_t next = (uint32_t)r->allocations.live_at_start;
    for (uint32_t i = 0; i < trace->event_count; i++) {
        bp_snapshot_event event = {.stream = trace->streams[trace->events[i].stream],
                                   .time_ns = r->times_ns[i],
                                   .address = trace->events[i].address};
        if (r->ends[i] != BP_TRACE_NONE) {
            event.kind = BP_EVENT_RELEASE;
            event.id = r->ends[i];
            pool->events[pool->event_count++] = event;
        }
        if (next < r->allocations.count && r->allocations.all[next].begin == i) {
            event.kind = BP_EVENT_ACQUIRE;
            event.id = next++;
            pool->events[pool->event_count++] = event;
        }
    }
    return BP_OK;
}

/* ---- slabs ------------------------------------------------------------------------------------------------------- */

static int by_slab_address(const void *left, const void *right)
{
    const bp_snapshot_slab *a = left, *b = right;
    return (a->address > b->address) - (a->address < b->address);
}

static size_t find_slab_at(const bp_snapshot_pool *pool, uint64_t address)
{
    size_t low = 0, high = pool->slab_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(pool->slabs[middle].address <= address ? &low : &high) = middle;
    }
    return low;
}

/* Recordings on fake tensors have no segments, but a segment for each block that is live at the end. */
static bool has_segments(const reader *r)
{
    const bp_trace *trace = r->trace;
    for (size_t i = 0; i < trace->event_count; i++) {
        if (is_mapping(&trace->events[i]))
            return true;
    }
    for (size_t i = 0; i < trace->event_count; i++) {
        const bp_trace_event *e = &trace->events[i];
        if (e->action != BP_TRACE_ALLOC)
            continue;
        size_t low = 0, high = trace->segment_count;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (trace->segments[middle].address > e->address)
                high = middle;
            else
                low = middle + 1;
        }
        bool is_inside = low > 0 && e->address - trace->segments[low - 1].address < trace->segments[low - 1].bytes;
        if (!is_inside)
            return false;
    }
    return true;
}

static bp_status make_slabs(reader *r)
{
    const bp_trace *trace = r->trace;
    bp_snapshot_pool *pool = r->pool;
    size_t count = trace->segment_count, kept = 0;
    void *slabs;
    for (size_t i = 0; i < trace->event_count; i++)
        count += is_mapping(&trace->events[i]);
    BP_TRY(new_array(count, sizeof *pool->slabs, &slabs));
    pool->slabs = slabs;
    for (size_t i = 0; i < trace->segment_count; i++)
        pool->slabs[pool->slab_count++] = (bp_snapshot_slab){.address = trace->segments[i].address,
                                                             .bytes = trace->segments[i].bytes,
                                                             .is_expandable = trace->segments[i].is_expandable};
    for (size_t i = 0; i < trace->event_count; i++) {
        const bp_trace_event *e = &trace->events[i];
        if (is_mapping(e))
            pool->slabs[pool->slab_count++] = (bp_snapshot_slab){.address = e->address,
                                                                 .bytes = e->bytes,
                                                                 .is_expandable = e->action == BP_TRACE_SEGMENT_MAP ||
                                                                                  e->action == BP_TRACE_SEGMENT_UNMAP};
    }
    qsort(pool->slabs, pool->slab_count, sizeof *pool->slabs, by_slab_address);
    for (size_t i = 0; i < pool->slab_count; i++) {
        bp_snapshot_slab *last = kept > 0 ? &pool->slabs[kept - 1] : NULL, *slab = &pool->slabs[i];
        uint64_t gap = last != NULL ? slab->address - last->address : UINT64_MAX;
        if (slab->bytes == 0)
            continue;
        if (last == NULL || gap > last->bytes ||
            (gap == last->bytes && !(last->is_expandable && slab->is_expandable))) {
            pool->slabs[kept++] = *slab;
            continue;
        }
        last->bytes = gap + slab->bytes > last->bytes ? gap + slab->bytes : last->bytes;
        last->is_expandable = last->is_expandable || slab->is_expandable;
    }
    pool->slab_count = kept;
    for (size_t i = 0; i < kept; i++)
        pool->slabs[i].group = pool->slabs[i].is_expandable ? "expandable" : "segment";
    return BP_OK;
}

static bp_snapshot_slab_event slab_event_of(const bp_snapshot_pool *pool, uint64_t address, uint64_t bytes,
                                            bool is_gained, uint64_t time_ns)
{
    size_t slab = find_slab_at(pool, address);
    return (bp_snapshot_slab_event){.gained = is_gained,
                                    .slab = (uint32_t)slab,
                                    .time_ns = time_ns,
                                    .offset = address - pool->slabs[slab].address,
                                    .bytes = bytes};
}

static view_range range_of(const bp_snapshot_slab_event *event)
{
    return (view_range){event->offset, event->offset + event->bytes, 0};
}

/* The events, and before them the ranges that were mapped before the oldest one: those of the snapshot, with the events undone. */
static bp_status make_slab_events(reader *r)
{
    const bp_trace *trace = r->trace;
    bp_snapshot_pool *pool = r->pool;
    size_t count = 0, at_start = 0;
    void *mapped, *events;
    BP_TRY(new_array(pool->slab_count, sizeof *r->mapped, &mapped));
    r->mapped = mapped;
    for (size_t i = 0; i < trace->segment_count; i++) {
        const bp_trace_segment *s = &trace->segments[i];
        bp_snapshot_slab_event end = slab_event_of(pool, s->address, s->bytes, true, 0);
        if (s->bytes > 0)
            BP_TRY(view_ranges_add(&r->mapped[end.slab], range_of(&end), &r->work, NULL, NULL));
    }
    for (size_t i = trace->event_count; i-- > 0;) {
        const bp_trace_event *e = &trace->events[i];
        if (!is_mapping(e) || e->bytes == 0)
            continue;
        count++;
        bp_snapshot_slab_event event = slab_event_of(pool, e->address, e->bytes, is_gain(e), 0);
        view_ranges *ranges = &r->mapped[event.slab];
        if (event.gained)
            BP_TRY(view_ranges_take(ranges, range_of(&event), &r->work, NULL, NULL));
        else
            BP_TRY(view_ranges_add(ranges, range_of(&event), &r->work, NULL, NULL));
    }
    for (size_t i = 0; i < pool->slab_count; i++)
        at_start += r->mapped[i].count;
    BP_TRY(new_array(at_start + count, sizeof *pool->slab_events, &events));
    pool->slab_events = events;
    for (size_t i = 0; i < pool->slab_count; i++) {
        for (size_t k = 0; k < r->mapped[i].count; k++) {
            const view_range *range = &r->mapped[i].all[k];
            pool->slab_events[pool->slab_event_count++] = (bp_snapshot_slab_event){
                .gained = 1, .slab = (uint32_t)i, .offset = range->begin, .bytes = range->end - range->begin};
        }
    }
    pool->mapped_at_start = at_start;
    for (size_t i = 0; i < trace->event_count; i++) {
        const bp_trace_event *e = &trace->events[i];
        if (is_mapping(e) && e->bytes > 0)
            pool->slab_events[pool->slab_event_count++] =
                slab_event_of(pool, e->address, e->bytes, is_gain(e), r->times_ns[i]);
    }
    return BP_OK;
}

/* ---- devices ----------------------------------------------------------------------------------------------------- */

static bp_status make_steps(reader *r)
{
    void *steps;
    BP_TRY(new_array(r->steps.count, sizeof *r->device->steps_ns, &steps));
    r->device->steps_ns = steps;
    for (size_t i = 0; i < r->steps.count && r->steps.source != BP_STEPS_WHOLE; i++)
        r->device->steps_ns[r->device->step_count++] = r->times_ns[r->steps.steps[i].begin];
    return BP_OK;
}

static bp_status make_device(reader *r)
{
    const bp_trace *trace = r->trace;
    snprintf(r->device->name, sizeof r->device->name, "cuda:%u", trace->device);
    *r->pool =
        (bp_snapshot_pool){.name = r->device->name, .allocator = "", .fingerprint = "", .device = r->device->name};
    BP_TRY(make_times(r));
    BP_TRY(find_allocations(r));
    BP_TRY(make_roles(r));
    BP_TRY(make_requests(r));
    BP_TRY(make_events(r));
    BP_TRY(make_steps(r));
    if (!has_segments(r))
        return BP_OK;
    BP_TRY(make_slabs(r));
    return make_slab_events(r);
}

/* Widens the times of the recording, if `*any`, to those of the device. */
static void widen_times(const reader *r, bp_snapshot_info *info, bool *any)
{
    if (r->trace->event_count == 0)
        return;
    uint64_t first = r->times_ns[0], last = r->times_ns[r->trace->event_count - 1];
    info->first_time_ns = *any && info->first_time_ns < first ? info->first_time_ns : first;
    info->last_time_ns = *any && info->last_time_ns > last ? info->last_time_ns : last;
    info->counts_events = r->counts_events && (!*any || info->counts_events);
    *any = true;
}

static bp_status read_device(const bp_trace *trace, view_recording *recording, bool *any)
{
    size_t number = recording->info.pool_count++;
    bp_snapshot_pool *pool = &recording->info.pools[number];
    reader r = {.trace = trace, .device = &recording->devices[number], .pool = pool};
    bp_status status = make_device(&r);
    if (status == BP_OK)
        widen_times(&r, &recording->info, any);
    free(r.times_ns);
    for (size_t i = 0; r.mapped != NULL && i < pool->slab_count; i++)
        view_ranges_finish(&r.mapped[i]);
    free(r.mapped);
    free(r.ends);
    bp_attribution_finish(&r.attribution);
    bp_steps_finish(&r.steps);
    bp_stack_places_finish(&r.places);
    bp_allocations_finish(&r.allocations);
    return status;
}

bp_status view_recording_init(const bp_trace_file *file, view_recording *recording)
{
    const bp_trace_file_info *traces = bp_trace_file_get_info(file);
    void *pools, *devices;
    bool any = false;
    *recording = (view_recording){.info = {.version = "", .label = "", .coordinates = ""}};
    bp_snapshot_info *info = &recording->info;
    BP_TRY(new_array(traces->trace_count, sizeof *info->pools, &pools));
    info->pools = pools;
    BP_TRY(new_array(traces->trace_count, sizeof *recording->devices, &devices));
    recording->devices = devices;
    for (size_t i = 0; i < traces->trace_count; i++)
        BP_TRY(read_device(&traces->traces[i], recording, &any));
    return BP_OK;
}

void view_recording_finish(view_recording *recording)
{
    for (size_t i = 0; i < recording->info.pool_count; i++) {
        bp_snapshot_pool *pool = &recording->info.pools[i];
        view_device *device = &recording->devices[i];
        free(pool->roles);
        free(pool->requests);
        free(pool->live);
        free(pool->events);
        free(pool->slabs);
        free(pool->slab_events);
        for (size_t k = 0; device->modules != NULL && k < device->stack_count; k++)
            free(device->modules[k]);
        free(device->modules);
        free(device->steps_ns);
    }
    free(recording->devices);
    free(recording->info.pools);
    *recording = (view_recording){0};
}
