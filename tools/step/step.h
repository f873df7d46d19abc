/* SPDX-License-Identifier: Apache-2.0 */
/* Analysis of recorded training steps: peak, reserved memory, plan, and their tables and documents. */
#ifndef TOOLS_STEP_STEP_H
#define TOOLS_STEP_STEP_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "formats/snapshots/trace_file.h"
#include "planner/steps/attribution.h"
#include "planner/steps/steps.h"
#include "shared/cli.h"
#include "shared/outputs.h"
#include "step/allocator/failed_request.h"

/* Sums of the live bytes of a moment. */
typedef enum step_grouping { STEP_BY_PLACE, STEP_BY_MODULE, STEP_BY_PHASE, STEP_BY_KIND, STEP_GROUPINGS } step_grouping;

typedef struct step_options {
    const char *output, *plot;
    bool json;
    int color;
    int by; /* step_grouping */
    uint64_t work;
    uint32_t lead;  /* bp_step_plan_config */
    uint64_t limit; /* bytes of a GPU on which the models play, too; 0: none */
    uint32_t holders;
    char **files;
    size_t file_count;
} step_options;

/* Live bytes of one place in the code, module, phase or kind. */
typedef struct step_holder {
    const bp_stack_place *place; /* NULL: no frames */
    bool is_pattern;             /* of modules that differ in their numbers: model.layers.*.mlp */
    uint8_t phase, kind;         /* bp_trace_phase, bp_memory_kind */
    uint64_t bytes;              /* rounded */
    size_t allocations;
} step_holder;

enum { STEP_NAME_CHARS = 400 };

typedef struct step_holders {
    step_holder *all; /* largest first */
    size_t count;
    uint64_t bytes, requested_bytes; /* together */
} step_holders;

/* Free and lost bytes of the memory that PyTorch had from the driver, by cause. */
typedef struct step_causes {
    uint64_t rounding;     /* of live blocks, to 512 bytes or more */
    uint64_t beside_live;  /* free blocks in segments that live blocks hold */
    uint64_t cached;       /* segments without live blocks, of the streams that hold most */
    uint64_t other_stream; /* segments without live blocks, of other streams */
    uint64_t private_pool; /* free memory of private pools (graphs, MemPool) */
} step_causes;

/* A model of the allocator with `limit` bytes. */
typedef struct step_limited {
    uint64_t retries;  /* requests that were served after the release of unused memory */
    uint64_t failures; /* requests that found no memory */
} step_limited;

/* A request that found no memory. */
typedef struct step_failure {
    uint32_t event;
    uint64_t live_bytes;
} step_failure;

enum { STEP_LISTED_FAILURES = 8 };

/* A device of a file. */
typedef struct step_answer {
    const char *path;
    const bp_trace *trace;
    bp_allocations allocations;
    bp_stack_places places;
    bp_attribution attribution;
    bp_steps steps;
    bp_step_plan *handle;
    const bp_step_plan_info *plan; /* of `handle`; nothing is planned without one */
    /* by kind of the plan: its items are the allocations from references[kind].first on */
    bp_trace_step references[BP_STEP_PLAN_KINDS];
    uint64_t peak_bytes; /* of the recording, live and rounded to 512 bytes */
    uint32_t peak_event; /* BP_TRACE_NONE: before the first event */
    step_holders peak[STEP_GROUPINGS];
    uint64_t failures; /* requests that found no memory ("oom"), the first of them, and the one with most live bytes */
    step_failure listed[STEP_LISTED_FAILURES];
    bp_failed_request failed;
    step_holders at_failure[STEP_GROUPINGS];
    bool has_segments;         /* the file has what PyTorch had from the driver */
    uint64_t recorded_bytes;   /* the most that PyTorch had */
    uint64_t recorded_at_peak; /* at peak_event */
    uint64_t default_at_peak;  /* of the model, at peak_event */
    uint64_t default_bytes;    /* the most that the model of the caching allocator has, and ... */
    uint64_t expandable_bytes; /* ... with expandable segments */
    uint64_t limit;            /* step_options */
    step_limited default_limited, expandable_limited; /* with a limit */
    uint64_t empty_caches;                            /* calls of torch.cuda.empty_cache that the models follow */
    uint64_t unclear_releases;         /* of empty_cache, or for an allocation that found no memory: ... */
    uint64_t default_min, default_max; /* ... default_bytes if all are the former, or the latter */
    uint64_t checked;         /* recorded addresses and segment events that the model of the allocator reproduced ... */
    uint64_t departures;      /* ... and those that it did not, up to a limit; for files with segments */
    uint32_t first_departure; /* an event */
    step_causes causes;       /* at peak_event */
} step_answer;

/* Analyses one device. Returns EXIT_GO_ON, or the exit code after a message. Call step_answer_finish either way. */
int step_answer_init(const char *path, const bp_trace *trace, const step_options *options, step_answer *answer);
void step_answer_finish(step_answer *answer);

/* Finds steps, kinds and places only: no plan, no peak, no models of allocators. Returns and finishes as step_answer_init. */
int step_answer_find(const char *path, const bp_trace *trace, step_answer *answer);

/* Fills the results of the model of PyTorch's allocator. Returns EXIT_GO_ON, or the exit code after a message. */
int step_play(step_answer *answer);

/* Sums up the live allocations after an event; BP_TRACE_NONE: before the first one. free() holders->all. */
int step_holders_find(const step_answer *answer, uint32_t event, step_grouping by, step_holders *holders);

/* The group of an allocation among the first `most`; their number if it is in none of them. */
size_t step_holders_index(const step_answer *answer, const step_holders *holders, size_t max, step_grouping by,
                          size_t allocation);
/* An allocation alone. */
step_holder step_holder_of(const step_answer *answer, size_t allocation);

/* "modeling_llama.py:120 forward", "model.layers.*.mlp", "backward", "optimizer state". */
const char *step_holder_name(const step_holder *holder, step_grouping by, char text[STEP_NAME_CHARS]);
/* The module with `*` in place of numbers that differ; "" where the recording has none. */
const char *step_module(const step_holder *holder, char text[STEP_NAME_CHARS]);

/* The peak live bytes of the steps that the plan is for: from bp_steps_steady on. */
uint64_t step_steps_peak(const step_answer *answer);
/* Persistent memory, the slab, and memory that is not planned. */
uint64_t step_planned_bytes(const step_answer *answer);

/* Print to standard output. Return EXIT_GO_ON, or the exit code after a message. */
int step_report_one(const step_answer *answer, const step_options *options);
int step_report_all(const step_answer *answers, size_t count, const step_options *options);
int step_report_failure(const step_answer *answer, const step_options *options);
int step_report_holders(const step_holders *holders, const step_options *options);
int step_report_json(const step_answer *answers, size_t count);

/* The plan as bucketpool.step_plan/1 and as a picture. */
int step_write_plan(const step_answer *answer, const output *to);
int step_draw(const step_answer *answer, const step_options *options, const output *to);

#endif
