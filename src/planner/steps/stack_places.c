/* SPDX-License-Identifier: Apache-2.0 */
/* Reads call stacks: names of files and functions of PyTorch, of its C++ code and of optimizers tell places and phases. */
#include "planner/steps/stack_places.h"
#include "core/print.h"

#include <bucketpool/core/fail.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- names --------------------------------------------------------------------------------------------------------- */

enum { LONGEST_NAME = 4096 };

bool bp_trace_frame_is_python(const bp_trace_frame *frame)
{
    return path_ends_with(frame->file, ".py") || frame->file[0] == '<';
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

/* A path with slashes, also where Windows wrote it. */
static void copy_path(const char *file, char path[LONGEST_NAME])
{
    size_t i = 0;
    for (; file[i] != '\0' && i + 1 < LONGEST_NAME; i++)
        path[i] = file[i] == '\\' ? '/' : file[i];
    path[i] = '\0';
}

/* Characters of the path of PyTorch's folder, with the last slash; 0: unknown. Found by a file that only PyTorch has. */
static size_t root_chars(const char *path)
{
    static const char *const own[] = {"/torch/nn/modules/module.py", "/torch/autograd/__init__.py", "/torch/_tensor.py",
                                      "/torch/optim/optimizer.py", "/torch/nn/functional.py"};
    for (size_t i = 0; i < COUNT(own); i++) {
        if (path_ends_with(path, own[i]))
            return strlen(path) - strlen(own[i]) + strlen("/torch/");
    }
    return 0;
}

/* Some recordings keep the last two parts of each path alone: those of PyTorch that allocate. */
static bool is_short_of_pytorch(const char *path)
{
    static const char *const folders[] = {"torch/",      "_dynamo/",      "_inductor/",
                                          "_functorch/", "_fully_shard/", "_subclasses/"};
    static const char *const files[] = {
        "utils/_device.py",         "utils/_contextlib.py",  "utils/checkpoint.py",
        "utils/_pytree.py",         "modules/module.py",     "modules/linear.py",
        "modules/sparse.py",        "modules/container.py",  "modules/conv.py",
        "modules/normalization.py", "modules/activation.py", "modules/loss.py",
        "modules/dropout.py",       "modules/batchnorm.py",  "modules/transformer.py",
        "nn/functional.py",         "autograd/__init__.py",  "autograd/graph.py",
        "autograd/function.py",     "optim/optimizer.py",    "optim/adam.py",
        "optim/adamw.py",           "optim/sgd.py",          "amp/grad_scaler.py",
        "amp/autocast_mode.py",     "distributed/utils.py",  "distributed/c10d_logger.py"};
    const char *slash = strchr(path, '/');
    if (slash == NULL || strchr(slash + 1, '/') != NULL)
        return false;
    for (size_t i = 0; i < COUNT(folders); i++) {
        if (strncmp(path, folders[i], strlen(folders[i])) == 0)
            return true;
    }
    return is_any(path, files, COUNT(files));
}

/* Python's own library: modules, and packages by name. */
static bool is_of_python(const char *path)
{
    static const char *const packages[] = {"asyncio/", "collections/", "concurrent/",      "importlib/",
                                           "json/",    "logging/",     "multiprocessing/", "unittest/"};
    const char *library = strstr(path, "/lib/python3");
    library = library != NULL ? library : strstr(path, "/Lib/"); /* Windows */
    const char *rest = library != NULL ? strchr(library + 5, '/') : NULL;
    if (library != NULL && strncmp(library, "/Lib/", 5) == 0)
        rest = library + 4;
    if (rest == NULL || strstr(path, "-packages/") != NULL)
        return false;
    rest++;
    for (size_t i = 0; i < COUNT(packages); i++) {
        if (strncmp(rest, packages[i], strlen(packages[i])) == 0)
            return true;
    }
    return strchr(rest, '/') == NULL;
}

/* Frames that a person does not look for: PyTorch's, those of its compiler, of Python's library and of libraries that call one operator. */
static bool is_foreign(const char *path, const char *root, size_t root_length)
{
    static const char *const parts[] = {"-packages/torch/",      "/torchinductor_",      "-packages/einops/",
                                        "-packages/opt_einsum/", "-packages/jaxtyping/", "-packages/beartype/"};
    if (path[0] == '<') /* of a notebook or a terminal: the program */
        return strncmp(path, "<ipython-input", 14) != 0 && strcmp(path, "<stdin>") != 0;
    return (root_length > 0 && strncmp(path, root, root_length) == 0) || contains_any(path, parts, COUNT(parts)) ||
           is_short_of_pytorch(path) || is_of_python(path);
}

/* Python between a module and its operator: a worse name than other frames of PyTorch. */
static bool is_helper(const char *path, const char *function)
{
    return strstr(path, "utils/_") != NULL || path[0] == '<' ||
           (strncmp(function, "__", 2) == 0 && strcmp(function, "__init__") != 0);
}

/* Of C++: how good a name is. Nodes of autograd, then operators, then all that is neither the unwinder, the allocator nor Python's
 * interpreter. */
static int rank_of_native(const char *name)
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
    const size_t length = bp_trace_function_chars(name);
    snprintf(function, sizeof function, "%.*s", (int)(length < sizeof function ? length : sizeof function - 1), name);
    if (*function == '\0' || contains_any(function, noise, COUNT(noise)))
        return 0;
    if (strstr(function, "Backward") != NULL && strstr(function, "::apply") != NULL)
        return 3;
    return strncmp(function, "at::_ops::", 10) == 0 || strncmp(function, "aten::", 6) == 0 ? 2 : 1;
}

