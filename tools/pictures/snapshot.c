/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of recorded steps: live ranges by address and time, and the holders of the peak. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/canvas.h"

/* Points. */
enum { SLABS_HEIGHT = 300, LIVE_HEIGHT = 120, SLAB_GAP = 5, MIN_SLAB = 20 };
#define MIN_EXTENT 0.4

typedef struct page {
    const snapshot_picture *input;
    const view_pool *pool;
    picture_box *bands; /* of the slabs, then outside them; their bytes set the height */
    size_t band_count;
    uint64_t *track_offsets;
    picture_box *boxes; /* live ranges, then unmapped ranges */
    picture_box slabs, live;
} page;

/* ---- where things are ----------------------------------------------------------------------------------------------------------- */

static double x_of(const page *p, uint64_t time_ns)
{
    uint64_t length = p->pool->length_ns > 0 ? p->pool->length_ns : 1;
    return PICTURE_LEFT + PICTURE_PLOT * fmin((double)time_ns / (double)length, 1);
}

static const char *arrange(page *p)
{
    const view_pool *pool = p->pool;
    double total = 1, y = 0; /* relative to the slabs */
    p->band_count = pool->info->slab_count + (pool->track_count > 0);
    p->bands = calloc(p->band_count + 1, sizeof *p->bands);
    p->track_offsets = calloc(pool->track_count + 1, sizeof *p->track_offsets);
    p->boxes = calloc(pool->span_count + pool->gone_count + 1, sizeof *p->boxes);
    if (p->bands == NULL || p->track_offsets == NULL || p->boxes == NULL)
        return "out of memory while drawing";
    for (size_t i = 0; i < pool->track_count; i++)
        p->track_offsets[i + 1] = p->track_offsets[i] + pool->tracks[i];
    for (size_t i = 0; i < p->band_count; i++) {
        p->bands[i].bytes =
            i < pool->info->slab_count ? (double)pool->slabs[i].bytes : (double)p->track_offsets[pool->track_count];
        total += p->bands[i].bytes;
    }
    double count = fmax((double)p->band_count, 1), gap = fmin(SLAB_GAP, SLABS_HEIGHT / 3.0 / count);
    double gaps = gap * (count - 1);
    double min = fmin(MIN_SLAB, fmax(SLABS_HEIGHT - gaps, 0) / count), rest = SLABS_HEIGHT - gaps - min * count;
    for (size_t i = 0; i < p->band_count; i++) {
        picture_box *band = &p->bands[i];
        *band = (picture_box){PICTURE_LEFT,         y, PICTURE_PLOT, min + fmax(rest, 0) * band->bytes / total,
                              fmax(band->bytes, 1), 0};
        y += band->height + gap;
    }
    p->slabs = (picture_box){PICTURE_LEFT, 0, PICTURE_PLOT, SLABS_HEIGHT, 0, 0};
    uint64_t max = pool->peak_bytes;
    if (pool->info->has_plan && pool->info->plan_bytes > max)
        max = pool->info->plan_bytes;
    p->live = (picture_box){PICTURE_LEFT, 0, PICTURE_PLOT, LIVE_HEIGHT, fmax((double)max, 1) * 1.12, 0};
    return NULL;
}

/* ---- slabs ------------------------------------------------------------------------------------------------------------------------ */

static picture_box box_of(const page *p, const view_span *span)
{
    bool outside = span->slab == VIEW_OUTSIDE;
    const picture_box *band = &p->bands[outside ? p->band_count - 1 : span->slab];
    double offset = (double)(outside ? p->track_offsets[span->offset] : span->offset);
    double height = band->height * fmin((double)p->pool->requests[span->request].bytes / band->bytes, 1);
    double x = x_of(p, span->begin_ns), y = band->y + band->height * (1 - offset / band->bytes) - height;
    return (picture_box){x, y, fmax(x_of(p, span->end_ns) - x, MIN_EXTENT), fmax(height, MIN_EXTENT), band->bytes, 0};
}

static void draw_band(picture *to, const page *p, size_t index)
{
    const picture_box *band = &p->bands[index];
    const view_pool *pool = p->pool;
    const char *name = index < pool->info->slab_count ? pool->slabs[index].group : "no slab";
    char amount[PICTURE_BYTES_CHARS];
    picture_fill(to, PICTURE_UNUSED, 1, band->x, band->y, band->width, band->height);
    if (band->height < PICTURE_TEXT + 2)
        return;
    const double room = PICTURE_LEFT - 8 - 4, y = band->y + 14;
    picture_text(to, &picture_plain, band->x - 8, y, 1, room, *name != '\0' ? name : "slab");
    if (band->height >= 2 * PICTURE_LINE)
        picture_text(to, &picture_quiet, band->x - 8, y + PICTURE_LINE - 2, 1, room,
                     picture_format_bytes((uint64_t)band->bytes, amount));
}

