/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of kernel images: the code that a GPU takes from a fatbin, a cubin or PTX, and the driver that it needs. */
#ifndef BP_DEVICES_CUDA_IMAGE_H
#define BP_DEVICES_CUDA_IMAGE_H

#include <stdbool.h>

/* Code of an image. */
typedef struct bp_cuda_code {
    bool is_ptx;
    int major, minor; /* compute capability */
    int driver;       /* the first that loads it, as in cuDriverGetVersion: 12080 is 12.8 */
} bp_cuda_code;

/* True for what begins like a fatbin, a cubin or PTX. */
bool bp_cuda_is_image(const void *image);

/* Finds the code that drivers take for a GPU: the newest cubin of its major version, else the newest PTX. False: none. */
bool bp_cuda_image_find(const void *image, int major, int minor, bp_cuda_code *code);

/* A fatbin with the one code of another that a driver loads on a GPU: drivers refuse the whole where their choice is newer than they are.
 * NULL: none, or no host memory. The caller frees it. */
void *bp_cuda_image_part(const void *image, int major, int minor, int driver);

#endif
