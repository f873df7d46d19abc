# SPDX-License-Identifier: Apache-2.0
"""Recordings of training steps without a GPU: their memory is that of real runs on the CPU, and of MemTracker."""

import collections
import copy
import os
import pickle
import re
import subprocess

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import bucketpool as bp
from bucketpool.torch import trace
from trace_cases import CASES, Transformer, checked, kinds, measured, steps_in, train

BUILD = os.environ.get("BUCKETPOOL_BUILD")


@pytest.mark.parametrize("name", CASES)
def test_cpu_peak(name):
    """The peak is that of a real run to 0.2 %. Without checkpointing it is the same but for scalars; checkpointing also
    keeps states of the random generator (5056 bytes each), which no operator allocates."""
    real = measured(train, **CASES[name])
    with trace.record(device="cpu") as recorded:
        train(**CASES[name], step=recorded.step)
    assert abs(recorded.peak_bytes - real) <= 0.002 * real
    if CASES[name].get("use_reentrant") is None:
        assert abs(recorded.peak_bytes - real) < 64
    assert checked(recorded.snapshot()) == (recorded.peak_bytes, recorded.live_bytes)


@pytest.mark.parametrize("name", ["mlp", "mlp-bf16", "transformer", "transformer-bf16", "transformer-checkpoint"])
def test_mem_tracker(name):
    """PyTorch's MemTracker follows a real first step (it refuses a second one), and counts the same bytes."""
    from torch.distributed._tools.mem_tracker import MemTracker
    tracker = MemTracker()
    with tracker:
        train(**CASES[name], steps=1)
    with trace.record(device="cpu") as recorded:
        train(**CASES[name], steps=1)
    total, = (each["Total"] for each in tracker.get_tracker_snapshot("peak").values())
    assert recorded.peak_bytes == total


@pytest.mark.parametrize("name", CASES)
def test_cuda(name, tmp_path):
    """On the recorded GPU: later steps are alike, and what stays at the end are workspaces."""
    marks = []

    def step():
        recorded.step()
        marks.append((recorded.event_count, recorded.live_bytes))

    with trace.record(device="cuda") as recorded:
        train(**CASES[name], device="cuda", step=step, steps=4)
    assert marks[2][0] - marks[1][0] == marks[3][0] - marks[2][0]
    assert marks[0][1] < marks[2][1] == marks[3][1]
    recorded.write(tmp_path / "step.pickle")
    with open(tmp_path / "step.pickle", "rb") as file:
        snapshot = pickle.load(file)
    assert snapshot == recorded.snapshot()
    assert checked(snapshot) == (recorded.peak_bytes, recorded.live_bytes)
    starts = [mark[0] for mark in marks]
    assert steps_in(snapshot) == list(zip(starts, [*starts[1:], recorded.event_count]))
    assert sum(each.bytes for each in recorded.peak()) == recorded.peak_bytes <= recorded.peak_rounded_bytes
    assert sum(each.bytes for each in recorded.live()) == recorded.live_bytes
    workspaces = collections.Counter((each.op, each.bytes) for each in recorded.live())
    assert workspaces.pop(("cuBLAS workspace", 32 << 20)) == 2  # of this thread, and of autograd's
    assert list(workspaces) in ([], [("cuBLASLt workspace", 1 << 20)])
    if CASES[name].get("optimizer") == "sgd":  # other optimizers run on the CPU for a parameter at a time
        with trace.record(device="cpu") as on_cpu:
            train(**CASES[name])
        assert sum(each.bytes for each in recorded.peak() if each.kind != "workspace") == on_cpu.peak_bytes


def test_foreach_on_cuda():
    """AdamW runs over all parameters at once on CUDA, so its square roots are all live."""
    with trace.record(device="cuda") as recorded:
        train("mlp", device="cuda")
    roots = [each for each in recorded.peak() if each.op == "aten::_foreach_sqrt"]
    assert len(roots) == 6 and {each.phase for each in roots} == {"optimizer"}


