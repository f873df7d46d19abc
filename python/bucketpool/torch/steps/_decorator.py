# SPDX-License-Identifier: Apache-2.0
"""The decorator of one device of PyTorch, as objects: the functions of src/allocators/torch/decorator.h."""

import ctypes
import functools
from typing import Any, Dict, List, NamedTuple, Tuple

import torch

from ... import _abi
from ..._library import call, core, filled
from ...errors import Unsupported
from ...names import decoded
from ...step_plan import StepPlan
from ._build import library

__all__ = ["OUTCOMES", "STATES", "Block", "Decorator", "Loss", "Status", "decorators_of"]

# bp_decorator_state, and bp_step_outcome.
STATES = ("off", "waiting", "serving", "stopping", "failed")
OUTCOMES = ("served", "unknown", "misplaced", "outside", "busy", "unordered", "paused")


class Status(ctypes.Structure):
    """bp_decorator_status. Bytes are rounded to 512, and peaks are since reset_peak()."""

    _fields_ = [("state", ctypes.c_uint32), ("is_recording", ctypes.c_uint32), ("slab", ctypes.c_uint64),
                ("slab_bytes", ctypes.c_uint64), ("live_bytes", ctypes.c_uint64), ("peak_live_bytes", ctypes.c_uint64),
                ("reserved_bytes", ctypes.c_uint64), ("peak_reserved_bytes", ctypes.c_uint64),
                ("because", ctypes.c_char * 256)]


EVENTS = ctypes.POINTER(_abi.bp_step_event)
FUNCTIONS: Dict[str, Tuple[Any, List[Any]]] = {
    "bp_decorator_error": (ctypes.c_char_p, []),
    "bp_decorator_install": (ctypes.c_int, []),
    "bp_decorator_record": (ctypes.c_int, [ctypes.c_int]),
    "bp_decorator_events": (ctypes.c_size_t, [ctypes.c_int, ctypes.POINTER(EVENTS)]),
    "bp_decorator_forget": (None, [ctypes.c_int]),
    "bp_decorator_serve": (ctypes.c_int, [ctypes.c_int, _abi.bp_step_plan, ctypes.c_uint64]),
    "bp_decorator_replace": (ctypes.c_int, [ctypes.c_int, _abi.bp_step_plan]),
    "bp_decorator_stop": (None, [ctypes.c_int]),
    "bp_decorator_mark": (None, [ctypes.c_int]),
    "bp_decorator_get_status": (None, [ctypes.c_int, ctypes.POINTER(Status)]),
    "bp_decorator_reset_peak": (None, [ctypes.c_int]),
    "bp_decorator_server": (_abi.bp_step_server, [ctypes.c_int]),
}


class Block(NamedTuple):
    """Live memory of the slab. item: of the plan's kind."""

    offset: int
    bytes: int
    requested_bytes: int
    stream: int
    kind: int
    item: int


class Loss(NamedTuple):
    """Allocations of one size and stream that were not served. outcome: of OUTCOMES; mark: marks before the first."""

    outcome: str
    bytes: int
    stream: int
    times: int
    mark: int
    kind: int
    item: int


@functools.lru_cache(maxsize=None)
def installed(kind: str) -> ctypes.CDLL:
    """The decorator of "cuda" or "cpu", in front of PyTorch's allocator. Raises Unsupported."""
    functions = library(kind)
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    if functions.bp_decorator_install() != 0:
        raise Unsupported(f"{kind}: {decoded(functions.bp_decorator_error())}")
    return functions


