# SPDX-License-Identifier: Apache-2.0
"""Memory, streams and graphs of the GPU, and their counterparts on a CPU: the only difference between a measurement and its rehearsal."""

import contextlib
import ctypes
import os
import threading

import torch

from machine import process_bytes


class Gpu:
    torch_device = torch.device("cuda", 0)
    memory_source, sample_s = "total - free of cudaMemGetInfo", 0.01
    ballast, ballast_bytes = None, 0

    def __init__(self):
        torch.cuda.set_device(self.torch_device)
        torch.cuda.init()
        self.name, self.backend = torch.cuda.get_device_name(0), torch.cuda.get_allocator_backend()

    def synchronize(self):
        torch.cuda.synchronize()

    def used_bytes(self):
        """Bytes in use on the device, by the driver's count."""
        free, total = torch.cuda.mem_get_info(0)
        return total - free

    def counters(self):
        """PyTorch's counters, without the ballast of leave(); None: cudaMallocAsync does not support them."""
        known = torch.cuda.memory_stats(0)
        found = {f"torch_peak_{name}_bytes": known.get(f"{name}_bytes.all.peak") for name in ("allocated", "reserved")}
        found = {name: value and value - self.ballast_bytes for name, value in found.items()}
        return found | {name: known.get(name) for name in ("num_alloc_retries", "num_ooms")}

    def forget(self):
        """Frees cached blocks and resets the counters."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(0)

    def leave(self, limit_bytes):
        """Allocates all free memory except this much."""
        free, _ = torch.cuda.mem_get_info(0)
        self.ballast_bytes = max(0, free - limit_bytes) >> 21 << 21  # whole pages, so that reserved and allocated bytes are equal
        self.ballast = torch.empty(self.ballast_bytes, dtype=torch.uint8, device=self.torch_device)

    def check_limit(self, high):
        """The driver enforces the limit."""

    def is_out_of_memory(self, error):
        """Includes errors of cuBLAS and of kernel loading that are caused by exhausted memory."""
        said = str(error)
        return isinstance(error, torch.cuda.OutOfMemoryError) or any(each in said for each in (
            "out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUBLAS_STATUS_NOT_INITIALIZED"))

    def side_stream(self):
        """Stream of a capture, and of the eager work before and between its replays."""
        return torch.cuda.stream(torch.cuda.Stream())

    def capture(self, training, step, mode):
        """Captures step() in a graph on the current stream. Returns the pool's capture and a function that replays the graph."""
        stream, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        pool = contextlib.nullcontext() if training.attached is None else training.attached.capture(stream, "step")
        with pool as capture, torch.cuda.graph(graph, stream=stream, capture_error_mode=mode):
            step()
            self.join(stream, training.model)
        return capture, graph.replay if capture is None else lambda: capture.replay(graph)

    def join(self, stream, module):
        """Orders the stream after every stream of FSDP2 that takes part in the capture."""
        for other in vars(module._get_fsdp_state()._comm_ctx).values():
            if isinstance(other, torch.cuda.Stream):
                with torch.cuda.stream(other):
                    captured = torch.cuda.is_current_stream_capturing()
                if captured:
                    stream.wait_stream(other)


class Cpu:
    torch_device = torch.device("cpu")
    memory_source, sample_s = "resident anonymous memory of the process: a CPU has no driver", 0.001
    name, backend, limit = "CPU", "malloc", None

    def synchronize(self):
        pass

    def used_bytes(self):
        return process_bytes("RssAnon")

    def counters(self):
        return {"torch_peak_allocated_bytes": None, "torch_peak_reserved_bytes": None, "num_alloc_retries": None, "num_ooms": None}

    def forget(self):
        ctypes.CDLL(None).malloc_trim(0)

    def leave(self, limit_bytes):
        """From now on check_limit() fails if the process has taken more than this."""
        self.limit = self.used_bytes() + limit_bytes

    def check_limit(self, high):
        if high.now() > self.limit:
            raise MemoryError(f"high-water mark of {high.bytes} bytes exceeds the limit of {self.limit}")

    def is_out_of_memory(self, error):
        return isinstance(error, MemoryError)

    def side_stream(self):
        return contextlib.nullcontext()

    def capture(self, training, step, mode):
        """Without graphs, a replay runs the step again."""
        return None, step


def of(name):
    """The requested device; raises RuntimeError with the reason without a GPU."""
    return Gpu() if name == "cuda" else Cpu()


class HighWater:
    """High-water mark of used_bytes(), sampled by a thread and by calls of now()."""

    def __init__(self, device):
        self.device, self.bytes, self._ended, self._thread = device, 0, threading.Event(), None

    def now(self):
        self.bytes = max(self.bytes, self.device.used_bytes())
        return self.bytes

    def start(self):
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self):
        while not self._ended.wait(self.device.sample_s):
            self.now()

    def stop(self):
        self._ended.set()
        self._thread.join()