def test_autocast():
    """Autocast of CUDA decides, not that of the CPU, which leaves layer norms and losses in bf16."""
    with trace.record(device="cuda"):
        x = torch.randn(8, 16, device="cuda", requires_grad=True)
        weight = torch.randn(16, 16, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            y = F.linear(x, weight)
            loss = F.cross_entropy(y, torch.zeros(8, dtype=torch.long, device="cuda"))
            kinds = [each.dtype for each in (y, y @ weight, F.layer_norm(y, (16, )), y.softmax(-1), y.exp(), y.pow(2),
                                             y.relu(), loss)]
            z = F.dropout(F.linear(y.relu(), weight))
        z.sum().backward()
        assert weight.grad.dtype == torch.float32 and weight.grad.device == torch.device("cuda", 0)
    half, single = torch.bfloat16, torch.float32
    assert kinds == [half, half, single, single, single, single, half, single]
    assert type(z.grad_fn).__name__ == "NativeDropoutBackward0"  # the fused kernel of CUDA


def saved_by(attention, dtype=torch.bfloat16, heads=8, masked=False, capability=(8, 0), **options):
    """Allocations that attention leaves for backward: [2, 8, 128, 64], with fewer heads of keys."""
    with trace.record(device="cuda", attention=attention, capability=capability) as recorded:
        q = torch.randn(2, 8, 128, 64, dtype=dtype, device="cuda", requires_grad=True)
        k, v = (torch.randn(2, heads, 128, 64, dtype=dtype, device="cuda", requires_grad=True) for _ in range(2))
        if masked:
            options["attn_mask"] = torch.zeros(128, 128, dtype=dtype, device="cuda")
        before = len(recorded.live())
        y = F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != 8, **options)
        saved = recorded.live()[before:]
        y.sum().backward()
        assert q.grad.shape == q.shape and k.grad.shape == k.shape
        assert checked(recorded.snapshot())
    return [each.bytes for each in saved], recorded


def test_attention():
    """Outputs as CUDA's kernels return them: attention, logsumexp in fp32, state of the random generator."""
    output, rows = 2 * 8 * 128 * 64 * 2, 2 * 8 * 128 * 4
    saved, recorded = saved_by("auto", is_causal=True)
    assert saved == [output, rows, 16, 8] and "attention: the flash kernel of PyTorch" in recorded.notes
    temporary = {each["size"] for each in recorded.snapshot()["device_traces"][0]
                 if each["frames"][0]["name"] == "aten::_scaled_dot_product_flash_attention_backward (temporary)"}
    assert temporary == {rows, rows * 64}  # softmax_d, and dq in fp32
    saved, recorded = saved_by("auto", heads=2)
    assert saved[0] == output
    saved, recorded = saved_by("auto", masked=True)
    assert saved[:2] == [output, rows] and "attention: the efficient kernel of PyTorch" in recorded.notes
    saved, recorded = saved_by("auto", dtype=torch.float32)
    assert saved[:2] == [2 * output, rows]
    saved, recorded = saved_by("math")
    assert 2 * 8 * 128 * 128 * 4 in saved  # the probabilities, in fp32
    with trace.record(device="cuda") as recorded, torch.autocast("cuda", torch.bfloat16):
        q = torch.randn(1, 1, 128, 64, device="cuda")
        assert F.scaled_dot_product_attention(q, q, q).dtype == torch.bfloat16


def temporaries(recorded, name):
    return [each["size"] for each in recorded.snapshot()["device_traces"][0]
            if each["action"] == "alloc" and each["frames"][0]["name"] == f"{name} (temporary)"]


def test_cudnn_attention(monkeypatch):
    """PyTorch prefers cuDNN on Hopper. Its workspace is that of an H100: 135,266,560 bytes for 2 x 4,096 tokens, 32
    heads of 64, and 8 of keys."""
    output, rows = 2 * 8 * 128 * 64 * 2, 2 * 8 * 128 * 4
    for options in ({}, {"masked": True}, {"heads": 2}):
        saved, recorded = saved_by("auto", capability=(9, 0), **options)
        assert sorted(saved)[-2:] == [rows, output] and any("cuDNN's kernel" in note for note in recorded.notes)
    with trace.record() as recorded:
        q, k, v = (torch.empty(2, heads, 4096, 64, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                   for heads in (32, 8, 8))
        F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).sum().backward()
    assert temporaries(recorded, "aten::_scaled_dot_product_cudnn_attention_backward") == [135266560]
    assert "attention: the math kernel of PyTorch" in saved_by("auto", torch.float64, capability=(9, 0))[1].notes
    monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
    assert "attention: the flash kernel of PyTorch" in saved_by("auto", capability=(9, 0))[1].notes


