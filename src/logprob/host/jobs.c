/* What the threads of a host engine do: rows, or pieces of rows where there are few, are dealt out to them. */
#include "logprob/host/jobs.h"

#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/fail.h"
#include "logprob/host/rows.h"
#include "logprob/host/values.h"

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define MOST_THREADS 1024u

#ifdef _OPENMP
int omp_get_max_threads(void); /* of omp.h, which is not everywhere where OpenMP is */

static uint32_t threads_of(uint32_t wanted)
{
    return wanted > 0 ? wanted : (uint32_t)omp_get_max_threads();
}
#else
static uint32_t threads_of(uint32_t wanted)
{
    (void)wanted;
    return 1;
}
#endif

bp_status bp_host_team_init(uint32_t threads, uint32_t kernels, uint64_t columns, bp_host_team *team)
{
    if (threads > MOST_THREADS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u threads for host kernels: at most %u", threads, MOST_THREADS);
    uint64_t tiles = columns / BP_TILE_COLUMNS + 1;
    bp_partial *memory = calloc(tiles, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(tiles * sizeof *memory);
    team->kernels = bp_kernels_choose(kernels);
    team->threads = threads_of(threads);
    team->tiles = memory;
    pthread_mutex_init(&team->tiles_lock, NULL);
    return BP_OK;
}

void bp_host_team_finish(bp_host_team *team)
{
    pthread_mutex_destroy(&team->tiles_lock);
    free(team->tiles);
}

/* ---- dealing out --------------------------------------------------------------------------------------------------- */

void bp_host_deal(const bp_host_team *team, uint64_t count, uint64_t piece, bp_host_piece *run, const void *job)
{
    const uint64_t pieces = count / piece + (count % piece != 0);
    if (team->threads == 1 || pieces < 2) {
        run(job, 0, count);
        return;
    }
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)team->threads) schedule(dynamic, 1)
#endif
    for (uint64_t i = 0; i < pieces; i++)
        run(job, i * piece, (i + 1) * piece < count ? (i + 1) * piece : count);
}

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

#define PIECE_TOKENS 256u
/* Output larger than this is written past the caches. A constant: what systems say of theirs may be a whole socket's. */
#define CACHED_BYTES (16u << 20)

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

/* Whether the threads have to share rows. */
static bool has_few_rows(const bp_host_team *team, uint64_t rows)
{
    return team->threads > 1 && rows < 2 * (uint64_t)team->threads;
}

/* ---- partials ------------------------------------------------------------------------------------------------------ */

typedef struct partials_job {
    const bp_host_team *team;
    const bp_partials_work *work;
    int dtype;
    const char *row; /* for pieces of a row */
} partials_job;

static void reduce_tile(const partials_job *job, const char *row, uint64_t tile, bp_partial *partial)
{
    const bp_logits_work *logits = &job->work->logits;
    uint64_t first = tile * BP_TILE_COLUMNS;
    job->team->kernels->tile[job->dtype](row + first * bp_row_element_bytes(job->dtype),
                                         (uint32_t)bp_least_u64(BP_TILE_COLUMNS, logits->columns - first),
                                         logits->scale, job->work->with_entropy != 0, partial);
    partial->target = 0;
}

static uint64_t tiles_of(uint64_t columns)
{
    return columns / BP_TILE_COLUMNS + (columns % BP_TILE_COLUMNS != 0);
}

static float value_of_target(const partials_job *job, uint64_t token, const char *row)
{
    const bp_logits_work *logits = &job->work->logits;
    int64_t target = bp_token_target(&job->work->tokens, token);
    if (!bp_target_is_within(target, logits->first, logits->columns))
        return 0;
    return bp_row_value(job->dtype, row, (uint64_t)target - (uint64_t)logits->first);
}

static void reduce_rows(const void *context, uint64_t begin, uint64_t end)
{
    const partials_job *job = context;
    const bp_partials_work *work = job->work;
    for (uint64_t token = begin; token < end; token++) {
        bp_partial partial = {0};
        if (!bp_token_is_masked(&work->tokens, token)) {
            const char *row = bp_row_of(&work->tokens, &work->logits, token);
            reduce_tile(job, row, 0, &partial);
            for (uint64_t tile = 1; tile < tiles_of(work->logits.columns); tile++) {
                bp_partial next;
                reduce_tile(job, row, tile, &next);
                bp_partial_merge(&partial, &next, work->logits.scale);
            }
            partial.target = value_of_target(job, token, row);
        }
        work->partials[token] = partial;
    }
}

