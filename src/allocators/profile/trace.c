/* SPDX-License-Identifier: Apache-2.0 */
/* Writes Chrome's trace format, which Perfetto reads: docs/reference/snapshot_files.md. */
#include <bucketpool/core/fail.h>

#include <inttypes.h>
#include <stdlib.h>

#include "allocators/profile/profile.h"
#include "core/json_writer.h"

/* The tracks of one stream of one device. */
typedef struct bp_stream_tracks {
    uint32_t device, stream;
    bool has_from_before;
    uint32_t count; /* number of the other tracks, which start at 1 */
    bool *taken;    /* by track - 1 */
    size_t capacity;
} bp_stream_tracks;

typedef struct bp_tracks {
    bp_stream_tracks *streams;
    size_t count, capacity;
} bp_tracks;

/* The track of a slice: index of the stream, and a track; track 0 is for blocks from before the recording. */
typedef struct bp_track {
    uint32_t stream, track;
} bp_track;

/* The number of a track in the file. */
static uint32_t track_number(bp_track track)
{
    return (track.stream + 1) << 20 | track.track;
}

/* Takes the lowest free track of the stream until its slice ends. Errors: BP_ERR_NO_HOST_MEMORY. */
static bp_status tracks_take(bp_tracks *tracks, uint32_t device, uint32_t stream, bool from_before, bp_track *track)
{
    uint32_t index = 0, free_track = 0;
    while (index < tracks->count &&
           (tracks->streams[index].device != device || tracks->streams[index].stream != stream))
        index++;
    if (index == tracks->count) {
        BP_TRY(bp_grow_array((void **)&tracks->streams, &tracks->capacity, tracks->count, sizeof *tracks->streams));
        tracks->streams[tracks->count++] = (bp_stream_tracks){.device = device, .stream = stream};
    }
    bp_stream_tracks *s = &tracks->streams[index];
    if (from_before) {
        s->has_from_before = true;
        *track = (bp_track){index, 0};
        return BP_OK;
    }
    while (free_track < s->count && s->taken[free_track])
        free_track++;
    BP_TRY(bp_grow_array((void **)&s->taken, &s->capacity, free_track, sizeof *s->taken));
    s->count += free_track == s->count;
    s->taken[free_track] = true;
    *track = (bp_track){index, free_track + 1};
    return BP_OK;
}

/* Times are relative to a multiple of 2^52 ns (52 days), which files of the same days share: readers parse them as
 * doubles, which cannot hold the nanoseconds since 1970. */
#define BASE_NS (UINT64_C(1) << 52)

/* The current or last live range of a request. */
typedef struct slice {
    bp_block block;
    bp_track track;
    uint64_t begin_ns, end_ns;
    bool open;
} slice;

typedef struct writer {
    const bp_recording *recording;
    bp_json_writer json;
    bp_tracks tracks;
    slice **slices; /* by pool, then by id */
    slice *from_before;
    size_t from_before_count;
    uint64_t base_ns, live[BP_ROLE_COUNT], slab_bytes;
    bp_status status;
} writer;

/* ---- events --------------------------------------------------------------------------------------------------------- */

static uint64_t realtime(const writer *w, uint64_t time_ns)
{
    return (uint64_t)((int64_t)time_ns + w->recording->realtime_offset_ns);
}

/* Begins the event, up to its name. */
static bp_json_writer *begin_event(writer *w, const char *phase)
{
    bp_json_writer *json = &w->json;
    bp_json_add_line(json);
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, "ph", phase);
    bp_json_add_number(json, "pid", w->recording->profile->rank);
    return json;
}

/* Ends an object or a list, and the enclosing object. */
static void end_both(bp_json_writer *json)
{
    bp_json_end(json);
    bp_json_end(json);
}

static void write_time(writer *w, uint64_t time_ns)
{
    bp_json_add_thousandths(&w->json, "ts", realtime(w, time_ns) - w->base_ns);
}

/* Begins a metadata event, up to its arguments. `track`: number of a track; 0: the event is about the process. */
static bp_json_writer *begin_metadata(writer *w, const char *name, uint32_t track)
{
    bp_json_writer *json = begin_event(w, "M");
    bp_json_add_text(json, "name", name);
    if (track != 0)
        bp_json_add_number(json, "tid", track);
    bp_json_add_object(json, "args");
    return json;
}

