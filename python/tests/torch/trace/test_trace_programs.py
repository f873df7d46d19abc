# SPDX-License-Identifier: Apache-2.0
"""Programs as people write them, in recordings without a GPU: guards against infinite values, torch.cuda, compilation,
graphs, files, data loaders. Each is recorded, or refused in one sentence of ours."""

import copy
import io
import math
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bucketpool as bp
from bucketpool.torch import trace
from trace_cases import checked, kinds


def net(device="cuda"):
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(device)


def on(*sizes, **options):
    return torch.randn(*sizes, device="cuda", **options)


GUARDS = {  # of x, which is finite: (value of the guard, expected)
    "isnan-any": (lambda x: bool(torch.isnan(x).any()), False),
    "isinf-any": (lambda x: bool(x.isinf().any()), False),
    "isfinite-all": (lambda x: bool(torch.isfinite(x).all()), True),
    "isfinite-scalar": (lambda x: bool(torch.isfinite(x.sum())), True),
    "not-isfinite": (lambda x: bool((~torch.isfinite(x)).any()), False),
    "isneginf": (lambda x: bool(torch.isneginf(x).any()), False),
    "math-isnan": (lambda x: math.isnan(x.mean().item()), False),
    "math-isfinite": (lambda x: math.isfinite(float(x.mean())), True),
    "differs-from-itself": (lambda x: bool((x != x).any()), False),
    "equals-inf": (lambda x: bool((x.abs() == float("inf")).any()), False),
    "logical-or": (lambda x: bool(torch.logical_or(x.sum().isnan(), x.sum().isinf())), False),
    "bitwise-or": (lambda x: bool((x.isnan() | x.isinf()).any()), False),
    "of-stacked-norms": (lambda x: bool(torch.isnan(torch.stack([x.norm(), x.norm()])).any()), False),
    "of-foreach-norms": (lambda x: bool(torch.isnan(torch.stack(torch._foreach_norm([x, x]))).any()), False),
    "counted": (lambda x: torch.isnan(x).sum().item(), 0),
    "counted-finite": (lambda x: torch.isfinite(x).sum().item(), 64),
    "counted-nonzero": (lambda x: torch.count_nonzero(x.isnan()).item(), 0),
    "mean": (lambda x: x.isnan().float().mean().item(), 0.0),
    "maximum": (lambda x: x.isnan().max().item(), False),
    "as-int": (lambda x: int(x.isnan().any()), 0),
    "inverted": (lambda x: x.isnan().any().logical_not().item(), True),
    "compared-with-false": (lambda x: bool(x.isnan().any() == False), True),  # noqa: E712
    "added-to-a-flag": (lambda x: (torch.zeros((), device=x.device) + x.isnan().any()).item(), 0.0),
    "written-to-a-flag": (lambda x: torch.ones(1, device=x.device).copy_(x.isnan().any()).item(), 0.0),
    "on-the-cpu": (lambda x: x.isnan().any().cpu().item(), False),
    "as-numpy": (lambda x: x.isnan().any(dim=1).cpu().numpy().tolist(), [False] * 8),
    "as-list": (lambda x: x.isnan().any().tolist(), False),
    "where": (lambda x: torch.where(x.isnan().any(), 1, 2).item(), 2),
    "selected": (lambda x: x.isnan()[3, 1:2].item(), False),
    "equal": (lambda x: torch.equal(x, x), True),
    "allclose": (lambda x: torch.allclose(x, x), True),
    "above-a-threshold": (lambda x: bool(x.sum() > 1e4), False),
}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", GUARDS)
def test_guards(name, device):
    guard, expected = GUARDS[name]
    with trace.record(device=device):
        found = guard(torch.randn(8, 8, device=device))
    assert found == expected and type(found) is type(expected)


