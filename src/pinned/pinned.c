/* Pinned memory: what was asked for, who holds it, how much there may be. */
#include "pinned/pinned.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/arith.h"
#include "core/memory.h"
#include "core/structs.h"
#include "devices/device.h"
#include "pinned/jemalloc.h"
#include "pinned/pages.h"

#define DEFAULT_SLAB_BYTES (UINT64_C(64) << 20)
#define DEFAULT_PLANNED_BYTES (UINT64_C(1) << 20)
#define DEFAULT_ALIGNMENT 64u

static const bp_pinned_config pinned_config_defaults = {
    .size = sizeof pinned_config_defaults, .allocator = BP_PINNED_AUTO, .numa_node = -1};

bp_status bp_pinned_config_init(bp_pinned_config *config, size_t size)
{
    return bp_struct_init("bp_pinned_config_init", config, size, &pinned_config_defaults,
                          sizeof pinned_config_defaults);
}

/* ---- creation ----------------------------------------------------------------------------------------------------- */

static bp_status pinned_check_config(const bp_pinned_config *config)
{
    if (config->allocator != BP_PINNED_AUTO && config->allocator != BP_PINNED_JEMALLOC &&
        config->allocator != BP_PINNED_PLAIN)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: allocator is %d", (int)config->allocator);
    if (config->touch_threads > BP_MOST_TOUCH_THREADS)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: touch_threads is %u, at most %u make sense",
                       config->touch_threads, BP_MOST_TOUCH_THREADS);
    if (config->numa_node < -1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: numa_node is %d, expected -1 or a node",
                       config->numa_node);
    if (config->no_huge_pages != 0 && config->no_huge_pages != 1)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: no_huge_pages is %d, expected 0 or 1",
                       config->no_huge_pages);
    return BP_OK;
}

static bp_pinned_config with_defaults(const bp_pinned_config *config)
{
    bp_pinned_config filled = *config;
    if (filled.slab_bytes == 0)
        filled.slab_bytes = DEFAULT_SLAB_BYTES;
    if (filled.planned_bytes == 0)
        filled.planned_bytes = DEFAULT_PLANNED_BYTES;
    if (filled.most_bytes == 0)
        filled.most_bytes = UINT64_MAX;
    if (filled.touch_threads == 0)
        filled.touch_threads = bp_touch_default_threads();
    return filled;
}

static bp_status choose_allocator(bp_pinned *pinned)
{
    bp_jemalloc jemalloc;
    const bp_pinned_allocator wanted = pinned->config.allocator;
    if (wanted != BP_PINNED_PLAIN && bp_jemalloc_find(&jemalloc, pinned->because)) {
        snprintf(pinned->name, sizeof pinned->name, "%s", jemalloc.name);
        if (bp_small_jemalloc_create(&pinned->small, &jemalloc))
            return BP_OK;
        snprintf(pinned->because, sizeof pinned->because,
                 "%s makes no arena: memory for it is lacking, or it has too many", jemalloc.name);
    }
    if (wanted == BP_PINNED_JEMALLOC)
        return bp_fail(BP_ERR_UNSUPPORTED, "bp_pinned_create: allocator asks for jemalloc: %s", pinned->because);
    pinned->small.ops = &bp_small_plain;
    snprintf(pinned->name, sizeof pinned->name, "plain");
    return BP_OK;
}

static bp_status choose_node(bp_pinned *pinned)
{
    const int32_t wanted = pinned->config.numa_node;
    const int32_t node = wanted >= 0 ? wanted : bp_numa_node_of(pinned->source.device);
    const bool usable = node >= 0 && bp_numa_is_usable(node);
    if (wanted >= 0 && !usable)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pinned_create: numa_node is %d: this process cannot place memory there (%s)", wanted,
                       strerror(errno));
    pinned->source.node = usable ? node : -1;
    return BP_OK;
}

