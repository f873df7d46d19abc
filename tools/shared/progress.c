/* SPDX-License-Identifier: Apache-2.0 */
/* Progress on standard error: one line on a terminal, a line every few seconds elsewhere. */
#include "shared/progress.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/print.h"
#include "shared/machine.h"

#define TERMINAL_FIRST 0.5
#define TERMINAL_EVERY 0.1
#define LINES_EVERY 5.0
#define BAR 24

static double seconds_between_lines(void)
{
    const char *text = secure_getenv("BUCKETPOOL_PROGRESS");
    double every = text != NULL && *text != '\0' ? strtod(text, NULL) : LINES_EVERY;
    return every >= 0 && every < 1e6 ? every : LINES_EVERY;
}

void progress_init(progress *p, const char *what, uint64_t total)
{
    *p = (progress){.what = what, .total = total, .started = machine_seconds(), .terminal = isatty(STDERR_FILENO)};
    p->every = p->terminal ? TERMINAL_EVERY : seconds_between_lines();
}

static bool is_due(const progress *p, double now)
{
    double first = p->terminal ? TERMINAL_FIRST : p->every;
    return p->every > 0 && now - p->started >= first && now - p->shown >= p->every;
}

/* A wrapped line could not be erased. */
static void cut_to_terminal(char *text)
{
    struct winsize size = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2)
        return;
    size_t length = strlen(text), max = size.ws_col - 1u;
    while (length > max && max > 0 && ((unsigned char)text[max] & 0xc0) == 0x80)
        max--;
    if (length > max)
        text[max] = '\0';
}

static void print(progress *p, double now, char *text)
{
    p->shown = now;
    if (p->terminal)
        cut_to_terminal(text);
    fprintf(stderr, p->terminal ? "\r%s\033[K" : "bucketpool: %s\n", text);
    fflush(stderr);
}

static void clock_text(double seconds, char text[32])
{
    unsigned long long whole = (unsigned long long)(seconds + 0.5);
    snprintf(text, 32, "%llu:%02llu", whole / 60, whole % 60);
}

void progress_show(progress *p, uint64_t done)
{
    if (p->total == 0 || p->every == 0)
        return;
    double now = machine_seconds();
    if (!is_due(p, now))
        return;
    double part = (double)done / (double)p->total;
    char text[192], bar[BAR + 4] = "", left[32] = "";
    if (p->terminal) {
        for (int i = 0; i < BAR; i++)
            bar[i + 1] = i < (int)(part * BAR) ? '#' : '.';
        bar[0] = '[';
        memcpy(bar + BAR + 1, "] ", 3);
    }
    if (done > 0)
        clock_text((now - p->started) * (1 - part) / part, left);
    bp_print(text, sizeof text, "%s%s %llu of %llu, %.0f %%%s%s%s", bar, p->what, (unsigned long long)done,
             (unsigned long long)p->total, 100 * part, done > 0 ? ", " : "", left, done > 0 ? " left" : "");
    print(p, now, text);
}

void progress_erase(progress *p)
{
    if (p->terminal && p->shown > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->shown = 0;
}

static void *watch(void *user)
{
    progress *p = user;
    pthread_mutex_lock(&p->mutex);
    while (!p->ended) {
        double now = machine_seconds();
        if (is_due(p, now)) {
            char text[256], spent[32], detail[PROGRESS_DETAIL_CHARS] = "";
            clock_text(now - p->started, spent);
            if (p->detail != NULL)
                p->detail(p->user, detail);
            bp_print(text, sizeof text, "%.120s%s, %s so far", p->what, detail, spent);
            print(p, now, text);
        }
        struct timespec until = {0};
        if (clock_gettime(CLOCK_MONOTONIC, &until) != 0) { /* nothing to show, and no end to wait for */
            pthread_cond_wait(&p->ends, &p->mutex);
            continue;
        }
        until.tv_nsec += (long)(TERMINAL_EVERY * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&p->ends, &p->mutex, &until);
    }
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

void progress_watch(progress *p, const char *what, progress_detail *detail, const void *user)
{
    progress_init(p, what, 0);
    p->detail = detail;
    p->user = user;
    if (p->every == 0)
        return;
    pthread_condattr_t attributes;
    sigset_t all, before;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&p->ends, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals go to the main thread */
    p->watched = pthread_create(&p->watcher, NULL, watch, p) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void progress_unwatch(progress *p)
{
    if (p->every == 0)
        return;
    if (p->watched) {
        pthread_mutex_lock(&p->mutex);
        p->ended = true;
        pthread_cond_signal(&p->ends);
        pthread_mutex_unlock(&p->mutex);
        pthread_join(p->watcher, NULL);
    }
    pthread_cond_destroy(&p->ends);
    pthread_mutex_destroy(&p->mutex);
    p->every = 0;
    progress_erase(p);
}
