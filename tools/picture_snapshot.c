#include "picture_snapshot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "picture_file.h"
#include "picture_view.h"

/* Points. */
enum {
    MARGIN = 24,
    LEFT = 92,
    PLOT_WIDTH = 1000,
    SLABS_HEIGHT = 340,
    LIVE_HEIGHT = 130,
    GAP = 34,
    SLAB_GAP = 5,
    LEAST_SLAB = 16,
    HEADING = 72,
    BELOW = 78
};
#define LEAST_EXTENT 0.4

/* So many boxes that an image of them is smaller than they are, and looks the same. */
#define MOST_BOXES 4000

static const picture_style heading = {17, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY},
                           plain = {11, false, PICTURE_BLACK}, mark = {11, true, PICTURE_MARK};

typedef struct page {
    const snapshot_picture *input;
    const view_pool *pool;
    picture_box *bands; /* of the slabs, then of what is outside; their bytes are what the height stands for */
    size_t band_count;
    uint64_t *track_offsets;
    picture_box live;
    double bottom; /* of the bands */
} page;

/* ---- where things are ----------------------------------------------------------------------------------------------------------- */

static double x_of(const page *p, uint64_t time_ns)
{
    uint64_t length = p->pool->length_ns > 0 ? p->pool->length_ns : 1;
    return MARGIN + LEFT + PLOT_WIDTH * fmin((double)time_ns / (double)length, 1);
}

static const char *arrange(page *p)
{
    const view_pool *pool = p->pool;
    double total = 1, y = MARGIN + HEADING;
    p->band_count = pool->about.slabs + (pool->track_count > 0);
    p->bands = calloc(p->band_count + 1, sizeof *p->bands);
    p->track_offsets = calloc(pool->track_count + 1, sizeof *p->track_offsets);
    if (p->bands == NULL || p->track_offsets == NULL)
        return "out of memory while drawing";
    for (size_t i = 0; i < pool->track_count; i++)
        p->track_offsets[i + 1] = p->track_offsets[i] + pool->tracks[i];
    for (size_t i = 0; i < p->band_count; i++) {
        p->bands[i].bytes =
            i < pool->about.slabs ? (double)pool->slabs[i].bytes : (double)p->track_offsets[pool->track_count];
        total += p->bands[i].bytes;
    }
    double count = fmax((double)p->band_count, 1), gaps = SLAB_GAP * (count - 1);
    double least = fmin(LEAST_SLAB, fmax(SLABS_HEIGHT - gaps, 0) / count), rest = SLABS_HEIGHT - gaps - least * count;
    for (size_t i = 0; i < p->band_count; i++) {
        picture_box *band = &p->bands[i];
        *band = (picture_box){MARGIN + LEFT,        y, PLOT_WIDTH, least + fmax(rest, 0) * band->bytes / total,
                              fmax(band->bytes, 1), 0};
        y += band->height + SLAB_GAP;
    }
    p->bottom = MARGIN + HEADING + SLABS_HEIGHT;
    uint64_t most = pool->peak_bytes;
    if (pool->about.has_plan && pool->about.plan_bytes > most)
        most = pool->about.plan_bytes;
    p->live = (picture_box){MARGIN + LEFT, p->bottom + GAP, PLOT_WIDTH, LIVE_HEIGHT, fmax((double)most, 1) * 1.12, 0};
    return NULL;
}

/* ---- slabs ------------------------------------------------------------------------------------------------------------------------ */

static void add_boxes(cairo_t *cr, const page *p, size_t role)
{
    const view_pool *pool = p->pool;
    for (size_t i = 0; i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        if (pool->role_of[span->request] != role)
            continue;
        bool outside = span->slab == VIEW_OUTSIDE;
        const picture_box *band = &p->bands[outside ? p->band_count - 1 : span->slab];
        double offset = (double)(outside ? p->track_offsets[span->offset] : span->offset);
        double height = band->height * fmin((double)pool->requests[span->request].bytes / band->bytes, 1);
        double x = x_of(p, span->begin_ns), y = band->y + band->height * (1 - offset / band->bytes) - height;
        cairo_rectangle(cr, x, y, fmax(x_of(p, span->end_ns) - x, LEAST_EXTENT), fmax(height, LEAST_EXTENT));
    }
}

