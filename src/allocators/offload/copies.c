/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of release groups: host memory (pinned or staged, one piece per slab), jobs that copy in chunks, and their streams. */
#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "allocators/offload/offload.h"

/* ---- host memory ------------------------------------------------------------------------------------------------- */

static bp_status try_stages(bp_host_source *source, uint64_t bytes)
{
    void *stages[2];
    BP_TRY(bp_pinned_allocate(source->pinned, bytes, 0, &stages[0]));
    bp_status status = bp_pinned_allocate(source->pinned, bytes, 0, &stages[1]);
    if (status != BP_OK) {
        (void)bp_pinned_free(source->pinned, stages[0]);
        return status;
    }
    memcpy(source->stages, stages, sizeof stages);
    source->stage_bytes = bytes;
    return BP_OK;
}

/* Allocates the staging chunks between the device and pageable memory. If staging is only the fallback, smaller chunks are tried. */
static bp_status get_stages(bp_host_source *source)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = source->chunk_bytes;
    if (source->stages[0] != NULL)
        return BP_OK;
    bp_status status = try_stages(source, bytes);
    while (status == BP_ERR_NO_HOST_MEMORY && source->backing == BP_BACKING_AUTO && bytes > page) {
        bytes = bytes / 2 / page * page;
        bytes = bytes > page ? bytes : page;
        status = try_stages(source, bytes);
    }
    return status;
}

void bp_host_source_drop_stages(bp_host_source *source)
{
    for (int i = 0; i < 2; i++) {
        if (source->stages[i] != NULL)
            (void)bp_pinned_free(source->pinned, source->stages[i]);
        source->stages[i] = NULL;
    }
}

static void give_back_pieces(const bp_host_source *source, bp_backing_memory *memory)
{
    for (size_t i = memory->count; i-- > 0;) {
        bp_kept *piece = &memory->pieces[i];
        if (piece->memory != NULL && memory->pinned)
            (void)bp_pinned_free(source->pinned, piece->memory);
        else if (piece->memory != NULL)
            (void)munmap(piece->memory, (size_t)piece->bytes);
        piece->memory = NULL;
    }
}

static bp_status get_pieces(bp_host_source *source, const char *group, bool pinned, bp_backing_memory *memory)
{
    char because[BP_DETAIL_BYTES];
    bp_status status = BP_OK;
    memory->pinned = pinned;
    for (size_t i = 0; i < memory->count && status == BP_OK; i++) {
        bp_kept *piece = &memory->pieces[i];
        if (pinned) {
            status = bp_pinned_allocate(source->pinned, piece->bytes, 0, &piece->memory);
            if (status != BP_ERR_NO_HOST_MEMORY)
                continue;
            snprintf(because, sizeof because, "%s", bp_error_detail());
            status = bp_fail(status, "group %.40s: no pinned memory for %llu of its %llu bytes: %.300s", group,
                             (unsigned long long)piece->bytes, (unsigned long long)memory->bytes, because);
        } else {
            void *mapping =
                mmap(NULL, (size_t)piece->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (mapping != MAP_FAILED)
                piece->memory = mapping;
            else
                status = bp_fail(
                    BP_ERR_NO_HOST_MEMORY,
                    "group %.40s: no host memory for %llu of its %llu bytes: %s; discard them, or free memory", group,
                    (unsigned long long)piece->bytes, (unsigned long long)memory->bytes, strerror(errno));
        }
    }
    if (status != BP_OK)
        give_back_pieces(source, memory);
    return status;
}

bp_status bp_backing_memory_create(bp_offload *offload, const bp_group *group, bp_backing_memory **memory)
{
    bp_host_source *source = &offload->source;
    size_t size =
        sizeof **memory + group->slab_count * sizeof(bp_kept); /* cannot overflow: slabs take more memory than that */
    bp_backing_memory *made = calloc(1, size);
    if (made == NULL)
        return bp_fail_memory(size);
    made->count = group->slab_count;
    for (size_t i = 0; i < made->count; i++) {
        made->pieces[i].bytes = bp_pool_slabs(offload->pool)->slabs[group->slabs[i]].bytes;
        made->bytes += made->pieces[i].bytes;
    }
    bool staged = source->backing == BP_BACKING_STAGED;
    bp_status status = staged ? BP_OK : get_pieces(source, group->name, true, made);
    staged |= status == BP_ERR_NO_HOST_MEMORY && source->backing == BP_BACKING_AUTO;
    if (staged)
        status = get_stages(source);
    if (staged && status == BP_OK)
        status = get_pieces(source, group->name, false, made);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    *memory = made;
    return BP_OK;
}

void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory)
{
    if (*memory == NULL)
        return;
    give_back_pieces(source, *memory);
    free(*memory);
    *memory = NULL;
}

