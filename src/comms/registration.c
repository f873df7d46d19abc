/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations: creation, granting the best window kind that all ranks get, following the slabs of the pool,
 * destruction. */
#include "comms/registration.h"

#include <bucketpool/capture.h>
#include <bucketpool/core/fail.h>
#include <bucketpool/core/structs.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comms/nccl.h"
#include "core/text.h"
#include "devices/device.h"
#include "devices/memory/slab_callbacks.h"
#include "devices/nvtx/nvtx.h"

/* ---- registrations ----------------------------------------------------------------------------------------------- */

const char *bp_register_kind_name(bp_register_kind kind)
{
    static const char *const names[] = {"none", "buffer", "window", "symmetric window"};
    return (unsigned)kind <= BP_REGISTER_SYMMETRIC ? names[kind] : "invalid";
}

static const bp_registration_entry registration_entry_defaults = {.size = sizeof registration_entry_defaults,
                                                                  .kind = BP_REGISTER_SYMMETRIC};

bp_status bp_registration_entry_init(bp_registration_entry *entry, size_t size)
{
    return bp_struct_init("bp_registration_entry_init", entry, size, &registration_entry_defaults,
                          sizeof registration_entry_defaults);
}

static const bp_registration_entry *caller_entry(const bp_registration_entry *entries, size_t index)
{
    return (const void *)((const char *)entries + index * entries->size);
}

bp_registration_entry bp_registration_entry_at(const bp_registration_entry *entries, size_t index)
{
    bp_registration_entry entry = registration_entry_defaults; /* of checked entries, so it can be read */
    (void)bp_struct_read("bp_registration_create", caller_entry(entries, index), false, &entry, sizeof entry);
    return entry;
}

/* ---- local checks: communicators, slabs of groups, ranges that are registered already ----------------------------------- */

static uint32_t find_party(const bp_registration *r, const bp_comm *comm)
{
    uint32_t party = 0;
    while (party < r->party_count && r->parties[party].comm != comm)
        party++;
    return party;
}

static bp_status take_entries(bp_registration *r, const bp_registration_entry *entries, size_t count)
{
    void *memory;
    BP_TRY(bp_new_array(count, sizeof *r->parties, &memory));
    r->parties = memory;
    for (size_t i = 0; i < count; i++) { /* first, because any later failure is reported over them */
        bp_comm *comm = bp_registration_entry_at(entries, i).comm;
        if (find_party(r, comm) < r->party_count)
            continue;
        r->parties[r->party_count++] = (bp_party){.comm = comm, .neighbours = {.in_process = UINT32_MAX}};
        bp_comm_retain(comm);
    }
    BP_TRY(bp_new_array(count, sizeof *r->entries, &memory));
    r->entries = memory;
    for (size_t i = 0; i < count; i++) {
        const bp_registration_entry given = bp_registration_entry_at(entries, i);
        bp_registered_entry *entry = &r->entries[r->entry_count++];
        *entry = (bp_registered_entry){.party = find_party(r, given.comm),
                                       .kind = given.kind,
                                       .exact = given.exact != 0,
                                       .traffic = given.traffic};
        if (given.group != NULL)
            BP_TRY(bp_strings_add(&r->strings, given.group, &entry->group));
        BP_TRY(bp_comm_check(given.comm, "bp_registration_create"));
    }
    return BP_OK;
}

/* Entries without a group exclude persistent and overflow memory. */
static bool is_of(const bp_registered_entry *entry, const bp_pool_slab *slab)
{
    return entry->group != NULL ? strcmp(entry->group, slab->group) == 0 : slab->planned_bytes > 0;
}

