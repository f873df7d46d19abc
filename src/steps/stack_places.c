/* Reads call stacks: names of files and functions of PyTorch, of its C++ code and of optimizers tell places and phases. */
#include "steps/stack_places.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fail.h"
#include "core/memory.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool contains_any(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strstr(text, words[i]) != NULL)
            return true;
    }
    return false;
}

static bool is_any(const char *text, const char *const *words, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(text, words[i]) == 0)
            return true;
    }
    return false;
}

static bool path_ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), more = strlen(end);
    return length >= more && strcmp(text + length - more, end) == 0;
}

/* ---- places -------------------------------------------------------------------------------------------------------- */

bool bp_trace_frame_is_python(const bp_trace_frame *frame)
{
    return path_ends_with(frame->file, ".py") || frame->file[0] == '<';
}

/* Frames that a person does not look for: PyTorch's, Python's library, code without a file. Some recordings keep two parts of each path
 * alone. */
static bool is_of_pytorch(const bp_trace_frame *frame)
{
    static const char *const parts[] = {"/torch/", "/_dynamo/", "/_inductor/", "/_functorch/"};
    static const char *const folders[] = {"torch/",     "autograd/",   "optim/",        "_dynamo/",
                                          "_inductor/", "_functorch/", "_fully_shard/", "_subclasses/",
                                          "nn/",        "amp/",        "_library/"};
    static const char *const files[] = {
        "utils/_device.py",          "utils/_contextlib.py",     "utils/checkpoint.py",    "utils/_pytree.py",
        "modules/module.py",         "modules/linear.py",        "modules/sparse.py",      "modules/container.py",
        "modules/conv.py",           "modules/normalization.py", "modules/activation.py",  "modules/loss.py",
        "modules/dropout.py",        "modules/batchnorm.py",     "modules/transformer.py", "distributed/utils.py",
        "distributed/c10d_logger.py"};
    const char *file = frame->file, *slash = strchr(file, '/');
    if (file[0] == '<' || contains_any(file, parts, COUNT(parts)))
        return true;
    if (strstr(file, "/lib/python3") != NULL)
        return strstr(file, "-packages/") == NULL;
    if (slash == NULL || strchr(slash + 1, '/') != NULL)
        return false;
    for (size_t i = 0; i < COUNT(folders); i++) {
        if (strncmp(file, folders[i], strlen(folders[i])) == 0)
            return true;
    }
    return is_any(file, files, COUNT(files));
}

size_t bp_trace_function_chars(const char *function)
{
    static const char anonymous[] = "(anonymous namespace)";
    size_t length = 0;
    while (function[length] != '\0' && function[length] != '(') {
        length++;
        while (strncmp(function + length, anonymous, sizeof anonymous - 1) == 0)
            length += sizeof anonymous - 1;
    }
    return length;
}

/* Of C++: how good a name is. Nodes of autograd, then operators, then all that is neither the unwinder, the allocator nor Python's
 * interpreter. */
static int rank_of_native(const bp_trace_frame *frame)
{
    static const char *const noise[] = {"torch::unwind",
                                        "CapturedTraceback",
                                        "CachingAllocator",
                                        "c10::",
                                        "std::",
                                        "pybind11",
                                        "_Py",
                                        "PyObject",
                                        "PyEval",
                                        "Py_",
                                        "__libc",
                                        "_start",
                                        "gather",
                                        "c10_cuda",
                                        "??",
                                        "start_thread",
                                        "_thread",
                                        "thread_run",
                                        "torch::autograd::Engine"};
    char function[200];
    const size_t length = bp_trace_function_chars(frame->function);
    snprintf(function, sizeof function, "%.*s", (int)(length < sizeof function ? length : sizeof function - 1),
             frame->function);
    if (*function == '\0' || contains_any(function, noise, COUNT(noise)))
        return 0;
    if (strstr(function, "Backward") != NULL && strstr(function, "::apply") != NULL)
        return 3;
    return strncmp(function, "at::_ops::", 10) == 0 || strncmp(function, "aten::", 6) == 0 ? 2 : 1;
}

