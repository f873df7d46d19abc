/* What is repeated at random, where BUCKETPOOL_BRIEF is set: a share of it, as another build of the same tests repeats it in full. */
#ifndef BP_TEST_BRIEF_H
#define BP_TEST_BRIEF_H

#include <stdlib.h>

static inline int in_brief(void)
{
    return getenv("BUCKETPOOL_BRIEF") != NULL;
}

/* A fifth, and at least one. */
static inline int share_of(int times)
{
    return in_brief() ? (times + 4) / 5 : times;
}

#endif
