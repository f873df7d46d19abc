/* Pinned memory from within. */
#ifndef BP_PINNED_PINNED_H
#define BP_PINNED_PINNED_H

#include <bucketpool/pinned.h>

#include <pthread.h>
#include <stdatomic.h>

#include "core/fail.h"
#include "pinned/jemalloc.h"
#include "pinned/small.h"

struct bp_pinned {
    bp_pinned_config config; /* with what was found for 0 */
    atomic_uint references;  /* the caller's, and one for each offload */
    char name[96];
    char because[BP_JEMALLOC_BECAUSE_BYTES];
    pthread_mutex_t lock; /* of all that follows, also while pages are being pinned: nobody allocates on a hot path */
    bp_page_source source;
    uint64_t pinned_bytes, peak_pinned_bytes;
    bp_pieces planned;
    bp_small small;
};

/* For offloads, which keep their pinned memory alive. */
void bp_pinned_retain(bp_pinned *pinned);

/* For the files of this folder, under the lock: pages that count towards the limit. */
bp_status bp_pinned_get_pages(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, bp_pages *pages);
bp_status bp_pinned_give_back_pages(bp_pinned *pinned, const bp_pages *pages);

bp_status bp_small_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address);
void bp_small_free(bp_pinned *pinned, size_t index);

#endif
