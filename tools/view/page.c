/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the page of `view --html`. */
#include "view/view.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_writer.h"

/* Placeholder in page.html for the data: JSON in a script element that browsers do not run. */
static const char place[] = "BUCKETPOOL_SNAPSHOTS";

/* ---- a sample of a long recording -------------------------------------------------------------------------------- */

/* Limits of the page: the largest spans and slabs are kept. Each pool has a share of MAX_SPANS. */
enum { MAX_SPANS = 200000, MIN_SPANS = 2000, MAX_SPANS_OF_POOL = 50000, MAX_SLABS = 1000, COLUMNS = 4096 };
#define NOT_SHOWN UINT32_MAX

/* The sample of a pool in the page: index in the page to index in the pool. */
typedef struct sample {
    const view_pool *pool;
    bool is_whole;
    uint32_t *span_at, *request_at, *slab_at, *track_at;
} sample;

static int by_weight(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* Selects the `most` largest weights and keeps their order; negative weights are excluded. false: out of memory. */
static bool number_largest(const double *weights, size_t count, size_t max, uint32_t *number_of)
{
    double *sorted = calloc(count + 1, sizeof *sorted);
    if (sorted == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        sorted[i] = weights[i];
    qsort(sorted, count, sizeof *sorted, by_weight);
    double min = count > max ? sorted[count - max] : -1;
    size_t above = 0;
    for (size_t i = 0; i < count; i++)
        above += sorted[i] > min;
    free(sorted);
    size_t equals = max > above ? max - above : 0; /* places left for weights equal to the threshold */
    uint32_t number = 0;
    for (size_t i = 0; i < count; i++) {
        bool shown = weights[i] >= 0 && (weights[i] > min || (weights[i] == min && equals-- > 0));
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

/* Weight: bytes times duration; spans that are live at the peak come first. */
static bool choose_spans(sample *s, double *weights, size_t max)
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
    if (!number_largest(weights, pool->span_count, max, s->span_at))
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
    return number_largest(weights, s->pool->info->slab_count, s->is_whole ? SIZE_MAX : MAX_SLABS, s->slab_at);
}

/* false: out of memory. Call the finish function either way. */
static bool make_sample(const view_pool *pool, size_t max, sample *s)
{
    *s = (sample){.pool = pool,
                  .is_whole = pool->span_count <= max && pool->info->slab_count <= MAX_SLABS &&
                              pool->info->request_count <= 4 * max && pool->gone_count <= max};
    size_t larger = pool->span_count > pool->info->slab_count ? pool->span_count : pool->info->slab_count;
    double *weights = calloc(larger + 1, sizeof *weights);
    s->span_at = calloc(pool->span_count + 1, sizeof *s->span_at);
    s->request_at = calloc(pool->info->request_count + 1, sizeof *s->request_at);
    s->slab_at = calloc(pool->info->slab_count + 1, sizeof *s->slab_at);
    s->track_at = calloc(pool->track_count + 1, sizeof *s->track_at);
    bool good = weights != NULL && s->span_at != NULL && s->request_at != NULL && s->slab_at != NULL &&
                s->track_at != NULL && choose_slabs(s, weights) && choose_spans(s, weights, max);
    for (size_t i = 0; good && s->is_whole && i < pool->info->request_count; i++)
        s->request_at[i] = 1;
    if (good) {
        number_used(s->request_at, pool->info->request_count);
        number_used(s->track_at, pool->track_count);
    }
    free(weights);
    return good;
}

/* ---- live bytes of a long recording ------------------------------------------------------------------------------ */

enum { MAX_GROUPS = 2 * VIEW_MAX_ROLES };

/* Live bytes after a moment, as the page stacks them: planned bytes of each role, then the rest of each role. */
typedef struct moment {
    uint64_t time_ns, total, groups[MAX_GROUPS];
} moment;

static void write_moment(bp_json_writer *json, const moment *m, size_t groups)
{
    bp_json_add_line(json);
    bp_json_add_number(json, NULL, m->time_ns);
    for (size_t i = 0; i < groups; i++)
        bp_json_add_number(json, NULL, m->groups[i]);
}

/* Keeps the highest and the last moment of each of COLUMNS intervals. */
static bool write_curve(bp_json_writer *json, const view_pool *pool)
{
    view_changes changes;
    const view_span *span = NULL;
    bool begins = false;
    size_t column = 0, groups = 2 * pool->role_count;
    double wide = (double)(pool->length_ns > 0 ? pool->length_ns : 1) / COLUMNS;
    moment highest = {0}, last = {0};
    bool good = view_changes_init(pool, &changes);
    bp_json_add_number(json, "allSpans", pool->span_count);
    bp_json_add_number(json, "allSlabs", pool->info->slab_count);
    bp_json_add_list(json, "curve");
    while (good && view_changes_next(&changes, &span, &begins)) {
        const bp_snapshot_request *request = &pool->requests[span->request];
        uint64_t time_ns = begins ? span->begin_ns : span->end_ns;
        size_t at = (size_t)((double)time_ns / wide);
        if (at > column) {
            write_moment(json, &highest, groups);
            if (highest.time_ns != last.time_ns)
                write_moment(json, &last, groups);
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
    write_moment(json, &highest, groups);
    if (highest.time_ns != last.time_ns)
        write_moment(json, &last, groups);
    bp_json_end(json);
    view_changes_finish(&changes);
    return good;
}

/* ---- mapped bytes ------------------------------------------------------------------------------------------------ */

typedef struct mapping_change {
    uint64_t time_ns, bytes;
    bool gains;
} mapping_change;

static int by_change_time(const void *left, const void *right)
{
    const mapping_change *a = left, *b = right;
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    return (int)a->gains - (int)b->gains;
}

static void write_mapped(bp_json_writer *json, uint64_t time_ns, uint64_t bytes)
{
    bp_json_add_number(json, NULL, time_ns);
    bp_json_add_number(json, NULL, bytes);
}

/* Times and bytes of slabs that are mapped from then on; the highest and the last of each of COLUMNS intervals. false: out of memory. */
static bool write_reserved(bp_json_writer *json, const view_pool *pool)
{
    size_t count = 0, column = 0;
    uint64_t bytes = 0, highest = 0, highest_ns = 0, last_ns = 0;
    double wide = (double)(pool->length_ns > 0 ? pool->length_ns : 1) / COLUMNS;
    mapping_change *changes = calloc(2 * pool->gone_count + 1, sizeof *changes);
    if (changes == NULL)
        return false;
    for (size_t i = 0; i < pool->info->slab_count; i++)
        bytes += pool->slabs[i].bytes;
    for (size_t i = 0; i < pool->gone_count; i++) {
        const view_gone *gone = &pool->gone[i];
        changes[count++] = (mapping_change){gone->begin_ns, gone->bytes, false};
        if (gone->end_ns <= pool->length_ns)
            changes[count++] = (mapping_change){gone->end_ns, gone->bytes, true};
    }
    qsort(changes, count, sizeof *changes, by_change_time);
    size_t next = 0;
    for (; next < count && changes[next].time_ns == 0; next++)
        bytes = changes[next].gains ? bytes + changes[next].bytes : bytes - changes[next].bytes;
    highest = bytes;
    bp_json_add_list(json, "reserved");
    for (size_t i = next; i < count; i++) {
        size_t at = (size_t)((double)changes[i].time_ns / wide);
        if (at > column) {
            write_mapped(json, highest_ns, highest);
            if (last_ns != highest_ns)
                write_mapped(json, last_ns, bytes);
            highest = 0;
            column = at;
        }
        bytes = changes[i].gains ? bytes + changes[i].bytes : bytes - changes[i].bytes;
        last_ns = changes[i].time_ns;
        bool is_last_of_time = i + 1 == count || changes[i + 1].time_ns != last_ns;
        if (is_last_of_time && bytes >= highest) {
            highest = bytes;
            highest_ns = last_ns;
        }
    }
    write_mapped(json, highest_ns, highest);
    if (last_ns != highest_ns)
        write_mapped(json, last_ns, bytes);
    bp_json_end(json);
    free(changes);
    return true;
}

/* ---- a pool ------------------------------------------------------------------------------------------------------ */

/* Five numbers for each part of a slab while it is not mapped: slab, offset, bytes, begin, end. In a sample, short times are left out, and then
 * small parts. false: out of memory. */
static bool write_gone(bp_json_writer *json, const sample *s, size_t max)
{
    const view_pool *pool = s->pool;
    uint64_t min = s->is_whole ? 0 : pool->length_ns / COLUMNS;
    double *weights = calloc(pool->gone_count + 1, sizeof *weights);
    uint32_t *number_of = calloc(pool->gone_count + 1, sizeof *number_of);
    for (size_t i = 0; weights != NULL && i < pool->gone_count; i++) {
        const view_gone *gone = &pool->gone[i];
        uint64_t length = gone->end_ns - gone->begin_ns;
        weights[i] = s->slab_at[gone->slab] == NOT_SHOWN || length < min ? -1 : (double)gone->bytes * (double)length;
    }
    bool good = weights != NULL && number_of != NULL && number_largest(weights, pool->gone_count, max, number_of);
    bp_json_add_list(json, "gone");
    for (size_t i = 0; good && i < pool->gone_count; i++) {
        const view_gone *gone = &pool->gone[i];
        if (number_of[i] == NOT_SHOWN)
            continue;
        bp_json_add_number(json, NULL, s->slab_at[gone->slab]);
        bp_json_add_number(json, NULL, gone->offset);
        bp_json_add_number(json, NULL, gone->bytes);
        bp_json_add_number(json, NULL, gone->begin_ns);
        bp_json_add_number(json, NULL, gone->end_ns);
    }
    bp_json_end(json);
    free(weights);
    free(number_of);
    return good;
}

static bool write_slabs(bp_json_writer *json, const sample *s, size_t max)
{
    const view_pool *pool = s->pool;
    char address[24];
    bp_json_add_list(json, "slabs");
    for (size_t i = 0; i < pool->info->slab_count; i++) {
        const bp_snapshot_slab *slab = &pool->slabs[i];
        if (s->slab_at[i] == NOT_SHOWN)
            continue;
        snprintf(address, sizeof address, "0x%llx", (unsigned long long)slab->address);
        bp_json_add_list(json, NULL);
        bp_json_add_text(json, NULL, address);
        bp_json_add_number(json, NULL, slab->bytes);
        bp_json_add_number(json, NULL, slab->planned_bytes);
        bp_json_add_text(json, NULL, slab->group);
        bp_json_end(json);
    }
    bp_json_end(json);
    bp_json_add_line(json);
    bool good = write_gone(json, s, max);
    bp_json_add_line(json);
    bp_json_add_list(json, "tracks");
    for (size_t i = 0; i < pool->track_count; i++) {
        if (s->track_at[i] != NOT_SHOWN)
            bp_json_add_number(json, NULL, pool->tracks[i]);
    }
    bp_json_end(json);
    return good;
}

static void write_requests(bp_json_writer *json, const sample *s)
{
    const view_pool *pool = s->pool;
    bp_json_add_list(json, "roles");
    for (size_t i = 0; i < pool->role_count; i++)
        bp_json_add_text(json, NULL, pool->roles[i].name);
    bp_json_end(json);
    bp_json_add_list(json, "requests");
    for (size_t i = 0; i < pool->info->request_count; i++) {
        const bp_snapshot_request *request = &pool->requests[i];
        if (s->request_at[i] == NOT_SHOWN)
            continue;
        bp_json_add_line(json);
        bp_json_add_list(json, NULL);
        bp_json_add_text(json, NULL, request->unit);
        bp_json_add_text(json, NULL, request->bucket);
        bp_json_add_text(json, NULL, request->dtype);
        bp_json_add_text(json, NULL, request->placement);
        bp_json_add_number(json, NULL, pool->role_of[i]);
        bp_json_add_number(json, NULL, request->bytes);
        bp_json_add_number(json, NULL, request->ordinal);
        bp_json_end(json);
    }
    bp_json_end(json);
}

/* Seven numbers per span: request, slab (-1: none), offset, begin, end, stream, flags (1: began before, 2: not ended). */
static void write_spans(bp_json_writer *json, const sample *s)
{
    const view_pool *pool = s->pool;
    bp_json_add_list(json, "spans");
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        if (s->span_at[i] == NOT_SHOWN)
            continue;
        bool outside = span->slab == VIEW_OUTSIDE;
        bp_json_add_line(json);
        bp_json_add_number(json, NULL, s->request_at[span->request]);
        bp_json_add_signed(json, NULL, outside ? -1 : (int64_t)s->slab_at[span->slab]);
        bp_json_add_number(json, NULL, outside ? s->track_at[span->offset] : span->offset);
        bp_json_add_number(json, NULL, span->begin_ns);
        bp_json_add_number(json, NULL, span->end_ns);
        bp_json_add_number(json, NULL, span->stream);
        bp_json_add_number(json, NULL, (span->begin_event == 0 ? 1u : 0u) + (span->end_event == SIZE_MAX ? 2u : 0u));
    }
    bp_json_end(json);
}

/* Members of a recording of PyTorch's allocator. false: out of memory. */
static bool write_recording(bp_json_writer *json, const view_pool *pool, const view_device *device)
{
    bp_json_add_number(json, "recording", 1);
    bp_json_add_list(json, "steps");
    for (size_t i = 0; i < device->step_count; i++)
        bp_json_add_number(json, NULL, device->steps_ns[i] - pool->first_ns);
    bp_json_end(json);
    return write_reserved(json, pool);
}

/* `device`: of PyTorch's allocator, else NULL. false: out of memory. */
static bool write_pool(bp_json_writer *json, const view_pool *pool, const view_device *device, size_t max)
{
    sample s;
    bool good = make_sample(pool, max, &s);
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, "name", pool->info->name);
    bp_json_add_text(json, "allocator", pool->info->allocator);
    bp_json_add_text(json, "device", pool->info->device);
    bp_json_add_text(json, "fingerprint", pool->info->fingerprint);
    if (pool->info->has_plan) {
        bp_json_add_list(json, "plan");
        bp_json_add_number(json, NULL, pool->info->plan_bytes);
        bp_json_add_number(json, NULL, pool->info->lower_bound_bytes);
        bp_json_add_number(json, NULL, pool->info->optimal);
        bp_json_end(json);
    }
    bp_json_add_number(json, "length", pool->length_ns);
    bp_json_add_number(json, "slabBytes", pool->slab_bytes);
    bp_json_add_number(json, "peakBytes", pool->peak_bytes);
    bp_json_add_number(json, "peakTime", pool->peak_ns);
    bp_json_add_number(json, "peakSlabBytes", pool->peak_slab_bytes);
    bp_json_add_number(json, "peakFree", pool->peak_free_bytes);
    bp_json_add_number(json, "peakLargestFree", pool->peak_largest_free);
    bp_json_add_number(json, "lost", pool->info->lost_events);
    if (good && device != NULL)
        good = write_recording(json, pool, device);
    if (good) {
        good = write_slabs(json, &s, max) && (s.is_whole || write_curve(json, pool));

        bp_json_add_list(json, "streams");
        for (size_t i = 0; i < pool->info->stream_count; i++) {
            bp_json_add_list(json, NULL);
            bp_json_add_number(json, NULL, pool->info->streams[i].number);
            bp_json_add_text(json, NULL, pool->info->streams[i].name);
            bp_json_end(json);
        }
        bp_json_end(json);

        write_requests(json, &s);
        write_spans(json, &s);
    }
    bp_json_add_number(json, "events", pool->info->event_count);
    bp_json_end(json);

    free(s.span_at);
    free(s.request_at);
    free(s.slab_at);
    free(s.track_at);

    return good;
}

static bool write_file(bp_json_writer *json, const view_file *f, size_t max)
{
    char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS];
    const char *slash = strrchr(f->path, '/');
    view_file_label(f, label);
    view_file_step(f, step);
    bp_json_add_line(json);
    bp_json_add_object(json, NULL);
    bp_json_add_text(json, "file", slash != NULL ? slash + 1 : f->path);
    bp_json_add_text(json, "label", label);
    bp_json_add_text(json, "step", step);
    bp_json_add_text(json, "version", f->info->version);
    bp_json_add_number(json, "ranks", f->info->ranks);
    bp_json_add_number(json, "countsEvents", (uint64_t)f->info->counts_events);
    bp_json_add_list(json, "pools");
    bool good = true;
    for (size_t i = 0; good && i < f->pool_count; i++)
        good = write_pool(json, &f->pools[i],
                          f->info->is_ours ? NULL : &f->recording.devices[f->pools[i].info - f->info->pools], max);
    bp_json_end(json);
    bp_json_end(json);
    return good;
}

bool view_page_write(const view_file *files, size_t count, bp_output *page)
{
    bp_json_writer json = {.output = page, .layout = BP_JSON_COMPACT, .is_in_page = true};
    const char *middle = strstr(view_page_text, place);
    size_t before = middle != NULL ? (size_t)(middle - view_page_text) : 0, after = before + sizeof place - 1;
    size_t pools = 0;
    bool good = true;
    for (size_t i = 0; i < count; i++)
        pools += files[i].pool_count;
    size_t max = MAX_SPANS / (pools > 0 ? pools : 1);
    max = max < MIN_SPANS ? MIN_SPANS : max > MAX_SPANS_OF_POOL ? MAX_SPANS_OF_POOL : max;
    bp_output_add(page, view_page_text, before);
    bp_json_add_object(&json, NULL);
    bp_json_add_text(&json, "format", "bucketpool.page/1");
    bp_json_add_list(&json, "files");
    for (size_t i = 0; good && i < count; i++)
        good = write_file(&json, &files[i], max);
    bp_json_end(&json);
    bp_json_end(&json);
    good = bp_json_close(&json) == BP_OK && good;
    bp_output_add(page, view_page_text + after, view_page_bytes - after);
    return good;
}
