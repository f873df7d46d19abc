"""Tensors over memory without ownership, and the library's devices for those of PyTorch."""

import ctypes
from typing import Any, Tuple

import torch

from ..device import Device
from ..errors import Unsupported


class _DeviceMemory:
    """Bytes of a GPU, as PyTorch takes them over without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


def over(address: int, count: int, device: torch.device) -> Tuple[Any, torch.Tensor]:
    """A tensor over `count` (not 0) bytes at `address`: no copy, and it owns nothing. Before it, what its storage keeps
    alive."""
    if device.type == "cpu":
        memory = (ctypes.c_uint8 * count).from_address(address)
        return memory, torch.frombuffer(memory, dtype=torch.uint8)
    on_device = _DeviceMemory(address, count)
    return on_device, torch.as_tensor(on_device, device=device)


def with_index(device: torch.device) -> torch.device:
    """"cuda" means the current device."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_for(device: torch.device) -> Device:
    """A device of the library for pools of tensors on `device`, which has its index. Raises Unsupported, NoDevice."""
    if device.type == "cuda":
        return Device.cuda(device.index)
    if device.type == "cpu":
        return Device.host()
    raise Unsupported(f"device {device}: pools are made on cuda and cpu devices")
