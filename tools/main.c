/* The bucketpool command: finds the subcommand. */
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "shared/cli.h"

static const struct {
    const char *name, *summary;
    cli_command *run;
} commands[] = {
    {"plan", "print, draw and save the memory that a model's units take", cli_plan},
    {"explain", "say which unit sets which buffer, and why", cli_explain},
    {"schedule", "print and draw when the memory of each unit is live", cli_schedule},
    {"run", "drive a plan through a real pool and check every byte", cli_run},
    {"pack", "find offsets for the items of any packing instance, and check them", cli_pack},
    {"view", "print, draw and page through what pools did in a step", cli_view},
    {"bench", "measure on this machine: log-probabilities of tokens, offloading", cli_bench},
};

#define COMMANDS (sizeof commands / sizeof *commands)

static cli_command *find(const char *name)
{
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(name, commands[i].name) == 0)
            return commands[i].run;
    }
    return NULL;
}

static int refuse(const char *name)
{
    if (strcmp(name, "describe") == 0)
        return cli_fail(EXIT_BAD_INPUT, "describe needs Python: python -m bucketpool describe MODEL");
    const char *names[COMMANDS];
    for (size_t i = 0; i < COMMANDS; i++)
        names[i] = commands[i].name;
    return cli_fail(EXIT_BAD_INPUT, "unknown command \"%.40s\"%s (bucketpool --help lists them)", name,
                    cli_suggestion("", cli_nearest(name, names, COMMANDS)));
}

static void print_help(void)
{
    puts("Usage: bucketpool COMMAND [OPTION...] [ARGUMENT...]\n\n"
         "Plans the memory that sharded training gathers parameters into and reduces gradients from.\n\nCommands:");
    for (size_t i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    puts("\n`python -m bucketpool describe MODEL` writes the units of any model of transformers.");
    puts("\n`bucketpool COMMAND --help` lists a command's options. Exit: 0 answered, 1 verification failed or\n"
         "infeasible, 2 bad input, 3 environment.");
}

/* Help and versions are output too: lost output is not success. */
static int answer(void)
{
    int code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

/* Else the first file that is opened becomes standard output, and gets the answer. Of what is opened here every use fails. */
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
    signal(SIGPIPE, SIG_IGN); /* a reader that goes away is an output that cannot be written */
    signal(SIGXFSZ, SIG_IGN); /* and so is a file above the limit of its size */
    setlocale(LC_CTYPE, "");  /* tables count columns of UTF-8; numbers keep their point */
    if (argc < 2)
        return cli_fail(EXIT_BAD_INPUT, "no command; `bucketpool --help` lists them");
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
