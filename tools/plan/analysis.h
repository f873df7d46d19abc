/* Models, planned: from a file and options to buckets, schedule and plans, and what is printed of them. */
#ifndef TOOLS_PLAN_ANALYSIS_H
#define TOOLS_PLAN_ANALYSIS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "files/json_writer.h"
#include "plan/options.h"

/* One model, planned: everything the outputs show. */

/* What one GPU holds beside the pool. */
typedef struct state_bytes {
    uint64_t outside;      /* parameters outside units, gathered and kept */
    uint64_t param_shards; /* in the parameters' dtypes */
    uint64_t grad_shards;
    uint64_t optimizer;
    uint64_t total;
} state_bytes;

typedef struct analysis {
    bp_bucketing bucketing; /* as chosen for this model; 0: models that share a pool differ in it */
    bp_padding padding;
    bp_layout layout;
    char *name;
    uint64_t parameters, prediction_parameters;
    char notes[512]; /* about parts of the file that are not counted; "" for none */
    size_t units;    /* that hold buckets */
    size_t models;   /* that share the pool */
    size_t recorded; /* of them: those that brought a schedule along, for which prefetch and the like do not count */
    bool tensors;    /* with --units: its units are found by names of tensors */
    state_bytes state;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plans[MOST_POLICIES];
    size_t plan_count;
} analysis;

/* Reads and plans every model of the options; models that share a pool are one analysis. Returns EXIT_GO_ON, or the exit code after a
 * message. *infeasible tells whether any plan is. Call analysis_finish_all either way. */
int analysis_init_all(const plan_options *options, analysis **analyses, size_t *count, bool *infeasible);
void analysis_finish_all(analysis *analyses, size_t count);

/* What --main-grad-dtype and --optimizer-dtype come to. */
bp_dtype analysis_trained_dtype(bp_dtype asked);

/* What plans are made with. */
bp_status analysis_plan_config(const plan_options *options, bp_policy policy, uint64_t alignment,
                               bp_plan_config *config);

/* What a schedule that the model did not bring along is made with. `overrides`: room for those of the options, which the
 * configuration points to. Returns EXIT_GO_ON, or the exit code after a message. */
int analysis_schedule_config(const analysis *a, const schedule_options *options, bp_unit_prefetch *overrides,
                             bp_schedule_config *config);

/* A plan of the analysed model, with the options noted in it. The caller owns it. */
bp_status analysis_plan(const analysis *a, const plan_options *options, bp_policy policy, uint64_t alignment,
                        bp_plan **plan);

/* Whether a plan and the model's state fit the budget: bytes of both. */
uint64_t analysis_needed(const analysis *a, const bp_plan *plan);

enum { SCHEDULE_TEXT_CHARS = 256, STEP_TEXT_CHARS = 256 };
/* "recorded", "training" and so on; "mixed" where only some of the models that share are recorded. */
const char *analysis_schedule_kind(const analysis *a, const schedule_options *options);
/* "prefetch 1", or "recorded schedule of 8 events", and what else differs from the default, in `text`. */
const char *analysis_schedule_text(const analysis *a, const plan_options *options, char text[SCHEDULE_TEXT_CHARS]);

/* "backward of layers.46", in `text`. */
const char *analysis_step_text(const analysis *a, uint32_t index, char text[STEP_TEXT_CHARS]);

/* How an analysis comes about, step by step: each is EXIT_GO_ON, or the exit code after a message, where it is not a status. */

/* The file's model as one rank holds it, its rules, buckets and figures. The caller owns the model, also after an
 * error. */
int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model);
/* The library's detail, about this file. */
int analysis_fail(const char *path, bp_status status);

/* Generated or recorded, merged with those of further files. */
int analysis_make_schedule(const char *path, const plan_options *options, const bp_model *model, analysis *a);

/* Paths of models as they are given at the prompt: a file, a directory, "-", or the name of a bundled model. */

/* Finds the path of `given`: `given` itself if such a file exists or if it has a slash, "/dev/stdin" for "-", else the bundled model of
 * this name. The caller frees *path. Returns EXIT_GO_ON, or the exit code after a message with the nearest name and the folders. */
int models_find(const char *given, char **path);

/* Tells whether the reader finds units by names of tensors in this file or directory, so that --units has an effect. */
bool models_has_tensors(const char *path);

/* Plans as tables for people, on standard output. */

/* The model and how it is bucketed, two lines and an empty one. */
void table_print_heading(const analysis *a, const plan_options *options);

/* One model: its buffers policy by policy, then the totals, then the budget. Returns EXIT_GO_ON or an exit code. */
int table_print_model(const analysis *a, const plan_options *options);

/* Several models side by side: a line each. */
int table_print_models(const analysis *analyses, size_t count, const plan_options *options);

/* "1.61". Same lifetime as cli_text. */
const char *table_ratio_text(uint64_t bytes, uint64_t bound);

/* The JSON report, bucketpool.report/1: docs/reference/formats.md describes every member. */

/* The member "options": every option that plans depend on, as chosen. */
void report_options(bp_json_writer *d, const analysis *a, const plan_options *options);

/* A list of the names of the roles in a BP_ROLE_BIT mask. */
void report_roles(bp_json_writer *d, const char *key, uint32_t mask);

/* Prints the report of all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int report_print(const analysis *analyses, size_t count, const plan_options *options);

#endif
