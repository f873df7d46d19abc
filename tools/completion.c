/* `bucketpool completion`: visits the option tables of all commands and prints them in the syntax of a shell. */
#include "completion.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shared/options.h"

/* Sub-commands of bench, whose tables are named "bench logprob" and "bench offload". */
static char benchmarks[][8] = {"logprob", "offload"};
#define BENCHMARK_WORDS "logprob offload"
#define SHELL_WORDS "bash zsh fish"

typedef struct shell {
    const char *name;
    void (*begin)(const command_row *commands, size_t count);
    options_visitor *command;
    const char *end;
} shell;

/* Prints `text` for a string in single quotes; characters of `escaped` get a backslash. zsh and bash end the string for a quote. */
static void print_quoted(const char *text, const char *escaped)
{
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '\'' && strchr(escaped, '\'') == NULL)
            fputs("'\\''", stdout);
        else
            printf("%s%c", strchr(escaped, *c) != NULL ? "\\" : "", *c);
    }
}

static void print_choices(const choice *choices)
{
    for (const choice *c = choices; c->name != NULL; c++)
        printf("%s%s", c > choices ? " " : "", c->name);
}

/* Calls `print` for each option of a command, and for --help. */
static void each_option(const options_command *command, void (*print)(const options_command *, const option_row *))
{
    static const option_row help = {"help", NULL, "Print the options", .kind = OPTION_FLAG};
    for (size_t t = 0; t < sizeof command->tables / sizeof *command->tables && command->tables[t] != NULL; t++) {
        for (const option_row *row = command->tables[t]; row->name != NULL || row->text != NULL; row++) {
            if (row->kind != OPTION_HEADING)
                print(command, row);
        }
    }
    print(command, &help);
}

/* ---- bash -------------------------------------------------------------------------------------------------------- */

static void bash_begin(const command_row *commands, size_t count)
{
    puts("# Load with: source <(bucketpool completion bash)\n"
         "_bucketpool() {\n"
         "    local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command=${COMP_WORDS[1]} "
         "words=\n"
         "    [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}\n"
         "    [[ $current == = ]] && current= && previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "    [[ $command == bench && $COMP_CWORD -gt 2 ]] && command=\"bench ${COMP_WORDS[2]}\"\n"
         "    [[ $COMP_CWORD == 1 ]] && command=\n"
         "    case $command in");
    printf("    '') words='");
    for (size_t i = 0; i < count; i++)
        printf("%s ", commands[i].name);
    puts("help version' ;;\n    bench) words='" BENCHMARK_WORDS "' ;;\n    completion) words='" SHELL_WORDS "' ;;");
}

static void bash_choices(const options_command *command, const option_row *row)
{
    (void)command;
    if (row->kind != OPTION_CHOICE)
        return;
    printf("        --%s) words='", row->name);
    print_choices(row->choices);
    puts("' ;;");
}

static void bash_name(const options_command *command, const option_row *row)
{
    (void)command;
    printf(" --%s", row->name);
}

static void bash_command(const options_command *command)
{
    printf("    '%s')\n        case $previous in\n", command->name);
    each_option(command, bash_choices);
    printf("        *) [[ $current == -* ]] && words='");
    each_option(command, bash_name);
    puts("' ;;\n        esac ;;");
}

/* ---- zsh --------------------------------------------------------------------------------------------------------- */

static void zsh_begin(const command_row *commands, size_t count)
{
    puts("#compdef bucketpool\n"
         "# Load with: source <(bucketpool completion zsh)\n"
         "_bucketpool() {\n"
         "    local command=$words[2]\n"
         "    [[ $command == bench ]] && (( CURRENT > 3 )) && command=\"bench $words[3]\"\n"
         "    (( CURRENT == 2 )) && command=\n"
         "    case $command in\n"
         "    '') local -a commands=(");
    for (size_t i = 0; i < count; i++) {
        printf("        '%s:", commands[i].name);
        print_quoted(commands[i].summary, ":\\");
        puts("'");
    }
    puts("        )\n        _describe command commands ;;\n"
         "    bench) compadd " BENCHMARK_WORDS " ;;\n    completion) compadd " SHELL_WORDS " ;;");
}

