#include "schedule_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"

#define MOST_NAMES 3 /* of units that do the same */

/* A unit's events that stand together: the roles of the whole unit, or a part of one role. */
typedef struct unit_events {
    const bp_schedule_event *first;
    uint32_t roles;
    bool is_part;
    request_view request; /* the first */
    size_t next;          /* where the next unit's events begin */
} unit_events;

__attribute__((format(printf, 2, 3))) static void append(char text[EVENTS_TEXT_CHARS], const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, EVENTS_TEXT_CHARS - length, format, arguments);
    va_end(arguments);
}

/* From event `at` on, before `end`. */
static unit_events take_unit(const schedule_view *v, size_t at, size_t end)
{
    unit_events u = {.first = &v->events[at], .next = at + 1};
    schedule_view_request(v, u.first->first_request, &u.request);
    u.roles = BP_ROLE_BIT(u.request.request.role);
    u.is_part = schedule_view_is_part(v, u.first);
    for (; !u.is_part && u.next < end; u.next++) {
        const bp_schedule_event *event = &v->events[u.next];
        request_view r;
        if (event->acquire != u.first->acquire || !schedule_view_request(v, event->first_request, &r) ||
            r.bucket.unit != u.request.bucket.unit || schedule_view_is_part(v, event))
            break;
        u.roles |= BP_ROLE_BIT(r.request.role);
    }
    return u;
}

/* " param+grad", nothing when there is only one role to speak of. */
static void append_roles(const schedule_view *v, uint32_t roles, char text[EVENTS_TEXT_CHARS])
{
    const char *separator = " ";
    for (uint32_t role = 0; role < BP_ROLE_COUNT && v->role_count > 1; role++) {
        if (roles & BP_ROLE_BIT(role)) {
            append(text, "%s%s", separator, bp_role_name((bp_role)role));
            separator = "+";
        }
    }
}

static void append_name(const schedule_view *v, const unit_events *u, char text[EVENTS_TEXT_CHARS])
{
    const char *separator = *text != '\0' ? ", " : "";
    append(text, "%s%.60s", separator, u->request.unit + v->common_chars);
    if (!u->is_part)
        return;
    append(text, "/%.40s", cli_bucket(u->request.bucket.name, u->request.bucket.ordinal));
    if (u->first->request_count > 1)
        append(text, " and %u more", u->first->request_count - 1);
}

/* Units whose events are in the same roles: their names, or how many they are. */
static void append_group(const schedule_view *v, size_t at, size_t end, const unit_events *like,
                         char text[EVENTS_TEXT_CHARS])
{
    size_t units = 0;
    for (size_t i = at; i < end;) {
        unit_events u = take_unit(v, i, end);
        units += u.roles == like->roles;
        i = u.next;
    }
    for (size_t i = at; i < end && units <= MOST_NAMES;) {
        unit_events u = take_unit(v, i, end);
        if (u.roles == like->roles)
            append_name(v, &u, text);
        i = u.next;
    }
    if (units > MOST_NAMES)
        append(text, "%s%zu%s", *text != '\0' ? ", " : "", units, like->is_part ? " parts of units" : " units");
    append_roles(v, like->roles, text);
}

const char *schedule_events_text(const schedule_view *v, uint32_t step, bool acquires, char text[EVENTS_TEXT_CHARS])
{
    size_t at = v->first_event[step], end = v->first_event[step + 1];
    while (at < end && (v->events[at].acquire == 1) != acquires) /* releases come first */
        at++;
    while (end > at && (v->events[end - 1].acquire == 1) != acquires)
        end--;
    *text = '\0';
    uint32_t done[32]; /* sets of roles: there are no more */
    size_t count = 0;
    for (size_t i = at; i < end;) {
        unit_events u = take_unit(v, i, end);
        bool is_new = true;
        for (size_t k = 0; k < count; k++)
            is_new = is_new && done[k] != u.roles;
        if (is_new) {
            append_group(v, i, end, &u, text);
            done[count++] = u.roles;
        }
        i = u.next;
    }
    return text;
}

const char *schedule_request_text(const schedule_view *v, uint32_t request, char text[EVENTS_TEXT_CHARS])
{
    request_view r;
    *text = '\0';
    if (schedule_view_request(v, request, &r))
        snprintf(text, EVENTS_TEXT_CHARS, "%.160s/%.80s (%s)", r.unit, cli_bucket(r.bucket.name, r.bucket.ordinal),
                 bp_role_name((bp_role)r.request.role));
    return text;
}
