"""The pool's part of a CUDA graph of forward and backward, on the emulated driver: PyTorch computes on the CPU, the pool is on the
emulated GPU, whose memory the host reaches, and a graph of that driver takes the place of torch.cuda.graph's."""

import os

import pytest

pytest.importorskip("torch")

import fsdp2_models as models  # noqa: E402
import fsdp2_world as world  # noqa: E402

FAKES = os.path.join(os.environ.get("BUCKETPOOL_BUILD", "build"), "tests", "fakes", "cuda")


class Graph:
    """A graph of the driver, launched as torch.cuda.CUDAGraph is."""

    def __init__(self, stream):
        import ctypes

        from bucketpool._library import call, core

        self.core, self.call, self.stream, self.handle, self.launches = core(), call, stream, ctypes.c_void_p(), 0
        self.byref = ctypes.byref

    def __enter__(self):
        self.call(self.core.bp_graph_begin, self.stream.handle)

    def __exit__(self, *_exception):
        self.call(self.core.bp_graph_end, self.stream.handle, self.byref(self.handle))

    def replay(self):
        self.call(self.core.bp_graph_launch, self.handle, self.stream.handle)
        self.launches += 1


def captured():
    import ctypes

    from bucketpool import Device, _abi, errors
    from bucketpool._library import core, filled
    from bucketpool.torch import fsdp2
    from bucketpool.torch.fsdp2 import attachment, streams

    class OneStream(streams.Streams):
        """PyTorch has no streams here."""

        def __init__(self, device, torch_device):
            super().__init__(device, torch_device)
            self.compute = self._host

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
    summary = filled(core().bp_capture_summary_get, _abi.bp_capture_summary, capture._capture)
    answers["inside"] = summary.acquires, summary.releases, summary.ended, summary.name
    capture.replay(graph)
    model.zero_grad()
    models.train(model, 1)
    capture.replay(graph)
    device.synchronize()
    answers["launches"] = graph.launches, filled(core().bp_capture_summary_get, _abi.bp_capture_summary, capture._capture).launches
    core().bp_graph_destroy(ctypes.byref(graph.handle))
    capture.close()
    handle = model.layers[0].unshard(async_op=True)  # something is held when a capture is to begin
    try:
        attached.capture(stream).__enter__()
    except errors.ScheduleError as error:
        answers["held"] = str(error)
    handle.wait()
    model.layers[0].reshard()
    answers["balance"] = attached.live()
    attached.detach()
    return answers


@pytest.mark.skipif(not os.path.exists(os.path.join(FAKES, "libcuda.so.1")), reason=f"no emulated driver in {FAKES}")
def test_a_graph_of_forward_and_backward():
    found = world.run(captured, environment={"LD_LIBRARY_PATH": FAKES, "FAKE_CUDA": "report=1"})
    for answers in found:
        acquires, releases, ended, name = answers["inside"]
        assert answers["device"].startswith("cuda") and answers["same"]
        assert acquires == releases > 8 and ended == 1 and name == b"step"
        assert answers["launches"] == (2, 2)
        assert "layers.0" in answers["held"] and answers["balance"] == []
