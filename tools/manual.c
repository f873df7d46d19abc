/* SPDX-License-Identifier: Apache-2.0 */
/* The option sections of the manual page, in scdoc, from the option tables of all commands. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shared/options.h"

static options_command visited[16];
static size_t visited_count;

static void remember(const options_command *command)
{
    if (visited_count == sizeof visited / sizeof *visited)
        abort(); /* raise it */
    visited[visited_count++] = *command;
}

static bool has_table(const options_command *command, const option_row *table)
{
    bool has = false;
    for (size_t t = 0; t < OPTIONS_TABLES; t++)
        has = has || command->tables[t] == table;
    return has;
}

static void print_text(const char *text)
{
    for (const char *c = text; *c != '\0'; c++)
        printf("%s%c", strchr("\\*_-", *c) != NULL ? "\\" : "", *c);
}

static void print_row(const option_row *row)
{
    putchar('\n');
    if (row->kind == OPTION_HEADING) {
        puts(row->text);
        return;
    }
    if (row->letter != 0)
        printf("*-%c*, ", row->letter);
    printf("*--%s*", row->name);
    if (row->value != NULL)
        printf(" _%s_", row->value);
    fputs("\n\t", stdout);
    print_text(row->text);
    putchar('\n');
}

/* Prints a table under the names of all commands that have it, once. Tables of the same commands share a heading. */
static void print_table(size_t command, const option_row *table)
{
    static char heading[128];
    char names[sizeof heading] = "";
    for (size_t i = 0; i < visited_count; i++) {
        if (!has_table(&visited[i], table))
            continue;
        if (i < command)
            return;
        cli_append(names, sizeof names, "%s%s", *names != '\0' ? ", " : "", visited[i].name);
    }
    if (strcmp(names, heading) != 0)
        printf("\n## %s\n", names);
    memcpy(heading, names, sizeof heading);
    for (const option_row *row = table; row->name != NULL || row->text != NULL; row++)
        print_row(row);
}

int cli_manual(int argc, char **argv)
{
    options_visit(remember);
    for (const command_row *row = cli_commands; row->name != NULL; row++) {
        if (row->run != cli_bench)
            row->run(argc, argv);
    }
    for (const command_row *row = cli_benchmarks; row->name != NULL; row++)
        row->run(argc, argv);
    for (size_t c = 0; c < visited_count; c++) {
        for (size_t t = 0; t < OPTIONS_TABLES && visited[c].tables[t] != NULL; t++)
            print_table(c, visited[c].tables[t]);
    }
    int code = cli_flush();
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}
