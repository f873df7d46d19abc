#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "profile/snapshot.h"

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

bp_status bp_snapshot_pools(const bp_scene *scene, bp_output *output)
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
