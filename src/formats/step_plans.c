/* SPDX-License-Identifier: Apache-2.0 */
/* Step plans as bucketpool.step_plan/1: written, and read into a validated plan; and plans of snapshots of PyTorch.
 * docs/reference/formats.md describes every member. Items are columns, a list for each field: plans have up to 100,000. */
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>
#include <bucketpool/formats.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"
#include "formats/file.h"
#include "formats/json.h"
#include "formats/snapshots/trace_file.h"
#include "planner/steps/steps.h"

#define FORMAT "bucketpool.step_plan/1"
#define MAX_BYTES ((uint64_t)INT64_MAX)

/* ---- writing ------------------------------------------------------------------------------------------------------- */

typedef enum column { BYTES, OFFSETS, STREAMS, PLACES, PRECEDES, COLUMNS } column;

static const char *const column_names[COLUMNS] = {"item_bytes", "offsets", "item_streams", "item_places",
                                                  "precede_streams"};

/* UINT64_MAX: null. */
static uint64_t column_value(const bp_step_plan_item *item, column c)
{
    switch (c) {
    case BYTES: return item->bytes;
    case OFFSETS: return item->offset == BP_STEP_OUTSIDE ? UINT64_MAX : item->offset;
    case STREAMS: return item->stream;
    case PLACES: return item->place == BP_STEP_NO_PLACE ? UINT64_MAX : item->place;
    default: return item->precedes_stream != 0;
    }
}

static void write_kind(bp_json_writer *w, const bp_step_plan_kind *kind)
{
    bp_json_add_object(w, NULL);
    bp_json_add_flag(w, "first", kind->is_first);
    bp_json_add_number(w, "steps", kind->steps);
    bp_json_add_number(w, "bytes", kind->bytes);
    bp_json_add_number(w, "lower_bound_bytes", kind->lower_bound_bytes);
    bp_json_add_number(w, "proven_bytes", kind->proven_bytes);
    bp_json_add_text(w, "method", kind->method);
    bp_json_add_row(w, "marks");
    for (size_t i = 0; i < kind->mark_count; i++)
        bp_json_add_number(w, NULL, kind->marks[i]);
    bp_json_end(w);
    for (unsigned c = 0; c < COLUMNS; c++) {
        bp_json_add_row(w, column_names[c]);
        for (size_t i = 0; i < kind->item_count; i++) {
            const uint64_t value = column_value(&kind->items[i], (column)c);
            if (value == UINT64_MAX)
                bp_json_add_null(w, NULL);
            else
                bp_json_add_number(w, NULL, value);
        }
        bp_json_end(w);
    }
    bp_json_end(w);
}

static void write_step_plan(bp_json_writer *w, const bp_step_plan_info *info)
{
    bp_json_add_object(w, NULL);
    bp_json_add_text(w, "format", FORMAT);
    bp_json_add_number(w, "bytes", info->bytes);
    bp_json_add_number(w, "bytes_without_windows", info->bytes_without_windows);
    bp_json_add_number(w, "lower_bound_bytes", info->lower_bound_bytes);
    bp_json_add_number(w, "persistent_bytes", info->persistent_bytes);
    bp_json_add_number(w, "outside_bytes", info->outside_bytes);
    bp_json_add_number(w, "peak_live_bytes", info->peak_live_bytes);
    bp_json_add_number(w, "reserved_before_bytes", info->reserved_before_bytes);
    bp_json_add_flag(w, "optimal", info->optimal);
    bp_json_add_row(w, "streams");
    for (size_t i = 0; i < info->stream_count; i++)
        bp_json_add_number(w, NULL, info->streams[i]);
    bp_json_end(w);
    bp_json_add_list(w, "waits");
    for (size_t i = 0; i < info->waits_count; i++) {
        bp_json_add_object(w, NULL);
        bp_json_add_number(w, "waiting", info->waits[i].waiting);
        bp_json_add_number(w, "before", info->waits[i].before);
        bp_json_add_number(w, "waits", info->waits[i].waits);
        bp_json_end(w);
    }
    bp_json_end(w);
    bp_json_add_list(w, "places");
    for (size_t i = 0; i < info->place_count; i++)
        bp_json_add_text(w, NULL, info->places[i]);
    bp_json_end(w);
    bp_json_add_list(w, "kinds");
    for (size_t i = 0; i < info->kind_count; i++)
        write_kind(w, &info->kinds[i]);
    bp_json_end(w);
    bp_json_end(w);
}

