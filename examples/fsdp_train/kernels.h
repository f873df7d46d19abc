/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels as nvcc compiled them: a fatbin. */
#ifndef FSDP_TRAIN_KERNELS_H
#define FSDP_TRAIN_KERNELS_H

#include <stdint.h>

/* NULL: this program was built without nvcc. */
const void *kernels_image(void);

extern const uint64_t kernels_fatbin[]; /* where it was */

#endif
