/* Axes of a panel: bytes on the left, units and phases below. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "pictures/canvas.h"

/* Points. */
enum { LONGEST_NAME = 120, NAME_GAP = 10 };

static const picture_style plain = {11, false, PICTURE_BLACK}, quiet = {11, false, PICTURE_GREY};

double picture_nice_step(double least)
{
    double power = pow(10, floor(log10(least)));
    double ratio = least / power;
    return power * (ratio <= 1.0001 ? 1 : ratio <= 2.0001 ? 2 : ratio <= 5.0001 ? 5 : 10);
}

void picture_draw_memory_axis(const picture_view *v)
{
    double unit;
    const char *name = picture_byte_unit(v->box->like > 0 ? v->box->like : (uint64_t)(v->box->bytes * 0.9), &unit);
    double step = picture_nice_step(v->box->bytes / unit * 40 / v->box->height);
    int decimals = step < 1 ? (int)ceil(-log10(step) - 0.0001) : 0;
    double name_y = v->box->y - 6;
    for (unsigned i = 0; i * step * unit <= v->box->bytes; i++) {
        double y = picture_y(v, i * step * unit);
        name_y = fmin(name_y, y - 9); /* above the topmost number */
        picture_colour(v->cr, 0xd8d8d8, 1);
        picture_line(v->cr, v->box->x - 4, y, v->box->x + v->box->width, y, 0.5);
        char text[32];
        snprintf(text, sizeof text, "%.*f", i > 0 ? decimals : 0, i * step);
        picture_text(v->cr, &quiet, v->box->x - 7, y + 4, 1, 0, text);
    }
    picture_text(v->cr, &quiet, v->box->x - 7, name_y, 1, 0, name);
}

/* false: unknown step, or no unit computes in it. */
static bool step_at(const picture_view *v, size_t index, bp_step *step)
{
    if (index >= v->layout->steps)
        return false;
    *step = bp_schedule_get_info(v->input->schedule)->steps[index];
    return step->unit >= 0;
}

/* The last component of a dotted name. */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL ? dot + 1 : name;
}

/* Interval of units at which a name, or its last component, fits. */
static uint32_t name_stride(const picture_view *v, bool last_words)
{
    size_t runs = 0, units = bp_buckets_get_info(v->input->buckets)->unit_count;
    double widest = 0;
    int32_t before = -1;
    bp_step step;
    for (size_t i = 0; i < v->layout->steps; i++) {
        runs += step_at(v, i, &step) && step.unit != before;
        before = step.unit;
    }
    for (size_t u = 0; u < units; u += units / 100 + 1) {
        const char *name = picture_unit_name(v, u);
        widest = fmax(widest, picture_text_width(v->cr, &quiet, last_words ? last_word(name) : name));
    }
    return (uint32_t)picture_nice_step(fmax(1, (fmin(widest, LONGEST_NAME) + NAME_GAP) * (double)runs / v->box->width));
}

/* If names are left out, "layers.0" is followed by "10", "20", ... */
static void draw_unit_names(const picture_view *v)
{
    bool last_words = name_stride(v, false) > 1;
    uint32_t stride = name_stride(v, last_words);
    double bottom = v->box->y + v->box->height, free_from = v->box->x - 30;
    const char *before = "";
    bp_step step, next;
    for (size_t i = 0, begin = 0; i < v->layout->steps; i++) {
        if (!step_at(v, i, &step))
            continue;
        bool more = step_at(v, i + 1, &next), phase_ends = !more || names_direction(&next) != names_direction(&step);
        if (!phase_ends && next.unit == step.unit)
            continue;
        double middle = (picture_x(v, begin) + picture_x(v, i + 1)) / 2;
        begin = i + 1;
        const char *name = picture_unit_name(v, (size_t)step.unit), *shown = name;
        if (last_words && strncmp(name, before, (size_t)(last_word(name) - name)) == 0)
            shown = last_word(name);
        double width = fmin(picture_text_width(v->cr, &quiet, shown), LONGEST_NAME);
        double left = fmin(fmax(middle - width / 2, v->box->x - 4), v->box->x + v->box->width + 20 - width);
        if ((uint32_t)step.unit % stride == 0 && left >= free_from) {
            picture_colour(v->cr, PICTURE_GREY, 1);
            picture_line(v->cr, middle, bottom, middle, bottom + 4, 0.7);
            picture_text(v->cr, &quiet, left, bottom + 17, 0, LONGEST_NAME, shown);
            free_from = left + width + NAME_GAP - 2;
            before = name;
        }
        if (phase_ends)
            before = "";
    }
}

void picture_draw_step_axis(const picture_view *v)
{
    static const char *const names[] = {[BP_PHASE_FORWARD] = "forward",
                                        [BP_PHASE_BACKWARD] = "backward",
                                        [BP_PHASE_RECORDED] = "recorded events",
                                        [BP_PHASE_COMBINED] = "backward and forward"};
    double bottom = v->box->y + v->box->height;
    bp_step step, next;
    size_t begin = 0;
    for (size_t i = 0; i < v->layout->steps; i++) {
        if (!step_at(v, i, &step) || (step_at(v, i + 1, &next) && names_direction(&next) == names_direction(&step)))
            continue;
        double left = picture_x(v, begin), right = picture_x(v, i + 1);
        picture_colour(v->cr, PICTURE_GREY, 1);
        if (begin > 0) {
            picture_line(v->cr, left, v->box->y, left, bottom, 0.7);
            picture_line(v->cr, left, bottom + 22, left, bottom + 34, 0.7);
        }
        const char *name = names[names_direction(&step)];
        if (picture_text_width(v->cr, &plain, name) < right - left)
            picture_text(v->cr, &plain, (left + right) / 2, bottom + 32, 0.5, 0, name);
        begin = i + 1;
    }

    draw_unit_names(v);
}
