/* SPDX-License-Identifier: Apache-2.0 */
/* Reads bucketpool.fit/1 and the lines that Python writes before it. docs/reference/formats.md describes every member. */
#include <bucketpool/core/fail.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "formats/file.h"
#include "formats/fit_file.h"
#include "formats/json.h"

#define FORMAT_NAME "bucketpool.fit/"
#define FORMAT FORMAT_NAME "1"

enum { MAX_TABLES = 16, MAX_ROWS = 1 << 16, MAX_ELEMENTS = 1024, HEAD_BYTES = 4096 };

struct bp_fit_file {
    json_t *document; /* has all texts */
    char *text;
    bp_fit_message message;
    bp_fit_info info;
    bp_fit_option *options;
    bp_fit_table *tables; /* with rows that are freed */
    bp_fit_kind *kinds;
    bp_fit_change *changes;
    const char **notes;
};

/* ---- members ------------------------------------------------------------------------------------------------------- */

static bp_status fit_whole(const bp_json_at *object, const char *key, uint64_t min, uint64_t *value)
{
    const bp_json_at member = bp_json_member(object, key);
    return bp_json_whole(&member, min, INT64_MAX, value);
}

/* Texts are printed as they are; they may be empty. */
static bp_status fit_text(const bp_json_at *object, const char *key, const char **text)
{
    const bp_json_at member = bp_json_member(object, key);
    if (!json_is_string(member.value))
        return bp_json_fail_kind(&member, "a string");
    *text = json_string_value(member.value);
    return BP_OK;
}

static bp_status fit_name(const bp_json_at *object, const char *key, const char **name)
{
    const bp_json_at member = bp_json_member(object, key);
    return bp_json_name(&member, name);
}

