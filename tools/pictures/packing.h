/* The picture of a placement: which item lies where, and when. */
#ifndef TOOLS_PICTURES_PACKING_H
#define TOOLS_PICTURES_PACKING_H

#include "formats/packing_file.h"
#include "shared/outputs.h"

typedef struct packing_picture {
    const char *title, *proof;
    const bp_packing_file *file;
    const uint64_t *offsets; /* of its items */
    uint64_t total, bound;
} packing_picture;

/* Time to the right, memory upwards, a box for each interval of an item, labelled where there is room. As picture_draw in everything
 * else. */
const char *picture_draw_packing(const packing_picture *input, const output *to);

#endif
