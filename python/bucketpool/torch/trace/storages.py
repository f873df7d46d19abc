# SPDX-License-Identifier: Apache-2.0
"""Storages of the recorded device from their first operator to their end, with the workspaces and temporaries of kernels."""

import functools
import sys
import weakref
from types import FrameType
from typing import Any, Callable, Dict, Hashable, List, Optional, Tuple

import torch

from ...errors import Unsupported
from .._clients import MOST
from . import kernels
from .kinds import WORKSPACE, Kinds
from .modules import Modules
from .recording import Frame, Recording
from .streams import Streams
from .values import Values

__all__ = ["SILENT", "Options", "Storages"]

_OWN = __file__.rpartition("/")[0] + "/"
SILENT = ("torch/_ops.py", "torch/_compile.py", "torch/overrides.py", "torch/_dynamo/eval_frame.py",
          "torch/utils/_contextlib.py", "torch/utils/_stats.py")  # files whose frames are left out


class Options:
    """See record()."""

    def __init__(self, device: str, capability: Tuple[int, int], attention: str, frames: int,
                 item: Optional[Callable[[Any], Any]], nonzero: Optional[Callable[[Any], int]]) -> None:
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        self.capability, self.attention, self.frames = capability, attention, frames
        self.item, self.nonzero = item, nonzero


