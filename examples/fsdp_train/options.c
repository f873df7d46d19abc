/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_id {
    STEPS = 256,
    POLICY,
    STACK,
    PRECISION,
    ROWS,
    LENGTH,
    HIDDEN,
    VOCAB,
    SEED,
    DEVICE,
    GRAPH,
    REGISTER,
    NCCL,
    OFFLOAD_EVERY,
    PROFILE,
    MAX_ENTRIES,
    SLOW,
    SLOW_US,
    CHECK_GRADIENTS,
    USAGE
};

static const struct argp_option known[] = {
    {0, 0, 0, 0, "Training:", 1},
    {"steps", STEPS, "N", 0, "Training steps (default 10)", 0},
    {"rows", ROWS, "N", 0, "Rows of the global batch, shared by the ranks (default 8)", 0},
    {"length", LENGTH, "N", 0, "Tokens of a row (default 8)", 0},
    {"seed", SEED, "N", 0, "Of weights and data (default 1)", 0},
    {"check-gradients", CHECK_GRADIENTS, 0, 0,
     "Compare the first step's gradients with those of one process without shards or pools", 0},
    {0, 0, 0, 0, "Model:", 2},
    {"stack", STACK, "LETTERS", 0, "Units: a attention, m MLP, e experts (default amaemamm)", 0},
    {"precision", PRECISION, "NAME", 0, "Of weights: fp32, bf16, or mixed: units take turns (default mixed)", 0},
    {"hidden", HIDDEN, "N", 0, "Width of the model, even (default 32)", 0},
    {"vocab", VOCAB, "N", 0, "Size of the vocabulary (default 48)", 0},
    {0, 0, 0, 0, "Memory:", 3},
    {"policy", POLICY, "NAME", 0, "fixed, max, scheduled or dynamic (default scheduled)", 0},
    {"offload-every", OFFLOAD_EVERY, "N", 0, "Offload the pool after every N steps, restore it before the next", 0},
    {"profile", PROFILE, "FOLDER", OPTION_ARG_OPTIONAL,
     "Write snapshots of steps 0 and 1 (default folder: memory_snapshots)", 0},
    {"max-entries", MAX_ENTRIES, "N", 0,
     "Acquires and releases that a snapshot holds, rounded up to a power of "
     "two; the newest are kept (default 100000)",
     0},
    {0, 0, 0, 0, "Device:", 4},
    {"device", DEVICE, "NAME", 0, "host or cuda (default host)", 0},
    {"graph", GRAPH, 0, 0, "Replay whole steps as CUDA graphs, from the second step on", 0},
    {"register", REGISTER, 0, 0, "Register the pool's memory with NCCL", 0},
    {"nccl", NCCL, "FILE", 0, "The NCCL to load (default libnccl.so.2)", 0},
    {"slow", SLOW, "STREAM", 0, "gather, compute, reduce or all: these streams sleep before each piece of work", 0},
    {"slow-us", SLOW_US, "N", 0, "Microseconds that they sleep (default 200)", 0},
    {"help", '?', 0, 0, "Print this help", -1},
    {"usage", USAGE, 0, 0, "Print the usage line", -1},
    {0, 0, 0, 0, 0, 0}};

typedef struct parser {
    options *o;
    bool speaks;
    bool folder_may_follow; /* of --profile */
    int code;               /* GO_ON, or the exit code after a message */
} parser;

__attribute__((format(printf, 2, 3))) static int refuse(const parser *p, const char *format, ...)
{
    va_list arguments;
    if (p->speaks) {
        fputs("fsdp_train: ", stderr);
        va_start(arguments, format);
        (void)vfprintf(stderr, format, arguments);
        va_end(arguments);
        fputc('\n', stderr);
    }
    return EXIT_OPTIONS;
}

static int number(const parser *p, const char *name, const char *text, uint64_t min, uint64_t max, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long read = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || read < min || read > max)
        return refuse(p, "--%s: expected an integer in [%" PRIu64 ", %" PRIu64 "], got \"%s\"", name, min, max, text);
    *value = read;
    return GO_ON;
}

/* The position of a word in a list that ends with NULL, -1 for none. */
static int word(const char *const *words, const char *text)
{
    for (int i = 0; words[i] != NULL; i++) {
        if (strcmp(words[i], text) == 0)
            return i;
    }
    return -1;
}

