"""CUDA graphs of whole steps with a pool inside."""

import ctypes
from typing import Any, Optional

from ... import Pool, _abi
from ..._library import call, configured, core, made
from .streams import Streams


class Capture:
    """A capture of the pool around PyTorch's own, and the launches of the graph that came of it. See docs/captures.md.

    Written against the C interface's contract and PyTorch's; FSDP2 has not been captured with it on a GPU."""

    def __init__(self, pool: Pool, streams: Streams, stream: Any, name: Optional[str]) -> None:
        self.pool, self._streams = pool, streams
        streams.imported(stream)  # before anything is captured
        self._name = None if name is None else name.encode()
        self._capture = ctypes.c_void_p()

    def __enter__(self) -> "Capture":
        config = configured(core().bp_capture_config_init, _abi.bp_capture_config, name=self._name)
        self._capture = made(core().bp_capture_begin, self.pool.handle, ctypes.byref(config))
        return self

    def __exit__(self, kind: Any, *_rest: Any) -> None:
        if kind is None:
            call(core().bp_capture_end, self._capture)
        else:
            core().bp_capture_abandon(ctypes.byref(self._capture))

    def replay(self, graph: Any) -> None:
        """Launches the graph on the current stream: it waits for eager work in the graph's memory, and eager work
        afterwards for it."""
        stream = self._streams.current()
        call(core().bp_capture_before_launch, self._capture, stream.handle)
        try:
            graph.replay()
        except BaseException:
            call(core().bp_capture_launched, self._capture, None)
            raise
        call(core().bp_capture_launched, self._capture, stream.handle)

    def close(self) -> None:
        """Forgets the graph, which must not be launched any more."""
        core().bp_capture_destroy(ctypes.byref(self._capture))
