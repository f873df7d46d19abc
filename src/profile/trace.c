#include "profile/trace.h"

#include <inttypes.h>
#include <stdlib.h>

#include "core/fail.h"

/* Times are told from a moment that is the same for everybody for 52 days (2^52 ns): readers take them for doubles, which have room for that, but not
 * for the nanoseconds of all times since 1970. */
#define BASE_NS (UINT64_C(1) << 52)

/* The hold that a request has, or had before. */
typedef struct slice {
    bp_block block;
    bp_track track;
    uint64_t begin_ns, end_ns;
    bool open;
} slice;

typedef struct writer {
    const bp_scene *scene;
    bp_output *output;
    bp_tracks tracks;
    slice **slices; /* by pool, by id */
    slice *from_before;
    size_t from_before_count;
    uint64_t base_ns, live[BP_ROLE_COUNT], slab_bytes;
    bool is_first;
    bp_status status;
} writer;

/* ---- events --------------------------------------------------------------------------------------------------------- */

static uint64_t realtime(const writer *w, uint64_t time_ns)
{
    return (uint64_t)((int64_t)time_ns + w->scene->realtime_offset_ns);
}

/* Up to the name. */
static void begin_event(writer *w, const char *phase)
{
    bp_trace_print(w->output, "%s\n{\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"name\":", w->is_first ? "" : ",", phase,
                  w->scene->profile->rank);
    w->is_first = false;
}

static void write_time(const writer *w, uint64_t time_ns)
{
    uint64_t ns = realtime(w, time_ns) - w->base_ns;
    bp_trace_print(w->output, ",\"ts\":%" PRIu64 ".%03" PRIu64, ns / 1000, ns % 1000);
}

static void write_counter(writer *w, const char *first, const char *second, uint64_t value, uint64_t time_ns)
{
    const char *const name[] = {first, second};
    begin_event(w, "C");
    bp_trace_text(w->output, name, 2);
    write_time(w, time_ns);
    bp_trace_print(w->output, ",\"args\":{\"bytes\":%" PRIu64 "}}", value);
}

static void write_slice(writer *w, const slice *s)
{
    bp_request_name name;
    const bp_block *b = &s->block;
    const bp_plan_request *request = &b->pool->requests[b->id];
    uint64_t ns = s->end_ns - s->begin_ns;
    bp_scene_name(b->pool, b->id, &name);
    begin_event(w, "X");
    bp_trace_text(w->output, name.pieces, BP_NAME_PIECES);
    bp_trace_print(w->output, ",\"tid\":%" PRIu32, bp_track_number(s->track));
    write_time(w, s->begin_ns);
    bp_trace_print(w->output, ",\"dur\":%" PRIu64 ".%03" PRIu64 ",\"args\":{\"pool\":", ns / 1000, ns % 1000);
    bp_trace_string(w->output, b->pool->info.name);
    bp_trace_print(w->output, ",\"unit\":");
    bp_trace_string(w->output, name.unit);
    bp_trace_print(w->output, ",\"bucket\":");
    bp_trace_string(w->output, name.bucket);
    bp_trace_print(
        w->output,
        ",\"role\":\"%s\",\"dtype\":\"%s\",\"bytes\":%" PRIu64 ",\"address\":\"0x%" PRIxPTR "\",\"step\":%" PRIu64 "}}",
        bp_role_name((bp_role)request->role), bp_dtype_name(request->dtype), b->bytes, (uintptr_t)b->address, b->step);
}

/* ---- the story ------------------------------------------------------------------------------------------------------ */

static size_t index_of(const writer *w, const bp_pool *pool)
{
    size_t i = 0;
    while (w->scene->pools[i].pool != pool)
        i++;
    return i;
}

