#include "view/page.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "view/json.h"

/* Where the data goes in page.html, as JSON in a script element that no browser runs. */
static const char place[] = "BUCKETPOOL_SNAPSHOTS";

static void write_text(FILE *file, const char *name, const char *text)
{
    fprintf(file, "\"%s\":", name);
    view_json_text(file, text);
    putc(',', file);
}

static void write_number(FILE *file, const char *name, uint64_t number)
{
    fprintf(file, "\"%s\":%llu,", name, (unsigned long long)number);
}

/* ---- a sample of a long recording --------------------------------------------------------------------------------------------- */

/* Of spans and slabs the page has at most these, the largest; of spans at most a share of MOST_SPANS for each pool. */
enum { MOST_SPANS = 200000, LEAST_SPANS = 2000, MOST_SPANS_OF_POOL = 50000, MOST_SLABS = 1000, COLUMNS = 4096 };
#define NOT_SHOWN UINT32_MAX

/* What the page has of a pool, by the numbers there. */
typedef struct sample {
    const view_pool *pool;
    bool is_whole;
    uint32_t *span_at, *request_at, *slab_at, *track_at;
} sample;

static void finish_sample(sample *s)
{
    free(s->span_at);
    free(s->request_at);
    free(s->slab_at);
    free(s->track_at);
}

static int by_weight(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Numbers the `most` largest weights in their order; negative ones are not shown. false: out of memory. */
static bool number_largest(const double *weights, size_t count, size_t most, uint32_t *number_of)
{
    double *sorted = calloc(count + 1, sizeof *sorted);
    if (sorted == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        sorted[i] = weights[i];
    qsort(sorted, count, sizeof *sorted, by_weight);
    double least = count > most ? sorted[count - most] : -1;
    size_t above = 0;
    for (size_t i = 0; i < count; i++)
        above += sorted[i] > least;
    free(sorted);
    size_t equals = most > above ? most - above : 0; /* places for those that weigh just as little */
    uint32_t number = 0;
    for (size_t i = 0; i < count; i++) {
        bool shown = weights[i] >= 0 && (weights[i] > least || (weights[i] == least && equals-- > 0));
        equals = equals == SIZE_MAX ? 0 : equals;
        number_of[i] = shown ? number++ : NOT_SHOWN;
    }
    return true;
}

static void number_used(uint32_t *number_of, size_t count)
{
    uint32_t number = 0;
    for (size_t i = 0; i < count; i++)
        number_of[i] = number_of[i] != 0 ? number++ : NOT_SHOWN;
}

/* By bytes times duration; those that are live at the peak before all others. */
static bool choose_spans(sample *s, double *weights, size_t most)
{
    const view_pool *pool = s->pool;
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        bool is_there = s->is_whole || span->slab == VIEW_OUTSIDE || s->slab_at[span->slab] != NOT_SHOWN;
        double bytes = (double)pool->requests[span->request].bytes;
        weights[i] = is_there ? bytes * (double)(span->end_ns - span->begin_ns + 1) : -1;
    }
    for (size_t i = 0; i < pool->at_peak_count; i++)
        weights[pool->at_peak[i]] *= 0x1p128;
    if (!number_largest(weights, pool->span_count, most, s->span_at))
        return false;
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        if (s->span_at[i] == NOT_SHOWN)
            continue;
        s->request_at[span->request] = 1;
        if (span->slab == VIEW_OUTSIDE)
            s->track_at[span->offset] = 1;
    }
    return true;
}

static bool choose_slabs(sample *s, double *weights)
{
    for (size_t i = 0; i < s->pool->info->slab_count; i++)
        weights[i] = (double)s->pool->slabs[i].bytes;
    return number_largest(weights, s->pool->info->slab_count, s->is_whole ? SIZE_MAX : MOST_SLABS, s->slab_at);
}

