/* `bucketpool view`: its options, the snapshots that are looked at, and what is written of them. */
#ifndef TOOLS_VIEW_VIEW_H
#define TOOLS_VIEW_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "files/files.h"
#include "view/timeline.h"

/* The options of `view`. */

typedef struct view_options {
    char **files;
    size_t file_count;
    bool json;
    const char *html, *plot, *flame, *pool, *color; /* pool NULL: all, in pictures the one with the highest peak */
} view_options;

/* The snapshots that are looked at. */

typedef struct view_file {
    const char *path;
    bp_snapshot *snapshot;
    const bp_snapshot_info *info;
    view_pool *pools;
    size_t pool_count;
} view_file;

/* "rank 3", with coordinates where it has some; of PyTorch's the file's name. */
#define VIEW_LABEL_CHARS 128
void view_file_label(const view_file *file, char label[VIEW_LABEL_CHARS]);
/* "step 0", "label warm-up", "". */
void view_file_step(const view_file *file, char text[VIEW_LABEL_CHARS]);

/* "1.234 ms". Same lifetime as cli_text. */
const char *view_time(uint64_t time_ns);

/* What `view` prints. */

/* One file: a table of its pools, of what is live at the peak, and of roles. Each returns EXIT_GO_ON or an exit code. */
int view_report_file(const view_file *file, const view_options *options);
/* Several: a line a pool, then what differs between them. */
int view_report_files(const view_file *files, size_t count, const view_options *options);
int view_report_json(const view_file *files, size_t count);

/* The page of `view --html`. */

/* page.html with the snapshots in it. false: out of memory. The output reports its own failures, see files/files.h. */
bool view_page_write(const view_file *files, size_t count, bp_output *page);

/* page.html: made when this is built (embed.py). Ends with a NUL that view_page_bytes does not count. */
extern const char view_page_text[];
extern const unsigned long view_page_bytes;

#endif
