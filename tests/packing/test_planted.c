/* Instances made from a placement without holes: nothing takes less, and up to some size that much must be found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "answers.h"

#include <stdlib.h>

#include "naive.h"
#include "planted.h"

static planted_options random_options_of(uint32_t least_items, uint32_t most_items)
{
    static const uint64_t bytes[] = {20, 100, 1000, 1048576, UINT64_C(1) << 40};
    return (planted_options){.items = (uint32_t)random_between(least_items, most_items),
                             .bytes = bytes[random_below(5)],
                             .steps = random_between(10, 60),
                             .wheels = one_in(2),
                             .gaps = one_in(2),
                             .pairs = one_in(3)};
}

static void test_planted_placements_hold(void **state)
{
    (void)state;
    seed(1);
    size_t wheels = 0, gaps = 0, pairs = 0;
    for (int i = 0; i < 500; i++) {
        planted_options options = random_options_of(10, 60);
        planted p = plant(options);
        bool *with = naive_conflicts(&p.in);
        assert_for(&p.in, naive_check(&p.in, with, p.offsets, p.bytes));
        assert_for(&p.in, naive_height(&p.in, p.offsets) == p.bytes);
        assert_for(&p.in, naive_live_sum(&p.in) == p.bytes);
        assert_for(&p.in, p.in.count >= 10 && p.in.count <= options.items);
        wheels += options.wheels;
        gaps += p.in.life_count > p.in.count;
        pairs += p.in.pair_count > 0;
        free(with);
        end_planted(&p);
    }
    assert_true(wheels > 100 && gaps > 100 && pairs > 100);
}

static void test_found(void **state)
{
    (void)state;
    seed(2);
    for (int i = 0; i < 400; i++) {
        planted p = plant(random_options_of(10, 25));
        assert_optimum(&p.in, p.bytes);
        end_planted(&p);
    }
}

static void test_found_at_capacity(void **state)
{
    (void)state;
    seed(3);
    for (int i = 0; i < 200; i++) {
        planted p = plant(random_options_of(10, 25));
        bp_pack_config config = new_config();
        config.capacity = p.bytes + random_below(2) * random_below(p.bytes);
        answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.outcome == BP_PACK_PLACED);
        end_answer(&a);
        end_planted(&p);
    }
}

static bool fits_alone(const planted *p, uint64_t capacity)
{
    for (uint32_t i = 0; i < p->in.count; i++)
        if (p->in.sizes[i] > capacity)
            return false;
    return true;
}

/* Where finding it is too much to ask, the answer is still no wrong one. */
static void test_large(void **state)
{
    (void)state;
    seed(4);
    size_t found = 0, count = 60;
    for (size_t i = 0; i < count; i++) {
        planted p = plant(random_options_of(26, 60));
        bp_pack_config config = new_config();
        config.work = 50000000;
        answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.bytes >= p.bytes && a.result.proven <= p.bytes);
        found += a.result.optimal;
        end_answer(&a);
        config.capacity = p.bytes;
        a = solve(&p.in, config);
        assert_for(&p.in, a.result.outcome != BP_PACK_INFEASIBLE);
        end_answer(&a);
        config.capacity = p.bytes - 1;
        if (fits_alone(&p, config.capacity)) {
            a = solve(&p.in, config);
            assert_for(&p.in, a.result.outcome == BP_PACK_INFEASIBLE);
            end_answer(&a);
        }
        end_planted(&p);
    }
    print_message("%zu of %zu larger ones at the optimum\n", found, count);
}

/* Known, it is kept: it is at the bound. */
static void test_known(void **state)
{
    (void)state;
    seed(5);
    for (int i = 0; i < 200; i++) {
        planted p = plant(random_options_of(10, 60));
        bp_pack_config config = new_config();
        config.known = p.offsets;
        config.work = one_in(2) ? 1 : 100000;
        config.capacity = one_in(2) ? p.bytes : 0;
        answer a = solve(&p.in, config);
        assert_for(&p.in, a.result.bytes == p.bytes && a.result.optimal == 1);
        end_answer(&a);
        end_planted(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_planted_placements_hold),
        cmocka_unit_test(test_found),
        cmocka_unit_test(test_found_at_capacity),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
