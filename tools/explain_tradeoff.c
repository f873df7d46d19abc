/* What giving up overlap saves. */
#include <stdio.h>

#include "cli.h"
#include "explain_parts.h"
#include "sheet.h"

enum { MOST_LINES = 24, WHERE_CHARS = 320 };

static bp_tradeoff_point at(const whatif *w, size_t index)
{
    bp_tradeoff_point point = {.size = sizeof point};
    if (bp_tradeoff_get(w->tradeoff, index, &point) != BP_OK)
        point.waits = 0;
    return point;
}

/* Whether a stall is a pair of units, not a step: where overlap windows keep units apart. */
static bool has_pairs(const whatif *w)
{
    const analysis *a = w->analysed;
    return bp_schedule_overlap_count(a->untraded != NULL ? a->untraded : a->schedule) > 0;
}

/* "forward of layers.75 and 7 more", or, of pairs, "layers.2 for layers.1 and 3 more". */
static void describe_where(const whatif *w, size_t index, const bp_tradeoff_point *point, char text[WHERE_CHARS])
{
    bp_wait wait = {.size = sizeof wait};
    char what[STEP_TEXT_CHARS], more[48] = "";
    named_request waits, waits_for;
    *text = '\0';
    if (point->waits == 0 || bp_tradeoff_wait(w->tradeoff, index, 0, &wait) != BP_OK)
        return;
    if (point->stalls > 1)
        snprintf(more, sizeof more, " and %u more", point->stalls - 1);
    if (!has_pairs(w))
        snprintf(text, WHERE_CHARS, "%s%s", analysis_step_text(w->analysed, wait.step, what), more);
    else if (whatif_request(w, wait.waits, &waits) && whatif_request(w, wait.waits_for, &waits_for))
        snprintf(text, WHERE_CHARS, "%.100s for %.100s%s", waits.unit, waits_for.unit, more);
}

static double percent_of(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100 * (double)part / (double)whole : 0;
}

static void add_line(sheet *s, const whatif *w, size_t index, bool present)
{
    bp_tradeoff_point point = at(w, index);
    uint64_t saved = whatif_saved(w->tradeoff, index);
    char stalls[16], percent[16], where[WHERE_CHARS];
    snprintf(stalls, sizeof stalls, "%u", point.stalls);
    snprintf(percent, sizeof percent, "%.1f%%", percent_of(saved, at(w, 0).bytes));
    describe_where(w, index, &point, where);
    const char *const cells[] = {stalls,
                                 cli_bytes(point.bytes),
                                 point.optimal ? "optimal" : "not proven",
                                 cli_bytes(saved),
                                 percent,
                                 cli_bytes(point.exposed_bytes),
                                 where,
                                 present ? "present" : ""};
    sheet_add_line(s);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        sheet_set_cell(s, i, cells[i]);
    if (present)
        sheet_color_line(s, "green");
}

static int print_curve(const whatif *w, const plan_options *options, bool color)
{
    static const char *const titles[] = {"STALLS", "SCHEDULED", "PROVEN", "SAVED", "LESS", "EXPOSED", "WHERE", ""};
    size_t count = bp_tradeoff_count(w->tradeoff), stride = (count + MOST_LINES - 1) / MOST_LINES;
    size_t present = whatif_point_of(w->tradeoff, options->schedule.stalls), best = whatif_best_bargain(w->tradeoff);
    sheet s = sheet_new(color);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sheet_add_column(&s, titles[i], i <= 1 || (i >= 3 && i <= 5));
    for (size_t i = 0; i < count; i++) {
        if (i % stride == 0 || i + 1 == count || i == present || i == best)
            add_line(&s, w, i, i == present);
    }
    int code = sheet_finish(&s);
    if (!bp_tradeoff_is_complete(w->tradeoff))
        puts("Not every number of stalls was tried: the work for it ended before.");
    if (stride > 1)
        printf("Of %zu numbers of stalls that lower the pool these are some; --json prints all.\n", count - 1);
    return code;
}

static void print_bargain(const whatif *w)
{
    size_t best = whatif_best_bargain(w->tradeoff);
    bp_tradeoff_point point = at(w, best);
    uint64_t saved = whatif_saved(w->tradeoff, best);
    printf("The best bargain: giving up overlap in %u %s%s saves %s (%.1f%%) and exposes %s of collectives in an "
           "iteration",
           point.stalls, has_pairs(w) ? "pair" : "step", point.stalls == 1 ? "" : "s", cli_bytes(saved),
           percent_of(saved, at(w, 0).bytes), cli_bytes(point.exposed_bytes));
    printf(", %.1f bytes for each byte saved. --allow-stalls %u plans it.\n",
           (double)point.exposed_bytes / (double)saved, point.stalls);
}

int explain_tradeoff(const whatif *w, const plan_options *options, bool color)
{
    puts("\nWhat giving up overlap saves");
    if (bp_tradeoff_count(w->tradeoff) == 1) {
        puts(bp_tradeoff_is_complete(w->tradeoff) ? "Nothing: however much overlap is given up, the pool takes as much."
                                                  : "Nothing was found: giving up overlap was tried as far as the work "
                                                    "for it went, and the pool took as much.");
        return EXIT_GO_ON;
    }
    printf("In a stall %s, so both need not be held at once. EXPOSED are the collectives that then no longer run under "
           "compute.\n",
           has_pairs(w) ? "a unit waits for memory that another released"
                        : "a step's gathers ahead wait for its compute, or it waits for reductions before it");
    int code = print_curve(w, options, color);
    print_bargain(w);
    return code;
}