uint64_t bp_backing_memory_kept(const bp_backing_memory *memory)
{
    uint64_t kept = 0;
    for (size_t i = 0; memory != NULL && i < memory->count; i++)
        kept += memory->pieces[i].kept;
    return kept;
}

void bp_backing_memory_forget(bp_backing_memory *memory)
{
    for (size_t i = 0; memory != NULL && i < memory->count; i++)
        memory->pieces[i].kept = 0;
}

/* ---- jobs ----------------------------------------------------------------------------------------------------------- */

typedef struct job_piece {
    uint8_t *device;
    uint8_t *host; /* NULL: nothing to copy */
    uint64_t bytes;
} job_piece;

/* Progress through a job. */
typedef struct walk {
    size_t piece;
    uint64_t offset;
} walk;

typedef struct chunk {
    uint8_t *device, *host;
    uint64_t bytes;
} chunk;

/* Host functions on the helper run in order and track the progress here, so that a chunk needs no argument. */
struct bp_job {
    bp_offload *offload;
    bp_group *group;
    bp_stream *copies, *helper;
    bool out, staged;
    bool fill;    /* fill the bytes that are not copied with zeros */
    bool started; /* work that uses its memory was enqueued */
    uint64_t chunk_bytes, bytes;
    atomic_bool cancelled, over;
    walk moved, arrived; /* progress of the helper's functions */
    uint64_t moved_chunks, copied_bytes;
    uint64_t copied_before;    /* bytes of the group's earlier copies */
    bp_backing_memory *orphan; /* of an abandoned job: freed with it */
    bp_job *next;
    size_t count;
    job_piece pieces[];
};

bp_status bp_job_create(bp_offload *offload, bp_group *group, bool out, const bp_backing_memory *memory, bp_job **job)
{
    size_t bytes = sizeof **job +
                   group->slab_count * sizeof(job_piece); /* cannot overflow: the pool allocated more for its slabs */
    bp_job *made = calloc(1, bytes);
    if (made == NULL)
        return bp_fail_memory(bytes);
    made->offload = offload;
    made->group = group;
    made->copies = offload->movers[out ? BP_OFFLOAD_COPIES : BP_RESTORE_COPIES];
    made->helper = offload->movers[out ? BP_OFFLOAD_HELPER : BP_RESTORE_HELPER];
    made->out = out;
    made->fill = !out && group->fill == BP_RESTORE_ZERO;
    made->staged = memory != NULL && !memory->pinned;
    made->chunk_bytes = made->staged ? offload->source.stage_bytes : offload->source.chunk_bytes;
    pthread_mutex_lock(&offload->lock);
    made->copied_before = group->copied_bytes;
    pthread_mutex_unlock(&offload->lock);
    made->count = group->slab_count;
    for (size_t i = 0; i < made->count; i++) {
        const bp_slab *slab = &bp_pool_slabs(offload->pool)->slabs[group->slabs[i]];
        made->pieces[i] = (job_piece){.device = slab->address, .bytes = slab->bytes};
        const bp_kept *kept = memory != NULL ? &memory->pieces[i] : NULL;
        if (kept == NULL || (!out && kept->kept == 0))
            continue;
        made->pieces[i].host = kept->memory;
        made->pieces[i].bytes = out ? kept->bytes : kept->kept;
        made->bytes += made->pieces[i].bytes;
    }
    *job = made;
    return BP_OK;
}

static bool next_chunk(const bp_job *job, walk *w, chunk *next)
{
    while (w->piece < job->count && (job->pieces[w->piece].host == NULL || w->offset == job->pieces[w->piece].bytes))
        *w = (walk){.piece = w->piece + 1};
    if (w->piece == job->count)
        return false;
    const job_piece *piece = &job->pieces[w->piece];
    *next = (chunk){.device = piece->device + w->offset,
                    .host = piece->host + w->offset,
                    .bytes = bp_min_u64(job->chunk_bytes, piece->bytes - w->offset)};
    w->offset += next->bytes;
    return true;
}

/* ---- on the helper -------------------------------------------------------------------------------------------------- */

static bool is_cancelled(const bp_job *job)
{
    return atomic_load_explicit((atomic_bool *)&job->cancelled, memory_order_acquire);
}

