/* Tensors for kernels, and their launches on the emulation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "launches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../planner/scenarios.h"
#include "../support/reference.h"
#include "kernels.h"

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

static char *row_at(const rows *r, uint32_t row)
{
    return r->data + (ptrdiff_t)((int64_t)row * r->stride) * (ptrdiff_t)element_bytes(r->dtype);
}

rows moved_rows(const rows *r, uint32_t shift, uint32_t gap)
{
    rows moved = empty_rows(r->dtype, r->count, r->columns, shift, gap);
    for (uint32_t i = 0; i < r->count; i++) {
        memcpy(row_at(&moved, i), row_at(r, i), r->columns * element_bytes(r->dtype));
        moved.targets[i] = r->targets[i];
    }
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

void run(const char *kernel, grid g, const void *work)
{
    for (const fake_kernel *k = fake_kernels; k->name != NULL; k++)
        if (strcmp(k->name, kernel) == 0) {
            k->run((const unsigned[]){g.blocks, g.parts, 1}, (const unsigned[]){g.threads, 1, 1}, 0, work);
            return;
        }
    fail_msg("unknown kernel %s", kernel);
}

static bp_tokens_work tokens_work(const rows *logits)
{
    return (bp_tokens_work){.batch = 1,
                            .sequence = logits->count,
                            .target = logits->targets,
                            .target_batch_stride = logits->count,
                            .target_stride = 1,
                            .target_is_64 = 1};
}

static bp_logits_work logits_work(const rows *logits)
{
    return (bp_logits_work){.data = logits->data,
                            .batch_stride = logits->stride * logits->count,
                            .stride = logits->stride,
                            .columns = logits->columns,
                            .dtype = logits->dtype,
                            .scale = 1};
}

bp_partials_work partials_work(const rows *logits, int entropy, bp_partial *partials)
{
    return (bp_partials_work){tokens_work(logits), logits_work(logits), partials, entropy};
}

void make_partials(const rows *logits, int entropy, grid g, bp_partial *partials)
{
    char name[64];
    bp_partials_work work = partials_work(logits, entropy, partials);
    snprintf(name, sizeof name, "bp_partials_%s%s", bp_dtype_name(logits->dtype), entropy ? "_entropy" : "");
    run(name, g, &work);
}

/* ---- finish -------------------------------------------------------------------------------------------------------- */

finished new_finished(uint32_t tokens)
{
    return (finished){new_memory(4 * (size_t)tokens), new_memory(4 * (size_t)tokens), new_memory(4 * (size_t)tokens),
                      new_memory(4 * (size_t)tokens), new_memory(4 * (size_t)tokens)};
}

void free_finished(finished *f)
{
    free(f->logprob);
    free(f->entropy);
    free(f->max);
    free(f->log_sum);
    free(f->energy);
}

bp_finish_work finish_work(const finished *f, const bp_tokens_work *tokens, const bp_partial *partials, uint32_t ranks,
                           uint64_t vocab)
{
    int64_t count = (int64_t)tokens->sequence;
    return (bp_finish_work){.tokens = *tokens,
                            .partials = partials,
                            .ranks = ranks,
                            .scale = 1,
                            .vocab = vocab,
                            .logprob = f->logprob,
                            .logprob_batch_stride = count,
                            .logprob_stride = 1,
                            .entropy = f->entropy,
                            .entropy_batch_stride = count,
                            .entropy_stride = 1,
                            .saved = {f->max, f->log_sum, f->energy}};
}

/* ---- gradient ------------------------------------------------------------------------------------------------------ */

statistics new_statistics(const rows *logits)
{
    statistics s = {new_finished(logits->count), new_memory(4 * (size_t)logits->count),
                    new_memory(4 * (size_t)logits->count)};
    bp_partial *partials = new_memory(logits->count * sizeof *partials);
    make_partials(logits, 1, (grid){logits->count, 1, 128}, partials);
    bp_tokens_work tokens = tokens_work(logits);
    bp_finish_work work = finish_work(&s.f, &tokens, partials, 1, logits->columns);
    run("bp_finish", (grid){1, 1, 128}, &work);
    for (uint32_t i = 0; i < logits->count; i++) {
        s.g[i] = (float)(random_below(2001) - 1000.0f) / 500;
        s.h[i] = (float)(random_below(2001) - 1000.0f) / 500;
    }
    free(partials);
    return s;
}

void free_statistics(statistics *s)
{
    free_finished(&s->f);
    free(s->g);
    free(s->h);
}

bp_gradient_work gradient_work(const rows *logits, const statistics *s, const rows *out)
{
    return (bp_gradient_work){.tokens = tokens_work(logits),
                              .logits = logits_work(logits),
                              .saved = {s->f.max, s->f.log_sum, s->f.energy},
                              .logprob_grad = s->g,
                              .logprob_grad_stride = 1,
                              .entropy_grad = s->h,
                              .entropy_grad_stride = 1,
                              .out = out->data,
                              .out_stride = out->stride,
                              .out_dtype = out->dtype,
                              .narrows_in_place = out->data == logits->data && out->dtype != logits->dtype};
}

void run_gradient(const bp_gradient_work *work, grid g)
{
    char name[64];
    snprintf(name, sizeof name, "bp_gradient_%s_%s%s", bp_dtype_name((bp_dtype)work->logits.dtype),
             bp_dtype_name((bp_dtype)work->out_dtype), work->entropy_grad != NULL ? "_entropy" : "");
    run(name, g, work);
}

void make_gradient(const rows *logits, const statistics *s, const rows *out, grid g)
{
    bp_gradient_work work = gradient_work(logits, s, out);
    run_gradient(&work, g);
}
