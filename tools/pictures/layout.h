/* What a picture of plans shows, in steps and bytes. Nothing here knows how it is drawn. */
#ifndef TOOLS_PICTURES_LAYOUT_H
#define TOOLS_PICTURES_LAYOUT_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "pictures/plans.h"

/* ---- kinds of buckets -------------------------------------------------------------------------------------------- */

/* Kinds of buckets that are told apart: each is a colour. A kind is a bucket's name without a number at its end. */
enum { PICTURE_DENSE, PICTURE_EXPERTS, PICTURE_FIRST_HASHED, PICTURE_OTHER = 7, PICTURE_KINDS };
#define PICTURE_KIND_CHARS 40

typedef char picture_kinds[PICTURE_KINDS][PICTURE_KIND_CHARS]; /* "": not in the picture */

/* The kind of a bucket, named in `kinds` from now on. `role`: of a bucket beside those of another role, else "". */
uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds);

/* ---- layout ------------------------------------------------------------------------------------------------------ */

/* A request while it is live: `bytes` from `offset` in steps [begin, end). */
typedef struct picture_rect {
    uint64_t offset, bytes;
    uint32_t begin, end;
    uint32_t unit;
    uint8_t kind;
} picture_rect;

/* One role of one plan, or all roles that share its slab. */
typedef struct picture_panel {
    const bp_plan_info *plan;
    bp_plan_role role;   /* of a plan that was read from a file: only role, bytes and bound, worked out here */
    bool is_worked_out;  /* of such a plan */
    bool drawn_before;   /* a slab of several roles, in the row of the first of them */
    uint64_t slab_bytes; /* of what has an address */
    uint64_t live_bytes; /* the largest sum of what has none */
    uint64_t *live;      /* what has none, [kind * (steps + 1) + step]; nothing is live at the last one */
    picture_rect *rects; /* what has one */
    size_t rect_count;
    uint64_t *starts; /* where buffers begin in the slab, increasing; empty when the plan has no buffers */
    size_t start_count;
    double used; /* mean share of the bytes that is live */
} picture_panel;

typedef struct picture_layout {
    picture_panel *panels; /* all plans of the first role, all of the next one, ... */
    size_t role_count, plan_count;
    uint32_t roles[BP_ROLE_COUNT];
    size_t steps;
    size_t common_chars; /* that all names of units begin with and that need not be repeated */
    picture_kinds kinds;
} picture_layout;

/* Whether anything lies outside the slab: allocated on demand. */
static inline bool picture_is_dynamic(const picture_panel *panel)
{
    return panel->live_bytes > 0;
}

#endif
