/* The options of `bench logprob`. */
#include "bench/command/options.h"

#include <bucketpool/logprob.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/cli.h"
#include "shared/options.h"

#define MOST_SIZE                                                                                                      \
    (UINT64_C(1) << 40) /* of a list's values: products of two fit 64 bits often enough to be told when not */

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
    bench_options options; /* first: the table sets it */
    bool scale_given;
} bench_parsed;

static int parse_seq(const char *name, const char *text, void *options)
{
    return parse_list(name, text, false, &((bench_options *)options)->seq);
}

static int parse_vocab(const char *name, const char *text, void *options)
{
    return parse_list(name, text, false, &((bench_options *)options)->vocab);
}

static int parse_chunk(const char *name, const char *text, void *options)
{
    return parse_list(name, text, true, &((bench_options *)options)->chunk);
}

static int parse_scale(const char *name, const char *text, void *options)
{
    bench_parsed *parsed = options;
    parsed->scale_given = true;
    parsed->options.scale = 0;
    return strcmp(text, "auto") == 0 ? EXIT_GO_ON : value_number(name, text, 1, MOST_SIZE, &parsed->options.scale);
}

static int parse_device(const char *name, const char *text, void *options)
{
    bench_options *o = options;
    int value = 0, code = value_device(text, devices, &value, &o->ordinal);
    (void)name;
    o->cuda = value == 1;
    return code;
}

#define FIELD(member) offsetof(bench_options, member)

static const option_row bench_table[] = {
    {.kind = OPTION_HEADING, .text = "Shapes:", .group = 1},
    {"seq", "LIST", "Sequence lengths (default 32768,65536,131072)", OPTION_OWN, .parse = parse_seq},
    {"vocab", "LIST", "Vocabulary sizes (default 32000,64000,128000)", OPTION_OWN, .parse = parse_vocab},
    {"chunk", "LIST", "Tokens in one piece, or none (default none,32,1024,4096,8192,16384; with --head 1024)",
     OPTION_OWN, .parse = parse_chunk},
    {"scale", "N",
     "Divides the sequence lengths; auto: by the smallest power of two with which the largest logits and their "
     "gradient "
     "fit half of the device's free memory (default: 1 with --seq, else auto)",
     OPTION_OWN, .parse = parse_scale},
    {"dtype", "T", "Of the logits: bf16, fp16 or fp32 (default bf16)", OPTION_CHOICE, FIELD(dtype), dtypes},
    {"grad-dtype", "G", "Of their gradient: fp32, logits, or in-place (default fp32)", OPTION_CHOICE, FIELD(gradient),
     gradients},
    {"entropy", NULL, "Entropies and their gradient, too", OPTION_FLAG, FIELD(entropy)},
    {"head", "H",
     "The fused head instead, with hidden size H: logits are never stored. Its time is compared with that of its "
     "matrix "
     "products alone",
     OPTION_U64, FIELD(head), .least = 1, .most = MOST_SIZE},
    {.kind = OPTION_HEADING, .text = "Machine:", .group = 2},
    {"device", "D", "host, cuda or cuda:N (default host)", OPTION_OWN, .parse = parse_device},
    {"threads", "N", "Of the host (default: as many as OpenMP would take)", OPTION_U32, FIELD(threads), .least = 1},
    {"kernels", "K", "Of the host: plain, avx2, avx512 or auto (default auto)", OPTION_CHOICE, FIELD(kernels),
     kernel_kinds},
    {"turns", "N", "Measures everything N times, taking turns, and prints medians (default 5)", OPTION_U64,
     FIELD(turns), .least = 1, .most = 10000},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 3},
    {"json", NULL, "Print a bucketpool.bench/1 document", OPTION_FLAG, FIELD(json)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_COLOR, FIELD(color)},
    OPTION_END,
};

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
    bench_options *o = &parsed->options;
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
    bench_parsed parsed = {.options = {.dtype = BP_DTYPE_BF16, .turns = 5, .color = "auto"}};
    const options_command reading = {
        .name = "bench logprob",
        .arguments = "",
        .text =
            "Measures log-probabilities of tokens and the gradient of their logits, forward and backward, beside the "
            "device's own speed of copying.\vEvery result is checked against a computation in double precision, for "
            "some tokens. Exit: 0 measured, 1 a result was wrong, 2 bad input, 3 environment.",
        .tables = {bench_table},
        .options = &parsed};
    int code = options_read(argc, argv, &reading);
    if (code != EXIT_GO_ON)
        return code;
    set_defaults(&parsed);
    *options = parsed.options;
    return check(options);
}
