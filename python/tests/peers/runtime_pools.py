# SPDX-License-Identifier: Apache-2.0
"""Attaches pools to the modules of a runtime, in the process of a rank, and counts the buffers that they serve.

BUCKETPOOL_PEER_SERVED names a file that gets a byte for each buffer, BUCKETPOOL_PEER_REFUSED one that gets a line for
each module that an adapter refuses, whose buffers stay the runtime's."""

import functools
import importlib
import os
import sys
from typing import Any, Callable, Dict, List

import torch
from torch import nn

from bucketpool import Error

_kept: List[Any] = []  # attachments, to the end of the process


def load(runtime: str) -> None:
    """Imports what attach() uses, before the processes of tests are forked."""
    importlib.import_module("bucketpool.torch." + ("fsdp2" if runtime == "pytorch" else "megatron_fsdp.v2"))


def attach(runtime: str) -> None:
    """From now on, to all modules."""
    {"Megatron-LM": _megatron, "pytorch": _fsdp2}[runtime]()


def _counted(cls: Any, name: str, served: Callable[[Any], int]) -> None:
    """Writes a byte for each buffer that a call of this method serves."""
    method = getattr(cls, name)
    handle = os.open(os.environ["BUCKETPOOL_PEER_SERVED"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        before = served(self)
        result = method(self, *arguments, **named)
        if served(self) > before:
            os.write(handle, b".")
        return result

    setattr(cls, name, call)


def _attached(attach: Callable[[], Any]) -> None:
    """Keeps an attachment."""
    try:
        _kept.append(attach())
    except Error as error:
        _refused(error)


def _refused(error: Error) -> None:
    with open(os.environ["BUCKETPOOL_PEER_REFUSED"], "a", encoding="utf-8") as file:
        print(f"{type(error).__name__}: {error}".splitlines()[0], file=file)


def _served(role: str, attachment: Any) -> int:
    count: int = attachment.served[role]
    return count


def _megatron() -> None:
    from bucketpool.torch import megatron_fsdp
    from bucketpool.torch.megatron_fsdp import v2
    from bucketpool.torch.megatron_fsdp.install import _Deferred

    allocate = _Deferred.allocate
    _Deferred.allocate = lambda self, bucket_id, size, dtype, device, *rest, **more: allocate(
        self, bucket_id, size, dtype, torch.device("cpu"), *rest, **more)
    _counted(_Deferred, "allocate", lambda self: self._wrapped.counts.served)
    for name, role in (("_reallocate", "param"), ("_served_grad", "grad")):
        _counted(v2.Attachment, name, functools.partial(_served, role))
    name = "megatron.core.distributed.fsdp.src.megatron_fsdp"
    _kept.append(megatron_fsdp.install(package=name))
    _kept[-1].__enter__()
    import megatron.core.distributed.fsdp.src.megatron_fsdp.param_and_grad_buffer as buffers
    made = buffers.ParamAndGradBuffer.__init__

    def init(self: Any, ddp_config: Any, *arguments: Any, **named: Any) -> None:
        ddp_config.fsdp_double_buffer = True  # the only buffers that are served
        made(self, ddp_config, *arguments, **named)

    buffers.ParamAndGradBuffer.__init__ = init
    experimental = sys.modules.get(name + ".experimental.module")
    if experimental is None:
        return
    finalize = experimental.FsdpContext.finalize

    def finalized(self: Any) -> None:
        modules = list(self._registered_modules)
        finalize(self)
        roots = [each for each in modules if each.is_root()]
        if roots:
            _attached(lambda: v2.attach(nn.ModuleList(roots)))

    experimental.FsdpContext.finalize = finalized


def _fsdp2() -> None:
    from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState

    from bucketpool.torch import fsdp2

    _counted(fsdp2.Attachment, "serve", lambda self: sum(self.served.values()))
    lazy_init, pre_forward = FSDPState._lazy_init, FSDPState._root_pre_forward
    recordings: Dict[Any, Any] = {}

    def initialized(self: Any) -> None:
        first = self._is_root is None
        lazy_init(self)
        if not first or not self._is_root:
            return
        module = self._modules[0]
        try:
            _kept.append(fsdp2.attach(module))
        except Error as error:
            try:  # sizes that only a step shows
                context = fsdp2.record(module)
                recordings[self] = context, context.__enter__()
            except Error:
                _refused(error)

    def recorded(self: Any, *arguments: Any) -> Any:
        if self in recordings and self._state_ctx.iter_forward_root is None:
            context, timeline = recordings.pop(self)
            context.__exit__(None, None, None)
            _attached(lambda: fsdp2.attach(self._modules[0], timeline))
        return pre_forward(self, *arguments)

    FSDPState._lazy_init = initialized  # type: ignore[method-assign]
    FSDPState._root_pre_forward = recorded  # type: ignore[assignment, method-assign]
