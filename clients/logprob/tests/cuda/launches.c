/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors for kernels, and their launches on the emulation. */
#include "support/harness.h"

#include "launches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/reference.h"
#include "kernels.h"
#include "support/scenarios.h"

static void *new_memory(size_t bytes)
{
    void *memory =
        aligned_alloc(16, (bytes + 15) / 16 * 16); /* ASan detects overruns at a finer granularity than a vector */
    assert_non_null(memory);
    memset(memory, 0xff, bytes);
    return memory;
}

/* ---- rows ---------------------------------------------------------------------------------------------------------- */

static size_t element_bytes(bp_dtype dtype)
{
    return bp_dtype_bits(dtype) / 8;
}

/* The last row ends at the end of its allocation. */
rows empty_rows(bp_dtype dtype, uint32_t count, uint32_t columns, uint32_t shift, uint32_t gap)
{
    rows r = {.dtype = dtype, .count = count, .columns = columns, .shift = shift, .stride = (int64_t)columns + gap};
    size_t elements = shift + (size_t)r.stride * (count - 1) + columns;
    char *memory = malloc(elements * element_bytes(dtype) + 16);
    assert_non_null(memory);
    r.memory = realloc(memory, elements * element_bytes(dtype));
    assert_non_null(r.memory);
    assert_int_equal((uintptr_t)r.memory % 16, 0);
    memset(r.memory, 0xff, elements * element_bytes(dtype));
    r.data = r.memory + shift * element_bytes(dtype);
    r.targets_each = 1;
    r.targets = new_memory(count * sizeof *r.targets);
    return r;
}

rows new_rows(bp_dtype dtype, uint32_t count, uint32_t columns, uint32_t shift, uint32_t gap)
{
    rows r = empty_rows(dtype, count, columns, shift, gap);
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t v = 0; v < columns; v++)
            put_element(r.data, dtype, (int64_t)i * r.stride + v, (random_below(20001) - 10000.0) / 1000);
        r.targets[i] = i + 1 < count ? random_below(columns) : columns;
    }
    return r;
}

void set_targets(rows *r, uint32_t each)
{
    free(r->targets);
    r->targets_each = each;
    r->targets = new_memory((size_t)r->count * each * sizeof *r->targets);
    for (uint32_t i = 0; i < r->count * each; i++)
        r->targets[i] = i % 7 == 3 ? -1 : i % 5 == 4 ? r->targets[i - 1] : (int64_t)random_below(r->columns);
}

static char *row_at(const rows *r, uint32_t row)
{
    return r->data + (ptrdiff_t)((int64_t)row * r->stride) * (ptrdiff_t)element_bytes(r->dtype);
}

rows moved_rows(const rows *r, uint32_t shift, uint32_t gap)
{
    rows moved = empty_rows(r->dtype, r->count, r->columns, shift, gap);
    const size_t bytes = (size_t)r->count * r->targets_each * sizeof *r->targets;
    for (uint32_t i = 0; i < r->count; i++)
        memcpy(row_at(&moved, i), row_at(r, i), r->columns * element_bytes(r->dtype));
    free(moved.targets);
    moved.targets = new_memory(bytes);
    memcpy(moved.targets, r->targets, bytes);
    moved.targets_each = r->targets_each;
    return moved;
}

void free_rows(rows *r)
{
    free(r->memory);
    free(r->targets);
}

bool rows_are_equal(const rows *a, const rows *b)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (memcmp(row_at(a, i), row_at(b, i), a->columns * element_bytes(a->dtype)) != 0)
            return false;
    return true;
}

bool row_gaps_are_whole(const rows *r)
{
    size_t gap = (size_t)(r->stride - r->columns) * element_bytes(r->dtype);
    const char *at = r->memory;
    for (; at < r->data; at++)
        if (*at != (char)0xff)
            return false;
    for (uint32_t i = 0; i + 1 < r->count; i++)
        for (at = row_at(r, i + 1) - gap; at < row_at(r, i + 1); at++)
            if (*at != (char)0xff)
                return false;
    return true;
}

/* ---- launches ------------------------------------------------------------------------------------------------------ */

void run_with(const char *kernel, grid g, unsigned shared_bytes, const void *work)
{
    for (const fake_kernel *k = fake_kernels; k->name != NULL; k++)
        if (strcmp(k->name, kernel) == 0) {
            k->run((const unsigned[]){g.blocks, g.parts, 1}, (const unsigned[]){g.threads, 1, 1}, shared_bytes, work);
            return;
        }
    fail_msg("unknown kernel %s", kernel);
}

void run(const char *kernel, grid g, const void *work)
{
    run_with(kernel, g, 0, work);
}

const char *const FORMS[] = {"", "_entropy", "_general"};

bp_tokens_work tokens_work(const rows *logits)
{
    return (bp_tokens_work){.batch = 1,
                            .sequence = logits->count,
                            .target = logits->targets,
                            .target_batch_stride = (int64_t)logits->count * logits->targets_each,
                            .target_stride = logits->targets_each,
                            .target_step = 1,
                            .targets = logits->targets_each,
                            .target_is_64 = 1,
                            .scale = 1,
                            .vocab = logits->columns};
}

bp_logits_work logits_work(const rows *logits)
{
    return (bp_logits_work){.data = logits->data,
                            .batch_stride = logits->stride * logits->count,
                            .stride = logits->stride,
                            .columns = logits->columns,
                            .dtype = logits->dtype,
                            .rounding = BP_DTYPE_FP32};
}