def test_known_values():
    """Numbers that fill a tensor are known until an operator with unknown values, or a partial write, replaces them."""
    with trace.record(device="cuda", item=lambda tensor: 7) as recorded:
        assert on(()).item() == 7.0 and torch.full((2, 2), 3, device="cuda")[0, 1].item() == 3
        total = torch.zeros((), device="cuda")
        for _ in range(3):
            total += 2
        assert total.item() == 6.0 and total.clone().item() == 6.0
        total += on(())
        assert total.item() == 7.0
        flags = torch.zeros(4, dtype=torch.bool, device="cuda")
        assert not flags.any()
        flags[1:2] = True
        assert flags.any()
        mask = torch.full((3, 3), float("-inf"), device="cuda").triu(1)
        assert mask.isinf().any() and mask[0].tolist() == [0.0, -math.inf, -math.inf]
        assert (on(3, 3) + mask).isfinite().all()  # unknown values are finite
    with trace.record(device="cuda") as recorded:
        assert on(()).item() == 1.0 and torch.bernoulli(on(4)).bool().all()
        assert any(note.startswith("item()") for note in recorded.notes)
        assert (torch.randint(0, 9, (4, 8), device="cuda") != -100).sum(-1).max().item() == 8
        with pytest.raises(bp.Unsupported, match="aten::nonzero: the size of its result depends on values"):
            on(4).nonzero()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_computed_values(device):
    """Small tensors from the CPU keep their elements, and operators on them are computed: lengths of sequences."""
    with trace.record(device=device):
        lengths = torch.tensor([5, 3, 4]).to(device)
        assert lengths.tolist() == [5, 3, 4] and lengths.max().item() == 5 and lengths[1].item() == 3
        starts = F.pad(lengths.cumsum(0), (1, 0))
        assert starts.cpu().tolist() == [0, 5, 8, 12] and starts[-1].item() == 12
        assert torch.empty(4, dtype=torch.long).copy_(starts).tolist() == [0, 5, 8, 12]
        assert torch.equal(starts[1:], lengths.cumsum(0)) and not torch.equal(starts[:3], lengths)
        longest = int(lengths.max())
        mask = torch.arange(longest, device=device)[None, :] < lengths[:, None]
        assert mask.sum().item() == 12 and mask.nonzero().shape == (12, 2)
        x = torch.randn(3, 8, device=device).repeat_interleave(lengths, 0)
        assert x.shape == (12, 8)
        lengths[0] = 1
        assert lengths.tolist() == [1, 3, 4] and lengths.unique().shape == (3, )
        lengths += torch.randint(0, 9, (3, ), device=device).to(lengths.dtype) if device == "cuda" else 1
        assert lengths.tolist() == ([1, 1, 1] if device == "cuda" else [2, 4, 5])  # unknown
        step = torch.zeros((), device=device)
        torch._foreach_add_([step], 1)
        assert step.item() == 1.0


def trained(recorded, step):
    """Kinds of what is live after two steps of AdamW: with the optimizer's state if steps were not skipped."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        step(model, optimizer)
    return kinds(recorded.live())["optimizer state"] == 2 * 4 * sum(each.numel() for each in model.parameters())


def test_guarded_steps():
    """No guard skips the optimizer's step: of the loss, of gradients, of the norm; GradScaler; anomaly detection."""
    def loss_guard(model, optimizer):
        loss = model(on(4, 64)).sum()
        if torch.isnan(loss).any() or not torch.isfinite(loss):
            return
        loss.backward()
        optimizer.step()

    def gradient_guard(model, optimizer):
        model(on(4, 64)).sum().backward()
        if any((~each.grad.isfinite()).any() for each in model.parameters()):
            return
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        if torch.isfinite(norm):
            optimizer.step()

    def scaled(model, optimizer):
        with torch.autocast("cuda", torch.float16):
            loss = model(on(4, 64)).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    def anomaly(model, optimizer):
        with torch.autograd.set_detect_anomaly(True):
            model(on(4, 64)).sum().backward()
        optimizer.step()

    for step in (loss_guard, gradient_guard, scaled, anomaly):
        with trace.record(device="cuda") as recorded:
            scaler = torch.amp.GradScaler("cuda")
            assert trained(recorded, step), step.__name__
    assert scaler.get_scale() == 65536.0


def test_generation():
    """A loop that ends at a sequence's end or at a length runs to the length."""
    with trace.record(device="cuda"):
        tokens, unfinished = torch.randint(0, 9, (2, 3), device="cuda"), torch.ones(2, dtype=torch.long, device="cuda")
        while unfinished.max() != 0:
            following = on(2, 9).argmax(-1)
            tokens = torch.cat([tokens, following[:, None]], -1)
            long = torch.full((2, ), tokens.shape[1] >= 8, dtype=torch.bool, device="cuda")
            unfinished = unfinished & ~((following == 2) | long)
        assert tokens.shape == (2, 8)


def test_addresses():
    """Programs find shared memory by addresses."""
    with trace.record(device="cuda") as recorded:
        x, y = on(8), on(8)
        pointers = [each.untyped_storage().data_ptr() for each in (x, x[2:], y)]
        assert pointers[0] == pointers[1] != pointers[2] and x[2:].data_ptr() == x.data_ptr() + 8
        del y
    assert [event["addr"] for event in recorded.snapshot()["device_traces"][0]][:2] == pointers[::2]


