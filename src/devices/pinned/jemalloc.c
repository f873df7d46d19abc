/* SPDX-License-Identifier: Apache-2.0 */
/* Finds or loads jemalloc, and serves small pinned pieces from an arena of it. The program's copy is preferred: a second one would cost
 * address space and work at each thread's exit. */
#include "devices/pinned/jemalloc.h"

#include <bucketpool/core/fail.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "devices/pinned/pinned.h"

#define LIBRARY "libjemalloc.so.2"
#define WAYS                                                                                                           \
    "start the program with LD_PRELOAD=" LIBRARY ", link it with -ljemalloc, or start it with "                        \
    "GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096"

/* Returns false if the library lacks a function. Prefixed names are private copies of other libraries. */
static bool jemalloc_look_up(void *library, bp_jemalloc *jemalloc)
{
    const struct {
        void *place;
        const char *name;
    } functions[] = {
        {&jemalloc->mallctl, "mallctl"},
        {&jemalloc->mallocx, "mallocx"},
        {&jemalloc->dallocx, "dallocx"},
        {&jemalloc->sallocx, "sallocx"},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *symbol = dlsym(library, functions[i].name);
        if (symbol == NULL)
            return false;
        memcpy(functions[i].place, (const void *)&symbol, sizeof symbol);
    }
    return true;
}

bool bp_jemalloc_find(bp_jemalloc *jemalloc, char *because)
{
    bp_jemalloc found;
    const char *where = "the program's";
    if (!jemalloc_look_up(RTLD_DEFAULT, &found)) {
        where = LIBRARY;
        void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *reason = library == NULL ? dlerror() : NULL;
        if (library == NULL && reason != NULL && strstr(reason, "static TLS") != NULL) {
            snprintf(because, BP_JEMALLOC_BECAUSE_BYTES,
                     "jemalloc cannot be loaded into a process that was not started with it (%.150s); " WAYS, reason);
            return false;
        }
        if (library == NULL) {
            snprintf(because, BP_JEMALLOC_BECAUSE_BYTES,
                     "jemalloc was not found (%.150s); install it (on Debian and Ubuntu libjemalloc2), then " WAYS,
                     reason != NULL ? reason : LIBRARY " could not be loaded");
            return false;
        }
        if (!jemalloc_look_up(library, &found)) {
            snprintf(because, BP_JEMALLOC_BECAUSE_BYTES, LIBRARY " has no mallctl, mallocx, dallocx or sallocx");
            return false;
        }
    }

    /* Arenas with these hooks exist since version 5. Builds without git report version 0. */
    const char *version = NULL;
    size_t bytes = sizeof(const char *);
    if (found.mallctl("version", (void *)&version, &bytes, NULL, 0) != 0)
        version = "0";
    const int length = (int)strcspn(version, "-");
    const long major = strtol(version, NULL, 10);
    if (major < 5 && major != 0) {
        snprintf(because, BP_JEMALLOC_BECAUSE_BYTES, "jemalloc %.*s (%s) is too old; version 5 is needed", length,
                 version, where);
        return false;
    }
    snprintf(found.name, sizeof found.name, "jemalloc %.*s (%s)", length, version, where);
    *jemalloc = found;
    return true;
}

/* An arena whose hooks hand it the slab once, and never take memory back. jemalloc's metadata lies beside the slab: 2 MiB at first, more
 * with very many pieces. */

#define MAX_OWN_BLOCKS 32 /* each is larger than the one before */
#define MAX_PRIMED 64

typedef struct block {
    void *mapping;
    size_t bytes;
} block;

typedef struct arena {
    bp_extent_hooks hooks; /* must be the first field: hooks get its address */
    bp_jemalloc jemalloc;
    unsigned index;
    uint8_t *slab;
    uint64_t slab_bytes, handed_bytes;
    size_t own_alignment;   /* alignment of its metadata, observed when the arena was made; 0: being made */
    size_t asked_alignment; /* alignment of the piece that is being allocated */
    block own[MAX_OWN_BLOCKS];
    size_t own_count;
} arena;

/* ---- hooks -------------------------------------------------------------------------------------------------------- */

static uint8_t *align_up(uint8_t *address, size_t alignment)
{
    return address + (alignment - (uintptr_t)address % alignment) % alignment;
}

