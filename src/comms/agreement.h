/* What the ranks of a communicator decide together: every step that can fail on one of them ends in the same verdict on all. */
#ifndef BP_COMMS_AGREEMENT_H
#define BP_COMMS_AGREEMENT_H

#include <bucketpool/plan.h>

#include "comms/comm.h"

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

/* What a rank is about to register with a communicator. Ranks of other versions of this library are told apart by it: it travels as
 * BP_COMM_RECORD_BYTES, and the places of the verdict and of `library` stay as they are. */
typedef struct bp_proposal {
    bp_verdict verdict; /* of its own preparations */
    char library[16];   /* what follows is laid out as this version of the library has it */
    char fingerprint[BP_FINGERPRINT_CHARS];
    char provider[32]; /* "NCCL 2.28.9" */
    uint64_t provider_version;
    uint64_t slabs, entries, windows; /* of the pool; of this communicator */
    uint64_t host, process;           /* where it runs */
} bp_proposal;

/* The same of one slab with one entry. */
typedef struct bp_window_proposal {
    uint64_t slab, bytes;
    uint64_t kind, exact;
    char group[64];
} bp_window_proposal;

/* What is to be known of the others. */
typedef struct bp_neighbours {
    uint32_t in_process; /* another rank of this very process; UINT32_MAX: there is none */
    bool several_hosts;
} bp_neighbours;

/* Fills host and process. */
void bp_proposal_place(bp_proposal *proposal);

/* Collective. Every rank compares; proposal->verdict becomes the common one: a failure of a rank, or BP_ERR_MISMATCH naming one that
 * differs from the majority. Errors: as bp_verdict_agree. */
bp_status bp_proposal_agree(bp_comm *comm, bp_proposal *proposal, bp_neighbours *neighbours);
bp_status bp_window_proposal_agree(bp_comm *comm, const bp_window_proposal *proposal, bp_verdict *verdict);

#endif
