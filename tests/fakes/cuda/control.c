/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration and reset of the emulated driver. */
#include "fake.h"

#include <stdlib.h>
#include <string.h>

fake_driver fake = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .epoch = 1};

static _Thread_local fake_thread this_thread;

fake_thread *fake_this_thread(void)
{
    if (this_thread.epoch != fake.epoch) {
        bool inside = this_thread.in_host_function;
        this_thread = (fake_thread){.epoch = fake.epoch, .number = ++fake.threads, .in_host_function = inside};
    }
    return &this_thread;
}

void *fake_new(size_t bytes)
{
    void *memory = calloc(1, bytes);
    if (memory == NULL)
        abort();
    return memory;
}

/* splitmix64, by Sebastiano Vigna. */
uint64_t fake_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

FAKE_API void fake_cuda_config_init(fake_cuda_config *config)
{
    *config = (fake_cuda_config){
        .devices = 1,
        .memory = UINT64_C(256) << 20,
        .version = 13000,
        .granularity = 65536,
        .recommended = 65536,
        .fabric = NOT_PERMITTED,
        .peers = 1,
        .vmm_unsafe = 1,
        .poison = UINT64_C(64) << 20,
        .seed = 1,
    };
}

static void set_up(const fake_cuda_config *config)
{
    fake.config = *config;
    fake.config.kernels = fake_kernels_keep_path(config->kernels);
    if (fake.config.devices > FAKE_DEVICES)
        fake.config.devices = FAKE_DEVICES;
    fake.random = config->seed;
    for (size_t i = 0; i < sizeof fake.attributes / sizeof *fake.attributes; i++)
        fake.attributes[i] = -1;
    for (int i = 0; i < FAKE_DEVICES; i++)
        fake.contexts[i] = (fake_context){.device = i};
    fake.ready = true;
}

void fake_get_ready(void)
{
    if (fake.ready)
        return;
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    set_up(&config);
    fake_read_environment(&fake.config);
    if (fake.config.devices > FAKE_DEVICES)
        fake.config.devices = FAKE_DEVICES;
    fake.random = fake.config.seed;
}

FAKE_API void fake_cuda_configure(const fake_cuda_config *config)
{
    pthread_mutex_lock(&fake.lock);
    set_up(config);
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API void fake_cuda_set_attribute(int attribute, int value)
{
    pthread_mutex_lock(&fake.lock);
    fake_get_ready();
    if (attribute >= 0 && (size_t)attribute < sizeof fake.attributes / sizeof *fake.attributes)
        fake.attributes[attribute] = value;
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API void fake_cuda_reset(void)
{
    pthread_mutex_lock(&fake.lock);
    for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next)
        fake_await_stream(stream);
    for (fake_stream *stream = fake.streams; stream != NULL; stream = stream->next) {
        stream->object.alive = false;
        pthread_cond_broadcast(&stream->arrived);
    }
    while (fake.served_streams > 0)
        pthread_cond_wait(&fake.changed, &fake.lock);
    fake_captures_forget();
    fake_objects_forget();
    fake_memory_forget();
    fake_forget_counts();
    for (int i = 0; i < FAKE_DEVICES; i++)
        fake.contexts[i] = (fake_context){.device = i};
    fake.streams = NULL;
    fake.started = false;
    fake.ready = false;
    fake.epoch++;
    pthread_mutex_unlock(&fake.lock);
    fake_cuda_forgive();
}
