/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "try.h"

#define BETA_1 0.9
#define BETA_2 0.95

/* ---- making it ------------------------------------------------------------------------------------------------------ */

static bp_status make_device(trainer *t, const launched *l)
{
    const options *o = t->options;
    bp_cuda_config config;
    if (!o->cuda) {
        TRY(bp_device_create_host(NULL, &t->device));
    } else {
        TRY(bp_cuda_config_init(&config, sizeof config));
        config.ordinal = (int32_t)l->local_rank;
        TRY(bp_device_create_cuda(&config, &t->device));
        TRY(driver_init(&t->cuda, config.ordinal));
    }
    t->comm = t->control;
    if (o->cuda && (t->sharding.ranks > 1 || o->registered || o->nccl != NULL)) {
        TRY(nccl_ranks_create(o->nccl, t->device, t->control, &t->nccl));
        t->comm = t->nccl.wrapped;
    }
    /* operations of a unit, both ways, and two for each bucket */
    size_t calls = t->model.units * 48 + 2 * t->sharding.count + 32;
    return engine_create(o->cuda ? ENGINE_CUDA : ENGINE_HOST, &t->cuda, calls, &t->engine);
}

static bp_status make_streams(trainer *t)
{
    const options *o = t->options;
    bp_event **const events[] = {&t->start, &t->outside_gathered, &t->outside_ready, &t->reduced};
    struct {
        const char *name;
        unsigned bit;
        bp_stream **stream;
    } streams[] = {{"gather", SLOW_GATHER, &t->gather},
                   {"compute", SLOW_COMPUTE, &t->compute},
                   {"reduce", SLOW_REDUCE, &t->reduce}};
    for (int i = 0; i < 3; i++) {
        TRY(bp_stream_create(t->device, streams[i].name, streams[i].stream));
        if ((o->slow & streams[i].bit) != 0)
            engine_slow_down(&t->engine, *streams[i].stream, (unsigned)o->slow_us);
    }
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        TRY(bp_event_create(t->device, events[i]));
    for (uint32_t u = 0; u < t->model.units; u++) {
        TRY(bp_event_create(t->device, &t->gathered[u]));
        TRY(bp_event_create(t->device, &t->backward_done[u]));
    }
    return BP_OK;
}

static uint64_t pages(uint64_t bytes)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static bp_status make_staging(trainer *t)
{
    staging *s = &t->staging;
    uint64_t inputs = pages(net_input_bytes(&t->net)), losses = pages(t->net.tokens * sizeof(float)), transfer = 0;
    for (size_t i = 0; i < t->sharding.count; i++) {
        uint64_t bytes = pages(t->sharding.list[i].shard * sizeof(float));
        transfer = bytes > transfer ? bytes : transfer;
    }
    s->bytes = inputs + losses + transfer;
    s->memory = aligned_alloc((size_t)sysconf(_SC_PAGESIZE), s->bytes);
    size_t max = t->max_rows * t->options->length;
    t->my_losses = calloc(max, sizeof *t->my_losses);
    t->all_losses = calloc(max * t->sharding.ranks, sizeof *t->all_losses);
    if (s->memory == NULL || t->my_losses == NULL || t->all_losses == NULL)
        return fail_memory();
    s->inputs = s->memory;
    s->losses = (float *)(s->memory + inputs);
    s->transfer = s->memory + inputs + losses;
    return bp_device_pin(t->device, s->memory, s->bytes);
}

static bp_status make_registration(trainer *t)
{
    bp_registration_entry entries[2];
    for (int i = 0; i < 2; i++) {
        TRY(bp_registration_entry_init(&entries[i], sizeof entries[i]));
        entries[i].comm = t->comm;
        entries[i].group = i == 0 ? "param" : "grad";
        entries[i].traffic = i == 0 ? BP_TRAFFIC_GATHER : BP_TRAFFIC_REDUCE_SCATTER;
    }
    return bp_registration_create(t->pool, entries, 2, &t->registration);
}

static bp_status make_profile(trainer *t)
{
    bp_profile_config config;
    const bp_plan *const plans[] = {t->sharding.plan};
    TRY(bp_profile_config_init(&config, sizeof config));
    config.directory = t->options->profile;
    config.max_entries = t->options->max_entries;
    config.rank = t->sharding.rank;
    config.ranks = t->sharding.ranks;
    config.plans = plans;
    return bp_profile_create(&t->pool, 1, &config, &t->profile);
}

