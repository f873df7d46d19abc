/* The matrix products of the fused head alone, by the library that it takes them from, with pieces of the same size: what its time is
 * compared with. */
#ifndef TOOLS_BENCH_PRODUCTS_H
#define TOOLS_BENCH_PRODUCTS_H

#include "bench/run.h"

typedef struct bench_products bench_products;

/* At the shape's tensors, which are held. Errors: BP_ERR_UNSUPPORTED (the head's library is not in this process). */
bp_status bench_products_create(bench *b, const bench_shape *shape, uint64_t chunk, bench_products **products);
void bench_products_destroy(bench_products **products);

/* One product a piece forward, three backward: logits again, and two gradients. */
bench_work bench_products_work(bench_products *products);

#endif