@pytest.mark.parametrize("shape, dimensions, expected", [
    ((2, 4096, 2048), (0, 1), [134217728, 64]),  # an H100's, of the weight of a norm
    ((2, 4096, 2048), (2, ), []), ((64, 2048), (0, ), []),
    ((1 << 26, ), None, [2112, 4]),  # 528 blocks, a partial result in fp32 each
])
def test_reductions(shape, dimensions, expected):
    """Blocks of a reduction meet in memory of PyTorch's, if few outputs have many inputs."""
    with trace.record() as recorded:
        x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        x.sum() if dimensions is None else x.sum(dimensions)
    assert temporaries(recorded, "aten::sum") == expected


def test_sums_of_gradients():
    """Autograd adds gradients of one tensor into the first, unless a view or a program still refers to it."""
    def added(function):
        with trace.record() as recorded:
            x = torch.ones(1 << 16, device="cuda", requires_grad=True)
            loss = function(x * 2)
            before = recorded.event_count
            loss.backward()
            names = [each["frames"][0]["name"] for each in recorded.snapshot()["device_traces"][0][before:]
                     if each["action"] == "alloc"]
            assert x.grad.shape == x.shape
        return names.count("aten::add")

    assert added(lambda y: (y * 3 + y * 5).sum()) == added(lambda y: (y + y.sin()).mul(2).sum()) == 0
    assert added(lambda y: (y.sin() + y.cos() + y.exp()).sum()) == 0
    assert added(lambda y: (y + y.sin()).sum()) == 1  # into the gradient of a sum, which is one element


def test_names():
    """Module and phase, in forward, backward, recomputation and the optimizer; frames of the program."""
    with trace.record(device="cuda") as recorded:
        train("transformer", device="cuda", use_reentrant=False, steps=1)
    names = {}
    for event in recorded.snapshot()["device_traces"][0]:
        if event["action"] == "alloc":
            names.setdefault(event["frames"][0]["filename"], set()).add(event["frames"][0]["name"])
            assert any(frame["filename"].endswith("trace_cases.py") and frame["line"] > 0 for frame in event["frames"])
    assert "aten::addmm" in names["layers.1.up (forward)"] and "aten::addmm" in names["layers.1.up (recompute)"]
    assert "aten::mm" in names["layers.1.up (backward)"] and "aten::gelu" in names["layers.1 (forward)"]
    assert "aten::gelu_backward" in names["layers.1 (backward)"]
    assert "aten::_foreach_sqrt" in names["optimizer"] and "aten::mm" in names["head (forward)"]


def test_streams():
    """Each stream has its number and its workspace, and memory is of the stream that allocated it."""
    with trace.record(device="cuda", capability=(8, 0)) as recorded:
        side = torch.cuda.Stream()
        x = torch.ones(64, 64, device="cuda")
        with torch.cuda.stream(side):
            side.wait_stream(torch.cuda.default_stream())
            y = x @ x
            assert torch.cuda.current_stream() == side != torch.cuda.default_stream()
        y.record_stream(torch.cuda.current_stream())
        z = y @ y
        assert [(each.bytes, each.stream) for each in recorded.live()] == [
            (16384, 0), (16384, 1), ((8192 + 128) << 10, 1), (16384, 0), ((8192 + 128) << 10, 0)]
        assert torch.cuda.memory_allocated() == recorded.live_rounded_bytes
        del x, y, z
        assert {each.op for each in recorded.live()} == {"cuBLAS workspace"}


def test_workspace(monkeypatch):
    for config, expected in ((":4096:8", 32 << 20), (":16:8:4096:1", (128 + 4096) << 10), ("", 32 << 20)):
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", config)
        with trace.record() as recorded:
            x = torch.ones(4, 4, device="cuda")
            x @ x
            assert [each.bytes for each in recorded.live()] == [64, expected]
    for capability, expected in (((8, 0), 8320 << 10), ((9, 0), 32 << 20), ((10, 0), 8320 << 10)):
        with trace.record(capability=capability) as recorded:
            torch.ones(4, 4, device="cuda").mm(torch.ones(4, 4, device="cuda"))
            assert [each.bytes for each in recorded.live()] == [expected]


def test_workspaces_of_threads():
    """Backward has another handle of cuBLAS, in autograd's thread, also where it recomputes."""
    with trace.record() as recorded:
        net = nn.Sequential(*(nn.Linear(64, 64, bias=False, device="cuda") for _ in range(2)))
        for _ in range(2):
            checkpoint(net, torch.ones(64, 64, device="cuda"), use_reentrant=False).sum().backward()
        found = [(each.phase, each.bytes) for each in recorded.live() if each.op == "cuBLAS workspace"]
    assert found == [("forward", 32 << 20), ("recompute", 32 << 20)]