class Decorator:
    """The decorator of one device. It passes everything on until it records or serves."""

    def __init__(self, kind: str, index: int = 0) -> None:
        self.kind, self.index = kind, index
        self._functions = installed(kind)
        self._status = Status()
        self.mark = functools.partial(self._functions.bp_decorator_mark, index)

    @property
    def name(self) -> str:
        """As torch.device: "cuda:0" or "cpu"."""
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def _checked(self, result: int) -> None:
        if result != 0:
            raise Unsupported(decoded(self._functions.bp_decorator_error()))

    def record(self) -> None:
        """Begins to record."""
        self._checked(self._functions.bp_decorator_record(self.index))

    def events(self) -> Tuple[Any, int]:
        """An array of bp_step_event, valid until the next call, and its length."""
        events = EVENTS()
        count = self._functions.bp_decorator_events(self.index, ctypes.byref(events))
        return events, int(count)

    def forget(self) -> None:
        """Ends the recording."""
        self._functions.bp_decorator_forget(self.index)

    def serve(self, plan: StepPlan, wait_bytes: int) -> None:
        """Serves a plan. wait_bytes: the slab is allocated at the first allocation before which so many bytes are live, or
        at the second mark. Raises Unsupported (it serves already).
        """
        self._checked(self._functions.bp_decorator_serve(self.index, plan.handle, wait_bytes))

    def replace(self, plan: StepPlan) -> None:
        """Serves another plan in the same slab, where what lives stays. Raises Unsupported (the plan has more bytes)."""
        self._checked(self._functions.bp_decorator_replace(self.index, plan.handle))

    def stop(self) -> None:
        """Stops serving. The slab goes back when nothing lives in it."""
        self._functions.bp_decorator_stop(self.index)

    def status(self) -> Status:
        """Counters, which the next call overwrites."""
        self._functions.bp_decorator_get_status(self.index, ctypes.byref(self._status))
        return self._status

    def reset_peak(self) -> None:
        """Sets the peaks to what is live and reserved now."""
        self._functions.bp_decorator_reset_peak(self.index)
        server = self._server
        if server:
            core().bp_step_server_reset_peak(server)

    # ---- the server ------------------------------------------------------------------------------------------------

    @property
    def _server(self) -> Any:
        return self._functions.bp_decorator_server(self.index)

    def statistics(self) -> _abi.bp_step_statistics:
        """Counters of the server; zeros if nothing is served."""
        server = self._server
        return filled(core().bp_step_server_get_statistics, _abi.bp_step_statistics, server) if server else \
            _abi.bp_step_statistics()

    def blocks(self) -> List[Block]:
        """Live memory of the slab, by address."""
        found, block, server = [], _abi.bp_step_block(), self._server
        offset = 0
        while server and core().bp_step_server_find(server, offset, ctypes.byref(block)):
            found.append(Block(block.offset, block.bytes, block.requested_bytes, block.stream, block.kind, block.item))
            offset = block.offset + block.bytes
        return found

    def losses(self) -> List[Loss]:
        """Allocations that were not served, by class; the first ones."""
        server = self._server
        if not server:
            return []
        array = (_abi.bp_step_deviation * _abi.BP_STEP_DEVIATIONS)()
        count = min(core().bp_step_server_deviations(server, array, len(array)), len(array))
        return [Loss(OUTCOMES[each.outcome], each.bytes, each.stream, each.count, each.mark, each.kind, each.item)
                for each in array[:count]]

    def waits(self) -> List[Tuple[int, int, int]]:
        """Waits of streams for streams so far: (waiting, before, waits), if there are any."""
        server, streams = self._server, range(_abi.BP_STEP_STREAMS)
        if not server:
            return []
        waits = core().bp_step_server_waits
        return [(to, of, count) for to in streams for of in streams if to != of for count in [waits(server, to, of)]
                if count]

    def check(self) -> None:
        """Verifies that the live blocks of the slab are disjoint, and the counters theirs. Raises Mismatch."""
        server = self._server
        if server:
            call(core().bp_step_server_check, server)


def decorators_of(device: str) -> List[Decorator]:
    """The decorators of "cpu", "cuda" (each GPU that is visible) or "cuda:1". Raises Unsupported, InvalidArgument."""
    where = torch.device(device)
    if where.type == "cuda":
        count = torch.cuda.device_count()
        if count == 0:
            raise Unsupported("cuda: PyTorch finds no GPU; pass device=\"cpu\", or --device cpu, to serve the CPU's memory")
        indices = range(count) if where.index is None else [where.index]
        return [Decorator("cuda", index) for index in indices]
    return [Decorator(where.type)]
