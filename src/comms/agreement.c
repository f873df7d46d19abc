/* SPDX-License-Identifier: Apache-2.0 */
/* Collective agreement between the ranks of a communicator: the outcome of each step, and the registrations that
 * they are about to make. The records of all ranks lie in memory that the communicator allocated at creation, so
 * that no rank can run out of memory here and leave the others waiting. */
#include "comms/registration.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comms/nccl.h"
#include "core/text.h"

/* The registration that a rank is about to make with a communicator. It also detects ranks of other versions of this
 * library: it travels as BP_COMM_RECORD_BYTES, and the offsets of `verdict` and `library` never change. */
typedef struct bp_proposal {
    bp_verdict verdict; /* of this rank's preparations */
    char library[16];   /* version of the library; the layout of the fields below depends on it */
    char fingerprint[BP_FINGERPRINT_CHARS];
    char provider[32]; /* "NCCL 2.28.9" */
    uint64_t provider_version;
    uint64_t slabs, entries, windows; /* counts: slabs of the pool, its entries, windows of this communicator */
    uint64_t host, process;           /* identify the rank's host and process */
} bp_proposal;

/* The proposal for one slab with one entry. */
typedef struct bp_window_proposal {
    uint64_t slab, bytes;
    uint64_t kind, exact;
    char group[64];
} bp_window_proposal;

_Static_assert(sizeof(bp_proposal) <= BP_COMM_RECORD_BYTES, "a record holds a proposal");
_Static_assert(sizeof(bp_window_proposal) <= BP_COMM_RECORD_BYTES, "a record holds a window");

static const void *record_of(const bp_comm *comm, uint32_t rank, size_t bytes)
{
    return comm->records + rank * bytes;
}

/* ---- verdicts ------------------------------------------------------------------------------------------------------- */

void bp_verdict_take(bp_verdict *verdict, bp_status status)
{
    memset(verdict, 0, sizeof *verdict);
    verdict->status = (uint32_t)status;
    if (status != BP_OK)
        snprintf(verdict->words, sizeof verdict->words, "%s", bp_error_detail());
}

bp_status bp_verdict_status(const bp_verdict *verdict)
{
    return verdict->status == BP_OK ? BP_OK : bp_error_record((bp_status)verdict->status, verdict->words);
}

/* Makes a verdict that quotes the record of rank `first` and counts `more` others. One rank alone is not named. */
static void quote(const bp_comm *comm, const bp_verdict *said, uint32_t first, uint32_t more, bp_verdict *verdict)
{
    char others[32] = "";
    bp_verdict quoted = *said;
    if (more > 0)
        snprintf(others, sizeof others, " (and %u more)", more);
    if (!said->named && comm->traits.ranks > 1)
        snprintf(quoted.words, sizeof quoted.words, "rank %u%s of communicator %s: %.*s", first, others, comm->name,
                 (int)sizeof said->words - 1, said->words);
    quoted.named = 1;
    *verdict = quoted;
}

/* Decides from the verdicts that begin each record of `bytes` bytes. */
static void decide(const bp_comm *comm, size_t bytes, bp_verdict *verdict)
{
    uint32_t failed = 0, first_failed = 0, refused = 0, first_refused = 0;
    bool same_words = true;
    for (uint32_t rank = comm->traits.ranks; rank-- > 0;) {
        const bp_verdict *v = record_of(comm, rank, bytes);
        if (v->status != BP_OK)
            failed++, first_failed = rank;
        if (!v->granted)
            refused++, first_refused = rank;
    }
    if (failed > 0) {
        quote(comm, record_of(comm, first_failed, bytes), first_failed, failed - 1, verdict);
        return;
    }
    const bp_verdict *said = record_of(comm, first_refused, bytes);
    for (uint32_t rank = 0; rank < comm->traits.ranks; rank++) {
        const bp_verdict *v = record_of(comm, rank, bytes);
        same_words = same_words && !v->granted && strncmp(v->words, said->words, sizeof v->words) == 0;
    }
    if (refused == 0 || same_words)
        *verdict = *said;
    else
        quote(comm, said, first_refused, refused - 1, verdict);
}

