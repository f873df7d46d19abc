"""The fixture of tests that compute on the device that BUCKETPOOL_TEST_DEVICE names."""

import pytest
import torch

from devices import CUDA, DEVICE, OnDevice

NO_PRODUCTS = "no BLAS library was found"


def pytest_configure(config):
    if DEVICE not in ("cpu", "cuda"):
        pytest.exit(f"BUCKETPOOL_TEST_DEVICE: expected cpu or cuda, got {DEVICE!r}", returncode=2)
    if CUDA and not torch.cuda.is_available():
        pytest.exit("BUCKETPOOL_TEST_DEVICE is cuda, and PyTorch finds no GPU", returncode=77)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item):
    """Tests of the fused head skip where the library finds no matrix products, in this process or in one that the test
    has started.
    """
    outcome = yield
    if outcome.excinfo is not None and NO_PRODUCTS in str(outcome.excinfo[1]):
        outcome.force_exception(
            pytest.skip.Exception(f"{NO_PRODUCTS}; install libopenblas0")
        )


@pytest.fixture
def on_device():
    """Tensors of the test are made on DEVICE. Products of fp32 there are not of TF32: references are made with them."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    with OnDevice():
        yield
