/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool fit`: the largest micro-batch of a training that fits on a GPU. */
#include <errno.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fit/fit.h"
#include "plan/analysis.h"
#include "shared/cli.h"

/* ---- options ------------------------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(fit_options, member)
#define TRAINING 1u /* bit of `applies`: sent to Python */

enum { DTYPE_FP32, DTYPE_BF16 };

static const choice choices_runtime[] = {{"fsdp2", 0}, {"ddp", 1}, {"single", 2}, {0}};
static const choice choices_checkpointing[] = {{"none", 0}, {"full", 1}, {"auto", 2}, {0}};
static const choice choices_dtype[] = {{"fp32", DTYPE_FP32}, {"bf16", DTYPE_BF16}, {0}};
static const choice choices_loss[] = {{"labels", 0}, {"logprobs", 1}, {"bucketpool", 2}, {0}};
static const choice choices_optimizer[] = {{"adamw", 0},    {"fused-adamw", 1}, {"loop-adamw", 2}, {"sgd", 3},
                                           {"momentum", 4}, {"adafactor", 5},   {"adagrad", 6},    {0}};
static const choice choices_batch[] = {{"auto", 0}, {0}};

static int parse_memory(const char *name, const char *text, void *options)
{
    fit_options *o = options;
    if (!cli_parse_bytes(text, &o->memory))
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size such as 80GiB, got \"%.40s\"", name, text);
    if (o->memory < 1 << 20)
        return cli_fail(EXIT_BAD_INPUT, "--%s: \"%.40s\" is less than 1 MiB; write the unit, for example %.40sGiB",
                        name, text, text);
    return EXIT_GO_ON;
}

static int parse_reserve(const char *name, const char *text, void *options)
{
    fit_options *o = options;
    o->reserve = 0;
    if (strcmp(text, "0") != 0 && !cli_parse_bytes(text, &o->reserve))
        return cli_fail(EXIT_BAD_INPUT, "--%s: expected a size such as 1.3GiB, or 0, got \"%.40s\"", name, text);
    return EXIT_GO_ON;
}

static int parse_batch(const char *name, const char *text, void *options)
{
    fit_options *o = options;
    o->batch = 0;
    return strcmp(text, "auto") == 0 ? EXIT_GO_ON : value_number(name, text, 1, UINT32_MAX, &o->batch);
}

/* The names of options are those of the request's members, but for --no-reshard. */
static const option_row fit_table[] = {
    {.kind = OPTION_HEADING, .text = "Ranks:", .group = 1},
    {"runtime", "R", "fsdp2, ddp, or single (default fsdp2 if --dp is above 1, else single)", OPTION_CHOICE,
     FIELD(runtime), choices_runtime, .applies = TRAINING},
    {"dp", "N", "Ranks that shard (fsdp2) or replicate (ddp) the model (default 1)", OPTION_U32, FIELD(dp), .min = 1,
     .applies = TRAINING},
    {"ep", "N", "Expert-parallel ranks, of those of --dp (default 1)", OPTION_U32, FIELD(ep), .min = 1,
     .applies = TRAINING},
    {"tp", "N", "Tensor-parallel ranks, beside those of --dp (default 1)", OPTION_U32, FIELD(tp), .min = 1,
     .applies = TRAINING},
    {"no-reshard", NULL, "fsdp2: keep parameters gathered from forward to backward", OPTION_UNFLAG, FIELD(reshard),
     .applies = TRAINING},
    {.kind = OPTION_HEADING, .text = "GPU:", .group = 2},
    {"gpu", "NAME", "The GPU: h100, h200, b200, a100-80, a100-40, l40s, rtx4090, ... (default h100)", OPTION_TEXT,
     FIELD(gpu), .applies = TRAINING},
    {"memory", "SIZE", "Its memory, such as 80g, in place of a name", OPTION_OWN, .parse = parse_memory,
     .applies = TRAINING},
    {"reserve", "SIZE", "Memory of its context and of libraries (default as measured)", OPTION_OWN,
     .parse = parse_reserve, .applies = TRAINING},
    {.kind = OPTION_HEADING, .text = "Training:", .group = 3},
    {"sequence", "N", "Tokens of a sequence (default 4096)", OPTION_U32, FIELD(sequence), .min = 1,
     .applies = TRAINING},
    {"batch", "N", "Sequences of a micro-batch: says whether N fit; auto: finds the most that fit (default auto)",
     OPTION_OWN, .choices = choices_batch, .parse = parse_batch, .applies = TRAINING},
    {"checkpointing", "C",
     "Activation checkpointing: none, full (each layer), or auto: full where only that fits, else none and what full "
     "brings (default auto)",
     OPTION_CHOICE, FIELD(checkpointing), choices_checkpointing, .applies = TRAINING},
    {"loss", "LOSS",
     "labels: cross-entropy of the model; logprobs: log-probabilities as eager trainers compute them; bucketpool: by "
     "the client (default labels)",
     OPTION_CHOICE, FIELD(loss), choices_loss, .applies = TRAINING},
    {"optimizer", "NAME", "adamw, fused-adamw, loop-adamw, sgd, momentum, adafactor or adagrad (default adamw)",
     OPTION_CHOICE, FIELD(optimizer), choices_optimizer, .applies = TRAINING},
    {"weights", "DTYPE", "Of parameters, gradients and optimizer state between steps: fp32 or bf16 (default fp32)",
     OPTION_CHOICE, FIELD(weights), choices_dtype, .applies = TRAINING},
    {"param-dtype", "DTYPE", "Of computation: gathered parameters and activations (default bf16)", OPTION_CHOICE,
     FIELD(param_dtype), choices_dtype, .applies = TRAINING},
    {"reduce-dtype", "DTYPE", "Of the reduction of gradients (default fp32)", OPTION_CHOICE, FIELD(reduce_dtype),
     choices_dtype, .applies = TRAINING},
    {"layers", "N", "Only so many layers, for a quick look", OPTION_U32, FIELD(layers), .min = 1, .applies = TRAINING},
    {"fresh", NULL, "Trace again, although an answer is in the cache", OPTION_FLAG, FIELD(fresh), .applies = TRAINING},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 4},
    {"json", NULL, "Print the bucketpool.fit/1 document", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "Draw the step by kinds of memory, with the totals and the limit (.svg)", OPTION_PICTURE,
     FIELD(plot)},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(color), choices_color},
    OPTION_END,
};

static bool is_given(const fit_options *o, const char *name)
{
    for (size_t i = 0; i < o->given.count; i++) {
        if (strcmp(o->given.rows[i]->name, name) == 0)
            return true;
    }
    return false;
}

static int check(const fit_options *o)
{
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "fit: no model given; give a config.json, the name of a bundled model, an id of "
                        "the hub's cache, or a bucketpool.fit/1 document");
    if (o->json && o->file_count > 1)
        return cli_fail(EXIT_BAD_INPUT, "--json requires one model, got %zu", o->file_count);
    if (o->plot != NULL && o->file_count > 1)
        return cli_fail(EXIT_BAD_INPUT, "--plot requires one model, got %zu", o->file_count);
    if (is_given(o, "memory") && is_given(o, "gpu"))
        return cli_fail(EXIT_BAD_INPUT, "--memory and --gpu both give the memory of the GPU; give one of them");
    return EXIT_GO_ON;
}

static int fit_options_parse(int argc, char **argv, fit_options *options)
{
    *options = (fit_options){.reshard = true};
    const options_command reading = {
        .name = "fit",
        .arguments = "MODEL...",
        .text =
            "Says whether a training fits on a GPU, and the largest micro-batch that does, for each of PyTorch's "
            "allocators. Traces training steps without a GPU.\vMODEL is a config.json, a directory with one, "
            "the name of a bundled model such as Llama-3.1-8B, an id of the local cache of the Hugging Face hub, or "
            "a bucketpool.fit/1 document (-: on standard input), which is printed again. Requires Python with torch, "
            "transformers and "
            "bucketpool: python3, or BUCKETPOOL_PYTHON. Exit: 0 it fits, 1 it does not, 2 bad input, 3 environment.",
        .tables = {fit_table},
        .options = options,
        .given = &options->given,
        .files = &options->files,
        .file_count = &options->file_count};
    CLI_TRY(options_read(argc, argv, &reading));
    return check(options);
}

/* ---- requests ------------------------------------------------------------------------------------------------------ */

static void add_option(bp_json_writer *w, const option_row *row, const fit_options *o)
{
    const char *field = (const char *)o + row->field;
    switch (row->kind) {
    case OPTION_FLAG: bp_json_add_flag(w, row->name, true); break;
    case OPTION_UNFLAG: bp_json_add_flag(w, row->name + strlen("no-"), false); break;
    case OPTION_U32: bp_json_add_number(w, row->name, *(const uint32_t *)(const void *)field); break;
    case OPTION_CHOICE:
        bp_json_add_text(w, row->name, choice_name(row->choices, *(const int *)(const void *)field));
        break;
    case OPTION_TEXT: bp_json_add_text(w, row->name, *(const char *const *)(const void *)field); break;
    default:
        if (row->parse == parse_memory)
            bp_json_add_number(w, row->name, o->memory);
        else if (row->parse == parse_reserve)
            bp_json_add_number(w, row->name, o->reserve);
        else if (o->batch > 0)
            bp_json_add_number(w, row->name, o->batch);
    }
}

/* The config.json at or in `found`, as an absolute path that the caller frees; NULL: there is none. */
static char *config_at(const char *found)
{
    char joined[PATH_MAX];
    snprintf(joined, sizeof joined, "%s/config.json", found);
    char *config = realpath(joined, NULL);
    if (config == NULL && cli_has_suffix(found, ".json"))
        config = realpath(found, NULL);
    return config;
}

/* As models are named: by the folder of config.json, or by another file. */
static void name_config(const char *config, char name[NAME_MAX + 1])
{
    const char *end = strrchr(config, '/'), *begin = end != NULL ? end + 1 : config;
    if (end != NULL && strcmp(end, "/config.json") == 0) {
        for (begin = end; begin > config && begin[-1] != '/'; begin--)
            ;
        snprintf(name, NAME_MAX + 1, "%.*s", (int)(end - begin), begin);
    } else {
        snprintf(name, NAME_MAX + 1, "%s", begin);
    }
}

/* The caller frees *config. */
static int find_config(const char *given, char **config, char name[NAME_MAX + 1])
{
    char *found = NULL;
    const char *known = NULL;
    CLI_TRY(models_find(given, &found, &known));
    *config = config_at(found);
    int absent = *config == NULL && access(found, F_OK) != 0 ? errno : 0;
    free(found);
    if (absent != 0)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", given, strerror(absent));
    if (*config == NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: no config.json; fit builds the model from it with transformers",
                        given);
    if (known != NULL && *known != '\0')
        snprintf(name, NAME_MAX + 1, "%s", known);
    else
        name_config(*config, name);
    return EXIT_GO_ON;
}

static int ask(const char *given, const fit_options *options, bp_fit_file **answer)
{
    char *config = NULL, name[NAME_MAX + 1];
    int code = find_config(given, &config, name);
    bp_json_writer w = {.layout = BP_JSON_COMPACT};
    if (code == EXIT_GO_ON) {
        bp_json_add_object(&w, NULL);
        bp_json_add_text(&w, "model", config);
        bp_json_add_text(&w, "name", name);
        for (size_t i = 0; i < options->given.count; i++) {
            if ((options->given.rows[i]->applies & TRAINING) != 0)
                add_option(&w, options->given.rows[i], options);
        }
        bp_json_end(&w);
        char *request = bp_json_close(&w) == BP_OK ? strndup(w.text, w.bytes) : NULL;
        code = request != NULL ? fit_ask(request, answer) : cli_fail(EXIT_ENVIRONMENT, "out of memory");
        free(request);
    }
    free(w.text);
    free(config);
    return code;
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

static int read_document(const char *path, const fit_options *options, bp_fit_file **answer)
{
    for (size_t i = 0; i < options->given.count; i++) {
        if ((options->given.rows[i]->applies & TRAINING) != 0)
            return cli_fail(EXIT_BAD_INPUT, "%.300s: an answer of fit; --%s has no effect on it, give a model", path,
                            options->given.rows[i]->name);
    }
    bp_status status = bp_fit_file_read(path, answer);
    return status == BP_OK ? EXIT_GO_ON : cli_fail_status(status);
}

static int print(bp_fit_file *const *answers, size_t count, const fit_options *options)
{
    if (count > 1)
        return fit_report_all(answers, count, options);
    if (!options->json)
        return fit_report_one(bp_fit_file_get_message(answers[0])->fit, options);
    const char *text = bp_fit_file_text(answers[0]);
    fputs(text, stdout);
    if (text[strlen(text) - 1] != '\n')
        putchar('\n');
    return EXIT_GO_ON;
}

static int show(bp_fit_file *const *answers, size_t count, const fit_options *options)
{
    output picture = {0};
    int code = output_init("--plot", options->plot, &picture);
    if (code == EXIT_GO_ON && picture.path != NULL)
        code = fit_draw(bp_fit_file_get_message(answers[0])->fit, &picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(&picture, 1);
    if (code == EXIT_GO_ON)
        code = print(answers, count, options);
    code = outputs_end(&picture, 1, code);
    return code;
}

/* Of several models those with an answer are printed. */
int cli_fit(int argc, char **argv)
{
    fit_options options;
    CLI_TRY(fit_options_parse(argc, argv, &options));
    size_t count = 0;
    int code = EXIT_GO_ON, failure = EXIT_GO_ON;
    bool fits = true;
    bp_fit_file **answers = calloc(options.file_count, sizeof *answers);
    if (answers == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    for (size_t i = 0; code == EXIT_GO_ON && i < options.file_count; i++) {
        const bool is_standard =
            strcmp(options.files[i], "-") == 0; /* a document: Python could not read a model there */
        const char *given = is_standard ? "/dev/stdin" : options.files[i];
        int result = is_standard || bp_fit_file_is_document(given) ? read_document(given, &options, &answers[count])
                                                                   : ask(given, &options, &answers[count]);
        if (result == EXIT_GO_ON)
            fits = fit_fits(bp_fit_file_get_message(answers[count++])->fit) && fits;
        else
            failure = result;
        if (failure == EXIT_ENVIRONMENT || (failure != EXIT_GO_ON && options.file_count == 1))
            code = failure;
    }
    if (code == EXIT_GO_ON && count > 0)
        code = show(answers, count, &options);
    for (size_t i = 0; i < count; i++)
        bp_fit_file_destroy(&answers[i]);
    free(answers);
    if (code != EXIT_GO_ON || failure != EXIT_GO_ON)
        return code != EXIT_GO_ON ? code : failure;
    return fits ? EXIT_ANSWERED : EXIT_NEGATIVE;
}