static bp_status take_slabs(bp_registration *r, const bp_pool *pool)
{
    void *memory;
    const bp_pool_slab *slabs = bp_pool_get_info(pool)->slabs;
    r->slab_count = bp_pool_get_info(pool)->slab_count;
    BP_TRY(bp_new_array(r->slab_count, sizeof *r->groups, &memory));
    r->groups = memory;
    for (size_t s = 0; s < r->slab_count; s++)
        BP_TRY(bp_strings_add(&r->strings, slabs[s].group, &r->groups[s]));
    for (size_t i = 0; i < r->entry_count; i++) {
        const bp_registered_entry *entry = &r->entries[i];
        bool found = entry->group == NULL;
        for (size_t s = 0; s < r->slab_count && !found; s++)
            found = is_of(entry, &slabs[s]);
        if (!found)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "entry %zu (communicator %s): pool %s has no slab of group \"%s\" among its %zu", i,
                           r->parties[entry->party].comm->name, r->pool_name, entry->group, r->slab_count);
    }

    BP_TRY(bp_new_array(r->slab_count * r->entry_count, sizeof *r->windows, &memory));
    r->windows = memory;
    BP_TRY(bp_new_array(r->slab_count * r->entry_count, sizeof *r->shown, &memory));
    r->shown = memory;
    for (size_t s = 0; s < r->slab_count; s++)
        for (size_t e = 0; e < r->entry_count; e++) {
            const bp_registered_entry *entry = &r->entries[e];
            if (!is_of(entry, &slabs[s]))
                continue;
            bp_registered *window = &r->windows[r->window_count];
            window->shown = &r->shown[r->window_count++];
            *window->shown = (bp_registration_window){.slab = (uint32_t)s,
                                                      .entry = (uint32_t)e,
                                                      .address = slabs[s].address,
                                                      .bytes = slabs[s].bytes,
                                                      .asked = entry->kind,
                                                      .because = window->because};
        }
    return BP_OK;
}

/* Refuses ranges that overlap another registration with the same communicator: NCCL forbids overlapping windows. */
static bp_status note_ranges(bp_registration *r)
{
    for (size_t i = 0; i < r->window_count; i++) {
        bp_registered *window = &r->windows[i];
        bp_comm *comm = bp_comm_of(r, window);
        window->range =
            (bp_comm_range){.address = window->shown->address, .bytes = window->shown->bytes, .owner = r->pool_name};
        for (const bp_comm_range *other = comm->ranges; other != NULL; other = other->next)
            if (other->address < window->range.address + window->shown->bytes &&
                window->range.address < other->address + other->bytes)
                return bp_fail(BP_ERR_SCHEDULE,
                               "slab %u (%s) of pool %s is registered with communicator %s already, by %s %s",
                               window->shown->slab, r->groups[window->shown->slab], r->pool_name, comm->name,
                               other->owner == r->pool_name ? "an earlier entry for pool" : "pool", other->owner);
        window->range.next = comm->ranges;
        comm->ranges = &window->range;
    }
    return BP_OK;
}

/* Removes the ranges from the communicators' lists. */
static void registration_drop_ranges(bp_registration *r)
{
    for (size_t i = 0; i < r->window_count; i++) {
        bp_comm_range **at = &bp_comm_of(r, &r->windows[i])->ranges;
        while (*at != NULL && *at != &r->windows[i].range)
            at = &(*at)->next;
        if (*at != NULL)
            *at = (*at)->next;
    }
}

