# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed ZeRO-3 with its communication buffers in a pool.

    from bucketpool.torch import deepspeed as pooled

    engine, *_ = deepspeed.initialize(...)      # ZeRO stage 3
    attached = pooled.attach(engine)            # records the first passes, then serves from a pool
    ...                                         # train
    attached.detach()

- Attachment: plan, pool, served, plain, replans, peak_bytes; memory(), detach()

Outputs of all-gathers, gathered parameters, the buckets of gradients and the inputs of reduce-scatters are served.
docs/guides/deepspeed.md describes their live ranges and the limits.
"""

from ..fsdp2.attachment import Unplanned
from .attachment import KNOWN_VERSIONS, Attachment, attach

__all__ = ["KNOWN_VERSIONS", "Attachment", "Unplanned", "attach"]
