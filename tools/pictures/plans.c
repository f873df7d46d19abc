/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of memory plans: the bytes of each policy, and the chosen pool's addresses over the steps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/canvas.h"
#include "shared/cli.h"

/* Points. */
enum { BAR = 20, BAR_GAP = 8, BARS_LEFT = 116, BARS_RIGHT = 104, POOL_HEIGHT = 260, MIN_POOL = 70 };

typedef struct page {
    const picture_input *input;
    const bp_buckets_info *buckets;
    const bp_schedule_info *schedule;
    const bp_plan_info *plan; /* the chosen one */
    size_t common_chars;
    picture_kinds kinds;
} page;

/* ---- a bar for each policy --------------------------------------------------------------------------------------- */

/* The largest lower bound, which covers the memory of all plans; plans that were read from files have none. */
static uint64_t bound_of(const page *p)
{
    uint64_t bound = 0;
    for (size_t i = 0; i < p->input->plan_count; i++) {
        const bp_plan_info *plan = bp_plan_get_info(p->input->plans[i]);
        bound = plan->lower_bound_bytes > bound ? plan->lower_bound_bytes : bound;
    }
    return bound;
}

static void draw_bars(picture *to, const page *p)
{
    const uint64_t bound = bound_of(p);
    const double left = BARS_LEFT, room = PICTURE_WIDTH - PICTURE_MARGIN - BARS_RIGHT - left, top = to->y;
    uint64_t max = bound > 0 ? bound : 1;
    for (size_t i = 0; i < p->input->plan_count; i++) {
        const bp_plan_info *plan = bp_plan_get_info(p->input->plans[i]);
        max = plan->feasible && plan->bytes > max ? plan->bytes : max;
    }
    const double bound_x = left + room * (double)bound / (double)max;
    for (size_t i = 0; i < p->input->plan_count; i++, to->y += BAR + BAR_GAP) {
        const bp_plan_info *plan = bp_plan_get_info(p->input->plans[i]);
        const bool chosen = p->plan == plan;
        const double width = plan->feasible ? room * (double)plan->bytes / (double)max : 0;
        char bytes[PICTURE_BYTES_CHARS];
        picture_text(to, chosen ? &picture_bold : &picture_plain, left - 8, to->y + 15, 1, left - 8 - PICTURE_MARGIN,
                     bp_policy_name(plan->policy));
        if (plan->feasible)
            picture_fill(to, chosen ? picture_colours[0] : 0xA8B8C8, 1, left, to->y, width, BAR);
        picture_text(to, chosen ? &picture_bold : &picture_plain, fmax(left + width, bound_x) + 8, to->y + 15, 0,
                     BARS_RIGHT - 8, plan->feasible ? picture_format_bytes(plan->bytes, bytes) : "impossible");
    }
    picture_line(to, PICTURE_MARK, bound_x, top - 3, bound_x, to->y - BAR_GAP + 3, 1.5, true);
    for (size_t i = 0; i < p->input->plan_count; i++) {
        const bp_plan_info *plan = bp_plan_get_info(p->input->plans[i]);
        char text[400];
        snprintf(text, sizeof text, "%s: %s", bp_policy_name(plan->policy), plan->infeasible_because);
        if (!plan->feasible)
            picture_paragraph(to, &picture_quiet, text);
    }
    char text[64], bytes[PICTURE_BYTES_CHARS];
    snprintf(text, sizeof text, "lower bound %s", picture_format_bytes(bound, bytes));
    picture_legend(to, PICTURE_ICON_UPRIGHT, PICTURE_MARK, text);
    picture_legend_end(to);
}

/* ---- the boxes of a pool ----------------------------------------------------------------------------------------- */

/* The roles of one slab, or of requests that share memory on demand. */
typedef struct pool {
    uint32_t roles;      /* BP_ROLE_BIT mask */
    uint64_t slab_bytes; /* of requests with an address */
    uint64_t live_bytes; /* peak of requests without an address, which are drawn above the slab */
    uint64_t bound;      /* peak live bytes, or more where the plan has more */
    uint64_t bytes;
    double used;    /* mean live share of the bytes */
    uint64_t *live; /* bytes without an address, [kind * (steps + 1) + step]; 0 at the last step */
    uint64_t *total;
    picture_box *boxes; /* steps and bytes until they are drawn */
    uint32_t *units;    /* of boxes with an address */
    size_t named_count, count, capacity;
} pool;

