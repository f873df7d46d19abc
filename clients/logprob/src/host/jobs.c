/* SPDX-License-Identifier: Apache-2.0 */
/* Passes of a host engine: rows, or pieces of rows where there are few, are distributed to threads. Work done once per row is shared by all
 * kernels. */
#include <bucketpool/core/fail.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "host/rows.h"

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define MAX_THREADS 1024u

/* The OpenMP runtime of the process, so that its threads are shared with other users, PyTorch among them; else GCC's. LLVM's and Intel's have
 * GCC's functions, too. `parallel` runs a function on each thread of a team. NULL: without a runtime there is one thread. */
typedef struct openmp {
    void (*parallel)(void (*run)(void *), void *data, unsigned threads, unsigned flags);
    int (*threads)(void);
} openmp;

static openmp runtime;
static pthread_once_t runtime_once = PTHREAD_ONCE_INIT;

static bool use_runtime(void *handle)
{
    void *parallel = dlsym(handle, "GOMP_parallel"), *threads = dlsym(handle, "omp_get_max_threads");
    if (parallel == NULL || threads == NULL)
        return false;
    memcpy(&runtime.parallel, &parallel, sizeof parallel);
    memcpy(&runtime.threads, &threads, sizeof threads);
    return true;
}

static void find_runtime(void)
{
    static const struct {
        const char *name;
        int flags;
    } libraries[] = {
        {"libgomp.so.1", RTLD_NOLOAD}, {"libomp.so.5", RTLD_NOLOAD}, {"libiomp5.so", RTLD_NOLOAD}, {"libgomp.so.1", 0}};
#if defined(__SANITIZE_THREAD__) /* it does not see the synchronization of the runtime's threads */
    return;
#endif
    bool found = use_runtime(RTLD_DEFAULT);
    for (size_t i = 0; !found && i < sizeof libraries / sizeof *libraries; i++) {
        void *handle = dlopen(libraries[i].name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | libraries[i].flags);
        found = handle != NULL && use_runtime(handle);
    }
}

uint32_t bp_host_threads(uint32_t wanted)
{
    (void)pthread_once(&runtime_once, find_runtime);
    if (runtime.parallel == NULL)
        return 1;
    return wanted > 0 ? wanted : (uint32_t)runtime.threads();
}

bp_status bp_host_team_init(uint32_t threads, uint32_t kernels, uint64_t columns, bp_host_team *team)
{
    if (threads > MAX_THREADS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u threads for host kernels exceed the limit of %u", threads,
                       MAX_THREADS);
    uint64_t tiles = columns / BP_TILE_COLUMNS + 1;
    bp_partial *memory = calloc(tiles, sizeof *memory);
    if (memory == NULL)
        return bp_fail_memory(tiles * sizeof *memory);
    team->kernels = bp_kernels_choose(kernels);
    team->threads = bp_host_threads(threads);
    team->tiles = memory;
    pthread_mutex_init(&team->tiles_lock, NULL);
    return BP_OK;
}

void bp_host_team_finish(bp_host_team *team)
{
    pthread_mutex_destroy(&team->tiles_lock);
    free(team->tiles);
}

/* Threads take one piece at a time. */
typedef struct distribution {
    bp_host_piece *run;
    const void *job;
    uint64_t count, piece, pieces;
    atomic_uint_fast64_t next;
} distribution;

static void take_pieces(void *data)
{
    distribution *d = data;
    for (;;) {
        const uint64_t i = atomic_fetch_add_explicit(&d->next, 1, memory_order_relaxed);
        if (i >= d->pieces)
            return;
        d->run(d->job, i * d->piece, bp_min_u64((i + 1) * d->piece, d->count));
    }
}

void bp_host_distribute(const bp_host_team *team, uint64_t count, uint64_t piece, bp_host_piece *run, const void *job)
{
    const uint64_t pieces = count / piece + (count % piece != 0);
    if (team->threads == 1 || pieces < 2) {
        run(job, 0, count);
        return;
    }
    distribution d = {.run = run, .job = job, .count = count, .piece = piece, .pieces = pieces};
    runtime.parallel(take_pieces, &d, team->threads, 0);
}

