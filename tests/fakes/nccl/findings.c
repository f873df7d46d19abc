/* SPDX-License-Identifier: Apache-2.0 */
/* Broken rules, and queries of registrations. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

#define MAX_FINDINGS 64
#define MAX_ENDED 256

static struct {
    pthread_mutex_t lock; /* innermost lock; no function is called under it */
    struct {
        fake_nccl_rule rule;
        char text[200];
    } list[MAX_FINDINGS];
    unsigned found, total, per_rule[FAKE_NCCL_RULE_COUNT];
    void *ended[MAX_ENDED];
    unsigned ended_count;
} findings = {.lock = PTHREAD_MUTEX_INITIALIZER};

static const struct {
    const char *name, *sentence, *source;
} RULES[] = {
#define RULE(id, sentence, source) {#id, sentence, source},
    FAKE_NCCL_RULES(RULE)
#undef RULE
};

const char *fake_nccl_rule_name(fake_nccl_rule rule)
{
    return RULES[rule].name;
}

const char *fake_nccl_rule_sentence(fake_nccl_rule rule)
{
    return RULES[rule].sentence;
}

const char *fake_nccl_rule_source(fake_nccl_rule rule)
{
    return RULES[rule].source;
}

void broke(fake_nccl_rule rule, const char *format, ...)
{
    pthread_mutex_lock(&findings.lock);
    findings.per_rule[rule]++;
    findings.total++;
    if (findings.found < MAX_FINDINGS) {
        va_list args;
        va_start(args, format);
        findings.list[findings.found].rule = rule;
        vsnprintf(findings.list[findings.found].text, sizeof findings.list[0].text, format, args);
        va_end(args);
        findings.found++;
    }
    pthread_mutex_unlock(&findings.lock);
}

unsigned fake_nccl_broken(char *text, size_t capacity)
{
    pthread_mutex_lock(&findings.lock);
    size_t length = 0;
    if (text != NULL && capacity > 0)
        text[0] = '\0';
    for (unsigned i = 0; text != NULL && i < findings.found && length < capacity; i++) {
        fake_nccl_rule rule = findings.list[i].rule;
        int written = snprintf(text + length, capacity - length, "%s (%s): %s\n", RULES[rule].name,
                               RULES[rule].sentence, findings.list[i].text);
        length += written < 0 ? 0 : (size_t)written;
    }
    unsigned total = findings.total;
    pthread_mutex_unlock(&findings.lock);
    return total;
}

unsigned fake_nccl_take_broken(fake_nccl_rule rule)
{
    pthread_mutex_lock(&findings.lock);
    unsigned times = findings.per_rule[rule], kept = 0;
    for (unsigned i = 0; i < findings.found; i++)
        if (findings.list[i].rule != rule)
            findings.list[kept++] = findings.list[i];
    findings.found = kept;
    findings.per_rule[rule] = 0;
    findings.total -= times;
    pthread_mutex_unlock(&findings.lock);
    return times;
}

void note_ended(void *handle)
{
    pthread_mutex_lock(&findings.lock);
    if (findings.ended_count < MAX_ENDED)
        findings.ended[findings.ended_count++] = handle;
    pthread_mutex_unlock(&findings.lock);
}

void *fake_nccl_ended(unsigned index)
{
    pthread_mutex_lock(&findings.lock);
    void *handle = index < findings.ended_count ? findings.ended[index] : NULL;
    pthread_mutex_unlock(&findings.lock);
    return handle;
}

void forget_findings(void)
{
    pthread_mutex_lock(&findings.lock);
    findings.found = findings.total = findings.ended_count = 0;
    memset(findings.per_rule, 0, sizeof findings.per_rule);
    pthread_mutex_unlock(&findings.lock);
}

/* ---- registrations ------------------------------------------------------------------------------------------------- */

void fake_nccl_count(fake_nccl_counts *counts)
{
    fake_lock();
    *counts = fake.counts;
    fake_unlock();
}

/* Lists are newest first. */
static window *window_number(const communicator *comm, unsigned index, unsigned *count)
{
    *count = 0;
    for (const window *w = comm->windows; w != NULL; w = w->next)
        ++*count;
    window *found = comm->windows;
    for (unsigned i = index + 1; i < *count && found != NULL; i++)
        found = found->next;
    return index < *count ? found : NULL;
}

int fake_nccl_window_get(unsigned index, fake_nccl_window *out)
{
    fake_lock();
    window *found = NULL;
    for (communicator *c = fake.communicators; c != NULL && found == NULL; c = c->next) {
        unsigned count;
        found = window_number(c, index, &count);
        index -= found == NULL ? count : 0;
    }
    if (found != NULL)
        *out = (fake_nccl_window){.comm = found->comm,
                                  .rank = found->comm->rank,
                                  .address = found->address,
                                  .bytes = found->bytes,
                                  .flags = found->flags,
                                  .handle = found};
    fake_unlock();
    return found != NULL;
}
