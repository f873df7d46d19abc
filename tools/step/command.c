/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool step`: the memory of recorded training steps. */
#include "step/step.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/inputs.h"
#include "shared/options.h"
#include "shared/progress.h"

/* ---- options ------------------------------------------------------------------------------------------------------- */

/* A second or two for a whole recording of 20,000 allocations, whose plan is seldom proven, and mostly within 0.1 % of the bound. */
#define DEFAULT_WORK 100000000u

#define FIELD(member) offsetof(step_options, member)

static const choice choices_by[] = {
    {"place", STEP_BY_PLACE}, {"module", STEP_BY_MODULE}, {"phase", STEP_BY_PHASE}, {"kind", STEP_BY_KIND}, {0}};

static int parse_limit(const char *name, const char *text, void *options)
{
    step_options *o = options;
    if (!cli_parse_bytes(text, &o->limit) || o->limit == 0)
        return cli_fail(EXIT_BAD_INPUT, "--%s %.40s: expected a size such as 80GB or 79.1GiB", name, text);
    return EXIT_GO_ON;
}

static const option_row step_table[] = {
    {.kind = OPTION_HEADING, .text = "Planning:", .group = 1},
    {"work", "N",
     "Limit of the search, in steps of very roughly a nanosecond; the result does not depend on the machine",
     OPTION_U64, FIELD(work), .min = 1},
    {"lead", "EVENTS",
     "Keep memory of other streams than the main one free for so many events before its allocation; 0: no windows "
     "(default since the last allocation of its size)",
     OPTION_U32, FIELD(lead)},
    {"limit", "SIZE",
     "Also play the models of PyTorch's allocators on a GPU with so much memory: does the recording run in it?",
     OPTION_OWN, .parse = parse_limit},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 2},
    {"by", "GROUP", "Sum up what is live by place in the code, module, phase or kind (default place)", OPTION_CHOICE,
     FIELD(by), choices_by},
    {"places", "N", "Print the N largest groups (default 12)", OPTION_U32, FIELD(holders)},
    {"json", NULL, "Print a bucketpool.step/1 document", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "Draw the planned step (.svg)", OPTION_PICTURE, FIELD(plot)},
    {"output", "PLAN", "Write the plan as bucketpool.step_plan/1; -: to standard output instead of the report",
     OPTION_FILE, FIELD(output), .letter = 'o'},
    {"color", "WHEN", "auto, always or never (default auto)", OPTION_CHOICE, FIELD(color), choices_color},
    OPTION_END,
};

static int check(const step_options *o)
{
    if (o->file_count == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "step: no file given; give a snapshot of torch.cuda.memory._dump_snapshot or of "
                        "bucketpool.torch.trace");
    if (output_is_standard(o->output) && o->json)
        return cli_fail(EXIT_BAD_INPUT, "--json and -o - both write to standard output; give -o a file");
    if (o->output != NULL && o->plot != NULL && strcmp(o->output, o->plot) == 0)
        return cli_fail(EXIT_BAD_INPUT, "-o and --plot name the same file, %s", o->plot);
    return EXIT_GO_ON;
}

static int step_options_parse(int argc, char **argv, step_options *options)
{
    *options = (step_options){.holders = 12, .work = DEFAULT_WORK, .lead = BP_STEP_LEAD_AUTO};
    const options_command reading = {
        .name = "step",
        .arguments = "FILE...",
        .text = "Reports the memory of training steps that PyTorch recorded: the peak and the code that holds it, what "
                "PyTorch "
                "reserved and why, and what a plan with one address for each allocation takes.\vFILE is a pickle of "
                "torch.cuda.memory._dump_snapshot, or of bucketpool.torch.trace, which needs no GPU. It is parsed as "
                "data; no code in it runs. Record at least two steps. A folder stands for "
                "its snapshots. Of several files those with an answer are reported. Exit: 0 answered, 2 bad input "
                "(also of one of several "
                "files), 3 environment.",
        .tables = {step_table},
        .options = options,
        .files = &options->files,
        .file_count = &options->file_count};
    CLI_TRY(options_read(argc, argv, &reading));
    return check(options);
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

typedef struct step_answers {
    bp_trace_file **files;
    size_t file_count;
    step_answer *all; /* a device of a file each */
    size_t count;
    size_t failed; /* files without an answer */
} step_answers;

/* True if the device has something to report: allocations, or a request that failed. */
static bool is_recorded(const bp_trace *trace)
{
    for (size_t i = 0; i < trace->event_count; i++) {
        if (trace->events[i].action == BP_TRACE_ALLOC || trace->events[i].action == BP_TRACE_OOM)
            return true;
    }
    return false;
}

static int read_traces(const char *path, bp_trace_file **file)
{
    const char *other = input_other_kind(path);
    if (other != NULL)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: %s", path, other);
    bp_status status = bp_trace_file_read(path, file);
    if (status != BP_OK)
        return cli_fail_status(status);
    if (bp_trace_file_get_info(*file)->is_of_pools)
        return cli_fail(EXIT_BAD_INPUT, "%.300s: a snapshot of bucketpool's pools; use `bucketpool view`", path);
    return EXIT_GO_ON;
}

static int read_file(const char *path, const step_options *options, step_answers *answers)
{
    bp_trace_file **file = &answers->files[answers->file_count];
    int code = read_traces(path, file);
    answers->file_count += *file != NULL;
    if (code != EXIT_GO_ON || *file == NULL)
        return code;
    const bp_trace_file_info *info = bp_trace_file_get_info(*file);
    step_answer *all = realloc(answers->all, (answers->count + info->trace_count + 1) * sizeof *all);
    if (all == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    answers->all = all;
    size_t used = 0;
    for (size_t i = 0; code == EXIT_GO_ON && i < info->trace_count; i++) {
        if (!is_recorded(&info->traces[i]))
            continue;
        used++;
        code = step_answer_init(path, &info->traces[i], options, &all[answers->count]);
        if (code == EXIT_GO_ON)
            answers->count++;
        else
            step_answer_finish(&all[answers->count]);
    }
    if (used == 0)
        return cli_fail(
            EXIT_BAD_INPUT,
            "%.300s: no recorded allocations; call torch.cuda.memory._record_memory_history() before the steps", path);
    return code;
}

static int print(const step_answers *answers, const step_options *options)
{
    if (output_is_standard(options->output))
        return EXIT_GO_ON;
    if (options->json)
        return step_report_json(answers->all, answers->count);
    return answers->count > 1 ? step_report_all(answers->all, answers->count, options)
                              : step_report_one(&answers->all[0], options);
}

/* Files are committed after all of them were written and the report was printed. */
static int answer(const step_answers *answers, const step_options *options)
{
    output outputs[2] = {{0}}, *plan = &outputs[0], *picture = &outputs[1];
    size_t given = answers->count + answers->failed;
    if ((options->output != NULL || options->plot != NULL) && given > 1)
        return cli_fail(EXIT_BAD_INPUT, "%s requires one device of one file, got %zu",
                        options->output != NULL ? "-o" : "--plot", given);
    int code = output_init("-o", options->output, plan);
    if (code == EXIT_GO_ON)
        code = output_init("--plot", options->plot, picture);
    if (code == EXIT_GO_ON && plan->path != NULL)
        code = step_write_plan(&answers->all[0], plan);
    if (code == EXIT_GO_ON && picture->path != NULL)
        code = step_draw(&answers->all[0], options, picture);
    if (code == EXIT_GO_ON)
        code = outputs_sync(outputs, 2);
    if (code == EXIT_GO_ON)
        code = print(answers, options);
    code = outputs_end(outputs, 2, code);
    return code != EXIT_GO_ON ? code : answers->failed > 0 ? EXIT_BAD_INPUT : EXIT_ANSWERED;
}

static int read_and_answer(const input_files *inputs, const step_options *options)
{
    step_answers answers = {.files = calloc(inputs->count + 1, sizeof *answers.files)};
    if (answers.files == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    progress p;
    int code = EXIT_GO_ON;
    progress_init(&p, "file", inputs->count);
    for (size_t i = 0; code == EXIT_GO_ON && i < inputs->count; i++) {
        progress_show(&p, i);
        int failure = read_file(inputs->all[i], options, &answers);
        answers.failed += failure != EXIT_GO_ON;
        if (failure != EXIT_GO_ON && (failure != EXIT_BAD_INPUT || inputs->count == 1))
            code = failure; /* else the other files are answered */
    }
    progress_erase(&p);
    if (code == EXIT_GO_ON && answers.count == 0)
        code = EXIT_BAD_INPUT;
    if (code == EXIT_GO_ON)
        code = answer(&answers, options);
    for (size_t i = 0; i < answers.count; i++)
        step_answer_finish(&answers.all[i]);
    for (size_t i = 0; i < answers.file_count; i++)
        bp_trace_file_destroy(&answers.files[i]);
    free(answers.all);
    free(answers.files);
    return code;
}

int cli_step(int argc, char **argv)
{
    step_options options;
    input_files inputs;
    CLI_TRY(step_options_parse(argc, argv, &options));
    int code = input_files_init("step", options.files, options.file_count, &inputs);
    if (code == EXIT_GO_ON)
        code = read_and_answer(&inputs, &options);
    input_files_finish(&inputs);
    return code;
}
