#include "cli.h"
#include "document.h"
#include "view/compare.h"
#include "view/report.h"

static void number_or_null(document *d, const char *key, bool known, uint64_t value)
{
    if (known)
        document_number(d, key, value);
    else
        document_null(d, key);
}

static void print_role(document *d, const view_role *role)
{
    document_object(d, NULL);
    document_text(d, "role", role->name);
    document_number(d, "peak_bytes", role->peak_bytes);
    document_number(d, "peak_ns", role->peak_ns);
    document_number(d, "at_peak_bytes", role->at_peak_bytes);
    if (role->in_plan) {
        document_number(d, "plan_bytes", role->plan_bytes);
        document_number(d, "lower_bound_bytes", role->lower_bound_bytes);
    }
    document_end(d);
}

static void print_live(document *d, const view_pool *pool, size_t index)
{
    const view_span *span = &pool->spans[pool->at_peak[index]];
    const bp_snapshot_request *request = &pool->requests[span->request];
    document_object(d, NULL);
    document_text(d, "role", pool->roles[pool->role_of[span->request]].name);
    document_text(d, "unit", request->unit);
    document_text(d, "bucket", request->bucket);
    document_number(d, "bytes", request->bytes);
    document_number(d, "begin_ns", span->begin_ns);
    document_end(d);
}

static void print_pool(document *d, const view_pool *pool)
{
    document_object(d, NULL);
    document_text(d, "pool", pool->info->name);
    document_text(d, "allocator", pool->info->allocator);
    document_text(d, "device", pool->info->device);
    document_number(d, "slab_bytes", pool->slab_bytes);
    number_or_null(d, "plan_bytes", pool->info->has_plan, pool->info->plan_bytes);
    number_or_null(d, "lower_bound_bytes", pool->info->has_plan, pool->info->lower_bound_bytes);
    document_number(d, "events", pool->info->event_count);
    document_number(d, "lost_events", pool->info->lost_events);
    document_number(d, "peak_bytes", pool->peak_bytes);
    document_number(d, "peak_ns", pool->peak_ns);
    document_number(d, "peak_slab_bytes", pool->peak_slab_bytes);
    document_number(d, "peak_free_bytes", pool->peak_free_bytes);
    document_number(d, "peak_largest_free_bytes", pool->peak_largest_free);
    document_list(d, "roles");
    for (size_t i = 0; i < pool->role_count; i++)
        print_role(d, &pool->roles[i]);
    document_end(d);
    document_list(d, "live_at_peak");
    for (size_t i = 0; i < pool->at_peak_count; i++)
        print_live(d, pool, i);
    document_end(d);
    document_end(d);
}

static void print_file(document *d, const view_file *file)
{
    document_object(d, NULL);
    document_text(d, "file", file->path);
    number_or_null(d, "rank", file->info->is_ours, file->info->rank);
    number_or_null(d, "ranks", file->info->is_ours, file->info->ranks);
    document_text(d, "coordinates", file->info->coordinates);
    number_or_null(d, "step", file->info->has_step, file->info->step);
    document_text(d, "label", file->info->label);
    document_number(d, "length_ns", file->info->last_time_ns - file->info->first_time_ns);
    document_list(d, "pools");
    for (size_t i = 0; i < file->pool_count; i++)
        print_pool(d, &file->pools[i]);
    document_end(d);
    document_end(d);
}

static void print_metric(document *d, const view_file *files, size_t count, const char *pool, const view_metric *metric)
{
    view_spread spread;
    if (!view_compare(files, count, pool, metric, &spread)) {
        document_check(d, BP_ERR_NO_HOST_MEMORY);
        return;
    }
    document_object(d, NULL);
    document_text(d, "pool", pool);
    document_text(d, "of", metric->name);
    document_number(d, "least", spread.least);
    document_number(d, "least_file", spread.least_file);
    document_number(d, "median", spread.median);
    document_number(d, "most", spread.most);
    document_number(d, "most_file", spread.most_file);
    number_or_null(d, "odd_file", spread.odd_file != SIZE_MAX, spread.odd_file);
    document_end(d);
}

int view_report_json(const view_file *files, size_t count)
{
    document d = document_new();
    document_object(&d, NULL);
    document_text(&d, "format", "bucketpool.view/1");
    document_list(&d, "files");
    for (size_t i = 0; i < count; i++)
        print_file(&d, &files[i]);
    document_end(&d);
    document_list(&d, "spread");
    for (size_t f = 0; f < count; f++) {
        for (size_t p = 0; p < files[f].pool_count; p++) {
            for (size_t m = 0; count > 1 && m < VIEW_METRICS && view_is_first_of_name(files, f, p); m++)
                print_metric(&d, files, count, files[f].pools[p].info->name, &view_metrics[m]);
        }
    }
    document_end(&d);
    document_end(&d);
    return document_finish(&d);
}
