/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels.h"

const void *kernels_image(void)
{
    return kernels_ptx;
}
