/* Pictures of recorded steps: live ranges by address and time, and the holders of the peak. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pictures/canvas.h"

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
#define GONE_SHADE 0.22 /* of what is below */

/* More boxes than these, and ranges without memory, become an image, which is smaller than they are. */
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
    bool is_image;
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
    p->band_count = pool->info->slab_count + (pool->track_count > 0);
    p->bands = calloc(p->band_count + 1, sizeof *p->bands);
    p->track_offsets = calloc(pool->track_count + 1, sizeof *p->track_offsets);
    if (p->bands == NULL || p->track_offsets == NULL)
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
    double least = fmin(LEAST_SLAB, fmax(SLABS_HEIGHT - gaps, 0) / count), rest = SLABS_HEIGHT - gaps - least * count;
    for (size_t i = 0; i < p->band_count; i++) {
        picture_box *band = &p->bands[i];
        *band = (picture_box){MARGIN + LEFT,        y, PLOT_WIDTH, least + fmax(rest, 0) * band->bytes / total,
                              fmax(band->bytes, 1), 0};
        y += band->height + gap;
    }
    p->bottom = MARGIN + HEADING + SLABS_HEIGHT;
    uint64_t most = pool->peak_bytes;
    if (pool->info->has_plan && pool->info->plan_bytes > most)
        most = pool->info->plan_bytes;
    p->live = (picture_box){MARGIN + LEFT, p->bottom + GAP, PLOT_WIDTH, LIVE_HEIGHT, fmax((double)most, 1) * 1.12, 0};
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
    return (picture_box){x,           y, fmax(x_of(p, span->end_ns) - x, LEAST_EXTENT), fmax(height, LEAST_EXTENT),
                         band->bytes, 0};
}

static void draw_boxes(cairo_t *cr, const page *p)
{
    const view_pool *pool = p->pool;
    for (size_t role = 0; role < pool->role_count; role++) {
        picture_colour(cr, picture_kind_colours[role % PICTURE_KINDS], 1);
        for (size_t i = 0; i < pool->span_count; i++) {
            picture_box box = box_of(p, &pool->spans[i]);
            if (pool->role_of[pool->spans[i].request] == role)
                cairo_rectangle(cr, box.x, box.y, box.width, box.height);
        }
        cairo_fill_preserve(cr);
        picture_colour(cr, 0xffffff, 1);
        cairo_set_line_width(cr, 0.5);
        cairo_stroke(cr);
    }
}

static void draw_band(cairo_t *cr, const page *p, size_t index)
{
    const picture_box *band = &p->bands[index];
    const view_pool *pool = p->pool;
    const char *name = index < pool->info->slab_count ? pool->slabs[index].group : "outside slabs";
    char amount[PICTURE_BYTES_CHARS];
    if (!p->is_image) {
        picture_fill(cr, PICTURE_UNUSED, 1, band->x, band->y, band->width, band->height);
    }
    if (band->height < 9)
        return;
    picture_text(cr, &plain, band->x - 8, band->y + 11, 1, LEFT - 10, *name != '\0' ? name : "slab");
    picture_format_bytes((uint64_t)band->bytes, amount);
    if (band->height >= 28)
        picture_text(cr, &quiet, band->x - 8, band->y + 25, 1, LEFT - 10, amount);
}

typedef void (*gone_function)(void *user, const page *p, const picture_box *box);

static void draw_gone(void *user, const page *p, const picture_box *box)
{
    cairo_t *cr = user;
    (void)p;
    picture_fill(cr, 0xffffff, 1 - GONE_SHADE, box->x, box->y, box->width, box->height);
}

/* Parts of slabs without memory; nothing is reserved then. */
static void find_gone(const page *p, gone_function each, void *user)
{
    for (size_t i = 0; i < p->pool->gone_count; i++) {
        const view_gone *gone = &p->pool->gone[i];
        const picture_box *band = &p->bands[gone->slab];
        double x = x_of(p, gone->begin_ns), height = band->height * (double)gone->bytes / band->bytes;
        double y = band->y + band->height * (1 - (double)gone->offset / band->bytes) - height;
        picture_box box = {x, y, x_of(p, gone->end_ns) - x, height, 0, 0};
        each(user, p, &box);
    }
}

/* ---- slabs as an image ------------------------------------------------------------------------------------------------------------- */

/* Two pixels a point. Each pixel is painted once, by the first that takes it: `next` leads over those of a row that have been, so that the
 * work is bounded by boxes times rows whatever they cover. */
enum { SCALE = PICTURE_IMAGE_SCALE, COLUMNS = PLOT_WIDTH * SCALE, ROWS = SLABS_HEIGHT * SCALE };

