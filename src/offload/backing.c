/* Host memory of an offloaded group: pinned or staged, one piece for each slab. */
#include "offload/offload.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/arith.h"
#include "core/fail.h"
#include "core/memory.h"

/* ---- chunks between the device and ordinary memory ------------------------------------------------------------------ */

static bp_status try_stages(bp_host_source *source, uint64_t bytes)
{
    void *stages[2];
    BP_TRY(bp_pinned_allocate(source->pinned, bytes, 0, &stages[0]));
    bp_status status = bp_pinned_allocate(source->pinned, bytes, 0, &stages[1]);
    if (status != BP_OK) {
        (void)bp_pinned_free(source->pinned, stages[0]);
        return status;
    }
    memcpy(source->stages, stages, sizeof stages);
    source->stage_bytes = bytes;
    return BP_OK;
}

/* Where chunks were not asked for but are what is left, smaller ones do. */
static bp_status get_stages(bp_host_source *source)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t bytes = source->chunk_bytes;
    if (source->stages[0] != NULL)
        return BP_OK;
    bp_status status = try_stages(source, bytes);
    while (status == BP_ERR_NO_HOST_MEMORY && source->backing == BP_BACKING_AUTO && bytes > page) {
        bytes = bytes / 2 / page * page;
        bytes = bytes > page ? bytes : page;
        status = try_stages(source, bytes);
    }
    return status;
}

void bp_host_source_drop_stages(bp_host_source *source)
{
    for (int i = 0; i < 2; i++) {
        if (source->stages[i] != NULL)
            (void)bp_pinned_free(source->pinned, source->stages[i]);
        source->stages[i] = NULL;
    }
}

/* ---- pieces --------------------------------------------------------------------------------------------------------- */

static bp_status get_ordinary(const char *group, const bp_backing_memory *all, uint64_t bytes, void **memory)
{
    void *mapping = bytes <= SIZE_MAX
                        ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                        : MAP_FAILED;
    if (mapping == MAP_FAILED)
        return bp_fail(BP_ERR_NO_HOST_MEMORY,
                       "group %.40s: no room on the host for %llu of its %llu bytes: %s; discard them, or free memory",
                       group, (unsigned long long)bytes, (unsigned long long)all->bytes, strerror(errno));
    *memory = mapping;
    return BP_OK;
}

/* What pinned memory says, and whom it is about. */
static bp_status backing_get_pinned(const bp_host_source *source, const char *group, const bp_backing_memory *all,
                                    uint64_t bytes, void **memory)
{
    char because[BP_DETAIL_BYTES];
    bp_status status = bp_pinned_allocate(source->pinned, bytes, 0, memory);
    if (status != BP_ERR_NO_HOST_MEMORY)
        return status;
    snprintf(because, sizeof because, "%s", bp_error_detail());
    return bp_fail(status, "group %.40s: no pinned memory for %llu of its %llu bytes: %.300s", group,
                   (unsigned long long)bytes, (unsigned long long)all->bytes, because);
}

static void give_back_pieces(const bp_host_source *source, bp_backing_memory *memory)
{
    for (size_t i = memory->count; i-- > 0;) {
        bp_kept *piece = &memory->pieces[i];
        if (piece->memory != NULL && memory->pinned)
            (void)bp_pinned_free(source->pinned, piece->memory);
        else if (piece->memory != NULL)
            (void)munmap(piece->memory, (size_t)piece->bytes);
        piece->memory = NULL;
    }
}

static bp_status get_pieces(bp_host_source *source, const char *group, bool pinned, bp_backing_memory *memory)
{
    memory->pinned = pinned;
    for (size_t i = 0; i < memory->count; i++) {
        bp_kept *piece = &memory->pieces[i];
        bp_status status = pinned ? backing_get_pinned(source, group, memory, piece->bytes, &piece->memory)
                                  : get_ordinary(group, memory, piece->bytes, &piece->memory);
        if (status != BP_OK) {
            give_back_pieces(source, memory);
            return status;
        }
    }
    return BP_OK;
}

static bp_status get_staged(bp_host_source *source, const char *group, bp_backing_memory *memory)
{
    BP_TRY(get_stages(source));
    return get_pieces(source, group, false, memory);
}

static bp_status backing_get(bp_host_source *source, const char *group, bp_backing_memory *memory)
{
    if (source->backing == BP_BACKING_STAGED)
        return get_staged(source, group, memory);
    bp_status status = get_pieces(source, group, true, memory);
    return status == BP_ERR_NO_HOST_MEMORY && source->backing == BP_BACKING_AUTO ? get_staged(source, group, memory)
                                                                                 : status;
}

bp_status bp_backing_memory_create(bp_host_source *source, const char *group, const uint64_t *bytes, size_t count,
                                   bp_backing_memory **memory)
{
    size_t size = sizeof **memory + count * sizeof(bp_kept); /* there is memory for more than that for each slab */
    bp_backing_memory *made = calloc(1, size);
    if (made == NULL)
        return bp_fail_memory(size);
    made->count = count;
    for (size_t i = 0; i < count; i++) {
        made->pieces[i].bytes = bytes[i];
        made->bytes += bytes[i];
    }
    bp_status status = backing_get(source, group, made);
    if (status != BP_OK) {
        free(made);
        return status;
    }
    *memory = made;
    return BP_OK;
}

void bp_backing_memory_destroy(bp_host_source *source, bp_backing_memory **memory)
{
    if (*memory == NULL)
        return;
    give_back_pieces(source, *memory);
    free(*memory);
    *memory = NULL;
}

uint64_t bp_backing_memory_kept(const bp_backing_memory *memory)
{
    uint64_t kept = 0;
    for (size_t i = 0; memory != NULL && i < memory->count; i++)
        kept += memory->pieces[i].kept;
    return kept;
}

void bp_backing_memory_forget(bp_backing_memory *memory)
{
    for (size_t i = 0; memory != NULL && i < memory->count; i++)
        memory->pieces[i].kept = 0;
}
