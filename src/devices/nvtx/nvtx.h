/* SPDX-License-Identifier: Apache-2.0 */
/* NVTX ranges and memory regions for profilers and compute-sanitizer. Without an attached tool, or if built without NVTX's headers
 * (none.c), the calls do nothing. They never fail. Any thread.
 *
 * All objects are in the domain "bucketpool". Names are registered once, so that hot paths neither copy nor format. Source: NVTX 3,
 * header only; its memory extension for sub-allocations. */
#ifndef BP_NVTX_NVTX_H
#define BP_NVTX_NVTX_H

#include <stdbool.h>
#include <stdint.h>

/* True if the library was built with NVTX. */
bool bp_nvtx_is_built(void);
/* True if the library was built with NVTX, and either the environment names a tool (NVTX_INJECTION64_PATH) or BUCKETPOOL_NVTX is 1. */
bool bp_nvtx_is_asked_for(void);

/* Begins a range of this thread, "<what> <name>". Ranges nest. */
void bp_nvtx_push(const char *what, const char *name);
void bp_nvtx_pop(void);

/* A registered name; lives as long as the process. */
typedef const void *bp_nvtx_name;
bp_nvtx_name bp_nvtx_register(const char *text);

/* Begins a range of the process, which may end on another thread. 0: none. */
uint64_t bp_nvtx_start(bp_nvtx_name name);
/* bp_nvtx_start with a text that is copied. */
uint64_t bp_nvtx_start_text(const char *text);
void bp_nvtx_end(uint64_t range);

/* Registers memory that only its regions make accessible. NULL: no tool is attached. */
void *bp_nvtx_heap_register(const char *name, const void *address, uint64_t bytes);
void bp_nvtx_heap_unregister(void *heap);
void bp_nvtx_region_register(void *heap, const void *address, uint64_t bytes, bp_nvtx_name name);
/* Regions are identified by their address: open ones do not overlap. */
void bp_nvtx_region_unregister(const void *address);

#endif
