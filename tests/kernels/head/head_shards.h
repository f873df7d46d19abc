/* The fused head whose vocabulary several ranks share, whatever the ranks are. As shards.h: prints what is wrong. */
#ifndef BP_TESTS_KERNELS_HEAD_HEAD_SHARDS_H
#define BP_TESTS_KERNELS_HEAD_HEAD_SHARDS_H

#include "../support/shards.h"
#include "heads.h"

/* This rank's shard of its own copy `h`, twice: outputs, hidden_grad (summed over ranks unless h->o.partial) and its rows of weight_grad
 * against the truth; the same bits on all ranks and in both runs. */
bool sharded_head_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, head_batch *h, split where);

#endif