def test_host_values():
    """Small copies to the CPU have values: printed, converted, backward through the copy."""
    with trace.record(device="cuda") as recorded:
        x = on(4, 4, requires_grad=True)
        y = x.cpu()
        y.sum().backward()
        assert x.grad.device.type == "cuda" and y.tolist() == [[1.0] * 4] * 4 and y.detach().numpy().shape == (4, 4)
        assert f"{x.sum():.2f} {x.sum().item():.1f}" == "1.00 1.0" and "cuda" in str(x) and x.tolist() == y.tolist()
        staged = torch.empty(4, 4, pin_memory=True)
        staged.copy_(x.detach(), non_blocking=True)
        assert staged[0].tolist() == [1.0] * 4
        assert on(1024, 1024).cpu().numpy().shape == (1024, 1024)
        assert recorded.live_bytes == 2 * 64


def test_cuda_statistics(tmp_path):
    with trace.record(device="cuda") as recorded:
        x = on(1 << 20)
        del x
        kept = on(256)
        assert torch.cuda.memory_allocated() == torch.accelerator.memory_allocated() == 1024
        assert torch.cuda.max_memory_allocated() == 4 << 20
        assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == 4 << 20
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == torch.accelerator.max_memory_allocated() == 1024
        assert recorded.peak_bytes == 4 << 20 and torch.cuda.mem_get_info() == ((80 << 30) - 1024, 80 << 30)
        assert "1024 bytes" in torch.cuda.memory_summary()
        with pytest.raises(bp.Unsupported, match="a recording has no 'segment.all.current'"):
            torch.cuda.memory_stats()["segment.all.current"]
        torch.cuda.memory._record_memory_history(max_entries=1000)
        torch.cuda.memory._set_memory_metadata("mine")
        torch.cuda.memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
    with open(tmp_path / "snapshot.pickle", "rb") as file:
        assert len(pickle.load(file)["device_traces"][0]) == 4
    assert recorded.snapshot()["device_traces"][0][-1]["user_metadata"] == "mine"


def test_cuda_streams_and_events():
    with trace.record(device="cuda") as recorded:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        side = torch.Stream(device="cuda")
        with side:
            x = on(64)
        with torch.cuda.stream(torch.cuda.Stream()):
            y = on(64)
        end.record()
        torch.cuda.synchronize()
        assert 1 / begin.elapsed_time(end) > 0 and torch.Event("cuda").query()
        assert [each.stream for each in recorded.live()] == [1, 2] and x.shape == y.shape


def test_generators():
    """torch.Generator("cuda") and the random state; generators of the CPU give their numbers."""
    with trace.record(device="cuda") as recorded:
        generator = torch.Generator("cuda").manual_seed(3)
        assert generator.device == torch.device("cuda", 0) and isinstance(generator, torch.Generator)
        made = [torch.randn(4, device="cuda", generator=generator),
                torch.randperm(8, device="cuda", generator=generator),
                torch.empty(4, device="cuda").normal_(generator=generator),
                torch.rand(4, device="cuda").bernoulli_(generator=generator)]
        nn.init.trunc_normal_(made[0], generator=generator)
        generator.set_state(generator.get_state())
        assert all(each.is_cuda for each in made) and torch.cuda.initial_seed() == torch.initial_seed()
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())
        with torch.random.fork_rng(devices=[0]):
            made.append(on(4))
        assert recorded.live_bytes == 16 + 64 + 3 * 16
        numbers = torch.randperm(100, generator=torch.Generator().manual_seed(5))
    assert torch.equal(numbers, torch.randperm(100, generator=torch.Generator().manual_seed(5)))
    assert torch.Generator is torch._C.Generator


def test_cuda_graphs():
    """A capture allocates on its stream; replays allocate nothing; its tensors are live while held."""
    with trace.record(device="cuda") as recorded:
        x = on(64, 64)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            assert torch.cuda.is_current_stream_capturing()
            y = x @ x
        before = recorded.event_count
        graph.replay()
        assert recorded.event_count == before and not torch.cuda.is_current_stream_capturing()
        assert [(each.op, each.stream) for each in recorded.live()] == [
            ("aten::randn", 0), ("aten::mm", 1), ("cuBLAS workspace", 1)] and y.is_cuda
        assert any(note.startswith("CUDA graphs:") for note in recorded.notes)
        actions = [event["action"] for event in recorded.snapshot()["device_traces"][0]]
        assert actions[1] == "empty_cache"  # torch.cuda.graph calls it
    assert torch.cuda.graph.default_capture_stream is None
    with trace.record(device="cuda") as recorded:
        model, x = net(), on(4, 64, requires_grad=True)
        graphed = torch.cuda.make_graphed_callables(model, (x, ))
        graphed(x).sum().backward()
        assert model[0].weight.grad is not None and checked(recorded.snapshot())


