/* Finds the first of many sizes that fits: logarithmic, so that thousands of parameters are laid out in no time. */
#ifndef BP_MODEL_FIRST_FIT_H
#define BP_MODEL_FIRST_FIT_H

#include <bucketpool/status.h>

#include <stddef.h>
#include <stdint.h>

/* A tournament of the smallest sizes: leaf i of `leaves` is at smallest[leaves + i], its parents above. */
typedef struct bp_first_fit {
    uint64_t *smallest;
    size_t leaves;
} bp_first_fit;

#define BP_FITS_NOWHERE UINT64_MAX /* the size of an entry that is never found */
#define BP_NO_FIT SIZE_MAX

/* `count` entries that are never found until they are set. */
bp_status bp_first_fit_init(bp_first_fit *fit, size_t count);
void bp_first_fit_finish(bp_first_fit *fit);
void bp_first_fit_set(bp_first_fit *fit, size_t index, uint64_t size);
/* The first index from `from` on whose size is at most `limit`, or BP_NO_FIT. `limit` is less than BP_FITS_NOWHERE. */
size_t bp_first_fit_find(const bp_first_fit *fit, size_t from, uint64_t limit);

#endif
