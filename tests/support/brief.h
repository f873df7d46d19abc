/* SPDX-License-Identifier: Apache-2.0 */
/* Fewer random repetitions if BUCKETPOOL_BRIEF is set, because another build of the same tests runs all of them. */
#ifndef BP_TEST_BRIEF_H
#define BP_TEST_BRIEF_H

#include <stdlib.h>

static inline int in_brief(void)
{
    return getenv("BUCKETPOOL_BRIEF") != NULL;
}

/* A fifth, but at least one. */
static inline int share_of(int times)
{
    return in_brief() ? (times + 4) / 5 : times;
}

#endif
