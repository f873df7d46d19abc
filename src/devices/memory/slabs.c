/* SPDX-License-Identifier: Apache-2.0 */
/* Slabs: creation with one physical handle each, mapping, unmapping, and the calls of their residency observers. */
#include "devices/memory/slabs.h"

#include <bucketpool/core/arith.h>
#include <bucketpool/core/fail.h>

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

/* ---- memory of a slab ----------------------------------------------------------------------------------------------- */

/* Gives the slab physical memory: a handle that the device failed to free, or a new one. */
static bp_status bring(bp_device *device, bp_slab *slab)
{
    if (!slab->committed)
        BP_TRY(bp_device_commit(device, slab->bytes, &slab->handle));
    slab->committed = true;
    BP_TRY(device->ops->map(device->self, slab->address, slab->bytes, slab->handle));
    slab->mapped = true;
    return BP_OK;
}

static bp_status slabs_unmap(const bp_device *device, bp_slab *slab)
{
    if (slab->mapped)
        BP_TRY(device->ops->unmap(device->self, slab->address, slab->bytes));
    slab->mapped = false;
    return BP_OK;
}

static bp_status slabs_give_back(bp_device *device, bp_slab *slab)
{
    if (slab->committed)
        BP_TRY(bp_device_decommit(device, slab->bytes, slab->handle));
    slab->committed = false;
    return BP_OK;
}

/* Frees the slab's memory and addresses; ignores errors, after which only the device can free the rest. */
static void drop(bp_device *device, bp_slab *slab)
{
    (void)slabs_unmap(device, slab);
    (void)slabs_give_back(device, slab);
}

bp_status bp_slabs_add(bp_slabs *slabs, uint64_t bytes, uint64_t alignment)
{
    bp_device *device = slabs->device;
    const uint64_t granularity = device->traits.granularity;
    bp_slab slab = {0};
    void *address;
    if (!bp_round_up_u64(bytes, granularity, &slab.bytes))
        return bp_fail(BP_ERR_OVERFLOW, "the size of a slab of %llu bytes exceeds 64 bits", (unsigned long long)bytes);
    BP_TRY(bp_grow_array((void **)&slabs->slabs, &slabs->capacity, slabs->count, sizeof *slabs->slabs));
    BP_TRY(device->ops->reserve(device->self, slab.bytes, alignment > granularity ? alignment : granularity, &address));
    slab.address = address;
    bp_status status = bring(device, &slab);
    if (status != BP_OK) {
        BP_KEEP_ERROR;
        drop(device, &slab);
        (void)device->ops->unreserve(device->self, address, slab.bytes);
        return status;
    }
    slabs->slabs[slabs->count++] = slab;
    return BP_OK;
}

/* ---- observers ------------------------------------------------------------------------------------------------------ */

/* Detaches the chosen (NULL: all) mapped slabs among the first `count`, in reverse order. */
static void detach_slabs(const bp_slabs *slabs, const bp_slab_observer *observer, const bool *chosen, size_t count)
{
    for (size_t i = count; i-- > 0;) {
        const bp_slab *slab = &slabs->slabs[i];
        if (!slab->absent && (chosen == NULL || chosen[i]))
            observer->callbacks.detach(observer->user, (uint32_t)i, slab->address, slab->bytes);
    }
}

static bp_status attach_slabs(const bp_slabs *slabs, const bp_slab_observer *observer, const bool *chosen)
{
    for (size_t i = 0; i < slabs->count; i++) {
        const bp_slab *slab = &slabs->slabs[i];
        if (slab->absent || (chosen != NULL && !chosen[i]))
            continue;
        bp_status status = observer->callbacks.attach(observer->user, (uint32_t)i, slab->address, slab->bytes);
        if (status != BP_OK) {
            detach_slabs(slabs, observer, chosen, i);
            return status;
        }
    }
    return BP_OK;
}

bp_status bp_slabs_attach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user)
{
    BP_TRY(bp_grow_array((void **)&slabs->observers, &slabs->observer_capacity, slabs->observer_count,
                         sizeof *slabs->observers));
    bp_slab_observer *observer = &slabs->observers[slabs->observer_count];
    *observer = (bp_slab_observer){*callbacks, user};
    BP_TRY(attach_slabs(slabs, observer, NULL));
    slabs->observer_count++;
    return BP_OK;
}

bp_status bp_slabs_detach(bp_slabs *slabs, const bp_slab_callbacks *callbacks, void *user)
{
    for (size_t i = slabs->observer_count; i-- > 0;) {
        bp_slab_observer *observer = &slabs->observers[i];
        if (observer->callbacks.attach != callbacks->attach || observer->callbacks.detach != callbacks->detach ||
            observer->user != user)
            continue;
        detach_slabs(slabs, observer, NULL, slabs->count);
        memmove(observer, observer + 1, (--slabs->observer_count - i) * sizeof *observer);
        return BP_OK;
    }
    return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pool_detach: these callbacks were not attached with this user pointer");
}