static void reduce_tiles(const void *context, uint64_t begin, uint64_t end)
{
    const partials_job *job = context;
    for (uint64_t tile = begin; tile < end; tile++)
        reduce_tile(job, job->row, tile, job->team->tiles + tile);
}

/* All threads on one row after the other. */
static void reduce_together(partials_job *job, uint64_t rows)
{
    const bp_partials_work *work = job->work;
    uint64_t tiles = tiles_of(work->logits.columns);
    const bp_partial *partials = job->team->tiles;
    for (uint64_t token = 0; token < rows; token++) {
        bp_partial partial = {0};
        if (!bp_token_is_masked(&work->tokens, token)) {
            job->row = bp_row_of(&work->tokens, &work->logits, token);
            bp_host_deal(job->team, tiles, BP_PIECE_COLUMNS / BP_TILE_COLUMNS, reduce_tiles, job);
            partial = partials[0];
            for (uint64_t tile = 1; tile < tiles; tile++)
                bp_partial_merge(&partial, partials + tile, work->logits.scale);
            partial.target = value_of_target(job, token, job->row);
        }
        work->partials[token] = partial;
    }
}

void bp_host_partials(bp_host_team *team, const bp_partials_work *work)
{
    uint64_t rows = work->tokens.batch * work->tokens.sequence;
    partials_job job = {.team = team, .work = work, .dtype = bp_row_dtype(work->logits.dtype)};
    if (has_few_rows(team, rows)) {
        pthread_mutex_lock(&team->tiles_lock);
        reduce_together(&job, rows);
        pthread_mutex_unlock(&team->tiles_lock);
    } else {
        bp_host_deal(team, rows, bp_rows_of_piece(work->logits.columns), reduce_rows, &job);
    }
}

/* ---- outputs ------------------------------------------------------------------------------------------------------- */

static void host_jobs_set(float *values, int64_t offset, float value)
{
    if (values != NULL)
        values[offset] = value;
}

static void finish_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_finish_work *work = context;
    for (uint64_t token = begin; token < end; token++) {
        bp_row_outputs outputs = {0};
        if (!bp_token_is_masked(&work->tokens, token)) {
            int64_t target = bp_token_target(&work->tokens, token);
            outputs = bp_row_finish(work, token, bp_target_is_within(target, work->vocab_first, work->vocab));
        }
        host_jobs_set(work->logprob,
                      bp_token_offset(&work->tokens, token, work->logprob_batch_stride, work->logprob_stride),
                      outputs.logprob);
        host_jobs_set(work->entropy,
                      bp_token_offset(&work->tokens, token, work->entropy_batch_stride, work->entropy_stride),
                      outputs.entropy);
        host_jobs_set(work->saved.max, (int64_t)token, outputs.max);
        host_jobs_set(work->saved.log_sum, (int64_t)token, outputs.log_sum);
        host_jobs_set(work->saved.energy, (int64_t)token, outputs.energy);
    }
}

static void note_bad_target(const bp_finish_work *work, uint64_t rows)
{
    for (uint64_t token = 0; token < bp_least_u64(rows, work->bad->token); token++) {
        if (bp_token_is_masked(&work->tokens, token))
            continue;
        int64_t target = bp_token_target(&work->tokens, token);
        if (!bp_target_is_within(target, work->vocab_first, work->vocab))
            *work->bad = (bp_bad_target){token, target};
    }
}

void bp_host_finish(bp_host_team *team, const bp_finish_work *work)
{
    uint64_t rows = work->tokens.batch * work->tokens.sequence;
    bp_host_deal(team, rows, PIECE_TOKENS, finish_rows, work);
    if (work->bad != NULL)
        note_bad_target(work, rows);
}

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

