#include "interrupt.h"

#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t interrupts;

static void count(int number)
{
    if (++interrupts == 2)
        signal(number, SIG_DFL);
}

void interrupt_watch(void)
{
    struct sigaction action = {.sa_handler = count};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

bool interrupt_came(void)
{
    return interrupts > 0;
}

void interrupt_pass_on(void)
{
    if (interrupts == 0)
        return;
    fflush(NULL);
    signal(SIGINT, SIG_DFL);
    raise(SIGINT);
}