typedef struct canvas {
    unsigned char *data;
    int stride;
    uint16_t (*next)[COLUMNS + 1];
    uint32_t colour;
} canvas;

static int pixel(double place, int most)
{
    return place <= 0 ? 0 : place >= most ? most : (int)place;
}

/* The first pixel from a column on that has not been painted; halves the path to it. */
static int skip_painted(uint16_t *next, int column)
{
    while (next[column] != column) {
        next[column] = next[next[column]];
        column = next[column];
    }
    return column;
}

/* A box takes at least a pixel. */
static void paint(canvas *c, const picture_box *box)
{
    int x0 = pixel((box->x - MARGIN - LEFT) * SCALE, COLUMNS - 1),
        y0 = pixel((box->y - MARGIN - HEADING) * SCALE, ROWS - 1);
    int x1 = pixel(ceil((box->x + box->width - MARGIN - LEFT) * SCALE - 0.5), COLUMNS);
    int y1 = pixel(ceil((box->y + box->height - MARGIN - HEADING) * SCALE - 0.5), ROWS);
    for (int y = y0; y < y1 || y == y0; y++) {
        uint32_t *row = (uint32_t *)(void *)(c->data + (ptrdiff_t)y * c->stride);
        for (int x = skip_painted(c->next[y], x0); x < x1 || x == x0; x = skip_painted(c->next[y], x)) {
            row[x] = 0xff000000u | c->colour;
            c->next[y][x] = (uint16_t)(x + 1);
        }
    }
}

static void paint_gone(void *user, const page *p, const picture_box *box)
{
    (void)p;
    if (box->width * SCALE >= 1)
        paint(user, box);
}

static void draw_image(cairo_t *cr, const page *p)
{
    cairo_surface_t *image = cairo_image_surface_create(CAIRO_FORMAT_ARGB32, COLUMNS, ROWS);
    canvas c = {cairo_image_surface_get_data(image), cairo_image_surface_get_stride(image), NULL, 0};
    c.next = calloc(ROWS, sizeof *c.next);
    if (c.data != NULL && c.next != NULL) {
        const view_pool *pool = p->pool;
        for (int y = 0; y < ROWS; y++) {
            for (int x = 0; x <= COLUMNS; x++)
                c.next[y][x] = (uint16_t)x;
        }
        const uint32_t unused = PICTURE_UNUSED & 255;
        c.colour = 0x010101u * (uint32_t)(255 - GONE_SHADE * (255 - unused));
        find_gone(p, paint_gone, &c);
        for (size_t i = 0; i < pool->span_count; i++) {
            const picture_box box = box_of(p, &pool->spans[i]);
            c.colour = picture_kind_colours[pool->role_of[pool->spans[i].request] % PICTURE_KINDS];
            paint(&c, &box);
        }
        c.colour = PICTURE_UNUSED;
        for (size_t i = 0; i < p->band_count; i++)
            paint(&c, &p->bands[i]);
    }
    free(c.next);
    cairo_surface_mark_dirty(image);
    picture_image(cr, image, MARGIN + LEFT, MARGIN + HEADING);
}

/* ---- live bytes ------------------------------------------------------------------------------------------------------------------- */

/* A line of live bytes. Changes in the same quarter of a point are drawn as one: from the first over the least and the most to the last. */
typedef struct curve {
    cairo_t *cr;
    const page *p;
    double x;
    uint64_t first, least, most, last;
} curve;

static void draw_column(const curve *c)
{
    const picture_box *box = &c->p->live;
    const uint64_t values[] = {c->first, c->least, c->most, c->last};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (i == 0 || values[i] != values[i - 1])
            cairo_line_to(c->cr, c->x, box->y + box->height * (1 - (double)values[i] / box->bytes));
    }
}

static void add_change(curve *c, double x, uint64_t live)
{
    if (x - c->x >= 0.25) {
        draw_column(c);
        *c = (curve){c->cr, c->p, x, c->last, c->last, c->last, c->last};
    }
    c->least = live < c->least ? live : c->least;
    c->most = live > c->most ? live : c->most;
    c->last = live;
}

/* The area below all live bytes, or below those that the plan knows. */
static void draw_curve(cairo_t *cr, const page *p, bool planned, double alpha)
{
    const view_pool *pool = p->pool;
    view_changes changes;
    const view_span *span = NULL;
    bool begins = false;
    double bottom = p->live.y + p->live.height;
    curve c = {.cr = cr, .p = p, .x = p->live.x};
    cairo_move_to(cr, p->live.x, bottom);
    bool good = view_changes_init(pool, &changes);
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
    c.first = c.least = c.most = c.last;
    draw_column(&c);
    cairo_line_to(cr, p->live.x + p->live.width, bottom);
    cairo_close_path(cr);
    picture_colour(cr, PICTURE_GREY, alpha);
    cairo_fill_preserve(cr);
    cairo_set_line_width(cr, 0.6); /* so that a moment is seen, too */
    cairo_stroke(cr);
}

