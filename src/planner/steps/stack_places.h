/* SPDX-License-Identifier: Apache-2.0 */
/* Call stacks of a trace, read once each: the line of code that a person looks for, the module and the phase of training. */
#ifndef BP_STEPS_STACK_PLACES_H
#define BP_STEPS_STACK_PLACES_H

#include "planner/steps/trace.h"

typedef enum bp_trace_phase {
    BP_TRACE_PHASE_UNKNOWN, /* no frames */
    BP_TRACE_PHASE_SETUP,   /* building or loading the model */
    BP_TRACE_PHASE_FORWARD,
    BP_TRACE_PHASE_BACKWARD,
    BP_TRACE_PHASE_RECOMPUTE, /* activation checkpointing */
    BP_TRACE_PHASE_OPTIMIZER,
    BP_TRACE_PHASES
} bp_trace_phase;

typedef struct bp_stack_place {
    const bp_trace_frame
        *frame;         /* of the program or its framework; NULL: none. A frame of PyTorch, where there are no others */
    const char *module; /* not terminated; "": not recorded */
    uint32_t module_bytes;
    uint8_t phase;         /* bp_trace_phase */
    bool is_communication; /* of a collective */
    bool is_unsharded;     /* parameters that FSDP gathered */
    bool is_workspace;     /* of kernels */
} bp_stack_place;

typedef struct bp_stack_places {
    bp_stack_place *all;           /* by stack */
    bool *is_foreign;              /* by frame: of PyTorch or of Python's library */
    bool have_python, have_native; /* some stacks have frames of Python, of C++ */
} bp_stack_places;

/* True if an allocation without frames is of autograd's thread: the recording has frames of Python, and none of C++. */
static inline bool bp_stack_places_miss_backward(const bp_stack_places *places)
{
    return places->have_python && !places->have_native;
}

/* O(frames of all stacks). The caller owns the result: bp_stack_places_finish. Errors: BP_ERR_NO_HOST_MEMORY. */
BP_API bp_status bp_stack_places_init(const bp_trace *trace, bp_stack_places *places);
BP_API void bp_stack_places_finish(bp_stack_places *places);

/* True for Python's code; false for that of C++. */
BP_API bool bp_trace_frame_is_python(const bp_trace_frame *frame);

/* Characters of a function's name before the arguments of C++. */
BP_API size_t bp_trace_function_chars(const char *function);

/* "train.py", without folders. */
BP_API const char *bp_trace_file_name(const char *path);

/* "train.py:12 forward"; without the line unless `has_line`. */
BP_API const char *bp_trace_frame_name(const bp_trace_frame *frame, bool has_line, char *text, size_t chars);

/* "forward", "unknown". */
BP_API const char *bp_trace_phase_name(bp_trace_phase phase);

#endif
