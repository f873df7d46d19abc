/* SPDX-License-Identifier: Apache-2.0 */
/* The fused head with a vocabulary sharded over ranks (threads or processes). As in shards.h: prints errors. */
#ifndef BP_TESTS_KERNELS_HEAD_HEAD_SHARDS_H
#define BP_TESTS_KERNELS_HEAD_HEAD_SHARDS_H

#include "../support/shards.h"
#include "heads.h"

/* Runs this rank's shard of its copy `h` twice and compares outputs, hidden_grad (summed over ranks unless h->o.partial) and its rows of
 * weight_grad with the reference; bits are equal on all ranks and in both runs. */
bool sharded_head_is_true(bp_device *device, bp_stream *stream, bp_comm *comm, head_batch *h, split where);

#endif
