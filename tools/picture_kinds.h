/* Kinds of buckets in pictures. */
#ifndef BP_TOOLS_PICTURE_KINDS_H
#define BP_TOOLS_PICTURE_KINDS_H

#include <bucketpool/bucketpool.h>

/* Kinds of buckets that are told apart: each is a colour. A kind is a bucket's name without a number at its end. */
enum { PICTURE_DENSE, PICTURE_EXPERTS, PICTURE_FIRST_HASHED, PICTURE_OTHER = 7, PICTURE_KINDS };
#define PICTURE_KIND_CHARS 40

typedef char picture_kinds[PICTURE_KINDS][PICTURE_KIND_CHARS]; /* "": not in the picture */

/* The kind of a bucket, named in `kinds` from now on. `role`: of a bucket beside those of another role, else "". */
uint8_t picture_kind_of(const bp_bucket *bucket, const char *role, picture_kinds kinds);

#endif
