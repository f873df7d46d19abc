/* Tensors of shapes that are measured one after the other: requests of a plan in which they take turns in one slab, as large as the
 * largest shape needs. */
#ifndef TOOLS_BENCH_MEMORY_H
#define TOOLS_BENCH_MEMORY_H

#include <bucketpool/bucketpool.h>

#define BENCH_MOST_TENSORS 16

/* Bytes of each tensor of a shape; 0: it has none. */
typedef struct bench_tensors {
    uint64_t bytes[BENCH_MOST_TENSORS];
} bench_tensors;

/* As the pool counts them: each rounded up. UINT64_MAX when they do not fit 64 bits. */
uint64_t bench_tensors_bytes(const bench_tensors *tensors);

typedef struct bench_memory {
    bp_pool *pool; /* NULL: there is no shape */
    uint32_t *ids; /* by shape and tensor */
    size_t shapes;
} bench_memory;

/* Call bench_memory_finish either way. `name`: of the pool, in messages. */
bp_status bench_memory_init(bp_device *device, const char *name, const bench_tensors *tensors, size_t shapes,
                            bench_memory *memory);
void bench_memory_finish(bench_memory *memory);

/* Holds one tensor of a shape; its address is NULL where it has no bytes. Only one shape's tensors may be held at a time. */
bp_status bench_memory_take(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream, void **address);
bp_status bench_memory_give(bench_memory *memory, size_t shape, size_t tensor, bp_stream *stream);
/* Bytes that are held now. */
bp_status bench_memory_held(const bench_memory *memory, uint64_t *bytes);

#endif
