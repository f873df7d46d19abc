/* Copies between the slabs of a group and its host memory, chunk by chunk, and the streams that they go on. */
#include "offload/copies.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "offload/offload.h"

/* ---- streams ----------------------------------------------------------------------------------------------------- */

#define STREAMS 4

static void list(const bp_movers *movers, bp_stream *streams[STREAMS])
{
    streams[0] = movers->away.copies;
    streams[1] = movers->away.helper;
    streams[2] = movers->back.copies;
    streams[3] = movers->back.helper;
}

bp_status bp_movers_create(bp_device *device, bp_movers *movers)
{
    bp_movers made = {{NULL, NULL}, {NULL, NULL}};
    bp_status status = bp_stream_create(device, "offload.copies", &made.away.copies);
    if (status == BP_OK)
        status = bp_stream_create(device, "offload.helper", &made.away.helper);
    if (status == BP_OK)
        status = bp_stream_create(device, "restore.copies", &made.back.copies);
    if (status == BP_OK)
        status = bp_stream_create(device, "restore.helper", &made.back.helper);
    if (status == BP_OK)
        *movers = made;
    else
        bp_movers_destroy(&made);
    return status;
}

void bp_movers_destroy(bp_movers *movers)
{
    bp_stream_destroy(&movers->back.helper);
    bp_stream_destroy(&movers->back.copies);
    bp_stream_destroy(&movers->away.helper);
    bp_stream_destroy(&movers->away.copies);
}

/* What `then` gets from now on starts after what `first` has. */
static bp_status movers_order(bp_stream *first, bp_stream *then)
{
    uint64_t point;
    bool recorded;
    BP_TRY(bp_stream_record_point(first, &point, &recorded));
    return recorded ? bp_stream_wait_point(then, first, point) : BP_OK;
}

/* A stream may be destroyed by another thread meanwhile; its work is waited for as long as there is some. */
static bp_status order_unless_captured(bp_stream *first, bp_stream *then)
{
    uint64_t capture = 0;
    if (bp_stream_is_over(first))
        return BP_OK;
    if (bp_stream_is_usable(first, then->device)) {
        bp_status status = bp_stream_capture_of(first, &capture);
        if (status != BP_OK && bp_stream_is_usable(first, then->device))
            return status;
    }
    return capture == 0 ? movers_order(first, then) : BP_OK;
}

/* `then` starts after everything that the device's streams have, but for captured ones and the movers' own. Does not wait. */
static bp_status movers_after_device(const bp_movers *movers, bp_stream *then)
{
    bp_stream *own[STREAMS];
    list(movers, own);
    for (bp_stream *s = atomic_load_explicit(&then->device->streams, memory_order_acquire); s != NULL; s = s->next) {
        if (s != own[0] && s != own[1] && s != own[2] && s != own[3])
            BP_TRY(order_unless_captured(s, then));
    }
    return BP_OK;
}

/* After everything that the movers' other streams have. */
static bp_status movers_after_all(const bp_movers *movers, bp_stream *then)
{
    bp_stream *own[STREAMS];
    list(movers, own);
    for (int i = 0; i < STREAMS; i++) {
        if (own[i] != then)
            BP_TRY(movers_order(own[i], then));
    }
    return BP_OK;
}

static bool is_quiet(bp_stream *const streams[STREAMS])
{
    bool quiet = true;
    for (int i = 0; i < STREAMS && quiet; i++)
        quiet = bp_stream_quiesce(streams[i]) == BP_OK;
    return quiet;
}

/* The host waits until nothing is on its way. false: the device refuses to wait. */
static bool movers_quiesce(const bp_movers *movers)
{
    bp_stream *own[STREAMS];
    bool quiet = false;
    list(movers, own);
    for (int tries = 0; tries < 2 && !quiet; tries++) /* what a copy may still write to cannot be freed */
        quiet = is_quiet(own);
    return quiet;
}

/* ---- copies ------------------------------------------------------------------------------------------------------ */

typedef struct chunk {
    uint8_t *device, *host;
    uint64_t bytes;
} chunk;

/* ---- jobs ----------------------------------------------------------------------------------------------------------- */

