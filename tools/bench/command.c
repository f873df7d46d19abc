/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool bench`: selects a benchmark. */
#include <stdio.h>
#include <string.h>

#include "shared/cli.h"

const command_row cli_benchmarks[] = {
    {"logprob", "log-probabilities of tokens, and the gradient of their logits", cli_bench_logprob},
    {"offload", "release groups, offloaded and restored, against plain copies", cli_bench_offload},
    {0},
};

int cli_bench(int argc, char **argv)
{
    if (argc < 2)
        return cli_fail(EXIT_BAD_INPUT, "bench: no benchmark given; give logprob or offload");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 || strcmp(argv[1], "-h") == 0) {
        puts("Usage: bucketpool bench BENCHMARK [OPTION...]\n\nMeasures on this machine.\n\nBENCHMARK is one of:");
        for (const command_row *row = cli_benchmarks; row->name != NULL; row++)
            printf("  %-10s %s\n", row->name, row->summary);
        puts("\n`bucketpool bench BENCHMARK --help` lists its options. Exit: 0 measured, 1 a result was wrong,\n"
             "2 bad input, 3 environment.");
        int code = cli_flush();
        return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
    }
    for (const command_row *row = cli_benchmarks; row->name != NULL; row++) {
        if (strcmp(argv[1], row->name) == 0)
            return row->run(argc - 1, argv + 1);
    }
    return cli_fail(EXIT_BAD_INPUT, "bench: unknown benchmark \"%.40s\"; give logprob or offload", argv[1]);
}
