/* The pickle that docs/snapshots.md describes: pools as this library shows them, and the half that PyTorch's memory viewer reads. */
#include "profile/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "profile/play.h"

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static void write_roles(bp_output *o, uint32_t roles)
{
    const char *pieces[2 * BP_ROLE_COUNT];
    size_t count = 0;
    for (int role = 0; role < BP_ROLE_COUNT; role++) {
        if (!(roles & BP_ROLE_BIT(role)))
            continue;
        if (count > 0)
            pieces[count++] = "+";
        pieces[count++] = bp_role_name((bp_role)role);
    }
    bp_pickle_text(o, pieces, count);
}

static void write_plan(bp_output *o, const bp_plan_note *plan)
{
    bp_pickle_list list;
    bp_pickle_key(o, "plan");
    if (plan->roles == NULL) {
        bp_pickle_none(o);
        return;
    }
    bp_pickle_begin_dict(o);
    bp_pickle_member_number(o, "bytes", plan->bytes);
    bp_pickle_member_number(o, "lower_bound_bytes", plan->lower_bound_bytes);
    bp_pickle_member_bool(o, "optimal", plan->optimal);
    bp_pickle_key(o, "roles");
    bp_pickle_begin_list(o, &list);
    for (size_t i = 0; i < plan->role_count; i++) {
        bp_pickle_item(o, &list);
        bp_pickle_begin_dict(o);
        bp_pickle_key(o, "role");
        write_roles(o, plan->roles[i].roles);
        bp_pickle_member_number(o, "bytes", plan->roles[i].bytes);
        bp_pickle_member_number(o, "lower_bound_bytes", plan->roles[i].lower_bound_bytes);
        bp_pickle_end_dict(o);
    }
    bp_pickle_end_list(o);
    bp_pickle_end_dict(o);
}

static bp_status write_statistics(bp_output *o, const bp_pool *pool)
{
    bp_pool_statistics s = {.size = sizeof s};
    BP_TRY(bp_pool_statistics_get(pool, &s));
    const struct {
        const char *name;
        uint64_t value;
    } numbers[] = {{"slab_bytes", s.slab_bytes},
                   {"requests", s.requests},
                   {"acquires", s.acquires},
                   {"repeated", s.repeated},
                   {"releases", s.releases},
                   {"cancelled", s.cancelled},
                   {"busy", s.busy},
                   {"refused", s.refused},
                   {"records", s.records},
                   {"elided", s.elided},
                   {"waits", s.waits},
                   {"deviations", s.deviations},
                   {"overflows", s.overflows},
                   {"dynamic", s.dynamic},
                   {"live_requests", s.live_requests},
                   {"live_bytes", s.live_bytes},
                   {"peak_live_bytes", s.peak_live_bytes}};
    bp_pickle_key(o, "statistics");
    bp_pickle_begin_dict(o);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        bp_pickle_member_number(o, numbers[i].name, numbers[i].value);
    bp_pickle_end_dict(o);
    return BP_OK;
}

static void snapshot_pools_write_slabs(bp_output *o, const bp_scene_pool *s)
{
    bp_pickle_list list;
    bp_pickle_key(o, "slabs");
    bp_pickle_begin_list(o, &list);
    for (size_t i = 0; i < s->pool->slabs.count; i++) {
        const bp_pool_slab *slab = &s->pool->slab_infos[i];
        bp_pickle_item(o, &list);
        bp_pickle_begin_dict(o);
        bp_pickle_member_number(o, "address", (uint64_t)(uintptr_t)s->pool->slabs.slabs[i].address);
        bp_pickle_member_number(o, "bytes", s->pool->slabs.slabs[i].bytes);
        bp_pickle_member_number(o, "planned_bytes", slab->planned_bytes);
        bp_pickle_member_string(o, "group", slab->group);
        bp_pickle_member_bool(o, "resident", s->of->resident[i]);
        bp_pickle_end_dict(o);
    }
    bp_pickle_end_list(o);
}

