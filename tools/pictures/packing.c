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
/* Labels, and the least room of one in points: a dozen letters. */
enum { MOST_LABELS = 60, LEAST_LABEL_WIDTH = 56, LEAST_LABEL_HEIGHT = 11, LEGEND_LINE = 18, COUNT_WITNESS = 8 };

typedef struct box {
    uint32_t item, colour; /* place in the palette */
    uint64_t begin, end;
} box;

typedef struct page {
    const packing_picture *input;
    picture_box plot;
    box *boxes;
    size_t count;
    uint64_t first, last; /* times */
    size_t *largest;      /* boxes with labels, largest first */
    size_t largest_count;
    size_t witness[COUNT_WITNESS]; /* the largest boxes at the mark, by address */
    size_t witness_count;
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
    size_t items = bp_packing_get_info(p->input->packing)->item_count, count = 0;
    for (size_t i = 0; i < items; i++)
        sizes[i] = bp_packing_get_info(p->input->packing)->sizes[i];
    qsort(sizes, items, sizeof *sizes, from_large_to_small);
    for (size_t i = 0; i < items; i++) {
        if (i == 0 || sizes[i] != sizes[count - 1])
            sizes[count++] = sizes[i];
    }
    for (size_t i = 0; i < p->count; i++) {
        if (p->input->groups != NULL) {
            p->boxes[i].colour = p->input->groups[p->boxes[i].item];
            continue;
        }
        uint64_t size = bp_packing_get_info(p->input->packing)->sizes[p->boxes[i].item];
        const uint64_t *found = bsearch(&size, sizes, count, sizeof *sizes, from_large_to_small);
        p->boxes[i].colour = found != NULL ? (uint32_t)((found - sizes) % PICTURE_KINDS) : 0;
    }
}

static const char *find_boxes(page *p)
{
    const bp_packing_info *info = bp_packing_get_info(p->input->packing);
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
    double offset = (double)p->input->offsets[b->item],
           size = (double)bp_packing_get_info(p->input->packing)->sizes[b->item];
    double left = x_of(plot, p, b->begin), top = y_of(plot, offset + size), bottom = y_of(plot, offset);
    return (picture_box){left, top, fmax(x_of(plot, p, b->end) - left, LEAST_EXTENT), fmax(bottom - top, LEAST_EXTENT),
                         0};
}

static int from_large_box_to_small(const void *left, const void *right)
{
    const struct sized {
        double points;
        size_t box;
    } *a = left, *b = right;
    return a->points != b->points ? (a->points < b->points) - (a->points > b->points)
                                  : (a->box > b->box) - (a->box < b->box);
}

/* The boxes with the largest area that have room for a label. */
static const char *find_labels(page *p)
{
    struct {
        double points;
        size_t box;
    } *sized = calloc(p->count + 1, sizeof *sized);
    size_t count = 0;
    p->largest = calloc(MOST_LABELS, sizeof *p->largest);
    if (sized == NULL || p->largest == NULL) {
        free(sized);
        return "out of memory while drawing";
    }
    for (size_t i = 0; i < p->count; i++) {
        picture_box e = extent_of(&p->plot, p, &p->boxes[i]);
        if (e.width >= LEAST_EDGED && e.height >= LEAST_LABEL_HEIGHT) {
            sized[count].points = e.width * e.height;
            sized[count++].box = i;
        }
    }
    qsort(sized, count, sizeof *sized, from_large_box_to_small);
    for (size_t i = 0; i < count && i < MOST_LABELS; i++)
        p->largest[p->largest_count++] = sized[i].box;
    free(sized);
    return NULL;
}

static uint64_t offset_of(const page *p, size_t at)
{
    return p->input->offsets[p->boxes[at].item];
}

