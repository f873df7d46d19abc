"""PyTorch's current streams as streams of a pool's device."""

from typing import Dict

import torch

from ... import Device, Stream


class Streams:
    """On a CPU everything runs as it is called, and one stream stands for it. On a GPU streams are imported when they
    are first met; PyTorch's own live as long as the process, so a handle stays one stream's. An external stream must
    outlive the pool."""

    def __init__(self, device: Device, torch_device: torch.device) -> None:
        self.device, self.torch_device = device, torch_device
        self._imported: Dict[int, Stream] = {}
        self._host = device.stream("fsdp2") if torch_device.type == "cpu" else None

    def current(self) -> Stream:
        """The stream that PyTorch would allocate on now, on this thread."""
        if self._host is not None:
            return self._host
        return self.imported(torch.cuda.current_stream(self.torch_device))

    def imported(self, stream: "torch.cuda.Stream") -> Stream:
        """The device's stream of one of PyTorch's."""
        native = stream.cuda_stream
        if native not in self._imported:
            self._imported[native] = self.device.import_stream(stream, f"torch.{len(self._imported)}")
        return self._imported[native]

    def close(self) -> None:
        streams = list(self._imported.values()) + ([self._host] if self._host is not None else [])
        for stream in streams:
            stream.close()
        self._imported.clear()
