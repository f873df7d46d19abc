/* The pool contract: every case on every allocator and every device. New allocators and devices are rows in support.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases.h"

typedef struct combination {
    const allocator_row *allocator;
    const device_row *device;
    const named_case *run;
    char name[120];
} combination;

#define MOST_COMBINATIONS 2000

static combination combinations[MOST_COMBINATIONS];
static struct CMUnitTest tests[MOST_COMBINATIONS];
static size_t count;

static void run(void **state)
{
    const combination *c = *state;
    c->run->function(c->allocator, c->device);
}

static void add(const named_case *cases)
{
    for (; cases->name != NULL; cases++) {
        for (size_t a = 0; a < ALLOCATOR_COUNT; a++) {
            for (size_t d = 0; d < device_count(); d++) {
                if (count == MOST_COMBINATIONS) {
                    fprintf(stderr, "test_contract: more than %d combinations; raise MOST_COMBINATIONS\n",
                            MOST_COMBINATIONS);
                    exit(1);
                }
                combination *c = &combinations[count];
                *c = (combination){.allocator = &ALLOCATORS[a], .device = device_at(d), .run = cases};
                snprintf(c->name, sizeof c->name, "%s: %s on %s", cases->name, ALLOCATORS[a].name, device_at(d)->name);
                tests[count++] = (struct CMUnitTest){.name = c->name, .test_func = run, .initial_state = c};
            }
        }
    }
}

int main(int argc, char **argv)
{
    add(HOLD_CASES);
    add(REQUEST_CASES);
    add(PLACE_CASES);
    add(REPORT_CASES);
    add(RANDOM_CASES);
    add(EDGE_CASES);
    if (argc > 1)
        cmocka_set_test_filter(argv[1]); /* "*cancel*" */
    return _cmocka_run_group_tests("contract", tests, count, NULL, NULL);
}
