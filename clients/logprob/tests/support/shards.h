/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of a vocabulary sharded over ranks that are threads or processes. Without assertions: functions print errors and return false. */
#ifndef BP_TESTS_KERNELS_SUPPORT_SHARDS_H
#define BP_TESTS_KERNELS_SUPPORT_SHARDS_H

#include "batches.h"

#define SHARD_RANKS 4

/* Rank r has columns [edges[r], edges[r + 1]). */
typedef struct split {
    uint64_t edges[SHARD_RANKS + 1];
} split;

/* Equal shards, and shards of 1, 5 and the rest (with 2 ranks: 1 and the rest). */
split even_split(uint64_t columns, uint32_t ranks);
split uneven_split(uint64_t columns, uint32_t ranks);

/* Creates this rank's client, runs both passes of its shard of `b` twice on `stream`, and compares with fp64, with a single rank (1e-5
 * absolute, 1e-4 relative), with the other ranks and with the first run (bits). Then rank 0 alone runs the gradient again. `b` is this
 * rank's copy. */
bool sharded_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, batch *b, split where, uint32_t kernels);

/* Shards of all ranks, and the words in every rank's error. */
typedef struct bad_shards {
    const char *name;
    uint64_t first[SHARD_RANKS], vocab[SHARD_RANKS];
    bp_status status;
    const char *words[4];
} bad_shards;

/* For 2 or more ranks; the further ones are valid. */
extern const bad_shards BAD_SHARDS[];
extern const size_t BAD_SHARDS_COUNT;

/* Each is refused on this rank as expected, and so are ranks with different configurations; a valid client can be created afterwards. */
bool bad_shards_are_refused(bp_device *device, bp_comm *comm);

#endif
