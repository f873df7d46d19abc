# SPDX-License-Identifier: Apache-2.0
"""Captures that a runtime makes itself, followed by pools, on the emulated driver.

PyTorch computes on the CPU, the pool is on the emulated GPU, whose memory the host can access, and graphs of that
driver are launched through replacements of torch.cuda.CUDAGraph: they contain the pool's work, not that of PyTorch.
"""

import ctypes
import os
import types
import unittest.mock
import warnings

import pytest

import fsdp2_models as models
import process_group
from places import FAKES

pytestmark = pytest.mark.skipif(not os.path.exists(os.path.join(FAKES, "libcuda.so.1")),
                                reason=f"no emulated driver in {FAKES}")


def on_emulated_gpu(function, ranks=2):
    return process_group.run(function, ranks=ranks, environment={"LD_LIBRARY_PATH": FAKES, "FAKE_CUDA": "report=1"})


class Graph:
    """The methods of torch.cuda.CUDAGraph that runtimes call, over a graph of the driver."""

    stream = None  # of captures and replays

    def capture_begin(self, pool=None, capture_error_mode="global"):
        from bucketpool import _abi
        from bucketpool._library import call, core

        self.core, self.call, self.handle = core(), call, _abi.bp_graph()
        self.call(self.core.bp_graph_begin, self.stream.handle)

    def capture_end(self):
        self.call(self.core.bp_graph_end, self.stream.handle, ctypes.byref(self.handle))

    def replay(self):
        self.call(self.core.bp_graph_launch, self.handle, self.stream.handle)

    def close(self):
        self.core.bp_graph_destroy(ctypes.byref(self.handle))


class capturing:
    """As torch.cuda.graph, which also asks PyTorch's GPU."""

    def __init__(self, graph):
        self.graph = graph

    def __enter__(self):
        self.graph.capture_begin()

    def __exit__(self, *_exception):
        self.graph.capture_end()


def one_stream(device):
    """A replacement of Streams: PyTorch has no streams here."""
    from bucketpool.torch import streams

    class OneStream(streams.Streams):
        def __init__(self, _device, torch_device):
            super().__init__(device, torch_device)
            Graph.stream = self.only

        def imported(self, stream):
            return stream

        def settle(self, stream):
            pass  # for pools on a CPU

    return OneStream


def on_the_host(view, dtype, wait):
    import torch

    return torch.frombuffer((ctypes.c_uint8 * view.bytes).from_address(view.address), dtype=dtype)


# ---- FSDP2 -----------------------------------------------------------------------------------------------------------


def fsdp2_steps():
    """An eager step, a captured one, replays and eager steps in turn; a graph without the pool."""
    import torch

    from bucketpool import Device, errors
    from bucketpool.torch import fsdp2
    from bucketpool.torch.fsdp2 import attachment

    device = Device.cuda(0)
    attachment._device, attachment.Streams = lambda wanted, torch_device: device, one_stream(device)
    model = models.build("sizes")
    model.passes = [0, 1, 0, 2, 3]  # unlike the prediction, which is planned anew before the first capture
    with unittest.mock.patch.object(torch.cuda, "CUDAGraph", Graph):
        attached = fsdp2.attach(model)
    models.loss_of(model, 0).backward()
    answers = {"differed": bool(attached.fallbacks), "before": len(attached.replans)}
    plain_buffers = dict(attached.fallbacks)
    graph, other, mixed = Graph(), Graph(), Graph()
    with capturing(graph):
        models.loss_of(model, 0).backward()
    answers["after"], answers["plain"] = len(attached.replans), attached.fallbacks == plain_buffers
    answers["known"] = attached.pool.addresses_known
    capture, = graph._bucketpool_captures
    answers["inside"] = capture.summary.acquires, capture.summary.releases, capture.summary.ended
    for _ in range(2):
        graph.replay()
        models.loss_of(model, 1).backward()
    device.synchronize()
    answers["launches"] = capture.summary.launches
    model.passes = [3, 2, 1, 0]
    models.loss_of(model, 2).backward()
    models.loss_of(model, 2).backward()
    answers["kept"] = len(attached.replans) == answers["after"]  # graphs have the addresses
    with capturing(other):
        pass
    answers["without"] = other._bucketpool_captures
    other.replay()
    with attached.capture(Graph.stream, "declared") as declared, capturing(mixed):
        models.loss_of(model, 3).backward()
    declared.replay(mixed)
    answers["declared"] = mixed._bucketpool_captures, declared.summary.launches
    attached.detach()
    try:
        graph.replay()
    except errors.InvalidArgument as error:
        answers["detached"] = str(error)
    return answers


def test_fsdp2():
    for answers in on_emulated_gpu(fsdp2_steps):
        assert answers["differed"] and answers["before"] == 0 and answers["after"] == 1
        assert answers["plain"] and answers["known"] and answers["kept"]
        acquires, releases, ended = answers["inside"]
        assert acquires == releases > 8 and ended and answers["launches"] == 2
        assert answers["without"] == [] and answers["declared"] == ([], 1)
        assert "closed" in answers["detached"]


