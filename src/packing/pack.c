/* Packing in layers: what is known, structure, exact search, improvement; each stops when the bound is reached. */
#include <stdlib.h>

#include "core/fail.h"
#include "packing/problem.h"

bp_status bp_pack_config_init(bp_pack_config *config, size_t size)
{
    if (config == NULL || size < sizeof *config)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_pack_config_init: size %zu, expected at least %zu", size,
                       sizeof *config);
    *config = (bp_pack_config){.size = sizeof *config};
    return BP_OK;
}

static int by_number(const void *left, const void *right)
{
    uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return (a > b) - (a < b);
}

bp_status bp_packing_bound(const bp_packing *packing, uint32_t *witness, size_t *count, uint64_t *bound)
{
    if (packing == NULL || count == NULL || bound == NULL)
        return bp_fail(BP_ERR_INVALID_ARGUMENT, "bp_packing_bound: needs a packing and places for the answer");
    bp_problem problem;
    BP_TRY(bp_problem_init(packing, &problem));
    *count = 0;
    *bound = problem.bound;
    if (problem.sections.count > 0) {
        uint32_t s = problem.bound_section, first = problem.sections.first[s];
        *count = problem.sections.first[s + 1] - first;
        for (size_t i = 0; witness != NULL && i < *count; i++)
            witness[i] = problem.origin[problem.sections.entries[first + i]];
        if (witness != NULL)
            qsort(witness, *count, sizeof *witness, by_number);
    }
    bp_problem_finish(&problem);
    return BP_OK;
}

bp_status bp_pack(const bp_packing *packing, const bp_pack_config *config, uint64_t *offsets, bp_pack_result *result)
{
    (void)packing;
    (void)config;
    (void)offsets;
    (void)result;
    return bp_fail(BP_ERR_UNSUPPORTED, "not yet");
}
