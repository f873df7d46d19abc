# SPDX-License-Identifier: Apache-2.0
"""The events of a recording, its peaks, and its file in the format of PyTorch's memory snapshots."""

import os
import pickle
import tempfile
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from ...errors import FileError
from ...step_plan import StepPlan

__all__ = ["Allocation", "Block", "Recording"]

ROUNDED_TO = 512  # the caching allocator rounds sizes to multiples (kMinBlockSize of c10/core/AllocatorConfig.h)
_FIRST_ADDRESS = 0x7F0000000000

Frame = Tuple[str, int, str]  # file, line, function


class Allocation(NamedTuple):
    """Live memory: bytes as requested; module and phase that made it ("forward", "backward", "recompute", "optimizer",
    "" outside; what follows a module up to backward, such as the loss, is "forward"); op: the operator of PyTorch; stream:
    number, 0 is the default stream; kind: "parameters", "gradients", "optimizer state", "communication", "logits" (and
    their gradients), "workspace", or "" (activations and the rest).
    """

    bytes: int
    module: str
    phase: str
    op: str
    stream: int
    kind: str


class Block:
    """An allocation. stack: number of its frames; origin: module, phase, operator; kind: see Allocation."""

    __slots__ = ("address", "bytes", "stream", "stack", "origin", "kind")

    def __init__(self, address: int, size: int, stream: int, stack: int, origin: Tuple[str, str, str],
                 kind: str) -> None:
        self.address, self.bytes, self.stream, self.stack, self.origin = address, size, stream, stack, origin
        self.kind = kind


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
        self._events: List[Tuple[str, Optional[Block], int, str]] = []  # action, block, stack, metadata
        self._steps: List[int] = []  # number of events before each step
        self._annotations: List[Tuple[int, str, str]] = []  # number of events before, START or END, name
        self._metadata = ""  # of the program, for events that follow
        self._peak_since_reset = 0  # of rounded bytes
        self._live: Dict[int, Block] = {}  # by address
        self._peak: int = 0  # number of events up to the peak
        self._next_address = _FIRST_ADDRESS
        self._stacks: Dict[Tuple[Frame, ...], int] = {}

    # ---- the recorder's part ---------------------------------------------------------------------------------------

    def _allocate(self, size: int, stream: int, frames: Tuple[Frame, ...], origin: Tuple[str, str, str],
                  kind: str) -> Block:
        rounded = _rounded(size)
        block = Block(self._next_address, size, stream, self._stack(frames), origin, kind)
        self._next_address += rounded
        self._live[block.address] = block
        self._events.append(("alloc", block, block.stack, self._metadata))
        self.live_bytes += size
        self.live_rounded_bytes += rounded
        self.peak_rounded_bytes = max(self.peak_rounded_bytes, self.live_rounded_bytes)
        self._peak_since_reset = max(self._peak_since_reset, self.live_rounded_bytes)
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self._peak = self.live_bytes, len(self._events)
        return block

    def _free(self, block: Block) -> None:
        del self._live[block.address]
        self._events.append(("free_requested", block, block.stack, self._metadata))
        self._events.append(("free_completed", block, block.stack, self._metadata))
        self.live_bytes -= block.bytes
        self.live_rounded_bytes -= _rounded(block.bytes)

    def _empty_cache(self, frames: Tuple[Frame, ...]) -> None:
        self._events.append(("empty_cache", None, self._stack(frames), self._metadata))

    def _annotate(self, stage: str, name: str) -> None:
        self._annotations.append((len(self._events), stage, name))

    def _finish(self) -> None:
        if self._steps:
            self._annotate("END", f"ProfilerStep#{len(self._steps) - 1}")

    def _stack(self, frames: Tuple[Frame, ...]) -> int:
        return self._stacks.setdefault(frames, len(self._stacks))

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    # ---- the user's part -------------------------------------------------------------------------------------------

    @property
    def event_count(self) -> int:
        """Events so far: an alloc, two for each end of an allocation, one for torch.cuda.empty_cache()."""
        return len(self._events)

    def step(self) -> None:
        """Marks the beginning of a step, which ends at the next mark or at the end of the block. The file has steps as
        PyTorch's profiler annotates them: START and END of "ProfilerStep#0" and so on.
        """
        self._finish()
        self._annotate("START", f"ProfilerStep#{len(self._steps)}")
        self._steps.append(len(self._events))

    def live(self) -> List[Allocation]:
        """Live allocations, in the order of allocation."""
        return [_described(block) for block in self._live.values()]

    def peak(self) -> List[Allocation]:
        """Live allocations at the (first) peak of requested bytes, in the order of allocation."""
        blocks: Dict[int, Block] = {}
        for action, block, _, _ in self._events[:self._peak]:
            if block is None:
                continue
            if action == "alloc":
                blocks[block.address] = block
            else:
                blocks.pop(block.address, None)
        return [_described(block) for block in blocks.values()]

    def snapshot(self) -> Dict[str, Any]:
        """The recording as PyTorch's memory snapshot (plain data). Nothing was reserved, so each live allocation has a
        segment, and no event is of a segment; "empty_cache" is an event without size. Times are numbers of events: an
        annotation precedes the event of its time. "user_metadata" of an alloc is its kind ("kind=parameters"), of
        other events the program's text. "recording" has the notes, and the first events of steps.
        """
        stacks: List[List[Dict[str, Any]]] = []
        known: Dict[Frame, Dict[str, Any]] = {}  # a frame is one object, which the pickle has once
        for stack in self._stacks:
            stacks.append([known.setdefault(frame, {"filename": frame[0], "line": frame[1], "name": frame[2]})
                           for frame in stack])
        events = [{"action": action, "addr": block.address if block else 0, "size": block.bytes if block else 0,
                   "stream": block.stream if block else 0, "time_us": time, "frames": stacks[stack],
                   "user_metadata": f"kind={block.kind}" if block and block.kind and action == "alloc" else metadata}
                  for time, (action, block, stack, metadata) in enumerate(self._events)]
        segments = [_segment(block, stacks[block.stack]) for block in self._live.values()]
        annotations = [{"stage": stage, "name": name, "device": 0, "time_us": time}
                       for time, stage, name in self._annotations]
        return {"segments": segments, "device_traces": [events], "external_annotations": annotations,
                "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": False},
                "recording": {"device": self.device, "notes": list(self.notes), "steps": list(self._steps)}}

    def plan(self, **options: Any) -> StepPlan:
        """The plan of the recorded steps, for bucketpool.torch.steps: a job is planned without a GPU. options: as in
        StepPlan.from_events(). Raises InvalidArgument (no steps).
        """
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "recording.pickle")
            self.write(path)
            return StepPlan.from_snapshot(path, **options)

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


def _described(block: Block) -> Allocation:
    return Allocation(block.bytes, *block.origin, block.stream, block.kind)


def _segment(block: Block, frames: List[Dict[str, Any]]) -> Dict[str, Any]:
    rounded = _rounded(block.bytes)
    return {"device": 0, "address": block.address, "total_size": rounded, "allocated_size": rounded,
            "active_size": rounded, "requested_size": block.bytes, "stream": block.stream,
            "segment_type": "small" if rounded <= 1 << 20 else "large", "segment_pool_id": (0, 0),
            "is_expandable": False, "frames": frames,
            "blocks": [{"address": block.address, "size": rounded, "requested_size": block.bytes,
                        "state": "active_allocated", "frames": frames}]}