static bp_status write_requests(bp_output *o, const bp_scene_pool *s)
{
    static const char *const placements[] = {[BP_PLACE_NONE] = "none",
                                             [BP_PLACE_PLANNED] = "planned",
                                             [BP_PLACE_PERSISTENT] = "persistent",
                                             [BP_PLACE_DYNAMIC] = "dynamic"};
    bp_pickle_list list;
    bp_pickle_key(o, "requests");
    bp_pickle_begin_list(o, &list);
    for (uint32_t id = 0; id < s->count; id++) {
        const bp_plan_request *r = &s->pool->requests[id];
        bp_request_name name;
        bp_scene_name(s->pool, id, &name);
        bp_pickle_item(o, &list);
        bp_pickle_begin_dict(o);
        bp_pickle_member_string(o, "unit", r->unit);
        bp_pickle_member_string(o, "bucket", name.bucket);
        bp_pickle_member_number(o, "ordinal", r->ordinal);
        bp_pickle_member_string(o, "role", bp_role_name((bp_role)r->role));
        bp_pickle_member_string(o, "dtype", bp_dtype_name(r->dtype));
        bp_pickle_member_number(o, "bytes", r->bytes);
        bp_pickle_member_string(o, "placement", placements[r->placement]);
        bp_pickle_member_number(o, "references", bp_pool_references(s->pool, id));
        bp_pickle_end_dict(o);
    }
    bp_pickle_end_list(o);
    return BP_OK;
}

/* ---- what happened -------------------------------------------------------------------------------------------------- */

static bp_status write_streams(bp_output *o, const bp_scene_pool *s)
{
    void *memory;
    bp_pickle_list list;
    const bp_device *device = s->pool->device;
    uint32_t count = atomic_load_explicit((atomic_uint *)&device->stream_numbers, memory_order_relaxed);
    BP_TRY(bp_new_array(count, sizeof(bool), &memory));
    bool *named = memory;
    for (uint32_t id = 0; id < s->count; id++) {
        if (s->begin[id].live && s->begin[id].stream < count)
            named[s->begin[id].stream] = true;
    }
    for (uint64_t n = s->first; n < s->next; n++) {
        uint32_t stream = bp_recorder_read(s->of->recorder, n).stream;
        if (stream < count)
            named[stream] = true;
    }
    bp_pickle_key(o, "streams");
    bp_pickle_begin_list(o, &list);
    for (const bp_stream *stream = atomic_load_explicit((_Atomic(bp_stream *) *)&device->streams, memory_order_acquire);
         stream != NULL; stream = stream->next) {
        if (stream->number >= count || !named[stream->number])
            continue;
        bp_pickle_item(o, &list);
        bp_pickle_begin_dict(o);
        bp_pickle_member_number(o, "number", stream->number);
        bp_pickle_member_string(o, "name", stream->name);
        bp_pickle_end_dict(o);
    }
    bp_pickle_end_list(o);
    free(named);
    return BP_OK;
}

static void write_live(bp_output *o, const bp_scene_pool *s)
{
    bp_pickle_list list;
    bp_pickle_key(o, "live");
    bp_pickle_begin_list(o, &list);
    for (uint32_t id = 0; id < s->count; id++) {
        if (!s->begin[id].live)
            continue;
        bp_pickle_item(o, &list);
        bp_pickle_begin_dict(o);
        bp_pickle_member_number(o, "id", id);
        bp_pickle_member_number(o, "address", (uint64_t)(uintptr_t)s->begin[id].address);
        bp_pickle_member_number(o, "stream", s->begin[id].stream);
        bp_pickle_member_number(o, "step", s->begin[id].step);
        bp_pickle_end_dict(o);
    }
    bp_pickle_end_list(o);
}

static void write_numbers(bp_output *o, const uint64_t *numbers, size_t count)
{
    bp_pickle_list list;
    bp_pickle_begin_list(o, &list);
    for (size_t i = 0; i < count; i++) {
        bp_pickle_item(o, &list);
        bp_pickle_number(o, numbers[i]);
    }
    bp_pickle_end_list(o);
}

static void write_events(bp_output *o, const bp_scene_pool *s)
{
    bp_pickle_list list;
    bp_pickle_key(o, "events");
    bp_pickle_begin_list(o, &list);
    for (uint64_t n = s->first; n < s->next; n++) {
        const bp_pool_event e = bp_recorder_read(s->of->recorder, n);
        const uint64_t numbers[] = {e.kind, e.id, e.stream, e.step, e.time_ns, (uint64_t)(uintptr_t)e.address};
        bp_pickle_item(o, &list);
        write_numbers(o, numbers, 6);
    }
    bp_pickle_end_list(o);
    bp_pickle_key(o, "slab_events");
    bp_pickle_begin_list(o, &list);
    for (uint32_t i = s->first_slab_event; i < s->of->slab_event_count; i++) {
        const bp_slab_event *e = &s->of->slab_events[i];
        const uint64_t numbers[] = {e->gained, e->slab, e->time_ns};
        bp_pickle_item(o, &list);
        write_numbers(o, numbers, 3);
    }
    bp_pickle_end_list(o);
    bp_pickle_member_number(o, "lost_events", s->first);
}

