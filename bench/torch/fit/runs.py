# SPDX-License-Identifier: Apache-2.0
"""Runs a training of `bucketpool fit` with values, on a GPU or a CPU, within a memory limit: edge.py and context.py use it in forked processes."""

import contextlib
import ctypes
import gc
import gzip
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "fsdp2"), os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "..", "python")]
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

import edges  # noqa: E402
import fake_group  # noqa: E402
from bucketpool.torch.fitting import training as _trainings  # noqa: E402,F401: imported once, before processes are forked
from machine import process_bytes  # noqa: E402

STEPS = 3
STEPS_IN_LIMIT = 16  # as many as fit plays: retries leave other gaps each time
ROUNDING = 4096  # added to limits, which are compared with multiples of 2 MiB: the fraction's rounding decides nothing


class Gpu:
    name = "cuda"

    def __init__(self):
        torch.cuda.init()

    def limit(self, limit_bytes, warm_up=lambda: None):
        """For PyTorch's allocator. Expandable segments map parts of segments, which the memory fraction counts as whole ones: the rest of the GPU
        is allocated instead, by the driver, when warm_up() has loaded libraries and kernels. No other process may allocate then."""
        if "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
            total = torch.cuda.get_device_properties(0).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, (limit_bytes + ROUNDING) / total), 0)
            return
        warm_up()
        gc.collect()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(0)
        free, _ = torch.cuda.mem_get_info(0)
        rest, address = (free + self.reserved_bytes() - limit_bytes) >> 21 << 21, ctypes.c_uint64()
        if rest < 0:
            raise RuntimeError(f"{free} bytes of the GPU are free, and the limit is {limit_bytes}")
        status = ctypes.CDLL("libcuda.so.1").cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(rest)) if rest else 0
        if status != 0:
            raise RuntimeError(f"cuMemAlloc of {rest} bytes: {status}")

    @contextlib.contextmanager
    def recorded(self, path):
        """Writes the allocator's events, for `bucketpool step` (after gunzip). None: does not."""
        if path is not None:
            torch.cuda.memory._record_memory_history("all", context=None, stacks="python")
        yield
        if path is not None:
            torch.cuda.memory._dump_snapshot(path)
            with open(path, "rb") as file, gzip.open(path + ".gz", "wb", compresslevel=6) as packed:
                packed.write(file.read())
            os.remove(path)

    def counters(self):
        torch.cuda.synchronize()
        known = torch.cuda.memory_stats(0)
        return {"reserved_bytes": known["reserved_bytes.all.peak"], "peak_bytes": known["allocated_bytes.all.peak"],
                "requested_bytes": known["requested_bytes.all.peak"], "retries": known["num_alloc_retries"]}

    def check_limit(self):
        """The allocator has."""

    def used_bytes(self):
        """By the driver: of all processes and libraries."""
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info(0)
        return total - free

    def reserved_bytes(self):
        return torch.cuda.memory_reserved(0)

    def is_out_of_memory(self, error):
        return isinstance(error, torch.cuda.OutOfMemoryError)


class Cpu:
    """Limits the bytes of tensors, after a step. Reserves nothing."""

    name, _limit = "cpu", None

    def __init__(self):
        torch.set_num_threads(1)
        self._profiler = None

    def limit(self, limit_bytes, warm_up=lambda: None):
        warm_up()
        self._limit = limit_bytes

    @contextlib.contextmanager
    def recorded(self, path):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True) as self._profiler:
            yield
        if path is not None:
            with gzip.open(path + ".gz", "wb") as packed:
                packed.write(b"")

    def counters(self):
        return {"reserved_bytes": None, "peak_bytes": None, "requested_bytes": None, "retries": None}

    def check_limit(self):
        """After the steps: the profiler knows its events at the end. Returns their peak."""
        events = [(event.start_ns(), event.nbytes()) for event in self._profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
        live = peak = 0
        for _, size in sorted(events, key=lambda event: event[0]):
            live += size
            peak = max(peak, live)
        if self._limit is not None and peak > self._limit:
            raise MemoryError(f"tensors of {peak} bytes exceed the limit of {self._limit}")
        return peak

    def used_bytes(self):
        return process_bytes("RssAnon")

    def reserved_bytes(self):
        return 0

    def is_out_of_memory(self, error):
        return isinstance(error, MemoryError)


def device_of(name):
    return Gpu() if name == "cuda" else Cpu()


def load(options):
    """Imports the model's code, before processes are forked."""
    transformers.logging.set_verbosity_error()
    training = edges.training_of(options, "cpu")
    return transformers.AutoModelForCausalLM._model_mapping[type(training.config)]


def _fill(model):
    """Values for parameters that were made without: those of FSDP2. Allocates nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
            local.fill_(1) if "norm" in name else local.normal_(0, 0.02)
        for buffer in model.buffers():
            buffer.zero_()


def train(device, options, batch, limit_bytes=None, steps=None, snapshot=None, after=lambda: None):
    """Steps of a training. Returns the counters after each, or says when memory ran out. after: called while the training lives."""
    if limit_bytes is not None:
        device.limit(limit_bytes, lambda: train(device, options, 1, steps=1))
    steps = steps or (STEPS_IN_LIMIT if limit_bytes is not None and device.name == "cuda" else STEPS)
    training, counters, at = edges.training_of(options, device.name), [], "the construction"
    if training.ranks > 1:
        dist.init_process_group("fake", rank=0, world_size=training.ranks, store=FakeStore())
    try:
        with device.recorded(snapshot):
            built = training.build()
            sharded = [module for module in built.model.modules() if isinstance(module, FSDPModule)]
            if sharded:
                fake_group.install(sharded)
                _fill(built.model)
            for number in range(steps):
                at = f"step {number + 1}"
                training.step(built, batch)
                counters.append(device.counters())
        peak = device.check_limit()
        if peak is not None:
            counters[-1]["peak_bytes"] = peak
    except Exception as error:
        if not device.is_out_of_memory(error):
            raise
        return {"outcome": "out of memory", "at": at, "said": str(error).split(". ", 1)[0][:300], "counters": counters}
    finally:
        if training.ranks > 1:
            dist.destroy_process_group()
    local = next(built.model.parameters())
    local = local.to_local() if hasattr(local, "to_local") else local
    return {"outcome": "runs", "counters": counters, "finite": bool(torch.isfinite(local).all()), "after": after()}
