/* The same pool on several ranks. */
#ifndef TOOLS_VIEW_COMPARE_H
#define TOOLS_VIEW_COMPARE_H

#include "view/files.h"

typedef struct view_metric {
    const char *name;
    uint64_t (*value)(const view_pool *pool);
    bool is_bytes;
} view_metric;

#define VIEW_METRICS 5
extern const view_metric view_metrics[VIEW_METRICS];

/* Over the files that have the pool. */
typedef struct view_spread {
    size_t files;
    size_t least_file, most_file, odd_file; /* the first with it; SIZE_MAX: none is odd, all have the same */
    uint64_t least, most, median;
} view_spread;

/* The odd one is the farthest from the median. false: out of memory. */
bool view_compare(const view_file *files, size_t count, const char *pool, const view_metric *metric,
                  view_spread *spread);
/* Whether pool `pool` of file `file` is the first of its name. */
bool view_is_first_of_name(const view_file *files, size_t file, size_t pool);

#endif
