/* SPDX-License-Identifier: Apache-2.0 */
/* Reads snapshots of PyTorch's allocator as allocation traces: the file, its segments, and the traces by device. */
#include "formats/snapshots/trace_file.h"

#include <bucketpool/core/fail.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/files.h"
#include "formats/file.h"
#include "formats/snapshots/snapshot_file.h"
#include "formats/snapshots/trace_tables.h"

struct bp_trace_file {
    bp_trace_file_info info;
    bp_trace_tables tables;
    bp_trace *traces;
    bp_trace_segment *segments; /* of all devices, by device and address */
    bp_trace_block *blocks;
    bp_trace_stack *stacks;
    bp_trace_annotation *annotations; /* of all devices, by device */
};

enum { MAX_DEVICES = 128, MAX_ANNOTATIONS = 1 << 24 };

/* A segment with its device, before sorting. */
typedef struct found_segment {
    bp_trace_segment segment;
    uint32_t device;
} found_segment;

typedef struct trace_reader {
    bp_snapshot_reader reader; /* for paths in errors */
    bp_trace_file *file;
    found_segment *found;
    size_t found_count, block_count;
} trace_reader;

static bp_status trace_array(size_t count, size_t element_bytes, void **array)
{
    *array = calloc(count + 1, element_bytes);
    return *array != NULL ? BP_OK : bp_fail_memory(count * element_bytes);
}

/* ---- segments ------------------------------------------------------------------------------------------------------ */

static bool is_text(bp_pickle_value value, const char *text)
{
    return value.kind == BP_PICKLE_STRING && strcmp(value.text, text) == 0;
}

static bool truth_of(const bp_snapshot_at *at, const char *name)
{
    bp_pickle_value value = bp_snapshot_member(at, name).value;
    return (value.kind == BP_PICKLE_BOOL || value.kind == BP_PICKLE_INTEGER) && value.magnitude != 0;
}

/* Blocks of old versions have no address, no requested size and a history instead of frames. */
static bp_status trace_read_block(trace_reader *r, const bp_snapshot_at *at, uint64_t *address)
{
    const bp_pickle *pickle = r->reader.pickle;
    bp_snapshot_at own = bp_snapshot_member(at, "address"), size = bp_snapshot_member(at, "size");
    bp_snapshot_at requested = bp_snapshot_member(at, "requested_size"), state = bp_snapshot_member(at, "state");
    bp_snapshot_at history = bp_snapshot_member(at, "history"), last = bp_snapshot_item(&history, 0);
    bp_trace_block *block = &r->file->blocks[r->block_count];
    if (own.value.kind != BP_PICKLE_ABSENT)
        BP_TRY(bp_snapshot_number(&own, UINT64_MAX - 1, address));
    *block = (bp_trace_block){.address = *address};
    BP_TRY(bp_snapshot_number(&size, UINT64_MAX - *address, &block->bytes));
    BP_TRY(bp_snapshot_number_or_0(&requested, &block->requested_bytes));
    if (requested.value.kind == BP_PICKLE_ABSENT && last.value.kind == BP_PICKLE_DICTIONARY) {
        bp_snapshot_at real = bp_snapshot_member(&last, "real_size");
        BP_TRY(bp_snapshot_number_or_0(&real, &block->requested_bytes));
    }
    block->pending_free = is_text(state.value, "active_pending_free") || is_text(state.value, "active_awaiting_free");
    block->active = block->pending_free || is_text(state.value, "active_allocated");
    block->stack = bp_trace_stack_of(pickle, bp_pickle_find(pickle, at->value, "frames"));
    if (block->stack == BP_TRACE_NONE)
        block->stack = bp_trace_stack_of(pickle, bp_pickle_find(pickle, last.value, "frames"));
    *address += block->bytes;
    r->block_count++;
    return BP_OK;
}

