/* SPDX-License-Identifier: Apache-2.0 */
/* Broken rules and leaks of the program. */
#include "fake.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char broken[16384]; /* longer reports are cut */

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...)
{
    size_t length = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text + length, size - length, format, arguments);
    va_end(arguments);
}

static const char *sentence(const char *rule)
{
    static const struct {
        const char *id, *sentence;
    } misuses[] = {
#define FAKE_ROW(id, text, source) {#id, text},
#include "rules.h"
        BP_CUDA_MISUSES(FAKE_ROW)
#undef FAKE_ROW
    };
    for (size_t i = 0; i < sizeof misuses / sizeof *misuses; i++)
        if (strcmp(misuses[i].id, rule) == 0)
            return misuses[i].sentence;
    return "";
}

void fake_break(const char *rule, const char *format, ...)
{
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    append(broken, sizeof broken, "%s: %s (%s)\n", rule, text, sentence(rule));
}

FAKE_API void fake_cuda_record_broken(const char *rule, const char *text)
{
    pthread_mutex_lock(&fake.lock);
    append(broken, sizeof broken, "%s: %s\n", rule, text);
    pthread_mutex_unlock(&fake.lock);
}

FAKE_API const char *fake_cuda_broken(void)
{
    static _Thread_local char copy[sizeof broken];
    pthread_mutex_lock(&fake.lock);
    memcpy(copy, broken, sizeof copy);
    pthread_mutex_unlock(&fake.lock);
    return copy;
}

FAKE_API void fake_cuda_forgive(void)
{
    pthread_mutex_lock(&fake.lock);
    broken[0] = '\0';
    pthread_mutex_unlock(&fake.lock);
}

/* ---- leaks ------------------------------------------------------------------------------------------------------- */

static _Thread_local char leaks[4096];

static void count_object(fake_object *object, void *argument)
{
    size_t *counts = argument;
    bool own = object->kind == FAKE_STREAM && ((fake_stream *)object)->legacy;
    if (object->alive && !own)
        counts[object->kind]++;
}

static void say(const char *what, const fake_range *list)
{
    for (const fake_range *range = list; range != NULL; range = range->next)
        if (!range->freed)
            append(leaks, sizeof leaks, "%s of %llu bytes at 0x%llx\n", what, (unsigned long long)range->bytes,
                   (unsigned long long)range->address);
}

FAKE_API const char *fake_cuda_leaks(void)
{
    static const char *const names[] = {"streams", "events", "graphs", "executable graphs", "modules"};
    size_t counts[FAKE_ENTRY + 1] = {0};
    leaks[0] = '\0';
    pthread_mutex_lock(&fake.lock);
    fake_objects_each(count_object, counts);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (counts[i] > 0)
            append(leaks, sizeof leaks, "%zu %s\n", counts[i], names[i]);
    for (int i = 0; i < FAKE_DEVICES; i++)
        if (fake.contexts[i].references > 0)
            append(leaks, sizeof leaks, "%d references of the primary context of device %d\n",
                   fake.contexts[i].references, i);
    for (int i = 0; i < FAKE_DEVICES; i++)
        if (fake.pools[i].threshold > 0 || fake.pools[i].kept > 0)
            append(leaks, sizeof leaks, "the default memory pool of device %d: a threshold of %llu bytes, %llu kept\n",
                   i, (unsigned long long)fake.pools[i].threshold, (unsigned long long)fake.pools[i].kept);
    for (const fake_capture *capture = fake.captures; capture != NULL; capture = capture->next)
        append(leaks, sizeof leaks, "capture %llu\n", (unsigned long long)capture->id);
    for (const fake_physical *physical = fake.physicals; physical != NULL; physical = physical->next)
        append(leaks, sizeof leaks, "physical memory %llu of %llu bytes: %d handles, %d mappings\n",
               (unsigned long long)physical->handle, (unsigned long long)physical->bytes, physical->handles,
               physical->mappings);
    say("a reservation", fake.reservations);
    say("memory", fake.allocations);
    say("registered host memory", fake.pinned);
    say("a communicator's registration", fake.registered);
    pthread_mutex_unlock(&fake.lock);
    return leaks;
}
