#include "picture_tradeoff.h"

#include <math.h>
#include <stdio.h>

#include "picture_file.h"
#include "picture_view.h"

/* Points. */
enum { MARGIN = 24, PLOT_WIDTH = 1000, POOL_HEIGHT = 300, EXPOSED_HEIGHT = 140 };
enum { HEADING = 76, BETWEEN = 52, BELOW = 76, LINE = 11, MOST_LABELS = 64 };

#define POOL_COLOUR 0x4575B4
#define EXPOSED_COLOUR 0xF46D43

typedef struct page {
    const tradeoff_picture *input;
    picture_box pool, exposed;
    double stalls; /* that the width stands for */
} page;

static const picture_style heading = {17, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY},
                           bold = {11, true, PICTURE_BLACK}, mark = {11, true, PICTURE_MARK};

typedef uint64_t value_of(const bp_tradeoff_point *point);

/* A curve and where it is drawn. */
typedef struct panel {
    const picture_box *box;
    value_of *value;
    uint32_t colour;
    bool rises;
} panel;

static uint64_t bytes_of(const bp_tradeoff_point *point)
{
    return point->bytes;
}

static uint64_t bound_of(const bp_tradeoff_point *point)
{
    return point->lower_bound_bytes;
}

static uint64_t exposed_of(const bp_tradeoff_point *point)
{
    return point->exposed_bytes;
}

static bp_tradeoff_point at(const page *p, size_t index)
{
    bp_tradeoff_point point = {.size = sizeof point};
    if (bp_tradeoff_get(p->input->tradeoff, index, &point) != BP_OK)
        point = (bp_tradeoff_point){0};
    return point;
}

static size_t count_points(const page *p)
{
    return bp_tradeoff_count(p->input->tradeoff);
}

static double x_of(const page *p, double stalls)
{
    return p->pool.x + p->pool.width * stalls / p->stalls;
}

static double y_of(const picture_box *box, uint64_t bytes)
{
    return box->y + box->height * (1 - (double)bytes / box->bytes);
}

/* ---- curves ---------------------------------------------------------------------------------------------------------- */

/* A point holds for all numbers of stalls up to the next one. */
static void add_steps(cairo_t *cr, const page *p, const picture_box *box, value_of *value)
{
    for (size_t i = 0; i < count_points(p); i++) {
        bp_tradeoff_point point = at(p, i);
        double end = i + 1 < count_points(p) ? at(p, i + 1).stalls : p->stalls;
        cairo_line_to(cr, x_of(p, point.stalls), y_of(box, value(&point)));
        cairo_line_to(cr, x_of(p, end), y_of(box, value(&point)));
    }
}

static void fill_steps(cairo_t *cr, const page *p, const panel *drawn)
{
    const picture_box *box = drawn->box;
    picture_colour(cr, drawn->colour, 0.22);
    cairo_move_to(cr, box->x, box->y + box->height);
    add_steps(cr, p, box, drawn->value);
    cairo_line_to(cr, box->x + box->width, box->y + box->height);
    cairo_close_path(cr);
    cairo_fill(cr);
    picture_colour(cr, drawn->colour, 1);
    cairo_set_line_width(cr, 1.8);
    add_steps(cr, p, box, drawn->value);
    cairo_stroke(cr);
}

static void draw_bound(cairo_t *cr, const page *p)
{
    const double dashes[] = {7, 4};
    picture_colour(cr, PICTURE_MARK, 1);
    cairo_set_dash(cr, dashes, 2, 0);
    cairo_set_line_width(cr, 1.5);
    add_steps(cr, p, &p->pool, bound_of);
    cairo_stroke(cr);
    cairo_set_dash(cr, NULL, 0, 0);
}

/* ---- labels ---------------------------------------------------------------------------------------------------------- */

/* Where text stands already. */
typedef struct labels {
    struct {
        double left, right, y;
    } places[MOST_LABELS];
    size_t count;
} labels;

static bool has_room(const labels *l, double left, double right, double y)
{
    bool room = l->count < MOST_LABELS;
    for (size_t i = 0; i < l->count; i++)
        room = room && (right < l->places[i].left || l->places[i].right < left || fabs(y - l->places[i].y) >= LINE);
    return room;
}

/* How many stalls and what that takes, if there is room: above a falling curve, before a rising one. */
static void label_point(cairo_t *cr, const page *p, const panel *drawn, size_t index, labels *l)
{
    bp_tradeoff_point point = at(p, index);
    const picture_style *style = index > 0 && index == p->input->marked ? &mark : &bold;
    char amount[PICTURE_BYTES_CHARS], text[80];
    picture_format_bytes_as(drawn->value(&point), drawn->box->like, amount);
    snprintf(text, sizeof text, "%u: %s", point.stalls, amount);
    double x = x_of(p, point.stalls), y = y_of(drawn->box, drawn->value(&point)) - 6;
    double width = picture_text_width(cr, style, text);
    double left = drawn->rises ? fmax(x - 6 - width, drawn->box->x + 4) : x + 6;
    if (!has_room(l, left - 4, left + width + 4, y))
        return;
    picture_text(cr, style, left, y, 0, 0, text);
    l->places[l->count].left = left;
    l->places[l->count].right = left + width;
    l->places[l->count++].y = y;
}