typedef struct gradient_job {
    const bp_host_team *team;
    const bp_gradient_work *work;
    int dtype, out_dtype;
    bool streams;
    const char *row; /* for pieces of a row */
    char *out;
    bp_row_gradient values;
} gradient_job;

static char *out_of(const gradient_job *job, uint64_t token)
{
    const bp_gradient_work *work = job->work;
    int64_t offset = bp_token_offset(&work->tokens, token, work->out_batch_stride, work->out_stride);
    return (char *)work->out + offset * (int64_t)bp_row_element_bytes(job->out_dtype);
}

static float upstream(const bp_tokens_work *tokens, uint64_t token, const float *values, int64_t batch_stride,
                      int64_t stride)
{
    return values != NULL ? values[bp_token_offset(tokens, token, batch_stride, stride)] : 0;
}

static bp_row_gradient host_jobs_values_of(const gradient_job *job, uint64_t token)
{
    const bp_gradient_work *work = job->work;
    int64_t target = bp_token_target(&work->tokens, token);
    bool has_target = bp_target_is_within(target, work->logits.first, work->logits.columns);
    return (bp_row_gradient){
        .max = work->saved.max[token],
        .log_sum = work->saved.log_sum[token],
        .energy = work->saved.energy != NULL ? work->saved.energy[token] : 0,
        .scale = work->logits.scale,
        .logprob_grad = upstream(&work->tokens, token, work->logprob_grad, work->logprob_grad_batch_stride,
                                 work->logprob_grad_stride),
        .entropy_grad = upstream(&work->tokens, token, work->entropy_grad, work->entropy_grad_batch_stride,
                                 work->entropy_grad_stride),
        .target = has_target ? (int64_t)((uint64_t)target - (uint64_t)work->logits.first) : -1,
        .streams = job->streams,
    };
}

static void clear_row(const gradient_job *job, uint64_t token)
{
    memset(out_of(job, token), 0, job->work->logits.columns * bp_row_element_bytes(job->out_dtype));
}

static void differentiate_rows(const void *context, uint64_t begin, uint64_t end)
{
    const gradient_job *job = context;
    const bp_gradient_work *work = job->work;
    for (uint64_t token = begin; token < end; token++) {
        if (bp_token_is_masked(&work->tokens, token)) {
            clear_row(job, token);
            continue;
        }
        bp_row_gradient values = host_jobs_values_of(job, token);
        job->team->kernels->gradient[job->dtype][job->out_dtype](bp_row_of(&work->tokens, &work->logits, token), 0,
                                                                 work->logits.columns, &values, out_of(job, token));
    }
}

static void differentiate_columns(const void *context, uint64_t begin, uint64_t end)
{
    const gradient_job *job = context;
    job->team->kernels->gradient[job->dtype][job->out_dtype](job->row, begin, end, &job->values, job->out);
}

/* All threads on one row after the other. */
static void differentiate_together(gradient_job *job, uint64_t rows)
{
    const bp_gradient_work *work = job->work;
    for (uint64_t token = 0; token < rows; token++) {
        if (bp_token_is_masked(&work->tokens, token)) {
            clear_row(job, token);
            continue;
        }
        job->row = bp_row_of(&work->tokens, &work->logits, token);
        job->out = out_of(job, token);
        job->values = host_jobs_values_of(job, token);
        bp_host_deal(job->team, work->logits.columns, BP_PIECE_COLUMNS, differentiate_columns, job);
    }
}

void bp_host_gradient(bp_host_team *team, const bp_gradient_work *work)
{
    uint64_t rows = work->tokens.batch * work->tokens.sequence;
    gradient_job job = {.team = team, .work = work};
    job.dtype = bp_row_dtype(work->logits.dtype);
    job.out_dtype = bp_row_dtype(work->out_dtype);
    /* what is in place was read into the caches just now */
    job.streams = work->out != work->logits.data && !work->narrows_in_place &&
                  rows > CACHED_BYTES / (work->logits.columns * bp_row_element_bytes(job.out_dtype));
    /* what a thread writes in place may be what another has not read */
    if (has_few_rows(team, rows) && !work->narrows_in_place)
        differentiate_together(&job, rows);
    else
        bp_host_deal(team, rows, bp_rows_of_piece(work->logits.columns), differentiate_rows, &job);
}
