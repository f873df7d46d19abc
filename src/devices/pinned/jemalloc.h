/* SPDX-License-Identifier: Apache-2.0 */
/* The process's copy of jemalloc, or one that can be loaded: declarations of its functions and hooks, as of version 5. */
#ifndef BP_PINNED_JEMALLOC_H
#define BP_PINNED_JEMALLOC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BP_JEMALLOC_BECAUSE_BYTES 400u

typedef struct bp_jemalloc {
    int (*mallctl)(const char *name, void *old, size_t *old_bytes, void *new, size_t new_bytes);
    void *(*mallocx)(size_t bytes, int flags);
    void (*dallocx)(void *address, int flags);
    size_t (*sallocx)(const void *address, int flags);
    char name[96]; /* "jemalloc 5.3.0 (the program's)" */
} bp_jemalloc;

/* Flags of the allocation functions. */
static inline int bp_jemalloc_arena_flags(unsigned arena)
{
    const int no_cache = 1 << 8;
    return (int)((arena + 1) << 20) | no_cache;
}

/* extent_hooks_t. Hooks of type bool return true on failure. */
typedef struct bp_extent_hooks bp_extent_hooks;
typedef bool bp_extent_range(bp_extent_hooks *hooks, void *address, size_t bytes, size_t offset, size_t length,
                             unsigned arena);
struct bp_extent_hooks {
    void *(*alloc)(bp_extent_hooks *hooks, void *new_address, size_t bytes, size_t alignment, bool *zero, bool *commit,
                   unsigned arena);
    bool (*dalloc)(bp_extent_hooks *hooks, void *address, size_t bytes, bool committed, unsigned arena);
    void (*destroy)(bp_extent_hooks *hooks, void *address, size_t bytes, bool committed, unsigned arena);
    bp_extent_range *commit, *decommit, *purge_lazy, *purge_forced;
    bool (*split)(bp_extent_hooks *hooks, void *address, size_t bytes, size_t bytes_a, size_t bytes_b, bool committed,
                  unsigned arena);
    bool (*merge)(bp_extent_hooks *hooks, void *a, size_t bytes_a, void *b, size_t bytes_b, bool committed,
                  unsigned arena);
};

/* Returns false if there is none: `because` (BP_JEMALLOC_BECAUSE_BYTES) has the reason and the remedy, and *jemalloc is not written. A
 * loaded library is never unloaded, because threads have used it. */
bool bp_jemalloc_find(bp_jemalloc *jemalloc, char *because);

#endif
