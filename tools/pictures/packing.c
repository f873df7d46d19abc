/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of a placement: items by offset and time. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "pictures/canvas.h"

/* Points. */
enum {
    PLOT_HEIGHT = 340,
    MAX_LABELS = 60,
    MIN_LABEL_WIDTH = 70,
    MIN_LABEL_HEIGHT = PICTURE_TEXT + 2,
    COUNT_WITNESS = 8
};

typedef struct box {
    uint32_t item, colour; /* place in the palette */
    uint64_t begin, end;
} box;

typedef struct page {
    const packing_picture *input;
    picture_box plot;
    box *boxes;
    picture_box *drawn; /* of the boxes */
    size_t count;
    uint64_t first, last;       /* times */
    size_t largest[MAX_LABELS]; /* boxes with labels, largest first */
    size_t largest_count;
    size_t witness[COUNT_WITNESS]; /* the largest boxes at the mark, by address */
    size_t witness_count;
} page;

/* ---- drawn parts ------------------------------------------------------------------------------------------------- */

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
    p->drawn = calloc(count + 1, sizeof *p->drawn);
    uint64_t *sizes = calloc(items + 1, sizeof *sizes);
    if (p->boxes == NULL || p->drawn == NULL || sizes == NULL) {
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

static double x_of(const page *p, uint64_t time)
{
    return p->plot.x + p->plot.width * (double)(time - p->first) / (double)(p->last - p->first);
}

static double y_of(const page *p, double bytes)
{
    return p->plot.y + p->plot.height * (1 - bytes / p->plot.bytes);
}

static picture_box extent_of(const page *p, const box *b)
{
    double offset = (double)p->input->offsets[b->item],
           size = (double)bp_packing_get_info(p->input->packing)->sizes[b->item];
    double left = x_of(p, b->begin), top = y_of(p, offset + size);
    return (picture_box){left, top, x_of(p, b->end) - left, y_of(p, offset) - top, 0, (uint8_t)b->colour};
}

/* The boxes with the largest area that have room for a label: an insertion into the few that are kept. */
static void find_labels(page *p)
{
    for (size_t i = 0; i < p->count; i++) {
        const picture_box *e = &p->drawn[i];
        if (e->width < PICTURE_TEXT || e->height < MIN_LABEL_HEIGHT)
            continue;
        size_t at = p->largest_count;
        while (at > 0 &&
               p->drawn[p->largest[at - 1]].width * p->drawn[p->largest[at - 1]].height < e->width * e->height)
            at--;
        if (at == MAX_LABELS)
            continue;
        p->largest_count += p->largest_count < MAX_LABELS;
        for (size_t k = p->largest_count - 1; k > at; k--)
            p->largest[k] = p->largest[k - 1];
        p->largest[at] = i;
    }
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
        size_t at = 0, min = 0;
        for (size_t k = 1; k < p->witness_count; k++)
            min = sizes[p->boxes[p->witness[k]].item] < sizes[p->boxes[p->witness[min]].item] ? k : min;
        if (p->witness_count == COUNT_WITNESS) {
            if (sizes[p->boxes[p->witness[min]].item] >= sizes[b->item])
                continue;
            for (size_t k = min; k + 1 < p->witness_count; k++)
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

/* The first multiple of `step` from `time` on; 0: overflow. */
static uint64_t first_tick(uint64_t time, uint64_t step)
{
    uint64_t behind = time % step == 0 ? 0 : step - time % step;
    return behind <= UINT64_MAX - time ? time + behind : 0;
}

/* In the middle of a box, or of its larger part beside the mark; cut where it is named by a group, left out else. */
static void draw_labels(picture *to, const page *p)
{
    const double bound = y_of(p, (double)p->input->bound);
    const double mark = p->input->mark != NULL ? x_of(p, p->input->mark_time) : 0;
    for (size_t i = 0; i < p->largest_count; i++) {
        const box *b = &p->boxes[p->largest[i]];
        picture_box e = p->drawn[p->largest[i]];
        if (mark > e.x && mark < e.x + e.width) {
            const bool is_left = mark - e.x > e.width / 2;
            e.width = is_left ? mark - e.x : e.x + e.width - mark;
            e.x = is_left ? e.x : mark;
        }
        const picture_style style = {PICTURE_TEXT, false, picture_ink(picture_colours[b->colour])};
        const double middle = e.y + e.height / 2;
        char text[PICTURE_LABEL_CHARS];
        const char *label = p->input->label(p->input->user, b->item, text);
        if (fabs(middle - bound) < PICTURE_TEXT - 4)
            continue;
        if (picture_text_width(&style, label) < e.width - 4)
            picture_text(to, &style, e.x + e.width / 2, middle + 5, 0.5, e.width - 4, label);
        else if (p->input->groups != NULL && e.width >= MIN_LABEL_WIDTH)
            picture_text(to, &style, e.x + 2, middle + 5, 0, e.width - 4, label);
    }
}

static void draw_time_axis(picture *to, const page *p)
{
    char text[48];
    double bottom = p->plot.y + p->plot.height, span = (double)(p->last - p->first);
    snprintf(text, sizeof text, "%llu", (unsigned long long)p->last);
    double room = picture_text_width(&picture_quiet, text) + 24;
    uint64_t step = (uint64_t)fmax(1, picture_nice_step(span * room / p->plot.width));
    uint64_t time = first_tick(p->first, step);
    for (bool more = time >= p->first && time <= p->last; more; time += step) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)time);
        picture_tick(to, x_of(p, time), bottom, text);
        more = p->last - time >= step;
    }
    to->y = bottom + 34;
}

