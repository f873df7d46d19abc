# SPDX-License-Identifier: Apache-2.0
"""Captures of torch.cuda.graph with a pool inside: declared by the caller, or by the pool where a runtime captures."""

import contextlib
import functools
import weakref
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from ..capture import Capture
from ..pool import Pool
from .streams import Streams


__all__ = ["GraphCapture", "follow"]


class GraphCapture(Capture):
    """A capture by torch.cuda.graph of whole steps that use the pool, and the launches of the graph.

        with attached.capture(stream) as capture, torch.cuda.graph(graph, stream=stream):
            ...                                     # a whole step, forward and backward
        capture.replay(graph)

    Made by Attachment.capture and Installed.capture; see docs/guides/cuda_graphs.md. Run a few steps eagerly first.
    Has been run on the emulated driver only.
    """

    def __init__(self, pool: Pool, streams: Streams, stream: Any, name: Optional[str] = None,
                 owned: Sequence[int] = ()) -> None:
        super().__init__(pool, name, owned)
        self._streams = streams
        streams.imported(stream)  # before anything is captured

    def replay(self, graph: Any) -> None:
        """Launches a torch.cuda.CUDAGraph on the current stream, inside launching()."""
        with self.launching(self._streams.current()):
            graph.replay()


Served = Callable[[], Optional[Tuple[Pool, Streams]]]
_followed: List["weakref.WeakMethod[Any]"] = []
_CAPTURES, _OPEN = "_bucketpool_captures", "_bucketpool_open"  # attributes of a graph


def follow(served: Served) -> None:
    """Declares every later capture of a torch.cuda.CUDAGraph, and each replay, to the pool that `served` returns then.

    For runtimes that capture themselves, through torch.cuda.graph or a CUDAGraph: full iterations of Megatron-LM,
    torchtitan, layers with torch.compile. served: a bound method, whose object is not kept; None: it has no pool now.

    - Requests that are live when a capture begins may be used inside and must be live again at each replay, such as
      the parameters of a layer that is captured alone. Others are acquired and released inside.
    - The pool is not planned anew afterwards, if the graph can contain its addresses.
    - capture_begin of the graph raises as entering a bucketpool.Capture (Unsupported in guard mode), capture_end as
      leaving it, replay as Capture.launching. A capture that the caller has declared is not declared twice.

    The first call replaces capture_begin, capture_end and replay of torch.cuda.CUDAGraph for the process.
    """
    _hook(torch.cuda.CUDAGraph)
    _followed.append(weakref.WeakMethod(served))


@functools.lru_cache(maxsize=None)
def _hook(kind: Any) -> None:
    """Replaces three methods of a class of graphs by ones that declare, once."""
    begin, end, replay = kind.capture_begin, kind.capture_end, kind.replay

    @functools.wraps(begin)
    def capture_begin(graph: Any, *arguments: Any, **named: Any) -> None:
        with contextlib.ExitStack() as stack:
            captures = []
            for each in list(_followed):
                served = each()
                if served is None:
                    _followed.remove(each)
                    continue
                found = served()
                if found is not None and not found[0].capturing:
                    captures.append(stack.enter_context(_Followed(*found)))
            begin(graph, *arguments, **named)
            setattr(graph, _CAPTURES, [])
            setattr(graph, _OPEN, (captures, stack.pop_all()))

    @functools.wraps(end)
    def capture_end(graph: Any) -> None:
        captures, stack = graph.__dict__.pop(_OPEN, ([], contextlib.ExitStack()))
        with stack:
            end(graph)
        setattr(graph, _CAPTURES, [each for each in captures if each.summary.bytes])

    @functools.wraps(replay)
    def launch(graph: Any) -> None:
        with contextlib.ExitStack() as stack:
            for each in getattr(graph, _CAPTURES, ()):
                stack.enter_context(each.launching(each._streams.current()))
            replay(graph)

    kind.capture_begin, kind.capture_end, kind.replay = capture_begin, capture_end, launch


class _Followed(GraphCapture):
    """The capture of a graph that may not use the pool at all."""

    def __init__(self, pool: Pool, streams: Streams) -> None:
        self._live, self._known = [each.id for each in pool.live()], pool.addresses_known
        Capture.__init__(self, pool, owned=self._live)
        self._streams = streams
        streams.current()  # imports the stream before anything is captured

    def __exit__(self, kind: Any, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None and not self._live and not self.summary.bytes:
            self.pool.addresses_known = self._known