bp_status bp_slabs_agree(const bp_slabs *slabs, bp_status so_far)
{
    for (size_t i = 0; i < slabs->observer_count; i++) {
        const bp_slab_observer *observer = &slabs->observers[i];
        if (observer->callbacks.agree != NULL)
            so_far = observer->callbacks.agree(observer->user, so_far);
    }
    return so_far;
}

bool bp_slabs_are_captured(const bp_slabs *slabs, uint32_t slab)
{
    bool captured = false;
    for (size_t i = 0; i < slabs->observer_count && !captured; i++) {
        const bp_slab_observer *observer = &slabs->observers[i];
        captured = observer->callbacks.is_captured != NULL && observer->callbacks.is_captured(observer->user, slab);
    }
    return captured;
}

/* ---- unloading and loading ------------------------------------------------------------------------------------------ */

/* Calls detach of the first `observers` observers; marks the slabs absent. */
static void hide(bp_slabs *slabs, const bool *chosen, size_t observers)
{
    for (size_t i = observers; i-- > 0;)
        detach_slabs(slabs, &slabs->observers[i], chosen, slabs->count);
    for (size_t i = 0; i < slabs->count; i++)
        slabs->slabs[i].absent |= chosen[i];
}

static bp_status show(bp_slabs *slabs, const bool *chosen)
{
    for (size_t i = 0; i < slabs->count; i++)
        slabs->slabs[i].absent &= !chosen[i];
    for (size_t i = 0; i < slabs->observer_count; i++) {
        bp_status status = attach_slabs(slabs, &slabs->observers[i], chosen);
        if (status != BP_OK) {
            hide(slabs, chosen, i);
            return status;
        }
    }
    return BP_OK;
}

static bp_status bring_chosen(bp_slabs *slabs, const bool *chosen)
{
    for (size_t i = 0; i < slabs->count; i++) {
        if (chosen[i] && !slabs->slabs[i].mapped)
            BP_TRY(bring(slabs->device, &slabs->slabs[i]));
    }
    return BP_OK;
}

bp_status bp_slabs_unload(bp_slabs *slabs, const bool *chosen)
{
    char words[BP_DETAIL_BYTES];
    bp_status status = BP_OK;
    hide(slabs, chosen, slabs->observer_count);
    for (size_t i = slabs->count; i-- > 0 && status == BP_OK;)
        status = chosen[i] ? slabs_unmap(slabs->device, &slabs->slabs[i]) : BP_OK;
    status = bp_slabs_agree(slabs, status);
    if (status == BP_OK) { /* decommits all in spite of errors; returns the first one */
        for (size_t i = slabs->count; i-- > 0;) {
            const bp_kept_error kept = bp_error_keep();
            bp_status given = chosen[i] ? slabs_give_back(slabs->device, &slabs->slabs[i]) : BP_OK;
            if (status == BP_OK)
                status = given;
            else
                bp_error_put_back(&kept);
        }
        return status;
    }
    /* A participant could not unmap. Memory that is mapped again keeps its bytes, because it was not decommitted. If mapping fails too,
     * the slabs stay without observers, and some without memory. */
    snprintf(words, sizeof words, "%s", bp_error_detail());
    if (bp_slabs_agree(slabs, bring_chosen(slabs, chosen)) == BP_OK)
        (void)show(slabs, chosen);
    return bp_error_record(status, words);
}

bp_status bp_slabs_load(bp_slabs *slabs, const bool *chosen)
{
    char words[BP_DETAIL_BYTES];
    bp_status status = bp_slabs_agree(slabs, bring_chosen(slabs, chosen));
    if (status == BP_OK)
        status = show(slabs, chosen);
    if (status == BP_OK)
        return BP_OK;
    snprintf(words, sizeof words, "%s", bp_error_detail());
    for (size_t i = slabs->count;
         i-- > 0;) { /* a slab that stays mapped keeps its handle: it may have to be mapped again */
        if (chosen[i] && slabs_unmap(slabs->device, &slabs->slabs[i]) == BP_OK)
            (void)slabs_give_back(slabs->device, &slabs->slabs[i]);
    }
    return bp_error_record(status, words);
}

/* ---- destruction ---------------------------------------------------------------------------------------------------- */

void bp_slabs_detach_all(bp_slabs *slabs)
{
    for (size_t i = slabs->observer_count; i-- > 0;)
        detach_slabs(slabs, &slabs->observers[i], NULL, slabs->count);
    for (size_t i = slabs->observer_count; i-- > 0;)
        if (slabs->observers[i].callbacks.gone != NULL)
            slabs->observers[i].callbacks.gone(slabs->observers[i].user);
    slabs->observer_count = 0;
}

void bp_slabs_finish(bp_slabs *slabs)
{
    BP_KEEP_ERROR;
    bp_slabs_detach_all(slabs);
    bp_device *device = slabs->device;
    for (size_t i = slabs->count; i-- > 0;) { /* continues after errors */
        drop(device, &slabs->slabs[i]);
        (void)device->ops->unreserve(device->self, slabs->slabs[i].address, slabs->slabs[i].bytes);
    }
    free(slabs->observers);
    free(slabs->slabs);
    *slabs = (bp_slabs){0};
}