static void write_level(picture *to, picture_icon icon, uint32_t colour, const char *name, uint64_t bytes)
{
    char text[64], amount[PICTURE_BYTES_CHARS];
    snprintf(text, sizeof text, "%s %s", name, picture_format_bytes(bytes, amount));
    picture_legend(to, icon, colour, text);
}

/* The largest boxes at the mark, from the top down. */
static void list_witness(picture *to, const page *p)
{
    const uint64_t *sizes = bp_packing_get_info(p->input->packing)->sizes;
    if (p->witness_count == 0)
        return;
    picture_paragraph(to, &picture_bold, "The largest at the peak, by address:");
    for (size_t i = p->witness_count; i-- > 0;) {
        const box *b = &p->boxes[p->witness[i]];
        char text[PICTURE_LABEL_CHARS + 64], name[PICTURE_LABEL_CHARS], bytes[PICTURE_BYTES_CHARS];
        snprintf(text, sizeof text, "%s  %s", picture_format_bytes(sizes[b->item], bytes),
                 p->input->label(p->input->user, b->item, name));
        picture_legend(to, PICTURE_ICON_BOX, picture_colours[b->colour], text);
        picture_legend_end(to);
    }
}

/* ---- the page ---------------------------------------------------------------------------------------------------- */

static void draw_page(picture *to, const void *user)
{
    page p = *(const page *)user;
    picture_title(to, p.input->title);
    picture_paragraph(to, &picture_quiet, p.input->proof);
    p.plot = (picture_box){PICTURE_LEFT, to->y + 12, PICTURE_PLOT, PLOT_HEIGHT, fmax((double)p.input->total, 1), 0};
    picture_memory_axis(to, &p.plot);
    picture_fill(to, PICTURE_UNUSED, 1, p.plot.x, p.plot.y, p.plot.width, p.input->total > 0 ? p.plot.height : 0);
    for (size_t i = 0; i < p.count; i++)
        p.drawn[i] = extent_of(&p, &p.boxes[i]);
    picture_boxes(to, &p.plot, p.drawn, p.count);
    const double bound = y_of(&p, (double)p.input->bound), right = p.plot.x + p.plot.width;
    picture_line(to, PICTURE_BLACK, p.plot.x, p.plot.y, right, p.plot.y, 1.5, false);
    picture_line(to, PICTURE_MARK, p.plot.x, bound, right, bound, 1.5, true);
    if (p.input->mark != NULL) {
        const double x = x_of(&p, p.input->mark_time);
        picture_line(to, PICTURE_MARK, x, p.plot.y, x, p.plot.y + p.plot.height, 1, true);
    }
    if (!picture_is_coarse(p.count)) {
        find_labels(&p);
        draw_labels(to, &p);
    }
    draw_time_axis(to, &p);
    write_level(to, PICTURE_ICON_LINE, PICTURE_BLACK, "total", p.input->total);
    write_level(to, PICTURE_ICON_DASHES, PICTURE_MARK, "lower bound", p.input->bound);
    if (p.input->mark != NULL)
        picture_legend(to, PICTURE_ICON_UPRIGHT, PICTURE_MARK, p.input->mark);
    for (size_t i = 0; p.input->groups != NULL && i < p.input->group_count; i++)
        picture_legend(to, PICTURE_ICON_BOX, picture_colours[i], p.input->group_names[i]);
    picture_legend(to, PICTURE_ICON_BOX, PICTURE_UNUSED, "unused");
    picture_legend_end(to);
    to->y += 4;
    list_witness(to, &p);
    char text[200];
    snprintf(text, sizeof text, "Rightwards: %s. Upwards: addresses. %s", p.input->unit,
             p.input->groups != NULL ? "A box is an allocation while it is live."
                                     : "A box is an item while it is live; items of one size have one colour.");
    picture_paragraph(to, &picture_quiet, text);
}

const char *picture_draw_packing(const packing_picture *input, const output *to)
{
    page p = {.input = input};
    const char *error = find_boxes(&p);
    if (error == NULL) {
        find_witness(&p);
        error = picture_write(draw_page, &p, to);
    }
    free(p.boxes);
    free(p.drawn);
    return error;
}
