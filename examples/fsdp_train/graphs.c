/* SPDX-License-Identifier: Apache-2.0 */
/* Whole steps as CUDA graphs: captured as they would be enqueued, and launched with other inputs each time. */
#include "trainer.h"
#include "try.h"

#include <stdio.h>

/* Between a begin and an end that comes whatever happens. The first error counts, and its words. */
static bp_status capture_graph(trainer *t)
{
    char detail[512];
    TRY(bp_graph_begin(t->compute));
    bp_status status = step_enqueue(t);
    (void)snprintf(detail, sizeof detail, "%s", bp_error_detail());
    bp_status ended = bp_graph_end(t->compute, &t->graph);
    return status != BP_OK ? bp_error_record(status, detail) : ended;
}

static bp_status capture(trainer *t)
{
    char detail[512];
    bp_capture_config config;
    TRY(bp_capture_config_init(&config, sizeof config));
    config.name = "step";
    config.owned = t->lasting; /* persistent ones need not be named */
    config.owned_count = t->lasting_planned;
    TRY(bp_capture_begin(t->pool, &config, &t->capture));
    bp_status status = capture_graph(t);
    if (status == BP_OK)
        status = bp_capture_end(t->capture);
    if (status == BP_OK) {
        t->captures++;
        return BP_OK;
    }
    (void)snprintf(detail, sizeof detail, "%s", bp_error_detail());
    bp_capture_destroy(&t->capture);
    return bp_error_record(status, detail);
}

bp_status graph_step(trainer *t)
{
    if (t->graph == NULL)
        TRY(capture(t));
    TRY(bp_capture_before_launch(t->capture, t->compute));
    bp_status status = bp_graph_launch(t->graph, t->compute);
    bp_status told = bp_capture_launched(t->capture, status == BP_OK ? t->compute : NULL);
    t->replays += status == BP_OK;
    return status != BP_OK ? status : told;
}

void graph_forget(trainer *t)
{
    bp_graph_destroy(&t->graph);
    bp_capture_destroy(&t->capture);
}
