/* The picture of what giving up overlap saves. */
#ifndef BP_TOOLS_PICTURE_TRADEOFF_H
#define BP_TOOLS_PICTURE_TRADEOFF_H

#include <bucketpool/whatif.h>

#include "outputs.h"

typedef struct tradeoff_picture {
    const char *title, *subtitle;
    const bp_tradeoff *tradeoff;
    size_t marked; /* a point that is pointed out; 0: none */
} tradeoff_picture;

/* Stalls to the right; above the bytes of the pool and their lower bound, below the bytes that the stalls expose. As picture_draw in
 * everything else. */
const char *picture_draw_tradeoff(const tradeoff_picture *input, const output *to);

#endif