def test_workspaces_of_cublaslt(monkeypatch):
    """Products with a bias run in cuBLASLt, which allocates more unless the environment unifies them."""
    def found(bias, rows=64, **environment):
        for name in ("CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "DISABLE_ADDMM_CUDA_LT"):
            monkeypatch.setenv(name, environment[name]) if name in environment else monkeypatch.delenv(name, False)
        with trace.record(capability=(8, 0)) as recorded:
            torch.addmm(torch.ones(bias, device="cuda"), torch.ones(rows, 64, device="cuda"),
                        torch.ones(64, 64, device="cuda"))
            return [each.bytes >> 10 for each in recorded.live() if each.kind == "workspace"]

    assert found((64, )) == found((1, 64)) == [8320, 1024]
    assert found((64, 64)) == found((64, ), rows=1) == found((64, ), DISABLE_ADDMM_CUDA_LT="1") == [8320]
    assert found((64, ), CUBLASLT_WORKSPACE_SIZE="4096") == [8320, 4096]
    assert found((64, ), CUBLASLT_WORKSPACE_SIZE="32768") == [8320, 8320]
    assert found((64, ), CUBLASLT_WORKSPACE_SIZE="32768", TORCH_CUBLASLT_UNIFIED_WORKSPACE="0") == [8320, 32768]
    assert found((64, ), TORCH_CUBLASLT_UNIFIED_WORKSPACE="1") == [8320]


def test_storages():
    """Views share a storage; resize_ frees and allocates, as FSDP does; a storage lives as long as a view of it."""
    with trace.record(device="cuda") as recorded:
        x = torch.empty(1000, device="cuda")
        y, z = x.view(10, 100)[3:], x.detach()
        assert recorded.live_bytes == 4000 and recorded.live_rounded_bytes == 4096
        x.untyped_storage().resize_(0)
        assert recorded.live_bytes == 0
        x.untyped_storage().resize_(4000)
        del x, z
        assert recorded.live_bytes == 4000
        y.resize_(2000)
        assert recorded.live_bytes > 8000
        del y
        assert recorded.live_bytes == 0 and recorded.peak_bytes > 8000
        empty = torch.empty(0, device="cuda")
        host = torch.ones(1000)
        assert recorded.live_bytes == 0 and host.sum().item() == 1000
        moved = host.to("cuda")
        assert moved.device.index == 0 and recorded.live_bytes == 4000
        assert moved.to("cuda") is moved and moved.cuda() is moved and empty.numel() == 0
        module = nn.Linear(8, 8).to("cuda").to(torch.bfloat16)
        assert module.weight.device.type == "cuda" and module.weight.is_leaf and recorded.live_bytes == 4000 + 144
        module = nn.Linear(2048, 2048).cuda()  # on the CPU without values
        assert module.weight.device.type == "cuda"
        assert recorded.live_bytes == 4000 + 4 * (2048 * 2048 + 2048)
        large = torch.ones(1 << 20)
        large.data = large.to("cuda")  # as FSDP2 moves parameters
        assert large.device.type == "cuda" and large.untyped_storage().nbytes() == 4 << 20
    kept = recorded.live_bytes
    del moved, module
    assert recorded.live_bytes == kept  # the recording is over


def test_annotations():
    """Steps, optimizers and ranges of the program are annotated as in snapshots of a GPU, in the order of events."""
    with trace.record(device="cuda") as recorded:
        net = nn.Linear(8, 8, device="cuda")
        optimizer = torch.optim.AdamW(net.parameters())
        for _ in range(2):
            recorded.step()
            with torch.profiler.record_function("forward"):
                loss = net(torch.ones(2, 8, device="cuda")).sum()
            loss.backward()
            optimizer.step()
            open_step = recorded.snapshot()["external_annotations"]
    assert [(each["name"], each["stage"]) for each in open_step[-3:]] == [
        ("forward", "END"), ("Optimizer.step#AdamW.step", "START"), ("Optimizer.step#AdamW.step", "END")]
    snapshot = recorded.snapshot()
    events, = snapshot["device_traces"]
    annotations = snapshot["external_annotations"]
    times = [each["time_us"] for each in annotations]
    assert times == sorted(times) and annotations[-1] == {
        "stage": "END", "name": "ProfilerStep#1", "device": 0, "time_us": len(events)}
    start, end = (next(each["time_us"] for each in annotations if each["name"].startswith("Optimizer.step")
                       and each["stage"] == stage) for stage in ("START", "END"))
    places = {event["frames"][0]["filename"] for event in events[start:end] if event["action"] == "alloc"}
    assert places == {"optimizer"} and end > start


def test_empty_cache():
    """A separate event, which changes nothing that is live."""
    with trace.record(device="cuda") as recorded:
        kept = torch.empty(1 << 20, device="cuda")
        for each in (torch.cuda.empty_cache, torch.cuda.memory.empty_cache, torch.accelerator.empty_cache):
            before = recorded.event_count, recorded.live_bytes
            each()
            assert (recorded.event_count, recorded.live_bytes) == (before[0] + 1, before[1])
        torch.empty(1 << 21, device="cuda")
    events = recorded.snapshot()["device_traces"][0]
    assert [event["action"] for event in events] == ["alloc", *["empty_cache"] * 3, "alloc", "free_requested",
                                                     "free_completed"]
    assert events[1]["frames"][0]["name"] == "empty_cache" and events[1]["frames"][1]["filename"] == __file__
    assert checked(recorded.snapshot()) == (recorded.peak_bytes, recorded.live_bytes) and kept.numel() == 1 << 20
    assert [each.bytes for each in recorded.peak()] == [4 << 20, 8 << 20]


def test_kinds():
    """Parameters, gradients and optimizer state of an MLP, whose sizes are known, also in the file."""
    with trace.record(device="cuda") as recorded:
        with torch.device("cuda"):
            net = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Linear(32, 8, bias=False)).to(torch.bfloat16)
        count = sum(each.numel() for each in net.parameters())
        held = 2 * count + 2 * 2 * 32 + 8  # running mean and variance, and the number of batches
        optimizer = torch.optim.AdamW(net.parameters())
        for microbatches in (2, 1):
            for _ in range(microbatches):
                net(torch.ones(4, 64, device="cuda", dtype=torch.bfloat16)).sum().backward()
                sizes = kinds(recorded.live())
                assert sizes["parameters"] == held and sizes["gradients"] == 2 * count
            optimizer.step()
            sizes = kinds(recorded.live())
            assert sizes["optimizer state"] == 2 * 2 * count and sizes["workspace"] == (64 << 20) + (1 << 20)
            optimizer.zero_grad()
            assert kinds(recorded.live())["gradients"] == 0
        assert kinds(recorded.live()) == {"parameters": held, "optimizer state": 4 * count, "workspace": 65 << 20}
        net[0].weight = nn.Parameter(torch.zeros(32, 64, device="cuda"))  # the optimizer holds the old one
        assert kinds(recorded.live())["parameters"] == held + 4 * 32 * 64
    events = recorded.snapshot()["device_traces"][0]
    written = collections.Counter()
    for event in events:
        assert event["action"] == "alloc" or event["user_metadata"] == ""
        written[event["user_metadata"]] += event["size"]
    assert set(written) == {"", "kind=parameters", "kind=gradients", "kind=optimizer state", "kind=workspace"}
    assert written["kind=gradients"] == 2 * 2 * count  # the second microbatch adds to those of the first


