/* Before anything is registered: whether all ranks of every communicator are about to do the same. */
#include "comms/registration.h"

#include <stdio.h>
#include <string.h>

#include "comms/nccl.h"
#include "core/fail.h"

/* An exchange that fails leaves the others at another step than this rank: with them nothing more is agreed. */
static void registration_compare_lose(bp_party *party, bp_status status, bp_verdict *verdict)
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
            registration_compare_lose(party, status, verdict);
        else
            *verdict = agreed;
    }
}

static void registration_compare_fill(const bp_registration *r, const bp_party *party, bp_proposal *proposal)
{
    const bp_comm *comm = party->comm;
    const char *fingerprint = bp_pool_get_info(r->pool)->fingerprint;
    snprintf(proposal->library, sizeof proposal->library, "%s", bp_version());
    memcpy(proposal->fingerprint, fingerprint, strnlen(fingerprint, sizeof proposal->fingerprint - 1));
    snprintf(proposal->provider, sizeof proposal->provider, "%s",
             comm->traits.version_name[0] != '\0' ? comm->traits.version_name : comm->ops->name);
    proposal->provider_version = comm->traits.version;
    proposal->slabs = r->slab_count;
    for (size_t i = 0; i < r->entry_count; i++)
        proposal->entries += r->parties[r->entries[i].party].comm == comm;
    for (size_t i = 0; i < r->window_count; i++)
        proposal->windows += bp_comm_of(r, &r->windows[i]) == comm;
    bp_proposal_place(proposal);
}

static bp_status compare_windows(const bp_registration *r, const bp_party *party, bp_verdict *verdict)
{
    for (size_t i = 0; i < r->window_count && verdict->status == BP_OK; i++) {
        const bp_registered *window = &r->windows[i];
        if (bp_comm_of(r, window) != party->comm)
            continue;
        bp_window_proposal proposal;
        memset(&proposal, 0, sizeof proposal);
        proposal.slab = window->shown->slab;
        proposal.bytes = window->shown->bytes;
        proposal.kind = (uint64_t)window->shown->asked;
        proposal.exact = r->entries[window->shown->entry].exact;
        snprintf(proposal.group, sizeof proposal.group, "%s", r->groups[window->shown->slab]);
        BP_TRY(bp_window_proposal_agree(party->comm, &proposal, verdict));
    }
    return BP_OK;
}

static bp_status registration_compare_both(const bp_registration *r, bp_party *party, bp_verdict *verdict)
{
    bp_proposal proposal;
    memset(&proposal, 0, sizeof proposal);
    registration_compare_fill(r, party, &proposal);
    proposal.verdict = *verdict;
    BP_TRY(bp_proposal_agree(party->comm, &proposal, &party->neighbours));
    *verdict = proposal.verdict;
    return compare_windows(r, party, verdict);
}

/* The communicator of entry `i`, where it is the first that names it. */
static bp_comm *first_named(const bp_registration_entry *entries, size_t i)
{
    bp_comm *comm = bp_registration_entry_at(entries, i).comm;
    for (size_t k = 0; k < i; k++)
        if (bp_registration_entry_at(entries, k).comm == comm)
            return NULL;
    return comm;
}

bp_status bp_registration_decline(const bp_registration_entry *entries, size_t count, bp_status status)
{
    bp_proposal proposal;
    bp_neighbours neighbours;
    memset(&proposal, 0, sizeof proposal);
    bp_verdict_take(&proposal.verdict, status);
    for (int round = 0; round < 2; round++)
        for (size_t i = 0; i < count; i++) {
            bp_comm *comm = first_named(entries, i);
            if (comm == NULL || !bp_comm_is_alive(comm) ||
                (status == BP_ERR_CAPTURE && bp_nccl_exchanges_on_device(comm)))
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
        bp_status status = registration_compare_both(r, &r->parties[i], &verdict);
        if (status != BP_OK)
            registration_compare_lose(&r->parties[i], status, &verdict);
    }
    bp_parties_agree(r, &verdict);
    return bp_verdict_status(&verdict);
}
