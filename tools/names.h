/* What units are called where there is little room. */
#ifndef TOOLS_NAMES_H
#define TOOLS_NAMES_H

#include <bucketpool/bucketpool.h>

/* How many characters all names of units begin with that need not be repeated: "model." or "model.layers."; a bare number says too
 * little, so then the word before it stays. */
size_t names_common_chars(const bp_buckets *buckets);

#endif
