"""CUDA graphs of PyTorch with a pool inside."""

from typing import Any, Optional, Sequence

from ..capture import Capture
from ..pool import Pool
from .streams import Streams


class GraphCapture(Capture):
    """bucketpool.Capture around torch.cuda.graph, and the launches of the graph that came of it. docs/guides/cuda_graphs.md.

        with attached.capture(stream) as capture, torch.cuda.graph(graph, stream=stream):
            ... a whole step ...
        capture.replay(graph)

    Written against the contracts of the C interface and of PyTorch, and tried on the emulated driver only."""

    def __init__(self, pool: Pool, streams: Streams, stream: Any, name: Optional[str] = None,
                 owned: Sequence[int] = ()) -> None:
        super().__init__(pool, name, owned)
        self._streams = streams
        streams.imported(stream)  # before anything is captured

    def replay(self, graph: Any) -> None:
        """Launches a torch.cuda.CUDAGraph on the current stream, between what launching() does."""
        with self.launching(self._streams.current()):
            graph.replay()
