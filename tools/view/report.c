/* SPDX-License-Identifier: Apache-2.0 */
/* The report of `view`: tables, the comparison of ranks, and the document bucketpool.view/1. */
#include "core/print.h"
#include "view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"
#include "shared/cli.h"
#include "shared/sheet.h"

typedef struct view_metric {
    const char *name;
    uint64_t (*value)(const view_pool *pool);
    bool is_bytes;
} view_metric;

#define VIEW_METRICS 5
extern const view_metric view_metrics[VIEW_METRICS];

/* A figure over the files that have the pool. */
typedef struct view_spread {
    size_t files;
    size_t min_file, max_file, odd_file; /* first file with the value; odd_file SIZE_MAX: no outlier */
    uint64_t min, max, median;
} view_spread;

/* ---- comparing ranks --------------------------------------------------------------------------------------------- */

static uint64_t peak_of(const view_pool *pool)
{
    return pool->peak_bytes;
}

static uint64_t slabs_of(const view_pool *pool)
{
    return pool->peak_slab_bytes;
}

static uint64_t free_of(const view_pool *pool)
{
    return pool->peak_free_bytes;
}

static uint64_t length_of(const view_pool *pool)
{
    return pool->length_ns;
}

static uint64_t events_of(const view_pool *pool)
{
    return pool->info->event_count + pool->info->lost_events;
}

const view_metric view_metrics[VIEW_METRICS] = {{"live peak", peak_of, true},
                                                {"slabs", slabs_of, true},
                                                {"free at the peak", free_of, true},
                                                {"time", length_of, false},
                                                {"events", events_of, false}};

/* The pool of this name in a file; NULL: none. */
static const view_pool *view_find_pool(const view_file *file, const char *name)
{
    for (size_t i = 0; i < file->pool_count; i++) {
        if (strcmp(file->pools[i].info->name, name) == 0)
            return &file->pools[i];
    }
    return NULL;
}

/* true: no earlier file or pool has the name of pool `pool` of file `file`. */
static bool view_is_first_of_name(const view_file *files, size_t file, size_t pool)
{
    const char *name = files[file].pools[pool].info->name;
    for (size_t i = 0; i < file; i++) {
        if (view_find_pool(&files[i], name) != NULL)
            return false;
    }
    return view_find_pool(&files[file], name) == &files[file].pools[pool];
}