/* Changes at the beginning of steps, of which add_up makes prefix sums. */
static void add_live(const bp_scheduled_request *live, uint64_t bytes, uint64_t *changes)
{
    for (size_t k = 0; k < live->interval_count; k++) {
        changes[live->intervals[k].begin] += bytes;
        changes[live->intervals[k].end] -= bytes;
    }
}

static void add_up(uint64_t *changes, size_t count)
{
    for (size_t i = 1; i < count; i++)
        changes[i] += changes[i - 1];
}

static bool add_box(pool *o, double begin, double end, double offset, double bytes, uint8_t kind)
{
    if (o->count == o->capacity) {
        const size_t capacity = 2 * o->capacity + 64;
        picture_box *boxes = realloc(o->boxes, capacity * sizeof *boxes);
        o->boxes = boxes != NULL ? boxes : o->boxes;
        uint32_t *units = realloc(o->units, capacity * sizeof *units);
        o->units = units != NULL ? units : o->units;
        if (boxes == NULL || units == NULL)
            return false;
        o->capacity = capacity;
    }
    o->boxes[o->count++] = (picture_box){begin, offset, end - begin, bytes, 0, kind};
    return true;
}

static bool place_requests(page *p, pool *o)
{
    const uint64_t mask = p->plan->alignment - 1;
    for (size_t r = 0; r < p->plan->request_count; r++) {
        const bp_plan_request *planned = &p->plan->requests[r];
        if (!(o->roles & BP_ROLE_BIT(planned->role)))
            continue;
        const bp_scheduled_request *live = &p->schedule->requests[r];
        const bp_bucket *bucket = &p->buckets->buckets[p->buckets->requests[r].bucket];
        const bool is_joint = (o->roles & (o->roles - 1)) != 0;
        uint8_t kind = picture_kind_of(bucket, is_joint ? bp_role_name((bp_role)planned->role) : "", p->kinds);
        uint64_t bytes = (planned->bytes + mask) & ~mask;
        add_live(live, bytes, o->total);
        if (planned->placement != BP_PLACE_PLANNED) {
            add_live(live, bytes, o->live + kind * (p->schedule->step_count + 1));
            continue;
        }
        o->slab_bytes = p->plan->slabs[planned->slab].bytes;
        for (size_t k = 0; k < live->interval_count; k++) {
            if (!add_box(o, live->intervals[k].begin, live->intervals[k].end, (double)planned->offset,
                         (double)planned->bytes, kind))
                return false;
            o->units[o->named_count++] = (uint32_t)bucket->unit;
        }
    }
    return true;
}

/* Stacks requests without an address on the slab: a box for each run of steps in which its place is the same. */
static bool stack_live(const page *p, pool *o)
{
    const size_t steps = p->schedule->step_count;
    uint64_t *base = calloc(steps + 1, sizeof *base);
    if (base == NULL)
        return false;
    bool good = true;
    for (unsigned kind = 0; kind < PICTURE_KINDS; kind++) {
        uint64_t *live = o->live + kind * (steps + 1);
        add_up(live, steps + 1);
        for (size_t begin = 0, end; begin < steps && good; begin = end) {
            for (end = begin + 1; end < steps && live[end] == live[begin] && base[end] == base[begin];)
                end++;
            if (live[begin] > 0)
                good = add_box(o, (double)begin, (double)end, (double)o->slab_bytes + (double)base[begin],
                               (double)live[begin], kind);
        }
        for (size_t step = 0; step < steps; step++) {
            base[step] += live[step];
            o->live_bytes = base[step] > o->live_bytes ? base[step] : o->live_bytes;
        }
    }
    free(base);
    return good;
}

