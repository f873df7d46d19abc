/* SPDX-License-Identifier: Apache-2.0 */
/* `bucketpool fit`: starts the training's Python, reads its answer, prints and draws it. */
#ifndef TOOLS_FIT_FIT_H
#define TOOLS_FIT_FIT_H

#include <stdbool.h>
#include <stdint.h>

#include "formats/fit_file.h"
#include "shared/options.h"
#include "shared/outputs.h"

typedef struct fit_options {
    int runtime, checkpointing, weights, param_dtype, reduce_dtype, loss, optimizer;
    uint32_t dp, ep, tp, sequence, layers;
    uint64_t batch, memory, reserve;
    const char *gpu;
    bool reshard, fresh;
    const char *plot;
    bool json;
    int color;
    options_given given;
    char **files;
    size_t file_count;
} fit_options;

/* Runs Python for one request, a JSON object. Returns EXIT_GO_ON with the answer, or the exit code after a message. The caller destroys the
 * answer. SIGINT ends Python and the process. */
int fit_ask(const char *request, bp_fit_file **answer);

/* Some allocator takes the micro-batch that was asked for, or any. */
bool fit_fits(const bp_fit_info *info);

enum { FIT_VERDICT_CHARS = 1024 };
/* "fits on H100 80GB: micro-batch 4 of 8,192 tokens with expandable segments, 5 served ..." */
void fit_verdict(const bp_fit_info *info, char text[FIT_VERDICT_CHARS]);

/* Print to standard output. Return EXIT_GO_ON, or the exit code after a message. */
int fit_report_one(const bp_fit_info *info, const fit_options *options);
int fit_report_all(bp_fit_file *const *answers, size_t count, const fit_options *options);

/* Draws the step of the shown micro-batch by kinds, with the totals and the limit. Returns as the others. */
int fit_draw(const bp_fit_info *info, const output *to);

#endif
