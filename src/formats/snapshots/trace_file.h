/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of PyTorch's allocator (torch.cuda.memory._dump_snapshot), read as allocation traces. For the command
 * (version node BUCKETPOOL_PRIVATE); not installed.
 *
 * Files are pickles of plain data: nothing in them is executed. Events are taken out of the pickle while it is parsed,
 * so that 10 million events take about a gigabyte. Errors are those of formats.h: BP_ERR_IO, BP_ERR_FORMAT with the
 * file and the place in it, BP_ERR_NO_HOST_MEMORY. Texts are UTF-8 without control characters. Host-side only;
 * separate calls may run in separate threads. */
#ifndef BP_FORMATS_SNAPSHOTS_TRACE_FILE_H
#define BP_FORMATS_SNAPSHOTS_TRACE_FILE_H

#include "planner/steps/trace.h"

typedef struct bp_trace_file bp_trace_file;

typedef struct bp_trace_file_info {
    size_t trace_count; /* devices with events or segments */
    const bp_trace *traces;
    bool is_of_pools; /* a snapshot of bucketpool's pools (snapshot.h): the traces were not read */
} bp_trace_file_info;

/* The caller owns the file. bp_trace_file_destroy accepts NULL and pointers to NULL, and sets *file to NULL. */
BP_API bp_status bp_trace_file_read(const char *path, bp_trace_file **file);
/* `origin`: name of the data in errors. */
BP_API bp_status bp_trace_file_parse(const void *data, size_t bytes, const char *origin, bp_trace_file **file);
BP_API void bp_trace_file_destroy(bp_trace_file **file);

/* The contents. Live as long as the file. NULL for NULL. */
BP_API const bp_trace_file_info *bp_trace_file_get_info(const bp_trace_file *file);

/* True if the file begins as a pickle of protocol 2 to 5; false also if it cannot be read. */
BP_API bool bp_trace_file_is_pickle(const char *path);

#endif
