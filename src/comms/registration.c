/* Registrations: made, kept with the slabs of their pool, ended. */
#include "comms/registration.h"

#include <bucketpool/capture.h>

#include <stdio.h>
#include <string.h>

#include "comms/nccl.h"
#include "core/fail.h"
#include "core/structs.h"
#include "core/text.h"
#include "devices/device.h"
#include "memory/slab_callbacks.h"
#include "nvtx/nvtx.h"

/* ---- warnings ---------------------------------------------------------------------------------------------------- */

typedef struct collector {
    bp_registration *r;
    uint32_t entry;
    bp_status status;
} collector;

static void registration_warnings_add(void *user, const char *sentence)
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

static bp_register_kind best_granted(const bp_registration *r, size_t entry)
{
    bp_register_kind best = BP_REGISTER_NONE;
    for (size_t i = 0; i < r->window_count; i++)
        if (r->shown[i].entry == entry && r->shown[i].granted > best)
            best = r->shown[i].granted;
    return best;
}

static void add_of_ranks(collector *c, const bp_party *party)
{
    char sentence[256];
    if (party->neighbours.in_process != UINT32_MAX) {
        snprintf(sentence, sizeof sentence,
                 "ranks %u and %u of communicator %s live in one process: memory is not shared between them by handle",
                 party->comm->traits.rank, party->neighbours.in_process, party->comm->name);
        registration_warnings_add(c, sentence);
    }
    if (party->neighbours.several_hosts && (c->r->entries[c->entry].traffic & BP_TRAFFIC_GATHER) != 0)
        registration_warnings_add(
            c, "the ranks are on several hosts: an all-gather needs its send side registered too, the shards");
}

/* Asks the providers; what can be told from here is added. Errors: BP_ERR_NO_HOST_MEMORY. */
static bp_status registration_collect_warnings(bp_registration *r)
{
    for (size_t i = 0; i < r->entry_count; i++) {
        collector c = {.r = r, .entry = (uint32_t)i, .status = BP_OK};
        const bp_party *party = &r->parties[r->entries[i].party];
        bp_register_kind kind = best_granted(r, i);
        if (kind == BP_REGISTER_NONE)
            continue;
        if (party->comm->ops->warnings != NULL)
            party->comm->ops->warnings(party->comm->self, kind, r->entries[i].traffic, registration_warnings_add, &c);
        add_of_ranks(&c, party);
        BP_TRY(c.status);
    }
    return BP_OK;
}

/* ---- registrations ----------------------------------------------------------------------------------------------- */

const char *bp_register_kind_name(bp_register_kind kind)
{
    switch (kind) {
    case BP_REGISTER_NONE: return "none";
    case BP_REGISTER_BUFFER: return "buffer";
    case BP_REGISTER_WINDOW: return "window";
    case BP_REGISTER_SYMMETRIC: return "symmetric window";
    }
    return "invalid";
}

static const bp_registration_entry registration_entry_defaults = {.size = sizeof registration_entry_defaults,
                                                                  .kind = BP_REGISTER_SYMMETRIC};

bp_status bp_registration_entry_init(bp_registration_entry *entry, size_t size)
{
    return bp_struct_init("bp_registration_entry_init", entry, size, &registration_entry_defaults,
                          sizeof registration_entry_defaults);
}

/* ---- what the pool calls -------------------------------------------------------------------------------------------- */

/* Who tries again begins anew. */
static void registration_begin(bp_registration *r)
{
    for (size_t i = 0; i < r->party_count; i++)
        r->parties[i].lost = false;
}

static bp_status registration_attach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    bp_registration *r = user;
    (void)address; /* known: a slab stays where it is */
    (void)bytes;
    r->reached = true;
    registration_begin(r);
    return bp_windows_register(r, slab, BP_OK);
}

static void registration_detach(void *user, uint32_t slab, void *address, uint64_t bytes)
{
    (void)address;
    (void)bytes;
    bp_windows_deregister(user, slab, "the slab has no memory now");
}

/* Other pools may get the same addresses now. */
static void registration_gone(void *user)
{
    bp_registration *r = user;
    r->pool = NULL;
    r->attached = false;
    if (r->orphaned)
        bp_registration_free(r);
    else
        bp_registration_drop_ranges(r);
}

/* An exchange that could end up in a capture is not made. */
static void lose_captured(bp_registration *r)
{
    const bool captured = atomic_load(&bp_pool_get_info(r->pool)->device->captured_pools) > 0;
    for (size_t i = 0; i < r->party_count; i++)
        r->parties[i].lost = captured && bp_nccl_exchanges_on_device(r->parties[i].comm);
}

