/* Threads that exist only for a first touch: nothing of them is left when training goes on. */
#include "pinned/touch.h"

#include <sched.h>
#include <stddef.h>

#include "core/arith.h"
#include "core/process.h"
#include "pinned/pages.h"

#define LEAST_PART (2 * BP_HUGE_PAGE_BYTES) /* less is done before a thread has started */

typedef struct part {
    uint8_t *address;
    uint64_t bytes, page;
    pthread_t thread;
} part;

static void *touch(void *argument)
{
    const part *p = argument;
    for (uint64_t at = 0; at < p->bytes; at += p->page)
        *(volatile uint8_t *)(p->address + at) = 0;
    return NULL;
}

/* The caller does the last part, and what no thread could be started for. */
void bp_touch(uint8_t *address, uint64_t bytes, uint64_t page, uint32_t threads)
{
    part parts[BP_MOST_TOUCH_THREADS];
    uint64_t count = bytes / LEAST_PART, each = bytes;
    count = bp_least_u64(count, bp_least_u64(threads, BP_MOST_TOUCH_THREADS));
    if (count > 1)
        each = bytes / count / BP_HUGE_PAGE_BYTES * BP_HUGE_PAGE_BYTES;
    uint32_t started = 0;
    uint64_t done = 0;
    while (started + 1 < count) {
        part *p = &parts[started];
        *p = (part){.address = address + done, .bytes = each, .page = page};
        if (bp_thread_start(&p->thread, touch, p) != 0)
            break;
        done += each;
        started++;
    }
    touch(&(part){.address = address + done, .bytes = bytes - done, .page = page});
    while (started > 0)
        pthread_join(parts[--started].thread, NULL);
}

uint32_t bp_touch_default_threads(void)
{
    cpu_set_t set;
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > 8 ? 8 : (uint32_t)count;
}