static int by_value(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

static uint64_t distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

/* The outlier is the value farthest from the median. false: out of memory. */
static bool view_compare(const view_file *files, size_t count, const char *pool, const view_metric *metric,
                         view_spread *spread)
{
    *spread = (view_spread){.odd_file = SIZE_MAX};
    uint64_t *values = calloc(count + 1, sizeof *values), farthest = 0;
    if (values == NULL)
        return false;
    for (size_t i = 0; i < count; i++) {
        const view_pool *found = view_find_pool(&files[i], pool);
        if (found == NULL)
            continue;
        uint64_t value = metric->value(found);
        if (spread->files == 0 || value < spread->min) {
            spread->min = value;
            spread->min_file = i;
        }
        if (spread->files == 0 || value > spread->max) {
            spread->max = value;
            spread->max_file = i;
        }
        values[spread->files++] = value;
    }
    qsort(values, spread->files, sizeof *values, by_value);
    spread->median = spread->files > 0 ? values[(spread->files - 1) / 2] : 0;
    free(values);
    /* of two values neither is an outlier */
    for (size_t i = 0; i < count && spread->files > 2; i++) {
        const view_pool *found = view_find_pool(&files[i], pool);
        uint64_t away = found != NULL ? distance(metric->value(found), spread->median) : 0;
        if (away > farthest) {
            farthest = away;
            spread->odd_file = i;
        }
    }
    return true;
}

enum { MAX_HOLDERS = 12 };

static const char *percent(double share)
{
    return cli_text("%.1f %%", 100 * share);
}

/* A time since the beginning of recording. */
static const char *moment(const bp_snapshot_info *info, uint64_t time_ns)
{
    return info->counts_events ? cli_text("event %llu", (unsigned long long)(time_ns / 1000)) : view_time(time_ns);
}

#define POOL_TITLES "POOL|>SLABS|>PLAN|>BOUND|>LIVE PEAK|>AT|>FREE|>LARGEST FREE|>EVENTS|>LOST"

static void add_pool(sheet *s, const bp_snapshot_info *info, const view_pool *pool)
{
    bool has_plan = pool->info->has_plan, has_slabs = pool->peak_slab_bytes > 0;
    const char *const cells[] = {pool->info->name,
                                 has_slabs ? cli_bytes(pool->peak_slab_bytes) : "-",
                                 has_plan ? cli_bytes(pool->info->plan_bytes) : "-",
                                 has_plan ? cli_bytes(pool->info->lower_bound_bytes) : "-",
                                 cli_bytes(pool->peak_bytes),
                                 moment(info, pool->peak_ns),
                                 has_slabs ? percent(view_pool_free_share(pool)) : "-",
                                 has_slabs ? cli_bytes(pool->peak_largest_free) : "-",
                                 cli_text("%zu", pool->info->event_count),
                                 cli_text("%llu", (unsigned long long)pool->info->lost_events)};
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        sheet_add_cell(s, cells[i]);
}

/* ---- holders of the peak ----------------------------------------------------------------------------------------- */

/* Bytes of one unit, or of one bucket in a role. */
typedef struct holder {
    const view_span *span; /* first span */
    uint64_t bytes;
    size_t buckets;
} holder;

static int from_large_to_small(const void *left, const void *right)
{
    const holder *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return (a->span > b->span) - (a->span < b->span);
}

/* Spans at the peak are sorted by role, unit and bucket; each run of a role and unit is a holder. NULL: out of memory. */
static holder *find_holders(const view_pool *pool, size_t *count)
{
    holder *holders = calloc(pool->at_peak_count + 1, sizeof *holders);
    *count = 0;
    for (size_t i = 0; holders != NULL && i < pool->at_peak_count; i++) {
        const view_span *span = &pool->spans[pool->at_peak[i]];
        const bp_snapshot_request *request = &pool->requests[span->request];
        const holder *last = *count > 0 ? &holders[*count - 1] : NULL;
        bool same = last != NULL && pool->role_of[last->span->request] == pool->role_of[span->request] &&
                    strcmp(pool->requests[last->span->request].unit, request->unit) == 0;
        if (!same)
            holders[(*count)++] = (holder){.span = span};
        holders[*count - 1].bytes += request->bytes;
        holders[*count - 1].buckets++;
    }
    if (holders != NULL)
        qsort(holders, *count, sizeof *holders, from_large_to_small);
    return holders;
}

/* Of PyTorch's allocator, a file of the code without its folders. */
static const char *unit_name(const bp_snapshot_request *request, bool is_ours)
{
    const char *slash = is_ours ? NULL : strrchr(request->unit, '/');
    if (*request->unit == '\0')
        return is_ours ? "(outside)" : "(no frames)";
    return slash != NULL ? slash + 1 : request->unit;
}

static int print_holders(const view_file *file, const view_pool *pool, bool color)
{
    bool is_ours = file->info->is_ours;
    const char *noun = is_ours ? "buckets" : "allocations";
    size_t count = 0;
    holder *holders = find_holders(pool, &count);
    if (holders == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    cli_print("\nPool %s, at its peak of %s, %s%s: %zu %s live\n", pool->info->name, cli_bytes(pool->peak_bytes),
              moment(file->info, pool->peak_ns), file->info->counts_events ? "" : " after the beginning",
              pool->at_peak_count, noun);
    sheet s = sheet_new(color);
    sheet_add_columns(&s, is_ours ? "ROLE|UNIT|BUCKETS" : "KIND|MODULE OR FILE|FUNCTION");
    sheet_add_columns(&s, ">BYTES|>SHARE|>SINCE");
    for (size_t i = 0; i < count && i < MAX_HOLDERS; i++) {
        const holder *h = &holders[i];
        const bp_snapshot_request *request = &pool->requests[h->span->request];
        double share = pool->peak_bytes > 0 ? (double)h->bytes / (double)pool->peak_bytes : 0;
        sheet_add_row(&s, pool->roles[pool->role_of[h->span->request]].name, unit_name(request, is_ours),
                      h->buckets == 1 ? request->bucket : cli_text("%zu %s", h->buckets, noun), cli_bytes(h->bytes),
                      percent(share), h->span->begin_event == 0 ? "before" : moment(file->info, h->span->begin_ns),
                      NULL);
    }
    int code = sheet_finish(&s);
    uint64_t rest = 0;
    for (size_t i = MAX_HOLDERS; i < count; i++)
        rest += holders[i].bytes;
    if (code == EXIT_GO_ON && rest > 0)
        printf("and %zu smaller, together %s\n", count - MAX_HOLDERS, cli_bytes(rest));
    free(holders);
    return code;
}

static int print_roles(const view_file *file, const view_pool *pool, bool color)
{
    bool is_ours = file->info->is_ours;
    sheet s = sheet_new(color);
    sheet_add_columns(&s, is_ours ? "ROLE|>PEAK|>AT|>AT POOL'S PEAK|>PLAN|>BOUND" : "KIND|>PEAK|>AT|>AT THE PEAK");
    for (size_t i = 0; i < pool->role_count; i++) {
        const view_role *role = &pool->roles[i];
        sheet_add_row(&s, role->name, cli_bytes(role->peak_bytes), moment(file->info, role->peak_ns),
                      cli_bytes(role->at_peak_bytes), NULL);
        if (!is_ours)
            continue;
        sheet_add_cell(&s, role->in_plan ? cli_bytes(role->plan_bytes) : "-");
        sheet_add_cell(&s, role->in_plan ? cli_bytes(role->lower_bound_bytes) : "-");
    }
    putchar('\n');
    return sheet_finish(&s);
}

int view_report_file(const view_file *file, const view_options *options)
{
    bool color = cli_wants_color(options->color);
    char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS];
    view_file_label(file, label);
    view_file_step(file, step);
    cli_print_title(file->path, color);
    fputs(": ", stdout);
    if (file->info->is_ours)
        cli_print("%s of %u%s%s, ", label, file->info->ranks, *step != '\0' ? ", " : "", step);
    else
        printf("of PyTorch's allocator, ");
    uint64_t length_ns = file->info->last_time_ns - file->info->first_time_ns;
    if (file->info->counts_events)
        printf("%llu events recorded, without times\n\n", (unsigned long long)(length_ns / 1000 + 1));
    else
        printf("%s recorded\n\n", view_time(length_ns));
    sheet s = sheet_new(color);
    sheet_add_columns(&s, POOL_TITLES);
    for (size_t i = 0; i < file->pool_count; i++) {
        sheet_add_line(&s);
        add_pool(&s, file->info, &file->pools[i]);
    }
    int code = sheet_finish(&s);
    for (size_t i = 0; code == EXIT_GO_ON && i < file->pool_count; i++) {
        code = print_holders(file, &file->pools[i], color);
        if (code == EXIT_GO_ON)
            code = print_roles(file, &file->pools[i], color);
    }
    return code;
}

/* ---- several files ----------------------------------------------------------------------------------------------- */

static const char *amount(const view_metric *metric, uint64_t value)
{
    return metric->is_bytes                    ? cli_bytes(value)
           : strcmp(metric->name, "time") == 0 ? view_time(value)
                                               : cli_text("%llu", (unsigned long long)value);
}

static bool add_metric(sheet *s, const view_file *files, size_t count, const char *pool, const view_metric *metric)
{
    view_spread spread;
    char odd[VIEW_LABEL_CHARS + 64] = "-", min[VIEW_LABEL_CHARS], max[VIEW_LABEL_CHARS], label[VIEW_LABEL_CHARS];
    if (!view_compare(files, count, pool, metric, &spread))
        return false;
    view_file_label(&files[spread.min_file], min);
    view_file_label(&files[spread.max_file], max);
    if (spread.odd_file != SIZE_MAX) {
        view_file_label(&files[spread.odd_file], label);
        bp_print(odd, sizeof odd, "%s: %s", label,
                 amount(metric, metric->value(view_find_pool(&files[spread.odd_file], pool))));
    }
    bool same = spread.min == spread.max;
    sheet_add_row(s, pool, metric->name, amount(metric, spread.min), same ? "" : min, amount(metric, spread.median),
                  amount(metric, spread.max), same ? "" : max, odd, NULL);
    if (spread.odd_file != SIZE_MAX)
        sheet_color_line(s, "yellow");
    return true;
}

static int print_spread(const view_file *files, size_t count, bool color)
{
    sheet s = sheet_new(color);
    sheet_add_columns(&s, "POOL|OVER FILES|>LEAST||>MEDIAN|>MOST| |THE ODD ONE");
    bool good = true;
    for (size_t f = 0; f < count; f++) {
        for (size_t p = 0; p < files[f].pool_count; p++) {
            for (size_t m = 0; m < VIEW_METRICS && view_is_first_of_name(files, f, p); m++)
                good = good && add_metric(&s, files, count, files[f].pools[p].info->name, &view_metrics[m]);
        }
    }
    putchar('\n');
    int code = sheet_finish(&s);
    return code == EXIT_GO_ON && !good ? cli_fail(EXIT_ENVIRONMENT, "out of memory") : code;
}

int view_report_files(const view_file *files, size_t count, const view_options *options)
{
    bool color = cli_wants_color(options->color);
    sheet s = sheet_new(color);
    sheet_add_columns(&s, "FILE|" POOL_TITLES);
    for (size_t f = 0; f < count; f++) {
        char label[VIEW_LABEL_CHARS];
        view_file_label(&files[f], label);
        for (size_t p = 0; p < files[f].pool_count; p++) {
            sheet_add_row(&s, label, NULL);
            add_pool(&s, files[f].info, &files[f].pools[p]);
        }
    }
    CLI_TRY(sheet_finish(&s));
    return print_spread(files, count, color);
}

static void number_or_null(bp_json_writer *d, const char *key, bool known, uint64_t value)
{
    if (known)
        bp_json_add_number(d, key, value);
    else
        bp_json_add_null(d, key);
}

static void print_pool(bp_json_writer *d, const view_pool *pool)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "pool", pool->info->name);
    bp_json_add_text(d, "allocator", pool->info->allocator);
    bp_json_add_text(d, "device", pool->info->device);
    bp_json_add_number(d, "slab_bytes", pool->slab_bytes);
    number_or_null(d, "plan_bytes", pool->info->has_plan, pool->info->plan_bytes);
    number_or_null(d, "lower_bound_bytes", pool->info->has_plan, pool->info->lower_bound_bytes);
    bp_json_add_number(d, "events", pool->info->event_count);
    bp_json_add_number(d, "lost_events", pool->info->lost_events);
    bp_json_add_number(d, "peak_bytes", pool->peak_bytes);
    bp_json_add_number(d, "peak_ns", pool->peak_ns);
    bp_json_add_number(d, "peak_slab_bytes", pool->peak_slab_bytes);
    bp_json_add_number(d, "peak_free_bytes", pool->peak_free_bytes);
    bp_json_add_number(d, "peak_largest_free_bytes", pool->peak_largest_free);
    bp_json_add_list(d, "roles");
    for (size_t i = 0; i < pool->role_count; i++) {
        const view_role *role = &pool->roles[i];
        bp_json_add_object(d, NULL);
        bp_json_add_text(d, "role", role->name);
        bp_json_add_number(d, "peak_bytes", role->peak_bytes);
        bp_json_add_number(d, "peak_ns", role->peak_ns);
        bp_json_add_number(d, "at_peak_bytes", role->at_peak_bytes);
        if (role->in_plan) {
            bp_json_add_number(d, "plan_bytes", role->plan_bytes);
            bp_json_add_number(d, "lower_bound_bytes", role->lower_bound_bytes);
        }
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_add_list(d, "live_at_peak");
    for (size_t i = 0; i < pool->at_peak_count; i++) {
        const view_span *span = &pool->spans[pool->at_peak[i]];
        const bp_snapshot_request *request = &pool->requests[span->request];
        bp_json_add_object(d, NULL);
        bp_json_add_text(d, "role", pool->roles[pool->role_of[span->request]].name);
        bp_json_add_text(d, "unit", request->unit);
        bp_json_add_text(d, "bucket", request->bucket);
        bp_json_add_number(d, "bytes", request->bytes);
        bp_json_add_number(d, "begin_ns", span->begin_ns);
        bp_json_end(d);
    }
    bp_json_end(d);
    bp_json_end(d);
}

