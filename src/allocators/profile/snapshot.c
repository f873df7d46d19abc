/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the pickle of docs/reference/snapshot_files.md: the "bucketpool" half, and the half that PyTorch's memory
 * viewer reads. */
#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "allocators/profile/profile.h"
#include "core/text.h"

/* ---- pickles ------------------------------------------------------------------------------------------------------- */

/* Python's pickle format, protocol 2, restricted to the opcodes of PyTorch's memory viewer: no memo, tuples or
 * classes. Lists are appended in batches of at most 1000, because the viewer passes a batch as arguments of one
 * call. */

#define MAX_PER_BATCH 1000u

/* Opcodes (all are listed in PEP 307 and the module pickletools). */
enum {
    MARK = '(',
    STOP = '.',
    NONE = 'N',
    EMPTY_DICT = '}',
    SETITEMS = 'u',
    EMPTY_LIST = ']',
    APPENDS = 'e',
    BINUNICODE = 'X',
    BININT = 'J',
    BININT1 = 'K',
    BININT2 = 'M',
    LONG1 = 0x8a,
    NEWTRUE = 0x88,
    NEWFALSE = 0x89,
    PROTO = 0x80
};

/* An opcode, followed by the lowest bytes of a number, little-endian. */
static void code(bp_output *o, uint8_t opcode, uint64_t number, size_t bytes)
{
    uint8_t text[9] = {opcode};
    for (size_t i = 0; i < bytes; i++)
        text[1 + i] = (uint8_t)(number >> 8 * i);
    bp_output_add(o, text, 1 + bytes);
}

/* The members of a dictionary are between begin and end: a key, then its value. */
static void pickle_begin_dict(bp_output *output)
{
    code(output, EMPTY_DICT, MARK, 1);
}

static void pickle_end_dict(bp_output *output)
{
    code(output, SETITEMS, 0, 0);
}

/* Adds the text to `output` unless that is NULL, with U+FFFD for each byte that is not UTF-8. Returns its size in
 * bytes. */
static size_t add_text(bp_output *output, const char *const *pieces, size_t count)
{
    static const char replacement[] = "\xef\xbf\xbd";
    size_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        for (const char *at = pieces[i], *next; *at != '\0'; at = next) {
            size_t bytes = bp_character_bytes((const unsigned char *)at), added = bytes > 0 ? bytes : 3;
            next = at + (bytes > 0 ? bytes : 1);
            if (output != NULL)
                bp_output_add(output, bytes > 0 ? at : replacement, added);
            sum += added;
        }
    }
    return sum;
}

static void pickle_text(bp_output *output, const char *const *pieces, size_t count)
{
    code(output, BINUNICODE, add_text(NULL, pieces, count), 4);
    add_text(output, pieces, count);
}

static void pickle_number(bp_output *output, uint64_t number)
{
    if (number < 0x100) {
        code(output, BININT1, number, 1);
    } else if (number < 0x10000) {
        code(output, BININT2, number, 2);
    } else if (number < 0x80000000u) {
        code(output, BININT, number, 4);
    } else if (number >> 63 == 0) {
        code(output, LONG1, 8 | number << 8, 8); /* the length, then all bytes but the highest */
        bp_output_byte(output, (uint8_t)(number >> 56));
    } else {
        code(output, LONG1, 9 | number << 8, 8);
        bp_output_byte(output, (uint8_t)(number >> 56));
        bp_output_byte(output, 0); /* a zero byte: the number is positive */
    }
}

static void pickle_signed(bp_output *output, int64_t number)
{
    if (number >= 0) {
        pickle_number(output, (uint64_t)number);
        return;
    }
    code(output, LONG1, 8 | (uint64_t)number << 8, 8);
    bp_output_byte(output, (uint8_t)((uint64_t)number >> 56));
}

static void pickle_none(bp_output *output)
{
    code(output, NONE, 0, 0);
}

static void pickle_key(bp_output *output, const char *key)
{
    size_t bytes = strlen(key);
    code(output, BINUNICODE, bytes, 4);
    bp_output_add(output, key, bytes);
}

static void pickle_member_string(bp_output *output, const char *key, const char *text)
{
    pickle_key(output, key);
    pickle_text(output, &text, 1);
}

static void pickle_member_number(bp_output *output, const char *key, uint64_t number)
{
    pickle_key(output, key);
    pickle_number(output, number);
}

static void pickle_member_bool(bp_output *output, const char *key, bool value)
{
    pickle_key(output, key);
    code(output, value ? NEWTRUE : NEWFALSE, 0, 0);
}

