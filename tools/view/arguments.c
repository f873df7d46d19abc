#include "view/arguments.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli.h"
#include "options.h"
#include "values.h"

enum { OPT_POOL = OPTIONS_COMMAND_KEY, OPT_HTML, OPT_PLOT, OPT_FLAME, OPT_JSON, OPT_COLOR, OPT_USAGE };

static const struct argp_option view_table[] = {
    {0, 0, 0, 0, "Input:", 1},
    {"pool", OPT_POOL, "NAME", 0, "Only the pool of this name", 0},
    {0, 0, 0, 0, "Output:", 2},
    {"html", OPT_HTML, "PAGE", 0, "Write a page to look around in: one file, needs no network", 0},
    {"plot", OPT_PLOT, "FILE", 0, "Draw what is where and when (.svg, .png or .pdf)", 0},
    {"flame", OPT_FLAME, "FILE", 0, "Draw who made the peak: roles, units and buckets (.svg, .png or .pdf)", 0},
    {"json", OPT_JSON, 0, 0, "Print a bucketpool.view/1 document", 0},
    {"color", OPT_COLOR, "WHEN", 0, "auto, always or never (default auto)", 0},
    {"help", '?', 0, 0, "Print this list", -1},
    {"usage", OPT_USAGE, 0, 0, "Print a short usage message", -1},
    {0, 0, 0, 0, 0, 0},
};

static int parse_one(int key, char *text, view_options *o)
{
    switch (key) {
    case OPT_POOL: o->pool = text; return EXIT_GO_ON;
    case OPT_HTML: o->html = text; return value_file("--html", text);
    case OPT_PLOT: o->plot = text; return value_picture("--plot", text);
    case OPT_FLAME: o->flame = text; return value_picture("--flame", text);
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    default: return value_color(text, &o->color);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    view_options *options = state->input;
    if (key == ARGP_KEY_ARGS) {
        options->files = state->argv + state->next;
        options->file_count = (size_t)(state->argc - state->next);
        return 0;
    }
    if (key == ARGP_KEY_ERROR)
        options_refuse(state);
    if (key < OPT_POOL || key > OPT_COLOR)
        return ARGP_ERR_UNKNOWN;
    int code = parse_one(key, text, options);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

/* As `--html *.pickle` does, which would write the page over the first snapshot. */
static int check_page(const view_options *o)
{
    struct stat page, input;
    if (o->html == NULL)
        return EXIT_GO_ON;
    const char *ending = strrchr(o->html, '.');
    bool is_input = ending != NULL && strcmp(ending, ".pickle") == 0;
    bool is_there = stat(o->html, &page) == 0;
    for (size_t i = 0; is_there && !is_input && i < o->file_count; i++)
        is_input = stat(o->files[i], &input) == 0 && input.st_dev == page.st_dev && input.st_ino == page.st_ino;
    if (is_input)
        return cli_fail(EXIT_BAD_INPUT, "--html %.300s: names a snapshot, not a page to write; give one, as page.html",
                        o->html);
    return EXIT_GO_ON;
}

static int check(const view_options *o)
{
    const struct {
        const char *option, *path;
    } outputs[] = {{"--html", o->html}, {"--plot", o->plot}, {"--flame", o->flame}};
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT, "view: no file; give snapshots, as memory_snapshots/step_0/*.pickle");
    if (o->file_count > 1 && (o->plot != NULL || o->flame != NULL))
        return cli_fail(EXIT_BAD_INPUT, "%s is about one file, %zu are given", o->plot != NULL ? "--plot" : "--flame",
                        o->file_count);
    for (size_t i = 0; i < 3; i++) {
        for (size_t k = 0; k < i; k++) {
            if (outputs[i].path != NULL && outputs[k].path != NULL && strcmp(outputs[i].path, outputs[k].path) == 0)
                return cli_fail(EXIT_BAD_INPUT, "%s and %s name the same file, %s", outputs[k].option,
                                outputs[i].option, outputs[i].path);
        }
    }
    return check_page(o);
}

int view_options_parse(int argc, char **argv, view_options *options)
{
    *options = (view_options){.color = "auto"};
    static const struct argp argp = {
        view_table,
        parse_key,
        "FILE...",
        "Looks at snapshots that a profile wrote, of one rank or of several side by side: what was live, when the most "
        "was, who made that peak, and what lay free then.\vFILE is a pickle as docs/snapshots.md has it, or as PyTorch "
        "writes of its own allocator. It is read as data: nothing in it is run. Pictures are of the pool with the "
        "highest peak, or of --pool. Exit: 0 answered, 2 bad input, 3 environment.",
        0,
        0,
        0};
    int code = options_read(argc, argv, "view", &argp, options);
    return code == EXIT_GO_ON ? check(options) : code;
}