/* The local part of creation. On failure `*r` still owns its parts. */
static bp_status registration_prepare(bp_registration *r, bp_pool *pool, const bp_registration_entry *entries,
                                      size_t count)
{
    BP_TRY(take_entries(r, entries, count));
    BP_TRY(bp_strings_add(&r->strings, bp_pool_get_info(pool)->name, &r->pool_name));
    if (bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed; register before sealing", r->pool_name);
    for (size_t i = 0; i < r->party_count; i++)
        BP_TRY(bp_nccl_check_pool(r->parties[i].comm, pool));
    BP_TRY(take_slabs(r, pool));
    return note_ranges(r);
}

static void registration_free(bp_registration *r)
{
    registration_drop_ranges(r);
    for (size_t i = 0; i < r->party_count; i++)
        bp_comm_release(r->parties[i].comm);
    free(r->warnings);
    free(r->shown);
    bp_strings_finish(&r->strings);
    free((void *)r->groups);
    free(r->windows);
    free(r->entries);
    free(r->parties);
    free(r);
}

/* ---- windows -------------------------------------------------------------------------------------------------------- */

/* Kinds that are refused with the same text share it: "symmetric window, window: ...". */
static void note_refusal(bp_registered *window, bp_register_kind kind, const char *words)
{
    size_t at = strlen(window->because), shared = strlen(words) + 2;
    const char *between = at > 0 ? "; " : "";
    if (at > shared && strcmp(window->because + at - shared + 2, words) == 0) {
        at -= shared;
        between = ", ";
    }
    snprintf(window->because + at, sizeof window->because - at, "%s%s: %s", between, bp_register_kind_name(kind),
             words);
}

/* Undoes a registration. An error cannot be returned any more, so the window's report keeps it. */
static void windows_give_back(bp_comm *comm, bp_register_kind kind, void *handle, bp_registered *window)
{
    char before[BP_DETAIL_BYTES];
    if (handle == NULL || !bp_comm_is_alive(comm))
        return;
    snprintf(before, sizeof before, "%s", bp_error_detail());
    if (bp_comm_deregister(comm, kind, handle) != BP_OK)
        note_refusal(window, kind, bp_error_detail());
    bp_error_record(BP_OK, before);
}

/* After a failure here this call agrees nothing more with the other ranks. */
static void windows_agree(bp_party *party, bp_verdict *verdict)
{
    bp_status status = bp_verdict_agree(party->comm, verdict);
    if (status == BP_OK)
        return;
    party->lost = true;
    bp_verdict_take(verdict, status);
}

/* Tries one kind. A provider may register collectively, so no rank registers unless all can. False: try a lesser
 * kind. */
static bool settle_kind(bp_registration *r, bp_registered *window, bp_register_kind kind, bp_verdict *verdict)
{
    bp_party *party = &r->parties[r->entries[window->shown->entry].party];
    bp_comm *comm = party->comm;
    bp_verdict mine = *verdict;
    if (mine.status == BP_OK) { /* else this rank reports its failure to the others */
        const char *version = comm->traits.version_name;
        bool able =
            comm->ops->register_memory != NULL && kind <= comm->traits.best && (comm->traits.lacks & 1u << kind) == 0;
        bp_status status = able ? bp_nccl_enter(comm) : BP_OK;
        bp_verdict_take(&mine, status);
        if (!able)
            snprintf(mine.words, sizeof mine.words, "communicator %s%s%s%s cannot register one", comm->name,
                     version[0] != '\0' ? " (" : "", version, version[0] != '\0' ? ")" : "");
        mine.granted = able && status == BP_OK;
    }
    windows_agree(party, &mine);

    void *handle = NULL;
    bool together = mine.status == BP_OK && mine.granted;
    if (together) {
        const char *because = NULL;
        bp_status status =
            bp_comm_register(comm, window->shown->address, window->shown->bytes, kind, &handle, &because);
        if (status != BP_OK)
            handle = NULL;
        bp_verdict_take(&mine, status);
        if (status == BP_OK && handle == NULL)
            snprintf(mine.words, sizeof mine.words, "%s",
                     because != NULL && because[0] != '\0' ? because : "it gave no reason");
        mine.granted = handle != NULL;
    }
    bp_nccl_leave(comm);
    if (together)
        windows_agree(party, &mine);
    if (mine.status == BP_OK && mine.granted) {
        window->shown->granted = kind;
        window->shown->handle = handle;
        return true;
    }
    windows_give_back(comm, kind, handle, window);
    if (mine.status != BP_OK) {
        *verdict = mine;
        return true;
    }
    note_refusal(window, kind, mine.words);
    return false;
}

/* In reverse order; skips communicators that were ended. */
static void windows_deregister(bp_registration *r, uint32_t slab, const char *because)
{
    for (size_t i = r->window_count; i-- > 0;) {
        bp_registered *window = &r->windows[i];
        if (window->shown->slab != slab)
            continue;
        snprintf(window->because, sizeof window->because, "%s", because);
        windows_give_back(bp_comm_of(r, window), window->shown->granted, window->shown->handle, window);
        window->shown->handle = NULL;
        window->shown->granted = BP_REGISTER_NONE;
    }
}

/* Collective, for the windows of a slab, even if this rank has none in it: all ranks register all, or none.
 * `so_far`: an earlier failure of this rank, which is reported to the others. */
static bp_status windows_register(bp_registration *r, uint32_t slab, bp_status so_far)
{
    bp_verdict verdict;
    bp_verdict_take(&verdict, so_far);
    for (size_t i = 0; i < r->window_count; i++) {
        bp_registered *window = &r->windows[i];
        if (window->shown->slab != slab)
            continue;
        const bp_registered_entry *entry = &r->entries[window->shown->entry];
        const bp_party *party = &r->parties[entry->party];
        window->shown->granted = BP_REGISTER_NONE;
        window->shown->handle = NULL;
        window->because[0] = '\0';
        if (bp_comm_was_ended(party->comm))
            snprintf(window->because, sizeof window->because, "communicator %s was aborted", party->comm->name);
        if (party->lost || !bp_comm_is_alive(party->comm))
            continue;
        int min = entry->exact ? (int)window->shown->asked : BP_REGISTER_BUFFER;
        for (int kind = (int)window->shown->asked; kind >= min && kind > BP_REGISTER_NONE; kind--)
            if (settle_kind(r, window, (bp_register_kind)kind, &verdict))
                break;
    }
    bp_parties_agree(r, &verdict);
    if (verdict.status != BP_OK)
        windows_deregister(r, slab, "registration failed");
    return bp_verdict_status(&verdict);
}

/* ---- callbacks of the pool ------------------------------------------------------------------------------------------ */

static bp_status registration_attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    bp_registration *r = user;
    (void)address; /* known already: the address of a slab is constant */
    (void)bytes;
    r->reached = true;
    for (size_t i = 0; i < r->party_count; i++) /* a retry agrees anew */
        r->parties[i].lost = false;
    return windows_register(r, slab, BP_OK);
}