static int stack(const parser *p, const char *text)
{
    size_t length = strlen(text);
    if (length == 0 || length > MAX_UNITS || strspn(text, "ame") != length)
        return refuse(p, "--stack: expected up to %d letters a (attention), m (MLP) or e (experts), got \"%s\"",
                      MAX_UNITS, text);
    p->o->stack = text;
    return GO_ON;
}

static int named(const parser *p, int id, const char *text)
{
    static const char *const precisions[] = {"mixed", "fp32", "bf16", NULL};
    static const char *const devices[] = {"host", "cuda", NULL};
    static const char *const streams[] = {"gather", "compute", "reduce", "all", NULL};
    static const unsigned slow[] = {SLOW_GATHER, SLOW_COMPUTE, SLOW_REDUCE, SLOW_GATHER | SLOW_COMPUTE | SLOW_REDUCE};
    int at = word(id == PRECISION ? precisions : id == DEVICE ? devices : streams, text);
    if (at < 0)
        return id == PRECISION ? refuse(p, "--precision: expected mixed, fp32 or bf16, got \"%s\"", text)
               : id == DEVICE  ? refuse(p, "--device: expected host or cuda, got \"%s\"", text)
                               : refuse(p, "--slow: expected gather, compute, reduce or all, got \"%s\"", text);
    if (id == PRECISION)
        p->o->precision = (precision)at;
    else if (id == DEVICE)
        p->o->cuda = at == 1;
    else
        p->o->slow |= slow[at];
    return GO_ON;
}

static int take(const parser *p, int id, const char *text)
{
    options *o = p->o;
    switch (id) {
    case STEPS: return number(p, "steps", text, 0, 1000000, &o->steps);
    case ROWS: return number(p, "rows", text, 1, 65536, &o->rows);
    case LENGTH: return number(p, "length", text, 1, 4096, &o->length);
    case HIDDEN: return number(p, "hidden", text, 2, 8192, &o->hidden);
    case VOCAB: return number(p, "vocab", text, 2, 65536, &o->vocab);
    case SEED: return number(p, "seed", text, 0, UINT64_MAX, &o->seed);
    case OFFLOAD_EVERY: return number(p, "offload-every", text, 1, 1000000, &o->offload_every);
    case MAX_ENTRIES: return number(p, "max-entries", text, 1, UINT64_C(1) << 30, &o->max_entries);
    case SLOW_US: return number(p, "slow-us", text, 1, 1000000, &o->slow_us);
    case STACK: return stack(p, text);
    case PRECISION:
    case DEVICE:
    case SLOW: return named(p, id, text);
    case GRAPH: o->graph = true; return GO_ON;
    case REGISTER: o->registered = true; return GO_ON;
    case CHECK_GRADIENTS: o->check_gradients = true; return GO_ON;
    case NCCL: o->nccl = text; return GO_ON;
    case PROFILE: o->profile = text != NULL ? text : "memory_snapshots"; return GO_ON;
    case POLICY:
        return bp_policy_parse(text, &o->policy) == BP_OK
                   ? GO_ON
                   : refuse(p, "--policy: expected fixed, max, scheduled or dynamic, got \"%s\"", text);
    default: return EXIT_OPTIONS;
    }
}

static int check(const parser *p)
{
    const options *o = p->o;
    if (o->hidden % 2 != 0)
        return refuse(p, "--hidden: expected an even number, as attention has two heads, got %" PRIu64, o->hidden);
    if (o->max_entries > 0 && o->profile == NULL)
        return refuse(p, "--max-entries requires --profile");
    if (o->graph && !o->cuda)
        return refuse(p, "--graph requires --device cuda: the host device has no graphs");
    if (o->registered && !o->cuda)
        return refuse(p, "--register requires --device cuda: only NCCL registers memory");
    if (o->graph && o->policy == BP_POLICY_DYNAMIC)
        return refuse(p, "--graph requires --policy fixed, max or scheduled: addresses of dynamic change");
    if (o->registered && o->policy == BP_POLICY_DYNAMIC)
        return refuse(p, "--register requires --policy fixed, max or scheduled: dynamic has no slabs");
    return GO_ON;
}

