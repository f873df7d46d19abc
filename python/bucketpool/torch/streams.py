# SPDX-License-Identifier: Apache-2.0
"""Streams of PyTorch, imported into the device of a pool. Internal."""

from typing import Dict

import torch

from ..device import Device, Stream


class Streams:
    """The streams of PyTorch as streams of a pool's device.

    On a CPU, where work has run when a call returns, one stream represents it: `only`, None on a GPU, where a stream is
    imported on first use. PyTorch never destroys its own streams; an external stream must outlive the pool.
    """

    def __init__(self, device: Device, torch_device: torch.device) -> None:
        self.device, self.torch_device = device, torch_device
        self._imported: Dict[int, Stream] = {}
        self.only = device.stream("cpu") if torch_device.type == "cpu" else None

    def current(self) -> Stream:
        """PyTorch's current stream on this thread. Raises InvalidArgument (the per-thread default stream)."""
        if self.only is not None:
            return self.only
        return self.imported(torch.cuda.current_stream(self.torch_device))

    def imported(self, stream: "torch.cuda.Stream") -> Stream:
        """The stream of the device for a stream of PyTorch."""
        native = stream.cuda_stream
        if native not in self._imported:
            self._imported[native] = self.device.import_stream(stream, f"cuda stream {native:#x}")
        return self._imported[native]

    def settle(self, stream: Stream) -> None:
        """On a CPU, waits for work that the pool enqueued itself: the fill of guard mode."""
        if self.only is not None:
            stream.synchronize()

    def close(self) -> None:
        """Closes the imports; PyTorch's streams stay."""
        for stream in [*self._imported.values(), *([] if self.only is None else [self.only])]:
            stream.close()
        self._imported.clear()
