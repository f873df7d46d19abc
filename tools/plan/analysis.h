/* SPDX-License-Identifier: Apache-2.0 */
/* Analysis of models: buckets, schedule and plans from a file and options, and the tables and documents of `plan`. */
#ifndef TOOLS_PLAN_ANALYSIS_H
#define TOOLS_PLAN_ANALYSIS_H

#include <bucketpool/bucketpool.h>

#include <stdbool.h>

#include "core/json_writer.h"
#include "plan/options.h"

/* Model state of one GPU outside the pool. */
typedef struct state_bytes {
    uint64_t outside;      /* persistent parameters outside units */
    uint64_t unsharded;    /* FSDP2: the copies that parameters are gathered into, at most at once */
    uint64_t param_shards; /* in the parameters' dtypes */
    uint64_t grad_shards;
    uint64_t optimizer;
    uint64_t total;
} state_bytes;

typedef struct analysis {
    bp_bucketing bucketing; /* as chosen for this model; 0: differs between models that share a pool */
    bp_padding padding;
    bp_layout layout;
    char *name;
    uint64_t parameters, prediction_parameters;
    char notes[2048];      /* on parts of the file that are not counted; "" for none */
    size_t units;          /* with buckets, without root groups */
    uint64_t root_bytes;   /* of FSDP2's root groups, gathered */
    size_t models;         /* in the pool */
    size_t recorded;       /* models with a recorded schedule, on which schedule options have no effect */
    bool single_ranks;     /* every bucket has one rank, so there is nothing to plan */
    bool separate_experts; /* in the file: a matrix for each expert */
    bool tensors;          /* --units is given and has an effect */
    state_bytes state;
    bp_buckets *buckets;
    bp_schedule *schedule;
    bp_plan *plans[MAX_POLICIES];
    size_t plan_count;
} analysis;

/* Reads and plans every model of the options; models that share a pool give one analysis. *infeasible: some plan is
 * infeasible. Returns EXIT_GO_ON, or the exit code after a message. Call analysis_finish_all either way. */
int analysis_init_all(const plan_options *options, analysis **analyses, size_t *count, bool *infeasible);
void analysis_finish_all(analysis *analyses, size_t count);
void analysis_finish(analysis *a);

/* The dtype of --main-grad-dtype or --optimizer-dtype, or its default. */
bp_dtype analysis_trained_dtype(bp_dtype asked);

/* Planner configuration from the options. */
bp_status analysis_plan_config(const plan_options *options, bp_policy policy, uint64_t alignment,
                               bp_plan_config *config);

/* Configuration of a generated schedule. It points to `overrides`, an array of unit_prefetch_count entries that this
 * function fills. Returns EXIT_GO_ON, or the exit code after a message. */
int analysis_schedule_config(const analysis *a, const schedule_options *options, bp_unit_prefetch *overrides,
                             bp_schedule_config *config);

/* Plans the analysed model and records the options in the plan. The caller owns it. */
bp_status analysis_plan(const analysis *a, const plan_options *options, bp_policy policy, uint64_t alignment,
                        bp_plan **plan);

/* Bytes of a plan and of the model state. */
uint64_t analysis_needed(const analysis *a, const bp_plan *plan);

enum { SCHEDULE_TEXT_CHARS = 256, STEP_TEXT_CHARS = 256 };
/* "recorded", "training", ...; "mixed" if only some of the models have a recorded schedule. */
const char *analysis_schedule_kind(const analysis *a, const schedule_options *options);
/* "prefetch 1" or "recorded schedule of 8 events", with all options that differ from their defaults. Returns `text`. */
const char *analysis_schedule_text(const analysis *a, const plan_options *options, char text[SCHEDULE_TEXT_CHARS]);

/* "backward of layers.46". Returns `text`. */
const char *analysis_step_text(const analysis *a, uint32_t index, char text[STEP_TEXT_CHARS]);

/* ---- steps of an analysis; functions without a status return EXIT_GO_ON, or the exit code after a message ---- */

/* Reads the model as one rank holds it and makes its buckets. The caller owns the model, also after an error. */
int analysis_read(const char *path, const plan_options *options, analysis *a, bp_model **model);
/* Adds notes on groups of one rank and on padding to the analysis, whose buckets are those of `model`. */
void analysis_note_buckets(const plan_options *options, const bp_model *model, analysis *a);
/* Prints the library's error detail for this file. */
int analysis_fail(const char *path, bp_status status);

/* Generates the schedule or takes the recorded one, and merges those of --schedules. */
int analysis_make_schedule(const char *path, const plan_options *options, const bp_model *model, analysis *a);

/* ---- advice; functions with a status return EXIT_GO_ON, or the exit code after a message ---- */

/* Adds a note for each option of the command line that changes neither the plans of this model nor the state that is shown. */
int advice_note_options(const char *path, const plan_options *options, analysis *a);
/* Prints a line if all policies take the same. */
void advice_print_verdict(const analysis *a);
/* Prints from which --dp on each policy fits that does not fit the budget. */
int advice_print_ranks(const analysis *a, const plan_options *options);

/* ---- paths of models ---- */

/* Finds the path of `given`: as bp_model_find, and "/dev/stdin" for "-". The caller frees *path. *name: that of a model that was found by
 * its name or id, within `given`; else NULL. Returns EXIT_GO_ON, or the exit code after a message with the nearest name and the places
 * that were searched. */
int models_find(const char *given, char **path, const char **name);

/* true if the reader finds units by tensor names in this file or directory: then --units has an effect. */
bool models_has_tensors(const char *path);

/* ---- tables on standard output ---- */

/* Prints the model and its bucketing: two lines and an empty one. */
void table_print_heading(const analysis *a, const plan_options *options);

/* Prints the buffers of one model under each policy, the totals and the budget. Returns EXIT_GO_ON or an exit code. */
int table_print_model(const analysis *a, const plan_options *options);

/* Prints a line for each model. Returns as table_print_model. */
int table_print_models(const analysis *analyses, size_t count, const plan_options *options);

/* "1.61". Same lifetime as cli_text. */
const char *table_ratio_text(uint64_t bytes, uint64_t bound);

/* ---- bucketpool.report/1 (docs/reference/formats.md) ---- */

/* Adds the member "options": the chosen value of every option that plans depend on. */
void report_options(bp_json_writer *d, const analysis *a, const plan_options *options);

/* Adds the list of role names of a BP_ROLE_BIT mask. */
void report_roles(bp_json_writer *d, const char *key, uint32_t mask);

/* Prints the report of all models to standard output. Returns EXIT_GO_ON or the exit code after a message. */
int report_print(const analysis *analyses, size_t count, const plan_options *options);

#endif
