/* Memory of a pool that others look at through DLPack, and that outlives the pool for them. */
#ifndef BP_ALLOCATORS_LEND_H
#define BP_ALLOCATORS_LEND_H

#include "allocators/pool.h"

/* How many tensors are exported now. */
BP_API uint64_t bp_pool_export_count(bp_pool *pool);

/* The pool is being destroyed and its slabs have no observers any more: gives their memory back, now or with the last tensor. */
void bp_export_pool_gone(bp_pool *pool);

#endif
