/* Analysis of recorded training steps: peak, reserved memory, plan, and their tables and documents. */
#ifndef TOOLS_STEP_STEP_H
#define TOOLS_STEP_STEP_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "formats/snapshots/trace_file.h"
#include "shared/cli.h"
#include "shared/outputs.h"
#include "steps/steps.h"

typedef struct step_options {
    const char *output, *plot;
    bool json;
    int color;
    uint64_t work;
    uint32_t holders;
    char **files;
    size_t file_count;
} step_options;

/* Live bytes at the peak, of one place in the code. */
typedef struct step_holder {
    const char *file, *function; /* file "": before the recording, no frames */
    uint64_t line;
    uint64_t bytes; /* rounded */
    size_t allocations;
} step_holder;

/* Free and lost bytes of the memory that PyTorch had from the driver, by cause. */
typedef struct step_causes {
    uint64_t rounding;     /* of live blocks, to 512 bytes or more */
    uint64_t beside_live;  /* free blocks in segments that live blocks hold */
    uint64_t cached;       /* segments without live blocks, of the streams that hold most */
    uint64_t other_stream; /* segments without live blocks, of other streams */
    uint64_t private_pool; /* free memory of private pools (graphs, MemPool) */
} step_causes;

/* A device of a file. */
typedef struct step_answer {
    const char *path;
    const bp_trace *trace;
    bp_allocations allocations;
    bp_steps steps;
    bp_step_plan plan;
    uint64_t peak_bytes;      /* live, rounded to 512 bytes, during the steps */
    uint64_t requested_bytes; /* of the same allocations, not rounded */
    uint32_t peak_event;
    uint64_t failures; /* requests that found no memory ("oom"), and the first of them */
    uint32_t first_failure;
    bool has_segments;         /* the file has what PyTorch had from the driver */
    uint64_t recorded_bytes;   /* the most that PyTorch had during the steps */
    uint64_t recorded_at_peak; /* at peak_event */
    uint64_t default_at_peak;  /* of the model, at peak_event */
    uint64_t default_bytes;    /* the most that the model of the caching allocator has, and ... */
    uint64_t expandable_bytes; /* ... with expandable segments */
    uint64_t checked;         /* recorded addresses and segment events that the model of the allocator reproduced ... */
    uint64_t departures;      /* ... and those that it did not, up to a limit; for files with segments */
    uint32_t first_departure; /* an event */
    step_causes causes;       /* at peak_event */
    step_holder *holders;     /* largest first */
    size_t holder_count;
} step_answer;

/* Analyses one device. Returns EXIT_GO_ON, or the exit code after a message. Call step_answer_finish either way. */
int step_answer_init(const char *path, const bp_trace *trace, const step_options *options, step_answer *answer);
void step_answer_finish(step_answer *answer);

/* Fills what the model of PyTorch's allocator has. Returns EXIT_GO_ON, or the exit code after a message. */
int step_play(step_answer *answer);

/* "model.py:120 forward": a place in the code. Same lifetime as cli_text. */
const char *step_place(const step_holder *holder);

/* Print to standard output. Return EXIT_GO_ON, or the exit code after a message. */
int step_report_one(const step_answer *answer, const step_options *options);
int step_report_all(const step_answer *answers, size_t count, const step_options *options);
int step_report_json(const step_answer *answers, size_t count);

/* The plan as bucketpool.plan/1 and as a picture. */
int step_write_plan(const step_answer *answer, const output *to);
int step_draw(const step_answer *answer, const output *to);

#endif
