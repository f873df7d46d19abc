# SPDX-License-Identifier: Apache-2.0
"""FSDP2's adapter on the emulated driver and NCCL: captured steps and registration.

Captures: PyTorch computes on the CPU, the pool is on the emulated GPU, whose memory the host can access, and a graph of
that driver replaces torch.cuda.graph's. Registration runs without PyTorch, which loads a real NCCL.
"""

import os
import subprocess
import sys

import pytest

import fsdp2_models as models
import process_group
from places import FAKES

FAKE_NCCL = os.path.join(os.path.dirname(FAKES), "nccl")


class Graph:
    """A graph of the driver, launched as torch.cuda.CUDAGraph is."""

    def __init__(self, stream):
        import ctypes

        from bucketpool import _abi
        from bucketpool._library import call, core

        self.core, self.call, self.stream, self.handle, self.launches = core(), call, stream, _abi.bp_graph(), 0
        self.byref = ctypes.byref

    def __enter__(self):
        self.call(self.core.bp_graph_begin, self.stream.handle)

    def __exit__(self, *_exception):
        self.call(self.core.bp_graph_end, self.stream.handle, self.byref(self.handle))

    def replay(self):
        self.call(self.core.bp_graph_launch, self.handle, self.stream.handle)
        self.launches += 1


def on_three_streams(attached, model, device):
    """A gather by hand on one stream that is copied out on another, which is busy; what a third stream finds that
    reuses the memory.
    """
    import time

    streams, made, done = attached._streams, [device.stream(name) for name in ("first", "second", "third")], []
    streams.now = made[0]
    handle = model.layers[0].unshard(async_op=True)
    request = next(iter(attached._in_use.values())).request.id
    streams.now = made[1]
    made[1].call(lambda: (time.sleep(0.3), done.append("copied out")))
    handle.wait()
    assert not attached.live()
    attached.pool.acquire([request], made[2])
    made[2].call(lambda: done.append("gathered again"))
    made[2].synchronize()
    attached.pool.release([request], made[2])
    streams.now = streams.compute
    model.layers[0].reshard()
    for stream in made:
        stream.close()
    return done


def ended_in_backward(attached, device):
    """A gather that was allocated and enqueued on two streams and ends in backward on a third, which is busy; what a
    fourth finds.
    """
    import time

    import torch

    streams, made, done = attached._streams, [device.stream(name)
                                              for name in ("copy-in", "gather", "compute", "other")], []
    group = attached.groups[1]
    streams.now = made[0]
    held = [group.handle._all_gather_comm.allocate((group.gather_numel,), dtype=group.gather_dtype,
                                                   device=group.device)]
    streams.now = made[1]
    attached._communicates(attached.holder(held[0].data_ptr()))
    request = next(iter(attached._in_use.values())).request.id
    streams.now = made[2]
    made[2].call(lambda: (time.sleep(0.3), done.append("used")))
    result = torch.ones(1, requires_grad=True) * 2
    result.register_hook(lambda gradient: held.clear())
    result.backward()
    assert not attached.live()
    attached.pool.acquire([request], made[3])
    made[3].call(lambda: done.append("gathered again"))
    made[3].synchronize()
    attached.pool.release([request], made[3])
    streams.now = streams.compute
    for stream in made:
        stream.close()
    return done