/* Sanitizes received records: texts are terminated and printable, and a status is one that callers know. */
static void check_received(const bp_comm *comm, size_t bytes)
{
    for (uint32_t rank = 0; rank < comm->traits.ranks; rank++) {
        bp_verdict *v = (bp_verdict *)(comm->records + rank * bytes);
        v->words[sizeof v->words - 1] = '\0';
        bp_make_printable(v->words);
        if (bp_is_status(v->status))
            continue;
        char words[sizeof v->words];
        snprintf(words, sizeof words, "sent unknown status %u: %s", v->status, v->words);
        memcpy(v->words, words, sizeof words);
        v->status = BP_ERR_COMM;
    }
}

bp_status bp_verdict_agree(bp_comm *comm, bp_verdict *verdict)
{
    BP_TRY(bp_comm_agree(comm, "agreement on the outcome of a step", verdict, sizeof *verdict, comm->records));
    check_received(comm, sizeof *verdict);
    decide(comm, sizeof *verdict, verdict);
    return BP_OK;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

/* A field that must be the same on all ranks. */
typedef struct field {
    const char *what;
    size_t offset, bytes;
    bool text;
} field;

#define TEXT(type, name, what)                                                                                         \
    {                                                                                                                  \
        (what), offsetof(type, name), sizeof(((type *)0)->name), true                                                  \
    }
#define NUMBER(type, name, what)                                                                                       \
    {                                                                                                                  \
        (what), offsetof(type, name), sizeof(((type *)0)->name), false                                                 \
    }

static bool same(const bp_comm *comm, size_t bytes, const field *f, uint32_t a, uint32_t b)
{
    return memcmp((const char *)record_of(comm, a, bytes) + f->offset,
                  (const char *)record_of(comm, b, bytes) + f->offset, f->bytes) == 0;
}

/* The first rank with the value of the majority; else rank 0. */
static uint32_t find_majority(const bp_comm *comm, size_t bytes, const field *f)
{
    uint32_t candidate = 0, lead = 0, votes = 0;
    for (uint32_t rank = 0; rank < comm->traits.ranks; rank++) {
        if (lead == 0)
            candidate = rank;
        if (same(comm, bytes, f, candidate, rank))
            lead++;
        else
            lead--;
    }
    for (uint32_t rank = 0; rank < comm->traits.ranks; rank++)
        votes += same(comm, bytes, f, candidate, rank);
    for (uint32_t rank = 0; votes > comm->traits.ranks / 2; rank++)
        if (same(comm, bytes, f, candidate, rank))
            return rank;
    return 0;
}

static void print_value(const bp_comm *comm, size_t bytes, const field *f, uint32_t rank, char *text, size_t room)
{
    const char *at = (const char *)record_of(comm, rank, bytes) + f->offset;
    uint64_t number;
    if (f->text) {
        snprintf(text, room, "%.*s", (int)f->bytes, at);
        return;
    }
    memcpy(&number, at, sizeof number);
    snprintf(text, room, "%llu", (unsigned long long)number);
}

/* True if the field is equal on all ranks; else the verdict names the ranks that differ. `about` begins the
 * sentence. */
static bool agreement_compare(const bp_comm *comm, size_t bytes, const field *f, const char *about, bp_verdict *verdict)
{
    uint32_t max = find_majority(comm, bytes, f), first = UINT32_MAX, differing = 0;
    for (uint32_t rank = comm->traits.ranks; rank-- > 0;)
        if (!same(comm, bytes, f, max, rank))
            differing++, first = rank;
    if (differing == 0)
        return true;
    char here[80], there[80], others[32] = "";
    print_value(comm, bytes, f, first, here, sizeof here);
    print_value(comm, bytes, f, max, there, sizeof there);
    if (differing > 1)
        snprintf(others, sizeof others, " (and %u more)", differing - 1);
    memset(verdict, 0, sizeof *verdict);
    verdict->status = BP_ERR_MISMATCH;
    verdict->named = 1;
    snprintf(verdict->words, sizeof verdict->words, "%srank %u%s of communicator %s has %s %s, rank %u has %s", about,
             first, others, comm->name, f->what, here, max, there);
    return false;
}

/* ---- proposals ------------------------------------------------------------------------------------------------------ */

/* Collective. Every rank compares all proposals; proposal->verdict becomes the common one: a failure of a rank, or
 * BP_ERR_MISMATCH naming one that differs from the majority. Errors: as bp_verdict_agree. */
static bp_status proposal_agree(bp_comm *comm, bp_proposal *proposal, bp_neighbours *neighbours)
{
    static const field fields[] = {
        TEXT(bp_proposal, library, "bucketpool"),
        TEXT(bp_proposal, fingerprint, "the plan with fingerprint"),
        TEXT(bp_proposal, provider, "the communicator's library"),
        NUMBER(bp_proposal, provider_version, "the communicator's library in version"),
        NUMBER(bp_proposal, slabs, "slabs:"),
        NUMBER(bp_proposal, entries, "entries for it:"),
        NUMBER(bp_proposal, windows, "slabs to register with it:"),
    };
    uint8_t record[BP_COMM_RECORD_BYTES] = {0}; /* the same size in all versions of this library */
    memcpy(record, proposal, sizeof *proposal);
    BP_TRY(bp_comm_agree(comm, "agreement on the plan to register", record, sizeof record, comm->records));
    check_received(comm, sizeof record);
    *neighbours = (bp_neighbours){.in_process = UINT32_MAX};
    for (uint32_t rank = comm->traits.ranks; rank-- > 0;) {
        const bp_proposal *other = record_of(comm, rank, BP_COMM_RECORD_BYTES);
        neighbours->several_hosts = neighbours->several_hosts || other->host != proposal->host;
        if (rank != comm->traits.rank && other->host == proposal->host && other->process == proposal->process)
            neighbours->in_process = rank;
    }
    decide(comm, sizeof record, &proposal->verdict);
    if (proposal->verdict.status != BP_OK)
        return BP_OK;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!agreement_compare(comm, sizeof record, &fields[i], "", &proposal->verdict))
            break;
    return BP_OK;
}

