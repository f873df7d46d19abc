/* SPDX-License-Identifier: Apache-2.0 */
/* No-op implementation, for builds without NVTX's headers. */
#include <stddef.h>

#include "devices/nvtx/nvtx.h"

bool bp_nvtx_is_built(void)
{
    return false;
}

bool bp_nvtx_is_asked_for(void)
{
    return false;
}

void bp_nvtx_push(const char *what, const char *name)
{
    (void)what;
    (void)name;
}

void bp_nvtx_pop(void)
{
}

bp_nvtx_name bp_nvtx_register(const char *text)
{
    (void)text;
    return NULL;
}

uint64_t bp_nvtx_start(bp_nvtx_name name)
{
    (void)name;
    return 0;
}

uint64_t bp_nvtx_start_text(const char *text)
{
    (void)text;
    return 0;
}

void bp_nvtx_end(uint64_t range)
{
    (void)range;
}

void *bp_nvtx_heap_register(const char *name, const void *address, uint64_t bytes)
{
    (void)name;
    (void)address;
    (void)bytes;
    return NULL;
}

void bp_nvtx_heap_unregister(void *heap)
{
    (void)heap;
}

void bp_nvtx_region_register(void *heap, const void *address, uint64_t bytes, bp_nvtx_name name)
{
    (void)heap;
    (void)address;
    (void)bytes;
    (void)name;
}

void bp_nvtx_region_unregister(const void *address)
{
    (void)address;
}
