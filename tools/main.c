/* SPDX-License-Identifier: Apache-2.0 */
/* The bucketpool command: dispatches to the subcommand. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/cli.h"

const command_row cli_commands[] = {
    {"plan", "plan a model's communication buffers under each policy; print, draw, save", cli_plan},
    {"explain", "explain what sets each buffer and the peak, and what other schedules take", cli_explain},
    {"schedule", "print or draw the live ranges of each unit's buckets", cli_schedule},
    {"models", "list the bundled models and the model types that are read", cli_models},
    {"run", "drive training steps through a real pool and check every byte", cli_run},
    {"fit", "find the largest micro-batch of a training that fits on a GPU, without one", cli_fit},
    {"step", "report and plan the memory of whole training steps that PyTorch recorded", cli_step},
    {"pack", "solve a packing instance from CSV, or check its offsets", cli_pack},
    {"view", "print, draw or browse snapshots of pools", cli_view},
    {"bench", "benchmark log-probabilities or offloading on this machine", cli_bench},
    {"completion", "print a completion script for bash, zsh or fish", cli_completion},
    {0},
};

static cli_command *find(const char *name)
{
    for (const command_row *row = cli_commands; row->name != NULL; row++) {
        if (strcmp(name, row->name) == 0)
            return row->run;
    }
    return NULL;
}

static int refuse(const char *name)
{
    if (strcmp(name, "describe") == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "describe is a command of the Python package; run python3 -m bucketpool describe MODEL");
    const char *names[sizeof cli_commands / sizeof *cli_commands];
    size_t count = 0;
    for (const command_row *row = cli_commands; row->name != NULL; row++)
        names[count++] = row->name;
    return cli_fail(EXIT_BAD_INPUT, "unknown command \"%.40s\"%s (see bucketpool --help)", name,
                    cli_suggestion("", cli_nearest(name, names, count)));
}

static void print_help(void)
{
    puts("Usage: bucketpool COMMAND [OPTION...] [ARGUMENT...]\n\n"
         "Plans the communication buffers of FSDP training: for all-gathered parameters and for gradients "
         "before\nreduce-scatter.\n\nCommands:");
    for (const command_row *row = cli_commands; row->name != NULL; row++)
        printf("  %-10s %s\n", row->name, row->summary);
    puts("\n`python3 -m bucketpool describe MODEL` writes a units.json for any transformers model.");
    puts("\n`bucketpool COMMAND --help` lists a command's options. Exit: 0 answered, 1 verification failed or\n"
         "infeasible, 2 bad input, 3 environment.");
}

/* Help and version are answers too: exit status 0 only if they were written. */
static int answer(void)
{
    int code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

/* The next open would reuse a closed standard descriptor, and output would go into that file. Descriptors opened
 * here have the wrong direction, so that every use of them fails. */
static void keep_standard_closed(void)
{
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++) {
        if (fcntl(file, F_GETFD) < 0 && errno == EBADF)
            open("/dev/null", file == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

int main(int argc, char **argv)
{
    keep_standard_closed();
    signal(SIGPIPE, SIG_IGN); /* a closed pipe is reported as a write error */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file above RLIMIT_FSIZE */
    setlocale(LC_CTYPE, "");  /* tables count UTF-8 columns; numbers keep the decimal point */
    if (argc < 2)
        return cli_fail(EXIT_BAD_INPUT, "no command given; see bucketpool --help");
    bool helps = strcmp(argv[1], "help") == 0;
    if (helps && argc > 2) { /* help COMMAND is COMMAND --help */
        static char option[] = "--help";
        char *arguments[] = {argv[2], option, NULL};
        cli_command *asked = find(argv[2]);
        return asked != NULL ? asked(2, arguments) : refuse(argv[2]);
    }
    if (helps || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        print_help();
        return answer();
    }
    if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0 || strcmp(argv[1], "version") == 0) {
        printf("bucketpool %s\n", bp_version());
        return answer();
    }
    cli_command *command = find(argv[1]);
    return command != NULL ? command(argc - 1, argv + 1) : refuse(argv[1]);
}