static void *hook_alloc(bp_extent_hooks *hooks, void *new_address, size_t bytes, size_t alignment, bool *zero,
                        bool *commit, unsigned index)
{
    (void)index;
    arena *a = (arena *)hooks;
    if (new_address != NULL)
        return NULL;
    if (a->slab == NULL)
        a->own_alignment = alignment;
    uint8_t *memory = NULL;
    if (a->slab == NULL || (alignment >= a->own_alignment && alignment > a->asked_alignment)) {
        /* Metadata is recognised by its alignment, which is larger than that of pieces; hooks are not told. It is neither touched nor
         * pinned, as it is never copied. */
        size_t total;
        if (a->own_count == MAX_OWN_BLOCKS || __builtin_add_overflow(bytes, alignment, &total))
            return NULL;
        void *mapping = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (mapping == MAP_FAILED)
            return NULL;
        a->own[a->own_count++] = (block){mapping, total};
        memory = align_up(mapping, alignment);
    } else {
        memory = align_up(a->slab + a->handed_bytes, alignment);
        const uint8_t *end = a->slab + a->slab_bytes;
        if (memory > end || bytes > (size_t)(end - memory))
            return NULL;
        a->handed_bytes = (uint64_t)(memory - a->slab) + bytes;
    }
    *zero = *commit = true; /* new pages, handed out once */
    return memory;
}

static bool refuse_dalloc(bp_extent_hooks *hooks, void *address, size_t bytes, bool committed, unsigned index)
{
    (void)hooks, (void)address, (void)bytes, (void)committed, (void)index;
    return true;
}

static bool accept_range(bp_extent_hooks *hooks, void *address, size_t bytes, size_t offset, size_t length,
                         unsigned index)
{
    (void)hooks, (void)address, (void)bytes, (void)offset, (void)length, (void)index;
    return false;
}

/* Refuses to give pages back: pinned pages must stay. */
static bool refuse_range(bp_extent_hooks *hooks, void *address, size_t bytes, size_t offset, size_t length,
                         unsigned index)
{
    (void)hooks, (void)address, (void)bytes, (void)offset, (void)length, (void)index;
    return true;
}

static bool accept_split(bp_extent_hooks *hooks, void *address, size_t bytes, size_t bytes_a, size_t bytes_b,
                         bool committed, unsigned index)
{
    (void)hooks, (void)address, (void)bytes, (void)bytes_a, (void)bytes_b, (void)committed, (void)index;
    return false;
}

static bool accept_merge(bp_extent_hooks *hooks, void *a, size_t bytes_a, void *b, size_t bytes_b, bool committed,
                         unsigned index)
{
    (void)hooks, (void)a, (void)bytes_a, (void)b, (void)bytes_b, (void)committed, (void)index;
    return false;
}

static const bp_extent_hooks all_hooks = {
    .alloc = hook_alloc,
    .dalloc = refuse_dalloc,
    .commit = accept_range,
    .decommit = refuse_range,
    .purge_lazy = refuse_range,
    .purge_forced = refuse_range,
    .split = accept_split,
    .merge = accept_merge,
};

/* ---- the arena ---------------------------------------------------------------------------------------------------- */

static int control_arena(const arena *a, const char *what, void *new, size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "arena.%u.%s", a->index, what);
    return a->jemalloc.mallctl(name, NULL, NULL, new, bytes);
}

static void *try_allocate(arena *a, uint64_t bytes, uint64_t alignment)
{
    a->asked_alignment = alignment;
    void *address = a->jemalloc.mallocx(bytes, bp_jemalloc_arena_flags(a->index) | __builtin_ctzll(alignment));
    a->asked_alignment = 1;
    return address;
}

/* Purges unused memory if the first try fails: free memory may be fragmented, or too large an extent for a small piece. A decay of 0 would not do:
 * a background thread of the program's jemalloc would purge too, and memory that is being purged cannot be allocated. */
static void *small_jemalloc_allocate(arena *a, uint64_t bytes, uint64_t alignment)
{
    void *address = try_allocate(a, bytes, alignment);
    if (address == NULL && control_arena(a, "purge", NULL, 0) == 0)
        address = try_allocate(a, bytes, alignment);
    return address;
}

static void small_jemalloc_release(const arena *a, void *address)
{
    a->jemalloc.dallocx(address, bp_jemalloc_arena_flags(a->index));
}