static void tell_slab(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before, uint64_t time_ns)
{
    writer *w = user;
    char number[32];
    w->slab_bytes += gained ? pool->slabs.slabs[slab].bytes : -pool->slabs.slabs[slab].bytes;
    write_counter(w, "slab bytes", "", w->slab_bytes, time_ns);
    if (from_before)
        return;
    snprintf(number, sizeof number, "slab %" PRIu32 " (", slab);
    const char *const name[] = {number, pool->slab_infos[slab].group, ") of ", pool->info.name,
                                gained ? " gets memory" : " loses its memory"};
    begin_event(w, "i");
    bp_trace_text(w->output, name, 5);
    write_time(w, time_ns);
    bp_trace_print(w->output, ",\"s\":\"p\",\"args\":{\"slab\":%" PRIu32 ",\"bytes\":%" PRIu64 "}}", slab,
                  pool->slabs.slabs[slab].bytes);
}

static void begin_slice(writer *w, slice *s, const bp_block *block, uint64_t time_ns)
{
    uint32_t device = w->scene->pools[index_of(w, block->pool)].of->device;
    *s = (slice){.block = *block, .begin_ns = time_ns};
    bp_status status = bp_tracks_take(&w->tracks, device, block->stream, block->from_before, &s->track);
    w->status = status != BP_OK ? status : w->status;
    s->open = status == BP_OK;
}

/* Of slices that lie within each other the longest comes first: those from before wait until the end. */
static void end_slice(writer *w, slice *s, uint64_t time_ns)
{
    if (!s->open)
        return;
    s->open = false;
    s->end_ns = time_ns;
    bp_tracks_give_back(&w->tracks, s->track);
    if (s->block.from_before)
        w->from_before[w->from_before_count++] = *s;
    else
        write_slice(w, s);
}

static void tell_block(void *user, const bp_block *block, bool begins, uint64_t time_ns)
{
    writer *w = user;
    slice *s = &w->slices[index_of(w, block->pool)][block->id];
    uint32_t role = block->pool->requests[block->id].role;
    w->live[role] += begins ? block->bytes : -block->bytes;
    write_counter(w, "live bytes: ", bp_role_name((bp_role)role), w->live[role], time_ns);
    if (begins)
        begin_slice(w, s, block, time_ns);
    else
        end_slice(w, s, time_ns);
}

static void end_open_slices(writer *w)
{
    for (size_t i = 0; i < w->scene->count; i++) {
        for (uint32_t id = 0; id < w->scene->pools[i].count; id++)
            end_slice(w, &w->slices[i][id], w->scene->now_ns);
    }
    for (size_t i = w->from_before_count; i-- > 0;) /* they have ended in order */
        write_slice(w, &w->from_before[i]);
}

/* ---- names ---------------------------------------------------------------------------------------------------------- */

static void write_process(writer *w)
{
    char number[24];
    const char *coordinates = w->scene->profile->coordinates;
    snprintf(number, sizeof number, "rank %" PRIu32, w->scene->profile->rank);
    const char *const name[] = {number, coordinates[0] != '\0' ? " " : "", coordinates};
    begin_event(w, "M");
    bp_trace_print(w->output, "\"process_name\",\"args\":{\"name\":");
    bp_trace_text(w->output, name, 3);
    bp_trace_print(w->output, "}}");
    begin_event(w, "M");
    bp_trace_print(w->output, "\"process_sort_index\",\"args\":{\"sort_index\":%" PRIu32 "}}", w->scene->profile->rank);
}

static const char *stream_name(const writer *w, const bp_stream_tracks *tracks)
{
    size_t pool = 0;
    while (w->scene->pools[pool].of->device != tracks->device)
        pool++;
    const bp_device *device = w->scene->pools[pool].pool->device;
    for (const bp_stream *s = atomic_load_explicit((_Atomic(bp_stream *) *)&device->streams, memory_order_acquire);
         s != NULL; s = s->next) {
        if ((s->number & 0xffffff) == tracks->stream)
            return s->name;
    }
    return "unknown stream";
}