bp_status bp_pinned_create(bp_device *device, const bp_pinned_config *config, bp_pinned **pinned)
{
    bp_pinned_config own = pinned_config_defaults;
    void *memory;
    if (device == NULL || pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_create: needs a device and an output");
    BP_TRY(bp_device_check(device, "bp_pinned_create"));
    BP_TRY(bp_struct_read("bp_pinned_create", config, true, &own, sizeof own));
    config = &own;
    BP_TRY(pinned_check_config(config));
    BP_TRY(bp_new_array(1, sizeof(bp_pinned), &memory));
    bp_pinned *created = memory;
    created->config = with_defaults(config);
    created->source = (bp_page_source){.device = device,
                                       .threads = created->config.touch_threads,
                                       .node = -1,
                                       .huge = created->config.no_huge_pages == 0};
    bp_status status = choose_node(created);
    if (status == BP_OK)
        status = choose_allocator(created);
    if (status != BP_OK) {
        free(created);
        return status;
    }
    atomic_init(&created->references, 1);
    pthread_mutex_init(&created->lock, NULL); /* cannot fail for a plain mutex */
    bp_device_retain(device);
    *pinned = created;
    return BP_OK;
}

/* ---- references --------------------------------------------------------------------------------------------------- */

void bp_pinned_retain(bp_pinned *pinned)
{
    atomic_fetch_add_explicit(&pinned->references, 1, memory_order_relaxed);
}

/* Memory that the device does not let go of stays mapped: it may still be written to. */
static void pinned_release(bp_pinned *pinned)
{
    if (!bp_device_is_here(pinned->source.device) ||
        atomic_fetch_sub_explicit(&pinned->references, 1, memory_order_acq_rel) > 1)
        return;
    for (size_t i = 0; i < pinned->planned.count; i++)
        (void)bp_pages_give_back(&pinned->source, &pinned->planned.pieces[i].pages);
    pinned->small.ops->finish(&pinned->small);
    if (pinned->small.slab.bytes > 0)
        (void)bp_pages_give_back(&pinned->source, &pinned->small.slab);
    bp_pieces_finish(&pinned->planned);
    bp_pieces_finish(&pinned->small.pieces);
    pthread_mutex_destroy(&pinned->lock);
    bp_device_release(pinned->source.device);
    free(pinned);
}

void bp_pinned_destroy(bp_pinned **pinned)
{
    if (pinned == NULL || *pinned == NULL)
        return;
    pinned_release(*pinned);
    *pinned = NULL;
}

/* ---- pages -------------------------------------------------------------------------------------------------------- */

bp_status bp_pinned_get_pages(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, bp_pages *pages)
{
    uint64_t whole;
    if (!bp_round_up_u64(bytes, bp_page_bytes(), &whole) || whole > pinned->config.most_bytes - pinned->pinned_bytes)
        return bp_fail(BP_ERR_NO_HOST_MEMORY,
                       "pinned memory: %llu bytes more would exceed most_bytes, which is %llu: %llu are pinned",
                       (unsigned long long)bytes, (unsigned long long)pinned->config.most_bytes,
                       (unsigned long long)pinned->pinned_bytes);
    BP_TRY(bp_pages_get(&pinned->source, whole, alignment, pages));
    pinned->pinned_bytes += whole;
    if (pinned->pinned_bytes > pinned->peak_pinned_bytes)
        pinned->peak_pinned_bytes = pinned->pinned_bytes;
    return BP_OK;
}

bp_status bp_pinned_give_back_pages(bp_pinned *pinned, const bp_pages *pages)
{
    const uint64_t bytes = pages->bytes;
    BP_TRY(bp_pages_give_back(&pinned->source, pages));
    pinned->pinned_bytes -= bytes;
    return BP_OK;
}

/* ---- pieces ------------------------------------------------------------------------------------------------------- */

static bp_status check_piece(const bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void *const *address)
{
    if (pinned == NULL || address == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_allocate: needs pinned memory and an output");
    if (bytes == 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_allocate: 0 bytes");
    if (alignment > BP_HUGE_PAGE_BYTES || (alignment & (alignment - 1)) != 0)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pinned_allocate: an alignment of %llu bytes, expected a power of two up to %llu",
                       (unsigned long long)alignment, (unsigned long long)BP_HUGE_PAGE_BYTES);
    return bp_device_check(pinned->source.device, "bp_pinned_allocate");
}

static bp_status planned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    bp_pinned_piece piece = {.bytes = bytes};
    BP_TRY(bp_pieces_reserve(&pinned->planned));
    BP_TRY(bp_pinned_get_pages(pinned, bytes, alignment, &piece.pages));
    piece.address = piece.pages.address;
    bp_pieces_add(&pinned->planned, &piece);
    *address = piece.address;
    return BP_OK;
}

bp_status bp_pinned_allocate(bp_pinned *pinned, uint64_t bytes, uint64_t alignment, void **address)
{
    BP_TRY(check_piece(pinned, bytes, alignment, address));
    if (alignment == 0)
        alignment = DEFAULT_ALIGNMENT;
    pthread_mutex_lock(&pinned->lock);
    bp_status status = bytes >= pinned->config.planned_bytes ? planned_allocate(pinned, bytes, alignment, address)
                                                             : bp_small_allocate(pinned, bytes, alignment, address);
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

static bp_status planned_free(bp_pinned *pinned, size_t index)
{
    BP_TRY(bp_pinned_give_back_pages(pinned, &pinned->planned.pieces[index].pages));
    bp_pieces_remove(&pinned->planned, index);
    return BP_OK;
}

static bp_status free_piece(bp_pinned *pinned, const void *address)
{
    size_t index;
    if (bp_pieces_find(&pinned->planned, address, &index))
        return planned_free(pinned, index);
    if (!bp_pieces_find(&pinned->small.pieces, address, &index))
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_pinned_free: nothing that is still lent was allocated at %p (%zu pieces are lent)", address,
                       pinned->planned.count + pinned->small.pieces.count);
    bp_small_free(pinned, index);
    return BP_OK;
}

bp_status bp_pinned_free(bp_pinned *pinned, void *address)
{
    if (pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_free: needs pinned memory");
    if (address == NULL)
        return BP_OK;
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_free"));
    pthread_mutex_lock(&pinned->lock);
    bp_status status = free_piece(pinned, address);
    pthread_mutex_unlock(&pinned->lock);
    return status;
}

/* ---- planned pieces ---------------------------------------------------------------------------------------------- */

/* Planned pieces: each is memory of its own. */

/* ---- statistics -------------------------------------------------------------------------------------------------- */

/* What pinned memory says of itself. */

static bp_pinned_statistics statistics_of(const bp_pinned *pinned)
{
    const bp_small *small = &pinned->small;
    return (bp_pinned_statistics){
        .size = sizeof(bp_pinned_statistics),
        .pinned_bytes = pinned->pinned_bytes,
        .peak_pinned_bytes = pinned->peak_pinned_bytes,
        .planned_pieces = pinned->planned.count,
        .planned_bytes = pinned->planned.bytes,
        .small_pieces = small->pieces.count,
        .small_bytes = small->pieces.bytes,
        .slab_bytes = small->slab.bytes,
        .slab_used_bytes = small->slab.bytes > 0 ? small->ops->used(small) : 0,
        .huge_bytes = pinned->source.huge_bytes,
        .touch_ns = pinned->source.touch_ns,
        .pin_ns = pinned->source.pin_ns,
        .numa_node = pinned->source.node,
        .allocator = pinned->name,
        .because = pinned->because,
    };
}

bp_status bp_pinned_statistics_get(const bp_pinned *pinned, bp_pinned_statistics *statistics)
{
    if (pinned == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pinned_statistics_get: needs pinned memory");
    BP_TRY(bp_device_check(pinned->source.device, "bp_pinned_statistics_get"));
    pthread_mutex_t *lock = (pthread_mutex_t *)&pinned->lock; /* looking changes nothing else */
    pthread_mutex_lock(lock);
    const bp_pinned_statistics now = statistics_of(pinned);
    pthread_mutex_unlock(lock);
    return bp_struct_write("bp_pinned_statistics_get", &now, sizeof now, statistics);
}