static void zsh_option(const options_command *command, const option_row *row)
{
    (void)command;
    printf(" \\\n        '--%s%s[", row->name, row->value != NULL ? "=" : "");
    print_quoted(row->text, "[]\\:");
    putchar(']');
    if (row->value != NULL) {
        putchar(':');
        print_quoted(row->value, "[]\\:");
        putchar(':');
    }
    if (row->kind == OPTION_CHOICE) {
        putchar('(');
        print_choices(row->choices);
        putchar(')');
    } else if (row->value != NULL) {
        fputs("_files", stdout);
    }
    putchar('\'');
}

static void zsh_command(const options_command *command)
{
    printf("    '%s') _arguments", command->name);
    each_option(command, zsh_option);
    puts(" \\\n        '*:file:_files' ;;");
}

/* ---- fish -------------------------------------------------------------------------------------------------------- */

static void fish_begin(const command_row *commands, size_t count)
{
    puts("# Load with: bucketpool completion fish | source");
    for (size_t i = 0; i < count; i++) {
        printf("complete -c bucketpool -f -n __fish_use_subcommand -a %s -d '", commands[i].name);
        print_quoted(commands[i].summary, "'\\");
        puts("'");
    }
    puts("complete -c bucketpool -f -n '__fish_seen_subcommand_from bench' -a '" BENCHMARK_WORDS "'\n"
         "complete -c bucketpool -f -n '__fish_seen_subcommand_from completion' -a '" SHELL_WORDS "'");
}

static void fish_option(const options_command *command, const option_row *row)
{
    const char *last = strrchr(command->name, ' ');
    printf("complete -c bucketpool -n '__fish_seen_subcommand_from %s' -l %s", last != NULL ? last + 1 : command->name,
           row->name);
    if (row->kind == OPTION_CHOICE) {
        fputs(" -x -a '", stdout);
        print_choices(row->choices);
        putchar('\'');
    } else if (row->value != NULL) {
        fputs(" -r", stdout);
    }
    fputs(" -d '", stdout);
    print_quoted(row->text, "'\\");
    puts("'");
}

static void fish_command(const options_command *command)
{
    each_option(command, fish_option);
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static const shell shells[] = {
    {"bash", bash_begin, bash_command,
     "    esac\n"
     "    COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
     "}\n"
     "complete -o default -F _bucketpool bucketpool\n"},
    {"zsh", zsh_begin, zsh_command, "    esac\n}\ncompdef _bucketpool bucketpool\n"},
    {"fish", fish_begin, fish_command, ""},
};
enum { SHELLS = sizeof shells / sizeof *shells };

static void visit(cli_command *run, const char *name, char *benchmark)
{
    char word[32];
    snprintf(word, sizeof word, "%s", name);
    char *arguments[] = {word, benchmark, NULL};
    run(benchmark != NULL ? 2 : 1, arguments);
}

int completion_run(int argc, char **argv, const command_row *commands, size_t count)
{
    char **names = NULL;
    size_t name_count = 0;
    const options_command reading = {
        .name = "completion",
        .arguments = "SHELL",
        .text = "Prints a completion script for SHELL: bash, zsh or fish.\vbash: source <(bucketpool completion bash). "
                "zsh: source <(bucketpool completion zsh). fish: bucketpool completion fish | source. "
                "Exit: 0 answered, 2 bad input, 3 environment.",
        .files = &names,
        .file_count = &name_count};
    CLI_TRY(options_read(argc, argv, &reading));
    if (name_count != 1)
        return cli_fail(EXIT_BAD_INPUT, "completion: expected one shell, got %zu; give bash, zsh or fish", name_count);
    const shell *found = NULL;
    for (size_t i = 0; i < SHELLS; i++) {
        if (strcmp(shells[i].name, names[0]) == 0)
            found = &shells[i];
    }
    if (found == NULL)
        return cli_fail(EXIT_BAD_INPUT, "completion: unknown shell \"%.40s\"; give bash, zsh or fish", names[0]);

    found->begin(commands, count);
    options_visit(found->command);
    for (size_t i = 0; i < count; i++) {
        bool is_bench = commands[i].run == cli_bench;
        for (size_t b = 0; is_bench && b < sizeof benchmarks / sizeof *benchmarks; b++)
            visit(cli_bench, commands[i].name, benchmarks[b]);
        if (!is_bench && strcmp(commands[i].name, "completion") != 0)
            visit(commands[i].run, commands[i].name, NULL);
    }
    options_visit(NULL);
    fputs(found->end, stdout);
    int code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}