class Words(nn.Module):
    def __init__(self, words=2048, width=64):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        return self.head(self.words(tokens) + self.places.weight[:tokens.shape[1]])


@pytest.mark.parametrize("rows", [256, 2048])
def test_kinds_of_logits(rows, tmp_path):
    """Logits, whole or in chunks: their copies, log-probabilities and gradients, and nothing else."""
    with trace.record() as recorded:
        with torch.device("cuda"):
            net, tokens = Words(), torch.randint(0, 9, (2, 1024))
        with torch.autocast("cuda", torch.bfloat16):
            hidden = net.words(tokens) + net.places.weight[:1024]
            net(tokens[:, :8]) if rows < 2048 else None
            loss = sum(F.cross_entropy(net.head(part).float(), words) for part, words in zip(
                hidden.flatten(0, 1).split(rows), tokens.flatten().split(rows))) if rows < 2048 else F.cross_entropy(
                    net(tokens).float().flatten(0, 1), tokens.flatten())
        loss.backward()
    named = collections.Counter(
        (event["frames"][0]["name"], event["size"]) for event in recorded.snapshot()["device_traces"][0]
        if event["user_metadata"] == "kind=logits" and event["size"] > 2 * 2 * 8 * 2048)
    half, whole = 2 * rows * 2048, 4 * rows * 2048
    chunks = 2048 // rows
    assert named == {("aten::mm", half): chunks, ("aten::_to_copy", whole): chunks, ("aten::_log_softmax", whole): chunks,
                     ("aten::nll_loss_backward", whole): chunks, ("aten::_log_softmax_backward_data", whole): chunks,
                     ("aten::_to_copy", half): chunks}
    if BUILD is None:
        return
    recorded.write(tmp_path / "logits.pickle")
    done = subprocess.run([os.path.join(BUILD, "tools", "bucketpool"), "step", "--by", "kind", tmp_path / "logits.pickle"],
                          capture_output=True, text=True, check=True)
    at_peak = kinds(recorded.peak())["logits"]
    assert re.search(rf"^logits +\d+ +{at_peak / 2**20:.2f} MiB", done.stdout, re.M), done.stdout


