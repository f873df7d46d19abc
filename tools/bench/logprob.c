/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool bench logprob`: options, and the exit code. */
#include <bucketpool/logprob.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/setup.h"
#include "shared/cli.h"

/* ---- options of log-probabilities -------------------------------------------------------------------------------- */

#define MAX_SIZE (UINT64_C(1) << 40) /* of a list's values; larger products are checked for overflow */

static const choice dtypes[] = {{"bf16", BP_DTYPE_BF16}, {"fp16", BP_DTYPE_FP16}, {"fp32", BP_DTYPE_FP32}, {0, 0}};
static const choice gradients[] = {
    {"fp32", BENCH_GRADIENT_FP32}, {"logits", BENCH_GRADIENT_LOGITS}, {"in-place", BENCH_GRADIENT_IN_PLACE}, {0, 0}};
static const choice kernel_kinds[] = {{"auto", 0},
                                      {"plain", BP_KERNELS_PLAIN},
                                      {"avx2", BP_KERNELS_AVX2},
                                      {"avx512", BP_KERNELS_AVX512},
                                      {"neon", BP_KERNELS_NEON},
                                      {0, 0}};

const char *bench_gradient_name(bench_gradient gradient)
{
    return choice_name(gradients, (int)gradient);
}

const char *bench_kernels_name(uint32_t kernels)
{
    return choice_name(kernel_kinds, (int)kernels);
}

/* `scale_given` is not in `options`. */
typedef struct bench_parsed {
    bench_options options; /* first member: the option table refers to it */
    bool scale_given;
} bench_parsed;

typedef struct list_target {
    const char *option;
    bench_list *list;
} list_target;

/* Accepts "none" for chunks. */
static int add_value(const char *word, void *user)
{
    const list_target *target = user;
    uint64_t value = 0;
    if (strcmp(target->option, "chunk") != 0 || strcmp(word, "none") != 0) {
        int code = value_number(target->option, word, 1, MAX_SIZE, &value);
        if (code != EXIT_GO_ON)
            return code;
    }
    if (target->list->count == BENCH_MAX_VALUES)
        return cli_fail(EXIT_BAD_INPUT, "--%s: more than %d values; pass at most %d", target->option, BENCH_MAX_VALUES,
                        BENCH_MAX_VALUES);
    target->list->values[target->list->count++] = value;
    return EXIT_GO_ON;
}

static int parse_list(const char *name, const char *text, void *options)
{
    bench_options *o = options;
    list_target target = {name, *name == 's' ? &o->seq : *name == 'v' ? &o->vocab : &o->chunk};
    target.list->count = 0;
    return value_list(name, text, add_value, &target);
}

static int parse_scale(const char *name, const char *text, void *options)
{
    bench_parsed *parsed = options;
    parsed->scale_given = true;
    parsed->options.scale = 0;
    return strcmp(text, "auto") == 0 ? EXIT_GO_ON : value_number(name, text, 1, MAX_SIZE, &parsed->options.scale);
}

#define FIELD(member) offsetof(bench_options, member)

static const option_row logprob_table[] = {
    {.kind = OPTION_HEADING, .text = "Shapes:", .group = 1},
    {"seq", "LIST", "Sequence lengths (default 32768,65536,131072)", OPTION_OWN, .parse = parse_list},
    {"vocab", "LIST", "Vocabulary sizes (default 32000,64000,128000)", OPTION_OWN, .parse = parse_list},
    {"chunk", "LIST", "Tokens per piece, or none (default none,32,1024,4096,8192,16384; with --head 1024)", OPTION_OWN,
     .parse = parse_list},
    {"scale", "N",
     "Divisor of the sequence lengths; auto: the smallest power of two with which the largest logits and their "
     "gradient "
     "fit half of the device's free memory (default: 1 with --seq, else auto)",
     OPTION_OWN, .parse = parse_scale},
    {"dtype", "T", "Of the logits: bf16, fp16 or fp32 (default bf16)", OPTION_CHOICE, FIELD(dtype), dtypes},
    {"grad-dtype", "G", "Of their gradient: fp32, logits, or in-place (default fp32)", OPTION_CHOICE, FIELD(gradient),
     gradients},
    {"entropy", NULL, "Also measure entropies and their gradient", OPTION_FLAG, FIELD(entropy)},
    {"fused", NULL, "Run both passes in one call; its time is under BACKWARD", OPTION_FLAG, FIELD(fused)},
    {"head", "H",
     "Measure the fused head with hidden size H, which never stores logits, against its "
     "matrix "
     "products alone",
     OPTION_U64, FIELD(head), .min = 1, .max = MAX_SIZE},
    {"threads", "N", "Host threads (default: OpenMP's)", OPTION_U32, FIELD(threads), .min = 1, .group = 2},
    {"kernels", "K", "Host kernels: plain, avx2, avx512, neon or auto (default auto)", OPTION_CHOICE, FIELD(kernels),
     kernel_kinds},
    OPTION_END,
};

/* Fills in a list that was not given. */
static void default_to(bench_list *list, size_t count, const uint64_t *values)
{
    if (list->count > 0)
        return;
    list->count = count;
    memcpy(list->values, values, count * sizeof *values);
}

static int check_options(const bench_options *o)
{
    if (o->common.cuda && o->threads > 0)
        return cli_fail(EXIT_BAD_INPUT, "--threads requires --device host");
    if (o->common.cuda && o->kernels != 0)
        return cli_fail(EXIT_BAD_INPUT, "--kernels requires --device host");
    if (o->head > 0 && o->gradient == BENCH_GRADIENT_IN_PLACE)
        return cli_fail(EXIT_BAD_INPUT,
                        "--grad-dtype in-place cannot be used with --head, which stores no logits; use fp32 or "
                        "logits");
    uint64_t seq = bench_largest(&o->seq), vocab = bench_largest(&o->vocab), bytes;
    if (__builtin_mul_overflow(seq, vocab, &bytes) || bytes > (uint64_t)INT64_MAX / 16)
        return cli_fail(EXIT_BAD_INPUT,
                        "--seq %llu with --vocab %llu: the size of the logits exceeds 64 bits; use smaller ones",
                        (unsigned long long)seq, (unsigned long long)vocab);
    uint64_t max = seq > vocab ? seq : vocab;
    if (o->head > 0 && (__builtin_mul_overflow(o->head, max, &bytes) || bytes > (uint64_t)INT64_MAX / 16))
        return cli_fail(EXIT_BAD_INPUT, "--head %llu with %llu rows: the size exceeds 64 bits; use smaller ones",
                        (unsigned long long)o->head, (unsigned long long)max);
    return EXIT_GO_ON;
}

/* Reads the arguments after `bench logprob`. Returns EXIT_GO_ON, or the exit code after a message. */
static int parse_options(int argc, char **argv, bench_options *options)
{
    bench_parsed parsed = {.options = {.common.turns = 5, .dtype = BP_DTYPE_BF16}};
    bench_options *o = &parsed.options;
    const options_command reading = {
        .name = "bench logprob",
        .arguments = "",
        .text =
            "Measures log-probabilities of tokens and the gradient of their logits, forward and backward, against the "
            "device's copy bandwidth.\vSome tokens of every result are checked against a computation in "
            "double precision. Exit: 0 measured, 1 a result was wrong, 2 bad input, 3 environment.",
        .tables = {logprob_table, bench_common_table},
        .options = &parsed};
    int code = options_read(argc, argv, &reading);
    if (code != EXIT_GO_ON)
        return code;
    if (!parsed.scale_given)
        o->scale = o->seq.count > 0 ? 1 : 0;
    default_to(&o->seq, 3, (const uint64_t[]){32768, 65536, 131072});
    default_to(&o->vocab, 3, (const uint64_t[]){32000, 64000, 128000});
    if (o->head > 0)
        default_to(&o->chunk, 1, (const uint64_t[]){1024});
    default_to(&o->chunk, 6, (const uint64_t[]){0, 32, 1024, 4096, 8192, 16384});
    *options = *o;
    return check_options(o);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------- */

/* Prints errors as one line on standard error. Rows that do not fit memory are an error only if all rows are. */
static int report_errors(const bench *b, uint64_t wanted)
{
    size_t measured = 0;
    if (interrupt_came())
        cli_fail(EXIT_GO_ON, "interrupted after %llu of %llu measurements; the medians are of those",
                 (unsigned long long)b->measured, (unsigned long long)wanted);
    for (size_t i = 0; i < b->row_count; i++) {
        const bench_row *row = &b->rows[i];
        measured += row->measured;
        if (row->wrong)
            return cli_fail(EXIT_NEGATIVE, "sequence %llu, vocabulary %llu, chunk %llu: %s",
                            (unsigned long long)row->shape->seq, (unsigned long long)row->shape->vocab,
                            (unsigned long long)row->chunk, row->error);
    }
    if (measured == 0 && !interrupt_came())
        return cli_fail(EXIT_ENVIRONMENT, "no shape fits the device's memory; use --scale auto");
    return EXIT_ANSWERED;
}

static int measure_logprob(bench *b)
{
    /* per row a warm-up and the turns; for the head its products, too */
    uint64_t wanted = 0;
    for (size_t i = 0; i < b->row_count; i++)
        wanted += b->rows[i].shape->fits;
    wanted *= (1 + b->options->common.turns) * (b->options->head > 0 ? 2 : 1);
    progress_init(&b->progress, "measurement", wanted);
    interrupt_watch(NULL);
    int code = bench_run(b);
    progress_erase(&b->progress);
    for (size_t i = 0; interrupt_came() && i < b->row_count; i++) {
        if (!b->rows[i].measured && *b->rows[i].error == '\0')
            bench_refuse_row(&b->rows[i], "interrupted");
    }
    if (code != EXIT_GO_ON)
        return code;
    /* all turns of the run share one copy bandwidth */
    double *copies = calloc(b->row_count + 1, sizeof *copies);
    size_t count = 0;
    for (size_t i = 0; copies != NULL && i < b->row_count; i++) {
        if (b->rows[i].copy_bytes_per_s > 0)
            copies[count++] = b->rows[i].copy_bytes_per_s;
    }
    b->copy_bytes_per_s = bench_spread_of(copies, count).median;
    free(copies);
    code = b->options->common.json ? bench_report_json(b) : bench_report_table(b);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    return code == EXIT_GO_ON ? report_errors(b, wanted) : code;
}

int cli_bench_logprob(int argc, char **argv)
{
    bench_options options;
    bench b;
    int code = parse_options(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    code = bench_init(&options, &b);
    if (code == EXIT_GO_ON)
        code = measure_logprob(&b);
    bench_finish(&b);
    interrupt_pass_on();
    return code;
}
