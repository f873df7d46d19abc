/* The pictures that commands draw. */
#ifndef TOOLS_PICTURES_PICTURES_H
#define TOOLS_PICTURES_PICTURES_H

#include <bucketpool/bucketpool.h>

#include "formats/packing_file.h"
#include "schedule/view.h"
#include "shared/outputs.h"
#include "view/timeline.h"

/* The picture of memory plans: what lies where in the slabs, step by step, and what stays unused. */

typedef struct picture_input {
    const char *title; /* the first line is the heading, further lines are set smaller; NULL: none */
    const bp_buckets *buckets;
    const bp_schedule *schedule; /* of these buckets */
    const bp_plan *const *plans; /* of these buckets and this schedule */
    size_t plan_count;
} picture_input;

/* Draws one panel per plan and role: steps to the right, memory upwards, the plans of a role in one scale. The format is that
 * of the ending of the output's path: .svg, .png or .pdf. Same input, fonts and cairo give the same bytes in every process; within one,
 * cairo numbers the ids of later SVGs on.
 * NULL, or an error text that lives until this thread's next call. */
const char *picture_draw(const picture_input *input, const output *to);

/* The picture of a placement: which item lies where, and when. */

typedef struct packing_picture {
    const char *title, *proof;
    const bp_packing_file *file;
    const uint64_t *offsets; /* of its items */
    uint64_t total, bound;
} packing_picture;

/* Time to the right, memory upwards, a box for each interval of an item, labelled where there is room. As picture_draw in everything
 * else. */
const char *picture_draw_packing(const packing_picture *input, const output *to);

/* The picture of a schedule: what runs in each step, and how much is live. */

/* The model's name, a line below it; steps to the right; a row each for gathers, compute and reductions, and below, for each role, the live bytes, by kinds of buckets.
 * As picture_draw otherwise. */
const char *picture_draw_schedule(const schedule_view *view, const char *subtitle, const output *to);

/* Pictures of what a pool did: where its requests were and when, and who made the peak. */

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
