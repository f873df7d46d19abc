# SPDX-License-Identifier: Apache-2.0
"""Streams, events, CUDA graphs and generators of a recording: the classes of torch.cuda as far as programs that train
use them. All work of a recording is done at once.
"""

import contextlib
import itertools
import sys
from typing import Any, Iterator, List, Optional, Tuple

import torch

from ...errors import Unsupported
from .recording import Recording

__all__ = ["Device", "Event", "Generator", "MemPool", "Stream", "Streams"]

_POOLS = itertools.count(1)


class Stream:
    """torch.cuda.Stream. Streams makes a subclass, which counts its recording's."""

    _count = 0

    def __init__(self, _device: Any = None, priority: int = 0, **_: Any) -> None:
        self.cuda_stream = self.stream_id = self.native_handle = self.number = type(self)._count
        type(self)._count += 1
        self.priority, self.device_index, self.device_type = priority, 0, 1
        self.device = torch.device("cuda", 0)

    def record_event(self, event: Any = None) -> Any:
        return Event() if event is None else event

    def query(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_event(self, _event: Any) -> None:
        pass

    wait_stream = wait_event

    def synchronize(self) -> None:
        pass

    @staticmethod
    def priority_range() -> Tuple[int, int]:
        return 0, -5


class Event:
    """torch.cuda.Event. Times are 1 ms, so that a throughput can be divided by them."""

    device = torch.device("cuda", 0)
    cuda_event = event_id = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, _stream: Any = None) -> None:
        pass

    wait = record

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _end: Any) -> float:
        return 1.0

    def ipc_handle(self) -> bytes:
        raise Unsupported("torch.cuda.Event.ipc_handle: a recording has one process; leave it out while you record")


class Device:
    """torch.cuda.device: there is one."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: Any) -> None:
        pass


class MemPool:
    """torch.cuda.MemPool: its memory is recorded with the rest."""

    def __init__(self, allocator: Any = None, *_: Any, **__: Any) -> None:
        self.allocator, self.id = allocator, (next(_POOLS), 0)

    def use_count(self) -> int:
        return 1

    def snapshot(self, *_: Any, **__: Any) -> Any:
        raise Unsupported("torch.cuda.MemPool.snapshot: a recording has no segments; leave it out while you record")


_Meta: Any = type(torch._C.Generator)  # not `type` since PyTorch 2.15


class _OfC(_Meta):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, torch._C.Generator)


class Generator(torch._C.Generator, metaclass=_OfC):
    """torch.Generator: one of the CPU, which names the device that the program asked for."""

    _asked: Any

    def __new__(cls, device: Any = "cpu") -> "Generator":
        made = super().__new__(cls)
        made._asked = torch.device("cuda", 0) if torch.device(device).type == "cuda" else torch.device(device)
        return made

    @property
    def device(self) -> Any:  # type: ignore[override]
        return self._asked


class Streams:
    """The current stream, and the classes of new streams and graphs. Streams have numbers: 0 is the default stream."""

    current: Stream

    def __init__(self, recording: Recording) -> None:
        def made(stream: Stream, device: Any = None, priority: int = 0, **_: Any) -> None:
            Stream.__init__(stream, device, priority)
            frame = sys._getframe(1)
            if stream.number:
                recording._note(f"stream {stream.number}: made in {frame.f_globals.get('__name__')}:{frame.f_lineno}")

        def enter(stream: Stream) -> Stream:
            entered.append(self.current)
            self.current = stream
            return stream

        def leave(_stream: Stream, *_: Any) -> None:
            self.current = entered.pop()

        def is_capturing(_stream: Stream) -> bool:  # since PyTorch 2.14
            return self.capturing

        entered: List[Stream] = []
        self.capturing = False
        self.type: Any = type("Stream", (Stream, ), {"__init__": made, "__enter__": enter, "__exit__": leave,
                                                     "is_capturing": is_capturing})
        self.default: Stream = self.type()
        self.current = self.default
        self.graph: Any = type("CUDAGraph", (_Graph, ), {"_streams": self, "_recording": recording})

    def set(self, stream: Optional[Stream]) -> None:
        self.current = self.default if stream is None else stream

    @contextlib.contextmanager
    def use(self, stream: Optional[Stream]) -> Iterator[None]:
        before = self.current
        if stream is not None:
            self.current = stream
        try:
            yield
        finally:
            self.current = before


class _Graph:
    """torch.cuda.CUDAGraph. What a capture allocates is recorded; a replay allocates nothing."""

    _streams: Streams
    _recording: Recording

    def __init__(self, *_: Any, **__: Any) -> None:
        self._pool: Any = (0, next(_POOLS))

    def capture_begin(self, pool: Any = None, **_: Any) -> None:
        self._recording._note("CUDA graphs: memory of a capture is recorded with the rest; on a GPU a graph keeps what "
                              "its capture freed in a private pool")
        self._pool = self._pool if pool is None else pool
        self._streams.capturing = True

    def capture_end(self) -> None:
        self._streams.capturing = False

    def pool(self) -> Any:
        return self._pool

    def replay(self) -> None:
        pass

    instantiate = reset = enable_debug_mode = replay

    def debug_dump(self, _path: str) -> None:
        pass

    def raw_cuda_graph(self) -> int:
        raise Unsupported("torch.cuda.CUDAGraph.raw_cuda_graph: nothing is captured in a recording; leave it out while "
                          "you record")

    raw_cuda_graph_exec = raw_cuda_graph