def captured():
    import ctypes

    from bucketpool import Device, errors
    from bucketpool._library import core
    from bucketpool.torch import fsdp2, streams
    from bucketpool.torch.fsdp2 import attachment

    class OneStream(streams.Streams):
        """PyTorch has no streams here."""

        def __init__(self, device, torch_device):
            super().__init__(device, torch_device)
            self.compute = self.now = self._imported[0] = self.only
            self.only = None

        def current(self):
            return self.now

        def imported(self, stream):
            return stream

    device = Device.cuda(0)
    attachment._device = lambda wanted, torch_device: device
    attachment.Streams = OneStream
    plain, model = models.train(models.build("sizes"), 3), models.build("sizes")
    attached = fsdp2.attach(model)
    stream, answers = attached._streams.compute, {"device": attached.pool.device.name}
    answers["same"] = models.same(plain, models.train(model, 3))
    graph = Graph(stream)
    with attached.capture(stream, "step") as capture, graph:
        models.loss_of(model, 0).backward()
    summary = capture.summary
    answers["inside"] = summary.acquires, summary.releases, summary.ended, summary.name
    capture.replay(graph)
    model.zero_grad()
    models.train(model, 1)
    capture.replay(graph)
    device.synchronize()
    answers["launches"] = graph.launches, capture.summary.launches
    core().bp_graph_destroy(ctypes.byref(graph.handle))
    capture.close()
    handle = model.layers[0].unshard(async_op=True)  # a buffer is live when the capture begins
    try:
        attached.capture(stream).__enter__()
    except errors.ScheduleError as error:
        answers["held"] = str(error)
    handle.wait()
    model.layers[0].reshard()
    answers["balance"] = attached.live()
    answers["reused"] = on_three_streams(attached, model, device)
    answers["ended"] = ended_in_backward(attached, device)
    attached.detach()
    return answers


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKES, "libcuda.so.1")), reason=f"no emulated driver in {FAKES}")
def test_graph_of_forward_and_backward():
    found = process_group.run(captured, environment={"LD_LIBRARY_PATH": FAKES, "FAKE_CUDA": "report=1"})
    for answers in found:
        acquires, releases, ended, name = answers["inside"]
        assert answers["device"].startswith("cuda") and answers["same"]
        assert acquires == releases > 8 and ended and name == "step"
        assert answers["launches"] == (2, 2)
        assert "layers.0" in answers["held"] and answers["balance"] == []
        assert answers["reused"] == ["copied out", "gathered again"]
        assert answers["ended"] == ["used", "gathered again"]


REGISTERED = """
import ctypes, sys, types

for name, attributes in (("torch", ("Tensor", "dtype", "device")), ("torch.nn", ("Module",)),
                         ("torch.distributed", ("ProcessGroup",)), ("torch.distributed.fsdp", ("FSDPModule",))):
    module = sys.modules[name] = types.ModuleType(name)
    for attribute in attributes:
        setattr(module, attribute, object)
sys.modules["torch"].nn, sys.modules["torch"].distributed = sys.modules["torch.nn"], sys.modules["torch.distributed"]
sys.modules["torch"].device = str
from bucketpool import Buckets, Device, Model, Plan, Pool, Schedule
package = sys.modules["bucketpool.torch.fsdp2"] = types.ModuleType("bucketpool.torch.fsdp2")
import bucketpool.torch
package.__path__ = [bucketpool.torch.__path__[0] + "/fsdp2"]
from bucketpool.torch.fsdp2.registration import register_groups

device, comm = Device.cuda(0), ctypes.c_void_p()
nccl = ctypes.CDLL("libnccl.so.2", mode=ctypes.RTLD_GLOBAL)
assert nccl.ncclCommInitAll(ctypes.byref(comm), 1, (ctypes.c_int * 1)(0)) == 0
model = Model("one")
unit = model.add_unit("a")
model.add_bucket(unit, "fp32", 1000, roles=("param",))
model.add_event(True, unit, "param")
model.add_event(False, unit, "param")
buckets = Buckets(model, bucketing="given", padding="given", roles=("param",))
pool = Pool(device, Plan(buckets, Schedule.recorded(model, buckets)))
backend = types.SimpleNamespace(_comm_ptr=lambda: comm.value)
group = types.SimpleNamespace(group_name="7", _get_backend=lambda device: backend)
handle = types.SimpleNamespace(_all_gather_process_group=group, _reduce_scatter_process_group=group,
                               force_sum_reduction_for_comms=False)
groups = [types.SimpleNamespace(name="a", device="cuda:0", handle=handle)]
registration = register_groups(pool, device, groups, "symmetric")
print(registration.report())
registration.close()
pool.close()
print("closed")
"""


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKE_NCCL, "libnccl.so.2")),
                    reason=f"no emulated NCCL in {FAKE_NCCL}")
def test_registration_with_process_groups():
    done = subprocess.run([sys.executable, "-c", REGISTERED], capture_output=True, text=True, timeout=600,
                          env={**os.environ, "LD_LIBRARY_PATH": FAKES + ":" + FAKE_NCCL})
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "symmetric window requested, symmetric window granted" in lines[0] and "communicator nccl.7" in lines[0]
    assert any("ncclAvg" in line for line in lines) and lines[-1] == "closed"
