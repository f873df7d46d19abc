/* The options of `bench logprob`. */
#include "bench/command/options.h"

#include <bucketpool/logprob.h>

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"

#define MOST_SIZE                                                                                                      \
    (UINT64_C(1) << 40) /* of a list's values: products of two fit 64 bits often enough to be told when not */

enum {
    OPT_SEQ = OPTIONS_COMMAND_KEY,
    OPT_VOCAB,
    OPT_CHUNK,
    OPT_DTYPE,
    OPT_GRAD_DTYPE,
    OPT_ENTROPY,
    OPT_HEAD,
    OPT_DEVICE,
    OPT_THREADS,
    OPT_KERNELS,
    OPT_TURNS,
    OPT_SCALE,
    OPT_JSON,
    OPT_COLOR,
    OPT_USAGE
};

static const struct argp_option bench_table[] = {
    {0, 0, 0, 0, "Shapes:", 1},
    {"seq", OPT_SEQ, "LIST", 0, "Sequence lengths (default 32768,65536,131072)", 0},
    {"vocab", OPT_VOCAB, "LIST", 0, "Vocabulary sizes (default 32000,64000,128000)", 0},
    {"chunk", OPT_CHUNK, "LIST", 0,
     "Tokens in one piece, or none (default none,32,1024,4096,8192,16384; with --head 1024)", 0},
    {"scale", OPT_SCALE, "N", 0,
     "Divides the sequence lengths; auto: by the smallest power of two with which the largest logits and their "
     "gradient fit half of the device's free memory (default: 1 with --seq, else auto)",
     0},
    {"dtype", OPT_DTYPE, "T", 0, "Of the logits: bf16, fp16 or fp32 (default bf16)", 0},
    {"grad-dtype", OPT_GRAD_DTYPE, "G", 0, "Of their gradient: fp32, logits, or in-place (default fp32)", 0},
    {"entropy", OPT_ENTROPY, 0, 0, "Entropies and their gradient, too", 0},
    {"head", OPT_HEAD, "H", 0,
     "The fused head instead, with hidden size H: logits are never stored. Its time is compared with that of its "
     "matrix products alone",
     0},
    {0, 0, 0, 0, "Machine:", 2},
    {"device", OPT_DEVICE, "D", 0, "host, cuda or cuda:N (default host)", 0},
    {"threads", OPT_THREADS, "N", 0, "Of the host (default: as many as OpenMP would take)", 0},
    {"kernels", OPT_KERNELS, "K", 0, "Of the host: plain, avx2, avx512 or auto (default auto)", 0},
    {"turns", OPT_TURNS, "N", 0, "Measures everything N times, taking turns, and prints medians (default 5)", 0},
    {0, 0, 0, 0, "Output:", 3},
    {"json", OPT_JSON, 0, 0, "Print a bucketpool.bench/1 document", 0},
    {"color", OPT_COLOR, "WHEN", 0, "auto, always or never (default auto)", 0},
    {"help", '?', 0, 0, "Print this list", -1},
    {"usage", OPT_USAGE, 0, 0, "Print a short usage message", -1},
    {0, 0, 0, 0, 0, 0},
};

static const choice devices[] = {{"host", 0}, {"cuda", 1}, {0, 0}};
static const choice dtypes[] = {{"bf16", BP_DTYPE_BF16}, {"fp16", BP_DTYPE_FP16}, {"fp32", BP_DTYPE_FP32}, {0, 0}};
static const choice gradients[] = {
    {"fp32", BENCH_GRADIENT_FP32}, {"logits", BENCH_GRADIENT_LOGITS}, {"in-place", BENCH_GRADIENT_IN_PLACE}, {0, 0}};
static const choice kernel_kinds[] = {
    {"auto", 0}, {"plain", BP_KERNELS_PLAIN}, {"avx2", BP_KERNELS_AVX2}, {"avx512", BP_KERNELS_AVX512}, {0, 0}};

const char *bench_gradient_name(bench_gradient gradient)
{
    return choice_name(gradients, (int)gradient);
}

const char *bench_kernels_name(uint32_t kernels)
{
    return choice_name(kernel_kinds, (int)kernels);
}

bp_dtype bench_gradient_dtype(const bench_options *options)
{
    return options->gradient == BENCH_GRADIENT_FP32 ? BP_DTYPE_FP32 : options->dtype;
}

/* ---- lists --------------------------------------------------------------------------------------------------------------- */

typedef struct list_target {
    const char *option;
    bench_list *list;
    bool takes_none;
} list_target;

static int add_value(const char *word, void *user)
{
    const list_target *target = user;
    uint64_t value = 0;
    int code = EXIT_GO_ON;
    if (!target->takes_none || strcmp(word, "none") != 0)
        code = value_number(target->option, word, 1, MOST_SIZE, &value);
    if (code != EXIT_GO_ON)
        return code;
    if (target->list->count == BENCH_MOST_VALUES)
        return cli_fail(EXIT_BAD_INPUT, "--%s: more than %d values", target->option, BENCH_MOST_VALUES);
    target->list->values[target->list->count++] = value;
    return EXIT_GO_ON;
}

static int parse_list(const char *option, const char *text, bool takes_none, bench_list *list)
{
    list_target target = {option, list, takes_none};
    list->count = 0;
    return value_list(option, text, add_value, &target);
}

/* ---- parsing --------------------------------------------------------------------------------------------------------------- */

/* `scale_given`: what no other field says. */
typedef struct bench_parsed {
    bench_options *options;
    bool scale_given;
} bench_parsed;

