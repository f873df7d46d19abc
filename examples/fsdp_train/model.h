/* SPDX-License-Identifier: Apache-2.0 */
/* The model: a stack of residual units, each attention, an MLP or experts behind a norm, of different widths and
 * dtypes; and outside units an embedding, a last norm and an output layer. */
#ifndef FSDP_TRAIN_MODEL_H
#define FSDP_TRAIN_MODEL_H

#include <bucketpool/bucketpool.h>

#include "options.h"

#define HEADS 2
#define EXPERTS 4
#define UNIT_TENSORS 4
#define MAX_TENSORS (MAX_UNITS * UNIT_TENSORS + 3)

/* Tensors of a unit in order, and of those outside. */
enum { NORM = 0, QKV = 1, ATTENTION_OUT = 2, MLP_UP = 1, MLP_DOWN = 2, ROUTER = 1, EXPERTS_UP = 2, EXPERTS_DOWN = 3 };
enum { EMBEDDING = 0, LAST_NORM = 1, OUTPUT = 2, OUTSIDE_TENSORS = 3 };

typedef struct tensor {
    char name[64]; /* with copies, '*' for which */
    int32_t unit;
    uint32_t dims, copies;
    uint64_t shape[2];
    uint64_t numel; /* of all copies */
    bp_dtype dtype;
    float spread; /* first values lie so far around 0; 0: all are 1 */
    /* where the runtime has it; the model does not know (buckets.c) */
    uint32_t bucket;
    uint64_t offset; /* elements in the bucket */
} tensor;

typedef struct model {
    const options *options;
    uint32_t units;
    uint64_t inner[MAX_UNITS]; /* width between two products of an MLP or an expert */
    tensor tensors[MAX_TENSORS];
    uint32_t count;
    uint32_t first[MAX_UNITS + 1]; /* tensor of each unit; then of those outside */
} model;

void model_make(const options *o, model *m);

char model_kind(const model *m, uint32_t unit);
/* Index of a tensor of a unit, or of one outside (unit BP_OUTSIDE). */
uint32_t model_tensor(const model *m, int32_t unit, uint32_t which);
uint32_t model_stored(bp_dtype dtype);
uint64_t model_numel(const model *m);

/* The first value of an element of a tensor: from the seed and its place in the model alone. */
float model_value(const model *m, uint32_t index, uint64_t element);

/* Makes the model for the planner. The caller owns it. */
bp_status model_describe(const model *m, bp_model **described);

#endif
