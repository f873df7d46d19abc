#include <stdio.h>

#include "cli.h"
#include "view/compare.h"
#include "view/json.h"
#include "view/report.h"

static void print_text(const char *name, const char *text)
{
    printf("\"%s\": ", name);
    view_json_text(stdout, text);
    printf(", ");
}

static void print_number(const char *name, uint64_t number, const char *behind)
{
    printf("\"%s\": %llu%s", name, (unsigned long long)number, behind);
}

static void print_roles(const view_pool *pool)
{
    printf(",\n       \"roles\": [");
    for (size_t i = 0; i < pool->role_count; i++) {
        const view_role *role = &pool->roles[i];
        printf("%s\n        {", i > 0 ? "," : "");
        print_text("role", role->name);
        print_number("peak_bytes", role->peak_bytes, ", ");
        print_number("peak_ns", role->peak_ns, ", ");
        print_number("at_peak_bytes", role->at_peak_bytes, "");
        if (role->in_plan) {
            printf(", ");
            print_number("plan_bytes", role->plan_bytes, ", ");
            print_number("lower_bound_bytes", role->lower_bound_bytes, "");
        }
        printf("}");
    }
    printf("]");
}

static void print_live(const view_pool *pool)
{
    printf(",\n       \"live_at_peak\": [");
    for (size_t i = 0; i < pool->at_peak_count; i++) {
        const view_span *span = &pool->spans[pool->at_peak[i]];
        const bp_snapshot_request *request = &pool->requests[span->request];
        printf("%s\n        {", i > 0 ? "," : "");
        print_text("role", pool->roles[pool->role_of[span->request]].name);
        print_text("unit", request->unit);
        print_text("bucket", request->bucket);
        print_number("bytes", request->bytes, ", ");
        print_number("begin_ns", span->begin_ns, "}");
    }
    printf("]");
}

static void print_pool(const view_pool *pool)
{
    printf("\n      {");
    print_text("pool", pool->about.name);
    print_text("allocator", pool->about.allocator);
    print_text("device", pool->about.device);
    print_number("slab_bytes", pool->slab_bytes, ", ");
    if (pool->about.has_plan) {
        print_number("plan_bytes", pool->about.plan_bytes, ", ");
        print_number("lower_bound_bytes", pool->about.lower_bound_bytes, ", ");
    } else {
        printf("\"plan_bytes\": null, \"lower_bound_bytes\": null, ");
    }
    print_number("events", pool->about.events, ", ");
    print_number("lost_events", pool->about.lost_events, ",\n       ");
    print_number("peak_bytes", pool->peak_bytes, ", ");
    print_number("peak_ns", pool->peak_ns, ", ");
    print_number("peak_slab_bytes", pool->peak_slab_bytes, ", ");
    print_number("peak_free_bytes", pool->peak_free_bytes, ", ");
    print_number("peak_largest_free_bytes", pool->peak_largest_free, "");
    print_roles(pool);
    print_live(pool);
    printf("}");
}

static void print_file(const view_file *file)
{
    printf("\n    {");
    print_text("file", file->path);
    if (file->about.is_ours) {
        print_number("rank", file->about.rank, ", ");
        print_number("ranks", file->about.ranks, ", ");
    } else {
        printf("\"rank\": null, \"ranks\": null, ");
    }
    print_text("coordinates", file->about.coordinates);
    if (file->about.has_step)
        print_number("step", file->about.step, ", ");
    else
        printf("\"step\": null, ");
    print_text("label", file->about.label);
    print_number("length_ns", file->about.last_time_ns - file->about.first_time_ns, ", ");
    printf("\"pools\": [");
    for (size_t i = 0; i < file->pool_count; i++) {
        print_pool(&file->pools[i]);
        printf("%s", i + 1 < file->pool_count ? "," : "");
    }
    printf("]}");
}

static bool print_metric(const view_file *files, size_t count, const char *pool, const view_metric *metric)
{
    view_spread spread;
    if (!view_compare(files, count, pool, metric, &spread))
        return false;
    printf("\n    {");
    print_text("pool", pool);
    print_text("of", metric->name);
    print_number("least", spread.least, ", ");
    print_number("least_file", spread.least_file, ", ");
    print_number("median", spread.median, ", ");
    print_number("most", spread.most, ", ");
    print_number("most_file", spread.most_file, ", ");
    if (spread.odd_file != SIZE_MAX)
        print_number("odd_file", spread.odd_file, "}");
    else
        printf("\"odd_file\": null}");
    return true;
}

int view_report_json(const view_file *files, size_t count)
{
    bool good = true;
    const char *between = "";
    printf("{\n  \"format\": \"bucketpool.view/1\",\n  \"files\": [");
    for (size_t i = 0; i < count; i++) {
        print_file(&files[i]);
        printf("%s", i + 1 < count ? "," : "");
    }
    printf("],\n  \"spread\": [");
    for (size_t f = 0; f < count; f++) {
        for (size_t p = 0; p < files[f].pool_count; p++) {
            for (size_t m = 0; count > 1 && m < VIEW_METRICS && view_is_first_of_name(files, f, p); m++) {
                printf("%s", between);
                good = good && print_metric(files, count, files[f].pools[p].about.name, &view_metrics[m]);
                between = ",";
            }
        }
    }
    puts("]\n}");
    return good ? EXIT_GO_ON : cli_fail(EXIT_ENVIRONMENT, "out of memory");
}
