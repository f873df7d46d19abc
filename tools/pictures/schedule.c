/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a schedule: the work of each step and its live bytes. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/canvas.h"
#include "schedule/view.h"

typedef enum lane_row { ROW_GATHER, ROW_COMPUTE, ROW_REDUCE, ROW_COUNT } lane_row;

/* A box of a lane. An all-gather runs from its acquire to its compute, a reduce-scatter from the end of compute to
 * its release. */
typedef struct lane_item {
    uint32_t begin, end; /* steps */
    int32_t unit;
    bp_phase phase; /* of compute */
    uint8_t row;
    uint8_t track; /* of the row: items of a track do not overlap */
} lane_item;

enum { MAX_TRACKS = 6 };

typedef struct lane_items {
    lane_item *items;
    size_t count;
    uint32_t tracks[ROW_COUNT]; /* 0: the row is empty */
} lane_items;

/* ---- lanes ------------------------------------------------------------------------------------------------------- */

/* Steps that are searched for the compute of an all-gather; beyond them its box ends. */
#define MAX_STEPS_AHEAD 1024

static bool computes(const schedule_view *v, uint32_t index, int32_t unit)
{
    const bp_step *step = &bp_schedule_get_info(v->analysed->schedule)->steps[index];
    return step->phase != BP_PHASE_RECORDED && (step->unit == unit || step->forward_unit == unit);
}

/* The interval that begins with the event. */
static bp_interval interval_of(const schedule_view *v, const bp_schedule_event *event)
{
    const bp_scheduled_request *r = &bp_schedule_get_info(v->analysed->schedule)->requests[event->first_request];
    for (size_t i = 0; i < r->interval_count; i++) {
        if (r->intervals[i].begin == event->step)
            return r->intervals[i];
    }
    return (bp_interval){event->step, event->step + 1};
}

static void add(lane_items *lanes, lane_row row, uint32_t begin, uint32_t end, int32_t unit, bp_phase phase)
{
    lanes->items[lanes->count++] = (lane_item){
        .begin = begin, .end = end > begin ? end : begin + 1, .unit = unit, .phase = phase, .row = (uint8_t)row};
}

static void add_gather(const schedule_view *v, lane_items *lanes, const bp_interval *live, int32_t unit)
{
    uint32_t end = live->begin;
    while (end < live->end && end - live->begin < MAX_STEPS_AHEAD && !computes(v, end, unit))
        end++;
    add(lanes, ROW_GATHER, live->begin, end == live->end ? live->begin + 1 : end, unit, BP_PHASE_FORWARD);
}

static void add_reduction(const schedule_view *v, lane_items *lanes, const bp_interval *live, int32_t unit)
{
    uint32_t begin = live->begin;
    while (begin + 1 < live->end && computes(v, begin, unit))
        begin++;
    add(lanes, ROW_REDUCE, begin, live->end, unit, BP_PHASE_BACKWARD);
}

