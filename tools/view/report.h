/* What `view` prints. */
#ifndef TOOLS_VIEW_REPORT_H
#define TOOLS_VIEW_REPORT_H

#include "view/files.h"

/* One file: a table of its pools, of what is live at the peak, and of roles. Each returns EXIT_GO_ON or an exit code. */
int view_report_file(const view_file *file, const view_options *options);
/* Several: a line a pool, then what differs between them. */
int view_report_files(const view_file *files, size_t count, const view_options *options);
int view_report_json(const view_file *files, size_t count);

#endif
