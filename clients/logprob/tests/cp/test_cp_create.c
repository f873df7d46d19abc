/* SPDX-License-Identifier: Apache-2.0 */
/* Creation of clients that is refused. If it fails on one of several ranks, the error on every rank names it. */
#include "support/harness.h"

#include <bucketpool/cp.h>

#include <stdio.h>
#include <string.h>

#include "../support/hosts.h"
#include "../support/ranks.h"
#include "support/scenarios.h"

enum { ODD = 1 }; /* the rank that differs */
#define BAD BP_ERR_INVALID_ARGUMENT
#define OK(call) is_status(call, BP_OK, NULL, #call)

#define assert_no_client(on, config, status, ...)                                                                      \
    do {                                                                                                               \
        bp_cp *no_client = (bp_cp *)&no_client;                                                                        \
        assert_fails(bp_cp_create(on, config, &no_client), status, __VA_ARGS__);                                       \
        assert_ptr_equal(no_client, &no_client);                                                                       \
    } while (0)

TEST(invalid_clients_are_refused)
{
    bp_cp_config config;
    bp_device *null = NULL;
    assert_ok(bp_device_create_null(&null));
    memset(&config, 0xee, sizeof config);
    assert_ok(bp_cp_config_init(&config, sizeof config));
    assert_true(config.comm == NULL && config.max_gathered_bytes == 0 && config.threads == 0 && config.trusting == 0);
    assert_no_client(NULL, &config, BAD, "bp_cp_create");
    assert_no_client(device, NULL, BAD, "bp_cp_create");
    assert_fails(bp_cp_create(device, &config, NULL), BAD, "bp_cp_create");
    assert_no_client(null, &config, BP_ERR_UNSUPPORTED, "null");
    config.threads = 1025;
    assert_no_client(device, &config, BAD, "1025");
    config.threads = 0;
    config.size = sizeof(size_t);
    assert_no_client(device, &config, BAD, "bp_cp_create");
    assert_fails(bp_cp_config_init(NULL, sizeof config), BAD, "bp_cp_config_init");
    assert_fails(bp_cp_config_init(&config, sizeof(size_t)), BAD, "bp_cp_config_init");
    bp_device_destroy(&null);
}

typedef enum fault { NO_DEVICE, NO_OUTPUT, NO_KERNELS, NO_MEMORY, MANY_THREADS, TOO_LARGE, MORE, TRUST, FAULTS } fault;

static bp_status create_with(const host_rank *r, fault f, bp_device *null, bp_device *small, bp_cp **cp)
{
    const bool fails = r->number == ODD;
    bp_device *on = fails && f == NO_DEVICE    ? NULL
                    : fails && f == NO_KERNELS ? null
                    : fails && f == NO_MEMORY  ? small
                                               : r->device;
    bp_cp_config config;
    bp_cp_config_init(&config, sizeof config);
    config.comm = r->comm;
    config.max_gathered_bytes = 1 << 20;
    config.threads = fails && f == MANY_THREADS ? 5000 : 1;
    if (fails && f == TOO_LARGE)
        config.max_gathered_bytes = UINT64_MAX;
    if (fails && f == MORE)
        config.max_gathered_bytes++;
    config.trusting = fails && f == TRUST;
    return bp_cp_create(on, &config, fails && f == NO_OUTPUT ? NULL : cp);
}

static bool run_creations(host_rank *r)
{
    static const bp_status expected[] = {
        BAD, BAD, BP_ERR_UNSUPPORTED, BP_ERR_NO_DEVICE_MEMORY, BAD, BP_ERR_OVERFLOW, BP_ERR_MISMATCH, BP_ERR_MISMATCH};
    bp_device *null = NULL, *small = NULL;
    bp_host_config little;
    bp_host_config_init(&little, sizeof little);
    little.memory_bytes = 65536;
    bool good = OK(bp_device_create_null(&null)) && OK(bp_device_create_host(&little, &small));
    for (int f = 0; f < FAULTS; f++) {
        bp_cp *cp = NULL;
        char where[64], name[16];
        snprintf(where, sizeof where, "creation, fault %d of rank %u of %u", f, r->number, r->ranks);
        snprintf(name, sizeof name, "rank %d", ODD);
        const char *const words[] = {r->number == ODD && f < MORE ? "" : name, NULL};
        good = is_status(create_with(r, (fault)f, null, small, &cp), expected[f], words, where) && good;
        good = good && cp == NULL;
        bp_cp_destroy(&cp);
    }
    bp_device_destroy(&null);
    bp_device_destroy(&small);
    return good;
}

TEST(missing_client_on_one_rank_fails_on_all)
{
    run_host_ranks(3, false, 0, run_creations, NULL);
    run_host_ranks(4, true, 0, run_creations, NULL);
}

TESTS(open_host, close_host)