/* false: out of memory. Finish it either way. */
static bool make_sample(const view_pool *pool, size_t most, sample *s)
{
    *s = (sample){.pool = pool,
                  .is_whole = pool->span_count <= most && pool->info->slab_count <= MOST_SLABS &&
                              pool->info->request_count <= 4 * most && pool->info->slab_event_count <= most};
    size_t larger = pool->span_count > pool->info->slab_count ? pool->span_count : pool->info->slab_count;
    double *weights = calloc(larger + 1, sizeof *weights);
    s->span_at = calloc(pool->span_count + 1, sizeof *s->span_at);
    s->request_at = calloc(pool->info->request_count + 1, sizeof *s->request_at);
    s->slab_at = calloc(pool->info->slab_count + 1, sizeof *s->slab_at);
    s->track_at = calloc(pool->track_count + 1, sizeof *s->track_at);
    bool good = weights != NULL && s->span_at != NULL && s->request_at != NULL && s->slab_at != NULL &&
                s->track_at != NULL && choose_slabs(s, weights) && choose_spans(s, weights, most);
    for (size_t i = 0; good && s->is_whole && i < pool->info->request_count; i++)
        s->request_at[i] = 1;
    if (good) {
        number_used(s->request_at, pool->info->request_count);
        number_used(s->track_at, pool->track_count);
    }
    free(weights);
    return good;
}

/* ---- live bytes of a long recording ---------------------------------------------------------------------------------------------- */

enum { MOST_GROUPS = 2 * VIEW_MOST_ROLES };

/* After a moment: of each role what the plan knows, then of each role the rest, as the page stacks them. */
typedef struct moment {
    uint64_t time_ns, total, groups[MOST_GROUPS];
} moment;

static void write_moment(FILE *file, const moment *m, size_t groups, const char *between)
{
    fprintf(file, "%s%llu", between, (unsigned long long)m->time_ns);
    for (size_t i = 0; i < groups; i++)
        fprintf(file, ",%llu", (unsigned long long)m->groups[i]);
}

/* Of each of COLUMNS parts of the time the highest moment and the last one. */
static bool write_curve(FILE *file, const view_pool *pool)
{
    view_changes changes;
    const view_span *span = NULL;
    bool begins = false;
    size_t column = 0, groups = 2 * pool->role_count;
    double wide = (double)(pool->length_ns > 0 ? pool->length_ns : 1) / COLUMNS;
    moment highest = {0}, last = {0};
    bool good = view_changes_init(pool, &changes);
    fprintf(file, "\"allSpans\":%zu,\"allSlabs\":%zu,\n\"curve\":[", pool->span_count, pool->info->slab_count);
    const char *between = "";
    while (good && view_changes_next(&changes, &span, &begins)) {
        const bp_snapshot_request *request = &pool->requests[span->request];
        uint64_t time_ns = begins ? span->begin_ns : span->end_ns;
        size_t at = (size_t)((double)time_ns / wide);
        if (at > column) {
            write_moment(file, &highest, groups, between);
            between = ",\n";
            if (highest.time_ns != last.time_ns)
                write_moment(file, &last, groups, between);
            highest = (moment){0};
            column = at;
        }
        bool planned = !pool->info->has_plan || strcmp(request->placement, "planned") == 0;
        uint64_t *group = &last.groups[pool->role_of[span->request] + (planned ? 0 : pool->role_count)];
        *group = begins ? *group + request->bytes : *group - request->bytes;
        last.total = begins ? last.total + request->bytes : last.total - request->bytes;
        last.time_ns = time_ns;
        if (last.total >= highest.total)
            highest = last;
    }
    write_moment(file, &highest, groups, between);
    if (highest.time_ns != last.time_ns)
        write_moment(file, &last, groups, ",\n");
    fprintf(file, "],\n");
    view_changes_finish(&changes);
    return good;
}

/* ---- a pool ------------------------------------------------------------------------------------------------------------------------ */

static void write_slab_event(FILE *file, const char **between, int gained, uint32_t slab, uint64_t time_ns)
{
    fprintf(file, "%s%d,%u,%llu", *between, gained, slab, (unsigned long long)time_ns);
    *between = ",";
}

