/* A registration before anything is collective: its communicators, the slabs of its groups, what is registered already. */
#include "comms/registration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comms/nccl.h"
#include "core/fail.h"

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
    for (size_t i = 0; i < count; i++) { /* first of all: they are needed to tell the others of any failure */
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

/* Persistent and overflow memory has to be asked for by name. */
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

/* Twice the same memory with one communicator is never what is meant: NCCL forbids windows that overlap. */
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

void bp_registration_drop_ranges(bp_registration *r)
{
    for (size_t i = 0; i < r->window_count; i++) {
        bp_comm_range **at = &bp_comm_of(r, &r->windows[i])->ranges;
        while (*at != NULL && *at != &r->windows[i].range)
            at = &(*at)->next;
        if (*at != NULL)
            *at = (*at)->next;
    }
}

bp_status bp_registration_prepare(bp_registration *r, bp_pool *pool, const bp_registration_entry *entries, size_t count)
{
    BP_TRY(take_entries(r, entries, count));
    BP_TRY(bp_strings_add(&r->strings, bp_pool_get_info(pool)->name, &r->pool_name));
    if (bp_pool_is_sealed(pool))
        return bp_fail(BP_ERR_SCHEDULE, "pool %s is sealed: register before that", r->pool_name);
    for (size_t i = 0; i < r->party_count; i++)
        BP_TRY(bp_nccl_check_pool(r->parties[i].comm, pool));
    BP_TRY(take_slabs(r, pool));
    return note_ranges(r);
}

void bp_registration_free(bp_registration *r)
{
    bp_registration_drop_ranges(r);
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

/* ---- agreement of the ranks -------------------------------------------------------------------------------------- */

/* An exchange that fails leaves the others at another step than this rank: with them nothing more is agreed. */
static void lose_party(bp_party *party, bp_status status, bp_verdict *verdict)
{
    party->lost = true;
    if (verdict->status == BP_OK)
        bp_verdict_take(verdict, status);
}

void bp_parties_agree(bp_registration *r, bp_verdict *verdict)
{
    for (size_t i = 0; i < r->party_count; i++) {
        bp_party *party = &r->parties[i];
        if (party->lost || bp_comm_was_ended(party->comm))
            continue;
        bp_verdict agreed = *verdict;
        bp_status status = bp_verdict_agree(party->comm, &agreed);
        if (status != BP_OK)
            lose_party(party, status, verdict);
        else
            *verdict = agreed;
    }
}

static bp_status compare(const bp_registration *r, bp_party *party, bp_verdict *verdict)
{
    bp_comm *comm = party->comm;
    const char *fingerprint = bp_pool_get_info(r->pool)->fingerprint;
    bp_proposal proposal;
    memset(&proposal, 0, sizeof proposal);
    proposal.verdict = *verdict;
    snprintf(proposal.library, sizeof proposal.library, "%s", bp_version());
    memcpy(proposal.fingerprint, fingerprint, strnlen(fingerprint, sizeof proposal.fingerprint - 1));
    snprintf(proposal.provider, sizeof proposal.provider, "%s",
             comm->traits.version_name[0] != '\0' ? comm->traits.version_name : comm->ops->name);
    proposal.provider_version = comm->traits.version;
    proposal.slabs = r->slab_count;
    for (size_t i = 0; i < r->entry_count; i++)
        proposal.entries += r->parties[r->entries[i].party].comm == comm;
    for (size_t i = 0; i < r->window_count; i++)
        proposal.windows += bp_comm_of(r, &r->windows[i]) == comm;
    bp_proposal_place(&proposal);
    BP_TRY(bp_proposal_agree(comm, &proposal, &party->neighbours));
    *verdict = proposal.verdict;

    for (size_t i = 0; i < r->window_count && verdict->status == BP_OK; i++) {
        const bp_registered *window = &r->windows[i];
        if (bp_comm_of(r, window) != comm)
            continue;
        bp_window_proposal one;
        memset(&one, 0, sizeof one);
        one.slab = window->shown->slab;
        one.bytes = window->shown->bytes;
        one.kind = (uint64_t)window->shown->asked;
        one.exact = r->entries[window->shown->entry].exact;
        snprintf(one.group, sizeof one.group, "%s", r->groups[window->shown->slab]);
        BP_TRY(bp_window_proposal_agree(comm, &one, verdict));
    }
    return BP_OK;
}

bp_status bp_registration_decline(const bp_registration_entry *entries, size_t count, bp_status status)
{
    bp_proposal proposal;
    bp_neighbours neighbours;
    memset(&proposal, 0, sizeof proposal);
    bp_verdict_take(&proposal.verdict, status);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < count; i++) {
            bp_comm *comm = bp_registration_entry_at(entries, i).comm;
            size_t first = 0; /* entry that names it */
            while (bp_registration_entry_at(entries, first).comm != comm)
                first++;
            if (first < i || !bp_comm_is_alive(comm) || (status == BP_ERR_CAPTURE && bp_nccl_exchanges_on_device(comm)))
                continue;
            if (round == 0) /* what an exchange makes of it changes nothing: it is an error already */
                (void)bp_proposal_agree(comm, &proposal, &neighbours);
            else
                (void)bp_verdict_agree(comm, &proposal.verdict);
        }
    return bp_verdict_status(&proposal.verdict);
}

/* A rank that has failed goes on to the other communicators, so that their ranks hear of it; the second round tells those that came
 * before. */
bp_status bp_registration_compare(bp_registration *r, bp_status prepared)
{
    bp_verdict verdict;
    bp_verdict_take(&verdict, prepared);
    for (size_t i = 0; i < r->party_count; i++) {
        bp_status status = compare(r, &r->parties[i], &verdict);
        if (status != BP_OK)
            lose_party(&r->parties[i], status, &verdict);
    }
    bp_parties_agree(r, &verdict);
    return bp_verdict_status(&verdict);
}
