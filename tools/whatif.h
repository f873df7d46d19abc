/* The library's what-if answers about an analysed model. */
#ifndef TOOLS_WHATIF_H
#define TOOLS_WHATIF_H

#include "analysis.h"

typedef struct whatif {
    const analysis *analysed;
    const bp_plan *plan;           /* of policy scheduled; NULL: --policy leaves it out, and there are no answers */
    bp_alternatives *alternatives; /* NULL: the schedule comes from recordings, or is that of several models */
    bp_peaks *peaks;
    bp_tradeoff *tradeoff;
} whatif;

/* Returns EXIT_GO_ON, or the exit code after a message. Call whatif_finish either way. */
int whatif_init(const analysis *a, const plan_options *options, whatif *w);
void whatif_finish(whatif *w);

/* The last point of the curve with no more stalls than that. */
size_t whatif_point_of(const bp_tradeoff *tradeoff, uint32_t stalls);
/* What a point takes less than the first. */
uint64_t whatif_saved(const bp_tradeoff *tradeoff, size_t point);
/* The point that saves most for each byte that it exposes; 0: none saves anything. */
size_t whatif_best_bargain(const bp_tradeoff *tradeoff);

/* A request with its names. */
typedef struct named_request {
    const char *unit, *bucket;
    uint32_t ordinal, role;
} named_request;

/* false: there is no such request. */
bool whatif_request(const whatif *w, uint32_t index, named_request *request);

#endif