static void fill_boxes(cairo_t *cr, const page *p, bool edged)
{
    for (size_t role = 0; role < p->pool->role_count; role++) {
        picture_colour(cr, picture_kind_colours[role % PICTURE_KINDS], 1);
        add_boxes(cr, p, role);
        cairo_fill_preserve(cr);
        picture_colour(cr, 0xffffff, 1);
        cairo_set_line_width(cr, edged ? 0.5 : 0);
        if (edged)
            cairo_stroke(cr);
        cairo_new_path(cr);
    }
}

static void fill_boxes_as_image(cairo_t *cr, const page *p)
{
    const double scale = 2;
    cairo_surface_t *image =
        cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)(PLOT_WIDTH * scale), (int)(SLABS_HEIGHT * scale));
    cairo_t *to_image = cairo_create(image);
    cairo_scale(to_image, scale, scale);
    cairo_translate(to_image, -(MARGIN + LEFT), -(MARGIN + HEADING));
    fill_boxes(to_image, p, false);
    cairo_save(cr);
    cairo_translate(cr, MARGIN + LEFT, MARGIN + HEADING);
    cairo_scale(cr, 1 / scale, 1 / scale);
    cairo_set_source_surface(cr, image, 0, 0);
    cairo_paint(cr);
    cairo_restore(cr);
    cairo_destroy(to_image);
    cairo_surface_destroy(image);
}

static void draw_band(cairo_t *cr, const page *p, size_t index)
{
    const picture_box *band = &p->bands[index];
    const view_pool *pool = p->pool;
    const char *name = index < pool->about.slabs ? pool->slabs[index].group : "outside slabs";
    char amount[PICTURE_BYTES_CHARS];
    picture_colour(cr, PICTURE_UNUSED, 1);
    cairo_rectangle(cr, band->x, band->y, band->width, band->height);
    cairo_fill(cr);
    if (band->height < 9)
        return;
    picture_text(cr, &plain, band->x - 8, band->y + 11, 1, LEFT - 10, *name != '\0' ? name : "slab");
    picture_format_bytes((uint64_t)band->bytes, amount);
    if (band->height >= 28)
        picture_text(cr, &quiet, band->x - 8, band->y + 25, 1, LEFT - 10, amount);
}

/* Where a slab has no memory, nothing is reserved either. */
static void draw_gone(cairo_t *cr, const page *p, uint32_t slab, uint64_t begin_ns, uint64_t end_ns)
{
    const picture_box *band = &p->bands[slab];
    double x = x_of(p, begin_ns);
    picture_colour(cr, 0xffffff, 0.78);
    cairo_rectangle(cr, x, band->y, x_of(p, end_ns) - x, band->height);
    cairo_fill(cr);
}

static void draw_residency(cairo_t *cr, const page *p)
{
    const view_pool *pool = p->pool;
    uint64_t *since = calloc(pool->about.slabs + 1, sizeof *since); /* UINT64_MAX: it has memory */
    for (size_t i = 0; since != NULL && i < pool->about.slabs; i++)
        since[i] = pool->slabs[i].resident_at_start ? UINT64_MAX : 0;
    for (size_t i = 0; since != NULL && i < pool->about.slab_events; i++) {
        bp_snapshot_slab_event event = {.size = sizeof event};
        if (bp_snapshot_slab_event_get(pool->snapshot, pool->index, i, &event) != BP_OK)
            continue;
        uint64_t now = event.time_ns - pool->first_ns, *before = &since[event.slab];
        if (event.gained && *before != UINT64_MAX)
            draw_gone(cr, p, event.slab, *before, now);
        if (event.gained || *before == UINT64_MAX)
            *before = event.gained ? UINT64_MAX : now;
    }
    for (uint32_t i = 0; since != NULL && i < pool->about.slabs; i++) {
        if (since[i] != UINT64_MAX)
            draw_gone(cr, p, i, since[i], pool->length_ns);
    }
    free(since);
}

