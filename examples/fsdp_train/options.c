#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char help[] =
    "Usage: fsdp_train [OPTION...]\n"
    "Trains a small hybrid model, sharded over ranks, with its gathered parameters and gradients in a pool of "
    "bucketpool.\n"
    "Under MPI every process is a rank: examples/mpi 4 fsdp_train --steps 50\n"
    "\n"
    "  --steps N            training steps (10)\n"
    "  --policy NAME        fixed, max, scheduled (the default) or dynamic\n"
    "  --stack LETTERS      units: a attention, m MLP, e experts (amaemamm)\n"
    "  --precision NAME     of weights: fp32, bf16, or mixed (the default): units take turns\n"
    "  --rows N             rows of the global batch (8), shared by the ranks\n"
    "  --length N           tokens of a row (8)\n"
    "  --hidden N           width of the model, even (32)\n"
    "  --vocab N            tokens that there are (48)\n"
    "  --seed N             of weights and data (1)\n"
    "  --device NAME        host (the default) or cuda\n"
    "  --graph              replay whole steps as CUDA graphs, from the second step on\n"
    "  --register           register the pool's memory with NCCL\n"
    "  --nccl FILE          the NCCL to load (libnccl.so.2)\n"
    "  --offload-every N    give the pool's memory back after every N steps, and get it again before the next\n"
    "  --profile[=FOLDER]   snapshots of steps 0 and 1 (memory_snapshots)\n"
    "  --slow STREAM        gather, compute, reduce or all: these streams sleep before each piece of work\n"
    "  --slow-us N          how long, in microseconds (200)\n"
    "  --check-gradients    compare the first step's gradients with those of one process without shards or pools\n"
    "  --help               this text\n";

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
    SLOW,
    SLOW_US,
    CHECK_GRADIENTS,
    HELP
};

static const struct option known[] = {{"steps", required_argument, NULL, STEPS},
                                      {"policy", required_argument, NULL, POLICY},
                                      {"stack", required_argument, NULL, STACK},
                                      {"precision", required_argument, NULL, PRECISION},
                                      {"rows", required_argument, NULL, ROWS},
                                      {"length", required_argument, NULL, LENGTH},
                                      {"hidden", required_argument, NULL, HIDDEN},
                                      {"vocab", required_argument, NULL, VOCAB},
                                      {"seed", required_argument, NULL, SEED},
                                      {"device", required_argument, NULL, DEVICE},
                                      {"graph", no_argument, NULL, GRAPH},
                                      {"register", no_argument, NULL, REGISTER},
                                      {"nccl", required_argument, NULL, NCCL},
                                      {"offload-every", required_argument, NULL, OFFLOAD_EVERY},
                                      {"profile", optional_argument, NULL, PROFILE},
                                      {"slow", required_argument, NULL, SLOW},
                                      {"slow-us", required_argument, NULL, SLOW_US},
                                      {"check-gradients", no_argument, NULL, CHECK_GRADIENTS},
                                      {"help", no_argument, NULL, HELP},
                                      {NULL, 0, NULL, 0}};

typedef struct parser {
    options *o;
    bool speaks;
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

static int number(const parser *p, const char *name, const char *text, uint64_t least, uint64_t most, uint64_t *value)
{
    char *end;
    errno = 0;
    unsigned long long read = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || errno != 0 || read < least || read > most)
        return refuse(p, "--%s is a whole number from %" PRIu64 " to %" PRIu64 ", not \"%s\"", name, least, most, text);
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
    if (length == 0 || length > MOST_UNITS || strspn(text, "ame") != length)
        return refuse(p, "--stack is up to %d letters a (attention), m (MLP) or e (experts), not \"%s\"", MOST_UNITS,
                      text);
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
        return id == PRECISION ? refuse(p, "--precision is mixed, fp32 or bf16, not \"%s\"", text)
               : id == DEVICE  ? refuse(p, "--device is host or cuda, not \"%s\"", text)
                               : refuse(p, "--slow is gather, compute, reduce or all, not \"%s\"", text);
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
                   : refuse(p, "--policy is fixed, max, scheduled or dynamic, not \"%s\"", text);
    case HELP:
        if (p->speaks)
            fputs(help, stdout);
        return 0;
    default: return EXIT_OPTIONS;
    }
}

/* What does not go together. */
static int check(const parser *p)
{
    const options *o = p->o;
    if (o->hidden % 2 != 0)
        return refuse(p, "--hidden is even, as attention has two heads: not %" PRIu64, o->hidden);
    if (o->graph && !o->cuda)
        return refuse(p, "--graph needs --device cuda: the host device has no graphs");
    if (o->registered && !o->cuda)
        return refuse(p, "--register needs --device cuda: only NCCL registers memory");
    if (o->graph && o->policy == BP_POLICY_DYNAMIC)
        return refuse(p, "--graph needs addresses that stay: --policy fixed, max or scheduled, not dynamic");
    if (o->registered && o->policy == BP_POLICY_DYNAMIC)
        return refuse(p, "--register needs slabs: --policy fixed, max or scheduled, not dynamic");
    return GO_ON;
}

int options_parse(int argc, char **argv, bool speaks, options *o)
{
    const parser p = {o, speaks};
    *o = (options){.stack = "amaemamm",
                   .policy = BP_POLICY_SCHEDULED,
                   .steps = 10,
                   .rows = 8,
                   .length = 8,
                   .hidden = 32,
                   .vocab = 48,
                   .seed = 1,
                   .slow_us = 200};
    opterr = 0;
    for (;;) {
        int at = optind > 0 ? optind : 1;
        int id = getopt_long(argc, argv, "", known, NULL);
        if (id == -1)
            break;
        if (id == '?')
            return refuse(&p, "%s is no option, lacks its value, or takes none; --help lists them", argv[at]);
        int code = take(&p, id, optarg);
        if (code != GO_ON)
            return code;
    }
    if (optind < argc)
        return refuse(&p, "%s is no option; --help lists them", argv[optind]);
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