static bp_status write_pool(bp_output *o, const bp_scene_pool *s)
{
    bp_pickle_begin_dict(o);
    bp_pickle_member_string(o, "name", s->pool->info.name);
    bp_pickle_member_string(o, "allocator", bp_policy_name(s->pool->info.policy));
    bp_pickle_member_string(o, "fingerprint", s->pool->fingerprint);
    bp_pickle_member_string(o, "device", bp_device_name(s->pool->device));
    write_plan(o, &s->of->plan);
    BP_TRY(write_statistics(o, s->pool));
    snapshot_pools_write_slabs(o, s);
    BP_TRY(write_requests(o, s));
    BP_TRY(write_streams(o, s));
    write_live(o, s);
    write_events(o, s);
    bp_pickle_end_dict(o);
    return BP_OK;
}

static void write_recording(bp_output *o, const bp_scene *scene)
{
    const bp_profile *p = scene->profile;
    bp_pickle_member_string(o, "format", "bucketpool.snapshot/1");
    bp_pickle_member_string(o, "version", bp_version());
    bp_pickle_member_number(o, "rank", p->rank);
    bp_pickle_member_number(o, "ranks", p->ranks);
    bp_pickle_member_string(o, "coordinates", p->coordinates);
    bp_pickle_key(o, "step");
    if (p->recorded && !p->by_hand)
        bp_pickle_number(o, p->step);
    else
        bp_pickle_none(o);
    bp_pickle_member_string(o, "label", p->by_hand ? p->label : "");
    bp_pickle_member_number(o, "first_time_ns", p->first_ns);
    bp_pickle_member_number(o, "last_time_ns", scene->last_ns);
    bp_pickle_key(o, "realtime_offset_ns");
    bp_pickle_signed(o, p->realtime_offset_ns);
    bp_pickle_member_bool(o, "gap", scene->has_gap);
}

/* The members of "bucketpool". */
static bp_status bp_snapshot_pools(const bp_scene *scene, bp_output *output)
{
    bp_pickle_list list;
    bp_pickle_begin_dict(output);
    write_recording(output, scene);
    bp_pickle_key(output, "pools");
    bp_pickle_begin_list(output, &list);
    for (size_t i = 0; i < scene->count; i++) {
        bp_pickle_item(output, &list);
        BP_TRY(write_pool(output, &scene->pools[i]));
    }
    bp_pickle_end_list(output);
    bp_pickle_end_dict(output);
    return BP_OK;
}

/* ---- the memory viewer ------------------------------------------------------------------------------------------- */

/* What is the pool's, not a request's, is of no stream: 0. */
static uint64_t viewer_stream(uint32_t number)
{
    return (uint64_t)number + 1;
}

/* ---- frames --------------------------------------------------------------------------------------------------------- */

static void write_frame(bp_output *o, const char *const *name, size_t pieces, const char *file, uint64_t line)
{
    bp_pickle_list list;
    bp_pickle_key(o, "frames");
    bp_pickle_begin_list(o, &list);
    bp_pickle_item(o, &list);
    bp_pickle_begin_dict(o);
    bp_pickle_key(o, "name");
    bp_pickle_text(o, name, pieces);
    bp_pickle_member_string(o, "filename", file);
    bp_pickle_member_number(o, "line", line);
    bp_pickle_end_dict(o);
    bp_pickle_end_list(o);
}

static void write_request_frame(bp_output *o, const bp_pool *pool, uint32_t id)
{
    bp_request_name name;
    bp_scene_name(pool, id, &name);
    write_frame(o, name.pieces, BP_NAME_PIECES, name.unit, pool->requests[id].ordinal);
}

static void write_slab_frame(bp_output *o, const bp_pool *pool, uint32_t slab)
{
    char number[32];
    snprintf(number, sizeof number, "slab %u (", slab);
    const char *const pieces[] = {number, pool->slab_infos[slab].group, ")"};
    write_frame(o, pieces, 3, pool->info.name, slab);
}

static void write_no_frames(bp_output *o)
{
    bp_pickle_list list;
    bp_pickle_key(o, "frames");
    bp_pickle_begin_list(o, &list);
    bp_pickle_end_list(o);
}

/* ---- segments ------------------------------------------------------------------------------------------------------- */

