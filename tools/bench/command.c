/* `bucketpool bench`: finds what is to be measured. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

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
