/* The picture of a placement: items by offset and time. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "pictures/canvas.h"

/* Points. Least width and height of a box, so that slivers stay visible. */
enum { MARGIN = 24, PLOT_WIDTH = 1000, PLOT_HEIGHT = 460, HEADING = 58, BELOW = 72 };
#define LEAST_EXTENT 0.5
#define LEAST_EDGED 2.5

/* From this number of boxes on, an image is smaller and looks the same. */
#define MOST_BOXES 4000

typedef struct box {
    uint32_t item, colour; /* place in the palette */
    uint64_t begin, end;
} box;

typedef struct page {
    const packing_picture *input;
    const bp_packing *packing;
    picture_box plot;
    box *boxes;
    size_t count;
    uint64_t first, last; /* times */
} page;

static const picture_style heading = {17, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY},
                           bold = {11, true, PICTURE_BLACK}, mark = {11, true, PICTURE_MARK};

/* ---- what is drawn ----------------------------------------------------------------------------------------------- */

static int from_large_to_small(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a < b) - (a > b);
}

/* Items of equal size share a colour; the largest size has the first. */
static void colour_boxes(page *p, uint64_t *sizes)
{
    size_t items = bp_packing_get_info(p->packing)->item_count, count = 0;
    for (size_t i = 0; i < items; i++)
        sizes[i] = bp_packing_get_info(p->packing)->sizes[i];
    qsort(sizes, items, sizeof *sizes, from_large_to_small);
    for (size_t i = 0; i < items; i++) {
        if (i == 0 || sizes[i] != sizes[count - 1])
            sizes[count++] = sizes[i];
    }
    for (size_t i = 0; i < p->count; i++) {
        uint64_t size = bp_packing_get_info(p->packing)->sizes[p->boxes[i].item];
        const uint64_t *found = bsearch(&size, sizes, count, sizeof *sizes, from_large_to_small);
        p->boxes[i].colour = found != NULL ? (uint32_t)((found - sizes) % PICTURE_KINDS) : 0;
    }
}

static const char *find_boxes(page *p)
{
    const bp_packing_info *info = bp_packing_get_info(p->packing);
    size_t count = info->interval_count, items = info->item_count;
    p->boxes = calloc(count + 1, sizeof *p->boxes);
    uint64_t *sizes = calloc(items + 1, sizeof *sizes);
    if (p->boxes == NULL || sizes == NULL) {
        free(sizes);
        return "out of memory while drawing";
    }
    p->first = UINT64_MAX;
    for (size_t i = 0; i < count; i++) {
        const bp_packing_interval *interval = &info->intervals[i];
        p->first = interval->begin < p->first ? interval->begin : p->first;
        p->last = interval->end > p->last ? interval->end : p->last;
        if (info->sizes[interval->item] > 0)
            p->boxes[p->count++] = (box){interval->item, 0, interval->begin, interval->end};
    }
    colour_boxes(p, sizes);
    free(sizes);
    return NULL;
}

/* ---- the plot ---------------------------------------------------------------------------------------------------- */

static double x_of(const picture_box *plot, const page *p, uint64_t time)
{
    return plot->x + plot->width * (double)(time - p->first) / (double)(p->last - p->first);
}

static double y_of(const picture_box *plot, double bytes)
{
    return plot->y + plot->height * (1 - bytes / plot->bytes);
}

/* Position of a box. */
static picture_box extent_of(const picture_box *plot, const page *p, const box *b)
{
    double offset = (double)p->input->offsets[b->item], size = (double)bp_packing_get_info(p->packing)->sizes[b->item];
    double left = x_of(plot, p, b->begin), top = y_of(plot, offset + size), bottom = y_of(plot, offset);
    return (picture_box){left, top, fmax(x_of(plot, p, b->end) - left, LEAST_EXTENT), fmax(bottom - top, LEAST_EXTENT),
                         0};
}

/* One path for all boxes of a colour, so that boxes thinner than a pixel add up to the right shade. */
static void add_boxes(cairo_t *cr, const page *p, const picture_box *plot, uint32_t colour, double least)
{
    for (size_t i = 0; i < p->count; i++) {
        picture_box e = extent_of(plot, p, &p->boxes[i]);
        if (p->boxes[i].colour == colour && e.width >= least && e.height >= least)
            cairo_rectangle(cr, e.x, e.y, e.width, e.height);
    }
}

static void fill_boxes(cairo_t *cr, const page *p, const picture_box *plot, bool edged)
{
    for (uint32_t colour = 0; colour < PICTURE_KINDS; colour++) {
        picture_colour(cr, picture_kind_colours[colour], 1);
        add_boxes(cr, p, plot, colour, 0);
        cairo_fill(cr);
    }
    for (uint32_t colour = 0; edged && colour < PICTURE_KINDS; colour++)
        add_boxes(cr, p, plot, colour, LEAST_EDGED);
    picture_colour(cr, 0xffffff, 1);
    cairo_set_line_width(cr, 0.6);
    cairo_stroke(cr);
}

static bool is_dark(uint32_t colour)
{
    return 0.3 * (colour >> 16) + 0.59 * (colour >> 8 & 255) + 0.11 * (colour & 255) < 128;
}