/* proposal_agree for one slab with one entry. */
static bp_status window_proposal_agree(bp_comm *comm, const bp_window_proposal *proposal, bp_verdict *verdict)
{
    static const field fields[] = {
        NUMBER(bp_window_proposal, slab, "its number"), TEXT(bp_window_proposal, group, "its group"),
        NUMBER(bp_window_proposal, bytes, "its bytes"), NUMBER(bp_window_proposal, kind, "the kind asked for"),
        NUMBER(bp_window_proposal, exact, "exact"),
    };
    char about[64], what[64];
    snprintf(about, sizeof about, "slab %llu: ", (unsigned long long)proposal->slab);
    snprintf(what, sizeof what, "agreement on the window of slab %llu", (unsigned long long)proposal->slab);
    BP_TRY(bp_comm_agree(comm, what, proposal, sizeof *proposal, comm->records));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!agreement_compare(comm, sizeof *proposal, &fields[i], about, verdict))
            break;
    return BP_OK;
}

/* ---- registrations ------------------------------------------------------------------------------------------------- */

/* After a failed exchange this rank and the others are at different steps: this call agrees nothing more with them. */
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

/* FNV-1a. */
static uint64_t hash(const char *text)
{
    uint64_t so_far = UINT64_C(14695981039346656037);
    for (; *text != '\0'; text++)
        so_far = (so_far ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return so_far;
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

    /* Identifies this rank's host and process: equal numbers mean the same host, and the same process. */
    char host[256] = "", process[64];
    struct stat space = {0};
    (void)gethostname(host, sizeof host - 1);
    /* containers of one host may give the same process id to different processes */
    (void)stat("/proc/self/ns/pid", &space);
    snprintf(process, sizeof process, "%ld of %llu", (long)getpid(), (unsigned long long)space.st_ino);
    proposal.host = hash(host);
    proposal.process = hash(process);
    BP_TRY(proposal_agree(comm, &proposal, &party->neighbours));
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
        BP_TRY(window_proposal_agree(comm, &one, verdict));
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
            size_t first = 0; /* the first entry that uses the communicator */
            while (bp_registration_entry_at(entries, first).comm != comm)
                first++;
            if (first < i || !bp_comm_is_alive(comm) || (status == BP_ERR_CAPTURE && bp_nccl_exchanges_on_device(comm)))
                continue;
            if (round == 0) /* the status is an error already: the result of the exchange cannot change it */
                (void)proposal_agree(comm, &proposal, &neighbours);
            else
                (void)bp_verdict_agree(comm, &proposal.verdict);
        }
    return bp_verdict_status(&proposal.verdict);
}

/* A rank that has failed still exchanges with its remaining communicators, so that their ranks learn of the failure;
 * the second round tells the ranks of the earlier ones. */
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
