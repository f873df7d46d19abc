/* SPDX-License-Identifier: Apache-2.0 */
/* Compile check at configuration: nvcc and its host compiler work. */
#include "cuda/rows.cuh"

BP_KERNEL(1) probe(BP_ARGUMENT uint64_t address)
{
    char *at = reinterpret_cast<char *>(address) + 4 * threadIdx.x;
    device::bf16::store(at, device::bf16::larger(device::bf16::load(at), 0));
}