static void registration_detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    windows_deregister(user, slab, "the slab has no memory now");
}

/* Other pools may get the same addresses from now on. */
static void registration_gone(void *user)
{
    bp_registration *r = user;
    r->pool = NULL;
    r->attached = false;
    if (r->orphaned)
        registration_free(r);
    else
        registration_drop_ranges(r);
}

/* Agrees with all ranks before slabs are unmapped: all unmap, or none. */
static bp_status registration_agree(void *user, bp_status so_far)
{
    bp_registration *r = user;
    bp_verdict verdict;
    bp_verdict_take(&verdict, so_far);
    /* an exchange on the device could become part of the capture, so none is made */
    const bool captured = atomic_load(&bp_pool_get_info(r->pool)->device->captured_pools) > 0;
    for (size_t i = 0; i < r->party_count; i++)
        r->parties[i].lost = captured && bp_nccl_exchanges_on_device(r->parties[i].comm);
    for (int round = 0; round < 2;
         round++) /* the second round carries a failure from one communicator to the ranks of the others */
        bp_parties_agree(r, &verdict);
    return bp_verdict_status(&verdict);
}

static int is_captured(void *user, uint32_t slab)
{
    const bp_registration *r = user;
    for (size_t i = 0; i < r->window_count; i++)
        if (r->shown[i].slab == slab && r->shown[i].granted != BP_REGISTER_NONE)
            return 1;
    return 0;
}

