/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels: PTX of nvcc, which the driver compiles. */
#ifndef FSDP_TRAIN_KERNELS_H
#define FSDP_TRAIN_KERNELS_H

#include <stdint.h>

/* NULL: this program was built without nvcc. */
const void *kernels_image(void);

extern const uint64_t kernels_ptx[]; /* where it was */

#endif
