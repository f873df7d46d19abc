/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool view`: options, snapshots, tables, document and page. */
#ifndef TOOLS_VIEW_VIEW_H
#define TOOLS_VIEW_VIEW_H

#include <stdbool.h>
#include <stddef.h>

#include "core/files.h"
#include "shared/cli.h"
#include "view/recording.h"
#include "view/timeline.h"

typedef struct view_options {
    char **files;
    size_t file_count;
    bool json;
    const char *html, *plot, *flame, *pool; /* pool NULL: all; in pictures the pool with the highest peak */
    cli_color color;
} view_options;

typedef struct view_file {
    const char *path;
    bp_snapshot *snapshot;    /* of pools, or ... */
    bp_trace_file *traces;    /* ... of PyTorch's allocator: ... */
    view_recording recording; /* ... its traces as pools */
    const bp_snapshot_info *info;
    view_pool *pools;
    size_t pool_count;
} view_file;

/* "rank 3", with its coordinates if known; the file's name for snapshots of PyTorch. */
#define VIEW_LABEL_CHARS 128
void view_file_label(const view_file *file, char label[VIEW_LABEL_CHARS]);
/* "step 0", "label warm-up", "". */
void view_file_step(const view_file *file, char text[VIEW_LABEL_CHARS]);

/* "1.234 ms". Same lifetime as cli_text. */
const char *view_time(uint64_t time_ns);

/* ---- tables and document ---- */

/* One file: tables of its pools, of the holders of the peak, and of roles. Each function returns EXIT_GO_ON or an
 * exit code. */
int view_report_file(const view_file *file, const view_options *options);
/* Several files: a line for each pool, then the differences between ranks. */
int view_report_files(const view_file *files, size_t count, const view_options *options);
int view_report_json(const view_file *files, size_t count);

/* The page of `view --html`. */

/* Writes page.html with the snapshots. false: out of memory. `output` keeps write errors, see files/files.h. */
bool view_page_write(const view_file *files, size_t count, bp_output *page);

/* page.html, embedded at build time (embed.py). A NUL follows that view_page_bytes does not count. */
extern const char view_page_text[];
extern const unsigned long view_page_bytes;

#endif
