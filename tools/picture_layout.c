#include "picture_layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "names.h"

static const char no_memory[] = "out of memory while laying out the picture";

/* ---- panels ---------------------------------------------------------------------------------------------------------- */

/* A request with all that is known of it. */
typedef struct found_request {
    bp_request request;
    bp_bucket bucket;
    const bp_interval *intervals;
    size_t interval_count;
} found_request;

static found_request find_request(const picture_input *input, size_t index)
{
    const bp_buckets_info *buckets = bp_buckets_get_info(input->buckets);
    const bp_scheduled_request *live = &bp_schedule_get_info(input->schedule)->requests[index];
    const bp_request *request = &buckets->requests[index];
    return (found_request){*request, buckets->buckets[request->bucket], live->intervals, live->interval_count};
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Where buffers begin: some request of each begins there, too. Offsets of a plan without buffers mean nothing as lines. */
static const char *find_starts(picture_panel *panel)
{
    if (panel->role.buffer_count == 0 || panel->rect_count == 0)
        return NULL;
    panel->starts = malloc(panel->rect_count * sizeof *panel->starts);
    if (panel->starts == NULL)
        return no_memory;
    for (size_t i = 0; i < panel->rect_count; i++)
        panel->starts[i] = panel->rects[i].offset;
    qsort(panel->starts, panel->rect_count, sizeof *panel->starts, by_value);
    for (size_t i = 0; i < panel->rect_count; i++) {
        if (i == 0 || panel->starts[i] != panel->starts[panel->start_count - 1])
            panel->starts[panel->start_count++] = panel->starts[i];
    }
    return NULL;
}

/* Room for every interval of the role, and for the live sums. `total` is what is live, with and without an address. */
static const char *allocate(const picture_input *input, const picture_layout *layout, picture_panel *panel,
                            uint64_t **total)
{
    size_t intervals = 1;
    for (size_t r = 0; r < bp_buckets_get_info(input->buckets)->request_count; r++)
        intervals += bp_schedule_get_info(input->schedule)->requests[r].interval_count;
    panel->rects = calloc(intervals, sizeof *panel->rects);
    panel->live = calloc((layout->steps + 1) * PICTURE_KINDS, sizeof *panel->live);
    *total = calloc(layout->steps + 1, sizeof **total);
    return panel->rects == NULL || panel->live == NULL || *total == NULL ? no_memory : NULL;
}

/* Changes at the beginning of steps, of steps + 1 entries; add_up makes sums of them. */
static void add_live(const found_request *found, uint64_t bytes, uint64_t *changes)
{
    for (size_t k = 0; k < found->interval_count; k++) {
        changes[found->intervals[k].begin] += bytes;
        changes[found->intervals[k].end] -= bytes;
    }
}

static void sum_changes(uint64_t *changes, size_t count)
{
    for (size_t i = 1; i < count; i++)
        changes[i] += changes[i - 1];
}

static void place(const bp_plan_request *planned, const found_request *found, uint8_t kind, picture_panel *panel)
{
    panel->slab_bytes = panel->plan->slabs[planned->slab].bytes;
    for (size_t k = 0; k < found->interval_count; k++)
        panel->rects[panel->rect_count++] = (picture_rect){.offset = planned->offset,
                                                           .bytes = planned->bytes,
                                                           .begin = found->intervals[k].begin,
                                                           .end = found->intervals[k].end,
                                                           .unit = (uint32_t)found->bucket.unit,
                                                           .kind = kind};
}

/* Places the role's requests where the plan has them; the rest is dynamic. */
static const char *place_requests(const picture_input *input, picture_layout *layout, picture_panel *panel,
                                  uint64_t *total)
{
    const uint64_t mask = panel->plan->alignment - 1;
    if (panel->plan->request_count != bp_buckets_get_info(input->buckets)->request_count)
        return "a plan has other requests than these buckets: it was made for another model";
    for (size_t r = 0; r < panel->plan->request_count && !panel->drawn_before; r++) {
        const bp_plan_request *planned = &panel->plan->requests[r];
        if (!(panel->role.roles & BP_ROLE_BIT(planned->role)))
            continue;
        const found_request found = find_request(input, r);
        const char *role = planned->role != panel->role.role ? bp_role_name((bp_role)planned->role) : "";
        uint8_t kind = picture_kind_of(&found.bucket, role, layout->kinds);
        uint64_t bytes = (planned->bytes + mask) & ~mask;
        add_live(&found, bytes, total);
        if (planned->placement == BP_PLACE_PLANNED)
            place(planned, &found, kind, panel);
        else if (panel->plan->feasible)
            add_live(&found, bytes, panel->live + kind * (layout->steps + 1));
    }
    return NULL;
}

/* Sums over the steps, and what a plan that was read from a file does not say. */
static void add_up(const picture_layout *layout, uint64_t *total, picture_panel *panel)
{
    sum_changes(total, layout->steps + 1);
    for (size_t kind = 0; kind < PICTURE_KINDS; kind++)
        sum_changes(panel->live + kind * (layout->steps + 1), layout->steps + 1);
    uint64_t most = 0;
    uint32_t most_step = 0;
    double sum = 0;
    for (size_t step = 0; step < layout->steps; step++) {
        uint64_t dynamic = 0;
        for (size_t kind = 0; kind < PICTURE_KINDS; kind++)
            dynamic += panel->live[kind * (layout->steps + 1) + step];
        panel->live_bytes = dynamic > panel->live_bytes ? dynamic : panel->live_bytes;
        if (total[step] > most) {
            most = total[step];
            most_step = (uint32_t)step;
        }
        sum += (double)total[step];
    }
    if (panel->is_worked_out) {
        panel->role.bytes = panel->slab_bytes + panel->live_bytes;
        panel->role.lower_bound_bytes = most;
        panel->role.lower_bound_step = most_step;
    }
    if (panel->role.bytes > 0)
        panel->used = sum / (double)panel->role.bytes / (double)layout->steps;
}

static const char *init_panel(const picture_input *input, picture_layout *layout, const bp_plan *plan, uint32_t role,
                              picture_panel *panel)
{
    panel->plan = bp_plan_get_info(plan);
    panel->is_worked_out = true;
    panel->role = (bp_plan_role){.role = role, .roles = BP_ROLE_BIT(role)};
    for (size_t i = 0; i < panel->plan->role_count && panel->is_worked_out; i++) {
        panel->is_worked_out = !(panel->plan->roles[i].roles & BP_ROLE_BIT(role));
        if (!panel->is_worked_out)
            panel->role = panel->plan->roles[i];
    }
    panel->drawn_before = panel->role.role != role;
    uint64_t *total = NULL;
    const char *error = allocate(input, layout, panel, &total);
    if (error == NULL)
        error = place_requests(input, layout, panel, total);
    if (error == NULL) {
        add_up(layout, total, panel);
        error = find_starts(panel);
    }
    free(total);
    return error;
}

/* Whether every plan draws the role in the row of another one, whose slab it shares. */
static bool is_always_drawn_before(const picture_input *input, uint32_t role)
{
    size_t plans = 0;
    for (size_t p = 0; p < input->plan_count; p++) {
        bool drawn = false;
        const bp_plan_info *plan = bp_plan_get_info(input->plans[p]);
        for (size_t i = 0; i < plan->role_count; i++)
            drawn = drawn || (plan->roles[i].role != role && (plan->roles[i].roles & BP_ROLE_BIT(role)));
        plans += drawn;
    }
    return plans == input->plan_count;
}

/* The roles that the schedule uses, in increasing order. */
static const char *find_roles(const picture_input *input, picture_layout *layout)
{
    bool used[BP_ROLE_COUNT] = {false};
    for (size_t r = 0; r < bp_buckets_get_info(input->buckets)->request_count; r++) {
        found_request found = find_request(input, r);
        if (found.request.role < BP_ROLE_COUNT && found.interval_count > 0)
            used[found.request.role] = true;
    }
    for (uint32_t role = 0; role < BP_ROLE_COUNT; role++) {
        if (used[role] && !is_always_drawn_before(input, role))
            layout->roles[layout->role_count++] = role;
    }
    return layout->role_count > 0 ? NULL : "there is nothing to draw: no memory is ever live";
}

const char *picture_layout_init(const picture_input *input, picture_layout *layout)
{
    *layout =
        (picture_layout){.plan_count = input->plan_count, .steps = bp_schedule_get_info(input->schedule)->step_count};
    if (input->plan_count == 0)
        return "there is nothing to draw: no plans";
    layout->common_chars = names_common_chars(input->buckets);
    const char *error = find_roles(input, layout);
    if (error != NULL)
        return error;
    layout->panels = calloc(layout->role_count * layout->plan_count, sizeof *layout->panels);
    if (layout->panels == NULL)
        return no_memory;
    for (size_t r = 0; r < layout->role_count; r++) {
        for (size_t p = 0; p < layout->plan_count; p++) {
            picture_panel *panel = &layout->panels[r * layout->plan_count + p];
            error = init_panel(input, layout, input->plans[p], layout->roles[r], panel);
            if (error != NULL)
                return error;
        }
    }
    return NULL;
}

void picture_layout_finish(picture_layout *layout)
{
    for (size_t i = 0; layout->panels != NULL && i < layout->role_count * layout->plan_count; i++) {
        free(layout->panels[i].rects);
        free(layout->panels[i].live);
        free(layout->panels[i].starts);
    }
    free(layout->panels);
    *layout = (picture_layout){0};
}