/* Slabs are about to lose their memory on all ranks, or none. */
static bp_status registration_agree(void *user, bp_status so_far)
{
    bp_verdict verdict;
    bp_verdict_take(&verdict, so_far);
    lose_captured(user);
    for (int round = 0; round < 2; round++) /* what one communicator told this rank, those of the others hear */
        bp_parties_agree(user, &verdict);
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

/* ---- creation ------------------------------------------------------------------------------------------------------- */

static const bp_registration_entry *caller_entry(const bp_registration_entry *entries, size_t index)
{
    return (const void *)((const char *)entries + index * entries->size);
}

bp_registration_entry bp_registration_entry_at(const bp_registration_entry *entries, size_t index)
{
    bp_registration_entry entry = registration_entry_defaults; /* which was checked: it is read */
    (void)bp_struct_read("bp_registration_create", caller_entry(entries, index), false, &entry, sizeof entry);
    return entry;
}

static bp_status check_entry(const bp_registration_entry *entry, size_t index)
{
    if (entry->comm == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_create: entry %zu has no communicator", index);
    if ((unsigned)entry->kind > BP_REGISTER_SYMMETRIC)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_create: entry %zu asks for kind %d, which is unknown",
                       index, (int)entry->kind);
    return BP_OK;
}

static bp_status registration_check(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                    bp_registration *const *registration)
{
    if (pool == NULL || entries == NULL || count == 0 || registration == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_create: needs a pool, entries and an output");
    for (size_t i = 0; i < count; i++) {
        bp_registration_entry own = registration_entry_defaults;
        const bp_registration_entry *entry = caller_entry(entries, i);
        BP_TRY(bp_struct_read("bp_registration_create", entry, false, &own, sizeof own));
        if (entry->size != entries->size)
            return bp_fail(BP_ERR_INVALID_ARGUMENT,
                           "bp_registration_create: entry %zu has %zu bytes, entry 0 has %zu: entries are of one size",
                           i, entry->size, entries->size);
        BP_TRY(check_entry(&own, i));
    }
    return BP_OK;
}

static bp_status check_capture(const bp_pool *pool)
{
    return bp_pool_is_capturing(pool) ? bp_fail(BP_ERR_CAPTURE, "pool %s is being captured: register before that",
                                                bp_pool_get_info(pool)->name)
                                      : BP_OK;
}

static bp_status attach_to_pool(bp_registration *r)
{
    if (r->slab_count == 0)
        return BP_OK;
    bp_status status = bp_pool_attach(r->pool, &callbacks, r);
    if (status != BP_OK && !r->reached) /* the pool itself refused: the others wait at the first slab */
        status = bp_windows_register(r, 0, status);
    r->attached = status == BP_OK;
    return status;
}

/* A pool that is being captured does not let go: then the registration ends with the pool. */
static void registration_let_go(bp_registration *r)
{
    if (r->attached && bp_pool_detach(r->pool, &callbacks, r) != BP_OK)
        r->orphaned = true;
    else
        bp_registration_free(r);
}

/* What is left to fail on one rank alone, told to all. */
static bp_status registration_finish(bp_registration *r)
{
    bp_verdict verdict;
    bp_verdict_take(&verdict, registration_collect_warnings(r));
    bp_parties_agree(r, &verdict);
    return bp_verdict_status(&verdict);
}

static bp_status registration_create(bp_pool *pool, const bp_registration_entry *entries, size_t count,
                                     bp_registration **registration)
{
    BP_TRY(registration_check(pool, entries, count, registration));
    void *memory = NULL;
    bp_status status = check_capture(pool);
    if (status == BP_OK)
        status = bp_new_array(1, sizeof(bp_registration), &memory);
    if (status != BP_OK)
        return bp_registration_decline(entries, count, status);
    bp_registration *r = memory;
    r->pool = pool;
    r->process = bp_pool_get_info(pool)->device->process;
    status = bp_registration_prepare(r, pool, entries, count);
    status = r->party_count > 0 ? bp_registration_compare(r, status) : bp_registration_decline(entries, count, status);
    if (status == BP_OK)
        status = attach_to_pool(r);
    if (status == BP_OK)
        status = registration_finish(r);
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
    if (bp_process_is_here(&r->process))
        registration_let_go(r);
}

/* ---- report ------------------------------------------------------------------------------------------------------ */

/* What was granted, as data and as text. */

const bp_registration_info *bp_registration_get_info(const bp_registration *registration)
{
    return registration != NULL ? &registration->info : NULL;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

#define LINE_BYTES 1024

static void add_window(bp_lines *l, const bp_registration *r, const bp_registered *window)
{
    char line[LINE_BYTES];
    const bp_comm *comm = bp_comm_of(r, window);
    const char *version = comm->traits.version_name;
    bool explained = window->because[0] != '\0';
    snprintf(line, sizeof line,
             "slab %u (%.64s), %llu bytes, with communicator %.64s (%.64s%s%u ranks): %s asked, %s granted%s%s\n",
             window->shown->slab, r->groups[window->shown->slab], (unsigned long long)window->shown->bytes, comm->name,
             version, version[0] != '\0' ? ", " : "", comm->traits.ranks, bp_register_kind_name(window->shown->asked),
             bp_register_kind_name(window->shown->granted), explained ? "; " : "", window->because);
    bp_lines_add(l, line);
}

static void add_warning(bp_lines *l, const bp_registration *r, const bp_registration_warning *warning)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "warning, entry %u (communicator %.64s): %.800s\n", warning->entry,
             r->parties[r->entries[warning->entry].party].comm->name, warning->text);
    bp_lines_add(l, line);
}

bp_status bp_registration_report(const bp_registration *registration, char *text, size_t capacity, size_t *needed)
{
    if (registration == NULL || (text == NULL && capacity > 0) || needed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_registration_report: needs a registration and a place for the length");
    bp_lines l;
    bp_lines_init(&l, text, capacity);
    for (size_t i = 0; i < registration->window_count; i++)
        add_window(&l, registration, &registration->windows[i]);
    for (size_t i = 0; i < registration->warning_count; i++)
        add_warning(&l, registration, &registration->warnings[i]);
    *needed = l.needed;
    return BP_OK;
}
