/* Tensors on a device that the host may not reach. */
#ifndef BP_TEST_KERNELS_HEAD_DEVICE_TENSORS_H
#define BP_TEST_KERNELS_HEAD_DEVICE_TENSORS_H

#include "head_cases.h"
#include "logprob/base.h"

/* On the device, and where they are filled and looked at. */
typedef struct twins {
    head_values v;
    head_tensors here, there;
    bp_workspace memory;
    uint8_t *base;
    bp_stream *stream;
} twins;

/* Stays where it is. [first, first + columns) of the vocabulary. Asserted. */
void begin_twins(twins *w, bp_device *device, const head_case *c, uint64_t first, uint64_t columns);
void end_twins(twins *w);
/* To the device, or back; waits. */
void copy_twins(twins *w, bool back);
/* As before anything ran. */
void begin_anew(twins *w);
/* Prints what is wrong. */
bool are_right(twins *w);

#endif
