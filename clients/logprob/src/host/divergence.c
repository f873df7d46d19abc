/* SPDX-License-Identifier: Apache-2.0 */
/* Divergences of rows from those of a reference, and their gradient: a thread takes whole rows, tile by tile. */
#include "host/rows.h"

static void put_divergence(const bp_divergence_results *results, const bp_tokens_work *tokens, uint64_t token,
                           float beta, double reference, double logits)
{
    const double value = beta == 0 ? reference : beta == 1 ? logits : beta * reference + (1 - (double)beta) * logits;
    bp_put_output(&results->divergence, tokens, token, 0, (float)value);
    if (results->kept != NULL)
        results->kept[token] = (float)logits;
}

static bp_row_divergence row_divergence_of(const bp_tokens_work *tokens, const bp_saved_work *logits,
                                           const bp_saved_work *reference, float beta, uint64_t token)
{
    return (bp_row_divergence){.max = logits->max[token],
                               .log_sum = logits->log_sum[token],
                               .reference_max = reference->max[token],
                               .reference_log_sum = reference->log_sum[token],
                               .scale = bp_token_scale(tokens, token),
                               .beta = beta};
}

/* ---- sums ---------------------------------------------------------------------------------------------------------- */

typedef struct divergence_job {
    const bp_host_team *team;
    const bp_divergence_work *work;
} divergence_job;

/* Tiles are added in fp64, in column order. */
static void sum_divergence(const divergence_job *job, uint64_t token, double *of_reference, double *of_logits)
{
    const bp_divergence_work *work = job->work;
    const char *row = bp_logits_row(&work->tokens, &work->logits, token);
    const char *reference = bp_logits_row(&work->tokens, &work->reference, token);
    const bp_row_divergence values =
        row_divergence_of(&work->tokens, &work->logits_saved, &work->reference_saved, work->beta, token);
    bp_tile tiles[2];
    *of_reference = *of_logits = 0;
    for (uint64_t first = 0; first < work->logits.columns; first += BP_TILE_COLUMNS) {
        const uint32_t columns = (uint32_t)bp_min_u64(BP_TILE_COLUMNS, work->logits.columns - first);
        bp_divergence_sums sums;
        job->team->kernels->divergence(bp_prepare(job->team, &work->logits, row, first, columns, &tiles[0]),
                                       bp_prepare(job->team, &work->reference, reference, first, columns, &tiles[1]),
                                       columns, &values, &sums);
        *of_reference += sums.reference;
        *of_logits += sums.logits;
    }
}

static void sum_divergences(const void *context, uint64_t begin, uint64_t end)
{
    const divergence_job *job = context;
    const bp_divergence_work *work = job->work;
    for (uint64_t token = begin; token < end; token++) {
        double reference = 0, logits = 0;
        if (!bp_token_is_masked(&work->tokens, token))
            sum_divergence(job, token, &reference, &logits);
        if (work->sums != NULL)
            work->sums[token] = (bp_divergence_sums){.reference = (float)reference, .logits = (float)logits};
        else
            put_divergence(&work->results, &work->tokens, token, work->beta, (float)reference, (float)logits);
    }
}

void bp_host_divergence(bp_host_team *team, const bp_divergence_work *work)
{
    const divergence_job job = {team, work};
    bp_host_distribute(team, bp_token_count(&work->tokens), bp_rows_of_piece(work->logits.columns), sum_divergences,
                       &job);
}

static void finish_divergences(const void *context, uint64_t begin, uint64_t end)
{
    const bp_divergence_finish_work *work = context;
    const uint64_t tokens = bp_token_count(&work->tokens);
    for (uint64_t token = begin; token < end; token++) {
        double reference = 0, logits = 0;
        for (uint32_t rank = 0; rank < work->ranks; rank++) {
            reference += work->sums[rank * tokens + token].reference;
            logits += work->sums[rank * tokens + token].logits;
        }
        put_divergence(&work->results, &work->tokens, token, work->beta, reference, logits);
    }
}

void bp_host_divergence_finish(bp_host_team *team, const bp_divergence_finish_work *work)
{
    bp_host_distribute(team, bp_token_count(&work->tokens), BP_PIECE_TOKENS, finish_divergences, work);
}

/* ---- the gradient -------------------------------------------------------------------------------------------------- */

typedef struct divergence_gradient_job {
    const bp_host_team *team;
    const bp_divergence_gradient_work *work;
} divergence_gradient_job;

static void differentiate_row_divergence(const divergence_gradient_job *job, uint64_t token, char *out)
{
    const bp_divergence_gradient_work *work = job->work;
    const bp_host_kernels *kernels = job->team->kernels;
    const int out_dtype = bp_row_dtype(work->out_dtype);
    const char *row = bp_logits_row(&work->tokens, &work->logits, token);
    const char *reference = bp_logits_row(&work->tokens, &work->reference, token);
    bp_row_divergence values =
        row_divergence_of(&work->tokens, &work->logits_saved, &work->reference_saved, work->beta, token);
    values.upstream = values.scale * bp_upstream_of(&work->upstream, &work->tokens, token, 0);
    values.kept = work->kept[token];
    bp_tile tiles[2], gradient;
    for (uint64_t first = 0; first < work->logits.columns; first += BP_TILE_COLUMNS) {
        const uint32_t columns = (uint32_t)bp_min_u64(BP_TILE_COLUMNS, work->logits.columns - first);
        const float *x = bp_prepare(job->team, &work->logits, row, first, columns, &tiles[0]);
        const float *y = bp_prepare(job->team, &work->reference, reference, first, columns, &tiles[1]);
        kernels->divergence_gradient(x, y, columns, &values, gradient.values);
        kernels->narrow[out_dtype](gradient.values, x, columns, work->logits.cap,
                                   out + first * bp_row_element_bytes(out_dtype));
    }
}

static void differentiate_divergences(const void *context, uint64_t begin, uint64_t end)
{
    const divergence_gradient_job *job = context;
    const bp_divergence_gradient_work *work = job->work;
    const uint64_t bytes = bp_row_element_bytes(bp_row_dtype(work->out_dtype));
    for (uint64_t token = begin; token < end; token++) {
        char *out = (char *)work->out +
                    bp_token_offset(&work->tokens, token, work->out_batch_stride, work->out_stride) * (int64_t)bytes;
        if (bp_token_is_masked(&work->tokens, token))
            memset(out, 0, work->logits.columns * bytes);
        else
            differentiate_row_divergence(job, token, out);
    }
}

void bp_host_divergence_gradient(bp_host_team *team, const bp_divergence_gradient_work *work)
{
    const divergence_gradient_job job = {team, work};
    bp_host_distribute(team, bp_token_count(&work->tokens), bp_rows_of_piece(work->logits.columns),
                       differentiate_divergences, &job);
}
