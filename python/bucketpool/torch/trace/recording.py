"""The events of a recording, its peaks, and its file in the format of PyTorch's memory snapshots."""

import os
import pickle
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from ...errors import FileError

__all__ = ["Allocation", "Recording"]

ROUNDED_TO = 512  # the caching allocator rounds sizes to multiples (kMinBlockSize of c10/core/AllocatorConfig.h)
_FIRST_ADDRESS = 0x7F0000000000

Frame = Tuple[str, int, str]  # file, line, function


class Allocation(NamedTuple):
    """Live memory: bytes as requested; module and phase that made it ("forward", "backward", "recompute", "optimizer",
    "" outside); op: the operator of PyTorch; stream: number, 0 is the default stream.
    """

    bytes: int
    module: str
    phase: str
    op: str
    stream: int


class _Block:
    """An allocation. stack: number of its frames; origin: module, phase, operator."""

    __slots__ = ("address", "bytes", "stream", "stack", "origin")

    def __init__(self, address: int, size: int, stream: int, stack: int, origin: Tuple[str, str, str]) -> None:
        self.address, self.bytes, self.stream, self.stack, self.origin = address, size, stream, stack, origin


class Recording:
    """The result of record(). Bytes are those of the recorded device.

    - live_bytes, peak_bytes: allocations as requested, now and at the peak; live_rounded_bytes, peak_rounded_bytes:
      each rounded up to a multiple of 512, as the caching allocator does
    - notes: assumptions of this recording, and parts that are left out, a sentence each
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.live_bytes = self.peak_bytes = self.live_rounded_bytes = self.peak_rounded_bytes = 0
        self.notes: List[str] = []
        self._events: List[Tuple[str, _Block, int]] = []  # action, block, stack
        self._marks: List[Tuple[int, str]] = []  # number of events before a step, and its name
        self._live: Dict[int, _Block] = {}  # by address
        self._peak: int = 0  # number of events up to the peak
        self._next_address = _FIRST_ADDRESS
        self._stacks: Dict[Tuple[Frame, ...], int] = {}

    # ---- the recorder's part ---------------------------------------------------------------------------------------

    def _allocate(self, size: int, stream: int, frames: Tuple[Frame, ...], origin: Tuple[str, str, str]) -> _Block:
        rounded = _rounded(size)
        block = _Block(self._next_address, size, stream, self._stack(frames), origin)
        self._next_address += rounded
        self._live[block.address] = block
        self._events.append(("alloc", block, block.stack))
        self.live_bytes += size
        self.live_rounded_bytes += rounded
        self.peak_rounded_bytes = max(self.peak_rounded_bytes, self.live_rounded_bytes)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._peak = self.live_bytes, len(self._events)
        return block

    def _free(self, block: _Block) -> None:
        del self._live[block.address]
        self._events.append(("free_requested", block, block.stack))
        self._events.append(("free_completed", block, block.stack))
        self.live_bytes -= block.bytes
        self.live_rounded_bytes -= _rounded(block.bytes)

    def _stack(self, frames: Tuple[Frame, ...]) -> int:
        return self._stacks.setdefault(frames, len(self._stacks))

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    # ---- the user's part -------------------------------------------------------------------------------------------

    @property
    def event_count(self) -> int:
        """Events so far: an alloc, and two for each end of an allocation."""
        return len(self._events)

    def step(self, name: Optional[str] = None) -> None:
        """Marks the beginning of a step. The file has the marks as annotations, "step 0" and so on."""
        self._marks.append((len(self._events), f"step {len(self._marks)}" if name is None else name))

    def live(self) -> List[Allocation]:
        """Live allocations, in the order of allocation."""
        return [_described(block) for block in self._live.values()]

    def peak(self) -> List[Allocation]:
        """Live allocations at the (first) peak of requested bytes, in the order of allocation."""
        blocks: Dict[int, _Block] = {}
        for action, block, _ in self._events[:self._peak]:
            if action == "alloc":
                blocks[block.address] = block
            else:
                blocks.pop(block.address, None)
        return [_described(block) for block in blocks.values()]

    def snapshot(self) -> Dict[str, Any]:
        """The recording as PyTorch's memory snapshot (plain data). Nothing was reserved, so each live allocation has a
        segment, and no event is of a segment. Times are numbers of events. "recording" has the notes, and the first
        events of steps.
        """
        stacks: List[List[Dict[str, Any]]] = []
        known: Dict[Frame, Dict[str, Any]] = {}  # a frame is one object, which the pickle has once
        for stack in self._stacks:
            stacks.append([known.setdefault(frame, {"filename": frame[0], "line": frame[1], "name": frame[2]})
                           for frame in stack])
        events = [{"action": action, "addr": block.address, "size": block.bytes, "stream": block.stream,
                   "time_us": time, "frames": stacks[stack]}
                  for time, (action, block, stack) in enumerate(self._events)]
        segments = [_segment(block, stacks[block.stack]) for block in self._live.values()]
        marks = [{"stage": "START", "name": name, "device": 0, "time_us": time} for time, name in self._marks]
        return {"segments": segments, "device_traces": [events], "external_annotations": marks,
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
                "recording": {"device": self.device, "notes": list(self.notes),
                              "steps": [time for time, _ in self._marks]}}

    def write(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes snapshot() as a pickle, which `bucketpool view` and pytorch.org/memory_viz read. May be repeated, also
        while recording. Raises FileError.
        """
        temporary = f"{os.fspath(path)}.{os.getpid()}"
        try:
            with open(temporary, "wb") as file:
                pickle.dump(self.snapshot(), file, protocol=4)
            os.replace(temporary, path)
        except OSError as error:
            raise FileError(f"{os.fspath(path)}: cannot be written: {error.strerror or error}") from None
        finally:
            if os.path.exists(temporary):
                os.remove(temporary)


def _rounded(size: int) -> int:
    return max(1, -(-size // ROUNDED_TO)) * ROUNDED_TO


def _described(block: _Block) -> Allocation:
    return Allocation(block.bytes, *block.origin, block.stream)


def _segment(block: _Block, frames: List[Dict[str, Any]]) -> Dict[str, Any]:
    rounded = _rounded(block.bytes)
    return {"device": 0, "address": block.address, "total_size": rounded, "allocated_size": rounded,
            "active_size": rounded, "requested_size": block.bytes, "stream": block.stream,
            "segment_type": "small" if rounded <= 1 << 20 else "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": frames,
            "blocks": [{"address": block.address, "size": rounded, "requested_size": block.bytes,
                        "state": "active_allocated", "frames": frames}]}