/* ---- live bytes ------------------------------------------------------------------------------------------------------------------- */

typedef struct change {
    uint64_t time_ns, bytes;
    bool begins;
} change;

static int by_time(const void *left, const void *right)
{
    const change *a = left, *b = right;
    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    return (int)a->begins - (int)b->begins;
}

/* The area below all live bytes, or below those that the plan knows. */
static void draw_curve(cairo_t *cr, const page *p, bool planned, double alpha)
{
    const view_pool *pool = p->pool;
    change *changes = calloc(2 * pool->span_count + 1, sizeof *changes);
    size_t count = 0;
    uint64_t live = 0;
    double bottom = p->live.y + p->live.height;
    for (size_t i = 0; changes != NULL && i < pool->span_count; i++) {
        const view_span *span = &pool->spans[i];
        const bp_snapshot_request *request = &pool->requests[span->request];
        if (planned && strcmp(request->placement, "planned") != 0)
            continue;
        changes[count++] = (change){span->begin_ns, request->bytes, true};
        if (span->end_event != SIZE_MAX)
            changes[count++] = (change){span->end_ns, request->bytes, false};
    }
    if (count > 0)
        qsort(changes, count, sizeof *changes, by_time);
    cairo_move_to(cr, p->live.x, bottom);
    for (size_t i = 0; i < count; i++) {
        double x = x_of(p, changes[i].time_ns);
        cairo_line_to(cr, x, bottom - p->live.height * (double)live / p->live.bytes);
        live = changes[i].begins ? live + changes[i].bytes : live - changes[i].bytes;
        cairo_line_to(cr, x, bottom - p->live.height * (double)live / p->live.bytes);
    }
    cairo_line_to(cr, p->live.x + p->live.width, bottom - p->live.height * (double)live / p->live.bytes);
    cairo_line_to(cr, p->live.x + p->live.width, bottom);
    cairo_close_path(cr);
    picture_colour(cr, PICTURE_GREY, alpha);
    cairo_fill_preserve(cr);
    cairo_set_line_width(cr, 0.6); /* so that a moment is seen, too */
    cairo_stroke(cr);
    free(changes);
}

static void draw_level(cairo_t *cr, const page *p, uint64_t bytes, const picture_style *style, const char *what)
{
    char amount[PICTURE_BYTES_CHARS], text[64];
    double y = p->live.y + p->live.height * (1 - (double)bytes / p->live.bytes);
    picture_format_bytes(bytes, amount);
    snprintf(text, sizeof text, "%s %s", what, amount);
    picture_colour(cr, style->colour, 1);
    cairo_set_line_width(cr, 1.2);
    cairo_move_to(cr, p->live.x, y);
    cairo_line_to(cr, p->live.x + p->live.width, y);
    cairo_stroke(cr);
    double width = picture_text_width(cr, style, text) + 8;
    picture_colour(cr, 0xffffff, 0.85);
    cairo_rectangle(cr, p->live.x + p->live.width - width - 4, y + 2, width, 14);
    cairo_fill(cr);
    picture_text(cr, style, p->live.x + p->live.width - 8, y + 13, 1, 0, text);
}

static void draw_live(cairo_t *cr, const page *p)
{
    const double dashes[] = {7, 4};
    const picture_view view = {.cr = cr, .box = &p->live};
    picture_draw_memory_axis(&view);
    draw_curve(cr, p, false, 0.4);
    if (!p->pool->about.has_plan)
        return;
    draw_curve(cr, p, true, 0.6);
    cairo_set_dash(cr, dashes, 2, 0);
    draw_level(cr, p, p->pool->about.lower_bound_bytes, &mark, "lower bound of the plan");
    cairo_set_dash(cr, NULL, 0, 0);
}

