/* SPDX-License-Identifier: Apache-2.0 */
#include "jemalloc_ways.h"

bool is_linked(void)
{
    return false;
}
