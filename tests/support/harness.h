/* SPDX-License-Identifier: Apache-2.0 */
/* TESTS(setup, teardown): the main of a program whose tests register themselves (suite.h) and have fixtures. */
#ifndef BP_TEST_SUPPORT_HARNESS_H
#define BP_TEST_SUPPORT_HARNESS_H

#include "suite/suite.h"
#include "support/status.h"

/* `begin` and `end` surround each test that has no fixture, `setup` and `teardown` all of them; each may be NULL. */
static inline int run_registered(CMFixtureFunction begin, CMFixtureFunction end, CMFixtureFunction setup,
                                 CMFixtureFunction teardown)
{
    suite_each(begin, end);
    suite_within(setup, teardown);
    return run_suite();
}

#define TESTS_EACH(begin, end, setup, teardown)                                                                        \
    int main(void)                                                                                                     \
    {                                                                                                                  \
        return run_registered(begin, end, setup, teardown);                                                            \
    }
#define TESTS(setup, teardown) TESTS_EACH(NULL, NULL, setup, teardown)

#endif
