"""BUCKETPOOL_TEST_DEVICE, "cpu" (default) or "cuda": the device for tests of log-probabilities and views."""

import os

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import bucketpool as bp

DEVICE = os.environ.get("BUCKETPOOL_TEST_DEVICE", "cpu")
CUDA = DEVICE == "cuda"


def cpu_only(reason):
    return pytest.mark.skipif(CUDA, reason=reason)


def cuda_only(reason):
    return pytest.mark.skipif(not CUDA, reason=reason)


def device_of_pools():
    """A device of the library for pools of tensors on DEVICE."""
    return bp.Device.cuda(0) if CUDA else bp.Device.host()


class OnDevice(TorchFunctionMode):
    """Tensors that a test makes without naming a device are made on the CPU and moved to DEVICE: random values are the
    same on all devices, and no constructor can be forgotten.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function not in _device_constructors() or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        gradient = kwargs.pop("requires_grad", False)
        return function(*args, **kwargs, device="cpu").to(DEVICE).requires_grad_(gradient)
