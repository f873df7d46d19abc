/* The library's what-if answers about an analysed model. */
#ifndef TOOLS_EXPLAIN_WHATIF_H
#define TOOLS_EXPLAIN_WHATIF_H

#include "plan/analysis.h"

typedef struct whatif {
    const analysis *analysed;
    const bp_plan *plan;           /* of policy scheduled; NULL: --policy leaves it out, and there are no answers */
    bp_alternatives *alternatives; /* NULL: the schedule comes from recordings, or is that of several models */
    bp_peaks *peaks;
} whatif;

/* Returns EXIT_GO_ON, or the exit code after a message. Call whatif_finish either way. */
int whatif_init(const analysis *a, const plan_options *options, whatif *w);
void whatif_finish(whatif *w);

/* ---- the document ------------------------------------------------------------------------------------------------ */

/* The what-if document, bucketpool.whatif/1: docs/formats.md describes every member. */

/* Prints the answers about all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int whatif_report_print(const whatif *answers, size_t count, const plan_options *options);

#endif
