/* SPDX-License-Identifier: Apache-2.0 */
#include "programs.h"

#include <bucketpool/pack.h>

#include <stdlib.h>
#include <string.h>

#include "support/harness.h"
#include "support/scenarios.h"

static void *allocated(size_t count, size_t bytes)
{
    void *memory = calloc(count + 1, bytes);
    assert_non_null(memory);
    return memory;
}

static void *grown(void *array, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return array;
    *capacity = 2 * *capacity + 64;
    void *more = realloc(array, *capacity * bytes);
    assert_non_null(more);
    return more;
}

static bool happens(uint32_t in_1000)
{
    return in_1000 > 0 && random_below(1000) < in_1000;
}

/* ---- programs ------------------------------------------------------------------------------------------------------ */

typedef struct draft {
    step_script *script;
    uint32_t *live;
    size_t live_count;
    const uint64_t *sizes;
} draft;

static void add_op(draft *d, bp_step_action action, uint32_t item)
{
    d->script->ops[d->script->op_count++] = (step_op){action, item};
}

static void add_mark(draft *d)
{
    d->script->marks[d->script->mark_count++] = (uint32_t)d->script->item_count;
    add_op(d, BP_STEP_MARK, 0);
}

static void add_item(draft *d, uint64_t bytes, const program_options *options)
{
    uint32_t item = (uint32_t)d->script->item_count++;
    d->script->items[item] = (bp_step_plan_item){
        .bytes = bytes,
        .offset = random_below(24) == 0 ? BP_STEP_OUTSIDE : 0,
        .stream = random_below(3) > 0 ? 0 : random_below(options->streams),
        .place = BP_STEP_NO_PLACE,
    };
    d->live[d->live_count++] = item;
    add_op(d, BP_STEP_ALLOCATE, item);
}

/* Mostly one of the last. */
static void free_one(draft *d)
{
    size_t i = d->live_count - 1 - random_below((uint32_t)d->live_count) % (1 + random_below((uint32_t)d->live_count));
    add_op(d, BP_STEP_FREE, d->live[i]);
    memmove(d->live + i, d->live + i + 1, (--d->live_count - i) * sizeof *d->live);
}

static void add_ops(draft *d, size_t items, const program_options *options)
{
    while (d->script->item_count < items) {
        if (d->live_count > 0 && random_below(5) < 2)
            free_one(d);
        else
            add_item(d, d->sizes[random_below(options->sizes)], options);
    }
}

static size_t op_of(const step_script *s, bp_step_action action, size_t item)
{
    size_t i = 0;
    while (i < s->op_count && !(s->ops[i].action == action && s->ops[i].item == item))
        i++;
    return i;
}

/* Frees what is live at the end, or carries it: not longer than to its own place in the next step, which has the same address. */
static void end_script(draft *d)
{
    while (d->live_count > 0) {
        const uint32_t item = d->live[d->live_count - 1];
        const uint32_t longest = (uint32_t)op_of(d->script, BP_STEP_ALLOCATE, item);
        if (longest == 0 || random_below(3) > 0) {
            free_one(d);
        } else {
            d->script->carried[item] = 1 + random_below(longest);
            d->live_count--;
        }
    }
}

