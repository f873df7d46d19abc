"""The few calls of the CUDA driver that Python makes itself, through the driver that the library finds."""

import ctypes
import functools
from typing import Any

from . import _abi
from ._library import call, core
from .errors import DeviceError

_WITHOUT_TIMES = 2  # CU_EVENT_DISABLE_TIMING


@functools.lru_cache(maxsize=None)
def _driver() -> Any:
    driver: Any = _abi.bp_cuda_driver()
    call(core().bp_cuda_driver_load, None, ctypes.byref(driver))
    return driver


def _made(driver: Any, function: str, *arguments: Any) -> None:
    result = getattr(driver, function)(*arguments)
    if result != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(result, ctypes.byref(name))
        raise DeviceError(f"{function} failed with {result}, {(name.value or b'an unknown error').decode()}")


def wait(device: ctypes.c_void_p, earlier: int, later: int) -> None:
    """Makes native stream `later` wait for what native stream `earlier` has been given so far. Enqueues only; may be
    captured."""
    driver, scope, event = _driver(), _abi.bp_cuda_scope(), ctypes.c_void_p()
    call(core().bp_cuda_enter, device, ctypes.byref(scope))
    try:
        _made(driver, "cuEventCreate", ctypes.byref(event), _WITHOUT_TIMES)
        try:
            _made(driver, "cuEventRecord", event, earlier)
            _made(driver, "cuStreamWaitEvent", later, event, 0)
        finally:
            driver.cuEventDestroy(event)  # what was enqueued still counts
    finally:
        core().bp_cuda_leave(ctypes.byref(scope))