# ---- Megatron-FSDP ---------------------------------------------------------------------------------------------------


def megatron_iterations():
    """Full iterations as Megatron-LM's FullCudaGraphWrapper runs them: eager ones, one captured, then replays; an eager
    evaluation between them, and requests that differ from the plan.
    """
    import torch

    import megatron_fsdp
    from bucketpool import Device
    from bucketpool.torch import megatron_fsdp as pooled
    from bucketpool.torch.megatron_fsdp import allocator
    from bucketpool.view import View
    from megatron_cpu import random_stack, step, without_cuda, wrap

    device = Device.cuda(0)
    patch = unittest.mock.patch.object
    warnings.simplefilter("ignore")
    with without_cuda(), patch(torch.cuda, "CUDAGraph", Graph), patch(View, "_new_tensor", on_the_host), \
            patch(allocator, "device_for", lambda _device: device), patch(allocator, "Streams", one_stream(device)):
        with pooled.install() as installed:
            model = wrap(random_stack(4))
        optimizer = megatron_fsdp.fully_shard_optimizer(torch.optim.Adam(model.parameters(), 1e-2))

        def forward_backward():
            return [step(model, seed).item() for seed in (1, 2)]

        forward_backward()
        optimizer.step()
        optimizer.zero_grad()
        answers = {"eager": installed.pool.addresses_known, "device": installed.pool.device.name}
        graph = Graph()
        with capturing(graph):
            losses = forward_backward()
        capture, = graph._bucketpool_captures
        answers["inside"] = capture.summary.acquires, capture.summary.releases
        for _ in range(3):
            graph.replay()
            optimizer.step()  # a pool would be planned anew here
            optimizer.zero_grad()
            with torch.no_grad():
                model(torch.zeros(2, 3, dtype=torch.int64))
        device.synchronize()
        answers["launches"] = capture.summary.launches
        installed.only.pooled.asked["grad", 1] = (8, torch.float64)  # as after a request that differs
        answers["known"], answers["replanned"] = installed.pool.addresses_known, installed.only.replan()
        answers["counts"] = vars(installed.counts)
        graph.close()
        installed.close()
    return answers, losses


def test_megatron():
    for answers, losses in on_emulated_gpu(megatron_iterations):
        assert answers["device"].startswith("cuda") and len(losses) == 2
        assert not answers["eager"] and answers["known"] and not answers["replanned"]
        acquires, releases = answers["inside"]
        assert acquires == releases > 8 and answers["launches"] == 3
        assert answers["counts"]["busy"] == answers["counts"]["replans"] == 0


def megatron_streams():
    """Buckets on three streams, of which two join the capture; a bucket that is not freed inside it."""
    import torch

    from bucketpool import errors
    from bucketpool.torch import capture, megatron_fsdp as pooled
    from bucketpool.view import View
    from bucket_groups import Group, make_plan

    gpu, groups = torch.device("cuda", 0), [Group(unit, "fp32", 4096) for unit in range(4)]
    served = pooled.PooledBuckets(make_plan(groups), gpu)
    streams = {name: served.pool.device.stream(name) for name in ("compute", "gather", "reduce")}
    Graph.stream = streams["compute"]
    current = types.SimpleNamespace(cuda_stream=0)
    params, grads = (served.allocator(role, groups) for role in ("param", "grad"))

    class Holder:
        def pool(self):
            return served.pool, served.streams

    def on(name):
        current.cuda_stream = streams[name].native

    def fork(name, after="compute"):
        streams[name].wait(streams[after])

    def iteration():
        for unit in range(4):
            fork("gather")
            on("gather")
            params.allocate(unit, 4096, torch.float32, gpu)
            fork("compute", "gather")
            on("compute")
            params.free(unit)
        for unit in reversed(range(4)):
            on("compute")
            grads.allocate(unit, 4096, torch.float32, gpu)
            fork("reduce")
            on("reduce")
            grads.allocate(unit, 4096, torch.float32, gpu)
            grads.free(unit)
        fork("compute", "gather")
        fork("compute", "reduce")
        on("compute")

    holder, answers, graph, held = Holder(), {}, Graph(), Graph()
    with unittest.mock.patch.object(torch.cuda, "current_stream", lambda device: current), \
            unittest.mock.patch.object(torch.cuda, "CUDAGraph", Graph), \
            unittest.mock.patch.object(View, "_new_tensor", on_the_host):
        iteration()
        capture.follow(holder.pool)
        with capturing(graph):
            iteration()
        for _ in range(2):
            graph.replay()
            iteration()
        served.pool.device.synchronize()
        summary = graph._bucketpool_captures[0].summary
        answers["summary"] = summary.acquires, summary.releases, summary.launches
        try:
            with capturing(held):
                params.allocate(0, 4096, torch.float32, gpu)
        except errors.ScheduleError as error:
            answers["held"] = str(error)
        answers["live"] = served.pool.live()
    return answers


def test_megatron_streams():
    answers, = on_emulated_gpu(megatron_streams, ranks=1)
    assert answers["summary"] == (8, 8, 2)
    assert "param of layers.0" in answers["held"] and answers["live"] == []