typedef struct pickle_list {
    uint32_t batch;
} pickle_list;

/* `key`: of a member; NULL: an element. pickle_item precedes each element. */
static void pickle_begin_list(bp_output *output, const char *key, pickle_list *list)
{
    if (key != NULL)
        pickle_key(output, key);
    *list = (pickle_list){0};
    code(output, EMPTY_LIST, MARK, 1);
}

static void pickle_item(bp_output *output, pickle_list *list)
{
    if (list->batch == MAX_PER_BATCH) {
        code(output, APPENDS, MARK, 1);
        list->batch = 0;
    }
    list->batch++;
}

/* Begins an element that is a dictionary. */
static void pickle_begin_item(bp_output *output, pickle_list *list)
{
    pickle_item(output, list);
    pickle_begin_dict(output);
}

static void pickle_end_list(bp_output *output)
{
    code(output, APPENDS, 0, 0);
}

/* ---- pools ------------------------------------------------------------------------------------------------------- */

static uint64_t number_of(const void *address)
{
    return (uint64_t)(uintptr_t)address;
}

static void write_plan(bp_output *o, const bp_plan_note *plan)
{
    pickle_list list;
    pickle_key(o, "plan");
    if (plan->roles == NULL) {
        pickle_none(o);
        return;
    }
    pickle_begin_dict(o);
    pickle_member_number(o, "bytes", plan->bytes);
    pickle_member_number(o, "lower_bound_bytes", plan->lower_bound_bytes);
    pickle_member_bool(o, "optimal", plan->optimal);
    pickle_begin_list(o, "roles", &list);
    for (size_t i = 0; i < plan->role_count; i++) {
        pickle_begin_item(o, &list);
        pickle_key(o, "role");
        const char *pieces[2 * BP_ROLE_COUNT];
        size_t count = 0;
        for (int role = 0; role < BP_ROLE_COUNT; role++) {
            if (!(plan->roles[i].roles & BP_ROLE_BIT(role)))
                continue;
            if (count > 0)
                pieces[count++] = "+";
            pieces[count++] = bp_role_name((bp_role)role);
        }
        pickle_text(o, pieces, count);
        pickle_member_number(o, "bytes", plan->roles[i].bytes);
        pickle_member_number(o, "lower_bound_bytes", plan->roles[i].lower_bound_bytes);
        pickle_end_dict(o);
    }
    pickle_end_list(o);
    pickle_end_dict(o);
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
    pickle_key(o, "statistics");
    pickle_begin_dict(o);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        pickle_member_number(o, numbers[i].name, numbers[i].value);
    pickle_end_dict(o);
    return BP_OK;
}

static void write_slabs(bp_output *o, const bp_recorded_pool *s)
{
    pickle_list list;
    pickle_begin_list(o, "slabs", &list);
    for (size_t i = 0; i < s->pool->slabs.count; i++) {
        const bp_pool_slab *slab = &s->pool->slab_infos[i];
        pickle_begin_item(o, &list);
        pickle_member_number(o, "address", number_of(s->pool->slabs.slabs[i].address));
        pickle_member_number(o, "bytes", s->pool->slabs.slabs[i].bytes);
        pickle_member_number(o, "planned_bytes", slab->planned_bytes);
        pickle_member_string(o, "group", slab->group);
        pickle_member_bool(o, "resident", s->of->resident[i]);
        pickle_end_dict(o);
    }
    pickle_end_list(o);
}

static void write_requests(bp_output *o, const bp_recorded_pool *s)
{
    static const char *const placements[] = {[BP_PLACE_NONE] = "none",
                                             [BP_PLACE_PLANNED] = "planned",
                                             [BP_PLACE_PERSISTENT] = "persistent",
                                             [BP_PLACE_DYNAMIC] = "dynamic"};
    pickle_list list;
    pickle_begin_list(o, "requests", &list);
    for (uint32_t id = 0; id < s->count; id++) {
        const bp_plan_request *r = &s->pool->requests[id];
        bp_request_name name;
        bp_request_name_of(s->pool, id, &name);
        pickle_begin_item(o, &list);
        pickle_member_string(o, "unit", r->unit);
        pickle_member_string(o, "bucket", name.bucket);
        pickle_member_number(o, "ordinal", r->ordinal);
        pickle_member_string(o, "role", bp_role_name((bp_role)r->role));
        pickle_member_string(o, "dtype", bp_dtype_name(r->dtype));
        pickle_member_number(o, "bytes", r->bytes);
        pickle_member_string(o, "placement", placements[r->placement]);
        pickle_member_number(o, "references", bp_pool_references(s->pool, id));
        pickle_end_dict(o);
    }
    pickle_end_list(o);
}

