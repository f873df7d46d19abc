#include "view/page.h"

#include <errno.h>
#include <stdio.h>
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

static void write_slabs(FILE *file, const view_pool *pool)
{
    fprintf(file, "\"slabs\":[");
    for (size_t i = 0; i < pool->about.slabs; i++) {
        const bp_snapshot_slab *slab = &pool->slabs[i];
        fprintf(file, "%s[\"0x%llx\",%llu,%llu,", i > 0 ? "," : "", (unsigned long long)slab->address,
                (unsigned long long)slab->bytes, (unsigned long long)slab->planned_bytes);
        view_json_text(file, slab->group);
        fprintf(file, ",%d]", slab->resident_at_start);
    }
    fprintf(file, "],\n\"slabEvents\":[");
    for (size_t i = 0; i < pool->about.slab_events; i++) {
        bp_snapshot_slab_event event = {.size = sizeof event};
        if (bp_snapshot_slab_event_get(pool->snapshot, pool->index, i, &event) == BP_OK)
            fprintf(file, "%s%d,%u,%llu", i > 0 ? "," : "", event.gained, event.slab,
                    (unsigned long long)(event.time_ns - pool->first_ns));
    }
    fprintf(file, "],\n\"tracks\":[");
    for (size_t i = 0; i < pool->track_count; i++)
        fprintf(file, "%s%llu", i > 0 ? "," : "", (unsigned long long)pool->tracks[i]);
    fprintf(file, "],\n");
}

static void write_streams(FILE *file, const view_pool *pool)
{
    fprintf(file, "\"streams\":[");
    for (size_t i = 0; i < pool->about.streams; i++) {
        bp_snapshot_stream stream = {.size = sizeof stream};
        if (bp_snapshot_stream_get(pool->snapshot, pool->index, i, &stream) != BP_OK)
            continue;
        fprintf(file, "%s[%llu,", i > 0 ? "," : "", (unsigned long long)stream.number);
        view_json_text(file, stream.name);
        putc(']', file);
    }
    fprintf(file, "],\n");
}

static void write_requests(FILE *file, const view_pool *pool)
{
    fprintf(file, "\"roles\":[");
    for (size_t i = 0; i < pool->role_count; i++) {
        fputs(i > 0 ? "," : "", file);
        view_json_text(file, pool->roles[i].name);
    }
    fprintf(file, "],\n\"requests\":[");
    for (size_t i = 0; i < pool->about.requests; i++) {
        const bp_snapshot_request *request = &pool->requests[i];
        fputs(i > 0 ? ",\n[" : "[", file);
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
static void write_spans(FILE *file, const view_pool *pool)
{
    fprintf(file, "\"spans\":[");
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        fprintf(file, "%s%u,%lld,%llu,%llu,%llu,%llu,%d", i > 0 ? ",\n" : "", span->request,
                span->slab == VIEW_OUTSIDE ? -1 : (long long)span->slab, (unsigned long long)span->offset,
                (unsigned long long)span->begin_ns, (unsigned long long)span->end_ns, (unsigned long long)span->stream,
                (span->begin_event == 0) + 2 * (span->end_event == SIZE_MAX));
    }
    fprintf(file, "],\n");
}

static void write_pool(FILE *file, const view_pool *pool)
{
    putc('{', file);
    write_text(file, "name", pool->about.name);
    write_text(file, "allocator", pool->about.allocator);
    write_text(file, "device", pool->about.device);
    write_text(file, "fingerprint", pool->about.fingerprint);
    if (pool->about.has_plan)
        fprintf(file, "\"plan\":[%llu,%llu,%d],", (unsigned long long)pool->about.plan_bytes,
                (unsigned long long)pool->about.lower_bound_bytes, pool->about.optimal);
    write_number(file, "length", pool->length_ns);
    write_number(file, "slabBytes", pool->slab_bytes);
    write_number(file, "peakBytes", pool->peak_bytes);
    write_number(file, "peakTime", pool->peak_ns);
    write_number(file, "peakSlabBytes", pool->peak_slab_bytes);
    write_number(file, "peakFree", pool->peak_free_bytes);
    write_number(file, "peakLargestFree", pool->peak_largest_free);
    write_number(file, "lost", pool->about.lost_events);
    write_slabs(file, pool);
    write_streams(file, pool);
    write_requests(file, pool);
    write_spans(file, pool);
    fprintf(file, "\"events\":%zu}", pool->about.events);
}

static void write_file(FILE *file, const view_file *f)
{
    char label[VIEW_LABEL_CHARS], step[VIEW_LABEL_CHARS];
    const char *slash = strrchr(f->path, '/');
    view_file_label(f, label);
    view_file_step(f, step);
    putc('{', file);
    write_text(file, "file", slash != NULL ? slash + 1 : f->path);
    write_text(file, "label", label);
    write_text(file, "step", step);
    write_text(file, "version", f->about.version);
    write_number(file, "ranks", f->about.ranks);
    fprintf(file, "\"pools\":[");
    for (size_t i = 0; i < f->pool_count; i++) {
        fputs(i > 0 ? ",\n" : "", file);
        write_pool(file, &f->pools[i]);
    }
    fprintf(file, "]}");
}

static void write_page(FILE *file, const view_file *files, size_t count)
{
    const char *middle = strstr(view_page_text, place);
    size_t before = middle != NULL ? (size_t)(middle - view_page_text) : 0;
    fwrite(view_page_text, 1, before, file);
    fprintf(file, "{\"format\":\"bucketpool.page/1\",\"files\":[\n");
    for (size_t i = 0; i < count; i++) {
        fputs(i > 0 ? ",\n" : "", file);
        write_file(file, &files[i]);
    }
    fprintf(file, "\n]}");
    size_t after = before + sizeof place - 1;
    fwrite(view_page_text + after, 1, view_page_bytes - after, file);
}

bool view_page_write(const view_file *files, size_t count, const output *to)
{
    FILE *file = output_stream(to);
    if (file == NULL)
        return false;
    write_page(file, files, count);
    int reason = fflush(file) != 0 || ferror(file) ? errno : 0;
    if (fclose(file) != 0 && reason == 0)
        reason = errno;
    if (reason != 0)
        errno = reason;
    return reason == 0;
}
