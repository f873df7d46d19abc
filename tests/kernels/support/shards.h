/* A vocabulary in shards of several ranks, whatever the ranks are: threads or processes. Nothing here uses assertions; what is wrong is
 * printed, and false. */
#ifndef BP_TESTS_KERNELS_SUPPORT_SHARDS_H
#define BP_TESTS_KERNELS_SUPPORT_SHARDS_H

#include "batches.h"

#define SHARD_RANKS 4

/* Rank r has the columns [edges[r], edges[r + 1]). */
typedef struct split {
    uint64_t edges[SHARD_RANKS + 1];
} split;

/* Equal shards, and shards of 1, 5 and the rest (the last one of 2 ranks: 1 and the rest). */
split even_split(uint64_t columns, uint32_t ranks);
split uneven_split(uint64_t columns, uint32_t ranks);

/* Makes this rank's client, runs both passes of its shard of `b` twice on `stream`, and compares with the truth, with one rank alone
 * (1e-5 absolute, 1e-4 relative), with the other ranks and with the first run (bits). Then rank 0 alone runs the gradient once more. `b` is
 * this rank's own copy. */
bool sharded_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, batch *b, split where, uint32_t kernels);

/* A rank's part of a vocabulary; those of all ranks, and what all must be told. */
typedef struct bad_shards {
    const char *name;
    uint64_t first[SHARD_RANKS], vocab[SHARD_RANKS];
    bp_status status;
    const char *words[4];
} bad_shards;

/* For 2 ranks, or more (the further ones follow without fault). */
extern const bad_shards BAD_SHARDS[];
extern const size_t BAD_SHARDS_COUNT;

/* Each is refused on this rank as it should be, and so are ranks with other configurations; a good client can be made afterwards. */
bool bad_shards_are_refused(bp_device *device, bp_comm *comm);

#endif
