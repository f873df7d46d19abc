/* Max-pool: for each storage dtype a unit's buckets are sorted from large to small, and the k-th buffer holds the largest
 * k-th bucket of any unit. Source: Megatron-LM d98e8a64, MaxPoolAllocator._build_fixed_max_pool (PR 5462). */
#include "planner/policy.h"

#include <stdlib.h>
#include <string.h>

#include "core/fail.h"

/* The classes of each storage dtype, by rank. */
typedef struct rank_table {
    uint32_t *classes[BP_DTYPE_COUNT];
    size_t counts[BP_DTYPE_COUNT], capacities[BP_DTYPE_COUNT];
} rank_table;

typedef struct ranked {
    uint64_t numel;
    uint32_t request;
} ranked;

/* By unpadded elements, the larger first; equal: the larger bucket first. Requests of a tenant are in order of buckets. */
static inline bool comes_before(const ranked *a, const ranked *b)
{
    return (a->numel > b->numel) | ((a->numel == b->numel) & (a->request > b->request));
}

/* Runs of this length are sorted by counting, longer ones by merging. Both without branches that depend on the sizes: on ten
 * thousand units of many buckets mispredicted ones would take most of the time. */
#define RUN 8

/* Each item's place is the number of items that come before it. */
static void sort_run(ranked *items, size_t count)
{
    ranked sorted[RUN];
    uint32_t place[RUN] = {0};
    for (size_t i = 1; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            bool before = comes_before(&items[i], &items[k]);
            place[k] += before;
            place[i] += !before;
        }
    }
    for (size_t i = 0; i < count; i++)
        sorted[place[i]] = items[i];
    memcpy(items, sorted, count * sizeof *items);
}

static void merge_runs(const ranked *left, size_t left_count, const ranked *right, size_t right_count, ranked *to)
{
    size_t i = 0, j = 0, k = 0;
    while (i < left_count && j < right_count) {
        bool from_left = comes_before(&left[i], &right[j]);
        to[k++] = from_left ? left[i] : right[j];
        i += from_left;
        j += !from_left;
    }
    memcpy(to + k, left + i, (left_count - i) * sizeof *to);
    memcpy(to + k + left_count - i, right + j, (right_count - j) * sizeof *to);
}

/* `spare` has room for as many. */
static void sort_ranked(ranked *items, ranked *spare, size_t count)
{
    for (size_t begin = 0; begin < count; begin += RUN)
        sort_run(items + begin, count - begin < RUN ? count - begin : RUN);
    ranked *from = items, *to = spare;
    for (size_t width = RUN; width < count; width *= 2) {
        for (size_t begin = 0; begin < count; begin += 2 * width) {
            size_t middle = begin + width < count ? begin + width : count;
            size_t end = begin + 2 * width < count ? begin + 2 * width : count;
            merge_runs(from + begin, middle - begin, from + middle, end - middle, to + begin);
        }
        ranked *swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, count * sizeof *items);
}

static bp_status policy_max_enter(const bp_policy_input *input, uint32_t request, size_t rank, uint32_t copy,
                                  rank_table *ranks, bp_role_layout *layout)
{
    uint8_t dtype = input->buckets->requests[request].dtype;
    if (rank == ranks->counts[dtype]) {
        BP_TRY(bp_grow_array((void **)&ranks->classes[dtype], &ranks->capacities[dtype], rank, sizeof(uint32_t)));
        ranks->classes[dtype][ranks->counts[dtype]++] = (uint32_t)layout->class_count;
        bp_class added = {
            .copies = layout->copies, .rank = (uint32_t)rank, .set_by = request, .kind = BP_BUFFER_POOLED};
        added.dtype = dtype;
        BP_TRY(bp_layout_add_class(layout, &added));
    }
    uint64_t bytes;
    BP_TRY(bp_aligned_bytes(input, request, &bytes));
    uint32_t class_index = ranks->classes[dtype][rank];
    bp_class *c = &layout->classes[class_index];
    if (bytes > c->bytes) {
        c->bytes = bytes;
        c->set_by = request;
    }
    c->users++;
    layout->places[request] = (bp_place){class_index, copy};
    return BP_OK;
}

static bp_status rank_tenants(const bp_policy_input *input, const uint32_t *copies, ranked *scratch, rank_table *ranks,
                              bp_role_layout *layout)
{
    const bp_request *requests = input->buckets->requests;
    for (size_t t = 0; t < input->tenants->count; t++) {
        const bp_tenant *tenant = &input->tenants->tenants[t];
        uint64_t seen = 0; /* dtypes of this tenant that are done */
        for (uint32_t i = 0; i < tenant->request_count; i++) {
            uint8_t dtype = requests[tenant->first_request + i].dtype;
            if (seen & 1ull << dtype)
                continue;
            seen |= 1ull << dtype;
            size_t count = 0;
            for (uint32_t k = i; k < tenant->request_count; k++) {
                uint32_t request = tenant->first_request + k;
                if (requests[request].dtype == dtype)
                    scratch[count++] = (ranked){requests[request].numel, request};
            }
            sort_ranked(scratch, scratch + tenant->request_count, count);
            for (size_t rank = 0; rank < count; rank++)
                BP_TRY(policy_max_enter(input, scratch[rank].request, rank, copies[t], ranks, layout));
        }
    }
    return BP_OK;
}

bp_status bp_policy_max(const bp_policy_input *input, bp_role_layout *layout)
{
    const bp_tenants *tenants = input->tenants;
    layout->feasible = true;
    if (tenants->count == 0)
        return BP_OK;
    size_t most = 0;
    for (size_t t = 0; t < tenants->count; t++)
        most = tenants->tenants[t].request_count > most ? tenants->tenants[t].request_count : most;
    void *copies = NULL, *scratch = NULL;
    bp_status status = bp_new_array(tenants->count, sizeof(uint32_t), &copies);
    if (status == BP_OK)
        status = bp_new_array(2 * most, sizeof(ranked), &scratch); /* and room to merge into */
    uint32_t used = input->config->copies;
    if (status == BP_OK)
        status = bp_tenants_assign_copies(tenants, &used, copies, &layout->proven);
    layout->live_units = tenants->most_live;
    layout->live_step = tenants->most_live_step;
    layout->feasible = used > 0;
    layout->copies = used > 0 ? used : input->config->copies; /* too few: say what so many would take */
    rank_table ranks = {0};
    if (status == BP_OK)
        status = rank_tenants(input, copies, scratch, &ranks, layout);
    for (int i = 0; i < BP_DTYPE_COUNT; i++)
        free(ranks.classes[i]);
    free(scratch);
    free(copies);
    return status;
}
