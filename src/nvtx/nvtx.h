/* NVTX: what profilers and compute-sanitizer are told. Where nobody listens the calls do nothing; where the library was built without
 * NVTX's headers they do nothing either (none.c). Any thread. Nothing here fails.
 *
 * All is in the domain "bucketpool". Names are registered once, so that nothing is copied or formatted on hot paths.
 * Source: NVTX 3, header only; its memory extension for sub-allocations. */
#ifndef BP_NVTX_NVTX_H
#define BP_NVTX_NVTX_H

#include <stdbool.h>
#include <stdint.h>

/* Whether the library was built with NVTX. */
bool bp_nvtx_is_built(void);
/* Whether it was, and a tool is named in the environment (NVTX_INJECTION64_PATH), or BUCKETPOOL_NVTX is 1. */
bool bp_nvtx_is_asked_for(void);

/* A range of this thread, "<what> <name>"; they nest. */
void bp_nvtx_push(const char *what, const char *name);
void bp_nvtx_pop(void);

/* A name that lives as long as the process. */
typedef const void *bp_nvtx_name;
bp_nvtx_name bp_nvtx_register(const char *text);

/* A range of the process: may end on another thread. 0 is none. */
uint64_t bp_nvtx_start(bp_nvtx_name name);
/* The same with a text that is copied. */
uint64_t bp_nvtx_start_text(const char *text);
void bp_nvtx_end(uint64_t range);

/* Memory that is divided into regions, which alone may be touched. NULL: nobody wants to know. */
void *bp_nvtx_heap_register(const char *name, const void *address, uint64_t bytes);
void bp_nvtx_heap_unregister(void *heap);
void bp_nvtx_region_register(void *heap, const void *address, uint64_t bytes, bp_nvtx_name name);
/* By its address: regions that are there at one time do not overlap. */
void bp_nvtx_region_unregister(const void *address);

#endif