static bp_status trace_read_segment(trace_reader *r, const bp_snapshot_at *at)
{
    found_segment *found = &r->found[r->found_count++];
    bp_trace_segment *segment = &found->segment;
    bp_snapshot_at address = bp_snapshot_member(at, "address"), bytes = bp_snapshot_member(at, "total_size");
    bp_snapshot_at device = bp_snapshot_member(at, "device"), stream = bp_snapshot_member(at, "stream");
    bp_snapshot_at blocks = bp_snapshot_member(at, "blocks"), pool = bp_snapshot_member(at, "segment_pool_id");
    uint64_t number = 0;
    BP_TRY(bp_snapshot_number(&address, UINT64_MAX, &segment->address));
    BP_TRY(bp_snapshot_number(&bytes, UINT64_MAX - segment->address, &segment->bytes));
    BP_TRY(bp_snapshot_number_or_0(&device, &number));
    if (number >= MAX_DEVICES)
        return bp_snapshot_fail(&device, "%llu, expected less than %d", (unsigned long long)number, MAX_DEVICES);
    found->device = (uint32_t)number;
    BP_TRY(bp_snapshot_number_or_0(&stream, &number));
    BP_TRY(bp_trace_stream(&r->file->tables, number, &segment->stream));
    for (size_t i = 0; i < 2; i++) {
        bp_snapshot_at part = bp_snapshot_item(&pool, i);
        BP_TRY(bp_snapshot_number_or_0(&part, &segment->pool[i]));
    }
    segment->is_large = is_text(bp_snapshot_member(at, "segment_type").value, "large");
    segment->is_expandable = truth_of(at, "is_expandable");
    segment->stack = bp_trace_stack_of(r->reader.pickle, bp_pickle_find(r->reader.pickle, at->value, "frames"));
    segment->first_block = r->block_count;
    uint64_t next = segment->address;
    for (size_t i = 0; i < blocks.value.count && bp_pickle_is_list(blocks.value); i++) {
        bp_snapshot_at block = bp_snapshot_item(&blocks, i);
        BP_TRY(trace_read_block(r, &block, &next));
        const bp_trace_block *read = &r->file->blocks[r->block_count - 1];
        uint64_t min = i == 0 ? segment->address : read[-1].address + read[-1].bytes;
        if (read->address < min || next - segment->address > segment->bytes)
            return bp_snapshot_fail(&block, "%llu bytes at 0x%llx overlap another block or exceed the segment",
                                    (unsigned long long)read->bytes, (unsigned long long)read->address);
    }
    segment->block_count = r->block_count - segment->first_block;
    return BP_OK;
}

static int by_device_and_address(const void *left, const void *right)
{
    const found_segment *a = left, *b = right;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    return (a->segment.address > b->segment.address) - (a->segment.address < b->segment.address);
}

static bp_status trace_read_segments(trace_reader *r, const bp_snapshot_at *segments)
{
    size_t count = bp_pickle_is_list(segments->value) ? segments->value.count : 0, blocks = 0, first = 0;
    void *found = NULL, *all = NULL, *sorted = NULL;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at segment = bp_snapshot_item(segments, i), list = bp_snapshot_member(&segment, "blocks");
        blocks += bp_pickle_is_list(list.value) ? list.value.count : 0;
        if (blocks > r->reader.pickle->bytes) /* each takes some; a list of blocks is in many places */
            return bp_snapshot_fail(segments, "%zu blocks in a file of %zu bytes", blocks, r->reader.pickle->bytes);
    }
    BP_TRY(trace_array(count, sizeof *r->found, &found));
    r->found = found;
    BP_TRY(trace_array(blocks, sizeof *r->file->blocks, &all));
    r->file->blocks = all;
    for (size_t i = 0; i < count; i++) {
        bp_snapshot_at segment = bp_snapshot_item(segments, i);
        BP_TRY(trace_read_segment(r, &segment));
    }
    if (count > 0)
        qsort(r->found, count, sizeof *r->found, by_device_and_address);
    BP_TRY(trace_array(count, sizeof *r->file->segments, &sorted));
    r->file->segments = sorted;
    for (size_t i = 0; i < count; i++) {
        const bp_trace_segment *segment = &r->found[i].segment;
        r->file->segments[i] = *segment;
        const found_segment *before = i > 0 && r->found[i - 1].device == r->found[i].device ? &r->found[i - 1] : NULL;
        if (before != NULL && before->segment.address + before->segment.bytes > segment->address)
            return bp_snapshot_fail(segments, "two segments overlap at 0x%llx", (unsigned long long)segment->address);
        first = before != NULL ? first : i;
        for (size_t b = segment->first_block; b < segment->first_block + segment->block_count; b++)
            r->file->blocks[b].segment = (uint32_t)(i - first);
    }
    return BP_OK;
}

/* ---- settings ------------------------------------------------------------------------------------------------------ */