static const bp_slab_callbacks callbacks = {.attach = registration_attach,
                                            .detach = registration_detach,
                                            .gone = registration_gone,
                                            .agree = registration_agree,
                                            .is_captured = is_captured};

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

typedef struct collector {
    bp_registration *r;
    uint32_t entry;
    bp_status status;
} collector;

static void add_warning(void *user, const char *sentence)
{
    collector *c = user;
    bp_registration *r = c->r;
    if (c->status == BP_OK)
        c->status = bp_grow_array((void **)&r->warnings, &r->warning_capacity, r->warning_count, sizeof *r->warnings);
    if (c->status == BP_OK)
        c->status = bp_strings_add(&r->strings, sentence, &r->warnings[r->warning_count].text);
    if (c->status == BP_OK)
        r->warnings[r->warning_count++].entry = c->entry;
}

/* Collects the providers' warnings, and those that need no provider. Errors: BP_ERR_NO_HOST_MEMORY. */
static bp_status collect_warnings(bp_registration *r)
{
    for (size_t i = 0; i < r->entry_count; i++) {
        collector c = {.r = r, .entry = (uint32_t)i, .status = BP_OK};
        const bp_registered_entry *entry = &r->entries[i];
        const bp_party *party = &r->parties[entry->party];
        bp_register_kind best = BP_REGISTER_NONE;
        for (size_t w = 0; w < r->window_count; w++)
            if (r->shown[w].entry == i && r->shown[w].granted > best)
                best = r->shown[w].granted;
        if (best == BP_REGISTER_NONE)
            continue;
        if (party->comm->ops->warnings != NULL)
            party->comm->ops->warnings(party->comm->self, best, entry->traffic, add_warning, &c);
        if (party->neighbours.in_process != UINT32_MAX) {
            char sentence[256];
            snprintf(sentence, sizeof sentence,
                     "ranks %u and %u of communicator %s are in one process: NCCL does not share memory between them "
                     "by handle",
                     party->comm->traits.rank, party->neighbours.in_process, party->comm->name);
            add_warning(&c, sentence);
        }
        if (party->neighbours.several_hosts && (entry->traffic & BP_TRAFFIC_GATHER) != 0)
            add_warning(&c,
                        "the ranks are on several hosts: an all-gather needs its send side registered too, the shards");
        BP_TRY(c.status);
    }
    return BP_OK;
}

/* ---- creation ------------------------------------------------------------------------------------------------------- */

/* A pool that is being captured cannot detach: then the registration ends with the pool. */
static void registration_let_go(bp_registration *r)
{
    if (r->attached && bp_pool_detach(r->pool, &callbacks, r) != BP_OK)
        r->orphaned = true;
    else
        registration_free(r);
}