/* Numbers that readers of JSON represent, and names that they accept. */
static bp_status check_writable(const bp_step_plan_info *info)
{
    bool is_small = info->bytes <= MAX_BYTES && info->bytes_without_windows <= MAX_BYTES &&
                    info->lower_bound_bytes <= MAX_BYTES && info->persistent_bytes <= MAX_BYTES &&
                    info->outside_bytes <= MAX_BYTES && info->peak_live_bytes <= MAX_BYTES &&
                    info->reserved_before_bytes <= MAX_BYTES;
    for (size_t i = 0; i < info->stream_count; i++)
        is_small = is_small && info->streams[i] <= MAX_BYTES;
    for (size_t i = 0; i < info->waits_count; i++)
        is_small = is_small && info->waits[i].waits <= MAX_BYTES;
    for (size_t k = 0; k < info->kind_count; k++) {
        const bp_step_plan_kind *kind = &info->kinds[k];
        is_small = is_small && kind->bytes <= MAX_BYTES && kind->lower_bound_bytes <= MAX_BYTES &&
                   kind->proven_bytes <= MAX_BYTES;
        for (size_t i = 0; i < kind->item_count; i++)
            is_small = is_small && kind->items[i].bytes <= MAX_BYTES;
    }
    if (!is_small)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "a step plan with a number of 2^63 or more cannot be saved");
    for (size_t i = 0; i < info->place_count; i++) {
        if (!bp_is_name(info->places[i]))
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "a step plan with a place that is empty, not UTF-8, or has control characters cannot be "
                           "saved");
    }
    return BP_OK;
}

