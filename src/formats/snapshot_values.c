/* Values of a snapshot, with where they are when they are wrong. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "formats/detail.h"
#include "formats/pickle_values.h"
#include "formats/snapshot_file.h"

enum { PATH_CHARS = 160, MOST_TEXT = 512 };

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
    return bp_fail_quoting(BP_ERR_FORMAT, "%.160s: %s%s%s", at->reader->origin, path, *path != '\0' ? ": " : "", what);
}

bp_snapshot_at bp_snapshot_member(const bp_snapshot_at *at, const char *name)
{
    return (bp_snapshot_at){
        .reader = at->reader, .value = bp_pickle_find(at->value, name), .parent = at, .member = name};
}

bp_snapshot_at bp_snapshot_item(const bp_snapshot_at *at, size_t index)
{
    bool there = bp_pickle_is_list(at->value) && index < at->value->count;
    return (bp_snapshot_at){
        .reader = at->reader, .value = there ? at->value->items[index] : NULL, .parent = at, .index = index};
}

bp_status bp_snapshot_number(const bp_snapshot_at *at, uint64_t most, uint64_t *number)
{
    const bp_pickle_value *v = at->value;
    if (v == NULL || v->kind != BP_PICKLE_INTEGER || v->is_negative)
        return bp_snapshot_fail(at, "%s, expected an integer that is not negative", v == NULL ? "missing" : "not that");
    if (v->magnitude > most)
        return bp_snapshot_fail(at, "%llu, expected at most %llu", (unsigned long long)v->magnitude,
                                (unsigned long long)most);
    *number = v->magnitude;
    return BP_OK;
}

bp_status bp_snapshot_number_or_0(const bp_snapshot_at *at, uint64_t *number)
{
    *number = 0;
    return at->value == NULL || at->value->kind == BP_PICKLE_NONE ? BP_OK : bp_snapshot_number(at, UINT64_MAX, number);
}

bp_status bp_snapshot_truth(const bp_snapshot_at *at, int *truth)
{
    const bp_pickle_value *v = at->value;
    if (v == NULL || (v->kind != BP_PICKLE_BOOL && v->kind != BP_PICKLE_INTEGER))
        return bp_snapshot_fail(at, "%s, expected True or False", v == NULL ? "missing" : "not that");
    *truth = v->magnitude != 0;
    return BP_OK;
}

bp_status bp_snapshot_copy(bp_snapshot_reader *reader, const char *bytes, size_t count, const char **text)
{
    size_t taken = count < MOST_TEXT ? count : MOST_TEXT;
    char *copy = bp_pickle_allocate(&reader->snapshot->memory, taken + 1);
    if (copy == NULL)
        return bp_fail_memory(taken + 1);
    for (size_t i = 0; i < taken; i++)
        copy[i] = bytes[i] != '\0' ? bytes[i] : '?';
    copy[taken] = '\0';
    bp_make_printable(copy);
    *text = copy;
    return BP_OK;
}

/* ---- texts that are copied once ------------------------------------------------------------------------------------------------ */

typedef struct bp_snapshot_copied {
    const bp_pickle_value *value;
    const char *text;
} bp_snapshot_copied;

/* Where a value is in the table, or would be. */
static bp_snapshot_copied *find_copied(bp_snapshot_copied *table, size_t capacity, const bp_pickle_value *value)
{
    size_t at = (size_t)((uintptr_t)value / sizeof *value * 0x9e3779b97f4a7c15u >> 20) & (capacity - 1);
    while (table[at].value != NULL && table[at].value != value)
        at = (at + 1) & (capacity - 1);
    return &table[at];
}

static bp_status grow_copied(bp_snapshot_reader *reader)
{
    size_t capacity = reader->copied_capacity > 0 ? 2 * reader->copied_capacity : 256;
    bp_snapshot_copied *larger = calloc(capacity, sizeof *larger);
    if (larger == NULL)
        return bp_fail_memory(capacity * sizeof *larger);
    for (size_t i = 0; i < reader->copied_capacity; i++) {
        if (reader->copied[i].value != NULL)
            *find_copied(larger, capacity, reader->copied[i].value) = reader->copied[i];
    }
    free(reader->copied);
    reader->copied = larger;
    reader->copied_capacity = capacity;
    return BP_OK;
}

static bp_status copy_once(bp_snapshot_reader *reader, const bp_pickle_value *value, const char **text)
{
    if (2 * (reader->copied_count + 1) > reader->copied_capacity)
        BP_TRY(grow_copied(reader));
    bp_snapshot_copied *entry = find_copied(reader->copied, reader->copied_capacity, value);
    if (entry->value == NULL) {
        BP_TRY(bp_snapshot_copy(reader, value->text, value->count, &entry->text));
        entry->value = value;
        reader->copied_count++;
    }
    *text = entry->text;
    return BP_OK;
}

bp_status bp_snapshot_text(const bp_snapshot_at *at, const char **text)
{
    const bp_pickle_value *v = at->value;
    if (v != NULL && v->kind == BP_PICKLE_NONE) {
        *text = "";
        return BP_OK;
    }
    if (v == NULL || v->kind != BP_PICKLE_STRING)
        return bp_snapshot_fail(at, "%s, expected a string", v == NULL ? "missing" : "not that");
    return copy_once(at->reader, v, text);
}

bp_status bp_snapshot_text_or_none(const bp_snapshot_at *at, const char **text)
{
    *text = "";
    return at->value == NULL ? BP_OK : bp_snapshot_text(at, text);
}

bp_status bp_snapshot_room(bp_snapshot_reader *reader, size_t count, size_t element_bytes, void **entries)
{
    if (count > reader->left)
        return bp_fail_quoting(BP_ERR_FORMAT, "%.300s: lists that are in it many times over are not read",
                               reader->origin);
    reader->left -= count;
    *entries = bp_pickle_allocate(&reader->snapshot->memory, count * element_bytes);
    if (*entries == NULL)
        return bp_fail_memory(count * element_bytes);
    memset(*entries, 0, count * element_bytes);
    return BP_OK;
}

bp_status bp_snapshot_list(const bp_snapshot_at *at, size_t element_bytes, void **entries, size_t *count)
{
    if (at->value != NULL && at->value->kind != BP_PICKLE_NONE && !bp_pickle_is_list(at->value))
        return bp_snapshot_fail(at, "expected a list");
    size_t items = bp_pickle_is_list(at->value) ? at->value->count : 0;
    BP_TRY(bp_snapshot_room(at->reader, items, element_bytes, entries));
    *count = items;
    return BP_OK;
}
