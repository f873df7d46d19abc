/* SPDX-License-Identifier: Apache-2.0 */
/* A program that is linked with jemalloc: it calls it, so that no linker leaves the library out. */
#include "jemalloc_ways.h"

#include <jemalloc/jemalloc.h>

bool is_linked(void)
{
    return mallctl("epoch", NULL, NULL, NULL, 0) == 0;
}