static void make_scripts(program *p, const program_options *options, const uint64_t *sizes)
{
    const size_t items = options->items, common = random_below(options->items / 2 + 1);
    for (size_t k = 0; k < p->kind_count; k++) {
        step_script *s = &p->kinds[k];
        const step_script *first = &p->kinds[0];
        s->ops = allocated(2 * items + 5, sizeof *s->ops);
        s->items = allocated(items, sizeof *s->items);
        s->carried = allocated(items, sizeof *s->carried);
        draft d = {.script = s, .live = allocated(items, sizeof *d.live), .sizes = sizes};
        if (!options->without_marks && !(p->is_first && k == 0))
            add_mark(&d);
        if (k == 0) {
            add_ops(&d, common, options);
        } else {
            for (size_t i = 0; i < first->op_count && s->item_count < common; i++) {
                const step_op *op = &first->ops[i];
                if (op->action == BP_STEP_ALLOCATE) {
                    s->items[s->item_count++] = first->items[op->item];
                    d.live[d.live_count++] = op->item;
                } else if (op->action == BP_STEP_FREE) {
                    size_t at = 0;
                    while (d.live[at] != op->item)
                        at++;
                    memmove(d.live + at, d.live + at + 1, (--d.live_count - at) * sizeof *d.live);
                }
                if (op->action != BP_STEP_MARK)
                    s->ops[s->op_count++] = *op;
            }
        }
        if (s->item_count < items && p->kind_count > 1) {
            add_item(&d, 40000 + 700 * k, options); /* of this kind alone */
            s->items[s->item_count - 1].offset = 0;
        }
        add_ops(&d, items / 2 > s->item_count ? items / 2 : s->item_count, options);
        if (!options->without_marks && random_below(3) == 0 && s->item_count > 0 && s->item_count < items)
            add_mark(&d);
        add_ops(&d, items - random_below((uint32_t)(items - s->item_count + 1) / 2 + 1), options);
        end_script(&d);
        free(d.live);
    }
}

/* The place of an op in a time in which all kinds follow each other. */
static uint64_t begin_of(const program *p, size_t kind)
{
    uint64_t begin = 0;
    for (size_t k = 0; k < kind; k++)
        begin += p->kinds[k].op_count + 1;
    return begin;
}

static bool is_common(const program *p, size_t kind, size_t item, size_t common)
{
    return kind > 0 && item < common && item < p->kinds[kind].item_count;
}