static void write_counter(writer *w, const char *first, const char *second, uint64_t value, uint64_t time_ns)
{
    const char *const name[] = {first, second};
    bp_json_writer *json = begin_event(w, "C");
    bp_json_add_pieces(json, "name", name, 2);
    write_time(w, time_ns);
    bp_json_add_object(json, "args");
    bp_json_add_number(json, "bytes", value);
    end_both(json);
}

static void write_slice(writer *w, const slice *s)
{
    bp_request_name name;
    char address[24];
    const bp_block *b = &s->block;
    const bp_plan_request *request = &b->pool->requests[b->id];
    bp_request_name_of(b->pool, b->id, &name);
    snprintf(address, sizeof address, "0x%" PRIxPTR, (uintptr_t)b->address);
    bp_json_writer *json = begin_event(w, "X");
    bp_json_add_pieces(json, "name", name.pieces, BP_NAME_PIECES);
    bp_json_add_number(json, "tid", track_number(s->track));
    write_time(w, s->begin_ns);
    bp_json_add_thousandths(json, "dur", s->end_ns - s->begin_ns);
    bp_json_add_object(json, "args");
    bp_json_add_text(json, "pool", b->pool->info.name);
    bp_json_add_text(json, "unit", name.unit);
    bp_json_add_text(json, "bucket", name.bucket);
    bp_json_add_text(json, "role", bp_role_name((bp_role)request->role));
    bp_json_add_text(json, "dtype", bp_dtype_name(request->dtype));
    bp_json_add_number(json, "bytes", b->bytes);
    bp_json_add_text(json, "address", address);
    bp_json_add_number(json, "step", b->step);
    end_both(json);
}

/* ---- replay observer ------------------------------------------------------------------------------------------------ */

static void observe_slab(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before,
                         uint64_t time_ns)
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
    bp_json_writer *json = begin_event(w, "i");
    bp_json_add_pieces(json, "name", name, 5);
    write_time(w, time_ns);
    bp_json_add_text(json, "s", "p");
    bp_json_add_object(json, "args");
    bp_json_add_number(json, "slab", slab);
    bp_json_add_number(json, "bytes", pool->slabs.slabs[slab].bytes);
    end_both(json);
}

/* Nested slices must be written longest first, so those from before the recording wait until the end. */
static void end_slice(writer *w, slice *s, uint64_t time_ns)
{
    if (!s->open)
        return;
    s->open = false;
    s->end_ns = time_ns;
    if (s->track.track > 0)
        w->tracks.streams[s->track.stream].taken[s->track.track - 1] = false;
    if (s->block.from_before)
        w->from_before[w->from_before_count++] = *s;
    else
        write_slice(w, s);
}

static void observe_block(void *user, const bp_block *block, bool begins, uint64_t time_ns)
{
    writer *w = user;
    size_t pool = 0;
    while (w->recording->pools[pool].pool != block->pool)
        pool++;
    slice *s = &w->slices[pool][block->id];
    uint32_t role = block->pool->requests[block->id].role;
    w->live[role] += begins ? block->bytes : -block->bytes;
    write_counter(w, "live bytes: ", bp_role_name((bp_role)role), w->live[role], time_ns);
    if (!begins) {
        end_slice(w, s, time_ns);
        return;
    }
    *s = (slice){.block = *block, .begin_ns = time_ns};
    bp_status status =
        tracks_take(&w->tracks, w->recording->pools[pool].of->device, block->stream, block->from_before, &s->track);
    w->status = status != BP_OK ? status : w->status;
    s->open = status == BP_OK;
}

static void write_track(writer *w, bp_track track)
{
    const bp_stream_tracks *tracks = &w->tracks.streams[track.stream];
    size_t pool = 0;
    while (w->recording->pools[pool].of->device != tracks->device)
        pool++;
    const bp_device *device = w->recording->pools[pool].pool->device;
    const bp_stream *s = atomic_load_explicit((_Atomic(bp_stream *) *)&device->streams, memory_order_acquire);
    while (s != NULL && (s->number & 0xffffff) != tracks->stream)
        s = s->next;
    char number[24] = "";
    if (track.track > 1)
        snprintf(number, sizeof number, " (%" PRIu32 ")", track.track);
    const char *const name[] = {s != NULL ? s->name : "unknown stream", number,
                                track.track == 0 ? ", from before" : ""};
    bp_json_writer *json = begin_metadata(w, "thread_name", track_number(track));
    bp_json_add_pieces(json, "name", name, 3);
    end_both(json);
    begin_metadata(w, "thread_sort_index", track_number(track));
    bp_json_add_number(json, "sort_index", track_number(track));
    end_both(json);
}