static void write_track(writer *w, bp_track track)
{
    char number[24] = "";
    if (track.track > 1)
        snprintf(number, sizeof number, " (%" PRIu32 ")", track.track);
    const char *const name[] = {stream_name(w, &w->tracks.streams[track.stream]), number,
                                track.track == 0 ? ", from before" : ""};
    begin_event(w, "M");
    bp_trace_print(w->output, "\"thread_name\",\"tid\":%" PRIu32 ",\"args\":{\"name\":", bp_track_number(track));
    bp_trace_text(w->output, name, 3);
    bp_trace_print(w->output, "}}");
    begin_event(w, "M");
    bp_trace_print(w->output, "\"thread_sort_index\",\"tid\":%" PRIu32 ",\"args\":{\"sort_index\":%" PRIu32 "}}",
                  bp_track_number(track), bp_track_number(track));
}

static void write_tracks(writer *w)
{
    for (uint32_t i = 0; i < w->tracks.count; i++) {
        const bp_stream_tracks *s = &w->tracks.streams[i];
        for (uint32_t track = s->has_from_before ? 0 : 1; track <= s->count; track++)
            write_track(w, (bp_track){i, track});
    }
}

/* ---- the file ------------------------------------------------------------------------------------------------------- */

static void begin_file(writer *w)
{
    const bp_profile *p = w->scene->profile;
    uint64_t lost = 0;
    for (size_t i = 0; i < w->scene->count; i++)
        lost += w->scene->pools[i].first;
    bp_trace_print(w->output, "{\"displayTimeUnit\":\"ns\",\"baseTimeNanoseconds\":%" PRIu64, w->base_ns);
    bp_trace_print(w->output, ",\"otherData\":{\"format\":\"bucketpool.trace/1\",\"version\":\"%s\",\"rank\":%" PRIu32,
                  bp_version(), p->rank);
    bp_trace_print(w->output, ",\"ranks\":%" PRIu32 ",\"coordinates\":\"%s\",\"label\":\"%s\",\"lost_events\":%" PRIu64,
                  p->ranks, p->coordinates, p->by_hand ? p->label : "", lost);
    if (p->recorded && !p->by_hand)
        bp_trace_print(w->output, ",\"step\":%" PRIu64, p->step);
    bp_trace_print(w->output, "},\"traceEvents\":[");
    write_process(w);
}

static bp_status init(const bp_scene *scene, writer *w)
{
    void *memory;
    size_t requests = 0;
    BP_TRY(bp_new_array(scene->count, sizeof *w->slices, &memory));
    w->slices = memory;
    for (size_t i = 0; i < scene->count; i++) {
        BP_TRY(bp_new_array(scene->pools[i].count, sizeof **w->slices, &memory));
        w->slices[i] = memory;
        requests += scene->pools[i].count;
    }
    BP_TRY(bp_new_array(requests, sizeof *w->from_before, &memory));
    w->from_before = memory;
    return BP_OK;
}

static void finish(writer *w)
{
    for (size_t i = 0; w->slices != NULL && i < w->scene->count; i++)
        free(w->slices[i]);
    free(w->slices);
    free(w->from_before);
    bp_tracks_finish(&w->tracks);
}

bp_status bp_trace_write(const bp_scene *scene, bp_output *output)
{
    writer w = {.scene = scene, .output = output, .is_first = true};
    const bp_audience audience = {.user = &w, .slab = tell_slab, .block = tell_block};
    w.base_ns = realtime(&w, scene->profile->first_ns) / BASE_NS * BASE_NS;
    bp_status status = init(scene, &w);
    if (status == BP_OK) {
        begin_file(&w);
        status = bp_play(scene, BP_ALL_DEVICES, &audience);
    }
    if (status == BP_OK)
        status = w.status;
    if (status == BP_OK) {
        end_open_slices(&w);
        write_tracks(&w);
        bp_trace_print(output, "\n]}\n");
    }
    finish(&w);
    return status;
}
