/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a snapshot: its object, and values of its pickle. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "formats/file.h"
#include "formats/models/reader.h"
#include "formats/snapshots/snapshot_file.h"

/* ---- values ------------------------------------------------------------------------------------------------------ */

enum { PATH_CHARS = 160, MAX_TEXT = 512, BLOCK_BYTES = 1 << 16, ALIGNMENT = 8 };

static void print_path(const bp_snapshot_at *at, char path[PATH_CHARS])
{
    if (at->parent == NULL) {
        *path = '\0';
        return;
    }
    print_path(at->parent, path);
    size_t used = strlen(path);
    if (at->member == NULL)
        snprintf(path + used, PATH_CHARS - used, "[%zu]", at->index);
    else
        snprintf(path + used, PATH_CHARS - used, "%s%s", used > 0 ? "." : "", at->member);
}

bp_status bp_snapshot_fail(const bp_snapshot_at *at, const char *format, ...)
{
    char what[BP_DETAIL_BYTES / 3], path[PATH_CHARS];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    print_path(at, path);
    return bp_fail(BP_ERR_FORMAT, "%.160s: %s%s%s", at->reader->origin, path, *path != '\0' ? ": " : "", what);
}

bp_snapshot_at bp_snapshot_member(const bp_snapshot_at *at, const char *name)
{
    const bp_pickle *pickle = at->reader->pickle;
    return (bp_snapshot_at){.reader = at->reader,
                            .value = bp_pickle_get(pickle, bp_pickle_find(pickle, at->value, name)),
                            .parent = at,
                            .member = name};
}

bp_snapshot_at bp_snapshot_item(const bp_snapshot_at *at, size_t index)
{
    bool there = bp_pickle_is_list(at->value) && index < at->value.count;
    bp_pickle_ref ref = there ? at->value.items[index] : BP_PICKLE_NO_REF;
    return (bp_snapshot_at){
        .reader = at->reader, .value = bp_pickle_get(at->reader->pickle, ref), .parent = at, .index = index};
}

bp_status bp_snapshot_number(const bp_snapshot_at *at, uint64_t max, uint64_t *number)
{
    const bp_pickle_value *v = &at->value;
    if (v->kind != BP_PICKLE_INTEGER || v->is_negative)
        return bp_snapshot_fail(at, "%s, expected a non-negative integer",
                                v->kind == BP_PICKLE_ABSENT ? "missing" : "not that");
    if (v->magnitude > max)
        return bp_snapshot_fail(at, "%llu, expected at most %llu", (unsigned long long)v->magnitude,
                                (unsigned long long)max);
    *number = v->magnitude;
    return BP_OK;
}

bp_status bp_snapshot_number_or_0(const bp_snapshot_at *at, uint64_t *number)
{
    *number = 0;
    return at->value.kind <= BP_PICKLE_NONE ? BP_OK : bp_snapshot_number(at, UINT64_MAX, number);
}

bp_status bp_snapshot_truth(const bp_snapshot_at *at, int *truth)
{
    const bp_pickle_value *v = &at->value;
    if (v->kind != BP_PICKLE_BOOL && v->kind != BP_PICKLE_INTEGER)
        return bp_snapshot_fail(at, "%s, expected True or False", v->kind == BP_PICKLE_ABSENT ? "missing" : "not that");
    *truth = v->magnitude != 0;
    return BP_OK;
}

/* ---- memory -------------------------------------------------------------------------------------------------------------------- */

typedef struct bp_snapshot_block {
    struct bp_snapshot_block *next;
    size_t used, capacity;
    _Alignas(ALIGNMENT) char memory[];
} bp_snapshot_block;

/* Counts the bytes of an allocation in the budget. */
static bp_status snapshot_take_budget(bp_snapshot_reader *reader, size_t count, size_t element_bytes)
{
    if (count > reader->left / element_bytes)
        return bp_fail(BP_ERR_FORMAT,
                       "%.300s: its lists need more than %zu bytes of memory, the limit for a file of %zu bytes, "
                       "counting a shared list at each use; record fewer events",
                       reader->origin, reader->budget, reader->pickle->bytes);
    reader->left -= count * element_bytes;
    return BP_OK;
}