/* Python between a module and its operator: a worse name than other frames of PyTorch. */
static bool is_helper(const bp_trace_frame *frame)
{
    return strstr(frame->file, "utils/_") != NULL || frame->file[0] == '<' ||
           (strncmp(frame->function, "__", 2) == 0 && strcmp(frame->function, "__init__") != 0);
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

/* Facts of a frame, each found once: many stacks have it. */
typedef struct frame_facts {
    bool is_python, is_of_pytorch, is_helper;
    uint8_t native_rank;
    bool is_engine;        /* of autograd, in C++ */
    bool is_optimizer;     /* by its file */
    bool is_checkpoint;    /* recomputes, if a module is called inside it */
    bool is_backward;      /* by its function */
    bool is_called;        /* a module is called */
    bool is_setup;         /* of building or loading a model */
    bool is_communication; /* a collective, or FSDP's buffers */
    bool is_workspace;
    bool is_too_long; /* nothing else is known: its names are no names of code */
} frame_facts;

enum { LONGEST_NAME = 4096 };

/* A part of a path, as a folder: optim/adam.py, megatron/core/optimizer/optimizer.py. */
static bool is_of_optimizer(const char *file)
{
    static const char *const parts[] = {"optim", "optimizer", "optimizers"};
    for (size_t i = 0; i < COUNT(parts); i++) {
        const size_t length = strlen(parts[i]);
        for (const char *at = file; (at = strstr(at, parts[i])) != NULL; at += length) {
            if ((at == file || at[-1] == '/') && at[length] == '/')
                return true;
        }
    }
    return strstr(file, "clip_grad") != NULL || strstr(file, "grad_scaler") != NULL;
}

static frame_facts facts_of(const bp_trace_frame *frame)
{
    static const char *const setups[] = {
        "__init__",        "_apply",           "from_pretrained",        "_from_config",
        "load_state_dict", "reset_parameters", "_load_pretrained_model", "to_empty"};
    static const char *const calls[] = {"forward", "_call_impl", "_wrapped_call_impl", "__call__"};
    static const char *const recomputes[] = {"recompute_fn", "unpack_hook", "inner_unpack", "backward"};
    static const char *const collectives[] = {"all_gather", "allgather",  "reduce_scatter", "all_reduce",
                                              "allreduce",  "all_to_all", "alltoall",       "c10d::"};
    static const char *const buffers[] = {"_fsdp_collectives", "_fsdp_param", "_flat_param", "distributed_c10d"};
    if (strnlen(frame->file, LONGEST_NAME) == LONGEST_NAME || strnlen(frame->function, LONGEST_NAME) == LONGEST_NAME)
        return (frame_facts){.is_too_long = true};
    frame_facts facts = {.is_python = bp_trace_frame_is_python(frame),
                         .is_communication = contains_any(frame->function, collectives, COUNT(collectives)) ||
                                             contains_any(frame->file, buffers, COUNT(buffers)),
                         .is_workspace = strstr(frame->function, "orkspace") != NULL};
    if (!facts.is_python) {
        facts.native_rank = (uint8_t)rank_of_native(frame);
        facts.is_engine = strstr(frame->function, "torch::autograd::Engine") != NULL;
        return facts;
    }
    facts.is_of_pytorch = is_of_pytorch(frame);
    facts.is_helper = is_helper(frame);
    facts.is_optimizer = is_of_optimizer(frame->file);
    facts.is_checkpoint = (path_ends_with(frame->file, "checkpoint.py") || path_ends_with(frame->file, "/random.py")) &&
                          is_any(frame->function, recomputes, COUNT(recomputes));
    facts.is_backward = strstr(frame->function, "backward") != NULL;
    facts.is_called = is_any(frame->function, calls, COUNT(calls));
    facts.is_setup = is_any(frame->function, setups, COUNT(setups));
    return facts;
}

/* ---- stacks -------------------------------------------------------------------------------------------------------- */

static const char *const phase_names[BP_TRACE_PHASES] = {"unknown",  "setup",     "forward",
                                                         "backward", "recompute", "optimizer"};

const char *bp_trace_phase_name(bp_trace_phase phase)
{
    return phase < BP_TRACE_PHASES ? phase_names[phase] : "unknown";
}

static const bp_trace_frame *naming_frame(const bp_trace *trace, const frame_facts *facts, const bp_trace_stack *stack)
{
    uint32_t python = BP_TRACE_NONE, native = BP_TRACE_NONE;
    for (size_t i = 0; i < stack->count; i++) {
        const uint32_t at = stack->frames[i];
        if (facts[at].is_python && !facts[at].is_of_pytorch)
            return &trace->frames[at];
        if (facts[at].is_python && (python == BP_TRACE_NONE || (facts[python].is_helper && !facts[at].is_helper)))
            python = at;
        if (facts[at].native_rank > (native == BP_TRACE_NONE ? 0 : facts[native].native_rank))
            native = at;
    }
    const uint32_t named = python != BP_TRACE_NONE ? python : native;
    return named != BP_TRACE_NONE ? &trace->frames[named] : NULL;
}

/* From the innermost frame outwards: the first that decides. */
static bp_trace_phase phase_of(const frame_facts *facts, const bp_trace_stack *stack)
{
    bool is_called = false, is_setup = false;
    for (size_t i = 0; i < stack->count; i++) {
        const frame_facts *f = &facts[stack->frames[i]];
        if (f->is_optimizer)
            return BP_TRACE_PHASE_OPTIMIZER;
        if (f->is_checkpoint && is_called)
            return BP_TRACE_PHASE_RECOMPUTE;
        if (f->is_backward || f->is_engine)
            return BP_TRACE_PHASE_BACKWARD;
        is_called = is_called || f->is_called;
        is_setup = is_setup || f->is_setup;
    }
    if (stack->count == 0)
        return BP_TRACE_PHASE_UNKNOWN;
    return is_setup && !is_called ? BP_TRACE_PHASE_SETUP : BP_TRACE_PHASE_FORWARD;
}

/* The first frame of a recording of bucketpool.torch.trace: "model.layers.3.mlp (backward)", line 0, and the operator. */
static void read_origin(const bp_trace_frame *frame, bp_stack_place *place)
{
    const char *file = frame->file, *bracket = strrchr(file, '(');
    if (frame->line != 0 || bp_trace_frame_is_python(frame) || strchr(file, '/') != NULL || strcmp(file, "??") == 0)
        return;
    size_t length = strlen(file);
    for (unsigned phase = BP_TRACE_PHASE_FORWARD; phase < BP_TRACE_PHASES; phase++) {
        const char *name = phase_names[phase];
        size_t bytes = strlen(name);
        if (strcmp(file, name) == 0) {
            length = 0;
            place->phase = (uint8_t)phase;
        } else if (bracket != NULL && bracket > file + 1 && strncmp(bracket + 1, name, bytes) == 0 &&
                   strcmp(bracket + 1 + bytes, ")") == 0) {
            length = (size_t)(bracket - file) - 1;
            place->phase = (uint8_t)phase;
        }
    }
    place->module = file;
    place->module_bytes = (uint32_t)length;
}

static bp_stack_place read_stack(const bp_trace *trace, const frame_facts *facts, const bp_trace_stack *stack)
{
    bp_stack_place place = {
        .module = "", .frame = naming_frame(trace, facts, stack), .phase = (uint8_t)phase_of(facts, stack)};
    if (stack->count > 0 && !facts[stack->frames[0]].is_too_long)
        read_origin(&trace->frames[stack->frames[0]], &place);
    for (size_t i = 0; i < stack->count; i++) {
        place.is_communication = place.is_communication || facts[stack->frames[i]].is_communication;
        place.is_workspace = place.is_workspace || facts[stack->frames[i]].is_workspace;
    }
    return place;
}

bp_status bp_stack_places_init(const bp_trace *trace, bp_stack_places *places)
{
    void *all = NULL, *facts = NULL;
    bp_status status = bp_new_array(trace->stack_count, sizeof *places->all, &all);
    if (status == BP_OK)
        status = bp_new_array(trace->frame_count, sizeof(frame_facts), &facts);
    if (status != BP_OK) {
        free(all);
        return status;
    }
    *places = (bp_stack_places){.all = all};
    for (size_t i = 0; i < trace->frame_count; i++)
        ((frame_facts *)facts)[i] = facts_of(&trace->frames[i]);
    for (size_t i = 0; i < trace->stack_count; i++) {
        places->all[i] = read_stack(trace, facts, &trace->stacks[i]);
        places->have_frames = places->have_frames || trace->stacks[i].count > 0;
    }
    free(facts);
    return BP_OK;
}

void bp_stack_places_finish(bp_stack_places *places)
{
    free(places->all);
    *places = (bp_stack_places){0};
}
