/* The windows of a slab: registered kind by kind as far as all ranks get them, and deregistered. */
#include "comms/registration.h"

#include <stdio.h>
#include <string.h>

#include "comms/nccl.h"
#include "core/fail.h"

static void windows_refuse(bp_verdict *verdict, const char *because)
{
    bp_verdict_take(verdict, BP_OK);
    snprintf(verdict->words, sizeof verdict->words, "%s", because);
}

/* Whether this rank can ask at all. */
static void windows_prepare(bp_comm *comm, bp_register_kind kind, bp_verdict *verdict)
{
    char words[sizeof verdict->words];
    const char *version = comm->traits.version_name;
    bool able =
        comm->ops->register_memory != NULL && kind <= comm->traits.best && (comm->traits.lacks & 1u << kind) == 0;
    if (verdict->status != BP_OK)
        return;
    snprintf(words, sizeof words, "communicator %s%s%s%s cannot register one", comm->name,
             version[0] != '\0' ? " (" : "", version, version[0] != '\0' ? ")" : "");
    bp_status status = able ? bp_nccl_enter(comm) : BP_OK;
    if (status != BP_OK)
        bp_verdict_take(verdict, status);
    else
        windows_refuse(verdict, able ? "" : words);
    verdict->granted = able && status == BP_OK;
}

/* This rank's own try. */
static void windows_ask(bp_comm *comm, const bp_registered *window, bp_register_kind kind, void **handle,
                        bp_verdict *verdict)
{
    const char *because = NULL;
    bp_status status = bp_comm_register(comm, window->shown->address, window->shown->bytes, kind, handle, &because);
    bool granted = status == BP_OK && *handle != NULL;
    if (status != BP_OK)
        *handle = NULL;
    if (status != BP_OK || granted)
        bp_verdict_take(verdict, status);
    else
        windows_refuse(verdict, because != NULL && because[0] != '\0' ? because : "it gave no reason");
    verdict->granted = granted;
}

/* Kinds that are refused with the same words share them: "symmetric window, window: ...". */
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

/* What fails now cannot be mended, and there is nobody to return it to: the window keeps the words. */
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

/* What fails here fails for this call: with the others nothing more can be agreed. */
static void windows_agree(bp_party *party, bp_verdict *verdict)
{
    bp_status status = bp_verdict_agree(party->comm, verdict);
    if (status == BP_OK)
        return;
    party->lost = true;
    bp_verdict_take(verdict, status);
}

/* One kind. Providers may register together with the other ranks, and wait for them: so nobody asks unless all do. Not over: a lesser
 * kind is to be tried. */
static bool settle_kind(bp_registration *r, bp_registered *window, bp_register_kind kind, bp_verdict *verdict)
{
    bp_party *party = &r->parties[r->entries[window->shown->entry].party];
    bp_verdict mine = *verdict;
    void *handle = NULL;
    windows_prepare(party->comm, kind, &mine);
    windows_agree(party, &mine);
    bool together = mine.status == BP_OK && mine.granted;
    if (together)
        windows_ask(party->comm, window, kind, &handle, &mine);
    bp_nccl_leave(party->comm);
    if (together)
        windows_agree(party, &mine);
    if (mine.status == BP_OK && mine.granted) {
        window->shown->granted = kind;
        window->shown->handle = handle;
        return true;
    }
    windows_give_back(party->comm, kind, handle, window);
    if (mine.status != BP_OK) {
        *verdict = mine;
        return true;
    }
    note_refusal(window, kind, mine.words);
    return false;
}

static void register_window(bp_registration *r, bp_registered *window, bp_verdict *verdict)
{
    const bp_registered_entry *entry = &r->entries[window->shown->entry];
    const bp_party *party = &r->parties[entry->party];
    window->shown->granted = BP_REGISTER_NONE;
    window->shown->handle = NULL;
    window->because[0] = '\0';
    if (bp_comm_was_ended(party->comm))
        snprintf(window->because, sizeof window->because, "communicator %s was aborted", party->comm->name);
    if (party->lost || !bp_comm_is_alive(party->comm))
        return;
    int least = entry->exact ? (int)window->shown->asked : BP_REGISTER_BUFFER;
    for (int kind = (int)window->shown->asked; kind >= least && kind > BP_REGISTER_NONE; kind--)
        if (settle_kind(r, window, (bp_register_kind)kind, verdict))
            return;
}

void bp_windows_deregister(bp_registration *r, uint32_t slab, const char *because)
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

bp_status bp_windows_register(bp_registration *r, uint32_t slab, bp_status so_far)
{
    bp_verdict verdict;
    bp_verdict_take(&verdict, so_far);
    for (size_t i = 0; i < r->window_count; i++)
        if (r->shown[i].slab == slab)
            register_window(r, &r->windows[i], &verdict);
    bp_parties_agree(r, &verdict);
    if (verdict.status != BP_OK)
        bp_windows_deregister(r, slab, "registration failed");
    return bp_verdict_status(&verdict);
}
