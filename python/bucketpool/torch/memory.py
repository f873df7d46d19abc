"""Tensors over memory that they do not own, and devices of the library for devices of PyTorch. Internal."""

import ctypes
from typing import Any, Tuple

import torch

from ..device import Device
from ..errors import Unsupported


class _DeviceMemory:
    """Memory of a GPU with the CUDA array interface, from which PyTorch makes tensors without a copy."""

    def __init__(self, address: int, count: int) -> None:
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 2}


def over(address: int, count: int, device: torch.device) -> Tuple[Any, torch.Tensor]:
    """Returns an object that the storage keeps alive, and a tensor over `count` (not 0) bytes at `address`. The tensor
    does not own the memory.
    """
    if device.type == "cpu":
        memory = (ctypes.c_uint8 * count).from_address(address)
        return memory, torch.frombuffer(memory, dtype=torch.uint8)
    on_device = _DeviceMemory(address, count)
    return on_device, torch.as_tensor(on_device, device=device)


def with_index(device: torch.device) -> torch.device:
    """The device with an index: "cuda" is the current GPU."""
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def device_for(device: torch.device) -> Device:
    """A new device of the library for pools of tensors on `device` (with_index). Raises Unsupported, NoDevice."""
    if device.type == "cuda":
        return Device.cuda(device.index)
    if device.type == "cpu":
        return Device.host()
    raise Unsupported(f"device {device}: unsupported; pools are for cuda and cpu devices")
