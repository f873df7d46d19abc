#include "kernels.h"

const void *kernels_image(void)
{
    return kernels_fatbin;
}
