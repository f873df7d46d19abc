/* What other schedules take. */
#include <stdio.h>

#include "cli.h"
#include "explain_parts.h"
#include "sheet.h"
#include "table_totals.h"

static const bp_alternative *find_present(const bp_alternatives_info *info)
{
    size_t i = 0;
    while (i + 1 < info->alternative_count && !info->alternatives[i].is_present)
        i++;
    return &info->alternatives[i];
}

static void add_line(sheet *s, const bp_alternative *a, uint64_t present)
{
    char prefetch[48], ratio[16];
    if (a->prefetch == a->prefetch_backward)
        snprintf(prefetch, sizeof prefetch, "%u", a->prefetch);
    else
        snprintf(prefetch, sizeof prefetch, "%u, backward %u", a->prefetch, a->prefetch_backward);
    const char *const cells[] = {prefetch,
                                 options_streams_name(a->streams),
                                 a->joint ? "joint" : "by role",
                                 cli_bytes(a->bytes),
                                 a->optimal ? "optimal" : "not proven",
                                 cli_bytes(a->live_bytes),
                                 a->max_bytes > 0 ? cli_bytes(a->max_bytes) : "infeasible",
                                 table_ratio_text(a->bytes, present, ratio),
                                 a->is_present ? "present" : ""};
    sheet_add_line(s);
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        sheet_set_cell(s, i, cells[i]);
    if (a->is_present)
        sheet_color_line(s, "green");
}

/* Fewer bytes may be found for a plan that is not proven. */
static void print_search(const bp_alternatives_info *info)
{
    bool proven = true;
    for (size_t i = 0; i < info->alternative_count; i++)
        proven = proven && (info->alternatives[i].optimal || info->alternatives[i].is_present);
    if (!proven)
        puts("What is not proven was searched for briefly: plan may find less with the same options.");
}

/* What can be had without gathering less far ahead. */
static void print_best(const bp_alternatives_info *info, const bp_alternative *present)
{
    bp_alternative best = *present;
    for (size_t i = 0; i < info->alternative_count; i++) {
        const bp_alternative *a = &info->alternatives[i];
        if (a->prefetch == present->prefetch && a->prefetch_backward == present->prefetch_backward &&
            a->bytes < best.bytes)
            best = *a;
    }
    if (best.bytes == present->bytes) {
        puts("With the present prefetch none of them takes less.");
        return;
    }
    printf("With the present prefetch, %s streams and %s take %s, %s less.\n", options_streams_name(best.streams),
           best.joint ? "a slab that the roles share" : "a slab for each role", cli_bytes(best.bytes),
           cli_bytes(present->bytes - best.bytes));
}

int explain_alternatives(const whatif *w, bool color)
{
    puts("\nWhat other schedules take");
    if (w->alternatives == NULL) {
        printf("The schedule %s, so other prefetch depths and streams are not compared.\n",
               w->analysed->models > 1 ? "is that of several models" : "comes from recordings");
        return EXIT_GO_ON;
    }
    static const char *const titles[] = {"PREFETCH", "STREAMS", "SLABS",     "SCHEDULED", "PROVEN",
                                         "LIVE",     "MAX",     "x PRESENT", ""};
    const bp_alternatives_info *info = bp_alternatives_get_info(w->alternatives);
    const bp_alternative *present = find_present(info);
    sheet s = sheet_new(color);
    for (size_t i = 0; i < sizeof titles / sizeof *titles; i++)
        sheet_add_column(&s, titles[i], i == 3 || (i >= 5 && i <= 7));
    for (size_t i = 0; i < info->alternative_count; i++)
        add_line(&s, &info->alternatives[i], present->bytes);
    int code = sheet_finish(&s);
    puts("LIVE is what all roles have live at once: no allocator takes less. MAX has a slab for each role.");
    print_search(info);
    print_best(info, present);
    return code;
}
