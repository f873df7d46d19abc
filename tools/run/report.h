/* What a run found, as lines for people and as the document bucketpool.run/1: docs/formats.md describes every member. */
#ifndef TOOLS_RUN_REPORT_H
#define TOOLS_RUN_REPORT_H

#include "run/setup.h"

typedef struct run_outcome {
    driver_result result;
    bp_pool_statistics statistics;
    uint64_t sequence_hash, sequence_acquires;
    bp_status status; /* of the call that ended the run, BP_OK: none did */
    char detail[512]; /* of it */
    bool interrupted;
} run_outcome;

/* What ended the run or was wrong, in a sentence; "" when all went well. */
const char *run_failure_text(const run_setup *setup, const analysis *a, const run_outcome *outcome, char text[1024]);

/* Both print to standard output and return EXIT_GO_ON or the exit code after a message. */
int run_report_lines(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);
int run_report_json(const run_options *options, const run_setup *setup, const analysis *a, const run_outcome *outcome);

#endif
