/* What was granted, as data and as text. */
#include "comms/registration.h"

#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "core/text.h"

const bp_registration_info *bp_registration_get_info(const bp_registration *registration)
{
    return registration != NULL ? &registration->info : NULL;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

#define LINE_BYTES 1024

static void add_window(bp_lines *l, const bp_registration *r, const bp_registered *window)
{
    char line[LINE_BYTES];
    const bp_comm *comm = bp_comm_of(r, window);
    const char *version = comm->traits.version_name;
    bool explained = window->because[0] != '\0';
    snprintf(line, sizeof line,
             "slab %u (%.64s), %llu bytes, with communicator %.64s (%.64s%s%u ranks): %s asked, %s granted%s%s\n",
             window->shown->slab, r->groups[window->shown->slab], (unsigned long long)window->shown->bytes, comm->name,
             version, version[0] != '\0' ? ", " : "", comm->traits.ranks, bp_register_kind_name(window->shown->asked),
             bp_register_kind_name(window->shown->granted), explained ? "; " : "", window->because);
    bp_lines_add(l, line);
}

static void add_warning(bp_lines *l, const bp_registration *r, const bp_registration_warning *warning)
{
    char line[LINE_BYTES];
    snprintf(line, sizeof line, "warning, entry %u (communicator %.64s): %.800s\n", warning->entry,
             r->parties[r->entries[warning->entry].party].comm->name, warning->text);
    bp_lines_add(l, line);
}

bp_status bp_registration_report(const bp_registration *registration, char *text, size_t capacity, size_t *needed)
{
    if (registration == NULL || (text == NULL && capacity > 0) || needed == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT,
                       "bp_registration_report: needs a registration and a place for the length");
    bp_lines l;
    bp_lines_init(&l, text, capacity);
    for (size_t i = 0; i < registration->window_count; i++)
        add_window(&l, registration, &registration->windows[i]);
    for (size_t i = 0; i < registration->warning_count; i++)
        add_warning(&l, registration, &registration->warnings[i]);
    *needed = l.needed;
    return BP_OK;
}