static void draw_peak(cairo_t *cr, const page *p)
{
    char amount[PICTURE_BYTES_CHARS], text[64];
    double x = x_of(p, p->pool->peak_ns), top = MARGIN + HEADING - 4;
    if (p->pool->peak_bytes == 0)
        return;
    picture_format_bytes(p->pool->peak_bytes, amount);
    snprintf(text, sizeof text, "peak %s", amount);
    picture_colour(cr, PICTURE_MARK, 1);
    cairo_set_line_width(cr, 1);
    cairo_move_to(cr, x, top);
    cairo_line_to(cr, x, p->live.y + p->live.height);
    cairo_stroke(cr);
    bool right = x > MARGIN + LEFT + PLOT_WIDTH - 120;
    picture_text(cr, &mark, x + (right ? -5 : 5), top + 1, right ? 1 : 0, 0, text);
}

/* ---- the page -------------------------------------------------------------------------------------------------------------------- */

static void draw_time_axis(cairo_t *cr, const page *p)
{
    double length = (double)(p->pool->length_ns > 0 ? p->pool->length_ns : 1), step = picture_nice_step(length / 10);
    double unit = length >= 2e9 ? 1e9 : length >= 2e6 ? 1e6 : length >= 2e3 ? 1e3 : 1, y = p->live.y + p->live.height;
    const char *name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "\u00b5s" : "ns";
    int decimals = step < unit ? (int)ceil(-log10(step / unit) - 0.0001) : 0;
    for (unsigned i = 0; i * step <= length; i++) {
        char text[48];
        double x = x_of(p, (uint64_t)(i * step));
        picture_colour(cr, PICTURE_GREY, 1);
        cairo_set_line_width(cr, 0.7);
        cairo_move_to(cr, x, y);
        cairo_line_to(cr, x, y + 4);
        cairo_stroke(cr);
        snprintf(text, sizeof text, "%.*f %s", i > 0 ? decimals : 0, i * step / unit, name);
        picture_text(cr, &quiet, x, y + 17, 0.5, 0, text);
    }
}

static void draw_legend(cairo_t *cr, const page *p)
{
    double x = MARGIN + LEFT;
    for (size_t role = 0; role < p->pool->role_count && x < PLOT_WIDTH; role++) {
        picture_colour(cr, picture_kind_colours[role % PICTURE_KINDS], 1);
        cairo_rectangle(cr, x, MARGIN + 38, 16, 11);
        cairo_fill(cr);
        picture_text(cr, &plain, x + 21, MARGIN + 48, 0, 160, p->pool->roles[role].name);
        x += 38 + fmin(picture_text_width(cr, &plain, p->pool->roles[role].name), 160);
    }
}

static void draw_page(cairo_t *cr, const void *user)
{
    const page *p = user;
    picture_text(cr, &heading, MARGIN, MARGIN + 12, 0, LEFT + PLOT_WIDTH, p->input->title);
    draw_legend(cr, p);
    for (size_t i = 0; i < p->band_count; i++)
        draw_band(cr, p, i);
    if (p->pool->span_count > MOST_BOXES)
        fill_boxes_as_image(cr, p);
    else
        fill_boxes(cr, p, true);
    draw_residency(cr, p); /* over what is held while it is gone */
    draw_live(cr, p);
    draw_peak(cr, p);
    draw_time_axis(cr, p);
    picture_text(
        cr, &quiet, MARGIN, p->live.y + p->live.height + 48, 0, LEFT + PLOT_WIDTH,
        "Rightwards: time. Above: slabs, addresses upwards; a box is a bucket while it is live, grey is unused, white "
        "has no memory. Below: live bytes, dark those of the plan.");
}

const char *picture_draw_snapshot(const snapshot_picture *input, const output *to)
{
    page p = {.input = input, .pool = input->pool};
    const char *error = arrange(&p);
    const picture_page drawn = {MARGIN + LEFT + PLOT_WIDTH + MARGIN, p.live.y + p.live.height + BELOW, draw_page, &p};
    if (error == NULL)
        error = picture_write(&drawn, to);
    free(p.bands);
    free(p.track_offsets);
    return error;
}