static void chunk_arrived(void *argument)
{
    bp_job *job = argument;
    bp_offload *offload = job->offload;
    chunk c;
    if (!next_chunk(job, &job->arrived, &c))
        return;
    job->copied_bytes += c.bytes;
    pthread_mutex_lock(&offload->lock);
    const bool wanted = !is_cancelled(job);
    if (wanted)
        job->group->copied_bytes = job->copied_bytes;
    pthread_mutex_unlock(&offload->lock);
    if (wanted && offload->progress != NULL)
        offload->progress(offload->user, job->group->name, job->copied_bytes, job->bytes);
    if (job->copied_bytes == job->bytes) /* the last access to the job */
        atomic_store_explicit(&job->over, true, memory_order_release);
}

/* The next chunk and its stage. */
static void *next_stage(bp_job *job, chunk *c)
{
    if (!next_chunk(job, &job->moved, c) || is_cancelled(job))
        return NULL;
    return job->offload->source.stages[job->moved_chunks++ % 2];
}

static void empty_stage(void *argument)
{
    chunk c;
    const void *stage = next_stage(argument, &c);
    if (stage != NULL)
        memcpy(c.host, stage, c.bytes);
    chunk_arrived(argument);
}

static void fill_stage(void *argument)
{
    chunk c;
    void *stage = next_stage(argument, &c);
    if (stage != NULL)
        memcpy(stage, c.host, c.bytes);
}

/* ---- enqueuing ------------------------------------------------------------------------------------------------------ */

/* Orders later work on `then` after the present work on `first`. */
static bp_status order(bp_stream *first, bp_stream *then)
{
    uint64_t point;
    bool recorded;
    BP_TRY(bp_stream_record_point(first, &point, &recorded));
    return recorded ? bp_stream_wait_point(then, first, point) : BP_OK;
}

/* Orders `then` after the work of all streams of the device, except captured ones and the copy streams. Does not block. */
static bp_status order_after_device(const bp_offload *offload, bp_stream *then)
{
    for (bp_stream *s = atomic_load_explicit(&then->device->streams, memory_order_acquire); s != NULL; s = s->next) {
        uint64_t capture = 0;
        bool skipped = bp_stream_is_over(s);
        for (int i = 0; i < BP_MOVERS; i++)
            skipped |= s == offload->movers[i];
        if (skipped)
            continue;
        if (bp_stream_is_usable(s, then->device)) {
            /* another thread may destroy the stream meanwhile; its pending work is waited for all the same */
            bp_status status = bp_stream_capture_of(s, &capture);
            if (status != BP_OK && bp_stream_is_usable(s, then->device))
                return status;
        }
        if (capture == 0)
            BP_TRY(order(s, then));
    }
    return BP_OK;
}

static bp_status copy_directly(bp_job *job)
{
    walk w = {0};
    chunk c;
    while (next_chunk(job, &w, &c)) {
        BP_TRY(bp_stream_copy(job->copies, job->out ? c.host : c.device, job->out ? c.device : c.host, c.bytes));
        BP_TRY(order(job->copies, job->helper));
        BP_TRY(bp_stream_call(job->helper, chunk_arrived, job));
    }
    return BP_OK;
}

/* The copy into a stage waits until the helper has emptied it of the chunk before the last one. */
static bp_status copy_out_staged(bp_job *job)
{
    void *const *stages = job->offload->source.stages;
    walk w = {0};
    chunk c;
    uint64_t emptied[2];
    bool recorded;
    for (uint64_t n = 0; next_chunk(job, &w, &c); n++) {
        if (n >= 2)
            BP_TRY(bp_stream_wait_point(job->copies, job->helper, emptied[n % 2]));
        BP_TRY(bp_stream_copy(job->copies, stages[n % 2], c.device, c.bytes));
        BP_TRY(order(job->copies, job->helper));
        BP_TRY(bp_stream_call(job->helper, empty_stage, job));
        BP_TRY(bp_stream_record_point(job->helper, &emptied[n % 2], &recorded));
    }
    return BP_OK;
}

static bp_status tell_copied(bp_job *job, uint64_t copied)
{
    BP_TRY(bp_stream_wait_point(job->helper, job->copies, copied));
    return bp_stream_call(job->helper, chunk_arrived, job);
}