/* Parts of slabs without memory; nothing is reserved then. */
static picture_box gone_box(const page *p, const view_gone *gone)
{
    const picture_box *band = &p->bands[gone->slab];
    double x = x_of(p, gone->begin_ns), height = band->height * (double)gone->bytes / band->bytes;
    double y = band->y + band->height * (1 - (double)gone->offset / band->bytes) - height;
    return (picture_box){x, y, x_of(p, gone->end_ns) - x, height, 0, PICTURE_GONE};
}

static void draw_slabs(picture *to, page *p)
{
    const view_pool *pool = p->pool;
    p->slabs.y = to->y;
    for (size_t i = 0; i < p->band_count; i++)
        p->bands[i].y += to->y;
    /* more bands than points are one grey area */
    if (p->band_count > SLABS_HEIGHT)
        picture_fill(to, PICTURE_UNUSED, 1, p->slabs.x, p->slabs.y, p->slabs.width, p->slabs.height);
    for (size_t i = 0; i < p->band_count && p->band_count <= SLABS_HEIGHT; i++)
        draw_band(to, p, i);
    for (size_t i = 0; i < pool->span_count; i++) {
        p->boxes[i] = box_of(p, &pool->spans[i]);
        p->boxes[i].colour = pool->role_of[pool->spans[i].request] % PICTURE_KINDS;
    }
    for (size_t i = 0; i < pool->gone_count; i++)
        p->boxes[pool->span_count + i] = gone_box(p, &pool->gone[i]);
    picture_boxes(to, &p->slabs, p->boxes, pool->span_count + pool->gone_count);
    to->y += SLABS_HEIGHT;
}

/* ---- live bytes ------------------------------------------------------------------------------------------------------------------- */

/* A line of live bytes. Changes in the same quarter of a point are drawn as one: from the first over the least and the most to the last. */
typedef struct curve {
    picture *to;
    const page *p;
    double x;
    uint64_t first, min, max, last;
} curve;

static void add_point(picture *to, char command, double x, double y)
{
    picture_print(to, "%c", command);
    picture_number(to, x);
    picture_print(to, " ");
    picture_number(to, y);
}

static void draw_column(const curve *c)
{
    const picture_box *box = &c->p->live;
    const uint64_t values[] = {c->first, c->min, c->max, c->last};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (i == 0 || values[i] != values[i - 1])
            add_point(c->to, 'L', c->x, box->y + box->height * (1 - (double)values[i] / box->bytes));
    }
}

static void add_change(curve *c, double x, uint64_t live)
{
    if (x - c->x >= 0.25) {
        draw_column(c);
        *c = (curve){c->to, c->p, x, c->last, c->last, c->last, c->last};
    }
    c->min = live < c->min ? live : c->min;
    c->max = live > c->max ? live : c->max;
    c->last = live;
}

/* The area below all live bytes, or below those that the plan knows. Its edge shows a moment, too. */
static void draw_curve(picture *to, const page *p, bool planned, uint32_t colour)
{
    const view_pool *pool = p->pool;
    view_changes changes;
    const view_span *span = NULL;
    bool begins = false;
    double bottom = p->live.y + p->live.height;
    curve c = {.to = to, .p = p, .x = p->live.x};
    picture_print(to, "<path fill=\"#%06x\" stroke=\"#%06x\" stroke-width=\"0.6\" d=\"", (unsigned)colour,
                  (unsigned)colour);
    add_point(to, 'M', p->live.x, bottom);
    bool good = view_changes_init(pool, &changes);
    to->failed = to->failed || !good;
    while (good && view_changes_next(&changes, &span, &begins)) {
        const bp_snapshot_request *request = &pool->requests[span->request];
        if (planned && strcmp(request->placement, "planned") != 0)
            continue;
        uint64_t live = begins ? c.last + request->bytes : c.last - request->bytes;
        add_change(&c, x_of(p, begins ? span->begin_ns : span->end_ns), live);
    }
    view_changes_finish(&changes);
    draw_column(&c);
    c.x = p->live.x + p->live.width;
    c.first = c.min = c.max = c.last;
    draw_column(&c);
    add_point(to, 'L', p->live.x + p->live.width, bottom);
    picture_print(to, "z\"/>\n");
}

