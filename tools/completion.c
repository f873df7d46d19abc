/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool completion`: scripts for shells, and the candidates that the scripts ask for, from the option tables. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "shared/options.h"

/* A script runs `bucketpool completion reply WORD...`. Each line of the answer is a candidate for the last word, a tab
 * and a description. Exit status 1 asks for file names. */
static const struct {
    const char *name, *script;
} shells[] = {
    {"bash", "# Load with: source <(bucketpool completion bash)\n"
             "_bucketpool() {\n"
             "    local words reply word\n"
             "    read -ra words <<<\"${COMP_LINE:0:COMP_POINT}.\" # the dot keeps an empty last word\n"
             "    words[-1]=${words[-1]%.}\n"
             "    reply=$(command bucketpool completion reply \"${words[@]:1}\") || { compopt -o default; return; }\n"
             "    while IFS=$'\\t' read -r word _; do\n"
             "        [[ -z $word ]] || COMPREPLY+=(\"${word#*=}\") # readline replaces the text after =\n"
             "    done <<<\"$reply\"\n"
             "}\n"
             "complete -F _bucketpool bucketpool\n"},
    {"zsh", "#compdef bucketpool\n"
            "# Load with: source <(bucketpool completion zsh)\n"
            "_bucketpool() {\n"
            "    local reply\n"
            "    if reply=$(command bucketpool completion reply \"${(@)words[2,CURRENT-1]}\" \"$PREFIX\"); then\n"
            "        local -a candidates=(${(f)reply})\n"
            "        candidates=(\"${candidates[@]/$'\\t'/:}\")\n"
            "        _describe bucketpool candidates\n"
            "    else\n"
            "        compset -P '--*='\n"
            "        _files\n"
            "    fi\n"
            "}\n"
            "if [[ $funcstack[1] == _bucketpool ]]; then _bucketpool; else compdef _bucketpool bucketpool; fi\n"},
    {"fish", "# Load with: bucketpool completion fish | source\n"
             "function __bucketpool\n"
             "    set -l words (commandline -opc) (commandline -ct)\n"
             "    set -g __bucketpool_reply (command bucketpool completion reply $words[2..])\n"
             "end\n"
             "complete -c bucketpool -f -n __bucketpool -a '$__bucketpool_reply'\n"},
};
enum { SHELLS = sizeof shells / sizeof *shells };

/* ---- candidates -------------------------------------------------------------------------------------------------- */

static struct {
    const char *previous, *current; /* words of the command line */
    bool wants_files;
} asked;

/* Prints a candidate for the end of the current word, from `end` on. */
static void offer(const char *end, const char *word, const char *description)
{
    if (strncmp(word, end, strlen(end)) == 0)
        printf("%.*s%s%s%s\n", (int)(end - asked.current), asked.current, word, *description != '\0' ? "\t" : "",
               description);
}

static void offer_values(const option_row *row, const char *end)
{
    const char *comma = strrchr(end, ',');
    if (comma != NULL && strcmp(row->value, "LIST") == 0)
        end = comma + 1;
    for (const choice *c = row->choices; c != NULL && c->name != NULL; c++)
        offer(end, c->name, "");
    for (int dtype = 1; row->kind == OPTION_DTYPE && dtype < BP_DTYPE_COUNT; dtype++)
        offer(end, bp_dtype_name((bp_dtype)dtype), "");
    asked.wants_files = row->kind == OPTION_FILE || row->kind == OPTION_PICTURE ||
                        strncmp(row->value, "FILE", 4) == 0 || strcmp(row->value, "DIR") == 0;
}

static void offer_options(const options_command *command)
{
    const char *current = asked.current, *equals = *current == '-' ? strchr(current, '=') : NULL;
    const char *option = equals != NULL ? current : asked.previous;
    const option_row *row;
    for (size_t i = 0; strncmp(option, "--", 2) == 0 && (row = options_row(command, i)) != NULL; i++) {
        if (row->value != NULL && strncmp(row->name, option + 2, strlen(row->name)) == 0 &&
            strchr("=", option[2 + strlen(row->name)]) != NULL) {
            offer_values(row, equals != NULL ? equals + 1 : current);
            return;
        }
    }
    asked.wants_files = *current != '-' && command->files != NULL;
    for (size_t i = 0; *current == '-' && (row = options_row(command, i)) != NULL; i++) {
        if (row->kind != OPTION_HEADING)
            offer(current, cli_text("--%s", row->name), row->text);
    }
    if (*current == '-')
        offer(current, "--help", "Print the options");
}

/* Visits the tables of a command, or offers the names of commands. Below: the words after this command's name. */
static void reply(const command_row *rows, int count, char **words)
{
    for (const command_row *row = rows; count == 1 && row->name != NULL; row++)
        offer(asked.current, row->name, row->summary);
    for (const command_row *row = rows; count > 1 && row->name != NULL; row++) {
        if (strcmp(row->name, words[0]) != 0)
            continue;
        if (row->run == cli_bench)
            reply(cli_benchmarks, count - 1, words + 1);
        else if (row->run != cli_completion)
            row->run(1, words);
        for (size_t s = 0; row->run == cli_completion && count == 2 && s < SHELLS; s++)
            offer(asked.current, shells[s].name, "");
    }
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int finish(int code)
{
    int flushed = cli_flush();
    return flushed == EXIT_GO_ON ? code : flushed;
}

int cli_completion(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "reply") == 0) {
        asked.previous = argv[argc - 2];
        asked.current = argv[argc - 1];
        options_visit(offer_options);
        int helps = argc == 4 && strcmp(argv[2], "help") == 0; /* help COMMAND */
        reply(cli_commands, argc - 2 - helps, argv + 2 + helps);
        return finish(asked.wants_files ? EXIT_NEGATIVE : EXIT_ANSWERED);
    }
    if (argc == 2 && strcmp(argv[1], "manual") == 0)
        return cli_manual(argc - 1, argv);
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
    for (size_t i = 0; i < SHELLS; i++) {
        if (strcmp(shells[i].name, names[0]) == 0) {
            fputs(shells[i].script, stdout);
            return finish(EXIT_ANSWERED);
        }
    }
    return cli_fail(EXIT_BAD_INPUT, "completion: unknown shell \"%.40s\"; give bash, zsh or fish", names[0]);
}
