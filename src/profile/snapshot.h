/* The pickle that docs/snapshots.md describes. */
#ifndef BP_PROFILE_SNAPSHOT_H
#define BP_PROFILE_SNAPSHOT_H

#include "profile/pickle.h"
#include "profile/play.h"

/* Errors: BP_ERR_NO_HOST_MEMORY. */
bp_status bp_snapshot_write(const bp_scene *scene, bp_output *output);

#endif
