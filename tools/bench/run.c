#include "bench/run.h"

#include <bucketpool/logprob.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/times.h"
#include "cli.h"
#include "interrupt.h"
#include "machine.h"

#define LEAST_SECONDS 0.005
#define MOST_REPEATS 256

bp_status bench_time(const bench_work *work, uint64_t repeats, bench_sample *sample)
{
    bp_status status = bp_stream_synchronize(work->stream);
    double begin = machine_seconds();
    uint64_t done = 0;
    for (; status == BP_OK && done < repeats && !(done > 0 && interrupt_came()); done++)
        status = work->forward(work->user);
    double forwards = (double)(done > 0 ? done : 1);
    if (status == BP_OK)
        status = bp_stream_synchronize(work->stream);
    double middle = machine_seconds();
    for (done = 0; status == BP_OK && done < repeats && !(done > 0 && interrupt_came()); done++)
        status = work->backward(work->user);
    if (status == BP_OK)
        status = bp_stream_synchronize(work->stream);
    sample->forward = (middle - begin) / forwards;
    sample->backward = (machine_seconds() - middle) / (double)(done > 0 ? done : 1);
    return status;
}

uint64_t bench_repeats(const bench_sample *sample)
{
    double seconds = sample->forward + sample->backward;
    if (seconds * MOST_REPEATS <= LEAST_SECONDS)
        return MOST_REPEATS;
    return seconds >= LEAST_SECONDS ? 1 : (uint64_t)(LEAST_SECONDS / seconds) + 1;
}

bp_status bench_settle(const bench_sample *samples, size_t count, bench_row *row)
{
    if (count == 0) {
        bench_refuse_row(row, "interrupted");
        return BP_OK;
    }
    double *values = calloc(3 * count, sizeof *values);
    if (values == NULL)
        return bp_error_record(BP_ERR_NO_HOST_MEMORY, "out of memory for the times");
    for (size_t i = 0; i < count; i++) {
        values[i] = samples[i].forward;
        values[count + i] = samples[i].backward;
        values[2 * count + i] = samples[i].forward + samples[i].backward;
    }
    row->forward_seconds = bench_median(values, count);
    row->backward_seconds = bench_median(values + count, count);
    row->seconds = bench_median(values + 2 * count, count);
    row->measured = true;
    free(values);
    return BP_OK;
}

bp_status bench_poison(bench *b, const bench_shape *shape)
{
    static const int outputs[] = {TENSOR_LOGITS_GRAD, TENSOR_HIDDEN_GRAD, TENSOR_WEIGHT_GRAD,
                                  TENSOR_LOGPROB,     TENSOR_ENTROPY,     TENSOR_SAVED};
    bp_status status = BP_OK;
    for (size_t i = 0; status == BP_OK && i < sizeof outputs / sizeof *outputs; i++) {
        if (shape->at[outputs[i]] != NULL)
            status = bp_stream_fill(b->device.stream, shape->at[outputs[i]], 0xff, shape->tensors.bytes[outputs[i]]);
    }
    return status;
}

int bench_note_kernels(bench *b, const char *kernels, uint32_t threads)
{
    const bench_options *o = b->options;
    snprintf(b->kernels, sizeof b->kernels, "%s", kernels);
    b->threads = b->copy.threads = threads;
    if (o->kernels == 0 || strcmp(kernels, bench_kernels_name(o->kernels)) == 0)
        return EXIT_GO_ON;
    progress_erase(&b->progress);
    return cli_fail(EXIT_ENVIRONMENT, "--kernels %s: this machine, or this build, has none; auto takes %s",
                    bench_kernels_name(o->kernels), kernels);
}
