# SPDX-License-Identifier: Apache-2.0
"""Callbacks for transformers' Trainer: served steps, and the buffers of FSDP2 from a pool.

    from bucketpool.torch.trainer import StepCallback

    trainer = Trainer(model, args, train_dataset=data, callbacks=[StepCallback("plan.json")])
    trainer.train()

PoolCallback is for FSDP2, which the Trainer uses through accelerate (fsdp_version 2). Nothing else of the Trainer changes.
A served step has the buffers of FSDP2, too: use one of the two.
"""

from typing import Any, Optional, Union

from torch import nn
from torch.distributed.fsdp import FSDPModule
from transformers import TrainerCallback

from ..errors import InvalidArgument
from ..names import Path
from ..step_plan import StepPlan
from . import fsdp2, steps

__all__ = ["PoolCallback", "StepCallback"]


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


class StepCallback(TrainerCallback):
    """Serves the steps of trainer.train() from a plan; or records its first steps, plans, and serves the following ones.

    - plan: a StepPlan or its file; None: record
    - log: add "step_allocations" and "step_served" of the last step to state.log_history
    - options: of steps.serve

    Attributes: served (while training), report (after it).

    If train() raises, serving continues: call stop(). Raises as steps.serve.
    """

    def __init__(self, plan: Union[StepPlan, Path, None] = None, log: bool = True, **options: Any) -> None:
        self.plan, self.log, self.options = plan, log, options
        self.served: Optional[steps.Served] = None
        self.report = ""

    def stop(self) -> None:
        """Stops serving."""
        served, self.served = self.served, None
        if served is not None:
            served.stop()
            self.report = served.report()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        if self.served is None:
            self.served = steps.serve(self.plan, **self.options)

    def on_log(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        if self.log and self.served is not None and state.log_history:
            last = self.served.last_step
            state.log_history[-1].update(step_allocations=last[0], step_served=last[1])

    def on_train_end(self, args: Any, state: Any, control: Any, **_others: Any) -> None:
        self.stop()
