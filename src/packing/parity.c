#include "packing/parity.h"

#include <stdlib.h>

#include "core/fail.h"

enum { UNKNOWN, BOTTOM, TOP };

/* Gives the neighbours of `item` the other colour; appends those that had none. False: one has the same. */
static bool colour_neighbours(const bp_problem *p, uint32_t item, uint8_t *colours, uint32_t *reached, uint32_t *count)
{
    for (uint32_t n = p->neighbours.first[item]; n < p->neighbours.first[item + 1]; n++) {
        uint32_t other = p->neighbours.entries[n];
        if (colours[other] == colours[item])
            return false;
        if (colours[other] == UNKNOWN) {
            colours[other] = colours[item] == BOTTOM ? TOP : BOTTOM;
            reached[(*count)++] = other;
        }
    }
    return true;
}

static bool colour(const bp_problem *p, uint8_t *colours, uint32_t *reached)
{
    uint32_t count = 0, next = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (colours[i] != UNKNOWN)
            continue;
        colours[i] = BOTTOM;
        reached[count++] = i;
        for (; next < count; next++) {
            if (!colour_neighbours(p, reached[next], colours, reached, &count))
                return false;
        }
    }
    return true;
}

bp_status bp_parity(const bp_problem *problem, uint64_t *offsets, bool *found)
{
    void *colours, *reached = NULL;
    BP_TRY(bp_new_array(problem->count, sizeof(uint8_t), &colours));
    bp_status status = bp_new_array(problem->count, sizeof(uint32_t), &reached);
    if (status == BP_OK) {
        *found = colour(problem, colours, reached);
        for (uint32_t i = 0; *found && i < problem->count; i++)
            offsets[i] = ((uint8_t *)colours)[i] == BOTTOM ? 0 : problem->bound - problem->sizes[i];
    }
    free(colours);
    free(reached);
    return status;
}
