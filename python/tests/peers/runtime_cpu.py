# SPDX-License-Identifier: Apache-2.0
"""Replaces on a CPU what tests of runtimes use of a GPU: streams, devices, meshes, NCCL's operations, harnesses."""

import contextlib
import functools
import importlib.util
import inspect
import os
import pathlib
import sys
import threading
import types
import unittest
from typing import Any, Callable, NamedTuple

import pytest
import torch
import torch.distributed as dist
import torch.distributed.tensor

import stand_ins


class _Stream:
    """Work on a CPU has ended when its call returns."""

    device = torch.device("cpu")
    cuda_stream = 0

    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        pass

    def _nothing(self, *_arguments: Any, **_named: Any) -> None:
        pass

    wait_stream = wait_event = synchronize = _nothing

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()

    def query(self) -> bool:
        return True


class _Event:
    def __init__(self, *_arguments: Any, **_named: Any) -> None:
        pass

    def record(self, *_arguments: Any) -> None:
        pass

    wait = synchronize = record

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: Any) -> float:
        return 0.0


class _Generator(torch.Generator):
    def __new__(cls, device: Any = None) -> Any:
        return super().__new__(cls, "cpu")


def prepare(runtime: str) -> None:
    """Before tests of this runtime are imported."""
    stand_ins.on_the_cpu()
    torch.cuda.on_the_cpu.makes_devices = runtime == "Megatron-LM"  # which asks for a device of this type
    only = _Stream()
    for name, value in {
            "Stream": _Stream, "Event": _Event, "current_stream": lambda *_: only, "default_stream": lambda *_: only,
            "stream": lambda *_: contextlib.nullcontext(), "device": lambda *_: contextlib.nullcontext(),
            "current_device": lambda: 0, "memory_allocated": lambda *_: 0, "memory_reserved": lambda *_: 0,
            "get_rng_state": lambda *_, **__: torch.get_rng_state(), "set_rng_state": lambda *_, **__: None,
            "manual_seed": torch.manual_seed, "_sleep": lambda *_: None,
            "nvtx": types.SimpleNamespace(range_push=lambda *_: None, range_pop=lambda *_: None)}.items():
        setattr(torch.cuda, name, value)
    torch.accelerator.device_count = lambda: 4
    torch.Generator = _Generator
    threading.Thread.run = _moved(threading.Thread.run)  # a mode is a thread's
    for module in (torch.autograd, torch.autograd.graph):  # and backward() is one function of a mode, with all its hooks
        module._engine_run_backward = _moved(torch.autograd.graph._engine_run_backward)
    made = dist.device_mesh.DeviceMesh.__init__

    @functools.wraps(made)
    def mesh(self: Any, device_type: str, *arguments: Any, **named: Any) -> None:
        made(self, "cpu" if device_type == "cuda" else device_type, *arguments, **named)

    dist.device_mesh.DeviceMesh.__init__ = mesh
    on_meshes = dist.device_mesh.init_device_mesh
    moved = functools.wraps(on_meshes)(lambda device_type, *arguments, **named: on_meshes(
        "cpu" if device_type == "cuda" else device_type, *arguments, **named))
    for module in (dist, dist.device_mesh, torch.distributed.tensor):
        module.init_device_mesh = moved
    dist._make_nccl_premul_sum = _Factor
    for name in ("all_reduce", "reduce_scatter_tensor", "reduce_scatter"):
        setattr(dist, name, _scaled(getattr(dist, name)))
        setattr(dist.distributed_c10d, name, getattr(dist, name))
    if runtime == "pytorch":
        _harness_of_pytorch()
    else:  # its programs: only their arguments are used, and they import everything
        sys.modules["megatron.training"] = stand_ins.AbsentModule("megatron.training")


def begin(rank: int) -> None:
    """In the process of a rank, before its test."""
    utilities = sys.modules.get("tests.unit_tests.test_utilities")
    if utilities is not None:  # it has read the rank when it was imported
        utilities.Utils.rank = utilities.Utils.local_rank = rank
    buffers = sys.modules.get("megatron.core.distributed.fsdp.src.megatron_fsdp.experimental.dbuffer")
    if buffers is not None:  # notes no stream for memory of a CPU, but asserts one
        buffers.DBuffer.allocation_stream = property(lambda _: torch.cuda.current_stream(), lambda _, _stream: None)


def _moved(function: Callable[..., Any]) -> Callable[..., Any]:
    """In the mode that moves tensors to the CPU."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        with torch.cuda.on_the_cpu():
            return function(*arguments, **named)
    return call


class _Factor(NamedTuple):
    """NCCL's operation that multiplies inputs before it sums them."""

    value: float


def _scaled(collective: Callable[..., Any]) -> Callable[..., Any]:
    """With NCCL's averages and factors, which gloo has not: inputs are multiplied, then summed."""
    signature = inspect.signature(collective)

    @functools.wraps(collective)
    def call(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named).arguments
        op = bound.get("op")
        if not isinstance(op, _Factor) and op != dist.ReduceOp.AVG:
            return collective(*arguments, **named)
        factor = op.value if isinstance(op, _Factor) else 1 / dist.get_world_size(bound.get("group"))
        inputs = next(bound[name] for name in ("input_list", "input", "tensor") if name in bound)
        for each in inputs if isinstance(inputs, list) else [inputs]:
            each.mul_(factor)
        return collective(**{**bound, "op": dist.ReduceOp.SUM})
    return call


# ---- harnesses -------------------------------------------------------------------------------------------------------


def _harness_of_pytorch() -> None:
    """Tests that need two or four GPUs run on four ranks."""
    if importlib.util.find_spec("expecttest") is None:
        sys.modules["expecttest"] = types.ModuleType("expecttest")
        sys.modules["expecttest"].TestCase = unittest.TestCase
    from torch.testing._internal import common_cuda, common_distributed, common_fsdp, common_utils
    common_cuda.TEST_CUDA = True
    common_distributed.skip_if_lt_x_gpu = lambda *_, **__: lambda test: test
    common_fsdp.DEVICE_COUNT = 4
    common_utils.get_cycles_per_ms = common_fsdp.get_cycles_per_ms = lambda *_: 1.0
    parallel = torch.nn.parallel.DistributedDataParallel
    made = parallel.__init__
    parallel.__init__ = lambda self, module, device_ids=None, *rest, **named: made(self, module, None, *rest, **named)
    if not hasattr(common_fsdp, "test_compiled_fsdp"):  # its name in releases up to 2.6
        common_fsdp.test_compiled_fsdp = common_fsdp.compiled_fsdp_test
    cases = common_distributed.MultiProcessTestCase
    cases._spawn_processes = lambda self: self._start_processes(torch.multiprocessing.get_context("fork").Process)


@pytest.fixture
def distributed_setup() -> Any:
    """As in the suite of version 2."""
    yield types.SimpleNamespace(rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
                                device=torch.device("cuda", 0))
    if dist.is_initialized():
        dist.barrier()


@pytest.fixture
def tmp_path_dist_ckpt() -> pathlib.Path:
    """A folder of all ranks of a test."""
    folder = pathlib.Path(os.environ["BUCKETPOOL_PEER_SERVED"]).parent / "checkpoints"
    folder.mkdir(exist_ok=True)
    return folder