static bp_status copies_create(bp_offload *offload, bp_group *group, bp_job **job)
{
    size_t bytes = sizeof **job + group->slab_count * sizeof(bp_job_piece); /* fewer than the pool's own for slabs */
    bp_job *made = calloc(1, bytes);
    if (made == NULL)
        return bp_fail_memory(bytes);
    made->offload = offload;
    made->group = group;
    pthread_mutex_lock(&offload->lock);
    made->copied_before = group->copied_bytes;
    pthread_mutex_unlock(&offload->lock);
    made->count = group->slab_count;
    for (size_t i = 0; i < made->count; i++) {
        const bp_slab *slab = &offload->pool->slabs.slabs[group->slabs[i]];
        made->pieces[i] = (bp_job_piece){.device = slab->address, .bytes = slab->bytes};
    }
    *job = made;
    return BP_OK;
}

static void use_memory(bp_job *job, const bp_backing_memory *memory)
{
    const bp_host_source *source = &job->offload->source;
    job->staged = !memory->pinned;
    job->chunk_bytes = job->staged ? source->stage_bytes : source->chunk_bytes;
}

static void copies_add_piece(bp_job *job, size_t piece, const bp_kept *kept, uint64_t bytes)
{
    job->pieces[piece].host = kept->memory;
    job->pieces[piece].bytes = bytes;
    job->bytes += bytes;
}

bp_status bp_job_create_away(bp_offload *offload, bp_group *group, bp_backing_memory *memory, bp_job **job)
{
    BP_TRY(copies_create(offload, group, job));
    (*job)->away = true;
    if (memory == NULL)
        return BP_OK;
    use_memory(*job, memory);
    for (size_t i = 0; i < memory->count; i++)
        copies_add_piece(*job, i, &memory->pieces[i], memory->pieces[i].bytes);
    return BP_OK;
}

bp_status bp_job_create_back(bp_offload *offload, bp_group *group, bp_job **job)
{
    const bp_backing_memory *memory = group->memory;
    BP_TRY(copies_create(offload, group, job));
    (*job)->fill = group->fill == BP_RESTORE_ZERO;
    if (memory == NULL)
        return BP_OK;
    use_memory(*job, memory);
    for (size_t i = 0; i < memory->count; i++) {
        if (memory->pieces[i].kept > 0)
            copies_add_piece(*job, i, &memory->pieces[i], memory->pieces[i].kept);
    }
    return BP_OK;
}

static bool next_chunk(const bp_job *job, bp_walk *walk, chunk *next)
{
    while (walk->piece < job->count &&
           (job->pieces[walk->piece].host == NULL || walk->offset == job->pieces[walk->piece].bytes))
        *walk = (bp_walk){.piece = walk->piece + 1};
    if (walk->piece == job->count)
        return false;
    const bp_job_piece *piece = &job->pieces[walk->piece];
    *next = (chunk){.device = piece->device + walk->offset,
                    .host = piece->host + walk->offset,
                    .bytes = bp_least_u64(job->chunk_bytes, piece->bytes - walk->offset)};
    walk->offset += next->bytes;
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
    if (job->copied_bytes == job->bytes) /* the last that is done with the job */
        atomic_store_explicit(&job->over, true, memory_order_release);
}

/* The chunk whose turn it is, and the stage that it goes through. */
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

static bp_status tell(const bp_mover *mover, bp_job *job)
{
    BP_TRY(movers_order(mover->copies, mover->helper));
    return bp_stream_call(mover->helper, chunk_arrived, job);
}

static bp_status copy_directly(const bp_mover *mover, bp_job *job)
{
    bp_walk walk = {0};
    chunk c;
    while (next_chunk(job, &walk, &c)) {
        BP_TRY(bp_stream_copy(mover->copies, job->away ? c.host : c.device, job->away ? c.device : c.host, c.bytes));
        BP_TRY(tell(mover, job));
    }
    return BP_OK;
}

/* The copy into a stage waits until the helper has emptied it of the chunk before the last. */
static bp_status copy_away_staged(const bp_mover *mover, bp_job *job)
{
    void *const *stages = job->offload->source.stages;
    bp_walk walk = {0};
    chunk c;
    uint64_t emptied[2];
    bool recorded;
    for (uint64_t n = 0; next_chunk(job, &walk, &c); n++) {
        if (n >= 2)
            BP_TRY(bp_stream_wait_point(mover->copies, mover->helper, emptied[n % 2]));
        BP_TRY(bp_stream_copy(mover->copies, stages[n % 2], c.device, c.bytes));
        BP_TRY(movers_order(mover->copies, mover->helper));
        BP_TRY(bp_stream_call(mover->helper, empty_stage, job));
        BP_TRY(bp_stream_record_point(mover->helper, &emptied[n % 2], &recorded));
    }
    return BP_OK;
}