/* The largest boxes that are live at the mark, by address: what sets the peak. */
static void find_witness(page *p)
{
    const uint64_t *sizes = bp_packing_get_info(p->input->packing)->sizes;
    for (size_t i = 0; i < p->count && p->input->mark != NULL; i++) {
        const box *b = &p->boxes[i];
        if (b->begin > p->input->mark_time || b->end <= p->input->mark_time)
            continue;
        size_t at = 0, least = 0;
        for (size_t k = 1; k < p->witness_count; k++)
            least = sizes[p->boxes[p->witness[k]].item] < sizes[p->boxes[p->witness[least]].item] ? k : least;
        if (p->witness_count == COUNT_WITNESS) {
            if (sizes[p->boxes[p->witness[least]].item] >= sizes[b->item])
                continue;
            for (size_t k = least; k + 1 < p->witness_count; k++)
                p->witness[k] = p->witness[k + 1];
            p->witness_count--;
        }
        while (at < p->witness_count && offset_of(p, p->witness[at]) < offset_of(p, i))
            at++;
        for (size_t k = p->witness_count++; k > at; k--)
            p->witness[k] = p->witness[k - 1];
        p->witness[at] = i;
    }
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

/* In the middle of a box; cut where it is named by a group, left out else. */
static void draw_labels(cairo_t *cr, const page *p)
{
    for (size_t i = 0; i < p->largest_count; i++) {
        const box *b = &p->boxes[p->largest[i]];
        picture_box e = extent_of(&p->plot, p, b);
        picture_style style = {10, false, is_dark(picture_kind_colours[b->colour]) ? 0xffffff : 0x000000};
        char text[PICTURE_LABEL_CHARS];
        const char *label = p->input->label(p->input->user, b->item, text);
        bool fits = picture_text_width(cr, &style, label) < e.width - 4;
        if (fits)
            picture_text(cr, &style, e.x + e.width / 2, e.y + e.height / 2 + 3.5, 0.5, 0, label);
        else if (p->input->groups != NULL && e.width >= LEAST_LABEL_WIDTH)
            picture_text(cr, &style, e.x + 2, e.y + e.height / 2 + 3.5, 0, e.width - 4, label);
    }
}

/* The mark, and beside it the names of the boxes that it cuts, from the bottom up, 13 points apart. */
static void draw_mark(cairo_t *cr, const page *p)
{
    const uint64_t *sizes = bp_packing_get_info(p->input->packing)->sizes;
    const double x = x_of(&p->plot, p, p->input->mark_time), bottom = p->plot.y + p->plot.height;
    const bool is_left = x < p->plot.x + 0.6 * p->plot.width;
    const double beside = is_left ? x + 4 : x - 4, anchor = is_left ? 0 : 1;
    const double bound = y_of(&p->plot, (double)p->input->bound), top = p->plot.y + 12;
    const double beneath = bound - top < 14 ? bound + 14 : top; /* not over the labels of levels */
    double below = bottom;
    picture_colour(cr, PICTURE_MARK, 1);
    picture_dash(cr, true);
    picture_line(cr, x, p->plot.y, x, bottom, 1);
    picture_dash(cr, false);
    picture_label(cr, &mark, beside, beneath, anchor, p->input->mark);
    for (size_t i = 0; i < p->witness_count; i++) {
        const box *b = &p->boxes[p->witness[i]];
        const picture_box e = extent_of(&p->plot, p, b);
        char text[PICTURE_LABEL_CHARS], name[PICTURE_LABEL_CHARS], bytes[PICTURE_BYTES_CHARS];
        if (e.width >= LEAST_LABEL_WIDTH && e.height >= LEAST_LABEL_HEIGHT)
            continue; /* has its label inside */
        picture_format_bytes(sizes[b->item], bytes);
        snprintf(text, sizeof text, "%s  %.80s", bytes, p->input->label(p->input->user, b->item, name));
        below = fmin(e.y + e.height / 2 + 4, below - 13);
        picture_label(cr, &quiet, beside, below, anchor, text);
    }
}

/* Names of groups, in lines as wide as the page. */
static double draw_legend(cairo_t *cr, const page *p, double y)
{
    const double right = p->plot.x + p->plot.width;
    double x = MARGIN;
    for (size_t i = 0; i < p->input->group_count; i++) {
        const char *name = p->input->group_names[i];
        double width = 18 + fmin(picture_text_width(cr, &quiet, name), right - MARGIN - 18);
        if (x > MARGIN && x + width > right) {
            x = MARGIN;
            y += LEGEND_LINE;
        }
        picture_fill(cr, picture_kind_colours[i], 1, x, y - 9, 11, 11);
        picture_text(cr, &quiet, x + 16, y, 0, right - x - 16, name);
        x += width + 18;
    }
    return y;
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
    }
    draw_labels(cr, p);

    draw_level(cr, p, p->input->total, &bold, 0, "total");
    picture_dash(cr, true);
    draw_level(cr, p, p->input->bound, &mark, 1, "lower bound");
    picture_dash(cr, false);

    char text[48];
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

    if (p->input->mark != NULL)
        draw_mark(cr, p);
    double below = bottom + 44;
    if (p->input->groups != NULL)
        below = draw_legend(cr, p, below) + 22;
    snprintf(text, sizeof text, "Rightwards: %s.", p->input->unit);
    picture_text(cr, &quiet, MARGIN, below, 0, 200, text);
    picture_text(cr, &quiet, MARGIN + picture_text_width(cr, &quiet, text) + 5, below, 0, plot->x + plot->width - 200,
                 p->input->groups != NULL
                     ? "Upwards: addresses. A box is an allocation while it is live. Grey is unused."
                     : "Upwards: addresses. A box is an item while it is live; items of one size have one colour. Grey "
                       "is unused.");
}

const char *picture_draw_packing(const packing_picture *input, const output *to)
{
    page p = {.input = input};
    p.plot = (picture_box){MARGIN + PICTURE_LEFT, MARGIN + HEADING, PLOT_WIDTH, PLOT_HEIGHT, 0};
    p.plot.bytes =
        fmax((double)input->total, 1) * PLOT_HEIGHT / (PLOT_HEIGHT - 24); /* room for a label above the top */
    const char *error = find_boxes(&p);
    if (error == NULL)
        error = find_labels(&p);
    find_witness(&p);
    const double legend = input->groups != NULL ? (double)(input->group_count + 1) / 2 * LEGEND_LINE : 0;
    const picture_page drawn = {p.plot.x + p.plot.width + MARGIN, p.plot.y + p.plot.height + BELOW + legend, draw_page,
                                &p};
    if (error == NULL)
        error = picture_write(&drawn, to);
    free(p.boxes);
    free(p.largest);
    return error;
}
