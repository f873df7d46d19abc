/* Hybrid models of any length, to plan: the sequences of layers that published ones have, one after the other, with random widths. */
#ifndef BENCH_HYBRIDS_H
#define BENCH_HYBRIDS_H

#include <bucketpool/bucketpool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* HYBRID_WIDTHS_OF_SEQUENCES: one hidden size, one size of heads and so on for each repetition of a sequence, as in a model.
 * HYBRID_WIDTHS_OF_UNITS: anew for each unit, so that no two are alike. */
typedef enum hybrid_widths { HYBRID_WIDTHS_OF_SEQUENCES, HYBRID_WIDTHS_OF_UNITS } hybrid_widths;

/* `units` units with four given buckets each, the same on every machine. The caller owns the model. */
bp_status hybrid_model_create(uint32_t units, hybrid_widths which, bp_model **model);

#ifdef __cplusplus
}
#endif
#endif
