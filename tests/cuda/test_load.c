/* bp_cuda_driver_load finds the emulated driver, and distinguishes a stub, an old driver and a missing one. Arguments: the three
 * libraries. */
#include "fake_support.h"

static const char *emulated, *stub, *old;

TEST(the_emulated_driver_is_found)
{
    bp_cuda_driver driver, table;
    fake_cuda_reset();
    assert_int_equal(bp_cuda_driver_load(emulated, &driver), BP_OK);
    fake_cuda_table(&table);
    assert_memory_equal(&driver, &table, sizeof table);
    fake_cuda_reset();
}

TEST(without_multicast)
{
    fake_cuda_config config;
    bp_cuda_driver driver;
    fake_cuda_config_init(&config);
    config.version = 12000;
    fake_cuda_configure(&config);
    assert_int_equal(bp_cuda_driver_load(emulated, &driver), BP_OK);
    assert_true(driver.cuMulticastGetGranularity == NULL);
    fake_cuda_reset();
}

static void is_no_device(const char *library, const char *words)
{
    bp_cuda_driver driver;
    assert_int_equal(bp_cuda_driver_load(library, &driver), BP_ERR_NO_DEVICE);
    if (strstr(bp_error_detail(), words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", bp_error_detail(), words);
}

TEST(not_a_driver)
{
    is_no_device(stub, "stub");
    is_no_device(old, "CUDA 11.8");
    is_no_device("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1");
    fake_cuda_reset();
    assert_true(fake_cuda_fail("cuInit", 1, 802));
    is_no_device(emulated, "CUDA_ERROR_SYSTEM_NOT_READY");
    fake_cuda_reset();
    assert_true(fake_cuda_fail("cuDriverGetVersion", 1, 999));
    is_no_device(emulated, "of an unknown version: cuDriverGetVersion returned error 999");
    fake_cuda_reset();
    fake_cuda_config config;
    fake_cuda_config_init(&config);
    config.devices = 0;
    fake_cuda_configure(&config);
    is_no_device(emulated, "no GPU");
    config.version = 0;
    fake_cuda_configure(&config);
    is_no_device(emulated, "of an unknown version: cuDriverGetVersion returned version 0");
    fake_cuda_reset();
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    emulated = arguments[1];
    stub = arguments[2];
    old = arguments[3];
    return run_suite();
}
