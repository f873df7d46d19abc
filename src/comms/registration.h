/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations inside the library, and agreement between ranks: a step that can fail on one rank ends with the same
 * verdict on all. */
#ifndef BP_COMMS_REGISTRATION_H
#define BP_COMMS_REGISTRATION_H

#include <bucketpool/plan.h>

#include "comms/comm.h"
#include "core/memory.h"

/* ---- agreement ----------------------------------------------------------------------------------------------------- */

/* The outcome of a step on one rank; after bp_verdict_agree, the common outcome. Exchanged between ranks. */
typedef struct bp_verdict {
    uint32_t status;  /* a bp_status */
    uint32_t granted; /* the step's request was granted */
    uint32_t named;   /* the text names the rank already */
    uint32_t unused;
    char words[336]; /* beginning of the error's detail, or the reason for a refusal */
} bp_verdict;

/* From a status and, for an error, this thread's detail. */
void bp_verdict_take(bp_verdict *verdict, bp_status status);
/* The status; records the text as this thread's detail. */
bp_status bp_verdict_status(const bp_verdict *verdict);

/* Collective. Fails with the text of the first rank that failed; else granted if all ranks were, with the text of
 * the first that was not. Errors: those of the exchange; then nothing was agreed, and the communicator cannot be
 * used any more. */
bp_status bp_verdict_agree(bp_comm *comm, bp_verdict *verdict);

/* Facts about the other ranks. */
typedef struct bp_neighbours {
    uint32_t in_process; /* another rank in this process; UINT32_MAX: none */
    bool several_hosts;
} bp_neighbours;

/* ---- registrations ------------------------------------------------------------------------------------------------- */

#define BP_BECAUSE_BYTES 480

/* A slab registered with the communicator of an entry. */
typedef struct bp_registered {
    bp_comm_range range; /* in the communicator's list while the registration exists */
    bp_registration_window *shown;
    char because[BP_BECAUSE_BYTES];
} bp_registered;

typedef struct bp_registered_entry {
    const char *group; /* NULL: all slabs of the plan */
    uint32_t party;
    bp_register_kind kind;
    bool exact;
    uint32_t traffic;
} bp_registered_entry;

/* A communicator of the registration. Entries with the same communicator share it. */
typedef struct bp_party {
    bp_comm *comm;
    bp_neighbours neighbours;
    bool lost; /* an exchange failed: this call agrees nothing more with its ranks */
} bp_party;

struct bp_registration {
    bp_pool *pool;      /* NULL: destroyed */
    bp_process process; /* the process that made it */
    const char *pool_name;
    bp_registered_entry *entries;
    size_t entry_count;
    bp_party *parties; /* in order of first use by an entry */
    size_t party_count;
    bp_registered *windows;        /* by slab, then by entry */
    bp_registration_window *shown; /* by slab, then by entry */
    size_t window_count;
    bp_registration_warning *warnings; /* by entry */
    size_t warning_count, warning_capacity;
    bp_registration_info info; /* points into these arrays */
    const char **groups;       /* of the pool's slabs */
    size_t slab_count;
    bp_strings strings;
    bool reached;  /* the pool has announced a slab */
    bool attached; /* to the pool's slabs: must be detached */
    bool orphaned; /* destroyed by the caller while the pool could not detach it */
};

static inline bp_comm *bp_comm_of(const bp_registration *r, const bp_registered *window)
{
    return r->parties[r->entries[window->shown->entry].party].comm;
}

/* Copies an entry of the caller. The caller's structs may be of another version, shorter or longer; all have one
 * size. */
bp_registration_entry bp_registration_entry_at(const bp_registration_entry *entries, size_t index);

/* Collective: fails on all ranks unless all are about to make the same registration. */
bp_status bp_registration_compare(bp_registration *r, bp_status prepared);
/* Reports a failure to the other ranks before the list of communicators exists. In a capture it skips communicators
 * that exchange on the device, because the exchange could become part of the capture or end it. Never BP_OK. */
bp_status bp_registration_decline(const bp_registration_entry *entries, size_t count, bp_status status);

/* Collective: agrees a verdict over every communicator in turn. Ranks that form a grid all get the same verdict. */
void bp_parties_agree(bp_registration *r, bp_verdict *verdict);

#endif