/* ---- events --------------------------------------------------------------------------------------------------------- */

static bp_status write_streams(bp_output *o, const bp_recorded_pool *s)
{
    void *memory;
    pickle_list list;
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
    pickle_begin_list(o, "streams", &list);
    for (const bp_stream *stream = atomic_load_explicit((_Atomic(bp_stream *) *)&device->streams, memory_order_acquire);
         stream != NULL; stream = stream->next) {
        if (stream->number >= count || !named[stream->number])
            continue;
        pickle_begin_item(o, &list);
        pickle_member_number(o, "number", stream->number);
        pickle_member_string(o, "name", stream->name);
        pickle_end_dict(o);
    }
    pickle_end_list(o);
    free(named);
    return BP_OK;
}

static void write_live(bp_output *o, const bp_recorded_pool *s)
{
    pickle_list list;
    pickle_begin_list(o, "live", &list);
    for (uint32_t id = 0; id < s->count; id++) {
        if (!s->begin[id].live)
            continue;
        pickle_begin_item(o, &list);
        pickle_member_number(o, "id", id);
        pickle_member_number(o, "address", number_of(s->begin[id].address));
        pickle_member_number(o, "stream", s->begin[id].stream);
        pickle_member_number(o, "step", s->begin[id].step);
        pickle_end_dict(o);
    }
    pickle_end_list(o);
}

static void write_numbers(bp_output *o, const uint64_t *numbers, size_t count)
{
    pickle_list list;
    pickle_begin_list(o, NULL, &list);
    for (size_t i = 0; i < count; i++) {
        pickle_item(o, &list);
        pickle_number(o, numbers[i]);
    }
    pickle_end_list(o);
}

static void write_events(bp_output *o, const bp_recorded_pool *s)
{
    pickle_list list;
    pickle_begin_list(o, "events", &list);
    for (uint64_t n = s->first; n < s->next; n++) {
        const bp_pool_event e = bp_recorder_read(s->of->recorder, n);
        const uint64_t numbers[] = {e.kind, e.id, e.stream, e.step, e.time_ns, number_of(e.address)};
        pickle_item(o, &list);
        write_numbers(o, numbers, 6);
    }
    pickle_end_list(o);
    pickle_begin_list(o, "slab_events", &list);
    for (uint32_t i = s->first_slab_event; i < s->of->slab_event_count; i++) {
        const bp_slab_event *e = &s->of->slab_events[i];
        const uint64_t numbers[] = {e->gained, e->slab, e->time_ns};
        pickle_item(o, &list);
        write_numbers(o, numbers, 3);
    }
    pickle_end_list(o);
    pickle_member_number(o, "lost_events", s->first);
}

/* The value of "bucketpool". */
static bp_status write_pools(const bp_recording *recording, bp_output *o)
{
    const bp_profile *p = recording->profile;
    pickle_list list;
    pickle_begin_dict(o);
    pickle_member_string(o, "format", "bucketpool.snapshot/1");
    pickle_member_string(o, "version", bp_version());
    pickle_member_number(o, "rank", p->rank);
    pickle_member_number(o, "ranks", p->ranks);
    pickle_member_string(o, "coordinates", p->coordinates);
    pickle_key(o, "step");
    if (p->recorded && !p->by_hand)
        pickle_number(o, p->step);
    else
        pickle_none(o);
    pickle_member_string(o, "label", p->by_hand ? p->label : "");
    pickle_member_number(o, "first_time_ns", p->first_ns);
    pickle_member_number(o, "last_time_ns", recording->last_ns);
    pickle_key(o, "realtime_offset_ns");
    pickle_signed(o, p->realtime_offset_ns);
    pickle_member_bool(o, "gap", recording->has_gap);
    pickle_begin_list(o, "pools", &list);
    for (size_t i = 0; i < recording->count; i++) {
        const bp_recorded_pool *s = &recording->pools[i];
        pickle_begin_item(o, &list);
        pickle_member_string(o, "name", s->pool->info.name);
        pickle_member_string(o, "allocator", bp_policy_name(s->pool->info.policy));
        pickle_member_string(o, "fingerprint", s->pool->fingerprint);
        pickle_member_string(o, "device", bp_device_name(s->pool->device));
        write_plan(o, &s->of->plan);
        BP_TRY(write_statistics(o, s->pool));
        write_slabs(o, s);
        write_requests(o, s);
        BP_TRY(write_streams(o, s));
        write_live(o, s);
        write_events(o, s);
        pickle_end_dict(o);
    }
    pickle_end_list(o);
    pickle_end_dict(o);
    return BP_OK;
}

