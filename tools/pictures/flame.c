/* SPDX-License-Identifier: Apache-2.0 */
/* The flame graph of a peak: roles, units and buckets by bytes. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pictures/canvas.h"
#include "pictures/pictures.h"

/* Points. */
enum { ROW = 48, LEVELS = 4, MIN_NAMED = 56 };
#define MIN_EXTENT 0.4

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

static void draw_box(picture *p, const picture_box *box, uint32_t colour, const char *name, uint64_t bytes)
{
    char amount[PICTURE_BYTES_CHARS];
    const picture_style named = {PICTURE_TEXT, true, picture_ink(colour)}, plain = {PICTURE_TEXT, false, named.colour};
    picture_fill(p, colour, 1, box->x, box->y, fmax(box->width - 1, MIN_EXTENT), box->height - 1);
    if (box->width < MIN_NAMED)
        return;
    picture_text_tail(p, &named, box->x + 4, box->y + 19, box->width - 8, name);
    picture_format_bytes(bytes, amount);
    if (picture_text_width(&plain, amount) <= box->width - 8)
        picture_text(p, &plain, box->x + 4, box->y + 38, 0, box->width - 8, amount);
}

/* Mixes a colour with white. */
static uint32_t lighten(uint32_t colour, double share)
{
    uint32_t mixed = 0;
    for (int shift = 0; shift <= 16; shift += 8)
        mixed |= (uint32_t)(255 - share * (255 - (colour >> shift & 255))) << shift;
    return mixed;
}

/* Merges boxes of one parent below MIN_EXTENT. Returns the number of boxes that are not drawn. */
static size_t draw_level(picture *p, const view_pool *pool, int level, double top)
{
    static const double shares[LEVELS] = {0.16, 1, 0.8, 0.6};
    double done = 0;
    size_t merged = 0;
    for (size_t first = 0, end; first < pool->at_peak_count; first = end) {
        uint64_t bytes = 0;
        for (end = first; end < pool->at_peak_count; end++) {
            bool is_next = !is_together(pool, end > first ? end - 1 : first, end, level);
            if (is_next && (PICTURE_INNER * (double)bytes / (double)pool->peak_bytes >= MIN_EXTENT || level == 0 ||
                            !is_together(pool, first, end, level - 1)))
                break;
            merged += is_next;
            bytes += request_of(pool, end)->bytes;
        }
        size_t role = pool->role_of[pool->spans[pool->at_peak[first]].request];
        const picture_box box = {PICTURE_MARGIN + PICTURE_INNER * done / (double)pool->peak_bytes,
                                 top,
                                 PICTURE_INNER * (double)bytes / (double)pool->peak_bytes,
                                 ROW,
                                 0,
                                 0};
        draw_box(p, &box, lighten(level > 0 ? picture_colours[role % PICTURE_KINDS] : PICTURE_GREY, shares[level]),
                 name_of(pool, first, level), bytes);
        done += (double)bytes;
    }
    return merged;
}

static void draw_page(picture *p, const void *user)
{
    const snapshot_picture *input = user;
    const view_pool *pool = input->pool;
    char text[200], peak[PICTURE_BYTES_CHARS];
    picture_title(p, input->title);
    snprintf(text, sizeof text, "%s live at the peak, %.3f ms after the beginning, in %zu bucket%s",
             picture_format_bytes(pool->peak_bytes, peak), (double)pool->peak_ns / 1e6, pool->at_peak_count,
             pool->at_peak_count == 1 ? "" : "s");
    picture_paragraph(p, &picture_quiet, text);
    p->y += 8;
    size_t merged = 0;
    for (int level = 0; level < LEVELS; level++, p->y += ROW)
        merged += draw_level(p, pool, level, p->y);
    p->y += 8;
    picture_paragraph(p, &picture_quiet, "Rightwards: bytes. Downwards: roles, their units, and the buckets of these.");
    if (merged > 0) {
        snprintf(text, sizeof text, "%zu boxes are narrower than %.1f points and drawn with the one before them.",
                 merged, MIN_EXTENT);
        picture_paragraph(p, &picture_quiet, text);
    }
}

const char *picture_draw_flame(const snapshot_picture *input, const output *to)
{
    return picture_write(draw_page, input, to);
}
