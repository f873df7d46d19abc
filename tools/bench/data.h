/* The numbers that are measured with: the same in every run, known for each element without looking, exact in every dtype. */
#ifndef TOOLS_BENCH_DATA_H
#define TOOLS_BENCH_DATA_H

#include "bench/device.h"

/* Elements of a tensor repeat after so many, a prime: rows begin at different places. */
#define BENCH_PERIOD 1048573u

typedef enum bench_kind { BENCH_LOGITS, BENCH_HIDDEN, BENCH_WEIGHT } bench_kind;

/* What a tensor is filled with. */
typedef struct bench_pattern {
    bench_kind kind;
    int shift; /* elements are integers of 8 bits times 2 to its power */
} bench_pattern;

/* Logits as they are common: about normal, below 8 in size. */
bench_pattern bench_logits_pattern(void);
/* Hidden states below 1 in size, and a weight that makes logits about as large as those above of them. */
bench_pattern bench_hidden_pattern(void);
bench_pattern bench_weight_pattern(uint64_t hidden);

/* Element `index` of a tensor without gaps. */
double bench_element(bench_pattern pattern, uint64_t index);
/* Of a token: its target, and its upstream gradients between -1 and 1. */
int64_t bench_target(uint64_t token, uint64_t vocab);
float bench_logprob_grad(uint64_t token);
float bench_entropy_grad(uint64_t token);

/* Host memory that the device copies to and from. */
typedef struct bench_staging {
    const bench_device *device;
    void *memory;
    uint64_t bytes;
} bench_staging;

bp_status bench_staging_init(const bench_device *device, bench_staging *s);
void bench_staging_finish(bench_staging *s);

/* Writes a tensor; done when it returns. */
bp_status bench_fill(bench_staging *s, bench_pattern pattern, bp_dtype dtype, uint64_t elements, void *to);
/* Copies between host memory of the caller and the device, in pieces. */
bp_status bench_upload(bench_staging *s, const void *from, uint64_t bytes, void *to);
bp_status bench_download(bench_staging *s, const void *from, uint64_t bytes, void *to);

/* Element `index` of `dtype` (fp32, bf16, fp16) in host memory. */
double bench_read(const void *data, bp_dtype dtype, uint64_t index);

#endif