/* The helper fills a stage once the chunk before the last one was copied out of it, then signals. */
static bp_status copy_in_staged(bp_job *job)
{
    void *const *stages = job->offload->source.stages;
    walk w = {0};
    chunk c;
    uint64_t copied[2] = {0, 0}, n = 0;
    bool recorded;
    for (; next_chunk(job, &w, &c); n++) {
        if (n >= 2)
            BP_TRY(tell_copied(job, copied[n % 2]));
        BP_TRY(bp_stream_call(job->helper, fill_stage, job));
        BP_TRY(order(job->helper, job->copies));
        BP_TRY(bp_stream_copy(job->copies, c.device, stages[n % 2], c.bytes));
        BP_TRY(bp_stream_record_point(job->copies, &copied[n % 2], &recorded));
    }
    for (uint64_t last = n >= 2 ? n - 2 : 0; last < n; last++)
        BP_TRY(tell_copied(job, copied[last % 2]));
    return BP_OK;
}

bp_status bp_copies_start(bp_job *job)
{
    bp_offload *offload = job->offload;
    pthread_mutex_lock(&offload->lock);
    job->group->copied_bytes = 0;
    pthread_mutex_unlock(&offload->lock);
    if (job->group->done == NULL)
        BP_TRY(bp_event_create(offload->device, &job->group->done));
    if (job->out)
        BP_TRY(order_after_device(offload, job->copies));

    job->started = job->bytes > 0 || job->fill;
    for (size_t i = 0; job->fill && i < job->count; i++) {
        if (job->pieces[i].host == NULL)
            BP_TRY(bp_stream_fill(job->copies, job->pieces[i].device, 0, job->pieces[i].bytes));
    }
    if (job->started && job->staged) { /* both directions share the stages: earlier copies must be done with them */
        bp_stream *then = job->out ? job->copies : job->helper;
        for (int i = 0; i < BP_MOVERS; i++) {
            if (offload->movers[i] != then)
                BP_TRY(order(offload->movers[i], then));
        }
        BP_TRY(job->out ? copy_out_staged(job) : copy_in_staged(job));
    } else if (job->started) {
        BP_TRY(copy_directly(job));
    }
    BP_TRY(order(job->copies, job->helper));
    return bp_event_record(job->group->done, job->helper);
}

/* ---- completion ----------------------------------------------------------------------------------------------------- */

static void free_job(bp_job *job)
{
    bp_backing_memory_destroy(&job->offload->source, &job->orphan);
    free(job);
}

bp_status bp_copies_wait(bp_offload *offload, bp_group *group)
{
    bp_job *job = group->job;
    char words[BP_DETAIL_BYTES];
    bp_status status = bp_event_synchronize(group->done);
    group->job = NULL;
    if (status == BP_OK) {
        free_job(job);
        return BP_OK;
    }
    snprintf(words, sizeof words, "%s", bp_error_detail());
    bp_copies_abandon(job, NULL);
    (void)bp_copies_settle(offload);
    return bp_error_record(status, words);
}

void bp_copies_abandon(bp_job *job, bp_backing_memory *orphan)
{
    bp_offload *offload = job->offload;
    job->orphan = orphan;
    pthread_mutex_lock(&offload->lock);
    atomic_store_explicit(&job->cancelled, true, memory_order_release);
    job->group->copied_bytes = job->copied_before;
    pthread_mutex_unlock(&offload->lock);
    if (!job->started) {
        free_job(job);
        return;
    }
    job->next = offload->abandoned;
    offload->abandoned = job;
}

bp_backing_memory *bp_copies_reclaim(bp_offload *offload, const bp_group *group)
{
    for (bp_job *job = offload->abandoned; job != NULL; job = job->next) {
        bp_backing_memory *memory = job->orphan;
        if (job->group == group && memory != NULL) {
            job->orphan = NULL;
            return memory;
        }
    }
    return NULL;
}

bool bp_copies_settle(bp_offload *offload)
{
    bool over = true; /* jobs that the helper completed are over, whatever the device reports */
    for (const bp_job *job = offload->abandoned; job != NULL && over; job = job->next)
        over = job->bytes == 0 || atomic_load_explicit((atomic_bool *)&job->over, memory_order_acquire);
    for (int tries = 0; tries < 2 && !over; tries++) { /* memory that a copy may still write to must not be freed */
        over = true;
        for (int i = 0; i < BP_MOVERS && over; i++)
            over = bp_stream_quiesce(offload->movers[i]) == BP_OK;
    }
    if (!over)
        return false;
    while (offload->abandoned != NULL) {
        bp_job *job = offload->abandoned;
        offload->abandoned = job->next;
        free_job(job);
    }
    return true;
}