/* ---- frames -------------------------------------------------------------------------------------------------------- */

/* Facts of a frame, each found once: many stacks have it. */
typedef struct frame_facts {
    bool is_python, is_foreign, is_helper;
    uint8_t native_rank;
    bool is_engine;        /* of autograd, in C++ */
    bool is_optimizer;     /* a function of an optimizer */
    bool is_recompute;     /* recomputes, if a module is called further in */
    bool is_backward;      /* by its function */
    bool is_called;        /* a module is called */
    bool is_setup;         /* of building or loading a model */
    bool is_communication; /* a collective */
    bool is_unsharded;     /* parameters that FSDP gathered */
    bool is_workspace;
    bool is_main;     /* where the main thread begins, or a thread of Python */
    bool is_too_long; /* nothing else is known: its names are no names of code */
} frame_facts;

/* Folders of optimizers: torch/optim/adam.py, megatron/core/optimizer/optimizer.py. Others than PyTorch's by the functions that a
 * training calls: a project may have such a folder for anything. */
static bool is_of_optimizer(const char *path, const char *function, bool is_foreign)
{
    static const char *const parts[] = {"optim", "optimizer", "optimizers"};
    static const char *const calls[] = {"step",          "_step",     "_init_group", "step_with_ready_grads",
                                        "prepare_grads", "init_state"};
    if (strstr(path, "clip_grad") != NULL || strstr(path, "grad_scaler") != NULL ||
        strstr(path, "torch/optim/") != NULL)
        return true;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const size_t length = strlen(parts[i]);
        for (const char *at = path; (at = strstr(at, parts[i])) != NULL; at += length) {
            if ((at == path || at[-1] == '/') && at[length] == '/')
                return is_foreign || is_any(function, calls, COUNT(calls));
        }
    }
    return false;
}

/* "backward", "_post_backward_hook"; not "forward_backward_step". */
static bool is_of_backward(const char *function)
{
    static const char *const beginnings[] = {"pre_backward", "post_backward", "root_post_backward"};
    const char *name = function + strspn(function, "_");
    if (strstr(name, "forward") != NULL || strstr(name, "without") != NULL)
        return false;
    for (size_t i = 0; i < COUNT(beginnings); i++) {
        if (strncmp(name, beginnings[i], strlen(beginnings[i])) == 0)
            return true;
    }
    return strcmp(name, "backward") == 0 || path_ends_with(name, "_backward");
}

/* The name of a collective: "all_gather_into_tensor", "_reduce_scatter_base". */
static bool is_collective(const char *function)
{
    static const char *const names[] = {"all_gather", "allgather",  "reduce_scatter", "all_reduce",
                                        "allreduce",  "all_to_all", "alltoall"};
    const char *name = function + strspn(function, "_");
    for (size_t i = 0; i < COUNT(names); i++) {
        if (strncmp(name, names[i], strlen(names[i])) == 0)
            return true;
    }
    return strstr(function, "c10d::") != NULL;
}

