/* What would make granted windows useless: the provider's sentences, and what several communicators have in common. */
#include "comms/registration.h"

#include <stdio.h>

#include "core/fail.h"

typedef struct collector {
    bp_registration *r;
    uint32_t entry;
    bp_status status;
} collector;

static void registration_warnings_add(void *user, const char *sentence)
{
    collector *c = user;
    bp_registration *r = c->r;
    if (c->status == BP_OK)
        c->status = bp_grow_array((void **)&r->warnings, &r->warning_capacity, r->warning_count, sizeof *r->warnings);
    if (c->status == BP_OK)
        c->status = bp_strings_add(&r->strings, sentence, &r->warnings[r->warning_count].text);
    if (c->status == BP_OK)
        r->warnings[r->warning_count++].entry = c->entry;
}

static bp_register_kind best_granted(const bp_registration *r, size_t entry)
{
    bp_register_kind best = BP_REGISTER_NONE;
    for (size_t i = 0; i < r->window_count; i++)
        if (r->shown[i].entry == entry && r->shown[i].granted > best)
            best = r->shown[i].granted;
    return best;
}

static void add_of_ranks(collector *c, const bp_party *party)
{
    char sentence[256];
    if (party->neighbours.in_process != UINT32_MAX) {
        snprintf(sentence, sizeof sentence,
                 "ranks %u and %u of communicator %s live in one process: memory is not shared between them by handle",
                 party->comm->traits.rank, party->neighbours.in_process, party->comm->name);
        registration_warnings_add(c, sentence);
    }
    if (party->neighbours.several_hosts && (c->r->entries[c->entry].traffic & BP_TRAFFIC_GATHER) != 0)
        registration_warnings_add(
            c, "the ranks are on several hosts: an all-gather needs its send side registered too, the shards");
}

bp_status bp_registration_collect_warnings(bp_registration *r)
{
    for (size_t i = 0; i < r->entry_count; i++) {
        collector c = {.r = r, .entry = (uint32_t)i, .status = BP_OK};
        const bp_party *party = &r->parties[r->entries[i].party];
        bp_register_kind kind = best_granted(r, i);
        if (kind == BP_REGISTER_NONE)
            continue;
        if (party->comm->ops->warnings != NULL)
            party->comm->ops->warnings(party->comm->self, kind, r->entries[i].traffic, registration_warnings_add, &c);
        add_of_ranks(&c, party);
        BP_TRY(c.status);
    }
    return BP_OK;
}
