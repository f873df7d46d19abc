/* The flame graph of a peak: roles, units and buckets by bytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pictures/canvas.h"
#include "pictures/pictures.h"

/* Points. */
enum { MARGIN = 24, WIDTH = 1000, ROW = 46, HEADING = 58, BELOW = 40, LEVELS = 4 };
#define LEAST_EXTENT 0.4
#define LEAST_NAMED 26

static const picture_style heading = {17, true, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY};

static const bp_snapshot_request *request_of(const view_pool *pool, size_t at)
{
    return &pool->requests[pool->spans[pool->at_peak[at]].request];
}

/* true: two requests at the peak are in the same box of a level (0 all, 1 role, 2 unit, 3 bucket). */
static bool is_together(const view_pool *pool, size_t a, size_t b, int level)
{
    const view_span *x = &pool->spans[pool->at_peak[a]], *y = &pool->spans[pool->at_peak[b]];
    if (level > 0 && pool->role_of[x->request] != pool->role_of[y->request])
        return false;
    if (level > 1 && strcmp(request_of(pool, a)->unit, request_of(pool, b)->unit) != 0)
        return false;
    return level < 3 || x->request == y->request;
}

static const char *name_of(const view_pool *pool, size_t at, int level)
{
    const bp_snapshot_request *request = request_of(pool, at);
    if (level == 0)
        return "live at the peak";
    if (level == 1)
        return pool->roles[pool->role_of[pool->spans[pool->at_peak[at]].request]].name;
    if (level == 2)
        return *request->unit != '\0' ? request->unit : "(outside)";
    return *request->bucket != '\0' ? request->bucket : "(no name)";
}

static void draw_box(cairo_t *cr, const picture_box *box, uint32_t colour, double alpha, const char *name,
                     uint64_t bytes)
{
    char amount[PICTURE_BYTES_CHARS];
    double luma = 0.3 * (colour >> 16) + 0.59 * (colour >> 8 & 255) + 0.11 * (colour & 255);
    bool is_light = 255 - alpha * (255 - luma) > 140;
    const picture_style named = {11, true, is_light ? PICTURE_BLACK : 0xffffff}, plain = {10, false, named.colour};
    picture_fill(cr, colour, alpha, box->x, box->y, fmax(box->width - 1, LEAST_EXTENT), box->height - 1);
    if (box->width < LEAST_NAMED)
        return;
    picture_format_bytes(bytes, amount);
    picture_text_tail(cr, &named, box->x + 5, box->y + 18, box->width - 9, name);
    picture_text(cr, &plain, box->x + 5, box->y + 34, 0, box->width - 9, amount);
}

/* Merges boxes of one parent below LEAST_EXTENT. Returns the number of boxes that are not drawn. */
static size_t draw_level(cairo_t *cr, const view_pool *pool, int level)
{
    static const double alphas[LEVELS] = {0.16, 1, 0.8, 0.6};
    double done = 0;
    size_t merged = 0;
    for (size_t first = 0, end; first < pool->at_peak_count; first = end) {
        uint64_t bytes = 0;
        for (end = first; end < pool->at_peak_count; end++) {
            bool is_next = !is_together(pool, end > first ? end - 1 : first, end, level);
            if (is_next && (WIDTH * (double)bytes / (double)pool->peak_bytes >= LEAST_EXTENT || level == 0 ||
                            !is_together(pool, first, end, level - 1)))
                break;
            merged += is_next;
            bytes += request_of(pool, end)->bytes;
        }
        size_t role = pool->role_of[pool->spans[pool->at_peak[first]].request];
        const picture_box box = {MARGIN + WIDTH * done / (double)pool->peak_bytes,
                                 MARGIN + HEADING + ROW * level,
                                 WIDTH * (double)bytes / (double)pool->peak_bytes,
                                 ROW,
                                 0,
                                 0};
        draw_box(cr, &box, level > 0 ? picture_kind_colours[role % PICTURE_KINDS] : PICTURE_GREY, alphas[level],
                 name_of(pool, first, level), bytes);
        done += (double)bytes;
    }
    return merged;
}

static void draw_page(cairo_t *cr, const void *user)
{
    const snapshot_picture *input = user;
    const view_pool *pool = input->pool;
    char text[200], peak[PICTURE_BYTES_CHARS];
    picture_format_bytes(pool->peak_bytes, peak);
    snprintf(text, sizeof text, "%s live at the peak, %.3f ms after the beginning, in %zu buckets", peak,
             (double)pool->peak_ns / 1e6, pool->at_peak_count);
    picture_text(cr, &heading, MARGIN, MARGIN + 12, 0, WIDTH, input->title);
    picture_text(cr, &quiet, MARGIN, MARGIN + 30, 0, WIDTH, text);
    size_t merged = 0;
    for (int level = 0; level < LEVELS; level++)
        merged += draw_level(cr, pool, level);
    picture_text(cr, &quiet, MARGIN, MARGIN + HEADING + ROW * LEVELS + 24, 0, WIDTH,
                 "Rightwards: bytes. Downwards: roles, their units, and the buckets of these.");
    if (merged > 0) {
        snprintf(text, sizeof text, "%zu boxes are narrower than %.1f points and drawn with the one before them.",
                 merged, LEAST_EXTENT);
        picture_text(cr, &quiet, MARGIN, MARGIN + HEADING + ROW * LEVELS + 40, 0, WIDTH, text);
    }
}

const char *picture_draw_flame(const snapshot_picture *input, const output *to)
{
    const picture_page page = {WIDTH + 2.0 * MARGIN, MARGIN + HEADING + ROW * LEVELS + BELOW + MARGIN, draw_page,
                               input};
    return picture_write(&page, to);
}
