# SPDX-License-Identifier: Apache-2.0
"""bench/torch/fsdp2/capture.py with the pool on the emulated driver: PyTorch computes on the CPU, in memory of the
emulated GPU, and a graph of that driver holds the pool's part of a step. Prints what eager and captured trainings
found, as JSON.
"""

import json
import os
import sys

from places import ROOT

sys.path.insert(0, os.path.join(ROOT, "bench", "torch", "fsdp2"))

import options as settings  # noqa: E402

options = settings.complete(settings.parser("").parse_args(["--device", "cpu", "--rehearse", "--variant", "scheduled"]))

import capture  # noqa: E402
import device as devices  # noqa: E402
from bucketpool import Device  # noqa: E402
from bucketpool.torch import streams  # noqa: E402
from bucketpool.torch.fsdp2 import attachment  # noqa: E402
from test_fsdp2_gpu import Graph  # noqa: E402

EMULATED = Device.cuda(0)


class OneStream(streams.Streams):
    """A replacement for torch.cuda's streams."""

    def imported(self, stream):
        return stream


class Emulated(devices.Cpu):
    def capture(self, training, step, mode):
        stream = training.attached._streams.current()
        graph = Graph(stream)
        with training.attached.capture(stream, "step") as captured, graph:
            step()

        def replay():
            captured.replay(graph)
            step()  # the graph has the pool's part only

        return captured, replay


attachment._device, attachment.Streams, devices.Cpu = (lambda wanted, torch_device: EMULATED), OneStream, Emulated
print(json.dumps([capture.trained(options, mode) for mode in (None, "global")]))
