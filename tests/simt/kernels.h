/* The library's CUDA kernels, compiled for the emulation: those that fake_kernels.h lists. */
#ifndef SIMT_KERNELS_H
#define SIMT_KERNELS_H

#include <stdint.h>

#include "fake_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((visibility("default"))) extern const fake_kernel fake_kernels[];

/* Decides in which order threads and blocks run; each launch takes another. */
void simt_seed(uint64_t seed);

#ifdef __cplusplus
}
#endif
#endif
