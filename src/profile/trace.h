/* Chrome's trace format, which Perfetto reads: docs/snapshots.md describes it. */
#ifndef BP_PROFILE_TRACE_H
#define BP_PROFILE_TRACE_H

#include "files/files.h"
#include "profile/play.h"

/* Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_trace_write(const bp_scene *scene, bp_output *output);

#endif