static bp_status fit_flag(const bp_json_at *object, const char *key, bool *value)
{
    const bp_json_at member = bp_json_member(object, key);
    return member.value != NULL ? bp_json_flag(&member, value) : bp_json_fail_kind(&member, "true or false");
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

#define FIGURES                                                                                                        \
    "default_bytes", "expandable_bytes", "served_bytes", "peak_bytes", "default_retries", "expandable_retries"
static const char *const figures_members[] = {FIGURES, NULL}; /* bp_fit_total, then those that retry */

static bp_status fit_figures(const bp_json_at *at, bp_fit_figures *figures)
{
    for (unsigned t = 0; t < BP_FIT_TOTALS; t++)
        BP_TRY(fit_whole(at, figures_members[t], 0, &figures->bytes[t]));
    for (unsigned t = 0; t < BP_FIT_RETRYING; t++) {
        const char *key = figures_members[BP_FIT_TOTALS + t];
        figures->retries[t] = BP_FIT_FAILS;
        if (!json_is_null(json_object_get(at->value, key)))
            BP_TRY(fit_whole(at, key, 0, &figures->retries[t]));
    }
    return BP_OK;
}

static uint64_t larger_figure(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bp_status fit_row(const bp_json_at *at, uint64_t above, bp_fit_row *row)
{
    static const char *const members[] = {"batch", "is_traced", FIGURES, "skewed", NULL};
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(fit_whole(at, "batch", 1, &row->batch));
    if (row->batch <= above)
        return bp_json_fail(at, "micro-batch %llu is behind %llu; expected them in ascending order",
                            (unsigned long long)row->batch, (unsigned long long)above);
    BP_TRY(fit_flag(at, "is_traced", &row->is_traced));
    BP_TRY(fit_figures(at, &row->uniform));
    row->worst = row->uniform;
    const bp_json_at skewed = bp_json_member(at, "skewed");
    if (skewed.value == NULL || json_is_null(skewed.value))
        return BP_OK;
    row->has_skewed = true;
    BP_TRY(bp_json_expect_object(&skewed, figures_members));
    BP_TRY(fit_figures(&skewed, &row->skewed));
    for (unsigned t = 0; t < BP_FIT_TOTALS; t++)
        row->worst.bytes[t] = larger_figure(row->uniform.bytes[t], row->skewed.bytes[t]);
    for (unsigned t = 0; t < BP_FIT_RETRYING; t++)
        row->worst.retries[t] = larger_figure(row->uniform.retries[t], row->skewed.retries[t]);
    return BP_OK;
}

static const char *const allocator_names[BP_FIT_ALLOCATORS] = {"default", "expandable", "served"};

/* No row says that a larger micro-batch runs, or that the largest one does not. */
static bp_status check_largest(const bp_json_at *at, const bp_fit_row *row, uint64_t largest, bool runs,
                               const char *allocator)
{
    if (row->batch > largest ? !runs : row->batch < largest || runs)
        return BP_OK;
    return bp_json_fail(at, "%llu is not the largest micro-batch of \"%s\": by its row, %llu %s",
                        (unsigned long long)largest, allocator, (unsigned long long)row->batch,
                        runs ? "fits" : "does not fit");
}

/* Members that are named as bp_fit_total. */
static bp_status fit_largest(const bp_json_at *table, const char *key, unsigned count, uint64_t *largest)
{
    const char *known[BP_FIT_ALLOCATORS + 1] = {NULL};
    const bp_json_at at = bp_json_member(table, key);
    memcpy(known, allocator_names, count * sizeof *known);
    BP_TRY(bp_json_expect_object(&at, known));
    for (unsigned t = 0; t < count; t++)
        BP_TRY(fit_whole(&at, allocator_names[t], 0, &largest[t]));
    return BP_OK;
}

static bp_status check_edges(const bp_json_at *at, const bp_fit_table *table, uint64_t limit)
{
    const bp_json_at largest = bp_json_member(at, "largest"), smooth = bp_json_member(at, "largest_without_retries");
    for (size_t i = 0; i < table->row_count; i++) {
        const bp_fit_row *row = &table->rows[i];
        for (unsigned t = 0; t < BP_FIT_ALLOCATORS; t++)
            BP_TRY(check_largest(&largest, row, table->largest[t], bp_fit_runs(&row->worst, (bp_fit_total)t, limit),
                                 allocator_names[t]));
        for (unsigned t = 0; t < BP_FIT_RETRYING; t++)
            BP_TRY(check_largest(&smooth, row, table->largest_without_retries[t], row->worst.retries[t] == 0,
                                 allocator_names[t]));
    }
    return BP_OK;
}

static bp_status fit_table(const bp_json_at *at, uint64_t limit, bp_fit_table *table)
{
    static const char *const members[] = {"checkpointing",           "deviation", "rows", "largest",
                                          "largest_without_retries", NULL};
    bp_json_at list;
    bp_fit_row *rows = NULL;
    BP_TRY(bp_json_expect_object(at, members));
    BP_TRY(fit_text(at, "checkpointing", &table->checkpointing));
    const bp_json_at deviation = bp_json_member(at, "deviation");
    if (!json_is_null(deviation.value) && !json_is_number(deviation.value))
        return bp_json_fail_kind(&deviation, "a share, or null");
    table->is_scaled = json_is_number(deviation.value);
    table->deviation = json_number_value(deviation.value);
    if (!(table->deviation >= 0) || table->deviation > 1)
        return bp_json_fail(&deviation, "is not a share from 0 to 1");
    BP_TRY(bp_json_list(at, "rows", MAX_ROWS, sizeof *rows, &list, &rows, &table->row_count));
    table->rows = rows;
    if (rows == NULL || table->row_count == 0)
        return bp_json_fail(&list, "is empty; expected at least one micro-batch");
    uint64_t above = 0;
    for (size_t i = 0; i < table->row_count; i++) {
        const bp_json_at row = bp_json_element(&list, i);
        BP_TRY(fit_row(&row, above, &rows[i]));
        above = rows[i].batch;
    }
    BP_TRY(fit_largest(at, "largest", BP_FIT_ALLOCATORS, table->largest));
    BP_TRY(fit_largest(at, "largest_without_retries", BP_FIT_RETRYING, table->largest_without_retries));
    return check_edges(at, table, limit);
}

static bp_status fit_tables(const bp_json_at *root, bp_fit_file *file)
{
    bp_json_at list;
    bp_fit_info *info = &file->info;
    BP_TRY(bp_json_list(root, "tables", MAX_TABLES, sizeof *file->tables, &list, &file->tables, &info->table_count));
    info->tables = file->tables;
    if (info->table_count == 0)
        return bp_json_fail(&list, "is empty; expected at least one table");
    for (size_t i = 0; i < info->table_count; i++) {
        const bp_json_at table = bp_json_element(&list, i);
        BP_TRY(fit_table(&table, info->limit_bytes, &file->tables[i]));
    }
    return BP_OK;
}

/* ---- the rest of a document ---------------------------------------------------------------------------------------- */

static bp_status fit_gpu(const bp_json_at *root, bp_fit_info *info)
{
    static const char *const members[] = {"name", "bytes", "reserve_bytes", "source", NULL};
    const bp_json_at gpu = bp_json_member(root, "gpu"), limit = bp_json_member(root, "limit_bytes");
    BP_TRY(bp_json_expect_object(&gpu, members));
    BP_TRY(fit_name(&gpu, "name", &info->gpu));
    BP_TRY(fit_whole(&gpu, "bytes", 1, &info->gpu_bytes));
    BP_TRY(fit_whole(&gpu, "reserve_bytes", 0, &info->reserve_bytes));
    BP_TRY(fit_text(&gpu, "source", &info->gpu_source));
    BP_TRY(fit_whole(root, "limit_bytes", 1, &info->limit_bytes));
    if (info->reserve_bytes > info->gpu_bytes || info->limit_bytes != info->gpu_bytes - info->reserve_bytes)
        return bp_json_fail(&limit, "%llu is not %llu less %llu, what the reserve leaves of the GPU",
                            (unsigned long long)info->limit_bytes, (unsigned long long)info->gpu_bytes,
                            (unsigned long long)info->reserve_bytes);
    return BP_OK;
}

static int by_option_name(const void *left, const void *right)
{
    return strcmp(((const bp_fit_option *)left)->name, ((const bp_fit_option *)right)->name);
}

/* Any members: the Python interface has options that the command has not. Lists, objects and null are left out. */
static bp_status fit_options(const bp_json_at *root, bp_fit_file *file)
{
    const bp_json_at options = bp_json_member(root, "options");
    BP_TRY(bp_json_expect_object(&options, NULL));
    const size_t count = json_object_size(options.value);
    if (count > MAX_ELEMENTS)
        return bp_json_fail(&options, "has %zu members; at most %d are possible", count, MAX_ELEMENTS);
    file->options = calloc(count + 1, sizeof *file->options);
    if (file->options == NULL)
        return bp_fail_memory((count + 1) * sizeof *file->options);
    const char *key;
    json_t *value;
    json_object_foreach(options.value, key, value)
    {
        bp_fit_option *o = &file->options[file->info.option_count];
        snprintf(o->name, sizeof o->name, "%s", key);
        for (char *c = o->name; *c != '\0'; c++)
            *c = *c == '_' ? '-' : *c;
        if (json_is_string(value))
            snprintf(o->value, sizeof o->value, "%s", json_string_value(value));
        else if (json_is_integer(value))
            snprintf(o->value, sizeof o->value, "%lld", (long long)json_integer_value(value));
        else if (json_is_boolean(value))
            snprintf(o->value, sizeof o->value, "%s", json_is_true(value) ? "true" : "false");
        else
            continue;
        file->info.option_count++;
    }
    qsort(file->options, file->info.option_count, sizeof *file->options, by_option_name);
    file->info.options = file->options;
    const bp_json_at batch = bp_json_member(&options, "batch");
    if (batch.value == NULL || json_is_null(batch.value))
        return BP_OK;
    return bp_json_whole(&batch, 1, INT64_MAX, &file->info.batch);
}

static bp_status fit_shown(const bp_json_at *root, bp_fit_file *file)
{
    static const char *const members[] = {"batch", "kinds", "recording", NULL};
    static const char *const kind_members[] = {"kind", "bytes", NULL};
    bp_fit_info *info = &file->info;
    const bp_json_at shown = bp_json_member(root, "shown"), recording = bp_json_member(&shown, "recording");
    bp_json_at list;
    BP_TRY(bp_json_expect_object(&shown, members));
    BP_TRY(fit_whole(&shown, "batch", 1, &info->shown_batch));
    for (size_t i = 0; i < info->tables[0].row_count; i++) {
        if (info->tables[0].rows[i].batch == info->shown_batch)
            info->shown = &info->tables[0].rows[i];
    }
    if (info->shown == NULL)
        return bp_json_fail(&shown, "micro-batch %llu is not in the first table",
                            (unsigned long long)info->shown_batch);
    if (info->batch != 0 && info->batch != info->shown_batch)
        return bp_json_fail(&shown, "micro-batch %llu is shown, but %llu was asked for",
                            (unsigned long long)info->shown_batch, (unsigned long long)info->batch);
    BP_TRY(bp_json_list(&shown, "kinds", MAX_ELEMENTS, sizeof *file->kinds, &list, &file->kinds, &info->kind_count));
    info->kinds = file->kinds;
    uint64_t sum = 0;
    for (size_t i = 0; i < info->kind_count; i++) {
        const bp_json_at kind = bp_json_element(&list, i);
        BP_TRY(bp_json_expect_object(&kind, kind_members));
        BP_TRY(fit_name(&kind, "kind", &file->kinds[i].kind));
        BP_TRY(fit_whole(&kind, "bytes", 0, &file->kinds[i].bytes));
        if (__builtin_add_overflow(sum, file->kinds[i].bytes, &sum))
            return bp_json_fail(&list, "the kinds together exceed 64 bits");
    }
    if (recording.value != NULL && json_is_null(recording.value))
        return BP_OK;
    return bp_json_name(&recording, &info->recording);
}

static bp_status fit_changes(const bp_json_at *root, bp_fit_file *file)
{
    static const char *const members[] = {"change", "option", "batch", "before_bytes", "after_bytes", NULL};
    bp_fit_info *info = &file->info;
    bp_json_at list;
    BP_TRY(
        bp_json_list(root, "changes", MAX_ELEMENTS, sizeof *file->changes, &list, &file->changes, &info->change_count));
    info->changes = file->changes;
    for (size_t i = 0; i < info->change_count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        bp_fit_change *change = &file->changes[i];
        uint64_t batch = 0;
        BP_TRY(bp_json_expect_object(&at, members));
        BP_TRY(fit_name(&at, "change", &change->change));
        BP_TRY(fit_text(&at, "option", &change->option));
        BP_TRY(fit_whole(&at, "batch", 1, &batch));
        if (batch != info->shown_batch)
            return bp_json_fail(&at, "micro-batch %llu, but %llu is shown", (unsigned long long)batch,
                                (unsigned long long)info->shown_batch);
        BP_TRY(fit_whole(&at, "before_bytes", 0, &change->before_bytes));
        BP_TRY(fit_whole(&at, "after_bytes", 0, &change->after_bytes));
    }
    return BP_OK;
}

static bp_status fit_notes(const bp_json_at *root, bp_fit_file *file)
{
    bp_json_at list;
    BP_TRY(bp_json_list(root, "notes", MAX_ELEMENTS, sizeof *file->notes, &list, &file->notes, &file->info.note_count));
    file->info.notes = file->notes;
    for (size_t i = 0; i < file->info.note_count; i++) {
        const bp_json_at note = bp_json_element(&list, i);
        BP_TRY(bp_json_name(&note, &file->notes[i]));
    }
    return BP_OK;
}

static bp_status fit_document(const bp_json_at *root, bp_fit_file *file)
{
    static const char *const members[] = {"format",   "model", "parameters",  "options",   "sequence",
                                          "versions", "gpu",   "limit_bytes", "tables",    "shown",
                                          "changes",  "notes", "seconds",     "is_cached", NULL};
    bp_fit_info *info = &file->info;
    const bp_json_at format = bp_json_member(root, "format"), sequence = bp_json_member(root, "sequence"),
                     versions = bp_json_member(root, "versions"), seconds = bp_json_member(root, "seconds");
    const char *name = NULL;
    BP_TRY(bp_json_name(&format, &name));
    if (strcmp(name, FORMAT) != 0)
        return bp_json_fail(&format, "expected \"" FORMAT "\", got \"%.*s\"; `bucketpool fit MODEL --json` writes one",
                            BP_QUOTED, name);
    BP_TRY(bp_json_expect_object(root, members));
    BP_TRY(fit_name(root, "model", &info->model));
    BP_TRY(fit_whole(root, "parameters", 0, &info->parameters));
    if (sequence.value == NULL || !json_is_null(sequence.value))
        BP_TRY(fit_whole(root, "sequence", 1, &info->sequence));
    BP_TRY(bp_json_expect_object(&versions, NULL));
    BP_TRY(fit_options(root, file));
    BP_TRY(fit_gpu(root, info));
    BP_TRY(fit_tables(root, file));
    BP_TRY(fit_shown(root, file));
    BP_TRY(fit_changes(root, file));
    BP_TRY(fit_notes(root, file));
    if (!json_is_number(seconds.value) || json_number_value(seconds.value) < 0)
        return bp_json_fail_kind(&seconds, "a number of seconds");
    info->seconds = json_number_value(seconds.value);
    BP_TRY(fit_flag(root, "is_cached", &info->is_cached));
    file->message.fit = info;
    return BP_OK;
}

/* ---- messages ------------------------------------------------------------------------------------------------------ */

static bp_status fit_message(const bp_json_at *root, bp_fit_file *file)
{
    static const char *const progress_members[] = {"progress", "done", "total", NULL};
    static const char *const error_members[] = {"error", "exit", NULL};
    bp_fit_message *message = &file->message;
    BP_TRY(bp_json_expect_object(root, NULL));
    if (json_object_get(root->value, "progress") != NULL) {
        BP_TRY(bp_json_expect_object(root, progress_members));
        BP_TRY(fit_whole(root, "total", 1, &message->total));
        const bp_json_at done = bp_json_member(root, "done");
        BP_TRY(bp_json_whole(&done, 0, message->total, &message->done));
        return fit_name(root, "progress", &message->progress);
    }
    if (json_object_get(root->value, "error") == NULL)
        return fit_document(root, file);
    uint64_t status = 0;
    const bp_json_at at = bp_json_member(root, "exit");
    BP_TRY(bp_json_expect_object(root, error_members));
    BP_TRY(bp_json_whole(&at, 1, 3, &status));
    message->status = (int)status;
    return fit_name(root, "error", &message->error);
}

bp_status bp_fit_file_parse(const char *text, size_t bytes, const char *origin, bp_fit_file **file)
{
    if (text == NULL || origin == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_fit_file_parse: text, origin and file must not be NULL");
    bp_fit_file *read = calloc(1, sizeof *read);
    if (read == NULL)
        return bp_fail_memory(sizeof *read);
    bp_status status = bp_json_parse(text, bytes, origin, NULL, &read->document);
    if (status == BP_OK) {
        const bp_json_at root = bp_json_root(read->document, origin);
        status = fit_message(&root, read);
    }
    read->text = status == BP_OK ? strndup(text, bytes) : NULL;
    if (status == BP_OK && read->text == NULL)
        status = bp_fail_memory(bytes + 1);
    if (status == BP_OK)
        *file = read;
    else
        bp_fit_file_destroy(&read);
    return status;
}

bp_status bp_fit_file_read(const char *path, bp_fit_file **file)
{
    if (path == NULL || file == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_fit_file_read: path and file must not be NULL");
    char *text;
    size_t bytes;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    bp_fit_file *read = NULL;
    bp_status status = bp_fit_file_parse(text, bytes, path, &read);
    free(text);
    if (status == BP_OK && read->message.fit == NULL)
        status = bp_fail(BP_ERR_FORMAT, "%.300s: not an answer of `bucketpool fit`, but a line before one", path);
    if (status == BP_OK)
        *file = read;
    else
        bp_fit_file_destroy(&read);
    return status;
}

void bp_fit_file_destroy(bp_fit_file **file)
{
    if (file == NULL || *file == NULL)
        return;
    bp_fit_file *read = *file;
    for (size_t i = 0; i < read->info.table_count; i++)
        free((void *)read->tables[i].rows);
    free(read->options);
    free(read->tables);
    free(read->kinds);
    free(read->changes);
    free(read->notes);
    free(read->text);
    json_decref(read->document);
    free(read);
    *file = NULL;
}

const bp_fit_message *bp_fit_file_get_message(const bp_fit_file *file)
{
    return file != NULL ? &file->message : NULL;
}

const char *bp_fit_file_text(const bp_fit_file *file)
{
    return file != NULL ? file->text : NULL;
}

bool bp_fit_file_is_document(const char *path)
{
    char head[HEAD_BYTES + 1];
    size_t got = 0;
    uint64_t bytes = 0;
    if (bp_file_read_at(path, 0, HEAD_BYTES, head, &got, &bytes) != BP_OK)
        return false;
    head[got] = '\0';
    return strstr(head, "\"" FORMAT_NAME) != NULL;
}
