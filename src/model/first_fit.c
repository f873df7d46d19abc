#include "model/first_fit.h"

#include <stdlib.h>
#include <string.h>

#include "core/memory.h"

bp_status bp_first_fit_init(bp_first_fit *fit, size_t count)
{
    void *memory;
    size_t leaves = 1;
    while (leaves < count)
        leaves *= 2;
    bp_status status = bp_new_array(2 * leaves, sizeof *fit->smallest, &memory);
    if (status != BP_OK)
        return status;
    fit->smallest = memset(memory, 0xff, 2 * leaves * sizeof *fit->smallest);
    fit->leaves = leaves;
    return BP_OK;
}

void bp_first_fit_finish(bp_first_fit *fit)
{
    free(fit->smallest);
    *fit = (bp_first_fit){0};
}

void bp_first_fit_set(bp_first_fit *fit, size_t index, uint64_t size)
{
    size_t at = fit->leaves + index;
    fit->smallest[at] = size;
    for (at /= 2; at > 0; at /= 2) {
        uint64_t left = fit->smallest[2 * at], right = fit->smallest[2 * at + 1];
        fit->smallest[at] = left < right ? left : right;
    }
}

size_t bp_first_fit_find(const bp_first_fit *fit, size_t from, uint64_t limit)
{
    if (from >= fit->leaves)
        return BP_NO_FIT;
    size_t at = fit->leaves + from;
    /* up and to the right, until a subtree has one that fits */
    while (fit->smallest[at] > limit) {
        while (at % 2 == 1) /* a right child, or the root: its subtree is done */
            at /= 2;
        if (at == 0)
            return BP_NO_FIT;
        at++;
    }
    while (at < fit->leaves)
        at = fit->smallest[2 * at] <= limit ? 2 * at : 2 * at + 1;
    return at - fit->leaves;
}
