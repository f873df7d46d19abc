/* SPDX-License-Identifier: Apache-2.0 */
/* The picture of live bytes by kinds of memory over a step, with levels. */
#include "pictures/pictures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pictures/canvas.h"
#include "shared/cli.h"

/* Points. */
enum { PLOT_HEIGHT = 300, NAMES_WIDTH = 176, NAME_LEAD = 14, NAME_HEIGHT = 18, MAX_LEVELS = 8 };
#define PLOT_WIDTH (PICTURE_PLOT - NAMES_WIDTH)

typedef struct page {
    const live_picture *input;
    picture_box plot;
} page;

static double y_of(const page *p, uint64_t bytes)
{
    return p->plot.y + p->plot.height * (1 - (double)bytes / p->plot.bytes);
}

static void add_position(picture *to, char command, double value)
{
    picture_print(to, "%c", command);
    picture_number(to, value);
}

/* The area below the first `kinds` kinds, as stairs. */
static void draw_area(picture *to, const page *p, size_t kinds, uint32_t colour)
{
    const live_picture *in = p->input;
    const double bottom = p->plot.y + p->plot.height, step = p->plot.width / (double)in->column_count;
    double y = bottom;
    picture_print(to, "<path fill=\"#%06x\" d=\"M", (unsigned)colour);
    picture_number(to, p->plot.x);
    picture_print(to, " ");
    picture_number(to, bottom);
    for (size_t column = 0; column < in->column_count; column++) {
        uint64_t sum = 0;
        for (size_t k = 0; k < kinds; k++)
            sum += in->live[column * in->kind_count + k];
        if (fabs(y_of(p, sum) - y) < 0.01)
            continue;
        y = y_of(p, sum);
        add_position(to, 'H', p->plot.x + step * (double)column);
        add_position(to, 'V', y);
    }
    add_position(to, 'H', p->plot.x + p->plot.width);
    add_position(to, 'V', bottom);
    picture_print(to, "z\"/>\n");
}

/* Heights of names beside the plot: near their levels, but apart. Levels are by descending bytes. */
static void place_names(const page *p, const step_level *levels, size_t count, double y[MAX_LEVELS])
{
    const double top = p->plot.y + NAME_HEIGHT / 2.0, bottom = p->plot.y + p->plot.height - NAME_HEIGHT / 2.0;
    for (size_t i = 0; i < count; i++)
        y[i] = fmax(y_of(p, levels[i].bytes), i > 0 ? y[i - 1] + NAME_HEIGHT : top);
    for (size_t i = count; i-- > 0;)
        y[i] = fmin(y[i], i + 1 < count ? y[i + 1] - NAME_HEIGHT : bottom);
}

static void draw_levels(picture *to, const page *p)
{
    const live_picture *in = p->input;
    step_level levels[MAX_LEVELS];
    double y[MAX_LEVELS];
    size_t count = 0, limit = 0;
    for (size_t i = 0; i <= in->level_count && count < MAX_LEVELS; i++) { /* by insertion; the limit first of equals */
        const step_level level = i == 0 ? in->limit : in->levels[i - 1];
        size_t at = count++;
        for (; at > 0 && levels[at - 1].bytes < level.bytes; at--)
            levels[at] = levels[at - 1];
        levels[at] = level;
    }
    while (limit < count && levels[limit].name != in->limit.name)
        limit++;
    place_names(p, levels, count, y);
    for (size_t i = 0; i < count; i++) {
        const uint32_t colour = i == limit ? PICTURE_MARK : PICTURE_BLACK;
        const double level = y_of(p, levels[i].bytes), right = p->plot.x + p->plot.width, width = i == limit ? 2 : 1;
        char bytes[PICTURE_BYTES_CHARS], text[96];
        picture_line(to, colour, p->plot.x, level, right, level, width, i != limit);
        picture_line(to, colour, right, level, right + NAME_LEAD - 4, y[i], width, false);
        snprintf(text, sizeof text, "%s %s", levels[i].name, picture_format_bytes(levels[i].bytes, bytes));
        picture_text(to, i == limit ? &picture_mark : &picture_plain, right + NAME_LEAD, y[i] + 5, 0,
                     NAMES_WIDTH - NAME_LEAD, text);
    }
}

static void draw_phases(picture *to, const page *p)
{
    const double bottom = p->plot.y + p->plot.height;
    double free_from = 0;
    for (size_t i = 0; i < p->input->phase_count; i++) {
        const step_span *span = &p->input->phases[i];
        const double left = p->plot.x + p->plot.width * span->begin, right = p->plot.x + p->plot.width * span->end;
        const double width = picture_text_width(&picture_quiet, span->name);
        picture_line(to, PICTURE_GREY, left, bottom, left, bottom + 5, 0.7, false);
        const double x = fmax((left + right - width) / 2, free_from);
        picture_text(to, &picture_quiet, x, bottom + 19, 0, width + 1, span->name);
        free_from = x + width + 8;
    }
}

static void draw_kinds(picture *to, const page *p)
{
    const live_picture *in = p->input;
    uint64_t peak = 0;
    size_t at = 0;
    for (size_t column = 0; column < in->column_count; column++) {
        uint64_t sum = 0;
        for (size_t k = 0; k < in->kind_count; k++)
            sum += in->live[column * in->kind_count + k];
        at = sum > peak ? column : at;
        peak = sum > peak ? sum : peak;
    }
    for (size_t k = in->kind_count; k-- > 0;) {
        char bytes[PICTURE_BYTES_CHARS], text[128];
        snprintf(text, sizeof text, "%s %s", in->kinds[k],
                 picture_format_bytes(in->live[at * in->kind_count + k], bytes));
        picture_legend(to, PICTURE_ICON_BOX, picture_colours[in->colours[k]], text);
    }
    picture_legend_end(to);
}

static void draw_page(picture *to, const void *user)
{
    page p = {.input = user};
    const live_picture *in = p.input;
    uint64_t most = in->limit.bytes;
    for (size_t i = 0; i < in->level_count; i++)
        most = in->levels[i].bytes > most ? in->levels[i].bytes : most;
    picture_title(to, in->title);
    p.plot = (picture_box){PICTURE_LEFT, to->y + 4, PLOT_WIDTH, PLOT_HEIGHT, fmax((double)most, 1) * 1.04, 0};
    picture_memory_axis(to, &p.plot);
    for (size_t k = in->kind_count; k-- > 0;)
        draw_area(to, &p, k + 1, picture_colours[in->colours[k]]);
    draw_levels(to, &p);
    draw_phases(to, &p);
    to->y = p.plot.y + p.plot.height + 34;
    picture_text(to, &picture_bold, PICTURE_MARGIN, to->y + PICTURE_TEXT, 0, PICTURE_INNER,
                 "Live at the peak of the step");
    to->y += PICTURE_LINE + 4;
    draw_kinds(to, &p);
}

const char *picture_draw_live(const live_picture *input, const output *to)
{
    return picture_write(draw_page, input, to);
}