static uint64_t snapshot_number_of(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

/* A range of memory as it is now, and the live blocks in it. */
typedef struct range {
    const bp_scene_pool *scene;
    uint64_t address, bytes, stream;
    uint32_t slab; /* BP_NONE: of a dynamic request */
} range;

typedef struct held {
    uint64_t address, bytes;
    uint32_t id;
} held;

static int compare_held(const void *a, const void *b)
{
    const held *left = a, *right = b;
    return left->address < right->address ? -1 : left->address > right->address;
}

static void write_block(bp_output *o, uint64_t address, uint64_t bytes, const bp_pool *pool, const held *holder)
{
    bp_pickle_begin_dict(o);
    bp_pickle_member_number(o, "address", address);
    bp_pickle_member_number(o, "size", bytes);
    bp_pickle_member_number(o, "requested_size", holder != NULL ? bytes : 0);
    bp_pickle_member_string(o, "state", holder != NULL ? "active_allocated" : "inactive");
    if (holder != NULL)
        write_request_frame(o, pool, holder->id);
    else
        write_no_frames(o);
    bp_pickle_end_dict(o);
}

/* Blocks and what is free between them. */
static void write_blocks(bp_output *o, const range *r, const held *blocks, size_t count)
{
    bp_pickle_list list;
    uint64_t at = r->address, end = r->address + r->bytes;
    bp_pickle_key(o, "blocks");
    bp_pickle_begin_list(o, &list);
    for (size_t i = 0; i <= count; i++) {
        uint64_t next = i < count ? blocks[i].address : end;
        if (next > at) {
            bp_pickle_item(o, &list);
            write_block(o, at, next - at, r->scene->pool, NULL);
        }
        if (i < count) {
            bp_pickle_item(o, &list);
            write_block(o, next, blocks[i].bytes, r->scene->pool, &blocks[i]);
            at = next + blocks[i].bytes;
        }
    }
    bp_pickle_end_list(o);
}

static void write_segment(bp_output *o, const range *r, const held *blocks, size_t count)
{
    bp_pickle_list list;
    uint64_t live = 0;
    for (size_t i = 0; i < count; i++)
        live += blocks[i].bytes;
    bp_pickle_begin_dict(o);
    bp_pickle_member_number(o, "device", r->scene->of->device);
    bp_pickle_member_number(o, "address", r->address);
    bp_pickle_member_number(o, "total_size", r->bytes);
    bp_pickle_member_number(o, "allocated_size", live);
    bp_pickle_member_number(o, "active_size", live);
    bp_pickle_member_number(o, "requested_size", live);
    bp_pickle_member_number(o, "stream", r->stream);
    bp_pickle_member_string(o, "segment_type", "large");
    bp_pickle_key(o, "segment_pool_id");
    bp_pickle_begin_list(o, &list);
    for (int i = 0; i < 2; i++) { /* none of PyTorch's private pools */
        bp_pickle_item(o, &list);
        bp_pickle_number(o, 0);
    }
    bp_pickle_end_list(o);
    bp_pickle_member_bool(o, "is_expandable", false);
    if (r->slab != BP_NONE)
        write_slab_frame(o, r->scene->pool, r->slab);
    else
        write_request_frame(o, r->scene->pool, blocks[0].id);
    write_blocks(o, r, blocks, count);
    bp_pickle_end_dict(o);
}

/* What is live in slabs, sorted into `blocks`. */
static size_t snapshot_collect(const bp_scene_pool *s, held *blocks)
{
    size_t count = 0;
    for (uint32_t id = 0; id < s->count; id++) {
        const bp_entry *r = &s->pool->entries[id];
        if (s->now[id].live && r->bytes > 0 && r->kind != BP_KIND_DYNAMIC)
            blocks[count++] = (held){snapshot_number_of(s->now[id].address), r->bytes, id};
    }
    qsort(blocks, count, sizeof *blocks, compare_held);
    return count;
}

static void snapshot_write_slabs(bp_output *o, bp_pickle_list *list, const bp_scene_pool *s, const held *blocks,
                                 size_t count)
{
    for (uint32_t i = 0; i < s->pool->slabs.count; i++) {
        const bp_slab *slab = &s->pool->slabs.slabs[i];
        const range r = {.scene = s, .address = snapshot_number_of(slab->address), .bytes = slab->bytes, .slab = i};
        size_t first = 0, end;
        while (first < count && blocks[first].address < r.address)
            first++;
        for (end = first; end < count && blocks[end].address - r.address < r.bytes;)
            end++;
        if (!s->of->resident[i])
            continue;
        bp_pickle_item(o, list);
        write_segment(o, &r, blocks + first, end - first);
    }
}

static void write_dynamic(bp_output *o, bp_pickle_list *list, const bp_scene_pool *s)
{
    for (uint32_t id = 0; id < s->count; id++) {
        const bp_entry *bound = &s->pool->entries[id];
        if (!s->now[id].live || bound->kind != BP_KIND_DYNAMIC || bound->bytes == 0)
            continue;
        const held block = {snapshot_number_of(s->now[id].address), bound->bytes, id};
        const range r = {.scene = s,
                         .address = block.address,
                         .bytes = block.bytes,
                         .stream = viewer_stream(s->now[id].stream),
                         .slab = BP_NONE};
        bp_pickle_item(o, list);
        write_segment(o, &r, &block, 1);
    }
}

static bp_status write_segments(const bp_scene *scene, bp_output *o)
{
    bp_pickle_list list;
    bp_pickle_key(o, "segments");
    bp_pickle_begin_list(o, &list);
    for (size_t i = 0; i < scene->count; i++) {
        void *memory;
        const bp_scene_pool *s = &scene->pools[i];
        BP_TRY(bp_new_array(s->count, sizeof(held), &memory));
        held *blocks = memory;
        snapshot_write_slabs(o, &list, s, blocks, snapshot_collect(s, blocks));
        write_dynamic(o, &list, s);
        free(blocks);
    }
    bp_pickle_end_list(o);
    return BP_OK;
}

/* ---- traces --------------------------------------------------------------------------------------------------------- */

typedef struct tracing {
    const bp_scene *scene;
    bp_output *output;
    bp_pickle_list list;
} tracing;

/* Up to the frames. */
static void begin_entry(tracing *t, const char *action, const void *address, uint64_t bytes, uint64_t stream,
                        uint64_t time_ns)
{
    bp_output *o = t->output;
    bp_pickle_item(o, &t->list);
    bp_pickle_begin_dict(o);
    bp_pickle_member_string(o, "action", action);
    bp_pickle_member_number(o, "addr", snapshot_number_of(address));
    bp_pickle_member_number(o, "size", bytes);
    bp_pickle_member_number(o, "stream", stream);
    bp_pickle_key(o, "time_us");
    bp_pickle_signed(o, ((int64_t)time_ns + t->scene->realtime_offset_ns) / 1000);
}

static void trace_slab(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before, uint64_t time_ns)
{
    tracing *t = user;
    (void)from_before;
    const bp_slab *s = &pool->slabs.slabs[slab];
    begin_entry(t, gained ? "segment_map" : "segment_unmap", s->address, s->bytes, 0, time_ns);
    write_slab_frame(t->output, pool, slab);
    bp_pickle_end_dict(t->output);
}

static void trace_block(void *user, const bp_block *block, bool begins, uint64_t time_ns)
{
    static const char *const actions[2][3] = {{"free_requested", "free_completed", "segment_free"},
                                              {"segment_alloc", "alloc", NULL}};
    tracing *t = user;
    const char *const *action = actions[begins];
    for (int i = begins && !block->is_dynamic ? 1 : 0; i < (begins || !block->is_dynamic ? 2 : 3); i++) {
        begin_entry(t, action[i], block->address, block->bytes, viewer_stream(block->stream), time_ns);
        write_request_frame(t->output, block->pool, block->id);
        bp_pickle_end_dict(t->output);
    }
}

static bp_status write_traces(const bp_scene *scene, bp_output *o)
{
    bp_pickle_list devices;
    bp_pickle_key(o, "device_traces");
    bp_pickle_begin_list(o, &devices);
    for (uint32_t device = 0; device < scene->devices; device++) {
        tracing t = {.scene = scene, .output = o};
        const bp_audience audience = {.user = &t, .slab = trace_slab, .block = trace_block};
        bp_pickle_item(o, &devices);
        bp_pickle_begin_list(o, &t.list);
        BP_TRY(bp_play(scene, device, &audience));
        bp_pickle_end_list(o);
    }
    bp_pickle_end_list(o);
    return BP_OK;
}

bp_status bp_snapshot_write(const bp_scene *scene, bp_output *output)
{
    bp_pickle_begin(output);
    bp_pickle_begin_dict(output);
    BP_TRY(write_segments(scene, output));
    BP_TRY(write_traces(scene, output));
    bp_pickle_key(output, "allocator_settings");
    bp_pickle_begin_dict(output);
    bp_pickle_end_dict(output);
    bp_pickle_key(output, "bucketpool");
    BP_TRY(bp_snapshot_pools(scene, output));
    bp_pickle_end_dict(output);
    bp_pickle_end(output);
    return BP_OK;
}