/* ---- file ----------------------------------------------------------------------------------------------------------- */

static void begin_file(writer *w)
{
    const bp_profile *p = w->recording->profile;
    uint64_t lost = 0;
    for (size_t i = 0; i < w->recording->count; i++)
        lost += w->recording->pools[i].first;
    bp_json_writer *json = &w->json;
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, "displayTimeUnit", "ns");
    bp_json_add_number(json, "baseTimeNanoseconds", w->base_ns);
    bp_json_add_object(json, "otherData");
    bp_json_add_text(json, "format", "bucketpool.trace/1");
    bp_json_add_text(json, "version", bp_version());
    bp_json_add_number(json, "rank", p->rank);
    bp_json_add_number(json, "ranks", p->ranks);
    bp_json_add_text(json, "coordinates", p->coordinates);
    bp_json_add_text(json, "label", p->by_hand ? p->label : "");
    bp_json_add_number(json, "lost_events", lost);
    if (p->recorded && !p->by_hand)
        bp_json_add_number(json, "step", p->step);
    bp_json_end(json);
    bp_json_add_list(json, "traceEvents");

    char number[24];
    snprintf(number, sizeof number, "rank %" PRIu32, p->rank);
    const char *const name[] = {number, p->coordinates[0] != '\0' ? " " : "", p->coordinates};
    begin_metadata(w, "process_name", 0);
    bp_json_add_pieces(json, "name", name, 3);
    end_both(json);
    begin_metadata(w, "process_sort_index", 0);
    bp_json_add_number(json, "sort_index", p->rank);
    end_both(json);
}

bp_status bp_trace_write(const bp_recording *recording, bp_output *output)
{
    writer w = {.recording = recording,
                .json = {.output = output, .layout = BP_JSON_COMPACT, .replacement = "\\ufffd"}};
    const bp_replay_observer observer = {.user = &w, .slab = observe_slab, .block = observe_block};
    w.base_ns = realtime(&w, recording->profile->first_ns) / BASE_NS * BASE_NS;
    void *memory = NULL;
    size_t requests = 0;
    bp_status status = bp_new_array(recording->count, sizeof *w.slices, &memory);
    w.slices = memory;
    for (size_t i = 0; status == BP_OK && i < recording->count; i++) {
        status = bp_new_array(recording->pools[i].count, sizeof **w.slices, &memory);
        w.slices[i] = status == BP_OK ? memory : NULL;
        requests += recording->pools[i].count;
    }
    if (status == BP_OK)
        status = bp_new_array(requests, sizeof *w.from_before, &memory);
    w.from_before = status == BP_OK ? memory : NULL;
    if (status == BP_OK) {
        begin_file(&w);
        status = bp_replay(recording, BP_ALL_DEVICES, &observer);
    }
    if (status == BP_OK)
        status = w.status;
    if (status == BP_OK) {
        for (size_t i = 0; i < recording->count; i++)
            for (uint32_t id = 0; id < recording->pools[i].count; id++)
                end_slice(&w, &w.slices[i][id], recording->now_ns);
        for (size_t i = w.from_before_count; i-- > 0;) /* in reverse order of their ends: the longest first */
            write_slice(&w, &w.from_before[i]);
        for (uint32_t i = 0; i < w.tracks.count; i++)
            for (uint32_t track = w.tracks.streams[i].has_from_before ? 0 : 1; track <= w.tracks.streams[i].count;
                 track++)
                write_track(&w, (bp_track){i, track});
        bp_json_add_line(&w.json);
        end_both(&w.json);
        status = bp_json_close(&w.json);
    }

    for (size_t i = 0; w.slices != NULL && i < recording->count; i++)
        free(w.slices[i]);
    free(w.slices);
    free(w.from_before);
    for (size_t i = 0; i < w.tracks.count; i++)
        free(w.tracks.streams[i].taken);
    free(w.tracks.streams);
    return status;
}