static void trace_read_settings(const bp_snapshot_at *root, bp_trace_settings *settings)
{
    bp_snapshot_at at = bp_snapshot_member(root, "allocator_settings");
    bp_pickle_value text = bp_snapshot_member(&at, "PYTORCH_CUDA_ALLOC_CONF").value;
    bp_pickle_value split = bp_snapshot_member(&at, "max_split_size").value;
    bp_pickle_value threshold = bp_snapshot_member(&at, "garbage_collection_threshold").value;
    bp_snapshot_at divisions = bp_snapshot_member(&at, "roundup_power2_divisions");
    if (text.kind != BP_PICKLE_STRING)
        text = bp_snapshot_member(&at, "PYTORCH_ALLOC_CONF").value;
    *settings = (bp_trace_settings){.recorded = at.value.kind == BP_PICKLE_DICTIONARY,
                                    .expandable_segments = truth_of(&at, "expandable_segments"),
                                    .text = text.kind == BP_PICKLE_STRING ? text.text : ""};
    if (split.kind == BP_PICKLE_INTEGER && !split.is_negative && split.magnitude < (uint64_t)1 << 62)
        settings->max_split_bytes = split.magnitude; /* else unlimited, which PyTorch writes as -1 or 2^63 - 1 */
    if (threshold.kind == BP_PICKLE_FLOAT && threshold.real > 0 && threshold.real < 1)
        settings->garbage_collection_threshold = threshold.real;
    for (size_t i = 0; i < sizeof settings->roundup_power2_divisions / sizeof(uint64_t); i++) {
        char megabytes[16];
        snprintf(megabytes, sizeof megabytes, "%u", 1u << i);
        bp_pickle_value division = bp_snapshot_member(&divisions, megabytes).value;
        if (division.kind == BP_PICKLE_INTEGER && !division.is_negative)
            settings->roundup_power2_divisions[i] = division.magnitude;
    }
}

/* ---- traces -------------------------------------------------------------------------------------------------------- */

/* Times never decrease. Old versions of PyTorch write none: then an event's index is its time. */
static void trace_set_times(bp_trace_event *events, size_t count)
{
    uint64_t latest = 0;
    for (size_t i = 0; i < count; i++)
        events[i].time_us = latest = events[i].time_us > latest ? events[i].time_us : latest;
    for (size_t i = 0; i < count && latest == 0; i++)
        events[i].time_us = i;
}

/* The first event of a time or later. */
static uint32_t event_at(const bp_trace *trace, uint64_t time_us)
{
    size_t low = 0, high = trace->event_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (trace->events[middle].time_us < time_us)
            low = middle + 1;
        else
            high = middle;
    }
    return (uint32_t)low;
}

/* An annotation with its device and time, before sorting. */
typedef struct found_annotation {
    const char *name;
    uint64_t time_us, device;
    size_t order; /* in the file */
    bool is_end;
} found_annotation;

static int by_device_and_time(const void *left, const void *right)
{
    const found_annotation *a = left, *b = right;
    if (a->device != b->device)
        return a->device < b->device ? -1 : 1;
    if (a->time_us != b->time_us)
        return a->time_us < b->time_us ? -1 : 1;
    return (a->order > b->order) - (a->order < b->order);
}

/* Named annotations, by device and time. */
static bp_status trace_find_annotations(const bp_snapshot_at *list, found_annotation *found, size_t *count)
{
    for (size_t i = 0; i < list->value.count && bp_pickle_is_list(list->value); i++) {
        bp_snapshot_at item = bp_snapshot_item(list, i), time = bp_snapshot_member(&item, "time_us");
        bp_snapshot_at device = bp_snapshot_member(&item, "device");
        bp_pickle_value name = bp_snapshot_member(&item, "name").value;
        found_annotation made = {.order = i, .is_end = is_text(bp_snapshot_member(&item, "stage").value, "END")};
        if (name.kind != BP_PICKLE_STRING || name.interned == BP_PICKLE_NOT_INTERNED)
            continue;
        made.name = name.text;
        BP_TRY(bp_snapshot_number_or_0(&device, &made.device));
        BP_TRY(bp_snapshot_number_or_0(&time, &made.time_us));
        found[(*count)++] = made;
    }
    if (*count > 0)
        qsort(found, *count, sizeof *found, by_device_and_time);
    return BP_OK;
}

