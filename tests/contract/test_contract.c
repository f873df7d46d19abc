/* SPDX-License-Identifier: Apache-2.0 */
/* The pool contract: every case on every allocator and every device. New allocators and devices are rows in support/pools.c. */
#include "cases.h"

typedef struct combination {
    contract_case *run;
    const allocator_row *allocator;
    const device_row *device;
    char name[120];
} combination;

static void run(void **state)
{
    const combination *c = *state;
    c->run(c->allocator, c->device);
}

void add_case(const char *name, contract_case *function)
{
    for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
        for (size_t d = 0; d < device_count(); d++) {
            combination *c = calloc(1, sizeof *c); /* for as long as the program runs */
            if (c == NULL)
                abort();
            *c = (combination){.run = function, .allocator = &ALLOCATORS[a], .device = device_at(d)};
            snprintf(c->name, sizeof c->name, "%s: %s on %s", name, ALLOCATORS[a].name, device_at(d)->name);
            suite_add(&(struct CMUnitTest){.name = c->name, .test_func = run, .initial_state = c});
        }
    }
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* "*cancel*" */
    return run_suite();
}
