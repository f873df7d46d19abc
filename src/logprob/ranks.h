/* The ranks that share a vocabulary: what they agree on, and the shards that they have. */
#ifndef BP_LOGPROB_RANKS_H
#define BP_LOGPROB_RANKS_H

#include <bucketpool/comm.h>

#include <stdbool.h>

/* ---- agreement --------------------------------------------------------------------------------------------------- */

#define BP_MOST_RANKS 512 /* whose words a function keeps on its stack: one without memory could not tell the others */
#define BP_TOLD_VALUES 8
#define BP_TOLD_WORDS 160

typedef struct bp_told {
    int64_t status; /* how the rank fared until here */
    uint64_t values[BP_TOLD_VALUES];
    char words[BP_TOLD_WORDS]; /* what went wrong: filled in where ranks tell it */
} bp_told;

/* NULL and communicators of one rank: there is nobody to ask. */
bool bp_is_alone(const bp_comm *comm);

/* Collective, unless alone. `mine` to all ranks; `told` has room for all. The first values, one for each of `names` (NULL ends them), must be
 * equal on all ranks. Errors: this rank's own status, one that names a rank that failed, BP_ERR_MISMATCH, BP_ERR_COMM. */
bp_status bp_ranks_tell(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names, bp_told *told);

/* The same where nobody needs what the others told: at most BP_MOST_RANKS of them, else BP_ERR_UNSUPPORTED. */
bp_status bp_ranks_compare(const char *call, bp_comm *comm, const bp_told *mine, const char *const *names);

/* Collective, unless alone: whether all ranks succeeded. As many at most. */
bp_status bp_ranks_agree(const char *call, bp_comm *comm, bp_status status);

/* ---- shards ------------------------------------------------------------------------------------------------------ */

/* Whose columns are whose: the vocabulary and its shards on the ranks of a communicator. */

typedef struct bp_vocab_shards {
    bp_comm *comm; /* NULL: one rank */
    uint32_t ranks;
    int64_t first;  /* the id of the vocabulary's first column */
    uint64_t vocab; /* of all ranks together */
} bp_vocab_shards;

#define BP_SHARD_SAME 4

/* What every rank is made with. */
typedef struct bp_shard {
    uint64_t start, columns;      /* its own */
    uint64_t same[BP_SHARD_SAME]; /* what must be equal on all ranks; what is not needed is 0 */
} bp_shard;

/* Collective. Errors as bp_logprob_create has them, the same on all ranks. `names`: of what is the same; NULL ends them. `status`: how this rank fared
 * until here: where it failed all fail. */
bp_status bp_vocab_shards_init(const char *call, bp_comm *comm, const bp_shard *mine, const char *const *names,
                               bp_status status, bp_vocab_shards *shards);

#endif
