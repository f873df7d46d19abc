/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads of a test, each with a device, stream, communicators and pool, on the emulated driver and NCCL. */
#ifndef BP_TEST_TEAM_H
#define BP_TEST_TEAM_H

#include <bucketpool/nccl.h>

#include <stdatomic.h>

#include "support/exchange.h"

#define MAX_RANKS 4

typedef struct team team;

typedef struct rank {
    team *team;
    uint32_t number;
    bp_device *device;
    bp_stream *stream;
    void *nccl; /* ncclComm_t */
    exchange_seat seat;
    bp_comm *control; /* of callbacks; NULL: exchanges go over NCCL */
    bp_comm *comm;    /* wraps `nccl` */
    bp_pool *pool;
    bp_registration *registration;
    void *extra; /* for the test */
} rank;

typedef struct team_options {
    uint32_t ranks;
    int shared_device;   /* 1: all ranks use device 0 */
    const char *nccl;    /* argument of fake_nccl_set; NULL: not called */
    int over_nccl;       /* 1: no control communicator */
    const bp_plan *plan; /* of the pools of all ranks; NULL: no pools */
    const bp_plan *odd_plan;
    uint32_t odd_rank;              /* this rank uses odd_plan, if there is one */
    uint32_t timeout_ms;            /* of r->comm */
    int spare_devices;              /* devices beyond those of the ranks */
    int fake_attribute, fake_value; /* arguments of fake_cuda_set_attribute; 0: not called */
} team_options;

struct team {
    team_options options;
    exchange_room room;
    rank ranks[MAX_RANKS];
    atomic_uint wrong; /* failed expectations of all threads */
    bool leaks;        /* streams and memory are leaked on purpose */
    bool breaks_rules; /* NCCL's rules are broken on purpose: the test checks them itself */
};

/* Creates everything, or fails the test. */
void team_begin(team *t, const team_options *options);
/* Destroys registrations, pools, communicators and devices. Fails the test if anything is left or a rule was broken. */
void team_end(team *t);
/* A team that ends with its block. */
#define TEAM __attribute__((cleanup(team_end))) team
/* Runs the function on every rank at once; fails the test if an expectation failed. Each thread keeps its current
 * context. */
typedef void team_function(rank *r, void *user);
void team_run(team *t, team_function *function, void *user);
/* A team for one function. */
void run_team(const team_options *options, team_function *function, void *user);

/* Assertions for threads of ranks, where cmocka's do not work: they print, and team_run fails. */
#define expect(r, condition) expect_that(r, (condition) != 0, #condition, __FILE__, __LINE__)
#define expect_ok(r, call) expect_status(r, call, BP_OK, #call, NULL, __FILE__, __LINE__)
#define expect_fails(r, call, status, word) expect_status(r, call, status, #call, word, __FILE__, __LINE__)
bool expect_that(rank *r, bool condition, const char *text, const char *file, int line);
/* `word`: must occur in the detail; NULL: any detail. */
bool expect_status(rank *r, bp_status status, bp_status expected, const char *text, const char *word, const char *file,
                   int line);
/* Expects a text that contains the words. */
#define expect_words(r, text, word) expect_word(r, text, word, __FILE__, __LINE__)
bool expect_word(rank *r, const char *text, const char *word, const char *file, int line);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/* For all slabs, with r->comm. */
bp_registration_entry entry_of(const rank *r, bp_register_kind kind);
bp_status register_all(rank *r, bp_register_kind kind);
bp_registration_window window_at(const bp_registration *registration, size_t index);
/* The report; free() it. */
char *report_of(const bp_registration *registration);

/* Fails if rules of NCCL or of the driver were broken. */
void assert_nothing_broken(void);

#endif
