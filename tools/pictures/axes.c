/* SPDX-License-Identifier: Apache-2.0 */
/* Axes, legends and kinds of buckets: bytes on the left of a plot; units and phases below. */
#include <ctype.h>
#include <math.h>
#include <string.h>

#include "pictures/canvas.h"
#include "shared/cli.h"

/* Points. */
enum { LONGEST_NAME = 130, NAME_GAP = 10, TICK_GAP = 24, ICON = 20 };

/* ---- legends ----------------------------------------------------------------------------------------------------- */

void picture_legend(picture *p, picture_icon icon, uint32_t colour, const char *text)
{
    const double room = PICTURE_INNER - ICON - 6, width = fmin(picture_text_width(&picture_plain, text), room);
    if (p->legend_x > 0 && p->legend_x + ICON + 6 + width > PICTURE_WIDTH - PICTURE_MARGIN)
        picture_legend_end(p);
    if (p->legend_x <= 0)
        p->legend_x = PICTURE_MARGIN;
    const double x = p->legend_x, middle = p->y + PICTURE_TEXT - 5;
    if (icon == PICTURE_ICON_BOX)
        picture_fill(p, colour, 1, x, middle - 6, ICON, 12);
    else if (icon == PICTURE_ICON_UPRIGHT)
        picture_line(p, colour, x + ICON / 2.0, middle - 7, x + ICON / 2.0, middle + 7, 1.5, true);
    else
        picture_line(p, colour, x, middle, x + ICON, middle, 1.5, icon == PICTURE_ICON_DASHES);
    picture_text(p, &picture_plain, x + ICON + 6, p->y + PICTURE_TEXT, 0, room, text);
    p->legend_x += ICON + 6 + width + 18;
}