static int by_begin(const void *a, const void *b)
{
    const lane_item *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* false: out of memory. Call lane_items_finish either way. */
static bool lane_items_init(const schedule_view *v, lane_items *lanes)
{
    *lanes = (lane_items){.items = calloc((size_t)v->steps + v->event_count + 1, sizeof *lanes->items)};
    if (lanes->items == NULL)
        return false;

    for (uint32_t i = 0; i < v->steps; i++) {
        bp_step step = bp_schedule_get_info(v->analysed->schedule)->steps[i];
        if (step.phase == BP_PHASE_RECORDED)
            continue;
        lane_item *last = lanes->count > 0 ? &lanes->items[lanes->count - 1] : NULL;
        if (last != NULL && names_direction(&step) != step.phase && last->unit == step.unit)
            last->end = i + 1; /* second half of the step */
        else
            add(lanes, ROW_COMPUTE, i, i + 1, step.unit, step.phase);
    }

    /* one event per unit suffices: buckets of a unit are gathered together */
    int32_t gathered = BP_OUTSIDE, reduced = BP_OUTSIDE;
    for (size_t i = 0; i < v->event_count; i++) {
        const bp_schedule_event *event = &v->events[i];
        request_view r;
        if (i > 0 && event->step != v->events[i - 1].step)
            gathered = reduced = BP_OUTSIDE;
        if (!event->acquire || !schedule_view_request(v, event->first_request, &r) ||
            (BP_ROLES_STATE & BP_ROLE_BIT(r.request.role)))
            continue;
        bool is_gather = event->lane == BP_LANE_GATHER;
        int32_t *before = is_gather ? &gathered : &reduced;
        bp_interval live = interval_of(v, event);
        if (*before != r.bucket.unit && is_gather)
            add_gather(v, lanes, &live, r.bucket.unit);
        else if (*before != r.bucket.unit)
            add_reduction(v, lanes, &live, r.bucket.unit);
        *before = r.bucket.unit;
    }

    /* The first free track, else the last. */
    uint32_t free_from[ROW_COUNT][MAX_TRACKS] = {0};
    qsort(lanes->items, lanes->count, sizeof *lanes->items, by_begin);
    for (size_t i = 0; i < lanes->count; i++) {
        lane_item *item = &lanes->items[i];
        uint8_t track = 0;
        while (track + 1 < MAX_TRACKS && free_from[item->row][track] > item->begin)
            track++;
        item->track = track;
        free_from[item->row][track] = item->end;
        if (track >= lanes->tracks[item->row])
            lanes->tracks[item->row] = track + 1u;
    }

    return true;
}

/* Points. */
enum {
    ROW = 36,
    GAP = 8,
    PLOT_HEIGHT = 150,
    FINE_STEPS = 2 * PICTURE_PLOT
}; /* more steps are thinner than half a point */

typedef struct schedule_picture {
    const schedule_view *view;
    const char *subtitle;
    picture_kinds kinds;
    lane_items lanes;
    uint64_t *live; /* [(role * PICTURE_KINDS + kind) * (steps + 1) + step] */
} schedule_picture;

static double x_of(const schedule_picture *p, uint32_t step)
{
    return PICTURE_LEFT + PICTURE_PLOT * (double)step / p->view->steps;
}

/* ---- work of the lanes ------------------------------------------------------------------------------------------- */

static uint32_t colour_of(const lane_item *item)
{
    static const uint32_t computes[] = {
        [BP_PHASE_FORWARD] = 0x8478BF, [BP_PHASE_BACKWARD] = 0x3B3561,        [BP_PHASE_RECORDED] = PICTURE_GREY,
        [BP_PHASE_OUTSIDE] = 0xB0B0B0, [BP_PHASE_BACKWARD_GATHER] = 0x3B3561, [BP_PHASE_COMBINED] = 0x5A4FA0,
        [BP_PHASE_REDUCE] = 0x3B3561};
    return item->row == ROW_COMPUTE ? computes[item->phase] : item->row == ROW_GATHER ? 0x009E73 : 0xCC79A7;
}

static void draw_item(picture *to, const schedule_picture *p, const lane_item *item, double top, double height,
                      bool named)
{
    double left = x_of(p, item->begin), width = x_of(p, item->end) - left;
    picture_fill(to, colour_of(item), 1, left, top, width > 3 ? width - 0.8 : width, height > 5 ? height - 1 : height);
    const char *name = "outside";
    if (item->unit >= 0)
        name = bp_buckets_get_info(p->view->analysed->buckets)->units[item->unit].name + p->view->common_chars;
    const picture_style style = {PICTURE_TEXT, false, picture_ink(colour_of(item))};
    if (named && height >= PICTURE_TEXT + 3 && picture_text_width(&style, name) < width - 4)
        picture_text(to, &style, left + width / 2, top + height / 2 + 4.5, 0.5, width - 4, name);
}

/* Merges adjacent items of equal look when steps are thinner than a pixel; a track that overlaps itself, the last one,
 * has no names. */
static void draw_row(picture *to, const schedule_picture *p, unsigned row, double top)
{
    bool fine = p->view->steps > FINE_STEPS;
    uint32_t pixel = p->view->steps / FINE_STEPS; /* steps per pixel */
    double height = (double)ROW / (fine ? 1 : p->lanes.tracks[row]);
    lane_item merged = {.end = 0};
    for (size_t i = 0; i < p->lanes.count; i++) {
        const lane_item *item = &p->lanes.items[i];
        if (item->row != row)
            continue;
        if (!fine) {
            draw_item(to, p, item, top + item->track * height, height, true);
            continue;
        }
        if (merged.end + pixel < item->begin || colour_of(&merged) != colour_of(item)) {
            if (merged.end > 0)
                draw_item(to, p, &merged, top, height, false);
            merged = *item;
        }
        merged.end = item->end > merged.end ? item->end : merged.end;
    }
    if (merged.end > 0)
        draw_item(to, p, &merged, top, height, false);
}

static void draw_lanes(picture *to, const schedule_picture *p)
{
    static const char *const names[ROW_COUNT] = {"gather", "compute", "reduce"};
    for (unsigned row = 0; row < ROW_COUNT; row++) {
        if (p->lanes.tracks[row] == 0)
            continue;
        picture_fill(to, 0xF4F4F4, 1, PICTURE_LEFT, to->y, PICTURE_PLOT, ROW);
        picture_text(to, &picture_plain, PICTURE_LEFT - 8, to->y + ROW / 2.0 + 5, 1, PICTURE_LEFT - 12, names[row]);
        draw_row(to, p, row, to->y);
        to->y += ROW + GAP;
    }
}

/* ---- live bytes -------------------------------------------------------------------------------------------------- */

/* Peak of the kinds before `kind` in steps [begin, end). */
static uint64_t max_below(const schedule_picture *p, size_t role, unsigned kind, uint32_t begin, uint32_t end)
{
    uint64_t max = 0;
    for (uint32_t step = begin; step < end; step++) {
        uint64_t sum = 0;
        for (unsigned k = 0; k < kind; k++)
            sum += (p->live + (role * PICTURE_KINDS + k) * (p->view->steps + 1ul))[step];
        max = sum > max ? sum : max;
    }
    return max;
}

/* Adds the line of the sum of kinds before `kind`, forwards or backwards. Steps thinner than a pixel are merged. */
static void add_edge(picture *to, const schedule_picture *p, const picture_box *plot, size_t role, unsigned kind,
                     bool back)
{
    uint32_t steps = p->view->steps, stride = steps / FINE_STEPS + 1, columns = (steps + stride - 1) / stride;
    uint64_t before = 0;
    for (uint32_t i = 0; i < columns; i++) {
        uint32_t begin = (back ? columns - 1 - i : i) * stride, end = begin + stride < steps ? begin + stride : steps;
        uint64_t bytes = max_below(p, role, kind, begin, end);
        if (i > 0 && bytes == before)
            continue;
        picture_print(to, "%s", i > 0 ? "H" : back ? "L" : "M");
        picture_number(to, x_of(p, back ? end : begin));
        picture_print(to, "%s", i > 0 ? "V" : " ");
        picture_number(to, plot->y + plot->height * (1 - (double)bytes / plot->bytes));
        before = bytes;
    }
    picture_print(to, "H");
    picture_number(to, x_of(p, back ? 0 : steps));
}

static void draw_role(picture *to, const schedule_picture *p, size_t role)
{
    const live_bytes *live = &p->view->roles[role];
    char bytes[PICTURE_BYTES_CHARS], what[STEP_TEXT_CHARS], text[STEP_TEXT_CHARS + 128];
    to->y += 8;
    snprintf(text, sizeof text, "%s: at most %s live, first in step %u: %s", schedule_view_role_name(live),
             picture_format_bytes(live->peak_bytes, bytes), live->peak_step,
             analysis_step_text(p->view->analysed, live->peak_step, what));
    picture_paragraph(to, &picture_bold, text);
    const picture_box plot = {
        PICTURE_LEFT, to->y + 8, PICTURE_PLOT, PLOT_HEIGHT, fmax((double)live->peak_bytes, 1) * 1.04, 0};
    picture_memory_axis(to, &plot);
    for (unsigned kind = 0; kind < PICTURE_KINDS; kind++) {
        if (*p->kinds[kind] == '\0')
            continue;
        picture_print(to, "<path fill=\"#%06x\" d=\"", (unsigned)picture_colours[kind]);
        add_edge(to, p, &plot, role, kind + 1, false);
        add_edge(to, p, &plot, role, kind, true);
        picture_print(to, "z\"/>\n");
    }
    const double y = plot.y + plot.height * (1 - (double)live->peak_bytes / plot.bytes),
                 left = x_of(p, live->peak_step);
    picture_fill(to, PICTURE_MARK, 0.3, left, plot.y, fmax(x_of(p, live->peak_step + 1) - left, 2), plot.height);
    picture_line(to, PICTURE_MARK, plot.x, y, plot.x + plot.width, y, 1.5, true);
    picture_step_axis(to, &plot, p->view->analysed->buckets, p->view->analysed->schedule, p->view->common_chars);
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void draw_lanes_legend(picture *to, const schedule_picture *p)
{
    static const char *const names[] = {[BP_PHASE_FORWARD] = "forward",    [BP_PHASE_BACKWARD] = "backward",
                                        [BP_PHASE_RECORDED] = NULL,        [BP_PHASE_OUTSIDE] = "outside units",
                                        [BP_PHASE_BACKWARD_GATHER] = NULL, [BP_PHASE_COMBINED] = "forward and backward",
                                        [BP_PHASE_REDUCE] = NULL};
    bool used[sizeof names / sizeof *names] = {false};
    const lane_item gather = {.row = ROW_GATHER}, reduction = {.row = ROW_REDUCE};
    if (p->lanes.tracks[ROW_GATHER] > 0)
        picture_legend(to, PICTURE_ICON_BOX, colour_of(&gather), "gather of a unit");
    for (size_t i = 0; i < p->lanes.count; i++)
        used[p->lanes.items[i].phase] = used[p->lanes.items[i].phase] || p->lanes.items[i].row == ROW_COMPUTE;
    for (unsigned phase = 0; phase < sizeof names / sizeof *names; phase++) {
        const lane_item like = {.row = ROW_COMPUTE, .phase = (bp_phase)phase};
        if (used[phase] && names[phase] != NULL)
            picture_legend(to, PICTURE_ICON_BOX, colour_of(&like), names[phase]);
    }
    if (p->lanes.tracks[ROW_REDUCE] > 0)
        picture_legend(to, PICTURE_ICON_BOX, colour_of(&reduction), "reduction of a unit's gradients");
    picture_legend_end(to);
}

static void draw_page(picture *to, const void *user)
{
    schedule_picture p = *(const schedule_picture *)user;
    picture_title(to, p.view->analysed->name);
    picture_paragraph(to, &picture_quiet, p.subtitle);
    to->y += 8;
    draw_lanes_legend(to, &p);
    to->y += 8;
    draw_lanes(to, &p);
    for (size_t role = 0; role < p.view->role_count; role++)
        draw_role(to, &p, role);
    picture_kinds_legend(to, p.kinds);
    picture_legend(to, PICTURE_ICON_DASHES, PICTURE_MARK, "the most live bytes");
    picture_legend(to, PICTURE_ICON_BOX, 0xE2B3C5, "the first step with them");
    picture_legend_end(to);
    to->y += 4;
    picture_paragraph(to, &picture_quiet,
                      p.lanes.tracks[ROW_COMPUTE] == 0
                          ? "Rightwards: events. A gather is drawn where it is acquired, a gradient while it is held."
                          : "Rightwards: steps. A gather may run from its acquire until compute needs it, a reduction "
                            "from the end of "
                            "compute until its memory is free. Boxes above each other: at once.");
}

/* ---- preparing --------------------------------------------------------------------------------------------------- */

static void add_live(schedule_picture *p, size_t role, unsigned kind, uint64_t bytes, const bp_interval *intervals,
                     size_t count)
{
    uint64_t *live = p->live + (role * PICTURE_KINDS + kind) * (p->view->steps + 1ul);
    for (size_t k = 0; k < count; k++) { /* changes; sums are made of them later */
        live[intervals[k].begin] += bytes;
        live[intervals[k].end] -= bytes;
    }
}

static void find_live(schedule_picture *p)
{
    const schedule_view *v = p->view;
    for (uint32_t i = 0; i < bp_buckets_get_info(v->analysed->buckets)->request_count; i++) {
        request_view r;
        const bp_interval *intervals = bp_schedule_get_info(v->analysed->schedule)->requests[i].intervals;
        size_t count = bp_schedule_get_info(v->analysed->schedule)->requests[i].interval_count;
        if (!schedule_view_request(v, i, &r) || count == 0)
            continue;
        bool shown = false;
        uint64_t bytes = schedule_view_bytes(v, &r);
        for (size_t role = 0; role < v->role_count; role++) {
            bool sum = v->roles[role].role == BP_ROLE_COUNT;
            shown = shown || v->roles[role].role == r.request.role;
            if (v->roles[role].role == r.request.role || (sum && shown))
                add_live(p, role, picture_kind_of(&r.bucket, "", p->kinds), bytes, intervals, count);
        }
    }
    for (size_t row = 0; row < v->role_count * PICTURE_KINDS; row++) {
        uint64_t *live = p->live + row * (v->steps + 1ul), sum = 0;
        for (uint32_t step = 0; step <= v->steps; step++)
            live[step] = sum += live[step];
    }
}

const char *picture_draw_schedule(const schedule_view *view, const char *subtitle, const output *to)
{
    schedule_picture p = {.view = view, .subtitle = subtitle};
    p.live = calloc(view->role_count * PICTURE_KINDS * (view->steps + 1ul), sizeof *p.live);
    const char *error = "out of memory while drawing";
    if (p.live != NULL && lane_items_init(view, &p.lanes)) {
        find_live(&p);
        error = picture_write(draw_page, &p, to);
    }
    free(p.lanes.items);
    free(p.live);
    return error;
}