static void draw_live(picture *to, page *p)
{
    const bp_snapshot_pool *info = p->pool->info;
    char text[96], bytes[PICTURE_BYTES_CHARS];
    to->y += 12;
    picture_text(to, &picture_bold, PICTURE_MARGIN, to->y + PICTURE_TEXT, 0, PICTURE_INNER, "Live bytes");
    p->live.y = to->y + PICTURE_LINE + 4;
    picture_memory_axis(to, &p->live);
    draw_curve(to, p, false, info->has_plan ? 0xC8C8C8 : 0x8C8C8C);
    if (info->has_plan)
        draw_curve(to, p, true, 0x808080);
    const double bottom = p->live.y + p->live.height, peak = x_of(p, p->pool->peak_ns);
    const double bound = bottom - p->live.height * (double)info->lower_bound_bytes / p->live.bytes;
    if (info->has_plan)
        picture_line(to, PICTURE_MARK, p->live.x, bound, p->live.x + p->live.width, bound, 1.5, true);
    if (p->pool->peak_bytes > 0) { /* two lines, around the heading */
        picture_line(to, PICTURE_MARK, peak, p->slabs.y - 4, peak, p->slabs.y + p->slabs.height + 4, 1, false);
        picture_line(to, PICTURE_MARK, peak, p->live.y, peak, bottom, 1, false);
    }

    const double length = (double)(p->pool->length_ns > 0 ? p->pool->length_ns : 1),
                 step = picture_nice_step(length / 6);
    const double unit = length >= 2e9 ? 1e9 : length >= 2e6 ? 1e6 : length >= 2e3 ? 1e3 : 1;
    const char *name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "\u00b5s" : "ns";
    const int decimals = step < unit ? (int)ceil(-log10(step / unit) - 0.0001) : 0;
    for (unsigned i = 0; i * step <= length; i++) {
        snprintf(text, sizeof text, "%.*f %s", i > 0 ? decimals : 0, i * step / unit, name);
        picture_tick(to, x_of(p, (uint64_t)(i * step)), bottom, text);
    }
    to->y = bottom + 30;
    if (info->has_plan) {
        picture_legend(to, PICTURE_ICON_BOX, 0x808080, "of the plan");
        picture_legend(to, PICTURE_ICON_BOX, 0xC8C8C8, "of others");
        snprintf(text, sizeof text, "lower bound of the plan %s", picture_format_bytes(info->lower_bound_bytes, bytes));
        picture_legend(to, PICTURE_ICON_DASHES, PICTURE_MARK, text);
    }
    picture_legend_end(to);
}

/* ---- the page -------------------------------------------------------------------------------------------------------------------- */

static void draw_page(picture *to, const void *user)
{
    page p = *(const page *)user;
    char text[160], bytes[PICTURE_BYTES_CHARS];
    picture_title(to, p.input->title);
    for (size_t role = 0; role < p.pool->role_count; role++)
        picture_legend(to, PICTURE_ICON_BOX, picture_colours[role % PICTURE_KINDS], p.pool->roles[role].name);
    picture_legend(to, PICTURE_ICON_BOX, PICTURE_UNUSED, "unused");
    if (p.pool->peak_bytes > 0) {
        snprintf(text, sizeof text, "peak %s", picture_format_bytes(p.pool->peak_bytes, bytes));
        picture_legend(to, PICTURE_ICON_LINE, PICTURE_MARK, text);
    }
    picture_legend_end(to);
    to->y += 12;
    draw_slabs(to, &p);
    draw_live(to, &p);
    to->y += 4;
    picture_paragraph(
        to, &picture_quiet,
        "Rightwards: time. Above: slabs, addresses upwards; a box is a bucket while it is live, white has no "
        "memory. Below: live bytes.");
    if (picture_is_coarse(p.pool->span_count + p.pool->gone_count)) {
        snprintf(text, sizeof text, "Of %zu boxes those that share half a point are drawn as one, the first of them.",
                 p.pool->span_count);
        picture_paragraph(to, &picture_quiet, text);
    }
}

const char *picture_draw_snapshot(const snapshot_picture *input, const output *to)
{
    page p = {.input = input, .pool = input->pool};
    const char *error = arrange(&p);
    if (error == NULL)
        error = picture_write(draw_page, &p, to);
    free(p.bands);
    free(p.track_offsets);
    free(p.boxes);
    return error;
}
