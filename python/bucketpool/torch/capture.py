"""Captures of torch.cuda.graph with a pool inside."""

from typing import Any, Optional, Sequence

from ..capture import Capture
from ..pool import Pool
from .streams import Streams


__all__ = ["GraphCapture"]


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
