/* The options of `bench logprob`. */
#ifndef BP_BENCH_COMMAND_OPTIONS_H
#define BP_BENCH_COMMAND_OPTIONS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#define BENCH_MOST_VALUES 32 /* of one list */

typedef struct bench_list {
    uint64_t values[BENCH_MOST_VALUES];
    size_t count;
} bench_list;

typedef enum bench_gradient { BENCH_GRADIENT_FP32, BENCH_GRADIENT_LOGITS, BENCH_GRADIENT_IN_PLACE } bench_gradient;

typedef struct bench_options {
    bool cuda;
    int32_t ordinal;              /* of a cuda device */
    bench_list seq, vocab, chunk; /* chunk 0: none */
    bp_dtype dtype;
    bench_gradient gradient;
    bool entropy;
    uint32_t threads; /* 0: as many as OpenMP would take */
    uint32_t kernels; /* a BP_KERNELS bit, 0: the best that the machine has */
    uint64_t turns;
    uint64_t scale; /* 0: picked */
    uint64_t head;  /* hidden size, 0: logits are there */
    bool json;
    const char *color;
} bench_options;

/* Reads the arguments after `bench logprob`. Returns EXIT_GO_ON, or the exit code after a message. */
int bench_options_parse(int argc, char **argv, bench_options *options);

const char *bench_gradient_name(bench_gradient gradient);
/* "plain", "avx2", "avx512", "auto". */
const char *bench_kernels_name(uint32_t kernels);
/* What the gradient of the logits, or of the hidden states, has. */
bp_dtype bench_gradient_dtype(const bench_options *options);

#endif
