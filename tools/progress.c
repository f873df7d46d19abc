#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "machine.h"

#define FIRST_AFTER 0.5
#define EVERY 0.1
#define BAR 24

void progress_init(progress *p, const char *what, uint64_t total)
{
    *p = (progress){
        .what = what, .total = total, .started = machine_seconds(), .active = isatty(STDERR_FILENO) && total > 0};
}

void progress_show(progress *p, uint64_t done)
{
    if (!p->active)
        return;
    double now = machine_seconds();
    if (now - p->started < FIRST_AFTER || now - p->shown < EVERY)
        return;
    p->shown = now;
    double part = (double)done / (double)p->total;
    char bar[BAR + 1], left[32] = "";
    for (int i = 0; i < BAR; i++)
        bar[i] = i < (int)(part * BAR) ? '#' : '.';
    bar[BAR] = '\0';
    if (done > 0) {
        unsigned long long seconds = (unsigned long long)((now - p->started) * (1 - part) / part + 0.5);
        snprintf(left, sizeof left, ", %llu:%02llu left", seconds / 60, seconds % 60);
    }
    fprintf(stderr, "\r[%s] %s %llu of %llu, %.0f %%%s\033[K", bar, p->what, (unsigned long long)done,
            (unsigned long long)p->total, 100 * part, left);
    fflush(stderr);
}

void progress_erase(progress *p)
{
    if (p->shown > 0) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    p->shown = 0;
}
