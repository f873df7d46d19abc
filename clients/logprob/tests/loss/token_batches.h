/* SPDX-License-Identifier: Apache-2.0 */
/* Sequences of random tokens for tests of the loss, their fp64 statistics, and their distribution to ranks. */
#ifndef BP_TEST_KERNELS_LOSS_TOKEN_BATCHES_H
#define BP_TEST_KERNELS_LOSS_TOKEN_BATCHES_H

#include <bucketpool/loss.h>

#include <stdbool.h>

#define CORPUS_LOGITS 24     /* per token; TP ranks have equal shares */
#define CORPUS_SEQUENCES 400 /* more than a kernel launch takes */
#define CORPUS_WEIGHTS 3

typedef struct corpus_options {
    uint64_t seed, sequences, longest;
    uint32_t empty_in_8, masked_in_8; /* sequences without tokens, and without valid ones */
    bool nothing;                     /* without valid tokens */
    bool infinite, broken;            /* some logits are infinite; one is NaN */
} corpus_options;

/* Invalid tokens are NaN everywhere. */
typedef struct corpus {
    uint64_t sequences, tokens;
    uint64_t first[CORPUS_SEQUENCES + 1]; /* first token of each sequence, and the end */
    uint8_t *mask;
    float *logprob, *entropy;
    float *logits;   /* [tokens, CORPUS_LOGITS] */
    double *weights; /* [tokens, CORPUS_WEIGHTS]: derivatives of log-probabilities with respect to a model's weights */
} corpus;

corpus new_corpus(const corpus_options *options);
void free_corpus(corpus *c);

/* The smallest or largest logit of share `part` of `parts`; NaN if one is NaN. */
float logit_of(const corpus *c, uint64_t token, uint32_t part, uint32_t parts, bool largest);

/* ---- fp64 reference ------------------------------------------------------------------------------------------------ */

enum { WITH_LOGPROB = 1, WITH_ENTROPY = 2, WITH_LEAST = 4, WITH_LARGEST = 8, WITH_ALL = 15 };

bp_loss_sequence true_sequence(const corpus *c, uint64_t sequence, unsigned planes);
bp_loss_statistics true_statistics(const corpus *c, double epsilon, unsigned planes);
/* Of sequences [first, end) only. */
bp_loss_statistics true_statistics_of(const corpus *c, uint64_t first, uint64_t end, double epsilon, unsigned planes);
/* Derivative of the loss with respect to weight w. */
double true_gradient(const corpus *c, double epsilon, uint32_t w);

/* Relative 1e-12; NaN and infinities must match. */
bool is_close(double value, double expected);
/* Counts exactly, other values to 1e-12. Prints differences. */
bool same_statistics(const bp_loss_statistics *value, const bp_loss_statistics *expected, const char *where);
bool same_sequence(const bp_loss_sequence *value, const bp_loss_sequence *expected, const char *where);

/* ---- parts of ranks ------------------------------------------------------------------------------------------------ */

/* A micro-batch of a DP rank. */
typedef struct pack {
    uint32_t cp;
    uint64_t sequences; /* including a trailing dummy */
    uint64_t source[CORPUS_SEQUENCES + 1];
    bool has_dummy, pads_itself;
    uint64_t multiple, total_multiple;
    int64_t cu[CORPUS_SEQUENCES + 2], padded[CORPUS_SEQUENCES + 2];
} pack;

/* Sequences first, first + step, ... of the corpus, with random padding and dummies. */
pack new_pack(const corpus *c, uint32_t cp, uint64_t first, uint64_t step);
/* For rank `rank`; without assertions. */
bp_status split_pack(const pack *p, uint32_t rank, bp_comm *comm, bp_cp_split **split);
/* Rank of a sequence's token, by the formula of cp.h. */
uint32_t rank_of_token(const pack *p, uint64_t sequence, uint64_t offset, uint64_t *local);

/* Local tensors of a rank; padding and dummies have a mask of 1 and NaN values. */
typedef struct slice {
    uint64_t tokens, elements; /* per plane, including gaps between tokens */
    int64_t stride;
    bp_loss_values values;
    bp_token_values seed;
    void *memory[6];
} slice;

slice new_slice(const corpus *c, const pack *p, uint64_t tokens, uint32_t cp_rank, uint32_t tp_rank, uint32_t tp,
                unsigned planes, int64_t stride);
void free_slice(slice *s);
float seed_at(const slice *s, uint64_t local);

#endif
