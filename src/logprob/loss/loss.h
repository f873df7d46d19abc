/* The loss client from within. */
#ifndef BP_LOGPROB_LOSS_LOSS_H
#define BP_LOGPROB_LOSS_LOSS_H

#include <bucketpool/loss.h>

#include <stdbool.h>

#include "core/fail.h"
#include "logprob/engine.h"
#include "logprob/base.h"

/* Which values were added; ADDED: tokens were. */
enum {
    BP_LOSS_LOGPROB = 1u,
    BP_LOSS_ENTROPY = 2u,
    BP_LOSS_LOGIT_MIN = 4u,
    BP_LOSS_LOGIT_MAX = 8u,
    BP_LOSS_ADDED = 16u
};

/* What a rank tells the others at the end of a step. */
typedef struct bp_loss_word {
    int64_t status;       /* how it fared */
    uint64_t fingerprint; /* of all batches that were added */
    uint64_t sequences, tokens;
    uint64_t values; /* BP_LOSS_LOGPROB, ... */
    char detail[BP_DETAIL_BYTES];
    bp_loss_record records[]; /* max_sequences; of data */
} bp_loss_word;

/* The ranks' places: tensor-parallel ones next to each other, then context-parallel ones. */
typedef struct bp_loss_grid {
    uint32_t tp, cp, dp;
    uint32_t tp_rank, cp_rank, dp_rank;
    uint32_t *ranks; /* of the communicator, by place */
} bp_loss_grid;

typedef enum bp_count_state { BP_COUNT_UNKNOWN, BP_COUNT_KNOWN, BP_COUNT_FAILED } bp_count_state;

struct bp_loss {
    bp_device *device; /* kept by the stream */
    bp_engine *engine;
    bp_stream *own; /* for calls without a stream */
    bp_event *done; /* the last sums */
    bp_comm *comm;  /* NULL: one rank */
    bp_workspace workspace;
    bp_loss_record *records; /* on the device */
    bp_loss_grid grid;
    uint64_t max_sequences, word_bytes;
    double epsilon;
    bp_loss_gradients gradients;
    bp_loss_word *mine, *all; /* all ranks' words, in the communicator's order */
    bp_count_state count;
    uint64_t valid;
    bool has_statistics;
    bp_loss_statistics statistics;
    bp_loss_sequence *sequences; /* of this DP rank */
    bp_loss_info info;
};

static inline uint32_t bp_loss_rank_at(const bp_loss_grid *grid, uint32_t dp, uint32_t cp, uint32_t tp)
{
    return grid->ranks[((uint64_t)dp * grid->cp + cp) * grid->tp + tp];
}

static inline const bp_loss_word *bp_loss_word_of(const bp_loss *loss, uint32_t rank)
{
    return (const bp_loss_word *)(const void *)((const char *)loss->all + rank * loss->word_bytes);
}

/* From the words of all ranks to statistics. Errors: BP_ERR_MISMATCH. */
bp_status bp_loss_combine(bp_loss *loss);

/* The stream that a call is on. */
static inline bp_stream *bp_loss_stream(const bp_loss *loss, bp_stream *stream)
{
    return stream != NULL ? stream : loss->own;
}

#endif