static void draw_points(cairo_t *cr, const page *p, const panel *drawn)
{
    labels l = {.count = 0};
    for (size_t i = 0; i < count_points(p); i++) {
        bp_tradeoff_point point = at(p, i);
        bool marked = i > 0 && i == p->input->marked;
        picture_colour(cr, marked ? PICTURE_MARK : drawn->colour, 1);
        cairo_arc(cr, x_of(p, point.stalls), y_of(drawn->box, drawn->value(&point)), marked ? 4.5 : 3, 0, 2 * M_PI);
        cairo_fill(cr);
    }
    label_point(cr, p, drawn, p->input->marked, &l);
    label_point(cr, p, drawn, count_points(p) - 1, &l);
    for (size_t i = 0; i < count_points(p); i++)
        label_point(cr, p, drawn, i, &l);
}

/* ---- the page -------------------------------------------------------------------------------------------------------- */

static void draw_stall_axis(cairo_t *cr, const page *p)
{
    double step = picture_nice_step(fmax(1, p->stalls * 60 / p->pool.width));
    for (unsigned i = 0; i * step <= p->stalls; i++) {
        double x = x_of(p, i * step), bottom = p->exposed.y + p->exposed.height;
        char text[32];
        picture_colour(cr, PICTURE_GREY, 1);
        cairo_set_line_width(cr, 0.7);
        cairo_move_to(cr, x, bottom);
        cairo_line_to(cr, x, bottom + 4);
        cairo_stroke(cr);
        snprintf(text, sizeof text, "%.0f", i * step);
        picture_text(cr, &quiet, x, bottom + 17, 0.5, 0, text);
    }
}

/* Returns where the next entry begins. */
static double draw_entry(cairo_t *cr, double x, double y, uint32_t colour, bool dashed, const char *text)
{
    const picture_style style = {11, false, PICTURE_BLACK};
    const double dashes[] = {7, 4};
    picture_colour(cr, colour, 1);
    cairo_set_dash(cr, dashes, dashed ? 2 : 0, 0);
    cairo_set_line_width(cr, 2);
    cairo_move_to(cr, x, y - 4);
    cairo_line_to(cr, x + 29, y - 4);
    cairo_stroke(cr);
    cairo_set_dash(cr, NULL, 0, 0);
    picture_text(cr, &style, x + 35, y, 0, 0, text);
    return x + 35 + picture_text_width(cr, &style, text) + 20;
}

static void draw_texts(cairo_t *cr, const page *p)
{
    double room = p->pool.x + p->pool.width - MARGIN, x = p->pool.x, y = MARGIN + 52;
    picture_text(cr, &heading, MARGIN, MARGIN + 12, 0, room, p->input->title);
    picture_text(cr, &quiet, MARGIN, MARGIN + 30, 0, room, p->input->subtitle);
    x = draw_entry(cr, x, y, POOL_COLOUR, false, "bytes of the pool, policy scheduled");
    x = draw_entry(cr, x, y, PICTURE_MARK, true, "lower bound");
    x = draw_entry(cr, x, y, EXPOSED_COLOUR, false, "bytes of collectives that no longer run under compute");
    if (p->input->marked > 0) {
        picture_colour(cr, PICTURE_MARK, 1);
        cairo_arc(cr, x + 5, y - 4, 4.5, 0, 2 * M_PI);
        cairo_fill(cr);
        picture_text(cr, &quiet, x + 16, y, 0, 0, "the best bargain");
    }
    picture_text(
        cr, &quiet, MARGIN, p->exposed.y + p->exposed.height + 48, 0, room,
        "Rightwards: stalls, the steps (of overlap windows: the pairs of units) in which overlap is given up. A "
        "point holds up to the next one.");
}

static void draw_page(cairo_t *cr, const void *user)
{
    const page *p = user;
    const panel pool = {&p->pool, bytes_of, POOL_COLOUR, false};
    const panel exposed = {&p->exposed, exposed_of, EXPOSED_COLOUR, true};
    const picture_view of_pool = {.cr = cr, .box = &p->pool}, of_exposed = {.cr = cr, .box = &p->exposed};
    draw_texts(cr, p);
    picture_draw_memory_axis(&of_pool);
    picture_draw_memory_axis(&of_exposed);
    fill_steps(cr, p, &pool);
    draw_bound(cr, p);
    fill_steps(cr, p, &exposed);
    draw_points(cr, p, &pool);
    draw_points(cr, p, &exposed);
    draw_stall_axis(cr, p);
}

const char *picture_draw_tradeoff(const tradeoff_picture *input, const output *to)
{
    page p = {.input = input};
    bp_tradeoff_point first = at(&p, 0), last = at(&p, count_points(&p) - 1);
    p.stalls = fmax(1, ceil(1.06 * last.stalls));
    p.pool = (picture_box){MARGIN + PICTURE_LEFT, MARGIN + HEADING, PLOT_WIDTH, POOL_HEIGHT, 0, 0};
    p.pool.bytes = fmax(1, (double)first.bytes) * POOL_HEIGHT / (POOL_HEIGHT - 24); /* room for labels above the top */
    p.exposed = (picture_box){p.pool.x, p.pool.y + POOL_HEIGHT + BETWEEN, PLOT_WIDTH, EXPOSED_HEIGHT, 0, 0};
    p.exposed.bytes = fmax(1, (double)last.exposed_bytes) * EXPOSED_HEIGHT / (EXPOSED_HEIGHT - 24);
    /* one unit in both, so that a saving and its price can be compared */
    p.pool.like = p.exposed.like = first.bytes > 0 ? first.bytes : 1;
    const picture_page drawn = {p.pool.x + p.pool.width + PICTURE_RIGHT + MARGIN,
                                p.exposed.y + p.exposed.height + BELOW, draw_page, &p};
    return picture_write(&drawn, to);
}