/* Annotations are those of the device that was current: a trace without has those of the device that has most. */
static bp_status trace_take_annotations(bp_trace_file *file, const found_annotation *found, size_t count)
{
    size_t own[MAX_DEVICES][2] = {{0}}, ranges[MAX_DEVICES][2], max[2] = {0, 0}, total = 0, used = 0;
    void *all = NULL;
    for (size_t i = 0; i < count && found[i].device < MAX_DEVICES; i++) { /* by device */
        size_t *range = own[found[i].device];
        range[0] = i == 0 || found[i - 1].device != found[i].device ? i : range[0];
        range[1] = i + 1;
        if (range[1] - range[0] > max[1] - max[0])
            memcpy(max, range, sizeof max);
    }
    for (size_t i = 0; i < file->info.trace_count; i++) {
        const bp_trace *trace = &file->traces[i];
        memcpy(ranges[i], own[trace->device], sizeof ranges[i]);
        if (ranges[i][0] == ranges[i][1] && trace->event_count > 0 && total + max[1] - max[0] <= MAX_ANNOTATIONS)
            memcpy(ranges[i], max, sizeof max);
        total += ranges[i][1] - ranges[i][0];
    }
    BP_TRY(trace_array(total, sizeof *file->annotations, &all));
    file->annotations = all;
    for (size_t i = 0; i < file->info.trace_count; i++) {
        bp_trace *trace = &file->traces[i];
        trace->annotations = file->annotations + used;
        trace->annotation_count = ranges[i][1] - ranges[i][0];
        for (size_t k = ranges[i][0]; k < ranges[i][1]; k++)
            file->annotations[used++] = (bp_trace_annotation){.name = found[k].name,
                                                              .event = event_at(trace, found[k].time_us),
                                                              .is_end = found[k].is_end,
                                                              .is_early = trace->event_count > 0 &&
                                                                          found[k].time_us < trace->events[0].time_us};
    }
    return BP_OK;
}

static bp_status trace_read_annotations(bp_trace_file *file, const bp_snapshot_at *list)
{
    size_t max = bp_pickle_is_list(list->value) ? list->value.count : 0, count = 0;
    void *found = NULL;
    if (max > MAX_ANNOTATIONS)
        return bp_snapshot_fail(list, "%zu annotations, expected at most %d", max, MAX_ANNOTATIONS);
    BP_TRY(trace_array(max, sizeof(found_annotation), &found));
    bp_status status = trace_find_annotations(list, found, &count);
    if (status == BP_OK)
        status = trace_take_annotations(file, found, count);
    free(found);
    return status;
}

