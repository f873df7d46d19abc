/* Ranks of a test: threads, each with its own device, stream, communicators and pool on the emulated driver and NCCL. */
#ifndef BP_TEST_TEAM_H
#define BP_TEST_TEAM_H

#include <bucketpool/nccl.h>

#include <stdatomic.h>

#include "exchange.h"

#define MOST_RANKS 4

typedef struct team team;

typedef struct rank {
    team *team;
    uint32_t number;
    bp_device *device;
    bp_stream *stream;
    void *nccl; /* ncclComm_t */
    exchange_seat seat;
    bp_comm *control; /* callbacks; NULL: exchanges go over NCCL */
    bp_comm *comm;    /* that wraps nccl */
    bp_pool *pool;
    bp_registration *registration;
    void *extra; /* of the test */
} rank;

typedef struct team_options {
    uint32_t ranks;
    int shared_device;   /* 1: all ranks on device 0 */
    const char *nccl;    /* fake_nccl_set; NULL: nothing */
    int over_nccl;       /* 1: no control communicator */
    const bp_plan *plan; /* of every rank's pool; NULL: no pools */
    const bp_plan *odd_plan;
    uint32_t odd_rank;              /* has odd_plan instead, where that is given */
    uint32_t timeout_ms;            /* of r->comm */
    int spare_devices;              /* more than the ranks need */
    int fake_attribute, fake_value; /* fake_cuda_set_attribute, where not 0 */
} team_options;

struct team {
    team_options options;
    exchange_room room;
    rank ranks[MOST_RANKS];
    atomic_uint wrong; /* expectations of threads that were not met */
    bool leaks;        /* streams and memory, on purpose */
    bool breaks_rules; /* of NCCL: a test that does so on purpose looks at them itself */
};

/* Everything is made; asserted. */
void team_begin(team *t, const team_options *options);
/* Registrations, pools, communicators and devices go; nothing may be left and no rule broken: asserted. */
void team_end(team *t);
/* Runs the function on every rank at once; what it expected has come true: asserted. The current context of each thread stays. */
typedef void team_function(rank *r, void *user);
void team_run(team *t, team_function *function, void *user);

/* On threads of ranks, where cmocka's assertions do not work: they print, and team_run fails. */
#define expect(r, condition) expect_that(r, (condition) != 0, #condition, __FILE__, __LINE__)
#define expect_ok(r, call) expect_status(r, call, BP_OK, #call, NULL, __FILE__, __LINE__)
#define expect_fails(r, call, status, word) expect_status(r, call, status, #call, word, __FILE__, __LINE__)
bool expect_that(rank *r, bool condition, const char *text, const char *file, int line);
/* `word`: that the detail must have; NULL: none. */
bool expect_status(rank *r, bp_status status, bp_status expected, const char *text, const char *word, const char *file,
                   int line);
/* The text has the words. */
#define expect_words(r, text, word) expect_word(r, text, word, __FILE__, __LINE__)
bool expect_word(rank *r, const char *text, const char *word, const char *file, int line);

/* ---- registration -------------------------------------------------------------------------------------------------- */

/* Of all slabs, with r->comm. */
bp_registration_entry entry_of(const rank *r, bp_register_kind kind);
bp_status register_all(rank *r, bp_register_kind kind);
bp_registration_window window_at(const bp_registration *registration, size_t index);
/* The report, in memory of the caller. */
char *report_of(const bp_registration *registration);

/* NCCL's and the driver's broken rules, forgotten where they are as expected. */
void assert_nothing_broken(void);

#endif