def test_counted():
    """Sizes that depend on values, as a program gives them; gradients go back; errors name operator and module."""
    asked = []

    def half(tensor):
        asked.append(tuple(tensor.shape))
        return tensor.numel() // 2

    with trace.record(nonzero=half) as recorded:
        x = torch.randn(8, 4, device="cuda", requires_grad=True)
        rows = x[:, 0] > 0
        assert torch.nonzero(x).shape == (16, 2) and x[rows].shape == (4, 4) and x[:, rows[:4]].shape == (8, 2)
        assert [each.shape for each in torch.where(rows)] == [(4, )]
        assert x.masked_select(x > 0).shape == (16, ) and x.masked_select(rows[:, None]).shape == (16, )
        values, inverse, counts = torch.unique(x.detach(), return_inverse=True, return_counts=True)
        assert (values.shape, inverse.shape, counts.shape) == ((16, ), (8, 4), (16, ))
        assert torch.unique_consecutive(x.detach()).shape == (16, )
        (x[rows].sum() + x.masked_select(x > 0).sum()).backward()
        assert x.grad.shape == x.shape and asked[:2] == [(8, 4), (8, )]
        known = torch.tensor([1, 0, 1, 1], device="cuda")
        assert known.nonzero().shape == (3, 1)  # values are known
    assert "sizes that depend on values: as record(nonzero=...) says" in recorded.notes

    with trace.record(), pytest.raises(bp.Unsupported, match="size of its result depends on values"):
        torch.where(torch.randn(8, device="cuda") > 0)  # a comparison is taken to be true, which decides no size

    class Router(nn.Module):
        def forward(self, x):
            return x.nonzero()

    for options, error, message in (
            ({}, bp.Unsupported, "aten::nonzero in 0 (forward): the size of its result depends on values"),
            ({"nonzero": lambda tensor: 99}, bp.InvalidArgument,
             "nonzero: 99 for aten::nonzero in 0 (forward), a tensor of 4 elements; return 0 to 4")):
        with pytest.raises(error, match=re.escape(message)), trace.record(**options):
            nn.Sequential(Router())(torch.randn(4, device="cuda"))


