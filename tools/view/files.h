/* The snapshots that are looked at. */
#ifndef TOOLS_VIEW_FILES_H
#define TOOLS_VIEW_FILES_H

#include "view/arguments.h"
#include "view/timeline.h"

typedef struct view_file {
    const char *path;
    bp_snapshot *snapshot;
    const bp_snapshot_info *info;
    view_pool *pools;
    size_t pool_count;
} view_file;

/* Takes a snapshot and plays the pools that are asked for. EXIT_GO_ON or an exit code after a message. Finish it either way. */
int view_file_init(const char *path, const view_options *options, bp_snapshot *snapshot, view_file *file);
void view_file_finish(view_file *file);

/* "rank 3", with coordinates where it has some; of PyTorch's the file's name. */
#define VIEW_LABEL_CHARS 128
void view_file_label(const view_file *file, char label[VIEW_LABEL_CHARS]);
/* "step 0", "label warm-up", "". */
void view_file_step(const view_file *file, char text[VIEW_LABEL_CHARS]);

/* The pool with the highest peak; NULL: there is none. */
const view_pool *view_file_highest(const view_file *file);

/* "1.234 ms". */
#define VIEW_TIME_CHARS 32
const char *view_time(uint64_t time_ns, char text[VIEW_TIME_CHARS]);

#endif