def test_compiled_functions():
    """Compiled code is recorded as eager, with a note, in each recording of a process."""
    @torch.compile(fullgraph=True, dynamic=False)
    def loss_of(y):
        return (y * 2).sum()

    sizes = []
    for compile_it in (lambda model: model, torch.compile, lambda model: model.compile(backend="aot_eager") or model,
                       torch.compile):
        with trace.record(device="cuda") as recorded:
            torch._dynamo.reset()
            torch._dynamo.trace_rules.clear_lru_cache()  # as torch.distributed does
            model = compile_it(net())
            optimizer = torch.optim.AdamW(model.parameters())
            loss_of(model(on(4, 64))).backward()
            optimizer.step()
        sizes.append((recorded.peak_bytes, recorded.event_count))
        assert [note for note in recorded.notes if note.startswith("torch.compile: recorded as eager")]
        assert "0" in {each.module for each in recorded.peak()}  # without a prefix of the compiled module
    assert len(set(sizes)) == 1
    assert torch.compile(lambda y: y + 1, backend="eager")(torch.ones(2)).tolist() == [2.0, 2.0]


def test_flex_attention():
    """The fused kernel: no scores; gradients of queries, keys, values and of a learned bias."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    for attention in (flex_attention, torch.compile(flex_attention)):
        with trace.record(device="cuda") as recorded:
            q = on(1, 4, 256, 64, dtype=torch.bfloat16, requires_grad=True)
            k, v = (on(1, 2, 256, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
            bias = on(4, requires_grad=True)
            mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 256, 256, device="cuda")
            before = len(recorded.live())
            y = attention(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h], block_mask=mask,
                          enable_gqa=True)
            assert y.shape == q.shape
            saved = [each.bytes for each in recorded.live()[before:]]
            first = recorded.event_count
            y.sum().backward()
            assert [each.grad.shape for each in (q, k, v, bias)] == [each.shape for each in (q, k, v, bias)]
        rows = 4 * 256 * 4
        assert saved == [rows * 32, rows]  # the output, logsumexp in fp32
        events = recorded.snapshot()["device_traces"][0][first:]
        sizes = [event["size"] for event in events if event["action"] == "alloc"]
        assert rows in sizes and max(sizes) == rows * 32  # delta; no scores
        assert any(note.startswith("flex_attention: recorded as its compiled kernel") for note in recorded.notes)


def test_earlier_model():
    """A model made before the block: recorded from its move to the device; on a recorded CPU, from its first use."""
    for device in ("cuda", "cpu"):
        model = net("cpu")
        count = sum(each.numel() for each in model.parameters())
        with trace.record(device=device) as recorded:
            model.to(device)(torch.randn(4, 64, device=device)).sum().backward()
            optimizer = torch.optim.AdamW(model.parameters())
            optimizer.step()
            sizes = kinds(recorded.live())
        assert sizes["parameters"] == sizes["gradients"] == 4 * count, device
    on_cpu = net("cpu")
    with trace.record(device="cuda") as recorded:
        assert on_cpu(torch.ones(4, 64)).shape == (4, 8) and recorded.event_count == 0


def test_files():
    """torch.save writes objects without tensors of the recording. Tensors are loaded to the recorded device."""
    with trace.record(device="cuda") as recorded:
        file = io.BytesIO()
        torch.save({"model": net().state_dict(), "step": 3}, file)
        assert file.tell() == 0 and any(note.startswith("files: ") for note in recorded.notes)
        torch.save({"numbers": torch.arange(300.0)}, file)
        file.seek(0)
        before = recorded.live_bytes
        loaded = torch.load(file, map_location="cuda")["numbers"]
        assert recorded.live_bytes == before + 1200 and (loaded + on(300)).is_cuda
        model = net()
        model.load_state_dict(copy.deepcopy(model).state_dict(), assign=True)
        with pytest.raises(bp.Unsupported, match="pickle: a tensor of a recording has no values"):
            pickle.dumps(on(3))
    file.seek(0)
    assert torch.load(file)["numbers"].tolist() == list(range(300))


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    with trace.record(device="cuda") as recorded:
        safetensors.save_file({"a": on(3)}, tmp_path / "recorded")
        safetensors.save_file({"a": torch.arange(3)}, tmp_path / "real")
        assert safetensors.save({"a": on(3)}) == b"" and any(note.startswith("files: ") for note in recorded.notes)
        assert safetensors.load_file(tmp_path / "real", device="cpu")["a"].tolist() == [0, 1, 2]
    assert [each.name for each in tmp_path.iterdir()] == ["real"]


class Large(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.full((600, 600), float(index))


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("workers", [0, 1])
def test_data_loaders(device, workers):
    with trace.record(device=device):
        loader = torch.utils.data.DataLoader(Large(), batch_size=2, num_workers=workers, pin_memory=True)
        batches = [batch for batch in loader]
        assert [batch.shape for batch in batches] == [(2, 600, 600)] * 2
        if workers:
            assert [batch.max().item() for batch in batches] == [1.0, 3.0]
        assert batches[0].to(device, non_blocking=True).device.type == device


def test_profilers():
    with trace.record(device="cuda") as recorded:
        with torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=1)) as profiler:
            for _ in range(2):
                on(4)
                profiler.step()
        torch.cuda.cudart().cudaProfilerStart()
        torch.cuda.profiler.start()
        with torch.cuda.nvtx.range("mine"):
            pass
    names = [each["name"] for each in recorded.snapshot()["external_annotations"]]
    assert names[:2] == ["ProfilerStep#0", "ProfilerStep#0"] and "ProfilerStep#1" in names


@torch.library.custom_op("bucketpool_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


REFUSED = {  # program, part of the sentence
    "thread": (lambda: in_thread(lambda: on(4)), "used in a thread that the recording does not follow"),
    "lstm": (lambda: nn.LSTM(8, 8, device="cuda")(on(3, 2, 8)), r"lstm in LSTM \(forward\): PyTorch asks for a GPU here"),
    "sparse": (lambda: on(4, 4).to_sparse(), "aten::_to_sparse: PyTorch cannot run this operator on fake tensors"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(3, 4), torch.ones(2, 4)], layout=torch.jagged,
                                                  device="cuda"), "nested tensors: their sizes depend on values"),
    "cond": (lambda: torch.cond(on(()) > 0, lambda x: x + 1, lambda x: x - 1, (on(4), )), "cond: PyTorch cannot run"),
    "func": (lambda: torch.func.grad(lambda x: (x ** 2).sum())(on(4, 64)), "backward: PyTorch asks for a GPU"),
    "custom": (lambda: unknown(on(4)), "bucketpool_tests::unknown: a custom operator without sizes"),
    "data_ptr": (lambda: torch.empty(1 << 20).data_ptr(), "this tensor of 1048576 elements has no memory"),
    "element": (lambda: on(4).storage()[0], "test_trace_programs.py:[0-9]+: PyTorch asks for a GPU here"),
    "lazy": (lambda: nn.LazyLinear(4, device="cuda"), "lazy modules: .*; give the sizes of inputs"),
    "allocator": (lambda: torch.cuda.CUDAPluggableAllocator("a", "b", "c"), "torch.cuda.CUDAPluggableAllocator: not"),
    "nvml": (lambda: torch.cuda.utilization(), "torch.cuda.utilization: not possible without a GPU"),
    "mask": (lambda: on(4)[on(4) > 0], "aten::index: the size of its result depends on values"),
}


def in_thread(function):
    errors = []

    def run():
        try:
            function()
        except bp.Unsupported as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    raise errors[0]


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    program, sentence = REFUSED[name]
    with pytest.raises(bp.Unsupported, match=sentence) as caught:
        with trace.record(device="cuda"):
            program()
    assert "\n" not in str(caught.value) and "; " in str(caught.value)


def test_triton():
    """Its kernels are refused when they are launched."""
    triton = pytest.importorskip("triton")

    @triton.jit
    def kernel(x, y):
        pass

    with pytest.raises(bp.Unsupported, match="kernel: a kernel of Triton"):
        with trace.record(device="cuda"):
            kernel[(1, )](on(4), on(4))


def test_own_errors():
    """Errors of the program stay its own."""
    with trace.record(device="cuda"):
        with pytest.raises(RuntimeError, match="same reduction dim|must match|shapes cannot"):
            on(2, 3) @ on(2, 3)
        with pytest.raises(RuntimeError, match="two different devices"):
            F.linear(on(4, 64), torch.ones(8, 64))
        with pytest.raises(AssertionError, match="mine"):
            assert on(4).isnan().any(), "mine"