static frame_facts facts_of(const bp_trace_frame *frame, const char *root, size_t root_length)
{
    static const char *const setups[] = {
        "__init__",        "_apply",           "from_pretrained",        "_from_config",
        "load_state_dict", "reset_parameters", "_load_pretrained_model", "to_empty",
        "load_checkpoint"};
    static const char *const calls[] = {"forward", "_call_impl", "_wrapped_call_impl"};
    static const char *const recomputes[] = {"recompute_fn", "unpack_hook", "inner_unpack", "backward"};
    static const char *const mains[] = {"<module>", "_run_module_as_main", "_bootstrap"};
    static const char *const collectives[] = {"_fsdp_collectives", "distributed_c10d"};
    static const char *const unsharded[] = {"_fsdp_param", "_flat_param"};
    if (strnlen(frame->file, LONGEST_NAME) == LONGEST_NAME || strnlen(frame->function, LONGEST_NAME) == LONGEST_NAME)
        return (frame_facts){.is_too_long = true};
    char path[LONGEST_NAME];
    copy_path(frame->file, path);
    frame_facts facts = {.is_python = bp_trace_frame_is_python(frame),
                         .is_communication =
                             is_collective(frame->function) || contains_any(path, collectives, COUNT(collectives)),
                         .is_unsharded = contains_any(path, unsharded, COUNT(unsharded)),
                         .is_workspace = strstr(frame->function, "orkspace") != NULL};
    if (!facts.is_python) {
        facts.native_rank = (uint8_t)rank_of_native(frame->function);
        facts.is_engine = strstr(frame->function, "torch::autograd::Engine") != NULL;
        return facts;
    }
    facts.is_foreign = is_foreign(path, root, root_length);
    facts.is_helper = is_helper(path, frame->function);
    facts.is_optimizer = is_of_optimizer(path, frame->function, facts.is_foreign);
    facts.is_recompute = is_any(frame->function, recomputes, COUNT(recomputes));
    facts.is_backward = is_of_backward(frame->function);
    facts.is_called = is_any(frame->function, calls, COUNT(calls));
    facts.is_setup = is_any(frame->function, setups, COUNT(setups)) || path_ends_with(path, "torch/serialization.py") ||
                     strstr(path, "/safetensors/") != NULL;
    facts.is_main = is_any(frame->function, mains, COUNT(mains));
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
        if (facts[at].is_python && !facts[at].is_foreign)
            return &trace->frames[at];
        if (facts[at].is_python && (python == BP_TRACE_NONE || (facts[python].is_helper && !facts[at].is_helper)))
            python = at;
        if (facts[at].native_rank > (native == BP_TRACE_NONE ? 0 : facts[native].native_rank))
            native = at;
    }
    const uint32_t named = python != BP_TRACE_NONE ? python : native;
    return named != BP_TRACE_NONE ? &trace->frames[named] : NULL;
}

/* True if the outermost frame of Python is where the main thread begins, or a thread of Python. */
static bool is_of_main(const frame_facts *facts, const bp_trace_stack *stack)
{
    for (size_t i = stack->count; i-- > 0;) {
        if (facts[stack->frames[i]].is_python)
            return facts[stack->frames[i]].is_main;
    }
    return false;
}

/* From the innermost frame outwards: the first that decides. A module that is called further in decides against the optimizer (closures) and
 * for a recomputation. `threads`: stacks of autograd's thread, which begin elsewhere than the program, are known. */
static bp_trace_phase phase_of(const frame_facts *facts, const bp_trace_stack *stack, bool threads)
{
    bool is_called = false, is_setup = false, has_python = false;
    for (size_t i = 0; i < stack->count; i++) {
        const frame_facts *f = &facts[stack->frames[i]];
        if (f->is_optimizer && !is_called)
            return BP_TRACE_PHASE_OPTIMIZER;
        if (f->is_recompute && is_called)
            return BP_TRACE_PHASE_RECOMPUTE;
        if ((f->is_backward || f->is_engine) && !is_called)
            return BP_TRACE_PHASE_BACKWARD;
        is_called = is_called || f->is_called;
        is_setup = is_setup || f->is_setup;
        has_python = has_python || f->is_python;
    }
    if (!has_python)
        return BP_TRACE_PHASE_UNKNOWN;
    if (is_setup && !is_called)
        return BP_TRACE_PHASE_SETUP;
    if (threads && !is_of_main(facts, stack))
        return is_called ? BP_TRACE_PHASE_RECOMPUTE : BP_TRACE_PHASE_BACKWARD;
    return BP_TRACE_PHASE_FORWARD;
}

/* The first frame of a recording of bucketpool.torch.trace: "model.layers.3.mlp (backward)", line 0, and the operator. */
static bool read_origin(const bp_trace_frame *frame, bp_stack_place *place)
{
    static const char *const native[] = {".cpp", ".cc", ".cu", ".cuh", ".c", ".h", ".hpp"};
    const char *file = frame->file, *bracket = strrchr(file, '(');
    if (frame->line != 0 || bp_trace_frame_is_python(frame) || strchr(file, '/') != NULL || strcmp(file, "??") == 0 ||
        (*file == '\0' && strstr(frame->function, "::") == NULL))
        return false;
    for (size_t i = 0; i < COUNT(native); i++) {
        if (path_ends_with(file, native[i]))
            return false;
    }
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
    return true;
}