/* ---- sums of rows -------------------------------------------------------------------------------------------------- */

/* Adds sums relative to `from` to those of `a`, relative to a->max >= from. */
static void add_below(bp_partial *a, float from, float sum, float weighted, float scale)
{
    if (from == -INFINITY) { /* only -inf terms, or NaN */
        a->sum += sum;
        a->weighted += weighted;
        return;
    }
    float d = (from - a->max) * scale, e = expf(d);
    a->sum += e * sum;
    if (e != 0)
        a->weighted += e * (weighted + sum * d);
}

/* Merges `b`, the next tile in column order, into `a`. */
static void merge_partials(bp_partial *a, const bp_partial *b, float scale)
{
    a->total += b->total;
    if (b->max > a->max) {
        bp_partial old = *a;
        a->max = b->max;
        a->sum = b->sum;
        a->weighted = b->weighted;
        add_below(a, old.max, old.sum, old.weighted, scale);
    } else {
        add_below(a, b->max, b->sum, b->weighted, scale);
    }
}

typedef struct forward_job {
    const bp_host_team *team;
    const bp_forward_work *work;
    int dtype;
    bool prepares;
    uint64_t tiles;  /* per row */
    const char *row; /* current row, when threads share it */
    float scale;
} forward_job;

static void reduce_tile(const forward_job *job, const char *row, float scale, uint64_t tile, bp_partial *partial)
{
    const bp_logits_work *logits = &job->work->logits;
    const bp_host_kernels *kernels = job->team->kernels;
    const uint64_t first = tile * BP_TILE_COLUMNS;
    const uint32_t columns = (uint32_t)bp_min_u64(BP_TILE_COLUMNS, logits->columns - first);
    if (job->prepares) {
        bp_tile prepared;
        kernels->tile[BP_ROW_FP32](bp_prepare(job->team, logits, row, first, columns, &prepared), columns, scale,
                                   job->work->level, partial);
    } else {
        kernels->tile[job->dtype](row + first * bp_row_element_bytes(job->dtype), columns, scale, job->work->level,
                                  partial);
    }
}

/* The logit of a row at a column, as the kernels see it. */
static float value_at(const bp_host_team *team, const bp_logits_work *logits, const char *row, uint64_t column)
{
    bp_tile tile;
    return *bp_prepare(team, logits, row, column, 1, &tile);
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

typedef struct row_results {
    double max, log_sum; /* in fp64: an error here would reach every element of the gradient */
    float scale;
    float entropy, energy, logsumexp, mean_logprob;
} row_results;

/* `partials`: of the row on each rank, `rank_bytes` apart. */
static row_results finish_row(uint64_t vocab, const bp_partial *partials, uint64_t rank_bytes, uint32_t ranks,
                              float scale)
{
    double max = -INFINITY, sum = 0, weighted = 0, total = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const bp_partial *partial = (const bp_partial *)((const char *)partials + rank * rank_bytes);
        max = partial->max > max ? partial->max : max;
    }
    for (uint32_t rank = 0; rank < ranks; rank++) {
        const bp_partial *partial = (const bp_partial *)((const char *)partials + rank * rank_bytes);
        double d = partial->max == -INFINITY ? 0 : (partial->max - max) * scale, e = exp(d);
        sum += e * partial->sum;
        if (e != 0)
            weighted += e * (partial->weighted + partial->sum * d);
        total += partial->total;
    }
    /* 0: a row of only -inf has no distribution */
    const double log_sum = sum != 0 ? log(sum) : NAN, energy = weighted / sum;
    return (row_results){
        .max = max,
        .log_sum = log_sum,
        .scale = scale,
        .entropy = (float)(log_sum - energy),
        .energy = (float)energy,
        .logsumexp = (float)(max * scale + log_sum),
        .mean_logprob = (float)((total / (double)vocab - max) * scale - log_sum),
    };
}

/* Writes the results of a row, except for the log-probabilities. */
static void put_results(const bp_results_work *results, const bp_tokens_work *tokens, uint64_t token,
                        const row_results *row)
{
    bp_put_output(&results->entropy, tokens, token, 0, row->entropy);
    bp_put_output(&results->logsumexp, tokens, token, 0, row->logsumexp);
    bp_put_output(&results->mean_logprob, tokens, token, 0, row->mean_logprob);
    if (results->saved.max != NULL) {
        results->saved.max[token] = (float)row->max;
        results->saved.log_sum[token] = (float)row->log_sum;
    }
    if (results->saved.energy != NULL)
        results->saved.energy[token] = row->energy;
}

