/* Jobs of a host engine: rows, or pieces of rows where there are few, are distributed to threads. Work done once per row is shared by all
 * kernels. */
#include "logprob/host/jobs.h"

#include <math.h>
#include <stdlib.h>

#include "core/arith.h"
#include "core/fail.h"

/* ---- threads ----------------------------------------------------------------------------------------------------- */

#define MOST_THREADS 1024u

#ifdef _OPENMP
int omp_get_max_threads(void); /* declared here, because omp.h is not installed everywhere with OpenMP */

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
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "%u threads for host kernels exceed the limit of %u", threads,
                       MOST_THREADS);
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

void bp_host_distribute(const bp_host_team *team, uint64_t count, uint64_t piece, bp_host_piece *run, const void *job)
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

/* ---- tokens and their rows --------------------------------------------------------------------------------------- */

#define PIECE_TOKENS 256u
#define PIECE_COLUMNS (8 * BP_TILE_COLUMNS)
/* Larger outputs are written with non-temporal stores. A constant, because reported cache sizes may be those of a whole socket. */
#define CACHED_BYTES (16u << 20)

/* True if there are fewer rows than threads need, so that threads share rows. */
static bool has_few_rows(const bp_host_team *team, uint64_t rows)
{
    return team->threads > 1 && rows < 2 * (uint64_t)team->threads;
}

/* Rows that a thread takes at once. */
static uint64_t rows_of_piece(uint64_t columns)
{
    return columns < PIECE_COLUMNS ? PIECE_COLUMNS / columns : 1;
}

/* Offset of a token in a strided [batch, sequence] tensor. */
static int64_t token_offset(const bp_tokens_work *tokens, uint64_t token, int64_t batch_stride, int64_t stride)
{
    return (int64_t)(token / tokens->sequence) * batch_stride + (int64_t)(token % tokens->sequence) * stride;
}

static bool token_is_masked(const bp_tokens_work *tokens, uint64_t token)
{
    return tokens->has_mask &&
           tokens->mask[token_offset(tokens, token, tokens->mask_batch_stride, tokens->mask_stride)] == 0;
}

static int64_t token_target(const bp_tokens_work *tokens, uint64_t token)
{
    int64_t offset = token_offset(tokens, token, tokens->target_batch_stride, tokens->target_stride);
    return tokens->target_is_64 ? ((const int64_t *)tokens->target)[offset] : ((const int32_t *)tokens->target)[offset];
}

/* True if `target` is one of the `count` ids from `first`; any int64 is allowed. */
static bool target_is_within(int64_t target, int64_t first, uint64_t count)
{
    return (uint64_t)target - (uint64_t)first < count;
}

/* Index of the dtype in the kernel tables. */
static int row_dtype(int32_t dtype)
{
    return dtype == BP_DTYPE_FP32 ? BP_ROW_FP32 : dtype == BP_DTYPE_BF16 ? BP_ROW_BF16 : BP_ROW_FP16;
}

static uint64_t row_element_bytes(int dtype)
{
    return dtype == BP_ROW_FP32 ? 4 : 2;
}

/* The row of a token. */
static const char *logits_row(const bp_tokens_work *tokens, const bp_logits_work *logits, uint64_t token)
{
    int64_t offset = token_offset(tokens, token, logits->batch_stride, logits->stride);
    return (const char *)logits->data + offset * (int64_t)row_element_bytes(row_dtype(logits->dtype));
}

/* ---- partials ------------------------------------------------------------------------------------------------------ */

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

typedef struct partials_job {
    const bp_host_team *team;
    const bp_partials_work *work;
    int dtype;
    uint64_t tiles;  /* per row */
    const char *row; /* current row, when threads share it */
} partials_job;

static void reduce_tile(const partials_job *job, const char *row, uint64_t tile, bp_partial *partial)
{
    const bp_logits_work *logits = &job->work->logits;
    uint64_t first = tile * BP_TILE_COLUMNS;
    job->team->kernels->tile[job->dtype](row + first * row_element_bytes(job->dtype),
                                         (uint32_t)bp_least_u64(BP_TILE_COLUMNS, logits->columns - first),
                                         logits->scale, job->work->with_entropy != 0, partial);
}