static void pack(program *p, size_t common)
{
    SCOPED(bp_packing_destroy) bp_packing *packing = NULL;
    assert_ok(bp_packing_create(&packing));
    size_t *numbers[PROGRAM_KINDS] = {0};
    for (size_t k = 0; k < p->kind_count; k++) {
        const step_script *s = &p->kinds[k];
        numbers[k] = allocated(s->item_count, sizeof *numbers[k]);
        for (size_t i = 0; i < s->item_count; i++) {
            if (s->items[i].offset == BP_STEP_OUTSIDE)
                continue;
            if (is_common(p, k, i, common))
                numbers[k][i] = numbers[0][i];
            else
                assert_ok(bp_packing_add_item(packing, (s->items[i].bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT,
                                              &numbers[k][i]));
            size_t begin = op_of(s, BP_STEP_ALLOCATE, i), end = op_of(s, BP_STEP_FREE, i);
            assert_ok(bp_packing_add_interval(packing, numbers[k][i], begin_of(p, k) + begin, begin_of(p, k) + end));
            for (size_t next = 0; s->carried[i] > 0 && next < p->kind_count; next++) {
                uint64_t first = begin_of(p, next), last = first + s->carried[i];
                uint64_t all = first + p->kinds[next].op_count;
                assert_ok(bp_packing_add_interval(packing, numbers[k][i], first, last < all ? last : all));
            }
        }
    }
    uint64_t *offsets = allocated(bp_packing_get_info(packing)->item_count, sizeof *offsets);
    bp_pack_config config;
    assert_ok(bp_pack_config_init(&config, sizeof config));
    config.work = 1 << 14;
    bp_pack_result result = {.size = sizeof result};
    assert_ok(bp_pack(packing, &config, offsets, &result));
    p->slab_bytes = result.bytes * BP_STEP_ALIGNMENT;
    for (size_t k = 0; k < p->kind_count; k++) {
        for (size_t i = 0; i < p->kinds[k].item_count; i++) {
            bp_step_plan_item *item = &p->kinds[k].items[i];
            if (item->offset != BP_STEP_OUTSIDE)
                item->offset = offsets[numbers[k][i]] * BP_STEP_ALIGNMENT;
        }
        free(numbers[k]);
    }
    free(offsets);
}

static bool overlap(const bp_step_plan_item *a, const bp_step_plan_item *b)
{
    return a->offset != BP_STEP_OUTSIDE && b->offset != BP_STEP_OUTSIDE && a->offset < b->offset + b->bytes &&
           b->offset < a->offset + a->bytes;
}

/* The next user in the kind, which follows itself. */
static void set_successors(step_script *s)
{
    for (size_t i = 0; i < s->item_count; i++) {
        size_t next = i;
        do
            next = (next + 1) % s->item_count;
        while (next != i && !overlap(&s->items[i], &s->items[next]));
        s->items[i].precedes_stream = s->items[next].stream != s->items[i].stream;
    }
}

/* Items at the same place and address in all kinds. */
static size_t common_items(const program *p)
{
    size_t common = p->kinds[0].item_count;
    for (size_t k = 1; k < p->kind_count; k++) {
        size_t i = 0;
        while (i < common && i < p->kinds[k].item_count && p->kinds[k].items[i].bytes == p->kinds[0].items[i].bytes &&
               p->kinds[k].items[i].stream == p->kinds[0].items[i].stream &&
               p->kinds[k].items[i].offset == p->kinds[0].items[i].offset)
            i++;
        common = i;
    }
    return p->kind_count > 1 ? common : 0;
}

program *program_create(const program_options *options)
{
    program *p = allocated(1, sizeof *p);
    p->kind_count = options->kinds;
    p->stream_count = options->streams;
    p->default_stream = random_below(options->streams + 1);
    p->is_first = options->kinds > 1 && random_below(2) == 0 && !options->without_marks;
    uint64_t *sizes = allocated(options->sizes, sizeof *sizes);
    for (size_t i = 0; i < options->sizes; i++)
        sizes[i] = 1 + random_below(1u << (8 + random_below(7)));
    if (options->has_large)
        sizes[0] = 50000 + random_below(200000);
    make_scripts(p, options, sizes);
    free(sizes);
    pack(p, common_items(p));
    for (size_t k = 0; k < p->kind_count; k++)
        set_successors(&p->kinds[k]);
    return p;
}

void program_destroy(program **p)
{
    if (*p == NULL)
        return;
    for (size_t k = 0; k < (*p)->kind_count; k++) {
        free((*p)->kinds[k].ops);
        free((*p)->kinds[k].items);
        free((*p)->kinds[k].carried);
    }
    free(*p);
    *p = NULL;
}

static void disturb(bp_step_plan_item *items, size_t count, uint32_t *marks, size_t *mark_count, uint64_t slab_bytes,
                    uint32_t streams)
{
    for (size_t i = 0; i < count; i++) {
        bp_step_plan_item *item = &items[i], *other = &items[random_below((uint32_t)count)];
        const uint64_t taken = (item->bytes + BP_STEP_ALIGNMENT - 1) / BP_STEP_ALIGNMENT;
        switch (random_below(8)) {
        case 0:
        case 1:
            if (taken <= slab_bytes / BP_STEP_ALIGNMENT)
                item->offset = random_below((uint32_t)(slab_bytes / BP_STEP_ALIGNMENT - taken) + 1) * BP_STEP_ALIGNMENT;
            break;
        case 2: item->stream = random_below(streams); break;
        case 3: {
            bp_step_plan_item swapped = *item;
            *item = *other;
            *other = swapped;
            break;
        }
        case 4: item->precedes_stream = !item->precedes_stream; break;
        default: break;
        }
    }
    *mark_count = random_below(2);
    marks[0] = random_below((uint32_t)count + 1);
}

bp_step_plan *program_plan(const program *p, bool is_wrong)
{
    uint64_t handles[BP_STEP_PLAN_STREAMS];
    for (size_t i = 0; i < p->stream_count; i++)
        handles[i] = i == p->default_stream ? 0 : 0x1000 + i;
    bp_step_plan_kind kinds[PROGRAM_KINDS];
    bp_step_plan_item *items[PROGRAM_KINDS];
    uint32_t marks[PROGRAM_KINDS][3];
    memset(kinds, 0, sizeof kinds);
    for (size_t k = 0; k < p->kind_count; k++) {
        const step_script *s = &p->kinds[k];
        size_t mark_count = s->mark_count;
        items[k] = allocated(s->item_count, sizeof *items[k]);
        memcpy(items[k], s->items, s->item_count * sizeof *items[k]);
        memcpy(marks[k], s->marks, sizeof marks[k]);
        if (is_wrong)
            disturb(items[k], s->item_count, marks[k], &mark_count, p->slab_bytes, p->stream_count);
        kinds[k] = (bp_step_plan_kind){
            .items = items[k],
            .item_count = s->item_count,
            .marks = marks[k],
            .mark_count = mark_count,
            .is_first = p->is_first && k == 0,
            .steps = 1,
        };
    }
    bp_step_plan *plan = NULL;
    assert_ok(bp_step_plan_from_info(&(bp_step_plan_info){.bytes = p->slab_bytes,
                                                          .kinds = kinds,
                                                          .kind_count = p->kind_count,
                                                          .streams = handles,
                                                          .stream_count = p->stream_count},
                                     &plan));
    for (size_t k = 0; k < p->kind_count; k++)
        free(items[k]);
    return plan;
}

/* ---- runs ---------------------------------------------------------------------------------------------------------- */

void runner_init(runner *run, const program *p, reference *r, const run_deviations *deviations)
{
    *run = (runner){.program = p, .r = r};
    if (deviations != NULL)
        run->deviations = *deviations;
    uint64_t taken = 0;
    /* The default stream is 0 for the caller as well. */
    for (size_t i = 0; i < p->stream_count; i++) {
        if (i == p->default_stream)
            continue;
        do
            run->streams[i] = 1 + random_below(BP_STEP_STREAMS - 1);
        while (taken >> run->streams[i] & 1);
        taken |= UINT64_C(1) << run->streams[i];
    }
}

void runner_finish(runner *run)
{
    free(run->ops);
    free(run->live);
}

static void add_run_op(runner *run, run_op op)
{
    run->ops = grown(run->ops, run->op_count, &run->op_capacity, sizeof *run->ops);
    run->ops[run->op_count++] = op;
}

/* An allocation that the step does not have: of a size that it has, or not. */
static void insert(runner *run, const step_script *s, uint32_t key)
{
    const bp_step_plan_item *item = &s->items[random_below((uint32_t)s->item_count)];
    add_run_op(run, (run_op){.action = BP_STEP_ALLOCATE,
                             .key = key,
                             .bytes = random_below(2) ? item->bytes : 1 + random_below(20000),
                             .stream = random_below(2) ? run->streams[item->stream] : random_below(BP_STEP_STREAMS + 2),
                             .planned = BP_STEP_OUTSIDE,
                             .delay = 1 + random_below((uint32_t)s->op_count)});
}

/* The ops of the step, with deviations. */
static void prepare(runner *run, const step_script *s)
{
    const run_deviations *d = &run->deviations;
    bool *without_free = allocated(s->item_count, sizeof *without_free);
    uint32_t inserted = (uint32_t)s->item_count;
    run->op_count = 0;
    for (size_t i = 0; i < s->op_count && !happens(d->leaves); i++) {
        const step_op *op = &s->ops[i];
        if (op->action == BP_STEP_MARK) {
            if (!happens(d->drops_marks))
                add_run_op(run, (run_op){.action = BP_STEP_MARK});
            continue;
        }
        if (op->action == BP_STEP_FREE) {
            if (!without_free[op->item])
                add_run_op(run, (run_op){.action = BP_STEP_FREE, .key = op->item});
            continue;
        }
        const bp_step_plan_item *item = &s->items[op->item];
        without_free[op->item] = happens(d->omits);
        if (happens(d->adds_marks))
            add_run_op(run, (run_op){.action = BP_STEP_MARK});
        if (happens(d->inserts))
            insert(run, s, inserted++);
        if (without_free[op->item])
            continue;
        run_op allocation = {.action = BP_STEP_ALLOCATE,
                             .key = op->item,
                             .bytes = item->bytes,
                             .stream = run->streams[item->stream],
                             .planned = item->offset,
                             .carried = s->carried[op->item]};
        if (happens(d->frees_late)) {
            without_free[op->item] = true;
            allocation.delay = 1 + random_below(2 * (uint32_t)s->op_count);
            allocation.carried = 0;
        }
        add_run_op(run, allocation);
        if (run->op_count > 1 && run->ops[run->op_count - 2].action == BP_STEP_ALLOCATE && happens(d->swaps)) {
            run->ops[run->op_count - 1] = run->ops[run->op_count - 2];
            run->ops[run->op_count - 2] = allocation;
        }
    }
    free(without_free);
}

void runner_begin(runner *run)
{
    const program *p = run->program;
    size_t kind = 0;
    if (run->step > 0)
        kind = p->is_first ? 1 + random_below((uint32_t)p->kind_count - 1) : random_below((uint32_t)p->kind_count);
    /* The step ended before the op that frees it. */
    for (size_t i = 0; i < run->live_count; i++) {
        if (run->live[i].step == run->step && run->live[i].carried == 0 && run->live[i].due == 0)
            run->live[i].due = run->tick + 1;
    }
    run->step++;
    run->at = 0;
    prepare(run, &p->kinds[kind]);
}

static void free_live(runner *run, size_t i)
{
    if (run->live[i].is_served)
        reference_free(run->r, run->live[i].offset);
    run->live[i] = run->live[--run->live_count];
}

static void free_due(runner *run)
{
    for (size_t i = run->live_count; i > 0; i--) {
        const run_live *live = &run->live[i - 1];
        if ((live->due > 0 && live->due <= run->tick) ||
            (live->carried > 0 && live->step < run->step &&
             (live->carried <= run->at || live->step + 1 < run->step || run->at >= run->op_count)))
            free_live(run, i - 1);
    }
}

static void allocate(runner *run, const run_op *op)
{
    const run_deviations *d = &run->deviations;
    uint64_t offset = BP_STEP_OUTSIDE;
    bp_step_outcome outcome = reference_allocate(run->r, op->bytes, op->stream, &offset);
    if (op->planned != BP_STEP_OUTSIDE) {
        run->planned++;
        run->missed += outcome != BP_STEP_SERVED || offset != op->planned;
    }
    if (outcome != BP_STEP_SERVED && happens(d->anywhere))
        outcome = reference_allocate_anywhere(run->r, op->bytes, op->stream, &offset);
    run->served += outcome == BP_STEP_SERVED;
    run->live = grown(run->live, run->live_count, &run->live_capacity, sizeof *run->live);
    run->live[run->live_count++] = (run_live){.offset = offset,
                                              .due = op->delay > 0 ? run->tick + op->delay : 0,
                                              .key = op->key,
                                              .step = run->step,
                                              .carried = op->carried,
                                              .is_served = outcome == BP_STEP_SERVED};
    if (outcome == BP_STEP_SERVED && happens(d->uses))
        reference_use_on(run->r, offset + random_below((uint32_t)op->bytes), random_below(8));
}

static void disturb_run(runner *run)
{
    const run_deviations *d = &run->deviations;
    if (happens(d->pauses))
        reference_pause(run->r, !run->r->is_paused);
    if (happens(d->captures))
        run->r->captured ^= UINT64_C(1) << run->streams[random_below(run->program->stream_count)];
    if (happens(d->mistakes)) {
        uint64_t offset = random_below((uint32_t)(run->r->slab_bytes / BP_STEP_ALIGNMENT) + 2) * BP_STEP_ALIGNMENT;
        reference_use_on(run->r, offset + random_below(2), random_below(BP_STEP_STREAMS + 8));
        bp_step_block block;
        if (!bp_step_server_find(run->r->server, offset, &block) || block.offset != offset)
            reference_free(run->r, offset);
    }
}

bool runner_advance(runner *run)
{
    run->tick++;
    free_due(run);
    if (run->at >= run->op_count)
        return false;
    const run_op *op = &run->ops[run->at++];
    disturb_run(run);
    if (op->action == BP_STEP_MARK)
        reference_mark(run->r);
    else if (op->action == BP_STEP_ALLOCATE)
        allocate(run, op);
    for (size_t i = run->live_count; op->action == BP_STEP_FREE && i > 0; i--) {
        if (run->live[i - 1].step == run->step && run->live[i - 1].key == op->key) {
            free_live(run, i - 1);
            break;
        }
    }
    return true;
}

void runner_step(runner *run)
{
    runner_begin(run);
    while (runner_advance(run)) {
    }
}

void runner_free_all(runner *run)
{
    while (run->live_count > 0)
        free_live(run, run->live_count - 1);
}