static int parse_scale(const char *text, bench_parsed *parsed)
{
    parsed->scale_given = true;
    parsed->options->scale = 0;
    return strcmp(text, "auto") == 0 ? EXIT_GO_ON : value_number("scale", text, 1, MOST_SIZE, &parsed->options->scale);
}

static int parse_one(int key, char *text, bench_parsed *parsed)
{
    bench_options *o = parsed->options;
    int value = 0, code;
    switch (key) {
    case OPT_SEQ: return parse_list("seq", text, false, &o->seq);
    case OPT_VOCAB: return parse_list("vocab", text, false, &o->vocab);
    case OPT_CHUNK: return parse_list("chunk", text, true, &o->chunk);
    case OPT_DTYPE:
        code = value_choice("dtype", text, dtypes, &value);
        o->dtype = (bp_dtype)value;
        return code;
    case OPT_GRAD_DTYPE:
        code = value_choice("grad-dtype", text, gradients, &value);
        o->gradient = (bench_gradient)value;
        return code;
    case OPT_ENTROPY: o->entropy = true; return EXIT_GO_ON;
    case OPT_HEAD: return value_number("head", text, 1, MOST_SIZE, &o->head);
    case OPT_DEVICE:
        code = value_device(text, devices, &value, &o->ordinal);
        o->cuda = value == 1;
        return code;
    case OPT_THREADS: return value_u32("threads", text, 1, &o->threads);
    case OPT_KERNELS:
        code = value_choice("kernels", text, kernel_kinds, &value);
        o->kernels = (uint32_t)value;
        return code;
    case OPT_TURNS: return value_number("turns", text, 1, 10000, &o->turns);
    case OPT_SCALE: return parse_scale(text, parsed);
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    default: return value_color(text, &o->color);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        exit(cli_fail(EXIT_BAD_INPUT, "bench logprob: \"%.60s\" is not an option, and there are no arguments", text));
    if (key == ARGP_KEY_ERROR)
        options_refuse(state);
    if (key < OPT_SEQ || key > OPT_COLOR)
        return ARGP_ERR_UNKNOWN;
    int code = parse_one(key, text, state->input);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

/* ---- what belongs together --------------------------------------------------------------------------------------------------- */

static int check_sizes(const bench_options *o)
{
    uint64_t seq = 0, vocab = 0, bytes;
    for (size_t i = 0; i < o->seq.count; i++)
        seq = o->seq.values[i] > seq ? o->seq.values[i] : seq;
    for (size_t i = 0; i < o->vocab.count; i++)
        vocab = o->vocab.values[i] > vocab ? o->vocab.values[i] : vocab;
    if (__builtin_mul_overflow(seq, vocab, &bytes) || bytes > (uint64_t)INT64_MAX / 16)
        return cli_fail(EXIT_BAD_INPUT, "--seq %llu and --vocab %llu make more logits than 64 bits count bytes",
                        (unsigned long long)seq, (unsigned long long)vocab);
    uint64_t most = seq > vocab ? seq : vocab;
    if (o->head > 0 && (__builtin_mul_overflow(o->head, most, &bytes) || bytes > (uint64_t)INT64_MAX / 16))
        return cli_fail(EXIT_BAD_INPUT, "--head %llu times %llu rows is more than 64 bits count bytes",
                        (unsigned long long)o->head, (unsigned long long)most);
    return EXIT_GO_ON;
}

static int check(const bench_options *o)
{
    if (o->cuda && o->threads > 0)
        return cli_fail(EXIT_BAD_INPUT, "--threads is about the host; leave it out with --device cuda");
    if (o->cuda && o->kernels != 0)
        return cli_fail(EXIT_BAD_INPUT, "--kernels is about the host; leave it out with --device cuda");
    if (o->head > 0 && o->gradient == BENCH_GRADIENT_IN_PLACE)
        return cli_fail(EXIT_BAD_INPUT,
                        "--head stores no logits that a gradient could take the place of; use --grad-dtype fp32 or "
                        "logits");
    return check_sizes(o);
}

static bench_list list_of(size_t count, const uint64_t *values)
{
    bench_list list = {.count = count};
    memcpy(list.values, values, count * sizeof *values);
    return list;
}

static void set_defaults(bench_parsed *parsed)
{
    bench_options *o = parsed->options;
    if (!parsed->scale_given)
        o->scale = o->seq.count > 0 ? 1 : 0;
    if (o->seq.count == 0)
        o->seq = list_of(3, (const uint64_t[]){32768, 65536, 131072});
    if (o->vocab.count == 0)
        o->vocab = list_of(3, (const uint64_t[]){32000, 64000, 128000});
    if (o->chunk.count == 0 && o->head > 0)
        o->chunk = list_of(1, (const uint64_t[]){1024});
    else if (o->chunk.count == 0)
        o->chunk = list_of(6, (const uint64_t[]){0, 32, 1024, 4096, 8192, 16384});
}

int bench_options_parse(int argc, char **argv, bench_options *options)
{
    *options = (bench_options){.dtype = BP_DTYPE_BF16, .turns = 5, .color = "auto"};
    bench_parsed parsed = {.options = options};
    static const struct argp argp = {
        bench_table,
        parse_key,
        "",
        "Measures log-probabilities of tokens and the gradient of their logits, forward and backward, beside the "
        "device's own speed of copying.\vEvery result is checked against a computation in double precision, for some "
        "tokens. Exit: 0 measured, 1 a result was wrong, 2 bad input, 3 environment.",
        0,
        0,
        0};
    int code = options_read(argc, argv, "bench logprob", &argp, &parsed);
    if (code != EXIT_GO_ON)
        return code;
    set_defaults(&parsed);
    return check(options);
}
