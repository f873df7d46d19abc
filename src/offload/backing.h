/* Where the bytes of a group are while it is away: a piece of host memory for each of its slabs. */
#ifndef BP_OFFLOAD_BACKING_H
#define BP_OFFLOAD_BACKING_H

#include <bucketpool/offload.h>

#include <stdbool.h>

/* Where host memory comes from. */
typedef struct bp_host_source {
    bp_pinned *pinned;
    bp_backing backing;
    uint64_t chunk_bytes; /* of copies */
    /* Two pinned chunks that staged copies go through in turn, in both directions; NULL: not needed yet. */
    void *stages[2];
    uint64_t stage_bytes; /* of each */
} bp_host_source;

typedef struct bp_kept {
    void *memory;
    uint64_t bytes;
    uint64_t kept; /* of them are the slab's, to be restored. What comes back depends on this alone */
} bp_kept;

typedef struct bp_backing_memory {
    bool pinned;
    uint64_t bytes; /* of all pieces */
    size_t count;
    bp_kept pieces[]; /* of the group's slabs, in their order */
} bp_backing_memory;

/* For slabs of these sizes. All or nothing. `group` is for messages. Errors: BP_ERR_NO_HOST_MEMORY (with the numbers), what the device reports. */
bp_status bp_backing_memory_create(bp_host_source *source, const char *group, const uint64_t *bytes, size_t count,
                                   bp_backing_memory **memory);
/* No copy may use it any more. Accepts pointers to NULL. */
void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory);

uint64_t bp_backing_memory_kept(const bp_backing_memory *memory);
void bp_backing_memory_forget(bp_backing_memory *memory);

void bp_host_source_drop_stages(bp_host_source *source);

#endif
