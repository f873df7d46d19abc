/* Pictures of what a pool did: where its requests were and when, and who made the peak. */
#ifndef TOOLS_PICTURES_SNAPSHOT_H
#define TOOLS_PICTURES_SNAPSHOT_H

#include "shared/outputs.h"
#include "view/timeline.h"

typedef struct snapshot_picture {
    const char *title;
    const view_pool *pool;
} snapshot_picture;

/* Time to the right; above the slabs, address upwards, a box for each request while it is live; below the live bytes. As picture_draw in
 * everything else. */
const char *picture_draw_snapshot(const snapshot_picture *input, const output *to);

/* What is live at the peak: bytes to the right, in rows roles, their units, and their buckets. */
const char *picture_draw_flame(const snapshot_picture *input, const output *to);

#endif