static void print_file(bp_json_writer *d, const view_file *file)
{
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "file", file->path);
    number_or_null(d, "rank", file->info->is_ours, file->info->rank);
    number_or_null(d, "ranks", file->info->is_ours, file->info->ranks);
    bp_json_add_text(d, "coordinates", file->info->coordinates);
    number_or_null(d, "step", file->info->has_step, file->info->step);
    bp_json_add_text(d, "label", file->info->label);
    bp_json_add_number(d, "length_ns", file->info->last_time_ns - file->info->first_time_ns);
    bp_json_add_list(d, "pools");
    for (size_t i = 0; i < file->pool_count; i++)
        print_pool(d, &file->pools[i]);
    bp_json_end(d);
    bp_json_end(d);
}

static void print_metric(bp_json_writer *d, const view_file *files, size_t count, const char *pool,
                         const view_metric *metric)
{
    view_spread spread;
    if (!view_compare(files, count, pool, metric, &spread)) {
        bp_json_check(d, BP_ERR_NO_HOST_MEMORY);
        return;
    }
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "pool", pool);
    bp_json_add_text(d, "of", metric->name);
    bp_json_add_number(d, "least", spread.min);
    bp_json_add_number(d, "least_file", spread.min_file);
    bp_json_add_number(d, "median", spread.median);
    bp_json_add_number(d, "most", spread.max);
    bp_json_add_number(d, "most_file", spread.max_file);
    number_or_null(d, "odd_file", spread.odd_file != SIZE_MAX, spread.odd_file);
    bp_json_end(d);
}

int view_report_json(const view_file *files, size_t count)
{
    bp_json_writer d = {0};
    bp_json_add_object(&d, NULL);
    bp_json_add_text(&d, "format", "bucketpool.view/1");
    bp_json_add_list(&d, "files");
    for (size_t i = 0; i < count; i++)
        print_file(&d, &files[i]);
    bp_json_end(&d);
    bp_json_add_list(&d, "spread");
    for (size_t f = 0; f < count; f++) {
        for (size_t p = 0; p < files[f].pool_count; p++) {
            for (size_t m = 0; count > 1 && m < VIEW_METRICS && view_is_first_of_name(files, f, p); m++)
                print_metric(&d, files, count, files[f].pools[p].info->name, &view_metrics[m]);
        }
    }
    bp_json_end(&d);
    bp_json_end(&d);
    return cli_print_json(&d);
}
