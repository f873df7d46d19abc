/* SPDX-License-Identifier: Apache-2.0 */
/* The library's CUDA kernels, compiled for the emulation, in the list of fake_kernels.h. */
#ifndef SIMT_KERNELS_H
#define SIMT_KERNELS_H

#include <stdint.h>

#include "fakes/cuda/fake_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((visibility("default"))) extern const fake_kernel fake_kernels[];

/* Seeds the order of threads and blocks; each launch uses another one. */
void simt_seed(uint64_t seed);

/* Global memory that kernels accessed since the last call. */
typedef struct simt_traffic {
    uint64_t loaded, stored, accesses;
} simt_traffic;
simt_traffic simt_take_traffic(void);

#ifdef __cplusplus
}
#endif
#endif
