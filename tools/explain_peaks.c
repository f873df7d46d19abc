/* What sets the peak. */
#include <stdio.h>

#include "cli.h"
#include "explain_parts.h"
#include "names.h"

enum { MOST_HOLDERS = 6 }; /* that are named */

/* "layers.75 (975.0 MiB) and layers.76 (975.0 MiB)"; with the role where the slab is that of several. */
static void print_holders(const whatif *w, const bp_peak *peak)
{
    bool joint = (peak->roles & (peak->roles - 1)) != 0;
    size_t named = peak->holder_count > MOST_HOLDERS ? MOST_HOLDERS - 1 : peak->holder_count;
    for (size_t i = 0; i < named; i++) {
        bp_peak_holder holder = peak->holders[i];
        printf("%s%s (%s%s%s)",
               i == 0                        ? ""
               : i + 1 == peak->holder_count ? " and "
                                             : ", ",
               bp_buckets_get_info(w->analysed->buckets)->units[holder.unit].name,
               joint ? bp_role_name((bp_role)holder.role) : "", joint ? " " : "", cli_bytes(holder.bytes));
    }
    if (named < peak->holder_count)
        printf(" and %zu more", peak->holder_count - named);
}

static void print_step(const whatif *w, uint32_t step)
{
    char text[STEP_TEXT_CHARS];
    printf("step %u (%s)", step, analysis_step_text(w->analysed, step, text));
}

/* What the peak would be without these. */
static void print_next(const whatif *w, const bp_peak *peak)
{
    uint64_t lower = peak->set_count > 1 ? peak->below_bytes : peak->next_bytes;
    uint32_t step = peak->set_count > 1 ? peak->below_step : peak->next_step;
    if (peak->set_count > 1)
        printf(" %u other set%s of units reach%s it too, %u steps in all.", peak->set_count - 1,
               peak->set_count == 2 ? "" : "s", peak->set_count == 2 ? "es" : "", peak->step_count);
    if (lower == 0) {
        puts(" No step holds less.");
        return;
    }
    printf(" %s the peak would be %s, %s less, in ",
           peak->set_count > 1       ? "Without any of these sets"
           : peak->holder_count == 1 ? "Without it"
                                     : "If they did not come together,",
           cli_bytes(lower), cli_bytes(peak->bytes - lower));
    print_step(w, step);
    puts(".");
}

static void explain_peak(const whatif *w, const bp_peak *peak)
{
    char roles[ROLES_TEXT_CHARS];
    printf("%s: ", names_roles(peak->roles, roles));
    print_holders(w, peak);
    if (peak->step_count == 0) {
        printf(" set the peak of %s. They are not live in one step: the overlap window keeps them apart.\n",
               cli_bytes(peak->bytes));
        return;
    }
    printf(" set%s the peak of %s in ", peak->holder_count == 1 ? "s" : "", cli_bytes(peak->bytes));
    print_step(w, peak->step);
    putchar('.');
    print_next(w, peak);
}

void explain_peaks(const whatif *w)
{
    puts("\nWhat sets the peak");
    const bp_peaks_info *info = bp_peaks_get_info(w->peaks);
    for (size_t i = 0; i < info->peak_count; i++) {
        if (info->peaks[i].bytes > 0 && (info->peaks[i].roles & ~BP_ROLES_STATE) != 0)
            explain_peak(w, &info->peaks[i]);
    }
}