static void put_logprob(const bp_results_work *results, const bp_tokens_work *tokens, uint64_t token, uint32_t k,
                        const row_results *row, double logit)
{
    const int64_t target = bp_token_target(tokens, token, k);
    const bool counts = bp_is_in_vocabulary(tokens, target) && !bp_is_ignored(tokens, target);
    bp_put_output(&results->logprob, tokens, token, k,
                  bp_is_bad(tokens, target) ? NAN
                  : counts                  ? (float)((logit - row->max) * row->scale - row->log_sum)
                                            : 0);
}

static void put_zeros(const bp_results_work *results, const bp_tokens_work *tokens, uint64_t token)
{
    put_results(results, tokens, token, &(row_results){0});
    for (uint32_t k = 0; k < tokens->targets; k++)
        bp_put_output(&results->logprob, tokens, token, k, 0);
}

/* Records the lowest bad target of the token, or its first target, which is bad on another rank only. */
static void note_bad_target(const bp_results_work *results, const bp_tokens_work *tokens, uint64_t token)
{
    uint64_t lowest = UINT64_MAX;
    for (uint32_t k = tokens->targets; k-- > 0;) {
        const int64_t target = bp_token_target(tokens, token, k);
        if (bp_is_bad(tokens, target) || (k == 0 && lowest == UINT64_MAX))
            lowest = bp_min_u64(lowest, bp_bad_target(results->first_token + token, target, tokens->vocab_first));
    }
    uint64_t known = __atomic_load_n(tokens->bad, __ATOMIC_RELAXED);
    while (lowest < known &&
           !__atomic_compare_exchange_n(tokens->bad, &known, lowest, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

static bool is_bad_on_a_rank(const bp_finish_work *work, uint64_t token)
{
    bool bad = false;
    for (uint32_t rank = 0; rank < work->ranks && work->tokens.bad != NULL; rank++) {
        const char *partials = (const char *)(work->partials + token);
        bad = bad || ((const bp_partial *)(partials + rank * work->rank_bytes))->sum == BP_SUM_BAD;
    }
    return bad;
}

static void finish_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_finish_work *work = context;
    const bp_tokens_work *tokens = &work->tokens;
    for (uint64_t token = begin; token < end; token++) {
        if (bp_token_is_masked(tokens, token)) {
            put_zeros(&work->results, tokens, token);
            continue;
        }
        const bool bad = is_bad_on_a_rank(work, token);
        const row_results row = finish_row(tokens->vocab, work->partials + token, work->rank_bytes, work->ranks,
                                           bad ? NAN : bp_token_scale(tokens, token));
        if (bad)
            note_bad_target(&work->results, tokens, token);
        put_results(&work->results, tokens, token, &row);
        for (uint32_t k = 0; k < tokens->targets; k++) {
            const char *logits = (const char *)(work->target_logits + token * tokens->targets + k);
            double logit = 0; /* one rank has the target, the others 0 */
            for (uint32_t rank = 0; rank < work->ranks; rank++)
                logit += *(const float *)(logits + rank * work->rank_bytes);
            put_logprob(&work->results, tokens, token, k, &row, logit);
        }
    }
}

void bp_host_finish(bp_host_team *team, const bp_finish_work *work)
{
    bp_host_distribute(team, bp_token_count(&work->tokens), BP_PIECE_TOKENS, finish_rows, work);
}

/* ---- forward ------------------------------------------------------------------------------------------------------- */

/* Ends a row with its partial: to results, or kept with the logits of its targets. */
static void end_row(const forward_job *job, uint64_t token, const char *row, const bp_partial *partial)
{
    const bp_forward_work *work = job->work;
    const bp_tokens_work *tokens = &work->tokens;
    const bp_logits_work *logits = &work->logits;
    row_results results = {0};
    const bool bad = bp_token_bad_target(tokens, token) < tokens->targets;
    if (work->partials != NULL) {
        work->partials[token] = *partial;
        if (bad)
            work->partials[token].sum = BP_SUM_BAD;
    } else {
        results = finish_row(tokens->vocab, partial, 0, 1, bp_token_checked_scale(tokens, token));
        if (bad)
            note_bad_target(&work->results, tokens, token);
        put_results(&work->results, tokens, token, &results);
    }
    for (uint32_t k = 0; k < tokens->targets; k++) {
        const int64_t target = bp_token_target(tokens, token, k);
        const float logit = bp_behind(target, logits->first) < logits->columns
                                ? value_at(job->team, logits, row, (uint64_t)target - (uint64_t)logits->first)
                                : 0;
        float *kept = work->partials != NULL ? &work->target_logits[token * tokens->targets + k] : NULL;
        if (kept != NULL)
            *kept = work->continues ? *kept + logit : logit;
        else
            put_logprob(&work->results, tokens, token, k, &results, logit);
    }
}

static void end_masked_row(const bp_forward_work *work, uint64_t token)
{
    const uint32_t targets = work->tokens.targets;
    if (work->partials == NULL) {
        put_zeros(&work->results, &work->tokens, token);
        return;
    }
    work->partials[token] = (bp_partial){0}; /* unused, but sent */
    for (uint32_t k = 0; k < targets; k++)
        work->target_logits[token * targets + k] = 0;
}

/* Adds the next tile of a row to `partial`, which the first one begins. */
static void add_tile(const bp_forward_work *work, uint64_t token, uint64_t tile, const bp_partial *next, float scale,
                     bp_partial *partial)
{
    if (tile == 0 && !work->continues) {
        *partial = *next;
        return;
    }
    if (tile == 0)
        *partial = work->partials[token];
    merge_partials(partial, next, scale);
}

static void reduce_row(const forward_job *job, uint64_t token)
{
    const bp_forward_work *work = job->work;
    if (bp_token_is_masked(&work->tokens, token)) {
        end_masked_row(work, token);
        return;
    }
    const char *row = bp_logits_row(&work->tokens, &work->logits, token);
    const float scale = bp_token_checked_scale(&work->tokens, token);
    bp_partial partial = {0}, next;
    for (uint64_t tile = 0; tile < job->tiles; tile++) {
        reduce_tile(job, row, scale, tile, &next);
        add_tile(work, token, tile, &next, scale, &partial);
    }
    end_row(job, token, row, &partial);
}

static void reduce_rows(const void *context, uint64_t begin, uint64_t end)
{
    for (uint64_t token = begin; token < end; token++)
        reduce_row(context, token);
}

static void reduce_tiles(const void *context, uint64_t begin, uint64_t end)
{
    const forward_job *job = context;
    for (uint64_t tile = begin; tile < end; tile++)
        reduce_tile(job, job->row, job->scale, tile, job->team->tiles + tile);
}

/* All threads share each row. */
static void reduce_together(forward_job *job)
{
    const bp_forward_work *work = job->work;
    const bp_partial *partials = job->team->tiles;
    for (uint64_t token = 0; token < bp_token_count(&work->tokens); token++) {
        if (bp_token_is_masked(&work->tokens, token)) {
            end_masked_row(work, token);
            continue;
        }
        job->row = bp_logits_row(&work->tokens, &work->logits, token);
        job->scale = bp_token_checked_scale(&work->tokens, token);
        bp_host_distribute(job->team, job->tiles, BP_PIECE_COLUMNS / BP_TILE_COLUMNS, reduce_tiles, job);
        bp_partial partial = {0};
        for (uint64_t tile = 0; tile < job->tiles; tile++)
            add_tile(work, token, tile, partials + tile, job->scale, &partial);
        end_row(job, token, job->row, &partial);
    }
}

static forward_job forward_job_of(const bp_host_team *team, const bp_forward_work *work)
{
    const uint64_t columns = work->logits.columns;
    return (forward_job){.team = team,
                         .work = work,
                         .dtype = bp_row_dtype(work->logits.dtype),
                         .prepares = bp_are_prepared(&work->logits),
                         .tiles = columns / BP_TILE_COLUMNS + (columns % BP_TILE_COLUMNS != 0)};
}

void bp_host_forward(bp_host_team *team, const bp_forward_work *work)
{
    const uint64_t rows = bp_token_count(&work->tokens);
    forward_job job = forward_job_of(team, work);
    if (bp_has_few_rows(team, rows)) {
        pthread_mutex_lock(&team->tiles_lock);
        reduce_together(&job);
        pthread_mutex_unlock(&team->tiles_lock);
    } else {
        bp_host_distribute(team, rows, bp_rows_of_piece(work->logits.columns), reduce_rows, &job);
    }
}

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

/* A target in this shard: its elements are written after the row, from logits that were read before it. */
typedef struct target_element {
    int64_t column; /* -1: not in this shard */
    float logit, upstream;
} target_element;

typedef struct gradient_job {
    const bp_host_team *team;
    const bp_gradient_work *work;
    int dtype, out_dtype;
    bool prepares, streams;
    const char *row; /* current row, when threads share it */
    char *out;
    bp_row_gradient values;
    target_element targets[BP_MAX_TARGETS];
} gradient_job;

/* Sets the token's rows and values. Finishes a masked token and returns false. */
static bool begin_gradient(gradient_job *job, uint64_t token)
{
    const bp_gradient_work *work = job->work;
    const bp_tokens_work *tokens = &work->tokens;
    const bp_logits_work *logits = &work->logits;
    const uint64_t bytes = bp_row_element_bytes(job->out_dtype);
    job->out =
        (char *)work->out + bp_token_offset(tokens, token, work->out_batch_stride, work->out_stride) * (int64_t)bytes;
    if (bp_token_is_masked(tokens, token)) {
        memset(job->out, 0, logits->columns * bytes);
        return false;
    }
    job->row = bp_logits_row(tokens, logits, token);
    double of_targets = 0;
    for (uint32_t k = 0; k < tokens->targets; k++) {
        const int64_t target = bp_token_target(tokens, token, k);
        target_element *element = &job->targets[k];
        *element = (target_element){.column = -1};
        if (bp_is_ignored(tokens, target))
            continue;
        element->upstream = bp_upstream_of(&work->logprob, tokens, token, k);
        of_targets += element->upstream;
        if (bp_behind(target, logits->first) >= logits->columns)
            continue;
        element->column = (int64_t)bp_behind(target, logits->first);
        element->logit = value_at(job->team, logits, job->row, (uint64_t)element->column);
    }
    const double of_mean = bp_upstream_of(&work->mean_logprob, tokens, token, 0);
    job->values = (bp_row_gradient){
        .max = work->saved.max[token],
        .log_sum = work->saved.log_sum[token],
        .energy = work->saved.energy != NULL ? work->saved.energy[token] : 0,
        .scale = bp_token_scale(tokens, token),
        .factor = bp_upstream_of(&work->logsumexp, tokens, token, 0) - of_mean - of_targets,
        .entropy_grad = bp_upstream_of(&work->entropy, tokens, token, 0),
        .everywhere = (float)(of_mean / (double)tokens->vocab),
        .streams = job->streams,
    };
    return true;
}

/* Equal targets add up: each of them writes the element with the sum of their upstream gradients. */
static void end_gradient(const gradient_job *job)
{
    const uint32_t targets = job->work->tokens.targets;
    const float cap = job->work->logits.cap;
    for (uint32_t k = 0; k < targets; k++) {
        const target_element *element = &job->targets[k];
        double upstream = 0;
        if (element->column < 0)
            continue;
        for (uint32_t i = 0; i < targets; i++)
            upstream += job->targets[i].column == element->column ? job->targets[i].upstream : 0;
        const double u = cap != 0 ? (double)element->logit / cap : 0;
        const double value = bp_gradient_at_target(&job->values, element->logit, upstream) * (1 - u * u);
        bp_row_set(job->out_dtype, job->out, (uint64_t)element->column, (float)value);
    }
}

/* Tile by tile: prepared logits, their gradient as fp32 where it must be multiplied, and the output. */
static void differentiate_prepared(const gradient_job *job, uint64_t begin, uint64_t end)
{
    const bp_host_kernels *kernels = job->team->kernels;
    const bp_logits_work *logits = &job->work->logits;
    const uint64_t bytes = bp_row_element_bytes(job->out_dtype);
    bp_row_gradient values = job->values;
    bp_tile prepared, gradient;
    values.streams = values.streams && logits->cap == 0;
    for (uint64_t first = begin; first < end; first += BP_TILE_COLUMNS) {
        const uint32_t columns = (uint32_t)bp_min_u64(BP_TILE_COLUMNS, end - first);
        const float *x = bp_prepare(job->team, logits, job->row, first, columns, &prepared);
        char *out = job->out + first * bytes;
        if (logits->cap == 0) {
            kernels->gradient[BP_ROW_FP32][job->out_dtype](x, 0, columns, &values, out);
        } else {
            kernels->gradient[BP_ROW_FP32][BP_ROW_FP32](x, 0, columns, &values, gradient.values);
            kernels->narrow[job->out_dtype](gradient.values, x, columns, logits->cap, out);
        }
    }
}

static void differentiate_columns(const void *context, uint64_t begin, uint64_t end)
{
    const gradient_job *job = context;
    if (job->prepares)
        differentiate_prepared(job, begin, end);
    else
        job->team->kernels->gradient[job->dtype][job->out_dtype](job->row, begin, end, &job->values, job->out);
}

static void differentiate_row(gradient_job *job, uint64_t token)
{
    if (begin_gradient(job, token)) {
        differentiate_columns(job, 0, job->work->logits.columns);
        end_gradient(job);
    }
}

static void differentiate_rows(const void *context, uint64_t begin, uint64_t end)
{
    gradient_job job = *(const gradient_job *)context;
    for (uint64_t token = begin; token < end; token++)
        differentiate_row(&job, token);
}

static gradient_job gradient_job_of(const bp_host_team *team, const bp_gradient_work *work)
{
    gradient_job job = {.team = team,
                        .work = work,
                        .dtype = bp_row_dtype(work->logits.dtype),
                        .out_dtype = bp_row_dtype(work->out_dtype),
                        .prepares = bp_are_prepared(&work->logits)};
    /* in place, the row is already in the caches */
    job.streams =
        work->out != work->logits.data && !work->narrows_in_place &&
        bp_token_count(&work->tokens) > BP_CACHED_BYTES / (work->logits.columns * bp_row_element_bytes(job.out_dtype));
    return job;
}

void bp_host_gradient(bp_host_team *team, const bp_gradient_work *work)
{
    const uint64_t rows = bp_token_count(&work->tokens), columns = work->logits.columns;
    gradient_job job = gradient_job_of(team, work);
    /* narrowing in place, a thread could overwrite columns that another has not read */
    if (!bp_has_few_rows(team, rows) || work->narrows_in_place) {
        bp_host_distribute(team, rows, bp_rows_of_piece(columns), differentiate_rows, &job);
        return;
    }
    for (uint64_t token = 0; token < rows; token++) { /* all threads share each row */
        if (begin_gradient(&job, token)) {
            bp_host_distribute(team, columns, BP_PIECE_COLUMNS, differentiate_columns, &job);
            end_gradient(&job);
        }
    }
}

/* ---- both passes over a row while it is in the caches ------------------------------------------------------------------ */

typedef struct fused_job {
    forward_job forward;
    gradient_job gradient;
} fused_job;

static void fuse_rows(const void *context, uint64_t begin, uint64_t end)
{
    fused_job job = *(const fused_job *)context;
    for (uint64_t token = begin; token < end; token++) {
        reduce_row(&job.forward, token);
        differentiate_row(&job.gradient, token);
    }
}

void bp_host_fused(bp_host_team *team, const bp_fused_work *work)
{
    const uint64_t rows = bp_token_count(&work->forward.tokens);
    if (bp_has_few_rows(team, rows)) {
        bp_host_forward(team, &work->forward);
        bp_host_gradient(team, &work->gradient);
        return;
    }
    const fused_job job = {forward_job_of(team, &work->forward), gradient_job_of(team, &work->gradient)};
    bp_host_distribute(team, rows, bp_rows_of_piece(work->forward.logits.columns), fuse_rows, &job);
}