/* NULL: out of memory. */
static void *snapshot_allocate(bp_snapshot *snapshot, size_t bytes)
{
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    bp_snapshot_block *block = snapshot->blocks;
    if (block == NULL || block->capacity - block->used < rounded) {
        size_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
        block = calloc(1, sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        *block = (bp_snapshot_block){.next = snapshot->blocks, .capacity = capacity};
        snapshot->blocks = block;
    }
    void *memory = block->memory + block->used;
    block->used += rounded;
    return memory;
}

bp_status bp_snapshot_room(bp_snapshot_reader *reader, size_t count, size_t element_bytes, void **entries)
{
    BP_TRY(snapshot_take_budget(reader, count, element_bytes));
    *entries = snapshot_allocate(reader->snapshot, count * element_bytes);
    return *entries != NULL ? BP_OK : bp_fail_memory(count * element_bytes);
}

bp_status bp_snapshot_scratch(bp_snapshot_reader *reader, size_t count, size_t element_bytes, void **entries)
{
    BP_TRY(snapshot_take_budget(reader, count, element_bytes));
    *entries = calloc(count + 1, element_bytes);
    return *entries != NULL ? BP_OK : bp_fail_memory(count * element_bytes);
}

bp_status bp_snapshot_list(const bp_snapshot_at *at, size_t element_bytes, void **entries, size_t *count)
{
    if (at->value.kind > BP_PICKLE_NONE && !bp_pickle_is_list(at->value))
        return bp_snapshot_fail(at, "expected a list");
    size_t items = bp_pickle_is_list(at->value) ? at->value.count : 0;
    BP_TRY(bp_snapshot_room(at->reader, items, element_bytes, entries));
    *count = items;
    return BP_OK;
}

/* ---- interned texts ------------------------------------------------------------------------------------------------------------ */

bp_status bp_snapshot_copy(bp_snapshot_reader *reader, const char *bytes, size_t count, const char **text)
{
    size_t taken = count < MAX_TEXT ? count : MAX_TEXT;
    BP_TRY(snapshot_take_budget(reader, taken + ALIGNMENT, 1));
    char *copy = snapshot_allocate(reader->snapshot, taken + 1);
    if (copy == NULL)
        return bp_fail_memory(taken + 1);
    for (size_t i = 0; i < taken; i++)
        copy[i] = bytes[i] != '\0' ? bytes[i] : '?';
    copy[taken] = '\0';
    bp_make_printable(copy);
    *text = copy;
    return BP_OK;
}

struct bp_snapshot_copied {
    const char *bytes; /* in the pickle */
    uint32_t count;
    const char *text;
};

/* Interns a text. */
static bp_status copy_once(bp_snapshot_reader *reader, const bp_pickle_value *value, const char **text)
{
    bp_index *index = &reader->copied_index;
    struct bp_snapshot_copied added = {.bytes = value->text,
                                       .count = (uint32_t)(value->count < MAX_TEXT ? value->count : MAX_TEXT)};
    bp_index_search search = bp_index_start(bp_hash(added.bytes, added.count));
    for (uint32_t entry = 0; bp_index_next(index, &search, &entry);) {
        const struct bp_snapshot_copied *known = &reader->copied[entry];
        if (known->count == added.count && memcmp(known->bytes, added.bytes, added.count) == 0) {
            *text = known->text;
            return BP_OK;
        }
    }
    if (index->count == reader->copied_capacity) {
        size_t capacity = reader->copied_capacity > 0 ? 2 * reader->copied_capacity : 128;
        BP_TRY(snapshot_take_budget(reader, capacity - reader->copied_capacity, sizeof *reader->copied));
        void *larger = realloc(reader->copied, capacity * sizeof *reader->copied);
        if (larger == NULL)
            return bp_fail_memory(capacity * sizeof *reader->copied);
        reader->copied = larger;
        reader->copied_capacity = capacity;
    }
    BP_TRY(snapshot_take_budget(reader, bp_index_next_capacity(index) - index->capacity, sizeof *index->slots));
    BP_TRY(bp_snapshot_copy(reader, added.bytes, added.count, &added.text));
    reader->copied[index->count] = added;
    *text = added.text;
    return bp_index_add(index, search.hash, (uint32_t)index->count);
}

bp_status bp_snapshot_text(const bp_snapshot_at *at, const char **text)
{
    const bp_pickle_value *v = &at->value;
    if (v->kind == BP_PICKLE_NONE) {
        *text = "";
        return BP_OK;
    }
    if (v->kind != BP_PICKLE_STRING)
        return bp_snapshot_fail(at, "%s, expected a string", v->kind == BP_PICKLE_ABSENT ? "missing" : "not that");
    return copy_once(at->reader, v, text);
}

bp_status bp_snapshot_text_or_none(const bp_snapshot_at *at, const char **text)
{
    *text = "";
    return at->value.kind == BP_PICKLE_ABSENT ? BP_OK : bp_snapshot_text(at, text);
}

/* ---- snapshots --------------------------------------------------------------------------------------------------- */

static bp_status read_root(bp_snapshot_reader *reader)
{
    bp_snapshot_at root = {.reader = reader, .value = bp_pickle_get(reader->pickle, reader->pickle->root)};
    bp_snapshot_at ours = bp_snapshot_member(&root, "bucketpool");
    if (root.value.kind != BP_PICKLE_DICTIONARY)
        return bp_snapshot_fail(&root, "not a snapshot: expected a dictionary");
    if (ours.value.kind == BP_PICKLE_ABSENT)
        return bp_snapshot_fail(&root, "not a snapshot of pools: expected \"bucketpool\"");
    return bp_snapshot_read_ours(&ours);
}

/* Extends the recording's times, which a file may lack, to those of the events. */
static void widen_times(bp_snapshot_info *info)
{
    bool any = info->is_ours;
    for (const bp_snapshot_pool *pool = info->pools; pool != NULL && pool < info->pools + info->pool_count; pool++) {
        for (size_t i = 0; i < pool->event_count + pool->slab_event_count; i++) {
            bool of_slab = i >= pool->event_count;
            uint64_t time = of_slab ? pool->slab_events[i - pool->event_count].time_ns : pool->events[i].time_ns;
            info->first_time_ns = any && info->first_time_ns < time ? info->first_time_ns : time;
            info->last_time_ns = any && info->last_time_ns > time ? info->last_time_ns : time;
            any = true;
        }
    }
    if (info->last_time_ns < info->first_time_ns)
        info->last_time_ns = info->first_time_ns;
}

/* Checks that sums of live bytes cannot overflow. */
static bp_status check_sums(const bp_snapshot *snapshot, const char *origin)
{
    for (size_t p = 0; p < snapshot->info.pool_count; p++) {
        const bp_snapshot_pool *pool = &snapshot->info.pools[p];
        uint64_t requests = 0, slabs = 0;
        bool fits = true;
        for (size_t i = 0; i < pool->request_count; i++)
            fits = fits && bp_add_u64(requests, pool->requests[i].bytes, &requests);
        for (size_t i = 0; i < pool->slab_count; i++)
            fits = fits && bp_add_u64(slabs, pool->slabs[i].bytes, &slabs);
        if (!fits)
            return bp_fail(BP_ERR_FORMAT,
                           "%.300s: pool %zu: the sum of the bytes of its requests or slabs exceeds "
                           "64 bits",
                           origin, p);
    }
    return BP_OK;
}

bp_status bp_snapshot_parse(const void *data, size_t bytes, const char *origin, bp_snapshot **snapshot)
{
    if (data == NULL || origin == NULL || snapshot == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_snapshot_parse: data, origin and snapshot must not be NULL");
    const size_t budget =
        bp_reader_budget(bytes) / 2; /* half for the values, which are freed first, half for the tables */
    bp_pickle pickle = {0};
    BP_TRY(bp_pickle_parse(data, bytes, budget, origin, NULL, &pickle));
    bp_snapshot *read = calloc(1, sizeof *read);
    if (read == NULL) {
        bp_pickle_finish(&pickle);
        return bp_fail_memory(sizeof *read);
    }
    read->info = (bp_snapshot_info){.version = "", .label = "", .coordinates = ""};
    bp_snapshot_reader reader = {
        .origin = origin, .pickle = &pickle, .snapshot = read, .budget = budget, .left = budget};
    bp_status status = read_root(&reader);
    if (status == BP_OK)
        status = check_sums(read, origin);
    free(reader.copied);
    bp_index_finish(&reader.copied_index);
    bp_pickle_finish(&pickle);
    if (status != BP_OK) {
        bp_snapshot_destroy(&read);
        return status;
    }
    widen_times(&read->info);
    *snapshot = read;
    return BP_OK;
}

bp_status bp_snapshot_read(const char *path, bp_snapshot **snapshot)
{
    if (path == NULL || snapshot == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_snapshot_read: path and snapshot must not be NULL");
    char *data = NULL;
    size_t bytes = 0;
    BP_TRY(bp_file_read(path, BP_PICKLE_MAX_BYTES, &data, &bytes));
    bp_status status = bp_snapshot_parse(data, bytes, path, snapshot);
    free(data);
    return status;
}

void bp_snapshot_destroy(bp_snapshot **snapshot)
{
    if (snapshot == NULL || *snapshot == NULL)
        return;
    for (bp_snapshot_block *block = (*snapshot)->blocks, *next; block != NULL; block = next) {
        next = block->next;
        free(block);
    }
    free(*snapshot);
    *snapshot = NULL;
}

const bp_snapshot_info *bp_snapshot_get_info(const bp_snapshot *snapshot)
{
    return snapshot != NULL ? &snapshot->info : NULL;
}
