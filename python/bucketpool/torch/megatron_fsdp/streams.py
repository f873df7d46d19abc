"""PyTorch's streams as the pool knows them."""

from typing import Any, Dict

import torch

from ...device import Device


class Streams:
    """The library's streams of one torch device. On a GPU each torch stream is imported when it is first current; torch
    never destroys those of its pools. On a CPU there is one, as work is done when a call returns: its order is the
    host's."""

    def __init__(self, device: Device, torch_device: torch.device) -> None:
        self._device, self._torch_device = device, torch_device
        self._imported: Dict[int, Any] = {}
        self._only = device.stream("cpu") if torch_device.type == "cpu" else None

    def current(self) -> Any:
        """The pool's stream for torch's current one. Errors: InvalidArgument (the per-thread default stream)."""
        if self._only is not None:
            return self._only
        native = torch.cuda.current_stream(self._torch_device).cuda_stream
        stream = self._imported.get(native)
        if stream is None:
            stream = self._imported[native] = self._device.import_stream(native, f"cuda stream {native:#x}")
        return stream

    def settle(self, stream: Any) -> None:
        """On a CPU, waits for what the pool itself put on the stream: guard mode's fill."""
        if self._only is not None:
            stream.synchronize()
