/* SPDX-License-Identifier: Apache-2.0 */
/* Trains a small hybrid model as FSDP runtimes do: weights are sharded over ranks, gathered one unit ahead into a pool of bucketpool, and
 * their gradients reduced out of it. docs/guides/training_loop.md goes through it.
 *
 *   examples/mpi 4 fsdp_train --policy scheduled --steps 50
 *
 * Losses have the same bits for every policy, with graphs and without, registered, offloaded, profiled, or slowed down: what prints one line
 * for each step is compared with diff. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "report.h"
#include "trainer.h"
#include "try.h"

enum { EXIT_NO_DEVICE = 77 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double one = *(const double *)a, other = *(const double *)b;
    return (one > other) - (one < other);
}

static double median(double *seconds, uint64_t count)
{
    qsort(seconds, count, sizeof *seconds, by_size);
    return count > 0 ? seconds[count / 2] : 0;
}

static bp_status train(trainer *t, bool speaks, double *seconds)
{
    for (uint64_t step = 0; step < t->options->steps; step++) {
        double loss, begin = now();
        TRY(trainer_step(t, step, &loss));
        seconds[step] = now() - begin;
        if (speaks) {
            printf("step %" PRIu64 " loss %a %.16f\n", step, loss, loss);
            fflush(stdout);
        }
    }
    if (t->offload != NULL)
        TRY(restore_all(t));
    if (t->profile != NULL && bp_profile_get_info(t->profile)->recording)
        TRY(bp_profile_stop(t->profile)); /* writes the last step: destroying would not say why that failed */
    return speaks ? report_end(t, median(seconds, t->options->steps)) : memory_check(t);
}

/* Ranks that go different ways would wait for each other for ever. */
static bp_status check_options(const options *o, bp_comm *control)
{
    const uint32_t ranks = bp_comm_get_info(control)->ranks;
    char mine[SHARED_OPTIONS_BYTES], *all = calloc(ranks, sizeof mine);
    if (all == NULL)
        return fail_memory();
    options_shared(o, mine);
    bp_status status = bp_comm_exchange(control, mine, sizeof mine, all);
    for (uint32_t rank = 1; status == BP_OK && rank < ranks; rank++) {
        const char *other = all + rank * sizeof mine;
        if (strcmp(other, all) != 0)
            status = fail(BP_ERR_MISMATCH, "rank %u has other options than rank 0: %s; rank 0: %s", rank, other, all);
    }
    free(all);
    return status;
}

static bp_status run(const options *o, const launched *l, bp_comm *control, trainer *t)
{
    bool speaks = bp_comm_get_info(control)->rank == 0;
    TRY(trainer_create(o, l, control, t));
    if (speaks)
        report_begin(t);
    if (speaks && o->registered)
        TRY(report_registration(t));
    double *seconds = calloc(o->steps + 1, sizeof *seconds);
    if (seconds == NULL)
        return fail_memory();
    bp_status status = train(t, speaks, seconds);
    free(seconds);
    return status;
}

/* All ranks have found the same error, and rank 0 reports it: a launcher ends the other ranks as soon as one has
 * failed, so that a rank which fails first would take rank 0's message with it. Bounded, for an error that only this
 * rank has. */
static int leave_report_to_first(const launched *l, int code)
{
    const struct timespec pause = {.tv_sec = 2};
    if (code != EXIT_SUCCESS && l->rank > 0)
        nanosleep(&pause, NULL);
    return code;
}

int main(int argc, char **argv)
{
    static trainer t;
    options o;
    bp_comm *control = NULL;
    const launched l = ranks_launched();
    int code = options_parse(argc, argv, l.rank == 0, &o);
    if (code != GO_ON)
        return leave_report_to_first(&l, code);
    if (l.ranks > o.rows) {
        if (l.rank == 0)
            fprintf(stderr, "fsdp_train: %u ranks cannot share %" PRIu64 " rows: --rows %u or more, or fewer ranks\n",
                    l.ranks, o.rows, l.ranks);
        return leave_report_to_first(&l, EXIT_OPTIONS);
    }
    bp_status status = ranks_create(&l, &control);
    if (status == BP_OK)
        status = check_options(&o, control);
    if (status == BP_ERR_MISMATCH) { /* which all ranks know: they end normally */
        if (l.rank == 0)
            fprintf(stderr, "fsdp_train: %s\n", bp_error_detail());
        bp_comm_destroy(&control);
        return leave_report_to_first(&l, EXIT_FAILURE);
    }
    if (status == BP_OK)
        status = run(&o, &l, control, &t);
    if (status != BP_OK) {
        fprintf(stderr, "fsdp_train: rank %u: %s: %s\n", l.rank, bp_status_name(status), bp_error_detail());
        ranks_end_all(&l, status == BP_ERR_NO_DEVICE ? EXIT_NO_DEVICE : EXIT_FAILURE);
    }
    trainer_destroy(&t);
    bp_comm_destroy(&control);
    return EXIT_SUCCESS;
}