class Storages:
    """Storages of the recorded device that are live, and their blocks."""

    def __init__(self, recording: Recording, options: Options) -> None:
        self.recording, self.options = recording, options
        self._blocks: Dict[int, Tuple[Any, Any]] = {}  # by address of the storage: weak reference, block or None
        self.kinds, self.values = Kinds(self._blocks), Values()
        self.modules, self.streams = Modules(self.kinds), Streams(recording)
        self._workspaces: Dict[Tuple[str, int, bool], Any] = {}  # by library, stream, thread
        # By address of the code and place in it: the code, and the frame, or None where it is left out
        self._places: Dict[Tuple[int, int], Tuple[Any, Optional[Frame]]] = {}
        self._clients: Dict[Hashable, Any] = {}  # workspaces of bucketpool's operators, the latest one last

    def outputs(self, operator: str, tensors: List[Any]) -> None:
        """Storages that an operator returned: new ones, and those that it resized."""
        for tensor in tensors:
            try:
                storage = tensor.untyped_storage()
            except NotImplementedError:  # sparse tensors have several
                continue
            self.update(operator, storage)

    def update(self, operator: str, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        known = self._blocks.get(key)
        if known is not None:
            if (known[1].bytes if known[1] is not None else 0) == size:
                return
            if known[1] is not None:
                self.recording._free(known[1])
            reference = known[0]
        else:
            reference = weakref.ref(storage, functools.partial(self._ended, key))
            self.kinds.of[key] = ""
        self._blocks[key] = reference, self.allocate(operator, size, self.kinds.of[key]) if size > 0 else None

    def knows(self, tensor: Any) -> bool:
        return tensor.untyped_storage()._cdata in self._blocks

    def resized(self, storage: Any) -> None:
        if storage._cdata in self._blocks:
            self.update("resize_", storage)

    def _ended(self, key: int, _reference: Any) -> None:
        _, block = self._blocks.pop(key)
        del self.kinds.of[key]
        if block is not None:
            self.recording._free(block)

    def forget(self) -> None:
        """Storages that end after the recording are live at its end."""
        self._blocks.clear()
        self.kinds.of.clear()

    def allocate(self, operator: str, size: int, kind: str) -> Any:
        module, phase = self.modules.now()
        return self.recording._allocate(size, self.streams.current.number, self._frames(operator, module, phase),
                                        (module, phase, operator), kind)

    def empty_cache(self) -> None:
        self.recording._empty_cache(self._frames("empty_cache", *self.modules.now()))

    def value(self, tensor: Any) -> Any:
        """Of all elements of a fake tensor."""
        found = tensor.constant.item() if tensor.constant is not None else self.values.of(tensor)
        if found is not None:
            return found
        if self.options.item is not None:
            return self.options.item(tensor)
        self.recording._note("item(): values on the recorded device are 1, or True, and comparisons follow from that")
        return 1

    def item(self, tensor: Any) -> Any:
        kind = bool if tensor.dtype == torch.bool else float if tensor.dtype.is_floating_point else int
        return kind(self.value(tensor)) if not tensor.dtype.is_complex else complex(self.value(tensor))

    def place(self, operator: str) -> str:
        """Of an error: the operator, and the module that runs it."""
        module, phase = self.modules.now()
        return f"{operator} in {module} ({phase})" if module else f"{operator} ({phase})" if phase else operator

    def address(self, tensor: Any) -> int:
        """In the recording. deepcopy of PyTorch gets 0, for which it copies by operators."""
        if sys._getframe(3).f_code.co_filename.endswith("torch/_tensor.py"):
            return 0
        first = self.storage_address(tensor.untyped_storage())
        if first == 0 and tensor.numel() > 0:
            raise Unsupported(f"{self.place('data_ptr()')}: this tensor of {tensor.numel()} elements has no memory in a "
                              "recording; leave out code that reads it, such as saving to files")
        return first + tensor.storage_offset() * tensor.element_size() if first else 0

    def storage_address(self, storage: Any) -> int:
        """Programs find tensors that share memory by it. 0: not of the recorded device, or empty."""
        block = self._blocks.get(storage._cdata, (None, None))[1]
        return 0 if block is None else int(block.address)

    def real(self, tensor: Any) -> Any:
        """A tensor of the CPU with those values; runs outside of all modes."""
        content = self.values.content(tensor)
        if content is not None:
            return content
        return torch.full((), self.value(tensor), dtype=tensor.dtype, device="cpu").expand(tensor.shape)

    def temporaries(self, operator: str, sizes: List[int]) -> None:
        blocks = [self.allocate(operator, size, WORKSPACE) for size in sizes if size > 0]
        for block in reversed(blocks):
            self.recording._free(block)

    def workspace(self, lt: bool) -> None:
        """Allocates the workspaces of the current stream and thread, which stay. Handles of cuBLAS are per thread, and
        on a GPU backward runs in autograd's. cuBLASLt's handle is cuBLAS's.
        """
        for library, size in (("cuBLAS", kernels.workspace_bytes), ("cuBLASLt", kernels.lt_workspace_bytes)):
            key = library, self.streams.current.number, torch._C._current_graph_task_id() != -1
            if key not in self._workspaces and (lt or library == "cuBLAS"):
                found = size(self.options.capability)
                self._workspaces[key] = self.allocate(f"{library} workspace", found, WORKSPACE) if found else None

    def keep(self, operator: str, kept: Dict[Hashable, int]) -> None:
        """Allocates workspaces that are not there yet; of more than a process keeps, the least recently used end."""
        for key, size in kept.items():
            block = self._clients.pop(key, None)
            self._clients[key] = self.allocate(operator, size, WORKSPACE) if block is None else block
            while len(self._clients) > MOST:
                self.recording._free(self._clients.pop(next(iter(self._clients))))

    def _frames(self, operator: str, module: str, phase: str) -> Tuple[Frame, ...]:
        """The operator with its module first, then frames of Python, innermost first."""
        frames: List[Frame] = [(f"{module} ({phase})" if module and phase else module or phase, 0, operator)]
        frame: Optional[FrameType] = sys._getframe(2)
        most, places = self.options.frames, self._places
        while frame is not None and len(frames) <= most:
            code = frame.f_code
            known = places.get((id(code), frame.f_lasti))
            if known is None:
                name = code.co_filename
                known = places[id(code), frame.f_lasti] = code, None if (
                    name.startswith(_OWN) or name.endswith(SILENT)) else (name, frame.f_lineno, code.co_name)
            if known[1] is not None:
                frames.append(known[1])
            frame = frame.f_back
        return tuple(frames)
