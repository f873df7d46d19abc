/* The options of schedules: when units are gathered and released, in generated and in recorded ones, and which schedules are united. */
#ifndef TOOLS_OPTIONS_SCHEDULE_H
#define TOOLS_OPTIONS_SCHEDULE_H

#include <bucketpool/bucketpool.h>

#include <argp.h>
#include <stdbool.h>

/* UNIT=F[:B] of --unit-prefetch. */
typedef struct unit_prefetch {
    char *unit;
    uint32_t forward, backward;
} unit_prefetch;

typedef struct schedule_options {
    uint32_t prefetch, prefetch_backward; /* BP_PREFETCH_SAME: as forward */
    uint32_t grad_units;
    unit_prefetch *unit_prefetches;
    size_t unit_prefetch_count;
    bp_passes passes;
    bp_streams streams;
    bp_outside outside;
    bool keep_after_forward, recompute, combined;
    uint32_t microbatches;
    uint32_t overlap_window; /* of recorded schedules */
    char **others;           /* files with further recorded schedules */
    size_t other_count;
    bool share;     /* the models share one pool */
    uint32_t given; /* bits of the options on the command line, for options_schedule_generating */
} schedule_options;

/* Its input is a schedule_options. It exits after the message of a bad value. */
extern const struct argp options_schedule_argp;

void options_schedule_init(schedule_options *options);
void options_schedule_finish(schedule_options *options);
/* Whether the options go together, for this many models. EXIT_GO_ON or the exit code after a message. */
int options_schedule_check(const schedule_options *options, size_t models);

/* The first option on the command line that only generated schedules heed, without its dashes; NULL: none. */
const char *options_schedule_generating(const schedule_options *options);

const char *options_passes_name(bp_passes passes);
const char *options_streams_name(bp_streams streams);
const char *options_outside_name(bp_outside outside);

#endif