def test_copies_are_silent(recwarn):
    """deepcopy asks fake tensors for their address, of which PyTorch warns."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with trace.record(device="cuda"):
            copy.deepcopy(nn.Linear(64, 64, device="cuda"))
    finally:
        torch.set_warn_always(always)
    assert not [each for each in recwarn if "FakeTensor" in str(each.message)]


def test_kinds_of_copies():
    """Copied, converted modules and those of the meta device; an optimizer inside backward; master weights."""
    with trace.record(device="cuda") as recorded:
        net = nn.Linear(64, 64, bias=False, device="cuda")
        size = 4 * 64 * 64
        copied = copy.deepcopy(net)
        assert kinds(recorded.live()) == {"parameters": 2 * size}
        with torch.device("meta"):
            later = nn.Linear(64, 64, bias=False)
        later.to_empty(device="cuda")
        assert later.weight.is_cuda and kinds(recorded.live()) == {"parameters": 3 * size}
        later.half()
        assert kinds(recorded.live()) == {"parameters": 2 * size + size // 2}
        optimizer = torch.optim.AdamW(copied.parameters())

        def step(_):
            optimizer.step()
            optimizer.zero_grad()

        copied.weight.register_post_accumulate_grad_hook(step)
        copied(torch.ones(2, 64, device="cuda")).sum().backward()
        assert kinds(recorded.live())["optimizer state"] == 2 * size and kinds(recorded.live())["gradients"] == 0
        masters = [each.detach().float() for each in later.parameters()]
        later(torch.ones(2, 64, device="cuda", dtype=torch.float16)).sum().backward()
        masters[0].grad, later.weight.grad = later.weight.grad.float(), None
        torch.optim.AdamW(masters).step()
        sizes = kinds(recorded.live())
        assert sizes["parameters"] == 3 * size + size // 2 and sizes["gradients"] == size and sizes[""] == 0
        assert later.weight.grad is None


def test_older_releases(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.10.0+cu128")
    with pytest.raises(bp.Unsupported, match=r"need PyTorch 2\.11 or later, and this is 2\.10\.0\+cu128"), trace.record():
        pass
    with trace.record("cpu") as recorded:
        torch.zeros(1024)
    assert recorded.peak_bytes == 4096


def test_arguments():
    for arguments, match in ((dict(device="cuda:1"), "device: 'cuda:1'; pass 'cuda' or 'cpu'"),
                             (dict(attention="fast"), "attention: 'fast'; pass one of auto, cudnn, flash"),
                             (dict(frames=-1), "frames: -1")):
        with pytest.raises(bp.InvalidArgument, match=match), trace.record(**arguments):
            pass
    with trace.record():
        with pytest.raises(bp.InvalidArgument, match="another recording is active"), trace.record():
            pass
    with pytest.raises(bp.FileError, match="cannot be written"):
        with trace.record() as recorded:
            recorded.write("/no folder/step.pickle")


def test_end():
    """After the recording, also a failed one, PyTorch is as before: no modes, hooks or replaced functions."""
    places = [(torch.cuda, "is_available"), (torch.cuda, "Stream"), (torch.UntypedStorage, "resize_"),
              (F, "scaled_dot_product_attention"), (torch.autograd, "_engine_run_backward"),
              (torch.utils, "swap_tensors"), (torch.Tensor, "record_stream")]
    before = [getattr(owner, name) for owner, name in places]
    with pytest.raises(ZeroDivisionError), trace.record(device="cuda"):
        model = nn.Linear(4, 4, device="cuda")
        model(torch.ones(1, 4, device="cuda")).sum().backward()
        1 / 0
    assert before == [getattr(owner, name) for owner, name in places]
    assert not nn.modules.module._global_forward_pre_hooks
    assert type(torch.ones(4)) is torch.Tensor
    train("mlp", steps=1)


def test_frames():
    for frames in (0, 2):
        with trace.record(frames=frames) as recorded:
            kept = Transformer(layers=1)
            train("mlp", device="cuda", steps=1)
        assert {len(event["frames"]) for event in recorded.snapshot()["device_traces"][0]} == {1 + frames}
        assert kept is not None


def test_memory_viz():
    """PyTorch's reader of snapshots takes a recording: it plays the trace, and its segments hold what is live."""
    from torch.cuda import _memory_viz
    with trace.record() as recorded:
        kept = torch.ones(1000, device="cuda")
        train("mlp", device="cuda", steps=1)
    snapshot = recorded.snapshot()
    text = _memory_viz.trace(snapshot)
    allocations = sum(event["action"] == "alloc" for event in snapshot["device_traces"][0])
    assert len(re.findall(r"^\w+ = ", text, re.MULTILINE)) == allocations and kept.numel() == 1000
    assert "32.0MiB" in _memory_viz.segsum(snapshot) and len(_memory_viz.trace_plot(snapshot)) > 10_000


@pytest.mark.skipif(not BUILD, reason="BUCKETPOOL_BUILD names no build folder")
def test_view(tmp_path):
    """The command reads a recording as a snapshot of PyTorch."""
    with trace.record() as recorded:
        train("transformer", device="cuda")
    recorded.write(tmp_path / "step.pickle")
    output = subprocess.run([os.path.join(BUILD, "tools", "bucketpool"), "view", str(tmp_path / "step.pickle")],
                            capture_output=True, text=True)
    assert output.returncode == 0, output.stderr
    peak = recorded.peak_bytes / 2**20
    assert f"{peak:.4g} MiB"[:4] in output.stdout, output.stdout
