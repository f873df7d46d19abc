# SPDX-License-Identifier: Apache-2.0
"""PyTorch FSDP2 with its communication buffers in a pool.

    from bucketpool.torch import fsdp2

    with fsdp2.record(model) as recording:      # one step with plain memory
        train_step(model)
    attached = fsdp2.attach(model, recording)   # plans, and serves every later step from a pool
    ...
    print(attached.report())
    attached.detach()

- attach(model): without a recording, from the settings of the module
- attach_parameters(model): a pool for the unsharded parameters
- plan_of(model): units, buckets and schedule, for the planner and the command
- Attachment: register() with NCCL, capture() of CUDA graphs, report(), detach()

The outputs of all-gathers and the inputs of reduce-scatters are served. docs/guides/fsdp2.md describes their live
ranges, why reuse is safe, and the limits.
"""

from ..timeline import Planned, Size, Slot, Timeline
from .attachment import Attachment, Unplanned, attach, plan_of
from .groups import KNOWN_VERSIONS, Group, groups_of
from .parameters import Parameters, attach_parameters
from .predict import predict
from .recorder import record

__all__ = ["KNOWN_VERSIONS", "Attachment", "Group", "Parameters", "Planned", "Size", "Slot", "Timeline", "Unplanned",
           "attach", "attach_parameters", "groups_of", "plan_of", "predict", "record"]
