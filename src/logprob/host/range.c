/* The least and the largest logit of rows. */
#include <math.h>

#include "logprob/host/jobs.h"
#include "logprob/host/rows.h"
#include "logprob/host/widen.h"

#define LANES 16 /* running results side by side, so that loops become vector code */

typedef struct range {
    float least[LANES], largest[LANES];
    uint32_t nan[LANES];
} range;

static void widen_range(range *r, const float *x, size_t count)
{
    size_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (size_t k = 0; k < LANES; k++) {
            r->least[k] = x[i + k] < r->least[k] ? x[i + k] : r->least[k];
            r->largest[k] = x[i + k] > r->largest[k] ? x[i + k] : r->largest[k];
            r->nan[k] |= x[i + k] != x[i + k];
        }
    for (; i < count; i++) {
        r->least[0] = x[i] < r->least[0] ? x[i] : r->least[0];
        r->largest[0] = x[i] > r->largest[0] ? x[i] : r->largest[0];
        r->nan[0] |= isnan(x[i]) != 0;
    }
}

static void row_range(const bp_logits_work *logits, const char *row, float *least, float *largest)
{
    const bp_dtype dtype = (bp_dtype)logits->dtype;
    const uint64_t bytes = bp_row_element_bytes(bp_row_dtype(logits->dtype));
    float tile[BP_TILE_COLUMNS];
    range r;
    for (size_t k = 0; k < LANES; k++) {
        r.least[k] = INFINITY;
        r.largest[k] = -INFINITY;
        r.nan[k] = 0;
    }
    for (uint64_t first = 0; first < logits->columns; first += BP_TILE_COLUMNS) {
        const uint64_t left = logits->columns - first, count = left < BP_TILE_COLUMNS ? left : BP_TILE_COLUMNS;
        bp_widen(dtype, row + first * bytes, count, tile);
        widen_range(&r, tile, count);
    }
    for (size_t k = 1; k < LANES; k++) {
        r.least[0] = r.least[k] < r.least[0] ? r.least[k] : r.least[0];
        r.largest[0] = r.largest[k] > r.largest[0] ? r.largest[k] : r.largest[0];
        r.nan[0] |= r.nan[k];
    }
    *least = r.nan[0] ? NAN : r.least[0];
    *largest = r.nan[0] ? NAN : r.largest[0];
}

static void range_rows(const void *context, uint64_t begin, uint64_t end)
{
    const bp_range_work *work = context;
    const bp_tokens_work *tokens = &work->tokens;
    for (uint64_t token = begin; token < end; token++) {
        float least = 0, largest = 0;
        if (!bp_token_is_masked(tokens, token))
            row_range(&work->logits, bp_row_of(tokens, &work->logits, token), &least, &largest);
        if (work->least != NULL)
            work->least[bp_token_offset(tokens, token, work->least_batch_stride, work->least_stride)] = least;
        if (work->largest != NULL)
            work->largest[bp_token_offset(tokens, token, work->largest_batch_stride, work->largest_stride)] = largest;
    }
}

void bp_host_range(bp_host_team *team, const bp_range_work *work)
{
    const uint64_t rows = work->tokens.batch * work->tokens.sequence;
    bp_host_deal(team, rows, bp_rows_of_piece(work->logits.columns), range_rows, work);
}