void picture_legend_end(picture *p)
{
    p->y += p->legend_x > 0 ? PICTURE_LINE : 0;
    p->legend_x = 0;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

double picture_nice_step(double min)
{
    double power = pow(10, floor(log10(min)));
    double ratio = min / power;
    return power * (ratio <= 1.0001 ? 1 : ratio <= 2.0001 ? 2 : ratio <= 5.0001 ? 5 : 10);
}

void picture_memory_axis(picture *p, const picture_box *plot)
{
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t scale = 0;
    while (scale + 1 < sizeof names / sizeof *names && plot->bytes * 0.9 >= (double)(1ull << 10 * (scale + 1)))
        scale++;
    const double unit = (double)(1ull << 10 * scale);
    double step = picture_nice_step(fmax(plot->bytes / unit * TICK_GAP / plot->height, scale == 0 ? 1 : 0));
    int decimals = step < 1 ? (int)ceil(-log10(step) - 0.0001) : 0;
    for (unsigned i = 0; i * step * unit <= plot->bytes; i++) {
        double y = plot->y + plot->height * (1 - i * step * unit / plot->bytes);
        picture_line(p, 0xd8d8d8, plot->x - 4, y, plot->x + plot->width, y, 0.5, false);
        char text[64];
        if (i == 0)
            snprintf(text, sizeof text, "0");
        else
            snprintf(text, sizeof text, "%.*f %s", decimals, i * step, names[scale]);
        picture_text(p, &picture_quiet, plot->x - 8, y + 4.5, 1, PICTURE_LEFT - 12, text);
    }
}

void picture_tick(picture *p, double x, double bottom, const char *text)
{
    double half = picture_text_width(&picture_quiet, text) / 2;
    picture_line(p, PICTURE_GREY, x, bottom, x, bottom + 4, 0.7, false);
    if (x + half <= PICTURE_WIDTH - PICTURE_MARGIN)
        picture_text(p, &picture_quiet, x, bottom + 19, 0.5, 2 * half + 1, text);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

typedef struct step_axis {
    picture *p;
    const picture_box *plot;
    const bp_buckets_info *buckets;
    const bp_schedule_info *schedule;
    size_t common_chars;
} step_axis;

static double x_of(const step_axis *a, size_t step)
{
    return a->plot->x + a->plot->width * (double)step / (double)a->schedule->step_count;
}

static const char *unit_name(const step_axis *a, size_t unit)
{
    return a->buckets->units[unit].name + a->common_chars;
}

/* false: unknown step, or no unit computes in it. */
static bool step_at(const step_axis *a, size_t index, bp_step *step)
{
    if (index >= a->schedule->step_count)
        return false;
    *step = a->schedule->steps[index];
    return step->unit >= 0;
}

/* The last component of a dotted name. */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot != NULL ? dot + 1 : name;
}

/* Interval of units at which a name, or its last component, fits. */
static uint32_t name_stride(const step_axis *a, bool last_words)
{
    size_t runs = 0, units = a->buckets->unit_count;
    double widest = 0;
    int32_t before = -1;
    bp_step step;
    for (size_t i = 0; i < a->schedule->step_count; i++) {
        runs += step_at(a, i, &step) && step.unit != before;
        before = step.unit;
    }
    for (size_t u = 0; u < units; u += units / 100 + 1) {
        const char *name = unit_name(a, u);
        widest = fmax(widest, picture_text_width(&picture_quiet, last_words ? last_word(name) : name));
    }
    return (uint32_t)picture_nice_step(
        fmax(1, (fmin(widest, LONGEST_NAME) + NAME_GAP) * (double)runs / a->plot->width));
}

/* If names are left out, "layers.0" is followed by "10", "20", ... */
static void draw_unit_names(const step_axis *a)
{
    bool last_words = name_stride(a, false) > 1;
    uint32_t stride = name_stride(a, last_words);
    double bottom = a->plot->y + a->plot->height, free_from = PICTURE_MARGIN;
    const char *before = "";
    bp_step step, next;
    for (size_t i = 0, begin = 0; i < a->schedule->step_count; i++) {
        if (!step_at(a, i, &step))
            continue;
        bool more = step_at(a, i + 1, &next), phase_ends = !more || names_direction(&next) != names_direction(&step);
        if (!phase_ends && next.unit == step.unit)
            continue;
        double middle = (x_of(a, begin) + x_of(a, i + 1)) / 2;
        begin = i + 1;
        const char *name = unit_name(a, (size_t)step.unit), *shown = name;
        if (last_words && strncmp(name, before, (size_t)(last_word(name) - name)) == 0)
            shown = last_word(name);
        double width = fmin(picture_text_width(&picture_quiet, shown), LONGEST_NAME);
        double left = fmin(fmax(middle - width / 2, PICTURE_MARGIN), PICTURE_WIDTH - PICTURE_MARGIN - width);
        if ((uint32_t)step.unit % stride == 0 && left >= free_from) {
            picture_line(a->p, PICTURE_GREY, middle, bottom, middle, bottom + 4, 0.7, false);
            picture_text(a->p, &picture_quiet, left, bottom + 19, 0, LONGEST_NAME, shown);
            free_from = left + width + NAME_GAP - 2;
            before = name;
        }
        if (phase_ends)
            before = "";
    }
}

void picture_step_axis(picture *p, const picture_box *plot, const bp_buckets *buckets, const bp_schedule *schedule,
                       size_t common_chars)
{
    static const char *const names[] = {[BP_PHASE_FORWARD] = "forward",
                                        [BP_PHASE_BACKWARD] = "backward",
                                        [BP_PHASE_RECORDED] = "recorded events",
                                        [BP_PHASE_COMBINED] = "backward and forward"};
    const step_axis a = {p, plot, bp_buckets_get_info(buckets), bp_schedule_get_info(schedule), common_chars};
    double bottom = plot->y + plot->height;
    bp_step step, next;
    size_t begin = 0;
    for (size_t i = 0; i < a.schedule->step_count; i++) {
        if (!step_at(&a, i, &step) || (step_at(&a, i + 1, &next) && names_direction(&next) == names_direction(&step)))
            continue;
        double left = x_of(&a, begin), right = x_of(&a, i + 1);
        if (begin > 0)
            picture_line(p, PICTURE_GREY, left, bottom + 22, left, bottom + 40, 0.7, false);
        const char *name = names[names_direction(&step)];
        if (name != NULL && picture_text_width(&picture_plain, name) < right - left)
            picture_text(p, &picture_plain, (left + right) / 2, bottom + 39, 0.5, right - left, name);
        begin = i + 1;
    }
    draw_unit_names(&a);
    p->y = bottom + 52;
}

/* ---- kinds of buckets -------------------------------------------------------------------------------------------- */

static void name_kind(const bp_bucket *bucket, char name[PICTURE_KIND_CHARS])
{
    if (bucket->name == NULL) {
        snprintf(name, PICTURE_KIND_CHARS, "bucket.%u", bucket->ordinal);
        return;
    }
    snprintf(name, PICTURE_KIND_CHARS, "%s", bucket->name);
    size_t end = strlen(name);
    while (end > 0 && isdigit((unsigned char)name[end - 1]))
        end--;
    if (end > 1 && name[end - 1] == '.' && name[end] != '\0')
        name[end - 1] = '\0';
}

uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds)
{
    char name[PICTURE_KIND_CHARS];
    name_kind(bucket, name);
    size_t length = strlen(name);
    if (*role != '\0')
        snprintf(name + length, sizeof name - length, ", %s", role);

    /* A name gets the same colour in every picture (FNV-1a hash, then the next free colour). */
    enum { HASHED = PICTURE_OTHER - PICTURE_FIRST_HASHED };
    uint32_t hash = 2166136261u;
    for (const char *c = name; *c != '\0'; c++)
        hash = (hash ^ (uint8_t)*c) * 16777619u;
    size_t kind = PICTURE_OTHER;
    if (strcmp(name, "dense") == 0)
        kind = PICTURE_DENSE;
    else if (strcmp(name, "experts") == 0)
        kind = PICTURE_EXPERTS;
    for (size_t i = 0; kind == PICTURE_OTHER && i < HASHED; i++) {
        size_t candidate = PICTURE_FIRST_HASHED + (hash % HASHED + i) % HASHED;
        if (*kinds[candidate] == '\0' || strcmp(kinds[candidate], name) == 0)
            kind = candidate;
    }
    snprintf(kinds[kind], PICTURE_KIND_CHARS, "%s", kind == PICTURE_OTHER ? "other buckets" : name);
    return (uint8_t)kind;
}

void picture_kinds_legend(picture *p, picture_kinds kinds)
{
    for (size_t kind = 0; kind < PICTURE_KINDS; kind++) {
        if (*kinds[kind] != '\0')
            picture_legend(p, PICTURE_ICON_BOX, picture_colours[kind], kinds[kind]);
    }
}