bp_status trainer_create(const options *o, const launched *l, bp_comm *control, trainer *t)
{
    *t = (trainer){.options = o, .control = control};
    uint32_t rank = bp_comm_get_info(control)->rank, ranks = bp_comm_get_info(control)->ranks;
    model_make(o, &t->model);
    t->rows = data_rows(o, rank, ranks);
    t->max_rows = data_max_rows(o, ranks);
    t->net.tokens = (uint32_t)((t->rows.end - t->rows.first) * o->length);
    TRY(sharding_create(&t->model, rank, ranks, &t->sharding));
    TRY(make_device(t, l));
    TRY(make_streams(t));
    TRY(memory_create(t));
    TRY(make_staging(t));
    TRY(first_values(t));
    if (o->registered)
        TRY(make_registration(t));
    if (o->offload_every > 0)
        TRY(bp_offload_create(t->pool, NULL, &t->offload));
    return o->profile != NULL ? make_profile(t) : BP_OK;
}

void trainer_destroy(trainer *t)
{
    bp_event **const events[] = {&t->start, &t->outside_gathered, &t->outside_ready, &t->reduced};
    bp_profile_destroy(&t->profile);
    graph_forget(t);
    bp_registration_destroy(&t->registration);
    bp_offload_destroy(&t->offload);
    bp_pool_destroy(&t->pool);
    if (t->staging.inputs != NULL)
        (void)bp_device_unpin(t->device, t->staging.memory, t->staging.bytes);
    free(t->staging.memory);
    free(t->my_losses);
    free(t->all_losses);
    free(t->lasting);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        bp_event_destroy(events[i]);
    for (uint32_t u = 0; u < t->model.units; u++) {
        bp_event_destroy(&t->gathered[u]);
        bp_event_destroy(&t->backward_done[u]);
    }
    bp_stream_destroy(&t->gather);
    bp_stream_destroy(&t->reduce);
    bp_stream_destroy(&t->compute);
    engine_destroy(&t->engine);
    nccl_ranks_destroy(&t->nccl);
    driver_finish(&t->cuda);
    bp_device_destroy(&t->device);
    sharding_destroy(&t->sharding);
}

/* ---- a step --------------------------------------------------------------------------------------------------------- */

static void set_inputs(trainer *t, uint64_t step)
{
    uint32_t *ids = t->staging.inputs, *targets = ids + t->net.tokens;
    const float corrections[2] = {(float)(1 / (1 - pow(BETA_1, (double)(step + 1)))),
                                  (float)(1 / (1 - pow(BETA_2, (double)(step + 1))))};
    data_make(t->options, step, t->rows, ids, targets);
    memcpy(targets + t->net.tokens, corrections, sizeof corrections);
}

/* In the order of the global batch, whoever has which rows. */
static bp_status mean_loss(trainer *t, double *loss)
{
    const options *o = t->options;
    uint64_t max = t->max_rows * o->length;
    double sum = 0;
    memcpy(t->my_losses, t->staging.losses, t->net.tokens * sizeof(float));
    TRY(bp_comm_exchange(t->control, t->my_losses, max * sizeof(float), t->all_losses));
    for (uint32_t rank = 0; rank < t->sharding.ranks; rank++) {
        row_range rows = data_rows(o, rank, t->sharding.ranks);
        for (uint64_t i = 0; i < (rows.end - rows.first) * o->length; i++)
            sum += t->all_losses[rank * max + i];
    }
    *loss = sum / (double)(o->rows * o->length);
    return BP_OK;
}

bp_status trainer_step(trainer *t, uint64_t step, double *loss)
{
    const options *o = t->options;
    if (t->offload != NULL)
        TRY(restore_all(t));
    bp_pool_set_step(t->pool, step);
    if (t->profile != NULL)
        TRY(bp_profile_step(t->profile, step));
    engine_begin_step(&t->engine);
    set_inputs(t, step);
    TRY(o->graph && step > 0 ? graph_step(t) : step_enqueue(t)); /* code that the first use loads is loaded by then */
    TRY(bp_stream_synchronize(t->compute));
    TRY(mean_loss(t, loss));
    if (o->check_gradients && step == 0)
        TRY(gradients_check(t, &t->gradients));
    return t->offload != NULL && (step + 1) % o->offload_every == 0 ? offload_all(t) : BP_OK;
}