/* The stream number in the viewer; 0 for slabs, which have no stream. */
static uint64_t viewer_stream(uint32_t number)
{
    return (uint64_t)number + 1;
}

/* ---- frames --------------------------------------------------------------------------------------------------------- */

static void write_frame(bp_output *o, const char *const *name, size_t pieces, const char *file, uint64_t line)
{
    pickle_list list;
    pickle_begin_list(o, "frames", &list);
    pickle_begin_item(o, &list);
    pickle_key(o, "name");
    pickle_text(o, name, pieces);
    pickle_member_string(o, "filename", file);
    pickle_member_number(o, "line", line);
    pickle_end_dict(o);
    pickle_end_list(o);
}

static void write_request_frame(bp_output *o, const bp_pool *pool, uint32_t id)
{
    bp_request_name name;
    bp_request_name_of(pool, id, &name);
    write_frame(o, name.pieces, BP_NAME_PIECES, name.unit, pool->requests[id].ordinal);
}

static void write_slab_frame(bp_output *o, const bp_pool *pool, uint32_t slab)
{
    char number[32];
    snprintf(number, sizeof number, "slab %u (", slab);
    const char *const pieces[] = {number, pool->slab_infos[slab].group, ")"};
    write_frame(o, pieces, 3, pool->info.name, slab);
}

/* ---- segments ------------------------------------------------------------------------------------------------------- */

/* A range of memory in its current state, with the live blocks in it. */
typedef struct range {
    const bp_recorded_pool *recording;
    uint64_t address, bytes, stream;
    uint32_t slab; /* BP_NONE: memory of a dynamic request */
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
    pickle_list frames;
    pickle_begin_dict(o);
    pickle_member_number(o, "address", address);
    pickle_member_number(o, "size", bytes);
    pickle_member_number(o, "requested_size", holder != NULL ? bytes : 0);
    pickle_member_string(o, "state", holder != NULL ? "active_allocated" : "inactive");
    if (holder != NULL) {
        write_request_frame(o, pool, holder->id);
    } else {
        pickle_begin_list(o, "frames", &frames);
        pickle_end_list(o);
    }
    pickle_end_dict(o);
}

/* Live blocks, and the free ranges between them. */
static void write_blocks(bp_output *o, const range *r, const held *blocks, size_t count)
{
    pickle_list list;
    uint64_t at = r->address, end = r->address + r->bytes;
    pickle_begin_list(o, "blocks", &list);
    for (size_t i = 0; i <= count; i++) {
        uint64_t next = i < count ? blocks[i].address : end;
        if (next > at) {
            pickle_item(o, &list);
            write_block(o, at, next - at, r->recording->pool, NULL);
        }
        if (i < count) {
            pickle_item(o, &list);
            write_block(o, next, blocks[i].bytes, r->recording->pool, &blocks[i]);
            at = next + blocks[i].bytes;
        }
    }
    pickle_end_list(o);
}

static void write_segment(bp_output *o, const range *r, const held *blocks, size_t count)
{
    pickle_list list;
    uint64_t live = 0;
    for (size_t i = 0; i < count; i++)
        live += blocks[i].bytes;
    pickle_begin_dict(o);
    pickle_member_number(o, "device", r->recording->of->device);
    pickle_member_number(o, "address", r->address);
    pickle_member_number(o, "total_size", r->bytes);
    pickle_member_number(o, "allocated_size", live);
    pickle_member_number(o, "active_size", live);
    pickle_member_number(o, "requested_size", live);
    pickle_member_number(o, "stream", r->stream);
    pickle_member_string(o, "segment_type", "large");
    pickle_begin_list(o, "segment_pool_id", &list);
    for (int i = 0; i < 2; i++) { /* (0, 0): not one of PyTorch's private pools */
        pickle_item(o, &list);
        pickle_number(o, 0);
    }
    pickle_end_list(o);
    pickle_member_bool(o, "is_expandable", false);
    if (r->slab != BP_NONE)
        write_slab_frame(o, r->recording->pool, r->slab);
    else
        write_request_frame(o, r->recording->pool, blocks[0].id);
    write_blocks(o, r, blocks, count);
    pickle_end_dict(o);
}