/* In a sample a slab that is without memory for less than a column stays as it is. false: out of memory. */
static bool write_slab_events(FILE *file, const sample *s)
{
    const view_pool *pool = s->pool;
    const char *between = "";
    uint64_t least = s->is_whole ? 0 : pool->length_ns / COLUMNS;
    uint64_t *since =
        calloc(pool->info->slab_count + 1, sizeof *since); /* UINT64_MAX: it has memory, or its loss is written */
    if (since == NULL)
        return false;
    for (size_t i = 0; i < pool->info->slab_count; i++)
        since[i] = UINT64_MAX;
    for (size_t i = 0; i < pool->info->slab_event_count; i++) {
        bp_snapshot_slab_event event = pool->info->slab_events[i];
        if (s->slab_at[event.slab] == NOT_SHOWN)
            continue;
        uint64_t time_ns = event.time_ns - pool->first_ns, lost_ns = since[event.slab];
        since[event.slab] = event.gained || least == 0 ? UINT64_MAX : lost_ns < time_ns ? lost_ns : time_ns;
        if (!event.gained && least > 0)
            continue; /* until it is known for how long */
        bool is_short = lost_ns != UINT64_MAX && time_ns - lost_ns < least;
        if (lost_ns != UINT64_MAX && !is_short)
            write_slab_event(file, &between, 0, s->slab_at[event.slab], lost_ns);
        if (!is_short)
            write_slab_event(file, &between, event.gained, s->slab_at[event.slab], time_ns);
    }
    for (size_t i = 0; i < pool->info->slab_count; i++) {
        if (since[i] != UINT64_MAX)
            write_slab_event(file, &between, 0, s->slab_at[i], since[i]);
    }
    free(since);
    return true;
}

static bool write_slabs(FILE *file, const sample *s)
{
    const view_pool *pool = s->pool;
    fprintf(file, "\"slabs\":[");
    for (size_t i = 0; i < pool->info->slab_count; i++) {
        const bp_snapshot_slab *slab = &pool->slabs[i];
        if (s->slab_at[i] == NOT_SHOWN)
            continue;
        fprintf(file, "%s[\"0x%llx\",%llu,%llu,", s->slab_at[i] > 0 ? "," : "", (unsigned long long)slab->address,
                (unsigned long long)slab->bytes, (unsigned long long)slab->planned_bytes);
        view_json_text(file, slab->group);
        fprintf(file, ",%d]", slab->resident_at_start);
    }
    fprintf(file, "],\n\"slabEvents\":[");
    bool good = write_slab_events(file, s);
    fprintf(file, "],\n\"tracks\":[");
    for (size_t i = 0; i < pool->track_count; i++) {
        if (s->track_at[i] != NOT_SHOWN)
            fprintf(file, "%s%llu", s->track_at[i] > 0 ? "," : "", (unsigned long long)pool->tracks[i]);
    }
    fprintf(file, "],\n");
    return good;
}

static void write_streams(FILE *file, const view_pool *pool)
{
    fprintf(file, "\"streams\":[");
    for (size_t i = 0; i < pool->info->stream_count; i++) {
        bp_snapshot_stream stream = pool->info->streams[i];
        fprintf(file, "%s[%llu,", i > 0 ? "," : "", (unsigned long long)stream.number);
        view_json_text(file, stream.name);
        putc(']', file);
    }
    fprintf(file, "],\n");
}

static void write_requests(FILE *file, const sample *s)
{
    const view_pool *pool = s->pool;
    fprintf(file, "\"roles\":[");
    for (size_t i = 0; i < pool->role_count; i++) {
        fputs(i > 0 ? "," : "", file);
        view_json_text(file, pool->roles[i].name);
    }
    fprintf(file, "],\n\"requests\":[");
    for (size_t i = 0; i < pool->info->request_count; i++) {
        const bp_snapshot_request *request = &pool->requests[i];
        if (s->request_at[i] == NOT_SHOWN)
            continue;
        fputs(s->request_at[i] > 0 ? ",\n[" : "[", file);
        const char *const texts[] = {request->unit, request->bucket, request->dtype, request->placement};
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) {
            view_json_text(file, texts[k]);
            putc(',', file);
        }
        fprintf(file, "%u,%llu,%u]", pool->role_of[i], (unsigned long long)request->bytes, request->ordinal);
    }
    fprintf(file, "],\n");
}