static float value_of_target(const partials_job *job, uint64_t token, const char *row)
{
    const bp_logits_work *logits = &job->work->logits;
    int64_t target = token_target(&job->work->tokens, token);
    if (!target_is_within(target, logits->first, logits->columns))
        return 0;
    return bp_row_value(job->dtype, row, (uint64_t)target - (uint64_t)logits->first);
}

static void reduce_rows(const void *context, uint64_t begin, uint64_t end)
{
    const partials_job *job = context;
    const bp_partials_work *work = job->work;
    for (uint64_t token = begin; token < end; token++) {
        bp_partial partial = {0};
        if (!token_is_masked(&work->tokens, token)) {
            const char *row = logits_row(&work->tokens, &work->logits, token);
            reduce_tile(job, row, 0, &partial);
            for (uint64_t tile = 1; tile < job->tiles; tile++) {
                bp_partial next;
                reduce_tile(job, row, tile, &next);
                merge_partials(&partial, &next, work->logits.scale);
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

/* All threads share each row. */
static void reduce_together(partials_job *job, uint64_t rows)
{
    const bp_partials_work *work = job->work;
    const bp_partial *partials = job->team->tiles;
    for (uint64_t token = 0; token < rows; token++) {
        bp_partial partial = {0};
        if (!token_is_masked(&work->tokens, token)) {
            job->row = logits_row(&work->tokens, &work->logits, token);
            bp_host_distribute(job->team, job->tiles, PIECE_COLUMNS / BP_TILE_COLUMNS, reduce_tiles, job);
            partial = partials[0];
            for (uint64_t tile = 1; tile < job->tiles; tile++)
                merge_partials(&partial, partials + tile, work->logits.scale);
            partial.target = value_of_target(job, token, job->row);
        }
        work->partials[token] = partial;
    }
}

void bp_host_partials(bp_host_team *team, const bp_partials_work *work)
{
    const uint64_t rows = work->tokens.batch * work->tokens.sequence, columns = work->logits.columns;
    partials_job job = {.team = team,
                        .work = work,
                        .dtype = row_dtype(work->logits.dtype),
                        .tiles = columns / BP_TILE_COLUMNS + (columns % BP_TILE_COLUMNS != 0)};
    if (has_few_rows(team, rows)) {
        pthread_mutex_lock(&team->tiles_lock);
        reduce_together(&job, rows);
        pthread_mutex_unlock(&team->tiles_lock);
    } else {
        bp_host_distribute(team, rows, rows_of_piece(columns), reduce_rows, &job);
    }
}

/* ---- outputs ------------------------------------------------------------------------------------------------------- */

typedef struct row_outputs {
    float logprob, entropy, max, log_sum, energy;
} row_outputs;

/* For an unmasked token. */
static row_outputs finish_row(const bp_finish_work *work, uint64_t token)
{
    const uint64_t tokens = work->tokens.batch * work->tokens.sequence;
    const bool has_target = target_is_within(token_target(&work->tokens, token), work->vocab_first, work->vocab);
    const bp_partial *partials = work->partials + token;
    double max = -INFINITY, target = 0, sum = 0, weighted = 0;
    for (uint32_t rank = 0; rank < work->ranks; rank++) {
        max = partials[rank * tokens].max > max ? partials[rank * tokens].max : max;
        target += partials[rank * tokens].target;
    }
    for (uint32_t rank = 0; rank < work->ranks; rank++) {
        const bp_partial *partial = partials + rank * tokens;
        double d = partial->max == -INFINITY ? 0 : (partial->max - max) * work->scale, e = exp(d);
        sum += e * partial->sum;
        if (e != 0)
            weighted += e * (partial->weighted + partial->sum * d);
    }
    /* 0: a row of only -inf has no distribution */
    double log_sum = sum != 0 ? log(sum) : NAN, energy = weighted / sum;
    return (row_outputs){
        .logprob = has_target ? (float)((target - max) * work->scale - log_sum) : 0,
        .entropy = (float)(log_sum - energy),
        .max = (float)max,
        .log_sum = (float)log_sum,
        .energy = (float)energy,
    };
}

static void host_jobs_set(float *values, int64_t offset, float value)
{
    if (values != NULL)
        values[offset] = value;
}

static void finish_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_finish_work *work = context;
    const bp_tokens_work *tokens = &work->tokens;
    for (uint64_t token = begin; token < end; token++) {
        row_outputs outputs = {0};
        if (!token_is_masked(tokens, token))
            outputs = finish_row(work, token);
        host_jobs_set(work->logprob, token_offset(tokens, token, work->logprob_batch_stride, work->logprob_stride),
                      outputs.logprob);
        host_jobs_set(work->entropy, token_offset(tokens, token, work->entropy_batch_stride, work->entropy_stride),
                      outputs.entropy);
        host_jobs_set(work->saved.max, (int64_t)token, outputs.max);
        host_jobs_set(work->saved.log_sum, (int64_t)token, outputs.log_sum);
        host_jobs_set(work->saved.energy, (int64_t)token, outputs.energy);
    }
}

void bp_host_finish(bp_host_team *team, const bp_finish_work *work)
{
    const bp_tokens_work *tokens = &work->tokens;
    const uint64_t rows = tokens->batch * tokens->sequence;
    bp_host_distribute(team, rows, PIECE_TOKENS, finish_rows, work);
    for (uint64_t token = 0; work->bad != NULL && token < bp_least_u64(rows, work->bad->token); token++) {
        if (token_is_masked(tokens, token))
            continue;
        int64_t target = token_target(tokens, token);
        if (!target_is_within(target, work->vocab_first, work->vocab))
            *work->bad = (bp_bad_target){token, target};
    }
}

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

typedef struct gradient_job {
    const bp_host_team *team;
    const bp_gradient_work *work;
    int dtype, out_dtype;
    bool streams;
    const char *row; /* current row, when threads share it */
    char *out;
    bp_row_gradient values;
} gradient_job;

static float upstream(const bp_tokens_work *tokens, uint64_t token, const float *values, int64_t batch_stride,
                      int64_t stride)
{
    return values != NULL ? values[token_offset(tokens, token, batch_stride, stride)] : 0;
}

/* Sets the token's rows and values. Finishes a masked token and returns false. */
static bool begin_gradient(gradient_job *job, uint64_t token)
{
    const bp_gradient_work *work = job->work;
    const bp_tokens_work *tokens = &work->tokens;
    const uint64_t bytes = row_element_bytes(job->out_dtype);
    job->out =
        (char *)work->out + token_offset(tokens, token, work->out_batch_stride, work->out_stride) * (int64_t)bytes;
    if (token_is_masked(tokens, token)) {
        memset(job->out, 0, work->logits.columns * bytes);
        return false;
    }
    const int64_t target = token_target(tokens, token);
    const bool has_target = target_is_within(target, work->logits.first, work->logits.columns);
    job->row = logits_row(tokens, &work->logits, token);
    job->values = (bp_row_gradient){
        .max = work->saved.max[token],
        .log_sum = work->saved.log_sum[token],
        .energy = work->saved.energy != NULL ? work->saved.energy[token] : 0,
        .scale = work->logits.scale,
        .logprob_grad =
            upstream(tokens, token, work->logprob_grad, work->logprob_grad_batch_stride, work->logprob_grad_stride),
        .entropy_grad =
            upstream(tokens, token, work->entropy_grad, work->entropy_grad_batch_stride, work->entropy_grad_stride),
        .target = has_target ? (int64_t)((uint64_t)target - (uint64_t)work->logits.first) : -1,
        .streams = job->streams,
    };
    return true;
}

static void differentiate_columns(const void *context, uint64_t begin, uint64_t end)
{
    const gradient_job *job = context;
    job->team->kernels->gradient[job->dtype][job->out_dtype](job->row, begin, end, &job->values, job->out);
}

static void differentiate_rows(const void *context, uint64_t begin, uint64_t end)
{
    gradient_job job = *(const gradient_job *)context;
    for (uint64_t token = begin; token < end; token++)
        if (begin_gradient(&job, token))
            differentiate_columns(&job, 0, job.work->logits.columns);
}

void bp_host_gradient(bp_host_team *team, const bp_gradient_work *work)
{
    const uint64_t rows = work->tokens.batch * work->tokens.sequence, columns = work->logits.columns;
    gradient_job job = {
        .team = team, .work = work, .dtype = row_dtype(work->logits.dtype), .out_dtype = row_dtype(work->out_dtype)};
    /* in place, the row is already in the caches */
    job.streams = work->out != work->logits.data && !work->narrows_in_place &&
                  rows > CACHED_BYTES / (columns * row_element_bytes(job.out_dtype));
    /* narrowing in place, a thread could overwrite columns that another has not read */
    if (!has_few_rows(team, rows) || work->narrows_in_place) {
        bp_host_distribute(team, rows, rows_of_piece(columns), differentiate_rows, &job);
        return;
    }
    for (uint64_t token = 0; token < rows; token++) /* all threads share each row */
        if (begin_gradient(&job, token))
            bp_host_distribute(team, columns, PIECE_COLUMNS, differentiate_columns, &job);
}

/* ---- ranges: numbers compared by their bits ---------------------------------------------------------------------------- */

#define BF16_INFINITY 0x7f80
#define FP16_INFINITY 0x7c00
#define FP32_INFINITY 0x7f800000

/* Maps bits to keys that compare as signed integers, and back: negative numbers have their other bits inverted. NaN sorts beyond the
 * infinities, and plain loops vectorize. */
#define TURNED(bits, type, most) ((type)((bits) ^ (((bits) >> (sizeof(type) * 8 - 1)) & (most))))

#define FIND(name, type, most)                                                                                         \
    static void name(const type *bits, uint64_t count, type *least, type *largest)                                     \
    {                                                                                                                  \
        type low = (most), high = (type)(-(most)-1);                                                                   \
        for (uint64_t i = 0; i < count; i++) {                                                                         \
            const type key = TURNED(bits[i], type, most);                                                              \
            low = key < low ? key : low;                                                                               \
            high = key > high ? key : high;                                                                            \
        }                                                                                                              \
        *least = low;                                                                                                  \
        *largest = high;                                                                                               \
    }
FIND(find_16, int16_t, INT16_MAX)
FIND(find_32, int32_t, INT32_MAX)

typedef struct range {
    float least, largest;
} range;

static range range_of_32(const void *row, uint64_t columns)
{
    int32_t least, largest;
    find_32(row, columns, &least, &largest);
    if (largest > FP32_INFINITY || least < ~FP32_INFINITY)
        return (range){NAN, NAN};
    return (range){bp_fp32_of_bits((uint32_t)TURNED(least, int32_t, INT32_MAX)),
                   bp_fp32_of_bits((uint32_t)TURNED(largest, int32_t, INT32_MAX))};
}

static range range_of_16(int dtype, const void *row, uint64_t columns)
{
    const int16_t infinity = dtype == BP_ROW_BF16 ? BF16_INFINITY : FP16_INFINITY;
    int16_t least, largest;
    find_16(row, columns, &least, &largest);
    if (largest > infinity || least < ~infinity)
        return (range){NAN, NAN};
    least = TURNED(least, int16_t, INT16_MAX);
    largest = TURNED(largest, int16_t, INT16_MAX);
    return (range){bp_row_value(dtype, &least, 0), bp_row_value(dtype, &largest, 0)};
}

static void range_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_range_work *work = context;
    const bp_tokens_work *tokens = &work->tokens;
    const int dtype = row_dtype(work->logits.dtype);
    for (uint64_t token = begin; token < end; token++) {
        const char *row = logits_row(tokens, &work->logits, token);
        range found = {0, 0};
        if (!token_is_masked(tokens, token))
            found = dtype == BP_ROW_FP32 ? range_of_32(row, work->logits.columns)
                                         : range_of_16(dtype, row, work->logits.columns);
        host_jobs_set(work->least, token_offset(tokens, token, work->least_batch_stride, work->least_stride),
                      found.least);
        host_jobs_set(work->largest, token_offset(tokens, token, work->largest_batch_stride, work->largest_stride),
                      found.largest);
    }
}

void bp_host_range(bp_host_team *team, const bp_range_work *work)
{
    bp_host_distribute(team, work->tokens.batch * work->tokens.sequence, rows_of_piece(work->logits.columns),
                       range_rows, work);
}
