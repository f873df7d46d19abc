/* SPDX-License-Identifier: Apache-2.0 */
/* Packed batches, split or whole, and GPU memory for them. */
#ifndef BP_TEST_GPU_PACKED_H
#define BP_TEST_GPU_PACKED_H

#include <bucketpool/cp.h>

#define MAX_SEQUENCES 1000

void *new_memory(uint64_t bytes);
void *new_random_bytes(uint64_t bytes);
/* GPU memory with these bytes; NULL: uninitialised. Only enqueues. give_gpu_memory frees it. */
void *on_gpu(bp_stream *stream, const void *there, uint64_t bytes);
/* Waits. */
void to_host(bp_stream *stream, void *to, const void *from, uint64_t bytes);

/* More sequences than kernels take at once, some empty. Returns their number. */
uint32_t make_lengths(uint64_t cu[MAX_SEQUENCES + 1]);
bp_cp_split *new_split(const uint64_t *cu, uint32_t sequences, uint32_t ranks, uint32_t rank);
bp_cp_split_info info_of(const bp_cp_split *split);

/* A communicator that gathers nothing. */
bp_cp *new_mover(bp_device *device);
/* Views of contiguous tensors. */
void rearrange(bp_cp *cp, const bp_cp_split *split, bp_cp_rearrangement r, void *from, void *to, bp_stream *stream);
/* Without memory yet. */
bp_cp_rearrangement rearrangement_of(const bp_cp_split *split, bp_cp_order from, bp_cp_order to, uint64_t bytes);

#endif