/* Extents that were handed out one by one never merge: the arena takes the slab in pieces as large as it accepts, then all are freed. It
 * asks for more than the size of a piece, so the first try that succeeds usually takes the whole slab. */
static bp_status small_jemalloc_start(bp_small *small)
{
    arena *a = small->self;
    void *primed[MAX_PRIMED];
    size_t count = 0;
    a->slab = small->slab.address;
    a->slab_bytes = small->slab.bytes;
    uint64_t bytes = a->slab_bytes;
    while (a->handed_bytes < a->slab_bytes && bytes >= bp_page_bytes() && count < MAX_PRIMED) {
        void *piece = small_jemalloc_allocate(a, bytes, 1);
        if (piece != NULL)
            primed[count++] = piece;
        else
            bytes -= bytes / 8;
    }
    while (count > 0)
        small_jemalloc_release(a, primed[--count]);
    if (a->handed_bytes == 0)
        return bp_fail(BP_ERR_NO_HOST_MEMORY,
                       "pinned memory: %s cannot use a slab of %llu bytes; set another slab_bytes", a->jemalloc.name,
                       (unsigned long long)a->slab_bytes);
    return BP_OK;
}

static uint8_t *small_jemalloc_take(bp_small *small, uint64_t bytes, uint64_t alignment)
{
    arena *a = small->self;
    uint8_t *address = small_jemalloc_allocate(a, bytes, alignment);
    const bool inside = address >= a->slab && bytes <= a->slab_bytes && address <= a->slab + (a->slab_bytes - bytes);
    if (address == NULL || inside)
        return address;
    small_jemalloc_release(a, address);
    return NULL;
}

static void small_jemalloc_give(bp_small *small, uint8_t *address)
{
    small_jemalloc_release(small->self, address);
}

static bool read_size(const arena *a, const char *name, size_t *value)
{
    size_t bytes = sizeof *value;
    return a->jemalloc.mallctl(name, value, &bytes, NULL, 0) == 0;
}

static uint64_t small_jemalloc_used(const bp_small *small)
{
    const arena *a = small->self;
    char name[64];
    size_t page, pages;
    uint64_t epoch = 1, bytes = 0;
    snprintf(name, sizeof name, "stats.arenas.%u.pactive", a->index);
    (void)a->jemalloc.mallctl("epoch", NULL, NULL, &epoch, sizeof epoch);
    if (read_size(a, "arenas.page", &page) && read_size(a, name, &pages))
        return (uint64_t)page * pages;
    for (size_t i = 0; i < small->pieces.count; i++)
        bytes += a->jemalloc.sallocx(small->pieces.pieces[i].address, 0);
    return bytes;
}

static void discard(arena *a)
{
    while (a->own_count > 0) {
        a->own_count--;
        munmap(a->own[a->own_count].mapping, a->own[a->own_count].bytes);
    }
    free(a);
}

/* An arena that cannot be destroyed keeps its metadata; nothing is allocated from it again. */
static void small_jemalloc_finish(bp_small *small)
{
    arena *a = small->self;
    if (control_arena(a, "destroy", NULL, 0) == 0)
        discard(a);
}

static const bp_small_ops jemalloc_ops = {small_jemalloc_start, small_jemalloc_take, small_jemalloc_give,
                                          small_jemalloc_used, small_jemalloc_finish};

bool bp_small_jemalloc_create(bp_small *small, const bp_jemalloc *jemalloc)
{
    arena *a = calloc(1, sizeof *a);
    bp_extent_hooks *hooks;
    size_t bytes = sizeof a->index;
    if (a == NULL)
        return false;
    a->hooks = all_hooks;
    a->jemalloc = *jemalloc;
    hooks = &a->hooks;
    if (jemalloc->mallctl("arenas.create", &a->index, &bytes, (void *)&hooks, sizeof hooks) != 0) {
        discard(a);
        return false;
    }
    small->self = a;
    ssize_t never = -1, at_once = 0;
    if (control_arena(a, "dirty_decay_ms", &never, sizeof never) != 0 ||
        control_arena(a, "muzzy_decay_ms", &at_once, sizeof at_once) != 0) {
        small_jemalloc_finish(small);
        return false;
    }
    small->ops = &jemalloc_ops;
    return true;
}
