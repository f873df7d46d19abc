/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots of PyTorch's allocator, as pools: one for each device, in which every allocation is a request. */
#ifndef TOOLS_VIEW_RECORDING_H
#define TOOLS_VIEW_RECORDING_H

#include "formats/snapshots/snapshot.h"
#include "formats/snapshots/trace_file.h"

#include <stdbool.h>

/* A device. Roles are kinds of memory; units are modules, or files of the code where no module is recorded; buckets are functions. Slabs are
 * address ranges in which PyTorch had segments: those that overlap at different times, and the parts of an expandable segment, are one. */
typedef struct view_device {
    char name[16];
    char **modules; /* by stack: its module; NULL: none, or not used */
    size_t stack_count;
    uint64_t *steps_ns; /* where steps begin, in the clock of events */
    size_t step_count;
} view_device;

typedef struct view_recording {
    bp_snapshot_info info;
    view_device *devices; /* by pool */
} view_recording;

/* Keeps pointers into the file. Errors: BP_ERR_NO_HOST_MEMORY, BP_ERR_FORMAT, BP_ERR_OVERFLOW. Call the finish function either way. */
bp_status view_recording_init(const bp_trace_file *file, view_recording *recording);
void view_recording_finish(view_recording *recording);

#endif
