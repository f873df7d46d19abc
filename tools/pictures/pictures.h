/* SPDX-License-Identifier: Apache-2.0 */
/* The pictures that commands draw, as SVG. Functions return NULL, or an error text that is valid until this thread's
 * next call. A picture is a function of its input. */
#ifndef TOOLS_PICTURES_PICTURES_H
#define TOOLS_PICTURES_PICTURES_H

#include <bucketpool/bucketpool.h>
#include <bucketpool/pack.h>

#include "schedule/view.h"
#include "shared/outputs.h"
#include "view/timeline.h"

/* Memory plans: the bytes of each, and the pool of one of them over time. */
typedef struct picture_input {
    const char *title; /* the first line is the heading, further lines are set smaller */
    const bp_buckets *buckets;
    const bp_schedule *schedule; /* of these buckets */
    const bp_plan *const *plans; /* of these buckets and this schedule */
    size_t plan_count;
    const bp_plan *chosen; /* of these, whose pool is drawn */
} picture_input;

const char *picture_draw(const picture_input *input, const output *to);

/* A placement: offsets of items over time. */
enum { PICTURE_LABEL_CHARS = 400, PICTURE_GROUPS = 8 };
typedef struct packing_picture {
    const char *title, *proof;
    const bp_packing *packing;
    const uint64_t *offsets; /* of its items */
    uint64_t total, bound;
    /* The name of an item; `text` may hold it. */
    const char *(*label)(const void *user, size_t item, char text[PICTURE_LABEL_CHARS]);
    const void *user;
    /* Colours by group, with a legend; NULL: items of one size have one colour. */
    const uint8_t *groups; /* of items, less than group_count, which is at most PICTURE_GROUPS */
    char (*group_names)[PICTURE_LABEL_CHARS];
    size_t group_count;
    const char *unit; /* of time: "events" */
    const char *mark; /* NULL: none; drawn at mark_time */
    uint64_t mark_time;
} packing_picture;

/* Draws time to the right, memory upwards, and a box for each interval of an item; the largest boxes have labels where
 * there is room. The largest items at the mark are listed below. */
const char *picture_draw_packing(const packing_picture *input, const output *to);

/* A schedule: steps to the right, rows for all-gathers, compute and reduce-scatters, and below them the live bytes of
 * each role by kinds of buckets. `subtitle` is the line below the model's name. */
const char *picture_draw_schedule(const schedule_view *view, const char *subtitle, const output *to);

/* Live bytes of a training step by kinds, beside totals and a limit. */
typedef struct step_level {
    const char *name;
    uint64_t bytes;
} step_level;
typedef struct step_span {
    const char *name;
    double begin, end; /* of 0 to 1 */
} step_span;
enum { PICTURE_MAX_LIVE = 16 };
typedef struct live_picture {
    const char *title;
    const char *kinds[PICTURE_MAX_LIVE]; /* from the bottom up */
    uint8_t colours[PICTURE_MAX_LIVE];   /* places in the palette */
    size_t kind_count;
    const uint64_t *live; /* of each kind, for one column after the other */
    size_t column_count;
    const step_level *levels;
    size_t level_count;
    step_level limit;
    const step_span *phases; /* in order */
    size_t phase_count;
} live_picture;

/* Draws time to the right, and kinds of memory on each other; levels are lines with a name. */
const char *picture_draw_live(const live_picture *input, const output *to);

/* Recordings. */
typedef struct snapshot_picture {
    const char *title;
    const view_pool *pool;
} snapshot_picture;

/* Draws time to the right; above, the slabs with a box for each live range, addresses upwards; below, the live
 * bytes. */
const char *picture_draw_snapshot(const snapshot_picture *input, const output *to);

/* Draws the requests that are live at the peak as a flame graph: bytes to the right, rows for roles, units and buckets. */
const char *picture_draw_flame(const snapshot_picture *input, const output *to);

#endif
