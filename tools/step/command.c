/* `bucketpool step`: the memory of recorded training steps. */
#include "step/step.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "shared/options.h"
#include "shared/progress.h"

/* ---- options ------------------------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(step_options, member)

static const choice choices_by[] = {
    {"place", STEP_BY_PLACE}, {"module", STEP_BY_MODULE}, {"phase", STEP_BY_PHASE}, {"kind", STEP_BY_KIND}, {0}};

static const option_row step_table[] = {
    {.kind = OPTION_HEADING, .text = "Planning:", .group = 1},
    {"work", "N",
     "Limit of the search, in steps of very roughly a nanosecond; the result does not depend on the machine",
     OPTION_U64, FIELD(work), .least = 1},
    {.kind = OPTION_HEADING, .text = "Output:", .group = 2},
    {"by", "GROUP", "Sum up what is live by place in the code, module, phase or kind (default place)", OPTION_CHOICE,
     FIELD(by), choices_by},
    {"places", "N", "Print the N largest groups (default 12)", OPTION_U32, FIELD(holders)},
    {"json", NULL, "Print a bucketpool.step/1 document", OPTION_FLAG, FIELD(json)},
    {"plot", "FILE", "Draw the planned step (.svg, .png or .pdf)", OPTION_PICTURE, FIELD(plot)},
    {"output", "PLAN", "Write the plan as bucketpool.plan/1; -: to standard output instead of the report", OPTION_FILE,
     FIELD(output), .letter = 'o'},
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
    *options = (step_options){.holders = 12};
    const options_command reading = {
        .name = "step",
        .arguments = "FILE...",
        .text = "Reports the memory of training steps that PyTorch recorded: the peak and the code that holds it, what "
                "PyTorch "
                "reserved and why, and what a plan with one address for each allocation takes.\vFILE is a pickle of "
                "torch.cuda.memory._dump_snapshot, or of bucketpool.torch.trace, which needs no GPU. It is parsed as "
                "data; no code in it runs. Record at least two steps. Exit: 0 answered, 2 bad input, 3 environment.",
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
} step_answers;

static int read_file(const char *path, const step_options *options, step_answers *answers)
{
    bp_trace_file **file = &answers->files[answers->file_count];
    bp_status status = bp_trace_file_read(path, file);
    if (status != BP_OK)
        return cli_fail_status(status);
    answers->file_count++;
    const bp_trace_file_info *info = bp_trace_file_get_info(*file);
    step_answer *all = realloc(answers->all, (answers->count + info->trace_count + 1) * sizeof *all);
    if (all == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    answers->all = all;
    size_t used = 0;
    for (size_t i = 0; i < info->trace_count; i++) {
        if (info->traces[i].event_count == 0)
            continue; /* memory of a device that was not recorded */
        used++;
        CLI_TRY(step_answer_init(path, &info->traces[i], options, &answers->all[answers->count++]));
    }
    if (used == 0)
        return cli_fail(EXIT_BAD_INPUT,
                        "%.300s: no recorded events; call torch.cuda.memory._record_memory_history() before the steps",
                        path);
    return EXIT_GO_ON;
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
    if ((options->output != NULL || options->plot != NULL) && answers->count > 1)
        return cli_fail(EXIT_BAD_INPUT, "%s requires one device of one file, got %zu",
                        options->output != NULL ? "-o" : "--plot", answers->count);
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
    if (code == EXIT_GO_ON)
        code = cli_flush();
    if (code == EXIT_GO_ON)
        code = outputs_commit(outputs, 2);
    outputs_finish(outputs, 2);
    return code == EXIT_GO_ON ? EXIT_ANSWERED : code;
}

int cli_step(int argc, char **argv)
{
    step_options options;
    CLI_TRY(step_options_parse(argc, argv, &options));
    step_answers answers = {.files = calloc(options.file_count + 1, sizeof *answers.files)};
    if (answers.files == NULL)
        return cli_fail(EXIT_ENVIRONMENT, "out of memory");
    progress p;
    int code = EXIT_GO_ON;
    progress_init(&p, "file", options.file_count);
    for (size_t i = 0; code == EXIT_GO_ON && i < options.file_count; i++) {
        progress_show(&p, i);
        code = read_file(options.files[i], &options, &answers);
    }
    progress_erase(&p);
    if (code == EXIT_GO_ON)
        code = answer(&answers, &options);
    for (size_t i = 0; i < answers.count; i++)
        step_answer_finish(&answers.all[i]);
    for (size_t i = 0; i < answers.file_count; i++)
        bp_trace_file_destroy(&answers.files[i]);
    free(answers.all);
    free(answers.files);
    return code;
}
