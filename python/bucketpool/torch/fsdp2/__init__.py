"""PyTorch FSDP2 with its communication buffers in a pool.

    from bucketpool.torch import fsdp2

    with fsdp2.record(model) as recording:      # one step with plain memory
        train_step(model)
    attached = fsdp2.attach(model, recording)   # plan, pool, and from now on every step uses it
    ...
    print(attached.report())
    attached.detach()

docs/guides/fsdp2.md says which buffers these are, when each is reused and why that is safe, and what is refused."""

from .attachment import Attachment, Unplanned, attach, plan_of
from .groups import KNOWN_VERSIONS, Group, groups_of
from .predict import predict
from .recorder import record
from .timeline import Planned, Size, Slot, Timeline

__all__ = ["KNOWN_VERSIONS", "Attachment", "Group", "Planned", "Size", "Slot", "Timeline", "Unplanned", "attach",
           "groups_of", "plan_of", "predict", "record"]