static void draw_live(cairo_t *cr, const page *p)
{
    const picture_view view = {.cr = cr, .box = &p->live};
    picture_draw_memory_axis(&view);
    draw_curve(cr, p, false, 0.4);
    if (!p->pool->info->has_plan)
        return;
    draw_curve(cr, p, true, 0.6);
    picture_dash(cr, true);

    char amount[PICTURE_BYTES_CHARS], text[64];
    double y = p->live.y + p->live.height * (1 - (double)p->pool->info->lower_bound_bytes / p->live.bytes);
    double right = p->live.x + p->live.width;
    picture_format_bytes(p->pool->info->lower_bound_bytes, amount);
    snprintf(text, sizeof text, "lower bound of the plan %s", amount);
    picture_colour(cr, mark.colour, 1);
    picture_line(cr, p->live.x, y, right, y, 1.2);
    picture_label(cr, &mark, right - 4, y + 13, 1, text);
    picture_dash(cr, false);
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
    picture_line(cr, x, top, x, p->live.y + p->live.height, 1);
    bool right = x > MARGIN + LEFT + PLOT_WIDTH - 120;
    picture_text(cr, &mark, x + (right ? -5 : 5), top + 1, right ? 1 : 0, 0, text);
}

/* ---- the page -------------------------------------------------------------------------------------------------------------------- */

static void draw_legend(cairo_t *cr, const page *p)
{
    double x = MARGIN + LEFT;
    for (size_t role = 0; role < p->pool->role_count && x < PLOT_WIDTH; role++) {
        picture_fill(cr, picture_kind_colours[role % PICTURE_KINDS], 1, x, MARGIN + 38, 16, 11);
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
    if (p->is_image) {
        draw_image(cr, p);
    } else {
        draw_boxes(cr, p);
        find_gone(p, draw_gone, cr); /* over what is held meanwhile */
    }
    draw_live(cr, p);
    draw_peak(cr, p);

    double length = (double)(p->pool->length_ns > 0 ? p->pool->length_ns : 1), step = picture_nice_step(length / 10);
    double unit = length >= 2e9 ? 1e9 : length >= 2e6 ? 1e6 : length >= 2e3 ? 1e3 : 1, y = p->live.y + p->live.height;
    const char *name = unit == 1e9 ? "s" : unit == 1e6 ? "ms" : unit == 1e3 ? "\u00b5s" : "ns";
    int decimals = step < unit ? (int)ceil(-log10(step / unit) - 0.0001) : 0;
    for (unsigned i = 0; i * step <= length; i++) {
        char text[48];
        double x = x_of(p, (uint64_t)(i * step));
        picture_colour(cr, PICTURE_GREY, 1);
        picture_line(cr, x, y, x, y + 4, 0.7);
        snprintf(text, sizeof text, "%.*f %s", i > 0 ? decimals : 0, i * step / unit, name);
        picture_text(cr, &quiet, x, y + 17, 0.5, 0, text);
    }

    picture_text(
        cr, &quiet, MARGIN, p->live.y + p->live.height + 48, 0, LEFT + PLOT_WIDTH,
        "Rightwards: time. Above: slabs, addresses upwards; a box is a bucket while it is live, grey is unused, white "
        "has no memory. Below: live bytes, dark those of the plan.");
    if (p->is_image) {
        char text[160];
        snprintf(text, sizeof text,
                 "An image: of %zu boxes those that share a pixel are drawn as one, the first of them.",
                 p->pool->span_count);
        picture_text(cr, &quiet, MARGIN, p->live.y + p->live.height + 64, 0, LEFT + PLOT_WIDTH, text);
    }
}

const char *picture_draw_snapshot(const snapshot_picture *input, const output *to)
{
    page p = {.input = input, .pool = input->pool};
    p.is_image =
        p.pool->span_count > MOST_BOXES || p.pool->gone_count > MOST_BOXES || p.pool->info->slab_count > MOST_BOXES;
    const char *error = arrange(&p);
    const picture_page drawn = {MARGIN + LEFT + PLOT_WIDTH + MARGIN, p.live.y + p.live.height + BELOW, draw_page, &p};
    if (error == NULL)
        error = picture_write(&drawn, to);
    free(p.bands);
    free(p.track_offsets);
    return error;
}