static bp_status registration_create(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                     bp_registration **registration)
{
    if (pool == NULL || entries == NULL || count == 0 || registration == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_registration_create: pool, entries and registration must not be NULL");
    for (size_t i = 0; i < count; i++) {
        bp_registration_entry own = registration_entry_defaults;
        const bp_registration_entry *entry = caller_entry(entries, i);
        BP_TRY(bp_struct_read("bp_registration_create", entry, false, &own, sizeof own));
        if (entry->size != entries->size)
            return bp_fail(
                BP_ERR_INVALID_ARGUMENT,
                "bp_registration_create: entry %zu has size %zu, entry 0 has %zu; all entries must have the same size",
                i, entry->size, entries->size);
        if (own.comm == NULL)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_create: the communicator of entry %zu is NULL", i);
        if ((unsigned)own.kind > BP_REGISTER_SYMMETRIC)
            return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_create: entry %zu has unknown kind %d", i,
                           (int)own.kind);
    }

    void *memory = NULL;
    bp_status status = bp_pool_is_capturing(pool)
                           ? bp_fail(BP_ERR_CAPTURE, "pool %s is being captured; register before the capture",
                                     bp_pool_get_info(pool)->name)
                           : bp_new_array(1, sizeof(bp_registration), &memory);
    if (status != BP_OK)
        return bp_registration_decline(entries, count, status);
    bp_registration *r = memory;
    r->pool = pool;
    r->process = bp_pool_get_info(pool)->device->process;
    status = registration_prepare(r, pool, entries, count);
    status = r->party_count > 0 ? bp_registration_compare(r, status) : bp_registration_decline(entries, count, status);
    if (status == BP_OK && r->slab_count > 0) {
        status = bp_pool_attach(pool, &callbacks, r);
        if (status != BP_OK && !r->reached) /* the pool refused before the first slab, where the other ranks wait */
            status = windows_register(r, 0, status);
        r->attached = status == BP_OK;
    }
    if (status == BP_OK) { /* agrees on the last steps that can fail on one rank only */
        bp_verdict verdict;
        bp_verdict_take(&verdict, collect_warnings(r));
        bp_parties_agree(r, &verdict);
        status = bp_verdict_status(&verdict);
    }
    if (status != BP_OK) {
        registration_let_go(r);
        return status;
    }
    r->info = (bp_registration_info){.windows = r->shown,
                                     .window_count = r->window_count,
                                     .warnings = r->warnings,
                                     .warning_count = r->warning_count};
    *registration = r;
    return BP_OK;
}

bp_status bp_registration_create(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                 bp_registration **registration)
{
    if (pool != NULL)
        BP_TRY(bp_device_check(bp_pool_get_info(pool)->device, "bp_registration_create"));
    const bool annotated = pool != NULL && bp_pool_get_info(pool)->annotated;
    if (annotated)
        bp_nvtx_push("register", bp_pool_get_info(pool)->name);
    bp_status status = registration_create(pool, entries, count, registration);
    if (annotated)
        bp_nvtx_pop();
    return status;
}

void bp_registration_destroy(bp_registration **registration)
{
    if (registration == NULL || *registration == NULL)
        return;
    bp_registration *r = *registration;
    *registration = NULL;
    BP_KEEP_ERROR;
    if (bp_process_is_here(&r->process))
        registration_let_go(r);
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

const bp_registration_info *bp_registration_get_info(const bp_registration *registration)
{
    return registration != NULL ? &registration->info : NULL;
}

bp_status bp_registration_report(const bp_registration *registration, char *text, size_t capacity, size_t *needed)
{
    if (registration == NULL || (text == NULL && capacity > 0) || needed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_report: registration and length must not be NULL");
    const bp_registration *r = registration;
    char line[1024];
    bp_lines l;
    bp_lines_init(&l, text, capacity);
    for (size_t i = 0; i < r->window_count; i++) {
        const bp_registration_window *window = &r->shown[i];
        const bp_comm *comm = bp_comm_of(r, &r->windows[i]);
        const char *version = comm->traits.version_name;
        snprintf(
            line, sizeof line,
            "slab %u (%.64s), %llu bytes, with communicator %.64s (%.64s%s%u ranks): %s requested, %s granted%s%s\n",
            window->slab, r->groups[window->slab], (unsigned long long)window->bytes, comm->name, version,
            version[0] != '\0' ? ", " : "", comm->traits.ranks, bp_register_kind_name(window->asked),
            bp_register_kind_name(window->granted), window->because[0] != '\0' ? "; " : "", window->because);
        bp_lines_add(&l, line);
    }
    for (size_t i = 0; i < r->warning_count; i++) {
        const bp_registration_warning *warning = &r->warnings[i];
        snprintf(line, sizeof line, "warning, entry %u (communicator %.64s): %.800s\n", warning->entry,
                 r->parties[r->entries[warning->entry].party].comm->name, warning->text);
        bp_lines_add(&l, line);
    }
    *needed = l.needed;
    return BP_OK;
}
