/* SPDX-License-Identifier: Apache-2.0 */
/* A toy loader and model for cp_sft_loss.c. All data are a function of the seed, so that every arrangement of ranks
 * trains on the same. Functions return 0 when out of memory. */
#ifndef CP_SFT_MODEL_H
#define CP_SFT_MODEL_H

#include <stdint.h>

typedef struct settings {
    uint64_t tp, cp, dp, seed, sequences, vocab, micro_batches;
} settings;

enum { GO_ON = -1 };

/* The options of the command line; GO_ON, or the code to exit with. */
int parse(int argc, char **argv, settings *s);

/* ---- the loader ----------------------------------------------------------------------------------------------------- */

/* A micro-batch of a DP rank: sequences one after the other. */
typedef struct packed_batch {
    uint64_t sequences, tokens;
    int64_t *cu_seqlens;
    int32_t *ids, *offsets; /* which token, and where in its sequence */
    uint8_t *mask;          /* 1: of a response, to be learned; 0: of a prompt */
} packed_batch;

uint64_t longest_sequence(void);
/* At most so many sequences in a micro-batch, and not 0. */
uint64_t max_sequences(const settings *s);
/* Sequence i goes to DP rank i mod dp, whose micro-batches take turns. */
int load(const settings *s, uint64_t dp_rank, uint64_t micro_batch, packed_batch *b);
void unload(packed_batch *b);

/* ---- the model ------------------------------------------------------------------------------------------------------ */

/* hidden = embedding of the token + a wave over its sequence; logits = hidden W^T for this rank's rows of W. */
typedef struct model {
    uint64_t vocab, vocab_start; /* rows of W: uneven where the ranks do not divide the vocabulary */
    uint64_t weights;
    float *embedding, *weight, *mean_grad;
    double *weight_grad; /* summed over micro-batches */
} model;

void shard_of(uint64_t vocab, uint64_t ranks, uint64_t rank, uint64_t *start, uint64_t *columns);
int make_model(const settings *s, uint64_t tp_rank, model *m);
void free_model(model *m);
/* A CP rank's own tokens of a micro-batch, and the values computed for each. */
typedef struct local_batch {
    uint64_t tokens;
    int32_t *ids, *offsets, *labels;
    uint8_t *mask;
    float *hidden, *logits, *logits_grad, *logprob, *entropy, *logit_min, *logit_max, *seed;
    void *saved;
    uint64_t saved_bytes;
} local_batch;

int make_local(const model *m, uint64_t tokens, uint64_t saved_bytes, local_batch *l);
void free_local(local_batch *l);

/* From ids and offsets. */
void compute_logits(const model *m, local_batch *l);
/* From logits_grad. */
void add_weight_grad(const model *m, const local_batch *l);

/* Bytes of logits that rank 0 would have if CP ranks gathered them, that it has, and so saves: of a step with so
 * many local tokens, and of a large one. */
void print_saved_bytes(const settings *s, uint64_t local_tokens);

#endif
