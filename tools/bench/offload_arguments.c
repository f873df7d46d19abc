#include "bench/offload_arguments.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "options.h"
#include "values.h"

#define MOST_BYTES (UINT64_C(1) << 46)
#define LEAST_GROUP_BYTES 4096u

enum {
    OPT_BYTES = OPTIONS_COMMAND_KEY,
    OPT_GROUPS,
    OPT_CHUNK,
    OPT_BACKING,
    OPT_DEVICE,
    OPT_TURNS,
    OPT_JSON,
    OPT_COLOR,
    OPT_USAGE
};

static const struct argp_option offload_table[] = {
    {0, 0, 0, 0, "Memory:", 1},
    {"bytes", OPT_BYTES, "SIZE", 0, "That are offloaded, of all groups (default 1GiB)", 0},
    {"groups", OPT_GROUPS, "N", 0, "Release groups that are on their way at once, of equal size (default 1)", 0},
    {"chunk", OPT_CHUNK, "SIZE", 0, "Of one copy (default 32MiB)", 0},
    {"backing", OPT_BACKING, "B", 0,
     "Where the bytes are kept: pinned, staged (ordinary memory through two pinned chunks) or auto: pinned where so "
     "much "
     "can be (default auto)",
     0},
    {0, 0, 0, 0, "Machine:", 2},
    {"device", OPT_DEVICE, "D", 0, "host, cuda or cuda:N (default host)", 0},
    {"turns", OPT_TURNS, "N", 0, "Measures everything N times, taking turns, and prints medians (default 5)", 0},
    {0, 0, 0, 0, "Output:", 3},
    {"json", OPT_JSON, 0, 0, "Print a bucketpool.bench/1 document", 0},
    {"color", OPT_COLOR, "WHEN", 0, "auto, always or never (default auto)", 0},
    {"help", '?', 0, 0, "Print this list", -1},
    {"usage", OPT_USAGE, 0, 0, "Print a short usage message", -1},
    {0, 0, 0, 0, 0, 0},
};

static const choice devices[] = {{"host", 0}, {"cuda", 1}, {0, 0}};
static const choice backings[] = {
    {"auto", BP_BACKING_AUTO}, {"pinned", BP_BACKING_PINNED}, {"staged", BP_BACKING_STAGED}, {0, 0}};

const char *bench_backing_name(bp_backing backing)
{
    return choice_name(backings, (int)backing);
}

static int parse_size(const char *option, const char *text, uint64_t *bytes)
{
    if (!cli_parse_bytes(text, bytes) || *bytes == 0 || *bytes > MOST_BYTES)
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size such as 512MiB, of at most 64 TiB, got \"%.40s\"",
                        option, text);
    return EXIT_GO_ON;
}

static int parse_one(int key, char *text, bench_offload_options *o)
{
    int value = 0, code;
    switch (key) {
    case OPT_BYTES: return parse_size("bytes", text, &o->bytes);
    case OPT_CHUNK: return parse_size("chunk", text, &o->chunk_bytes);
    case OPT_GROUPS: {
        uint64_t groups = 0;
        code = value_number("groups", text, 1, BENCH_OFFLOAD_MOST_GROUPS, &groups);
        o->groups = (uint32_t)groups;
        return code;
    }
    case OPT_BACKING:
        code = value_choice("backing", text, backings, &value);
        o->backing = (bp_backing)value;
        return code;
    case OPT_DEVICE:
        code = value_device(text, devices, &value, &o->ordinal);
        o->cuda = value == 1;
        return code;
    case OPT_TURNS: return value_number("turns", text, 1, 10000, &o->turns);
    case OPT_JSON: o->json = true; return EXIT_GO_ON;
    default: return value_color(text, &o->color);
    }
}

static error_t parse_key(int key, char *text, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        exit(cli_fail(EXIT_BAD_INPUT, "bench offload: \"%.60s\" is not an option, and there are no arguments", text));
    if (key == ARGP_KEY_ERROR)
        options_refuse(state);
    if (key < OPT_BYTES || key > OPT_COLOR)
        return ARGP_ERR_UNKNOWN;
    int code = parse_one(key, text, state->input);
    if (code != EXIT_GO_ON)
        exit(code); /* the message is out */
    return 0;
}

int bench_offload_parse(int argc, char **argv, bench_offload_options *options)
{
    *options = (bench_offload_options){.bytes = UINT64_C(1) << 30,
                                       .chunk_bytes = UINT64_C(32) << 20,
                                       .groups = 1,
                                       .backing = BP_BACKING_AUTO,
                                       .turns = 5,
                                       .color = "auto"};
    static const struct argp argp = {
        offload_table,
        parse_key,
        "",
        "Measures release groups that are offloaded, kept on the host and restored, beside plain copies of as much to "
        "and from pinned memory, and the same without copies.\vRATIO is the time of a plain copy beside that of the "
        "copies alone, RATIO OF TIME beside all of it. The bytes that come back are compared with those that went, and "
        "the device must have its memory back in between. Exit: 0 measured, 1 bytes or memory were wrong, 2 bad input, "
        "3 environment.",
        0,
        0,
        0};
    int code = options_read(argc, argv, "bench offload", &argp, options);
    if (code != EXIT_GO_ON)
        return code;
    if (options->bytes / options->groups < LEAST_GROUP_BYTES)
        return cli_fail(EXIT_BAD_INPUT, "--bytes %llu is less than a page for each of %u groups",
                        (unsigned long long)options->bytes, options->groups);
    return EXIT_GO_ON;
}
