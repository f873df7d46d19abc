/* Writes bucketpool.view/1. */
#include "files/json_writer.h"
#include "shared/cli.h"
#include "view/compare.h"
#include "view/report.h"

static void number_or_null(bp_json_writer *d, const char *key, bool known, uint64_t value)
{
    if (known)
        bp_json_add_number(d, key, value);
    else
        bp_json_add_null(d, key);
}

static void print_role(bp_json_writer *d, const view_role *role)
{
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

static void print_live(bp_json_writer *d, const view_pool *pool, size_t index)
{
    const view_span *span = &pool->spans[pool->at_peak[index]];
    const bp_snapshot_request *request = &pool->requests[span->request];
    bp_json_add_object(d, NULL);
    bp_json_add_text(d, "role", pool->roles[pool->role_of[span->request]].name);
    bp_json_add_text(d, "unit", request->unit);
    bp_json_add_text(d, "bucket", request->bucket);
    bp_json_add_number(d, "bytes", request->bytes);
    bp_json_add_number(d, "begin_ns", span->begin_ns);
    bp_json_end(d);
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
    for (size_t i = 0; i < pool->role_count; i++)
        print_role(d, &pool->roles[i]);
    bp_json_end(d);
    bp_json_add_list(d, "live_at_peak");
    for (size_t i = 0; i < pool->at_peak_count; i++)
        print_live(d, pool, i);
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
    bp_json_add_number(d, "least", spread.least);
    bp_json_add_number(d, "least_file", spread.least_file);
    bp_json_add_number(d, "median", spread.median);
    bp_json_add_number(d, "most", spread.most);
    bp_json_add_number(d, "most_file", spread.most_file);
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