static bp_status write_segments(const bp_recording *recording, bp_output *o)
{
    pickle_list list;
    pickle_begin_list(o, "segments", &list);
    for (size_t i = 0; i < recording->count; i++) {
        void *memory;
        const bp_recorded_pool *s = &recording->pools[i];
        size_t count = 0, first = 0, end;
        BP_TRY(bp_new_array(s->count, sizeof(held), &memory));
        held *blocks = memory; /* live requests in slabs, sorted by address */
        for (uint32_t id = 0; id < s->count; id++) {
            const bp_entry *r = &s->pool->entries[id];
            if (s->now[id].live && r->bytes > 0 && r->kind != BP_KIND_DYNAMIC)
                blocks[count++] = (held){number_of(s->now[id].address), r->bytes, id};
        }
        qsort(blocks, count, sizeof *blocks, compare_held);

        for (uint32_t slab = 0; slab < s->pool->slabs.count; slab++) {
            const bp_slab *of = &s->pool->slabs.slabs[slab];
            const range r = {.recording = s, .address = number_of(of->address), .bytes = of->bytes, .slab = slab};
            for (first = 0; first < count && blocks[first].address < r.address;)
                first++;
            for (end = first; end < count && blocks[end].address - r.address < r.bytes;)
                end++;
            if (!s->of->resident[slab])
                continue;
            pickle_item(o, &list);
            write_segment(o, &r, blocks + first, end - first);
        }
        free(blocks);

        for (uint32_t id = 0; id < s->count; id++) {
            const bp_entry *bound = &s->pool->entries[id];
            if (!s->now[id].live || bound->kind != BP_KIND_DYNAMIC || bound->bytes == 0)
                continue;
            const held block = {number_of(s->now[id].address), bound->bytes, id};
            const range r = {.recording = s,
                             .address = block.address,
                             .bytes = block.bytes,
                             .stream = viewer_stream(s->now[id].stream),
                             .slab = BP_NONE};
            pickle_item(o, &list);
            write_segment(o, &r, &block, 1);
        }
    }
    pickle_end_list(o);
    return BP_OK;
}

/* ---- traces --------------------------------------------------------------------------------------------------------- */

typedef struct tracing {
    const bp_recording *recording;
    bp_output *output;
    pickle_list list;
} tracing;

/* Begins an entry, up to its frames. */
static void begin_entry(tracing *t, const char *action, const void *address, uint64_t bytes, uint64_t stream,
                        uint64_t time_ns)
{
    bp_output *o = t->output;
    pickle_begin_item(o, &t->list);
    pickle_member_string(o, "action", action);
    pickle_member_number(o, "addr", number_of(address));
    pickle_member_number(o, "size", bytes);
    pickle_member_number(o, "stream", stream);
    pickle_key(o, "time_us");
    pickle_signed(o, ((int64_t)time_ns + t->recording->realtime_offset_ns) / 1000);
}

static void trace_slab(void *user, const bp_pool *pool, uint32_t slab, bool gained, bool from_before, uint64_t time_ns)
{
    tracing *t = user;
    (void)from_before;
    const bp_slab *s = &pool->slabs.slabs[slab];
    begin_entry(t, gained ? "segment_map" : "segment_unmap", s->address, s->bytes, 0, time_ns);
    write_slab_frame(t->output, pool, slab);
    pickle_end_dict(t->output);
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
        pickle_end_dict(t->output);
    }
}

bp_status bp_snapshot_write(const bp_recording *recording, bp_output *output)
{
    pickle_list devices;
    code(output, PROTO, 2, 1);
    pickle_begin_dict(output);
    BP_TRY(write_segments(recording, output));
    pickle_begin_list(output, "device_traces", &devices);
    for (uint32_t device = 0; device < recording->devices; device++) {
        tracing t = {.recording = recording, .output = output};
        const bp_replay_observer observer = {.user = &t, .slab = trace_slab, .block = trace_block};
        pickle_item(output, &devices);
        pickle_begin_list(output, NULL, &t.list);
        BP_TRY(bp_replay(recording, device, &observer));
        pickle_end_list(output);
    }
    pickle_end_list(output);
    pickle_key(output, "allocator_settings");
    pickle_begin_dict(output);
    pickle_end_dict(output);
    pickle_key(output, "bucketpool");
    BP_TRY(write_pools(recording, output));
    pickle_end_dict(output);
    code(output, STOP, 0, 0);
    return BP_OK;
}