bp_forward_work partials_work(const rows *logits, int32_t level, bp_partial *partials, float *target_logits)
{
    return (bp_forward_work){.tokens = tokens_work(logits),
                             .logits = logits_work(logits),
                             .level = level,
                             .partials = partials,
                             .target_logits = target_logits};
}

void run_forward(const bp_forward_work *work, grid g)
{
    char name[64];
    snprintf(name, sizeof name, "bp_forward_%s%s", bp_dtype_name((bp_dtype)work->logits.dtype), FORMS[work->level]);
    run(name, g, work);
}

void make_partials(const rows *logits, int32_t level, grid g, bp_partial *partials, float *target_logits)
{
    const bp_forward_work work = partials_work(logits, level, partials, target_logits);
    run_forward(&work, g);
}

/* ---- results ------------------------------------------------------------------------------------------------------- */

finished new_finished(uint32_t tokens, uint32_t targets)
{
    finished f = {.tokens = tokens, .targets = targets};
    float **const planes[] = {&f.entropy, &f.logsumexp, &f.mean_logprob, &f.max, &f.log_sum, &f.energy};
    f.logprob = new_memory(4 * (size_t)tokens * targets);
    for (size_t i = 0; i < sizeof planes / sizeof *planes; i++)
        *planes[i] = new_memory(4 * (size_t)tokens);
    return f;
}

void free_finished(finished *f)
{
    free(f->logprob);
    free(f->entropy);
    free(f->logsumexp);
    free(f->mean_logprob);
    free(f->max);
    free(f->log_sum);
    free(f->energy);
}

bool finished_are_equal(const finished *a, const finished *b)
{
    const size_t bytes = 4 * (size_t)a->tokens;
    return memcmp(a->logprob, b->logprob, bytes * a->targets) == 0 && memcmp(a->entropy, b->entropy, bytes) == 0 &&
           memcmp(a->logsumexp, b->logsumexp, bytes) == 0 && memcmp(a->mean_logprob, b->mean_logprob, bytes) == 0 &&
           memcmp(a->max, b->max, bytes) == 0 && memcmp(a->log_sum, b->log_sum, bytes) == 0 &&
           memcmp(a->energy, b->energy, bytes) == 0;
}

bp_results_work results_work(const finished *f, int32_t level)
{
    const int64_t count = f->tokens;
    bp_results_work work = {.logprob = {f->logprob, count * f->targets, f->targets, 1},
                            .logsumexp = {f->logsumexp, count, 1, 0},
                            .saved = {f->max, f->log_sum, NULL}};
    if (level >= BP_SUMS_WEIGHTED) {
        work.entropy = (bp_output_work){f->entropy, count, 1, 0};
        work.saved.energy = f->energy;
    }
    if (level >= BP_SUMS_TOTAL)
        work.mean_logprob = (bp_output_work){f->mean_logprob, count, 1, 0};
    return work;
}

/* ---- gradient ------------------------------------------------------------------------------------------------------ */

static float *random_upstream(size_t count)
{
    float *upstream = new_memory(4 * count);
    for (size_t i = 0; i < count; i++)
        upstream[i] = (float)(random_below(2001) - 1000.0f) / 500;
    return upstream;
}

statistics new_statistics(const rows *logits)
{
    statistics s = {.f = new_finished(logits->count, logits->targets_each)};
    bp_forward_work work = partials_work(logits, BP_SUMS_TOTAL, NULL, NULL);
    work.results = results_work(&s.f, BP_SUMS_TOTAL);
    run_forward(&work, (grid){logits->count, 1, 128});
    s.g = random_upstream((size_t)logits->count * logits->targets_each);
    s.h = random_upstream(logits->count);
    s.z = random_upstream(logits->count);
    s.m = random_upstream(logits->count);
    return s;
}

void free_statistics(statistics *s)
{
    free_finished(&s->f);
    free(s->g);
    free(s->h);
    free(s->z);
    free(s->m);
}

bp_gradient_work gradient_work(const rows *logits, const statistics *s, int32_t form, const rows *out)
{
    const int64_t count = logits->count, targets = logits->targets_each;
    bp_gradient_work work = {.tokens = tokens_work(logits),
                             .logits = logits_work(logits),
                             .saved = {s->f.max, s->f.log_sum, s->f.energy},
                             .logprob = {s->g, count * targets, targets, 1},
                             .out = out->data,
                             .out_stride = out->stride,
                             .out_dtype = out->dtype,
                             .narrows_in_place = out->data == logits->data && out->dtype != logits->dtype};
    if (form >= BP_SUMS_WEIGHTED)
        work.entropy = (bp_upstream_work){s->h, count, 1, 0};
    if (form >= BP_SUMS_TOTAL) {
        work.logsumexp = (bp_upstream_work){s->z, count, 1, 0};
        work.mean_logprob = (bp_upstream_work){s->m, count, 1, 0};
    }
    return work;
}

void run_gradient(const bp_gradient_work *work, int32_t form, grid g)
{
    char name[64];
    snprintf(name, sizeof name, "bp_gradient_%s_%s%s", bp_dtype_name((bp_dtype)work->logits.dtype),
             bp_dtype_name((bp_dtype)work->out_dtype), FORMS[form]);
    run(name, g, work);
}

void make_gradient(const rows *logits, const statistics *s, int32_t form, const rows *out, grid g)
{
    bp_gradient_work work = gradient_work(logits, s, form, out);
    run_gradient(&work, form, g);
}
