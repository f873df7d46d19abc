# SPDX-License-Identifier: Apache-2.0
"""Time and memory of the device of a benchmark: events and the driver's free memory on a GPU, the clock and the process's memory
on a CPU. Both have the same methods, so that GPU programs can be rehearsed on a CPU."""

import gc
import math
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Cpu:
    device = torch.device("cpu")
    name = "cpu"

    def mark(self):
        return time.perf_counter_ns()

    def nanoseconds(self, begin, end):
        return end - begin

    def synchronize(self):
        pass

    def free(self):
        """Collects garbage and frees cached memory."""
        gc.collect()

    def trim(self):
        pass

    def used_bytes(self):
        return process_bytes("VmRSS")

    def peak(self, function):
        """Peak bytes of a call, beyond those in use before."""
        self.free()
        with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
            file.write("5")
        before = self.used_bytes()
        function()
        return {"peak_driver_bytes": max(process_bytes("VmHWM") - before, 0)}

    def pinned(self, count):
        return torch.empty(count, dtype=torch.uint8)

    def head(self):
        return {"device": "cpu", "torch": torch.__version__}


class Cuda:
    device = torch.device("cuda", 0)
    name = "cuda"

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def nanoseconds(self, begin, end):
        end.synchronize()
        return begin.elapsed_time(end) * 1e6

    def synchronize(self):
        torch.cuda.synchronize()

    def free(self):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def trim(self):
        """Frees cached memory."""
        torch.cuda.empty_cache()

    def used_bytes(self):
        """By the driver: of all processes and libraries."""
        free, total = torch.cuda.mem_get_info()
        return total - free

    def peak(self, function):
        """Peak bytes of a call, beyond those in use before: of PyTorch's tensors, and of the driver. PyTorch returns no memory to the driver
        during a call that does not run out, so the driver's figure afterwards is the peak."""
        self.free()
        torch.cuda.reset_peak_memory_stats()
        allocated, used = torch.cuda.memory_allocated(), self.used_bytes()
        function()
        torch.cuda.synchronize()
        return {"peak_torch_bytes": torch.cuda.max_memory_allocated() - allocated, "peak_driver_bytes": self.used_bytes() - used}

    def pinned(self, count):
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)

    def head(self):
        properties = torch.cuda.get_device_properties(0)
        return {"device": properties.name, "device_bytes": properties.total_memory, "torch": torch.__version__,
                "cuda": torch.version.cuda}


class Traffic(TorchDispatchMode):
    """Counts the bytes of the tensors that PyTorch's operations read and write: the traffic of code whose kernels are all PyTorch's own."""

    UNREAD = ("zeros", "ones", "full", "fill_", "zero_", "normal_", "arange", "copy_")  # the tensor that they write or resemble

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
        made = function(*arguments, **(keywords or {}))
        name = function._schema.name.removeprefix("aten::")
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in function._schema.returns)
        if is_view or name.startswith(("empty", "new_empty", "_local_scalar")):
            return made
        read, written = [[leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)] for tree in ((arguments, keywords), made)]
        if name in ("gather", "scatter_add_"):  # elements that the index names
            self.bytes += 3 * size_of(next(tensor for tensor in read if not tensor.is_floating_point()))
            return made
        if any(word in name for word in self.UNREAD):
            read = read[1:]
        self.bytes += sum(map(size_of, read + written))
        return made


def size_of(tensor):
    """Bytes of the distinct elements."""
    return math.prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride) * tensor.element_size()


def process_bytes(name):
    """A line of /proc/self/status: VmRSS, VmHWM, RssAnon."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) * 1024


def machine(name):
    """The machine of `--device`; None if PyTorch does not support it."""
    if name == "cpu":
        return Cpu()
    if not torch.cuda.is_available():
        return None
    torch.cuda.init()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return Cuda()
