/* `bucketpool bench`: finds what is to be measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/command/device.h"
#include "bench/command/report.h"
#include "bench/command/setup.h"
#include "shared/cli.h"

/* ---- log-probabilities ------------------------------------------------------------------------------------------- */

/* A warm-up of every row, and its turns; of the head its products too. */
static uint64_t count_measurements(const bench *b)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < b->row_count; i++)
        rows += b->rows[i].shape->fits;
    return rows * (1 + b->options->turns) * (b->options->head > 0 ? 2 : 1);
}

/* One figure for the whole run. */
static void settle_copies(bench *b)
{
    double *values = calloc(b->row_count + 1, sizeof *values);
    size_t count = 0;
    for (size_t i = 0; values != NULL && i < b->row_count; i++) {
        if (b->rows[i].copy_bytes_per_s > 0)
            values[count++] = b->rows[i].copy_bytes_per_s;
    }
    b->copy_bytes_per_s = bench_median(values, count);
    free(values);
}

/* One line on standard error for what is wrong. Rows that do not fit are an answer, unless all of them do not. */
static int judge(const bench *b)
{
    size_t measured = 0;
    if (interrupt_came())
        cli_fail(EXIT_GO_ON, "interrupted after %llu of %llu measurements; the medians are of those",
                 (unsigned long long)b->measured, (unsigned long long)count_measurements(b));
    for (size_t i = 0; i < b->row_count; i++) {
        const bench_row *row = &b->rows[i];
        measured += row->measured;
        if (row->wrong)
            return cli_fail(EXIT_NEGATIVE, "sequence %llu, vocabulary %llu, chunk %llu: %s",
                            (unsigned long long)row->shape->seq, (unsigned long long)row->shape->vocab,
                            (unsigned long long)row->chunk, row->error);
    }
    if (measured == 0 && !interrupt_came())
        return cli_fail(EXIT_ENVIRONMENT, "no shape fits the device's memory; --scale auto takes less");
    return EXIT_ANSWERED;
}

static int measure(bench *b)
{
    progress_init(&b->progress, "measurement", count_measurements(b));
    interrupt_watch();
    int code = b->options->head > 0 ? bench_run_head(b) : bench_run_logits(b);
    progress_erase(&b->progress);
    for (size_t i = 0; interrupt_came() && i < b->row_count; i++) {
        if (!b->rows[i].measured && *b->rows[i].error == '\0')
            bench_refuse_row(&b->rows[i], "interrupted");
    }
    if (code == EXIT_GO_ON)
        settle_copies(b);
    return code;
}

static int answer(const bench *b)
{
    int code = b->options->json ? bench_report_json(b) : bench_report_table(b);
    if (code == EXIT_GO_ON)
        code = cli_flush();
    return code == EXIT_GO_ON ? judge(b) : code;
}

int cli_bench_logprob(int argc, char **argv)
{
    bench_options options;
    bench b;
    int code = bench_options_parse(argc, argv, &options);
    if (code != EXIT_GO_ON)
        return code;
    code = bench_init(&options, &b);
    if (code == EXIT_GO_ON)
        code = measure(&b);
    if (code == EXIT_GO_ON)
        code = answer(&b);
    bench_finish(&b);
    interrupt_pass_on();
    return code;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name, *summary;
    cli_command *run;
} benches[] = {
    {"logprob", "log-probabilities of tokens, and the gradient of their logits", cli_bench_logprob},
    {"offload", "release groups that are offloaded and restored, beside plain copies", cli_bench_offload},
};

static int print_help(void)
{
    puts("Usage: bucketpool bench WHAT [OPTION...]\n\nMeasures on this machine.\n\nWHAT is one of:");
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        printf("  %-10s %s\n", benches[i].name, benches[i].summary);
    puts("\n`bucketpool bench WHAT --help` lists its options. Exit: 0 measured, 1 a result was wrong, 2 bad input,\n"
         "3 environment.");
    int code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

int cli_bench(int argc, char **argv)
{
    if (argc < 2)
        return cli_fail(EXIT_BAD_INPUT, "bench: which benchmark? `bucketpool bench --help` lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 || strcmp(argv[1], "-h") == 0)
        return print_help();
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++) {
        if (strcmp(argv[1], benches[i].name) == 0)
            return benches[i].run(argc - 1, argv + 1);
    }
    return cli_fail(EXIT_BAD_INPUT, "bench: unknown benchmark \"%.40s\"; `bucketpool bench --help` lists them",
                    argv[1]);
}
