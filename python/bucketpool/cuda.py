# SPDX-License-Identifier: Apache-2.0
"""Architectures of the CUDA kernels, and calls of the CUDA driver: an event between two native streams, for DLPack."""

import ctypes
import functools
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_uint, c_void_p
from typing import Any, Iterator, List

from ._library import logprob
from .errors import DeviceError

_DISABLE_TIMING = 2  # CU_EVENT_DISABLE_TIMING


def cuda_arch_list() -> List[str]:
    """GPU architectures that the CUDA kernels of log-probabilities are compiled for, as torch.cuda.get_arch_list()
    names PyTorch's: ["sm_80", "sm_90", "sm_100", "sm_120", "compute_80"], where compute_80 is PTX for other GPUs. Empty
    without CUDA kernels. Needs no GPU.
    """
    return [code for code in logprob().bp_logprob_cuda_codes().decode().split(",") if code]


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    """The driver, which the library has loaded and initialised for the device."""
    driver = ctypes.CDLL("libcuda.so.1")
    pointer = ctypes.POINTER
    for name, arguments in {"cuGetErrorName": [c_int, pointer(c_char_p)], "cuDeviceGet": [pointer(c_int), c_int],
                            "cuDevicePrimaryCtxRetain": [pointer(c_void_p), c_int],
                            "cuDevicePrimaryCtxRelease_v2": [c_int], "cuCtxPushCurrent_v2": [c_void_p],
                            "cuCtxPopCurrent_v2": [pointer(c_void_p)], "cuEventCreate": [pointer(c_void_p), c_uint],
                            "cuEventDestroy_v2": [c_void_p], "cuEventRecord": [c_void_p, c_void_p],
                            "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint]}.items():
        getattr(driver, name).argtypes = arguments
    return driver


def _made(function: str, *arguments: Any) -> None:
    driver = _driver()
    result = getattr(driver, function)(*arguments)
    if result != 0:
        name = c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(name))
        raise DeviceError(f"{function}: error {result} ({(name.value or b'unknown').decode()}) of the CUDA driver")


@contextmanager
def _current(ordinal: int) -> Iterator[None]:
    """A context manager with the primary context of the GPU current on this thread."""
    driver, device, context = _driver(), c_int(), c_void_p()
    _made("cuDeviceGet", ctypes.byref(device), ordinal)
    _made("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    try:
        _made("cuCtxPushCurrent_v2", context)
        try:
            yield
        finally:
            driver.cuCtxPopCurrent_v2(ctypes.byref(context))
    finally:
        driver.cuDevicePrimaryCtxRelease_v2(device)


def wait(ordinal: int, earlier: int, later: int) -> None:
    """Orders native stream `later` of a GPU after the present work of native stream `earlier`. Enqueues only; may be
    captured.
    """
    event = c_void_p()
    with _current(ordinal):
        _made("cuEventCreate", ctypes.byref(event), _DISABLE_TIMING)
        try:
            _made("cuEventRecord", event, earlier)
            _made("cuStreamWaitEvent", later, event, 0)
        finally:
            _driver().cuEventDestroy_v2(event)  # the driver keeps it until the enqueued wait has run