/* Draws a line at `bytes` with a label on white. */
static void draw_level(cairo_t *cr, const page *p, uint64_t bytes, const picture_style *style, double anchor,
                       const char *what)
{
    char amount[PICTURE_BYTES_CHARS], text[64];
    double y = y_of(&p->plot, (double)bytes), right = p->plot.x + p->plot.width;
    picture_format_bytes(bytes, amount);
    snprintf(text, sizeof text, "%s %s", what, amount);
    picture_colour(cr, style->colour, 1);
    picture_line(cr, p->plot.x, y, right, y, 1.5);
    picture_label(cr, style, anchor > 0 ? right - 4 : p->plot.x + 4, y - 5, anchor, text);
}

/* The first multiple of `step` from `time` on; 0: overflow. */
static uint64_t first_tick(uint64_t time, uint64_t step)
{
    uint64_t behind = time % step == 0 ? 0 : step - time % step;
    return behind <= UINT64_MAX - time ? time + behind : 0;
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void draw_page(cairo_t *cr, const void *user)
{
    const page *p = user;
    const picture_box *plot = &p->plot;
    const picture_view view = {.cr = cr, .box = plot};
    picture_text(cr, &heading, MARGIN, MARGIN + 12, 0, plot->x + plot->width - MARGIN, p->input->title);
    picture_text(cr, &quiet, MARGIN, MARGIN + 30, 0, plot->x + plot->width - MARGIN, p->input->proof);
    picture_draw_memory_axis(&view);
    double top = y_of(plot, (double)p->input->total);
    picture_fill(cr, PICTURE_UNUSED, 1, plot->x, top, plot->width, plot->y + plot->height - top);
    if (p->count > MOST_BOXES) {
        const double scale = PICTURE_IMAGE_SCALE;
        const picture_box inner = {0, 0, p->plot.width, p->plot.height, p->plot.bytes};
        cairo_surface_t *image = cairo_image_surface_create(CAIRO_FORMAT_ARGB32, (int)(p->plot.width * scale),
                                                            (int)(p->plot.height * scale));
        cairo_t *to_image = cairo_create(image);
        cairo_scale(to_image, scale, scale);
        fill_boxes(to_image, p, &inner, false);
        cairo_destroy(to_image);
        picture_image(cr, image, p->plot.x, p->plot.y);
    } else {
        fill_boxes(cr, p, plot, true);

        /* Labels, where they fit. */
        for (size_t i = 0; i < p->count; i++) {
            picture_box e = extent_of(&p->plot, p, &p->boxes[i]);
            picture_style style = {10, false, is_dark(picture_kind_colours[p->boxes[i].colour]) ? 0xffffff : 0x000000};
            const char *id = bp_packing_file_id(p->input->file, p->boxes[i].item);
            if (e.height >= 11 && e.width >= 8 && picture_text_width(cr, &style, id) < e.width - 3)
                picture_text(cr, &style, e.x + e.width / 2, e.y + e.height / 2 + 3.5, 0.5, 0, id);
        }
    }

    draw_level(cr, p, p->input->total, &bold, 0, "total");
    picture_dash(cr, true);
    draw_level(cr, p, p->input->bound, &mark, 1, "lower bound");
    picture_dash(cr, false);

    char text[32];
    double bottom = p->plot.y + p->plot.height, span = (double)(p->last - p->first);
    snprintf(text, sizeof text, "%llu", (unsigned long long)p->last);
    double room = picture_text_width(cr, &quiet, text) + 24;
    uint64_t step = (uint64_t)fmax(1, picture_nice_step(span * room / p->plot.width));
    uint64_t time = first_tick(p->first, step);
    for (bool more = time >= p->first && time <= p->last; more; time += step) {
        double x = x_of(&p->plot, p, time);
        picture_colour(cr, PICTURE_GREY, 1);
        picture_line(cr, x, bottom, x, bottom + 4, 0.7);
        snprintf(text, sizeof text, "%llu", (unsigned long long)time);
        picture_text(cr, &quiet, x, bottom + 17, 0.5, 0, text);
        more = p->last - time >= step;
    }

    picture_text(cr, &quiet, MARGIN, plot->y + plot->height + 48, 0, plot->x + plot->width - MARGIN,
                 "Rightwards: time. Upwards: addresses. A box is an item while it is live; items of one size have one "
                 "colour. Grey is unused.");
}

const char *picture_draw_packing(const packing_picture *input, const output *to)
{
    page p = {.input = input, .packing = bp_packing_file_packing(input->file)};
    p.plot = (picture_box){MARGIN + PICTURE_LEFT, MARGIN + HEADING, PLOT_WIDTH, PLOT_HEIGHT, 0};
    p.plot.bytes =
        fmax((double)input->total, 1) * PLOT_HEIGHT / (PLOT_HEIGHT - 24); /* room for a label above the top */
    const char *error = find_boxes(&p);
    const picture_page drawn = {p.plot.x + p.plot.width + MARGIN, p.plot.y + p.plot.height + BELOW, draw_page, &p};
    if (error == NULL)
        error = picture_write(&drawn, to);
    free(p.boxes);
    return error;
}
