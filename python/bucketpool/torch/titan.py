# SPDX-License-Identifier: Apache-2.0
"""torchtitan with the buffers of FSDP2 from a pool, by one flag.

    ... -m torchtitan.train ... --override.imports bucketpool.torch.titan.pool                  # torchtitan 0.3
    ... -m torchtitan.train ... --job.custom_config_module bucketpool.torch.titan               # torchtitan 0.2

With serve_step, the whole step is served instead, from a file of bucketpool.torch.steps, or after "record":
'bucketpool.torch.titan.pool={"serve_step": "plan.json"}', or --bucketpool.serve_step plan.json. Other options are those of fsdp2.attach. 0.3: as JSON, 'bucketpool.torch.titan.pool={"policy": "max"}'. 0.2: policy and
on_mismatch, as --bucketpool.policy max or in the section [bucketpool].

0.3: the override wraps what builds the optimizers, whose arguments are the sharded parts of the model. The pools are
attached before the first step. 0.2: the module is torchtitan's custom configuration, in which the model converter
"bucketpool" is the default of model.converters; where you set that list, add "bucketpool". The pools are attached after
the first step. Where only a step shows the sizes (float8 gathers), the next step is recorded first.

`attached` has the attachments, one for each part of the model (stage of a pipeline) on this rank; `served` the served
steps. Raises as fsdp2.attach and steps.serve.
"""

import contextlib
import dataclasses
import logging
from typing import Any, Dict, List, Sequence, Tuple

from torch import nn
from torch.distributed.fsdp import FSDPModule

from ..errors import Unsupported
from . import fsdp2, steps

__all__ = ["JobConfig", "attached", "pool", "served"]

attached: List[fsdp2.Attachment] = []
served: List[steps.Served] = []
_log = logging.getLogger(__name__)


class _Parts:
    """The parts of a model, until each has a pool. serve_step: a plan or "record", instead of pools; "": pools."""

    def __init__(self, options: Dict[str, Any]) -> None:
        self.options = dict(options)
        self.serve_step = self.options.pop("serve_step", "")
        self._recorded: List[Tuple[nn.Module, contextlib.ExitStack, fsdp2.Timeline]] = []

    def begin(self, parts: Sequence[nn.Module]) -> None:
        """Attaches pools from predictions; records the next step of a part without one."""
        if self.serve_step:
            served.append(steps.serve(None if self.serve_step == "record" else self.serve_step))
            return
        for part in parts:
            if not isinstance(part, FSDPModule):
                _log.warning("bucketpool: %s is not sharded with FSDP2, so it gets no pool", type(part).__name__)
                continue
            try:
                self._attach(part)
            except Unsupported:
                recording = contextlib.ExitStack()
                self._recorded.append((part, recording, recording.enter_context(fsdp2.record(part))))

    def stepped(self, *_: Any) -> None:
        """Attaches pools from recordings."""
        while self._recorded:
            part, recording, timeline = self._recorded.pop()
            recording.close()
            self._attach(part, timeline)

    def _attach(self, part: nn.Module, *recording: fsdp2.Timeline) -> None:
        made = fsdp2.attach(part, *recording, **self.options)
        attached.append(made)
        _log.info("bucketpool: policy %s, a pool of %d bytes, at least %d", made.plan.policy, made.plan.bytes,
                  made.plan.lower_bound_bytes)


def pool(config: Any, **options: Any) -> Any:
    """The override of torchtitan 0.3: a configuration of the optimizers that also attaches pools."""
    kind = type(config)

    def build(self: Any, *, model_parts: List[nn.Module], **given: Any) -> Any:
        optimizers, parts = kind.build(self, model_parts=model_parts, **given), _Parts(options)
        parts.begin(model_parts)
        optimizers.register_step_post_hook(parts.stepped)
        return optimizers

    return derive(config, type(kind.__name__, (kind,), {"build": build}))


@dataclasses.dataclass
class Options:
    """The section [bucketpool] of torchtitan 0.2."""

    policy: str = "scheduled"
    on_mismatch: str = "replan"
    serve_step: str = ""


@dataclasses.dataclass
class Model:
    """Replaces a default of torchtitan's section [model]."""

    converters: list[str] = dataclasses.field(default_factory=lambda: ["bucketpool"])


@dataclasses.dataclass
class JobConfig:
    """The fields that torchtitan 0.2 merges into its configuration."""

    model: Model = dataclasses.field(default_factory=Model)
    bucketpool: Options = dataclasses.field(default_factory=Options)


class _Converter:
    """torchtitan 0.2 calls it with the model before sharding, and with the sharded parts after each step."""

    def __init__(self, job_config: Any, parallel_dims: Any) -> None:
        self._parts = _Parts(dataclasses.asdict(job_config.bucketpool))
        self._begun = False

    def convert(self, model: nn.Module) -> None:
        """Does nothing."""

    def post_optimizer_hook(self, model: Any) -> None:
        """Attaches the pools."""
        if self._begun:
            self._parts.stepped()
        else:
            self._begun = True
            self._parts.begin(model if isinstance(model, list) else [model])


try:
    from torchtitan.config.override import derive, override
except ImportError:
    from torchtitan.protocols.model_converter import register_model_converter
    register_model_converter(_Converter, "bucketpool")
else:
    from torchtitan.components.optimizer import OptimizersContainer
    override(target=OptimizersContainer.Config, description="FSDP2's buffers from a pool")(pool)
