# SPDX-License-Identifier: Apache-2.0
"""Training steps at planned addresses: PyTorch's memory at the peak of what is live, without changes of the program.

    python -m bucketpool.torch.steps train.py ...                         # records three steps, plans, and serves
    python -m bucketpool.torch.steps --save plan.json train.py ...        # and keeps the plan
    python -m bucketpool.torch.steps --plan plan.json train.py ...        # serves from the first step

or in a program:

    from bucketpool.torch import steps

    with steps.serve("plan.json") as served:                              # or steps.serve(record=3)
        train()
    print(served.report())

A decorator of PyTorch's own allocator asks the plan for an address first; everything else stays PyTorch's: statistics,
snapshots, OutOfMemoryError, record_stream, CUDA graphs. docs/guides/step_memory.md describes it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._session import Served, install, mark, serve

__all__ = ["Served", "install", "mark", "serve"]


def __getattr__(name: str) -> Any:
    """The names above, when they are used: the launcher begins without PyTorch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _session
    return getattr(_session, name)
