/* What was granted, as data and as text. */
#include "comms/registration.h"

#include <stdio.h>
#include <string.h>

#include "core/fail.h"
#include "core/lines.h"

size_t bp_registration_window_count(const bp_registration *registration)
{
    return registration->window_count;
}

bp_status bp_registration_window_get(const bp_registration *registration, size_t index, bp_window *window)
{
    if (registration == NULL || window == NULL || index >= registration->window_count || window->size < sizeof *window)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_registration_window_get: window %zu of %zu", index,
                       registration != NULL ? registration->window_count : 0);
    const bp_registered *w = &registration->windows[index];
    *window = (bp_window){.size = sizeof *window,
                          .slab = w->slab,
                          .entry = w->entry,
                          .address = w->address,
                          .bytes = w->bytes,
                          .asked = w->asked,
                          .granted = w->granted,
                          .handle = w->handle,
                          .because = w->because};
    return BP_OK;
}

size_t bp_registration_warning_count(const bp_registration *registration, uint32_t entry)
{
    return entry < registration->entry_count ? registration->entries[entry].warning_count : 0;
}

const char *bp_registration_warning(const bp_registration *registration, uint32_t entry, size_t index)
{
    return index < bp_registration_warning_count(registration, entry) ? registration->entries[entry].warnings[index]
                                                                      : NULL;
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
             window->slab, r->groups[window->slab], (unsigned long long)window->bytes, comm->name, version,
             version[0] != '\0' ? ", " : "", comm->traits.ranks, bp_register_kind_name(window->asked),
             bp_register_kind_name(window->granted), explained ? "; " : "", window->because);
    bp_lines_add(l, line);
}

static void add_warnings(bp_lines *l, const bp_registration *r, size_t entry)
{
    char line[LINE_BYTES];
    for (size_t i = 0; i < r->entries[entry].warning_count; i++) {
        snprintf(line, sizeof line, "warning, entry %zu (communicator %.64s): %.800s\n", entry,
                 r->parties[r->entries[entry].party].comm->name, r->entries[entry].warnings[i]);
        bp_lines_add(l, line);
    }
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
    for (size_t i = 0; i < registration->entry_count; i++)
        add_warnings(&l, registration, i);
    *needed = l.needed;
    return BP_OK;
}
