/* SPDX-License-Identifier: Apache-2.0 */
/* FAKE_CUDA: configures the driver for programs that are not linked with it. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const char *text)
{
    char *end = NULL;
    uint64_t value = strtoull(text, &end, 0);
    switch (*end) {
    case 'k': return value << 10;
    case 'm': return value << 20;
    case 'g': return value << 30;
    default: return value;
    }
}

/* NAME:NTH:ERROR */
static bool fail(char *text)
{
    char *name = strtok_r(text, ":", &text), *nth = strtok_r(NULL, ":", &text), *error = strtok_r(NULL, ":", &text);
    if (name == NULL || nth == NULL || error == NULL)
        return false;
    pthread_mutex_unlock(&fake.lock);
    bool known = fake_cuda_fail(name, number(nth), (int)number(error));
    pthread_mutex_lock(&fake.lock);
    return known;
}

/* NUMBER:VALUE */
static bool set_attribute(const char *text)
{
    const char *colon = strchr(text, ':');
    uint64_t attribute = number(text);
    if (colon == NULL || attribute >= sizeof fake.attributes / sizeof *fake.attributes)
        return false;
    fake.attributes[attribute] = (int)number(colon + 1);
    return true;
}

static void report(void)
{
    fprintf(stderr, "%s%s", fake_cuda_broken(), fake_cuda_leaks());
}

static bool set(fake_cuda_config *config, const char *key, char *value)
{
    const struct {
        const char *key;
        int *small;
        uint64_t *large;
    } fields[] = {
        {"devices", &config->devices, NULL},
        {"memory", NULL, &config->memory},
        {"version", &config->version, NULL},
        {"granularity", NULL, &config->granularity},
        {"recommended", NULL, &config->recommended},
        {"multicast", NULL, &config->multicast},
        {"fabric", &config->fabric, NULL},
        {"peers", &config->peers, NULL},
        {"vmm_unsafe", &config->vmm_unsafe, NULL},
        {"poison", NULL, &config->poison},
        {"seed", NULL, &config->seed},
        {"host_faults", &config->host_faults, NULL},
        {"serial_host", &config->serial_host, NULL},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strcmp(fields[i].key, key) != 0)
            continue;
        if (fields[i].small != NULL)
            *fields[i].small = (int)number(value);
        else if (fields[i].large != NULL)
            *fields[i].large = number(value);
        return true;
    }
    if (strcmp(key, "delay_us") == 0)
        return config->delay_us = (uint32_t)number(value), true;
    if (strcmp(key, "kernels") == 0)
        return config->kernels = fake_kernels_keep_path(value), true;
    if (strcmp(key, "fail") == 0)
        return fail(value);
    if (strcmp(key, "attribute") == 0)
        return set_attribute(value);
    if (strcmp(key, "report") == 0)
        return number(value) == 0 || atexit(report) == 0;
    return false;
}

void fake_read_environment(fake_cuda_config *config)
{
    const char *text = getenv("FAKE_CUDA");
    char *copy = text != NULL ? strdup(text) : NULL, *rest = copy;
    if (copy == NULL)
        return;
    for (char *item = strtok_r(copy, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest)) {
        char *value = strchr(item, '=');
        if (value != NULL)
            *value++ = '\0';
        if (value == NULL || !set(config, item, value)) {
            fprintf(stderr, "FAKE_CUDA: \"%s\" is not one of its settings, or has no such value\n", item);
            abort();
        }
    }
    if (strstr(text, "granularity=") != NULL && strstr(text, "recommended=") == NULL)
        config->recommended = config->granularity;
    free(copy);
}
