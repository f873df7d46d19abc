/* Whose columns are whose: the vocabulary and its shards on the ranks of a communicator. */
#ifndef BP_LOGPROB_SHARDS_H
#define BP_LOGPROB_SHARDS_H

#include <bucketpool/comm.h>

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