bp_status bp_step_plan_write(const bp_step_plan *plan, const char *path)
{
    if (plan == NULL || path == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_plan_write: plan and path must not be NULL");
    bp_json_writer writer = {.layout = BP_JSON_LINES};
    BP_TRY(check_writable(bp_step_plan_get_info(plan)));
    write_step_plan(&writer, bp_step_plan_get_info(plan));
    if (writer.has_replaced)
        bp_json_check(&writer,
                      bp_fail(BP_ERR_INVALID_ARGUMENT, "a step plan with a method that is not UTF-8 cannot be saved"));
    return bp_json_save(&writer, path);
}

/* ---- reading ------------------------------------------------------------------------------------------------------- */

typedef struct contents {
    bp_step_plan_info info;
    uint64_t *streams;
    bp_step_plan_waits *waits;
    const char **places;
    bp_step_plan_kind *kinds; /* with items and marks that are freed */
} contents;

static bp_status step_plan_whole(const bp_json_at *object, const char *key, uint64_t max, uint64_t *value)
{
    bp_json_at member = bp_json_member(object, key);
    return bp_json_whole(&member, 0, max, value);
}

/* Sets a field of all items. */
static bp_status read_column(const bp_json_at *kind, column c, bp_step_plan_item *items, size_t count)
{
    static const uint64_t max[COLUMNS] = {MAX_BYTES, MAX_BYTES, UINT32_MAX, UINT32_MAX - 1, 1};
    bp_json_at list = bp_json_member(kind, column_names[c]);
    BP_TRY(bp_json_expect_list(&list));
    if (json_array_size(list.value) != count)
        return bp_json_fail(&list, "has %zu elements, but %s has %zu", json_array_size(list.value), column_names[BYTES],
                            count);
    for (size_t i = 0; i < count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        uint64_t value = UINT64_MAX;
        if ((c != OFFSETS && c != PLACES) || !json_is_null(at.value))
            BP_TRY(bp_json_whole(&at, 0, max[c], &value));
        switch (c) {
        case BYTES: items[i].bytes = value; break;
        case OFFSETS: items[i].offset = value; break;
        case STREAMS: items[i].stream = (uint32_t)value; break;
        case PLACES: items[i].place = (uint32_t)value; break; /* null becomes BP_STEP_NO_PLACE */
        default: items[i].precedes_stream = (uint32_t)value; break;
        }
    }
    return BP_OK;
}

static bp_status read_kind(const bp_json_at *at, bp_step_plan_kind *kind)
{
    static const char *const members[] = {
        "first",      "steps",   "bytes",        "lower_bound_bytes", "proven_bytes",    "method", "marks",
        "item_bytes", "offsets", "item_streams", "item_places",       "precede_streams", NULL};
    uint64_t number = 0;
    bool is_first = false;
    BP_TRY(bp_json_expect_object(at, members));
    bp_json_at first = bp_json_member(at, "first"), method = bp_json_member(at, "method"), list;
    BP_TRY(bp_json_flag(&first, &is_first));
    kind->is_first = is_first;
    BP_TRY(step_plan_whole(at, "steps", UINT32_MAX, &number));
    kind->steps = (uint32_t)number;
    BP_TRY(step_plan_whole(at, "bytes", MAX_BYTES, &kind->bytes));
    BP_TRY(step_plan_whole(at, "lower_bound_bytes", MAX_BYTES, &kind->lower_bound_bytes));
    BP_TRY(step_plan_whole(at, "proven_bytes", MAX_BYTES, &kind->proven_bytes));
    if (!json_is_string(method.value))
        return bp_json_fail_kind(&method, "a string");
    kind->method = json_string_value(method.value);
    uint32_t *marks = NULL;
    bp_step_plan_item *items = NULL;
    BP_TRY(bp_json_list(at, "marks", UINT32_MAX, sizeof *marks, &list, &marks, &kind->mark_count));
    kind->marks = marks;
    for (size_t i = 0; i < kind->mark_count; i++) {
        const bp_json_at mark = bp_json_element(&list, i);
        BP_TRY(bp_json_whole(&mark, 0, UINT32_MAX, &number));
        marks[i] = (uint32_t)number;
    }
    BP_TRY(bp_json_list(at, column_names[BYTES], (size_t)1 << 30, sizeof *items, &list, &items, &kind->item_count));
    kind->items = items;
    for (unsigned c = 0; c < COLUMNS; c++)
        BP_TRY(read_column(at, (column)c, items, kind->item_count));
    return BP_OK;
}

static bp_status read_tables(const bp_json_at *root, contents *c)
{
    static const char *const wait_members[] = {"waiting", "before", "waits", NULL};
    bp_json_at list;
    uint64_t number = 0;
    BP_TRY(bp_json_list(root, "streams", BP_STEP_PLAN_STREAMS, sizeof *c->streams, &list, &c->streams,
                        &c->info.stream_count));
    for (size_t i = 0; i < c->info.stream_count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        BP_TRY(bp_json_whole(&at, 0, MAX_BYTES, &c->streams[i]));
    }
    BP_TRY(bp_json_list(root, "waits", (size_t)BP_STEP_PLAN_STREAMS * BP_STEP_PLAN_STREAMS, sizeof *c->waits, &list,
                        &c->waits, &c->info.waits_count));
    for (size_t i = 0; i < c->info.waits_count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        BP_TRY(bp_json_expect_object(&at, wait_members));
        BP_TRY(step_plan_whole(&at, "waiting", UINT32_MAX, &number));
        c->waits[i].waiting = (uint32_t)number;
        BP_TRY(step_plan_whole(&at, "before", UINT32_MAX, &number));
        c->waits[i].before = (uint32_t)number;
        BP_TRY(step_plan_whole(&at, "waits", MAX_BYTES, &c->waits[i].waits));
    }
    BP_TRY(bp_json_list(root, "places", UINT32_MAX - 1, sizeof *c->places, &list, &c->places, &c->info.place_count));
    for (size_t i = 0; i < c->info.place_count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        BP_TRY(bp_json_name(&at, &c->places[i]));
    }
    BP_TRY(bp_json_list(root, "kinds", BP_STEP_PLAN_KINDS, sizeof *c->kinds, &list, &c->kinds, &c->info.kind_count));
    for (size_t i = 0; i < c->info.kind_count; i++) {
        const bp_json_at at = bp_json_element(&list, i);
        BP_TRY(read_kind(&at, &c->kinds[i]));
    }
    return BP_OK;
}

static bp_status step_plan_contents(const bp_json_at *root, contents *c)
{
    static const char *const members[] = {"format",
                                          "bytes",
                                          "bytes_without_windows",
                                          "lower_bound_bytes",
                                          "persistent_bytes",
                                          "outside_bytes",
                                          "peak_live_bytes",
                                          "reserved_before_bytes",
                                          "optimal",
                                          "streams",
                                          "waits",
                                          "places",
                                          "kinds",
                                          NULL};
    const char *format = NULL;
    BP_TRY(bp_json_expect_object(root, NULL));
    bp_json_at format_at = bp_json_member(root, "format");
    if (format_at.value == NULL)
        return bp_json_fail(&format_at,
                            "is missing, so this is not a step plan; `bucketpool step SNAPSHOT -o FILE` writes one");
    BP_TRY(bp_json_name(&format_at, &format));
    if (strcmp(format, FORMAT) != 0)
        return bp_json_fail(
            &format_at, "expected \"" FORMAT "\", got \"%.*s\"; `bucketpool step SNAPSHOT -o FILE` writes step plans",
            BP_QUOTED, format);
    BP_TRY(bp_json_expect_object(root, members));
    bp_step_plan_info *info = &c->info;
    BP_TRY(step_plan_whole(root, "bytes", MAX_BYTES, &info->bytes));
    BP_TRY(step_plan_whole(root, "bytes_without_windows", MAX_BYTES, &info->bytes_without_windows));
    BP_TRY(step_plan_whole(root, "lower_bound_bytes", MAX_BYTES, &info->lower_bound_bytes));
    BP_TRY(step_plan_whole(root, "persistent_bytes", MAX_BYTES, &info->persistent_bytes));
    BP_TRY(step_plan_whole(root, "outside_bytes", MAX_BYTES, &info->outside_bytes));
    BP_TRY(step_plan_whole(root, "peak_live_bytes", MAX_BYTES, &info->peak_live_bytes));
    BP_TRY(step_plan_whole(root, "reserved_before_bytes", MAX_BYTES, &info->reserved_before_bytes));
    bool optimal = false;
    bp_json_at flag = bp_json_member(root, "optimal");
    BP_TRY(bp_json_flag(&flag, &optimal));
    info->optimal = optimal;
    return read_tables(root, c);
}

static void contents_finish(contents *c)
{
    for (size_t i = 0; i < c->info.kind_count; i++) {
        free((void *)c->kinds[i].items);
        free((void *)c->kinds[i].marks);
    }
    free(c->kinds);
    free((void *)c->places);
    free(c->waits);
    free(c->streams);
}

bp_status bp_step_plan_parse(const char *text, size_t bytes, const char *origin, bp_step_plan **plan)
{
    if (text == NULL || origin == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_plan_parse: text, origin and plan must not be NULL");
    json_t *document = NULL;
    BP_TRY(bp_json_parse(text, bytes, origin, NULL, &document));
    const bp_json_at root = bp_json_root(document, origin);
    contents c = {0};
    bp_status status = step_plan_contents(&root, &c);
    if (status == BP_OK) {
        c.info.streams = c.streams;
        c.info.waits = c.waits;
        c.info.places = c.places;
        c.info.kinds = c.kinds;
        status = bp_fail_at(origin, bp_step_plan_from_info(&c.info, plan));
    }
    contents_finish(&c);
    json_decref(document);
    return status;
}

bp_status bp_step_plan_read(const char *path, bp_step_plan **plan)
{
    if (path == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_plan_read: path and plan must not be NULL");
    char *text;
    size_t bytes;
    BP_TRY(bp_file_read(path, BP_LARGEST_JSON_BYTES, &text, &bytes));
    bp_status status = bp_step_plan_parse(text, bytes, path, plan);
    free(text);
    return status;
}

/* ---- snapshots ----------------------------------------------------------------------------------------------------- */

static bp_status plan_snapshot(const bp_trace *trace, const char *path, const bp_step_plan_config *config,
                               bp_step_plan **plan)
{
    bp_allocations allocations = {0};
    bp_stack_places places = {0};
    bp_steps steps = {0};
    bp_step_plan_config ours;
    BP_TRY(bp_step_plan_config_init(&ours, sizeof ours));
    BP_TRY(bp_struct_read("bp_step_plan_read_snapshot", config, true, &ours, sizeof ours));
    bp_status status = bp_allocations_init(trace, &allocations);
    if (status == BP_OK)
        status = bp_stack_places_init(trace, &places);
    if (status == BP_OK)
        status = bp_steps_init(trace, &allocations, &places, &steps);
    if (status == BP_OK) {
        ours.is_from_start = ours.is_from_start && allocations.live_at_start == 0;
        status = bp_step_plan_trace(trace, &allocations, &places, &steps, &ours, NULL, plan);
    }
    bp_steps_finish(&steps);
    bp_stack_places_finish(&places);
    bp_allocations_finish(&allocations);
    return bp_fail_at(path, status);
}

bp_status bp_step_plan_read_snapshot(const char *path, uint32_t device, const bp_step_plan_config *config,
                                     bp_step_plan **plan)
{
    if (path == NULL || plan == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_step_plan_read_snapshot: path and plan must not be NULL");
    bp_trace_file *file = NULL;
    BP_TRY(bp_trace_file_read(path, &file));
    const bp_trace_file_info *info = bp_trace_file_get_info(file);
    const bp_trace *trace = NULL;
    for (size_t i = 0; i < info->trace_count && trace == NULL; i++)
        trace = info->traces[i].device == device ? &info->traces[i] : NULL;
    bp_status status = BP_OK;
    if (info->is_of_pools)
        status = bp_fail(BP_ERR_FORMAT, "%.300s: a snapshot of bucketpool's pools, not of PyTorch's allocator", path);
    else if (trace == NULL)
        status = bp_fail(BP_ERR_FORMAT,
                         "%.300s: nothing was recorded on device %u; call torch.cuda.memory._record_memory_history() "
                         "before the steps",
                         path, device);
    else
        status = plan_snapshot(trace, path, config, plan);
    bp_trace_file_destroy(&file);
    return status;
}
