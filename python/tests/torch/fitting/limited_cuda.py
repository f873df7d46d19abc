# SPDX-License-Identifier: Apache-2.0
"""PyTorch's CUDA allocator in a memory limit, over the emulated runtime and driver. Prints a JSON object.

Arguments: "played", a recording and a limit in bytes; or "trained", a micro-batch, a limit, and the file of a snapshot, with the
functions of bench/torch/fit/runs.py.
"""

import json
import os
import sys
import types

ROOT = os.path.abspath(__file__).rsplit("/python/tests/", 1)[0]
sys.path[:0] = [os.path.join(ROOT, "bench", "torch", "fit"), os.path.join(ROOT, "python", "tests", "torch", "steps")]

import torch  # noqa: E402

import edges  # noqa: E402
import runs  # noqa: E402
from replayed_cuda import Player, Recording  # noqa: E402

MIB = 1 << 20
ROWS = 60 * MIB  # bytes of a micro-batch in a tensor; expandable segments grow by 20 MiB


def played(path, limit):
    """Allocations and frees of a recording."""
    device = runs.Gpu()
    device.limit(limit)
    try:
        Player(None).play(Recording(path))
    except torch.OutOfMemoryError as error:
        assert device.is_out_of_memory(error)
        return {"fails": True}
    return {"fails": False, **device.counters()}


class Steps:
    """Two tensors for each micro-batch, of which the second step needs a third one."""

    ranks = 1

    def build(self):
        self.number = 0
        assert torch.cuda.memory_reserved() == 0  # after the warm-up, too
        return types.SimpleNamespace(model=types.SimpleNamespace(modules=lambda: [], parameters=lambda: iter([torch.ones(1)])))

    def step(self, _built, batch):
        self.number += 1
        kept = [torch.empty(batch * ROWS, dtype=torch.uint8, device="cuda") for _ in range(min(3, 1 + self.number))]
        assert len(kept) > 1


def trained(batch, limit, path):
    """A micro-batch. limit: 0: none; path: of a snapshot."""
    edges.training_of = lambda options, device: Steps()
    device = runs.Gpu()
    return runs.train(device, {}, batch, limit or None, snapshot=path or None, after=lambda: device.used_bytes() - device.reserved_bytes())


if __name__ == "__main__":
    print(json.dumps(played(sys.argv[2], int(sys.argv[3])) if sys.argv[1] == "played" else trained(*map(int, sys.argv[2:4]), sys.argv[4])))
    sys.stdout.flush()
    os._exit(0)