static bp_status copy_from_stage(const bp_mover *mover, bp_job *job, const void *stage, const chunk *c,
                                 uint64_t *copied)
{
    bool recorded;
    BP_TRY(bp_stream_call(mover->helper, fill_stage, job));
    BP_TRY(movers_order(mover->helper, mover->copies));
    BP_TRY(bp_stream_copy(mover->copies, c->device, stage, c->bytes));
    return bp_stream_record_point(mover->copies, copied, &recorded);
}

static bp_status tell_copied(const bp_mover *mover, bp_job *job, uint64_t copied)
{
    BP_TRY(bp_stream_wait_point(mover->helper, mover->copies, copied));
    return bp_stream_call(mover->helper, chunk_arrived, job);
}

/* The helper fills a stage when the chunk before the last has been copied out of it, and says so then. */
static bp_status copy_back_staged(const bp_mover *mover, bp_job *job)
{
    void *const *stages = job->offload->source.stages;
    bp_walk walk = {0};
    chunk c;
    uint64_t copied[2] = {0, 0}, n = 0;
    for (; next_chunk(job, &walk, &c); n++) {
        if (n >= 2)
            BP_TRY(tell_copied(mover, job, copied[n % 2]));
        BP_TRY(copy_from_stage(mover, job, stages[n % 2], &c, &copied[n % 2]));
    }
    for (uint64_t last = n >= 2 ? n - 2 : 0; last < n; last++)
        BP_TRY(tell_copied(mover, job, copied[last % 2]));
    return BP_OK;
}

static bp_status fill_with_zeros(const bp_mover *mover, const bp_job *job)
{
    for (size_t i = 0; i < job->count; i++) {
        if (job->pieces[i].host == NULL)
            BP_TRY(bp_stream_fill(mover->copies, job->pieces[i].device, 0, job->pieces[i].bytes));
    }
    return BP_OK;
}

/* Stages are for both directions: whoever had them before is done with them first. */
static bp_status copy_staged(const bp_mover *mover, bp_job *job)
{
    BP_TRY(movers_after_all(&job->offload->movers, job->away ? mover->copies : mover->helper));
    return job->away ? copy_away_staged(mover, job) : copy_back_staged(mover, job);
}

static bp_status copy_pieces(const bp_mover *mover, bp_job *job)
{
    job->started = true;
    if (job->fill)
        BP_TRY(fill_with_zeros(mover, job));
    return job->staged ? copy_staged(mover, job) : copy_directly(mover, job);
}

bp_status bp_copies_start(bp_job *job)
{
    bp_offload *offload = job->offload;
    const bp_mover *mover = job->away ? &offload->movers.away : &offload->movers.back;
    pthread_mutex_lock(&offload->lock);
    job->group->copied_bytes = 0;
    pthread_mutex_unlock(&offload->lock);
    if (job->group->done == NULL)
        BP_TRY(bp_event_create(offload->device, &job->group->done));
    if (job->away)
        BP_TRY(movers_after_device(&offload->movers, mover->copies));
    if (job->bytes > 0 || job->fill)
        BP_TRY(copy_pieces(mover, job));
    BP_TRY(movers_order(mover->copies, mover->helper));
    return bp_event_record(job->group->done, mover->helper);
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

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

/* What the helper has seen to its end is over, whatever the device says. */
static bool are_over(const bp_job *job)
{
    while (job != NULL && (job->bytes == 0 || atomic_load_explicit((atomic_bool *)&job->over, memory_order_acquire)))
        job = job->next;
    return job == NULL;
}

bool bp_copies_settle(bp_offload *offload)
{
    if (!are_over(offload->abandoned) && !movers_quiesce(&offload->movers))
        return false;
    while (offload->abandoned != NULL) {
        bp_job *job = offload->abandoned;
        offload->abandoned = job->next;
        free_job(job);
    }
    return true;
}
