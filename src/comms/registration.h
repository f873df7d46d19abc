/* Registrations from within, and what the ranks of a communicator decide together: every step that can fail on one of them ends in the
 * same verdict on all. */
#ifndef BP_COMMS_REGISTRATION_H
#define BP_COMMS_REGISTRATION_H

#include <bucketpool/plan.h>

#include "comms/comm.h"
#include "core/memory.h"

/* ---- agreement ----------------------------------------------------------------------------------------------------- */

/* How a step ended on a rank, and after bp_verdict_agree: on all of them. Travels between ranks. */
typedef struct bp_verdict {
    uint32_t status;  /* a bp_status */
    uint32_t granted; /* of steps that ask for something */
    uint32_t named;   /* the words name the rank already */
    uint32_t unused;
    char words[336]; /* the first of the error's detail; why it was not granted */
} bp_verdict;

/* From a status and, where it is none of success, this thread's detail. */
void bp_verdict_take(bp_verdict *verdict, bp_status status);
/* The status, with the words as this thread's detail. */
bp_status bp_verdict_status(const bp_verdict *verdict);

/* Collective. Failed with the words of the first rank that failed; else granted where all were, with the words of the first that was not.
 * Errors: what the exchange returns; then nothing was agreed and the communicator is of no use for it any more. */
bp_status bp_verdict_agree(bp_comm *comm, bp_verdict *verdict);

/* What is to be known of the others. */
typedef struct bp_neighbours {
    uint32_t in_process; /* another rank of this very process; UINT32_MAX: there is none */
    bool several_hosts;
} bp_neighbours;

/* ---- registrations ------------------------------------------------------------------------------------------------- */

#define BP_BECAUSE_BYTES 480

/* A slab with an entry's communicator. */
typedef struct bp_registered {
    bp_comm_range range; /* noted with the communicator as long as the registration lives */
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

/* A communicator of the registration, once, however many entries it has. */
typedef struct bp_party {
    bp_comm *comm;
    bp_neighbours neighbours;
    bool lost; /* an exchange has failed: nothing more can be agreed with the others in this call */
} bp_party;

struct bp_registration {
    bp_pool *pool;      /* NULL: it is gone */
    bp_process process; /* that made it */
    const char *pool_name;
    bp_registered_entry *entries;
    size_t entry_count;
    bp_party *parties; /* in the order in which entries name them first */
    size_t party_count;
    bp_registered *windows;        /* slab by slab, within a slab entry by entry */
    bp_registration_window *shown; /* the same */
    size_t window_count;
    bp_registration_warning *warnings; /* entry by entry */
    size_t warning_count, warning_capacity;
    bp_registration_info info; /* shows these arrays */
    const char **groups;       /* of the pool's slabs */
    size_t slab_count;
    bp_strings strings;
    bool reached;  /* the pool has shown it a slab */
    bool attached; /* it is to be detached */
    bool orphaned; /* destroyed by the caller while the pool could not let go of it */
};

static inline bp_comm *bp_comm_of(const bp_registration *r, const bp_registered *window)
{
    return r->parties[r->entries[window->shown->entry].party].comm;
}

/* An entry of the caller's, whose structs may be shorter or longer than ours, and all of one size. */
bp_registration_entry bp_registration_entry_at(const bp_registration_entry *entries, size_t index);

/* Collective: whether all ranks are about to do the same. */
bp_status bp_registration_compare(bp_registration *r, bp_status prepared);
/* The same for a rank that stops before it has a list of its communicators: tells the others. In a capture it uses no communicator whose
 * exchanges are work of the device, which could end up in the capture or end it. Never BP_OK. */
bp_status bp_registration_decline(const bp_registration_entry *entries, size_t count, bp_status status);

/* Collective: carries a verdict from communicator to communicator. Ranks that form a grid all come out with the same. */
void bp_parties_agree(bp_registration *r, bp_verdict *verdict);

#endif