/* argp's messages are disabled: every rank reads the options, and one of them prints. */
static int refuse_option(const parser *p, const struct argp_state *state)
{
    const char *near = state->next > 1 ? state->argv[state->next - 1] : "";
    size_t length = strcspn(near, "=");
    for (const struct argp_option *o = known; strncmp(near, "--", 2) == 0 && (o->name != NULL || o->doc != NULL); o++) {
        if (o->name != NULL && strlen(o->name) == length - 2 && strncmp(near + 2, o->name, length - 2) == 0)
            return refuse(p, "option --%s %s; see fsdp_train --help", o->name,
                          near[length] == '=' ? "takes no value" : "requires a value");
    }
    return refuse(p, "unknown option %.*s; see fsdp_train --help", (int)length, near);
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    parser *p = state->input;
    bool folder_may_follow = p->folder_may_follow;
    if (key == ARGP_KEY_ERROR && p->code == GO_ON)
        p->code = refuse_option(p, state);
    if (key == ARGP_KEY_ARG && folder_may_follow)
        p->o->profile = text; /* --profile FOLDER, as well as --profile=FOLDER */
    else if (key == ARGP_KEY_ARG)
        p->code = refuse(p, "unexpected argument \"%s\"; see fsdp_train --help", text);
    else if (key < STEPS || key > CHECK_GRADIENTS)
        return ARGP_ERR_UNKNOWN;
    else
        p->code = take(p, key, text);
    p->folder_may_follow = key == PROFILE && text == NULL;
    return p->code == GO_ON ? 0 : EINVAL;
}

static const struct argp argp = {
    known,
    parse_key,
    "",
    "Trains a small hybrid model, sharded over ranks, with its gathered parameters and gradients in a pool of "
    "bucketpool.\vUnder MPI every process is a rank: examples/mpi 4 fsdp_train --steps 50. Exit: 0 trained, 1 failed, "
    "2 bad "
    "options, 77 no device.",
    0,
    0,
    0};

/* Prints help if an option asks for it. Returns true then. */
static bool print_help(int argc, char **argv, bool speaks)
{
    for (int i = 1; i < argc; i++) {
        bool usage = strcmp(argv[i], "--usage") == 0;
        if (!usage && strcmp(argv[i], "--help") != 0 && strcmp(argv[i], "-?") != 0 && strcmp(argv[i], "-h") != 0)
            continue;
        char name[] = "fsdp_train";
        if (speaks)
            argp_help(&argp, stdout, usage ? ARGP_HELP_USAGE : ARGP_HELP_STD_HELP, name);
        return true;
    }
    return false;
}

int options_parse(int argc, char **argv, bool speaks, options *o)
{
    parser p = {.o = o, .speaks = speaks, .code = GO_ON};
    *o = (options){.stack = "amaemamm",
                   .policy = BP_POLICY_SCHEDULED,
                   .steps = 10,
                   .rows = 8,
                   .length = 8,
                   .hidden = 32,
                   .vocab = 48,
                   .seed = 1,
                   .slow_us = 200};
    if (print_help(argc, argv, speaks))
        return EXIT_SUCCESS;
    if (argp_parse(&argp, argc, argv, ARGP_NO_ERRS | ARGP_NO_HELP | ARGP_IN_ORDER, NULL, &p) != 0)
        return p.code != GO_ON ? p.code : EXIT_OPTIONS;
    return check(&p);
}

void options_shared(const options *o, char words[SHARED_OPTIONS_BYTES])
{
    memset(words, 0, SHARED_OPTIONS_BYTES);
    (void)snprintf(words, SHARED_OPTIONS_BYTES,
                   "steps %" PRIu64 " policy %s stack %s precision %d rows %" PRIu64 " length %" PRIu64
                   " hidden %" PRIu64 " vocab %" PRIu64 " seed %" PRIu64
                   " cuda %d graph %d register %d offload-every %" PRIu64 " check-gradients %d",
                   o->steps, bp_policy_name(o->policy), o->stack, (int)o->precision, o->rows, o->length, o->hidden,
                   o->vocab, o->seed, o->cuda, o->graph, o->registered, o->offload_every, o->check_gradients);
}
