# SPDX-License-Identifier: Apache-2.0
"""The fixture of tests that compute on the device that BUCKETPOOL_TEST_DEVICE names."""

import os
import sys

import pytest
import torch

# The folders of fixtures, in place of this one: its rooms have names of packages. Programs that tests start find them too.
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [os.path.join(HERE, "fixtures"), os.path.dirname(HERE), *(path for path in sys.path if path != HERE)]
PATHS = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *map(os.path.abspath, PATHS)])

from devices import CUDA, DEVICE, OnDevice  # noqa: E402

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
