/* A pool of two groups, "param" and "grad", of many pages each, with known bytes; on the host device, so that the host can read them. */
#ifndef BP_TEST_OFFLOAD_PAGES_H
#define BP_TEST_OFFLOAD_PAGES_H

#include <bucketpool/offload.h>

#include <unistd.h>

#include "support/pools.h"

#define PAGE ((uint64_t)sysconf(_SC_PAGESIZE))

typedef struct pages {
    kit k;
    bp_offload *offload;
    bp_pool_slab slabs[2]; /* of param, of grad */
} pages;

/* Takes the device over. `config` NULL: the defaults. */
pages open_pages(bp_device *device, const bp_offload_config *config);
/* Asserts that everything was freed. */
void close_pages(pages *p);
#define PAGES __attribute__((cleanup(close_pages))) pages

bp_offload_config config_with(bp_backing backing, uint64_t chunk_bytes);
bp_offload_group group_in(const bp_offload *offload, const char *name);

/* Written and checked by the host; `seed` distinguishes contents. */
void write_pages(const bp_pool_slab *slab, uint32_t seed);
void assert_pages(const bp_pool_slab *slab, uint32_t seed);

#endif