static bool pool_init(page *p, uint32_t roles, pool *o)
{
    const size_t steps = p->schedule->step_count;
    *o = (pool){.roles = roles};
    o->live = calloc((steps + 1) * PICTURE_KINDS, sizeof *o->live);
    o->total = calloc(steps + 1, sizeof *o->total);
    if (o->live == NULL || o->total == NULL || !place_requests(p, o) || !stack_live(p, o))
        return false;
    add_up(o->total, steps + 1);
    double sum = 0;
    for (size_t step = 0; step < steps; step++) {
        o->bound = o->total[step] > o->bound ? o->total[step] : o->bound;
        sum += (double)o->total[step];
    }
    for (size_t i = 0; i < p->plan->role_count; i++) {
        if (p->plan->roles[i].roles == roles)
            o->bound = p->plan->roles[i].lower_bound_bytes;
    }
    o->bytes = o->slab_bytes + o->live_bytes;
    o->used = o->bytes > 0 ? sum / (double)o->bytes / (double)steps : 0;
    return true;
}

static void pool_finish(pool *o)
{
    free(o->live);
    free(o->total);
    free(o->boxes);
    free(o->units);
}

/* ---- drawing a pool ---------------------------------------------------------------------------------------------- */

/* "param, 436.1 MiB, the lower bound; 71% in use on average" */
static void write_caption(picture *to, const pool *o)
{
    char text[300], roles[ROLES_TEXT_CHARS], bytes[PICTURE_BYTES_CHARS], bound[PICTURE_BYTES_CHARS], more[64] = "";
    if (o->bytes > o->bound)
        snprintf(more, sizeof more, "lower bound %s", picture_format_bytes(o->bound, bound));
    snprintf(text, sizeof text, "%s: %s, %s, %.*f%% in use on average", names_roles(o->roles, roles),
             picture_format_bytes(o->bytes, bytes), *more != '\0' ? more : "the lower bound", o->used < 0.0995 ? 1 : 0,
             100 * o->used);
    picture_paragraph(to, &picture_bold, text);
    if (o->live_bytes > 0) {
        snprintf(text, sizeof text, "%s on demand%s", picture_format_bytes(o->live_bytes, bytes),
                 o->slab_bytes > 0 ? ", drawn above the slab" : ", without stable addresses");
        picture_paragraph(to, &picture_quiet, text);
    }
}

static void draw_pool(picture *to, page *p, pool *o, double height, bool is_last)
{
    write_caption(to, o);
    const picture_box plot = {PICTURE_LEFT, to->y + 6, PICTURE_PLOT, height, fmax((double)o->bytes, 1), 0};
    const double bottom = plot.y + height, step = plot.width / (double)p->schedule->step_count;
    const double point = height / plot.bytes, slab = (double)o->slab_bytes * point;
    picture_memory_axis(to, &plot);
    picture_fill(to, PICTURE_UNUSED, 1, plot.x, bottom - slab, plot.width, slab);
    for (size_t i = 0; i < o->count; i++) {
        picture_box *b = &o->boxes[i];
        *b = (picture_box){plot.x + b->x * step,
                           bottom - (b->y + b->height) * point,
                           b->width * step,
                           b->height * point,
                           0,
                           b->colour};
    }
    picture_boxes(to, &plot, o->boxes, o->count);
    const double bound = bottom - (double)o->bound * point;
    picture_line(to, PICTURE_MARK, plot.x, bound, plot.x + plot.width, bound, 1.5, true);
    for (size_t i = 0; i < o->named_count && !picture_is_coarse(o->count); i++) {
        const picture_box *b = &o->boxes[i];
        const double middle = b->y + b->height / 2;
        const char *name = p->buckets->units[o->units[i]].name + p->common_chars;
        const picture_style style = {PICTURE_TEXT, false, picture_ink(picture_colours[b->colour])};
        if (b->height >= PICTURE_TEXT + 4 && fabs(bound - middle) > PICTURE_TEXT &&
            picture_text_width(&style, name) < b->width - 6)
            picture_text(to, &style, b->x + b->width / 2, middle + 5, 0.5, b->width - 6, name);
    }
    to->y = bottom + 12;
    if (is_last)
        picture_step_axis(to, &plot, p->input->buckets, p->input->schedule, p->common_chars);
}