static bp_stack_place read_stack(const bp_trace *trace, const frame_facts *facts, const bp_trace_stack *stack,
                                 bool threads)
{
    bp_stack_place place = {.module = "", .frame = naming_frame(trace, facts, stack)};
    bool has_origin = stack->count > 0 && !facts[stack->frames[0]].is_too_long &&
                      read_origin(&trace->frames[stack->frames[0]], &place);
    if (place.phase == BP_TRACE_PHASE_UNKNOWN) /* such recordings cut stacks, and name the phases of steps */
        place.phase = (uint8_t)phase_of(facts, stack, threads && !has_origin);
    /* A collective's buffer is made in it, not in a module that a function with such a name calls. The innermost frame decides. */
    for (size_t i = 0; i < stack->count && !facts[stack->frames[i]].is_called; i++) {
        const frame_facts *f = &facts[stack->frames[i]];
        const bool is_open = !place.is_communication && !place.is_unsharded;
        place.is_unsharded = place.is_unsharded || (is_open && f->is_unsharded);
        place.is_communication = place.is_communication || (is_open && f->is_communication && !f->is_unsharded);
        place.is_workspace = place.is_workspace || f->is_workspace;
    }
    return place;
}

static void read_stacks(const bp_trace *trace, const frame_facts *facts, bp_stack_places *places)
{
    size_t of_main = 0, of_python = 0;
    for (size_t i = 0; i < trace->stack_count; i++) {
        const bp_trace_stack *stack = &trace->stacks[i];
        bool has_python = false;
        for (size_t k = 0; k < stack->count; k++) {
            has_python = has_python || facts[stack->frames[k]].is_python;
            places->have_native = places->have_native || facts[stack->frames[k]].native_rank > 0;
        }
        of_python += has_python;
        of_main += is_of_main(facts, stack);
    }
    places->have_python = of_python > 0;
    for (size_t i = 0; i < trace->stack_count; i++)
        places->all[i] = read_stack(trace, facts, &trace->stacks[i], of_main > of_python / 2);
}

bp_status bp_stack_places_init(const bp_trace *trace, bp_stack_places *places)
{
    void *all = NULL, *facts = NULL, *foreign = NULL;
    char path[LONGEST_NAME], root[LONGEST_NAME] = "";
    size_t root_length = 0;
    bp_status status = bp_new_array(trace->stack_count, sizeof *places->all, &all);
    if (status == BP_OK)
        status = bp_new_array(trace->frame_count, sizeof(frame_facts), &facts);
    if (status == BP_OK)
        status = bp_new_array(trace->frame_count, sizeof *places->is_foreign, &foreign);
    if (status != BP_OK) {
        free(all);
        free(facts);
        return status;
    }
    *places = (bp_stack_places){.all = all, .is_foreign = foreign};
    for (size_t i = 0; i < trace->frame_count && root_length == 0; i++) {
        copy_path(trace->frames[i].file, path);
        root_length = root_chars(path);
        if (root_length > 0)
            memcpy(root, path, root_length);
    }
    for (size_t i = 0; i < trace->frame_count; i++) {
        ((frame_facts *)facts)[i] = facts_of(&trace->frames[i], root, root_length);
        places->is_foreign[i] = ((frame_facts *)facts)[i].is_foreign;
    }
    read_stacks(trace, facts, places);
    free(facts);
    return BP_OK;
}

void bp_stack_places_finish(bp_stack_places *places)
{
    free(places->all);
    free(places->is_foreign);
    *places = (bp_stack_places){0};
}

const char *bp_trace_file_name(const char *path)
{
    for (const char *at = path; *at != '\0'; at++) {
        if (*at == '/' || *at == '\\') /* of Windows */
            path = at + 1;
    }
    return path;
}

const char *bp_trace_frame_name(const bp_trace_frame *frame, bool has_line, char *text, size_t chars)
{
    /* A name of C++ is long enough, and ends before its arguments. "<module>" is Python's name for code outside functions. */
    const bool has_file = bp_trace_frame_is_python(frame) || *frame->function == '\0';
    const size_t length = bp_trace_function_chars(frame->function);
    text[0] = '\0';
    if (has_file && has_line && frame->line > 0)
        bp_print(text, chars, "%.150s:%llu", bp_trace_file_name(frame->file), (unsigned long long)frame->line);
    else if (has_file)
        bp_print(text, chars, "%.150s", bp_trace_file_name(frame->file));
    const size_t used = strlen(text);
    if (length > 0 && strcmp(frame->function, "<module>") != 0)
        bp_print(text + used, chars - used, "%s%.*s", used > 0 ? " " : "", (int)(length < 200 ? length : 200),
                 frame->function);
    return text;
}
