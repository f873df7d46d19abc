/* A plan of one request in one slab. */
#ifndef BENCH_SLAB_H
#define BENCH_SLAB_H

#include <bucketpool/plan.h>

bp_plan *one_slab_plan(uint64_t bytes);

#endif
