/* SPDX-License-Identifier: Apache-2.0 */
/* Rounds of the soak: random work through the public interface. A round leaves nothing behind, so that the process can be measured between
 * rounds. */
#ifndef BP_TEST_SOAK_H
#define BP_TEST_SOAK_H

#include <bucketpool/bucketpool.h>
#include <bucketpool/formats.h>

#include <stdbool.h>

/* Ends the program with the place and the last error, unless the condition holds. Any thread, and forked children. */
#define must(condition) ((condition) ? (void)0 : fail(__FILE__, __LINE__, #condition))
#define must_ok(call) must((call) == BP_OK)
void fail(const char *file, int line, const char *condition) __attribute__((noreturn));

/* Random numbers of one thread; equal seeds give equal numbers. */
typedef struct dice {
    uint64_t state;
} dice;

uint32_t below(dice *d, uint32_t limit);
bool chance(dice *d, uint32_t one_in);

typedef struct soak {
    const char *folder;        /* for files that all processes of the soak share */
    const char *sources;       /* of the project */
    const char *driver;        /* library of the emulated CUDA driver; "": none */
    struct standing *standing; /* pools that live as long as the process */
    const char *process;       /* name of this one, for files that only it writes */
    uint64_t kills;            /* forked children that SIGKILL ended */
    uint64_t refusals;         /* errors that a round provoked */
    dice dice;
} soak;

/* Paths in the shared folder, in a buffer of the thread that the next call overwrites: of a file that all write, and of this process's. */
const char *path_in(const soak *s, const char *name);
const char *own_path(const soak *s, const char *name);

/* ---- models and plans (plans.c) ----------------------------------------------------------------------------------- */

/* The inputs of a plan. */
typedef struct scenario {
    bp_model *model;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bool fsdp2;
} scenario;

/* Units of 1 to 3 buckets of two sizes and two dtypes, with random roles, padding, order and schedule; or a random recording. */
scenario random_scenario(dice *d);
void free_scenario(scenario *c);
/* A plan with random policy, alignment, slabs and groups: checked and feasible. */
bp_plan *random_plan(dice *d, const scenario *c);
/* One with fixed addresses, which can be saved and captured. */
bp_plan *stable_plan(dice *d, const scenario *c);

void plan_round(soak *s);    /* policies, other schedules, peaks, models that share a pool */
void format_round(soak *s);  /* files written, read, and read with wrong bytes */
void packing_round(soak *s); /* offset assignment of random instances */

/* ---- pools (pools.c, captures.c) ------------------------------------------------------------------------------------ */

typedef enum device_kind { HOST = 0, NONE = 1, CUDA = 2 } device_kind; /* of a device */
#define LANES 4
#define MAX_STATE 128

/* A pool of a random plan, with its device, streams and pinned memory for reading. */
typedef struct bench {
    dice *dice;
    scenario c;
    bp_plan *plan;
    bp_device *device;
    bp_stream *streams[LANES]; /* by lane of the schedule */
    bp_pool *pool;
    bp_pinned *pinned;
    struct look *looks; /* reads of this and earlier iterations */
    uint8_t *tags;      /* the byte that a request was filled with */
    uint8_t tag;
    bool has_memory;
    uint32_t state[MAX_STATE]; /* requests of state roles that hold_state acquired */
    size_t state_count;
} bench;

bp_device *random_device(soak *s, device_kind kind);
/* With `guards`, some pools are in guard mode. */
bench open_bench(soak *s, device_kind kind, bool guards);
void close_bench(bench *b);
/* Enqueues one iteration of the schedule: each request is acquired, filled, read and released. */
void iterate(bench *b);
/* Waits for all work, asserts that every byte was right and forgets the reads. */
void check_bench(bench *b);
/* Acquires and fills the requests of state roles, which stay live. */
void hold_state(bench *b);
void read_state(bench *b);
/* After everything of a round on the emulated driver was destroyed: asserts that it has no leaks and saw no broken rule, and forgets the
 * handles that it keeps of destroyed objects. */
void end_driver(const soak *s);

void pool_round(soak *s, device_kind kind);
void offload_round(soak *s, device_kind kind);
void capture_round(soak *s);
/* Pools that last: an iteration more, recorded in part, with offload. */
void begin_standing(soak *s);
void standing_round(soak *s);
void end_standing(soak *s);
void segment_round(soak *s); /* for PyTorch's allocator */

/* ---- several threads and processes (ranks.c, processes.c) ----------------------------------------------------------- */

void logprob_round(soak *s);
void rank_round(soak *s);   /* threads as ranks */
void thread_round(soak *s); /* threads of one pool */
void fork_round(soak *s); /* a forked child, killed at a random moment while it shares memory, descriptors and files */
/* A rank in a forked child, killed at a random moment. */
void lost_rank_round(soak *s);

#endif