/* Seven numbers each: request, slab (-1: none), offset, begin, end, stream, what is known of its ends (1: begun before, 2: not ended). */
static void write_spans(FILE *file, const sample *s)
{
    const view_pool *pool = s->pool;
    fprintf(file, "\"spans\":[");
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        if (s->span_at[i] == NOT_SHOWN)
            continue;
        bool outside = span->slab == VIEW_OUTSIDE;
        fprintf(file, "%s%u,%lld,%llu,%llu,%llu,%llu,%d", s->span_at[i] > 0 ? ",\n" : "", s->request_at[span->request],
                outside ? -1 : (long long)s->slab_at[span->slab],
                outside ? (unsigned long long)s->track_at[span->offset] : (unsigned long long)span->offset,
                (unsigned long long)span->begin_ns, (unsigned long long)span->end_ns, (unsigned long long)span->stream,
                (span->begin_event == 0) + 2 * (span->end_event == SIZE_MAX));
    }
    fprintf(file, "],\n");
}

/* false: out of memory. */
static bool write_pool(FILE *file, const view_pool *pool, size_t most)
{
    sample s;
    bool good = make_sample(pool, most, &s);
    putc('{', file);
    write_text(file, "name", pool->info->name);
    write_text(file, "allocator", pool->info->allocator);
    write_text(file, "device", pool->info->device);
    write_text(file, "fingerprint", pool->info->fingerprint);
    if (pool->info->has_plan)
        fprintf(file, "\"plan\":[%llu,%llu,%d],", (unsigned long long)pool->info->plan_bytes,
                (unsigned long long)pool->info->lower_bound_bytes, pool->info->optimal);
    write_number(file, "length", pool->length_ns);
    write_number(file, "slabBytes", pool->slab_bytes);
    write_number(file, "peakBytes", pool->peak_bytes);
    write_number(file, "peakTime", pool->peak_ns);
    write_number(file, "peakSlabBytes", pool->peak_slab_bytes);
    write_number(file, "peakFree", pool->peak_free_bytes);
    write_number(file, "peakLargestFree", pool->peak_largest_free);
    write_number(file, "lost", pool->info->lost_events);
    if (good) {
        good = write_slabs(file, &s) && (s.is_whole || write_curve(file, pool));
        write_streams(file, pool);
        write_requests(file, &s);
        write_spans(file, &s);
    }
    fprintf(file, "\"events\":%zu}", pool->info->event_count);
    finish_sample(&s);
    return good;
}

static bool write_file(FILE *file, const view_file *f, size_t most)
{
    char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS];
    const char *slash = strrchr(f->path, '/');
    view_file_label(f, label);
    view_file_step(f, step);
    putc('{', file);
    write_text(file, "file", slash != NULL ? slash + 1 : f->path);
    write_text(file, "label", label);
    write_text(file, "step", step);
    write_text(file, "version", f->info->version);
    write_number(file, "ranks", f->info->ranks);
    fprintf(file, "\"pools\":[");
    bool good = true;
    for (size_t i = 0; good && i < f->pool_count; i++) {
        fputs(i > 0 ? ",\n" : "", file);
        good = write_pool(file, &f->pools[i], most);
    }
    fprintf(file, "]}");
    return good;
}

/* false: out of memory. */
static bool write_page(FILE *file, const view_file *files, size_t count)
{
    const char *middle = strstr(view_page_text, place);
    size_t before = middle != NULL ? (size_t)(middle - view_page_text) : 0;
    fwrite(view_page_text, 1, before, file);
    fprintf(file, "{\"format\":\"bucketpool.page/1\",\"files\":[\n");
    size_t pools = 0;
    bool good = true;
    for (size_t i = 0; i < count; i++)
        pools += files[i].pool_count;
    size_t most = MOST_SPANS / (pools > 0 ? pools : 1);
    most = most < LEAST_SPANS ? LEAST_SPANS : most > MOST_SPANS_OF_POOL ? MOST_SPANS_OF_POOL : most;
    for (size_t i = 0; good && i < count; i++) {
        fputs(i > 0 ? ",\n" : "", file);
        good = write_file(file, &files[i], most);
    }
    fprintf(file, "\n]}");
    size_t after = before + sizeof place - 1;
    fwrite(view_page_text + after, 1, view_page_bytes - after, file);
    return good;
}

bool view_page_write(const view_file *files, size_t count, const output *to)
{
    FILE *file = output_stream(to);
    if (file == NULL)
        return false;
    int reason = !write_page(file, files, count) ? ENOMEM : 0;
    if (reason == 0 && (fflush(file) != 0 || ferror(file)))
        reason = errno;
    if (fclose(file) != 0 && reason == 0)
        reason = errno;
    if (reason != 0)
        errno = reason;
    return reason == 0;
}
