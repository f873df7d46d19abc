# SPDX-License-Identifier: Apache-2.0
"""A callback for transformers' Trainer: the buffers of FSDP2 from a pool.

    from bucketpool.torch.trainer import PoolCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[PoolCallback()])
    trainer.train()

The Trainer shards with FSDP2 through accelerate (fsdp_version 2); nothing else of it changes.
"""

from typing import Any, Optional

from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback

from ..errors import InvalidArgument
from . import fsdp2

__all__ = ["PoolCallback"]


def _root(model: Any) -> nn.Module:
    for module in model.modules() if isinstance(model, nn.Module) else ():
        if isinstance(module, FSDPModule):  # the root comes before its parts
            return module
    raise InvalidArgument(f"PoolCallback: {type(model).__name__} is not sharded with FSDP2; set fsdp_version=2 in "
                          "fsdp_config of the TrainingArguments, or leave the callback out")


class PoolCallback(TrainerCallback):
    """Attaches a pool at the first step of trainer.train() and detaches it at the end.

    - log: add "pool_bytes" and "pool_plain_buffers" (buffers that PyTorch allocated instead) to state.log_history
    - options: of fsdp2.attach; the plan is predicted, and follows the steps (on_mismatch "replan")

    Attributes: attached (while training), report (after it).

    If train() raises, the pool stays: call detach(). Raises as fsdp2.attach; InvalidArgument (a model without FSDP2).
    """

    def __init__(self, log: bool = True, **options: Any) -> None:
        self.log, self.options = log, options
        self.attached: Optional[fsdp2.Attachment] = None
        self.report = ""

    def detach(self) -> None:
        """Detaches the pool, if there is one."""
        attached, self.attached = self.attached, None
        if attached is not None:
            self.report = attached.report()
            attached.detach()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_others: Any) -> None:
        if self.attached is None:
            self.attached = fsdp2.attach(_root(model), **self.options)

    def on_log(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        if self.log and self.attached is not None and state.log_history:
            state.log_history[-1].update(pool_bytes=self.attached.plan.bytes,
                                         pool_plain_buffers=sum(self.attached.fallbacks.values()))

    def on_train_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        self.detach()