/* Pools of the chosen plan, in the order of their first roles. */
static size_t find_pools(page *p, pool pools[BP_ROLE_COUNT], bool *good)
{
    size_t count = 0;
    uint32_t seen = 0;
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        uint32_t roles = BP_ROLE_BIT(role);
        bool is_used = false;
        for (size_t r = 0; r < p->plan->request_count; r++)
            is_used = is_used || (p->plan->requests[r].role == role && p->schedule->requests[r].interval_count > 0);
        for (size_t i = 0; i < p->plan->role_count; i++)
            roles |= p->plan->roles[i].roles & BP_ROLE_BIT(role) ? p->plan->roles[i].roles : 0;
        if (!is_used || (seen & roles))
            continue;
        seen |= roles;
        *good = pool_init(p, roles, &pools[count++]) && *good;
    }
    return count;
}

static void draw_pools(picture *to, page *p)
{
    pool pools[BP_ROLE_COUNT];
    bool good = true;
    double bytes = 1;
    const size_t count = find_pools(p, pools, &good);
    to->failed = to->failed || !good;
    for (size_t i = 0; i < count; i++)
        bytes += (double)pools[i].bytes;
    for (size_t i = 0; i < count && good; i++)
        draw_pool(to, p, &pools[i], fmax(MIN_POOL, POOL_HEIGHT * (double)pools[i].bytes / bytes), i + 1 == count);
    for (size_t i = 0; i < count; i++)
        pool_finish(&pools[i]);
    picture_kinds_legend(to, p->kinds);
    picture_legend(to, PICTURE_ICON_BOX, PICTURE_UNUSED, "reserved, unused");
    picture_legend(to, PICTURE_ICON_DASHES, PICTURE_MARK, "lower bound");
    picture_legend_end(to);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void draw_page(picture *to, const void *user)
{
    page p = *(const page *)user;
    char text[200], bytes[PICTURE_BYTES_CHARS];
    picture_title(to, p.input->title);
    picture_text(to, &picture_bold, PICTURE_MARGIN, to->y + PICTURE_TEXT, 0, PICTURE_INNER, "Memory by policy");
    to->y += PICTURE_LINE + 4;
    draw_bars(to, &p);
    to->y += 12;
    if (!p.plan->feasible)
        return;
    snprintf(text, sizeof text, "Policy %s over one iteration", bp_policy_name(p.plan->policy));
    picture_text(to, &picture_heading, PICTURE_MARGIN, to->y + PICTURE_TEXT, 0, PICTURE_INNER, text);
    to->y += PICTURE_LINE + 2;
    draw_pools(to, &p);
    to->y += 4;
    picture_paragraph(to, &picture_quiet,
                      "Steps go to the right, addresses upwards; a box is a bucket while it is live.");
    if (p.buckets->persistent_bytes > 0) {
        snprintf(text, sizeof text, "Not shown: %s of parameters outside units, gathered once and kept.",
                 picture_format_bytes(p.buckets->persistent_bytes, bytes));
        picture_paragraph(to, &picture_quiet, text);
    }
}

const char *picture_draw(const picture_input *input, const output *to)
{
    page p = {.input = input,
              .buckets = bp_buckets_get_info(input->buckets),
              .schedule = bp_schedule_get_info(input->schedule)};
    if (input->plan_count == 0)
        return "there is nothing to draw: no plans";
    p.plan = bp_plan_get_info(input->chosen);
    if (p.plan->request_count != p.buckets->request_count)
        return "a plan has other requests than these buckets: it was made for another model";
    bool is_used = false;
    for (size_t r = 0; r < p.buckets->request_count; r++)
        is_used = is_used || p.schedule->requests[r].interval_count > 0;
    if (!is_used)
        return "there is nothing to draw: no memory is ever live";
    p.common_chars = names_common_chars(input->buckets);
    return picture_write(draw_page, &p, to);
}