static bp_status trace_make(trace_reader *r, const bp_snapshot_at *root)
{
    bp_trace_file *file = r->file;
    bp_trace_tables *tables = &file->tables;
    bp_snapshot_at segments = bp_snapshot_member(root, "segments"), traces = bp_snapshot_member(root, "device_traces");
    file->info.is_of_pools = bp_snapshot_member(root, "bucketpool").value.kind != BP_PICKLE_ABSENT;
    if (file->info.is_of_pools)
        return BP_OK;
    if (root->value.kind != BP_PICKLE_DICTIONARY || segments.value.kind == BP_PICKLE_ABSENT ||
        traces.value.kind == BP_PICKLE_ABSENT)
        return bp_snapshot_fail(root, "not a snapshot: expected \"segments\" and \"device_traces\" as PyTorch writes "
                                      "them");
    BP_TRY(trace_read_segments(r, &segments));
    bp_trace_settings settings;
    trace_read_settings(root, &settings);
    size_t devices = bp_pickle_is_list(traces.value) ? traces.value.count : 0;
    for (size_t i = 0; i < r->found_count; i++)
        devices = r->found[i].device >= devices ? r->found[i].device + 1 : devices;
    if (devices > MAX_DEVICES)
        return bp_snapshot_fail(&traces, "%zu devices, expected at most %d", devices, MAX_DEVICES);
    void *all = NULL, *stacks = NULL;
    BP_TRY(trace_array(devices, sizeof *file->traces, &all));
    file->traces = all;
    BP_TRY(trace_array(tables->stacks.count, sizeof *file->stacks, &stacks));
    file->stacks = stacks;
    for (size_t i = 0; i < tables->stacks.count; i++) {
        bp_event_list stack = ((const bp_event_list *)tables->stacks.memory)[i];
        file->stacks[i] = (bp_trace_stack){(const uint32_t *)tables->stack_frames.memory + stack.first, stack.count};
    }
    size_t next = 0;
    for (uint32_t device = 0; device < devices; device++) {
        bp_snapshot_at item = bp_snapshot_item(&traces, device);
        bp_event_list list = {0};
        if (item.value.kind > BP_PICKLE_NONE && !bp_trace_list_of(tables, item.value, &list))
            return bp_snapshot_fail(&item, "expected a list of events");
        for (uint32_t before = 0; before < file->info.trace_count && list.count > 0; before++) {
            const bp_trace_event *first = file->traces[before].events, *last = first + file->traces[before].event_count;
            const bp_trace_event *own = (bp_trace_event *)tables->events.memory + list.first;
            if (first != NULL && own < last && own + list.count > first)
                return bp_snapshot_fail(&item, "the events of another device");
        }
        bp_trace *trace = &file->traces[file->info.trace_count];
        *trace = (bp_trace){.device = device,
                            .event_count = list.count,
                            .stream_count = tables->streams.count,
                            .stack_count = tables->stacks.count,
                            .frame_count = tables->frames.count,
                            .events = list.count > 0 ? (bp_trace_event *)tables->events.memory + list.first : NULL,
                            .segments = file->segments + next,
                            .blocks = file->blocks,
                            .block_count = r->block_count,
                            .streams = tables->streams.memory,
                            .stacks = file->stacks,
                            .frames = tables->frames.memory,
                            .settings = settings,
                            .unknown_events = tables->unknown_events,
                            .unknown_name = tables->unknown_name};
        trace_set_times(trace->events, trace->event_count);
        for (; next < r->found_count && r->found[next].device == device; next++)
            trace->segment_count++;
        file->info.trace_count += trace->event_count > 0 || trace->segment_count > 0;
    }
    file->info.traces = file->traces;
    bp_snapshot_at annotations = bp_snapshot_member(root, "external_annotations");
    return trace_read_annotations(file, &annotations);
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

/* release: the data, if its pages may be given back while it is parsed; else NULL. */
static bp_status parse(const void *data, size_t bytes, unsigned char *release, const char *origin, bp_trace_file **file)
{
    bp_trace_file *made = calloc(1, sizeof *made);
    if (made == NULL)
        return bp_fail_memory(sizeof *made);
    bp_trace_tables_init(&made->tables, origin, release);
    bp_pickle pickle = {0};
    bp_status status = bp_pickle_parse(data, bytes, BP_TRACE_MAX_MEMORY, origin, &made->tables.reducer, &pickle);
    if (status == BP_OK) {
        trace_reader reader = {.reader = {.origin = origin, .pickle = &pickle}, .file = made};
        bp_snapshot_at root = {.reader = &reader.reader, .value = bp_pickle_get(&pickle, pickle.root)};
        status = trace_make(&reader, &root);
        free(reader.found);
        bp_pickle_finish(&pickle);
    }
    made->tables.origin = "";
    made->tables.data = NULL;
    if (status != BP_OK)
        bp_trace_file_destroy(&made);
    else
        *file = made;
    return status;
}

bp_status bp_trace_file_parse(const void *data, size_t bytes, const char *origin, bp_trace_file **file)
{
    if (data == NULL || origin == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_trace_file_parse: data, origin and file must not be NULL");
    return parse(data, bytes, NULL, origin, file);
}

/* Reads a file of known size into separate pages, which the reader releases on the way. */
static bp_status read_pages(int descriptor, const char *path, size_t bytes, bp_trace_file **file)
{
    unsigned char *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
        return bp_fail_memory(bytes);
    size_t got = 0;
    ssize_t more = 1;
    while (got < bytes && (more = bp_input_read(descriptor, data + got, bytes - got)) > 0)
        got += (size_t)more;
    bp_status status =
        more < 0 ? bp_fail(BP_ERR_IO, "%.300s: %s", path, strerror(errno)) : parse(data, got, data, path, file);
    (void)munmap(data, bytes);
    return status;
}

bp_status bp_trace_file_read(const char *path, bp_trace_file **file)
{
    if (path == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_trace_file_read: path and file must not be NULL");
    int descriptor = -1;
    struct stat about;
    BP_TRY(bp_input_open(path, &descriptor, &about));
    if (S_ISREG(about.st_mode) && about.st_size > 0) {
        bp_status status = read_pages(descriptor, path, (size_t)about.st_size, file);
        (void)close(descriptor);
        return status;
    }
    (void)close(descriptor);
    char *data = NULL;
    size_t bytes = 0;
    BP_TRY(bp_file_read(path, BP_PICKLE_MAX_BYTES, &data, &bytes));
    bp_status status = parse(data, bytes, NULL, path, file);
    free(data);
    return status;
}

void bp_trace_file_destroy(bp_trace_file **file)
{
    if (file == NULL || *file == NULL)
        return;
    bp_trace_tables_finish(&(*file)->tables);
    free((*file)->traces);
    free((*file)->segments);
    free((*file)->blocks);
    free((*file)->stacks);
    free((*file)->annotations);
    free(*file);
    *file = NULL;
}

const bp_trace_file_info *bp_trace_file_get_info(const bp_trace_file *file)
{
    return file != NULL ? &file->info : NULL;
}

bool bp_trace_file_is_pickle(const char *path)
{
    unsigned char head[2] = {0};
    size_t got = 0;
    uint64_t bytes = 0;
    return bp_file_read_at(path, 0, sizeof head, head, &got, &bytes) == BP_OK && got == sizeof head &&
           head[0] == 0x80 && head[1] >= 2 && head[1] <= 5;
}
