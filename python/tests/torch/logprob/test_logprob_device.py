# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities, rearrangements and the loss on BUCKETPOOL_TEST_DEVICE against fp64: large and odd vocabularies,
shards with gaps, in place, several streams, more than 2^31 logits.
"""

import ctypes
import math
import random
import sys
import types

import pytest
import torch

from bucketpool import _abi, errors
from bucketpool._library import call, configured, filled, made
from bucketpool._library import logprob as library
from bucketpool.torch import _tensors, cp
from bucketpool.torch import logprob as L
from devices import CUDA, DEVICE
from test_logprob_head import check as check_head
from test_logprob_values import check
from torch.testing import assert_close

pytestmark = pytest.mark.usefixtures("on_device")
MODULE = torch.get_device_module(DEVICE)  # torch.cpu has streams that do nothing

# ---- vocabularies and strides ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("columns", [5, 129, 32001, 50257, 151936])
def test_vocabularies(columns, dtype):
    torch.manual_seed(columns)
    logits = (3 * torch.randn(1, 3, columns)).to(dtype)
    target = torch.tensor([[0, columns - 1, columns // 2]])
    check(logits, target, temperature=0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("begin", [0, 1, 2, 3, 7, 8])
def test_shards_with_gaps(begin, dtype):
    """Rows start at any alignment, and gaps between them are not read."""
    torch.manual_seed(begin)
    whole = torch.full((2, 4, 4111), float("nan"), dtype=dtype)
    shard = whole[..., begin:begin + 4097]
    shard.copy_(2 * torch.randn(2, 4, 4097))
    check(shard, torch.randint(0, 4097, (2, 4)))
    check(shard.transpose(0, 1), torch.randint(0, 4097, (4, 2)))


@pytest.mark.parametrize("seed", range(8))
def test_random_storage(seed):
    """Random rows, columns, dtypes, offsets, gaps between rows, scales, temperatures, and logits of -inf: 800 cases on a GPU, 64 small ones on a CPU."""
    chance = random.Random(seed)
    columns_of = (1, 2, 7, 31, 33, 127, 1000, 1023, 4097) + ((32000, 50257, 50304, 65537, 128256, 151937, 262144) if CUDA else ())
    for number in range(100 if CUDA else 8):
        torch.manual_seed(1000 * seed + number)
        rows, columns, gap, begin = (chance.choice(some) for some in ((1, 2, 3, 17, 64, 129), columns_of, (0, 0, 1, 3, 8), (0, 0, 1, 5)))
        storage = torch.empty(begin + rows * (columns + gap), dtype=chance.choice((torch.float32, torch.bfloat16, torch.float16)))
        logits = torch.as_strided(storage, (1, rows, columns), (rows * (columns + gap), columns + gap, 1), begin)
        logits.normal_(0, chance.choice((0.1, 3, 20)))
        target = torch.randint(0, columns, (1, rows))
        if chance.random() < 0.2:
            other = chance.randrange(columns)
            logits[..., other] = torch.where(target == other, logits[..., other], -math.inf)
        check(logits, target, temperature=chance.choice((1.0, 0.7, 2.5)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("view", [lambda x: x[..., 3:-2], lambda x: x.transpose(0, 1), lambda x: x[:, 1:, 1:]])
def test_in_place_rows(view, dtype):
    torch.manual_seed(0)
    whole = torch.randn(3, 5, 2053).to(dtype)
    part, before = view(whole), whole.clone()
    target = torch.randint(0, part.shape[-1], part.shape[:-1])
    leaf = part.clone().requires_grad_()
    wanted, = torch.autograd.grad(L.logprobs_from_logits(leaf, target).sum(), leaf)

    class Written(torch.autograd.Function):  # logits of a model: no leaf, in memory that the test knows
        @staticmethod
        def forward(ctx, parameter):
            return part

        @staticmethod
        def backward(ctx, gradient):
            return None

    logits = Written.apply(torch.zeros((), requires_grad=True))
    L.logprobs_from_logits(logits, target, in_place=True).sum().backward()
    assert torch.equal(part, wanted)
    view(before).copy_(wanted)
    assert torch.equal(whole, before)


@pytest.mark.parametrize("head", [False, True])
def test_labels_outside(head):
    """On GPUs NaN, without waiting, until check_targets(); other tokens have their results."""
    target = torch.tensor([[1, 8, 3, -100]])
    weight = torch.randn(8, 6)

    def run(**options):
        x = torch.randn(1, 4, 6 if head else 8, requires_grad=True)
        lp = L.linear_logprobs(x, weight, target, **options) if head else L.logprobs_from_logits(x, target, **options)
        return lp, torch.autograd.grad(lp.sum(), x)[0]

    for outside in ("error", "check"):
        if CUDA and outside == "error":
            lp, gradient = run()
            nan = torch.tensor([False, True, False, False])
            assert torch.equal(lp[0].isnan(), nan) and torch.equal(gradient[0].isnan().all(-1), nan)
            with pytest.raises(errors.InvalidArgument, match="token 1 has target 8, .* 8 ids"):
                L.check_targets()
        else:
            with pytest.raises(errors.InvalidArgument, match="token 1 has target 8, .* 8 ids"):
                run(outside=outside)
        L.check_targets()
    lp, gradient = run(outside="mask")
    assert lp[0, 1] == 0 and gradient.isfinite().all() and (gradient[0, 3] == 0).all()


def test_more_than_32_bit_logits():
    """Rows at the beginning, after 2^31 elements and at the end; on a CPU with small sizes."""
    tokens, columns = (16900, 128000) if CUDA else (170, 1280)
    if CUDA and torch.cuda.mem_get_info()[0] < 5 * tokens * columns * 2 / 2:
        pytest.skip(f"{5 * tokens * columns} bytes of device memory are needed")
    logits = torch.empty(tokens, columns, dtype=torch.bfloat16, device=DEVICE)
    for rows in logits.split(1024):
        rows.normal_()
    target = torch.randint(0, columns, (tokens,))
    places = torch.tensor([0, 1, (1 << 31) // 128000 if CUDA else 100, tokens - 2, tokens - 1])
    exact = logits[places].double().requires_grad_()
    wanted = torch.log_softmax(exact, -1).gather(-1, target[places][:, None])[:, 0]
    expected, = torch.autograd.grad(wanted.sum(), exact)
    lp = L.logprobs_from_logits(logits.requires_grad_(), target)
    assert_close(lp[places], wanted.float(), atol=1e-5, rtol=1e-4)
    got, = torch.autograd.grad(lp.sum(), logits)
    assert_close(got[places].float(), expected.float(), atol=8e-3, rtol=8e-3)
    assert got.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape,features,columns,chunk", [((1, 33), 128, 5003, 16), ((2, 64), 256, 1000, None),
                                                          ((70,), 64, 32001, 64)])
def test_fused_head(shape, features, columns, chunk, dtype):
    torch.manual_seed(columns)
    hidden = (torch.randn(*shape, features) / features**0.5).to(dtype).requires_grad_()
    weight = torch.randn(columns, features).to(dtype).requires_grad_()
    check_head(hidden, weight, torch.randint(0, columns, shape), dtype, chunk_size=chunk, temperature=0.8)


# ---- streams ---------------------------------------------------------------------------------------------------------


def delayed():
    """Work that keeps the current stream busy, so that a missing wait is detected."""
    if CUDA:
        torch.cuda._sleep(3_000_000)


def both_ways(logits, target, function):
    lp, entropy = function(logits, target)
    return lp, entropy, torch.autograd.grad((lp + 0.5 * entropy).sum(), logits)[0]


HEAD = dict(features=32, columns=1003)


@pytest.mark.parametrize("name", ["logits", "head"])
def test_streams_without_host_waits(name):
    """Two streams and the default one take turns with one client; inputs are made late on another stream. The bits are
    those of calls that the host waits for.
    """
    torch.manual_seed(0)
    weight = torch.randn(HEAD["columns"], HEAD["features"])
    function = (L.logprobs_and_entropy if name == "logits" else
                lambda hidden, target: L.linear_logprobs_and_entropy(hidden, weight, target, chunk_size=8))
    width = HEAD["columns" if name == "logits" else "features"]
    target = torch.randint(0, HEAD["columns"], (2, 24))
    inputs = [torch.randn(2, 24, width) for _ in range(20)]
    wanted = []
    for given in inputs:
        wanted.append(both_ways(given.clone().requires_grad_(), target, function))
        MODULE.synchronize()
    buffers = [torch.full_like(given, float("nan")) for given in inputs]
    MODULE.synchronize()
    producer, side, other, default = MODULE.Stream(), MODULE.Stream(), MODULE.Stream(), MODULE.current_stream()
    results, kept = [], []
    for given, buffer, turn in zip(inputs, buffers, torch.randint(0, 3, (20,)).tolist()):
        consumer = (side, other, default)[turn]
        with MODULE.stream(producer):
            delayed()
            buffer.copy_(given)
            made_it = producer.record_event()
        consumer.wait_event(made_it)
        with MODULE.stream(consumer):
            kept.append(buffer.detach().requires_grad_())
            results.append(both_ways(kept[-1], target, function))
    MODULE.synchronize()
    for mine, theirs in zip(results, wanted):
        assert all(torch.equal(a, b) for a, b in zip(mine, theirs))


# ---- context parallelism ---------------------------------------------------------------------------------------------


def places_of(cu, ranks, rank):
    """Places in the packed batch of a rank's tokens: chunks `rank` and 2 ranks - 1 - rank of each sequence."""
    places = []
    for begin, end in zip(cu, cu[1:]):
        chunk = (end - begin) // (2 * ranks)
        for k in (rank, 2 * ranks - 1 - rank):
            places += range(begin + k * chunk, begin + (k + 1) * chunk)
    return torch.tensor(places, dtype=torch.int64)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.int64, torch.bfloat16, torch.bool, torch.float64])
def test_split(monkeypatch, ranks, dtype):
    cu = [0, 16, 16, 48, 56]
    torch.manual_seed(0)
    for rank in range(ranks):
        monkeypatch.setattr(cp, "comm_of", lambda group, rank=rank: types.SimpleNamespace(ranks=ranks, rank=rank))
        split, mine = cp.PackedSplit(cu, cu_padded=cu), places_of(cu, ranks, rank)
        for value in (torch.randint(0, 2, (56,)), torch.randint(0, 9, (56, 3)), torch.randint(0, 9, (3, 56)).t(),
                      torch.randint(0, 9, (112, 2, 2))[::2]):
            value = value.to(dtype)
            assert torch.equal(split.split(value), value[mine])
        following, wrapped = torch.full_like(value, 1), value.clone()
        for begin, end in zip(cu, cu[1:]):
            following[begin:max(end - 1, begin)] = value[begin + 1:end]
            wrapped[begin:end] = value[begin:end].roll(-1, 0)
        assert torch.equal(split.split(value, "next", 1), following[mine])
        assert torch.equal(split.split(value, "next_wrapped"), wrapped[mine])
        assert torch.equal(split.index_map("packed", "local"), mine.cpu())
        if dtype == torch.bfloat16:
            leaf = value.clone().requires_grad_()
            up = torch.randn(mine.numel(), 2, 2).to(dtype)
            split.split(leaf).backward(up)
            assert torch.equal(leaf.grad, torch.zeros_like(leaf).index_add(0, mine, up))


def test_padding():
    split = cp.PackedSplit([0, 5, 5, 12], multiple=4)
    value = torch.randn(12, 3)
    local = split.split(value, fill=-1.0)
    padded = torch.full((16, 3), -1.0)
    padded[:5], padded[8:15] = value[:5], value[5:]
    assert torch.equal(local, padded) and torch.equal(split.reassemble(local), value)


def test_destruction_without_globals(monkeypatch):
    """The interpreter's exit sets globals of modules to None before it drops the last references."""
    failures = []
    monkeypatch.setattr(sys, "unraisablehook", failures.append)
    split = cp.PackedSplit([0, 4, 8])
    for name in ("ctypes", "library"):
        monkeypatch.setattr(cp, name, None)
    del split
    assert not failures


def test_default_device():
    """The C library writes maps and bounds of a split on the host."""
    value = torch.randn(8)
    with torch.device("meta"):
        split = cp.PackedSplit([0, 4, 8])
        assert split.index_map("packed",
                               "local").tolist() == list(range(8)) and split.cu_seqlens("local").tolist() == [0, 4, 8]
        assert torch.equal(split.split(value, fill=-1.0), value)
        logits = torch.randn(8, 5, device=DEVICE)
        assert L.logprobs_from_logits(logits, torch.zeros(8, dtype=torch.int64, device=DEVICE)).device.type == DEVICE


def values_of(tensor):
    return _tensors.values(tensor)[0]


def test_loss():
    """begin, add of two micro-batches, reduce, seed: through the C interface, over tensors of the device."""
    torch.manual_seed(0)
    device = torch.device(DEVICE, 0) if CUDA else torch.device("cpu")
    config = configured(library().bp_loss_config_init, _abi.bp_loss_config, max_sequences=8, epsilon=1e-5, threads=1)
    loss = made(library().bp_loss_create, _tensors.device_of(device), ctypes.byref(config))
    try:
        call(library().bp_loss_begin, loss)
        batches, sums, entropies, tokens, perplexities = [], 0.0, 0.0, 0, []
        for cu in ([0, 3000, 3002, 7000], [0, 500, 8192]):
            split = cp.PackedSplit(cu, cu_padded=cu)
            lp, entropy, mask = -5 * torch.rand(cu[-1]), torch.rand(cu[-1]), (torch.rand(cu[-1]) < 0.6).to(torch.uint8)
            given = configured(library().bp_loss_values_init, _abi.bp_loss_values, tokens=cu[-1])
            given.mask, given.logprob, given.entropy = values_of(mask), values_of(lp), values_of(entropy)
            _tensors.run(device, library().bp_loss_add, loss, split._handle, ctypes.byref(given))
            batches.append((split, mask, lp, entropy))  # must stay until reduce
            sums, entropies = sums + float((lp.double() * mask).sum()), entropies + float(
                (entropy.double() * mask).sum()
            )
            tokens += int(mask.sum())
            for begin, end in zip(cu, cu[1:]):
                n = int(mask[begin:end].sum())
                perplexities += [torch.exp(-(lp.double() * mask)[begin:end].sum() / n).item()] if n else []
        _tensors.run(device, library().bp_loss_reduce, loss, _abi.BP_OK)
        s = filled(library().bp_loss_statistics_get, _abi.bp_loss_statistics, loss)
        assert (s.valid, s.tokens, s.sequences, s.perplexity_sequences) == (tokens, 15192, 5, len(perplexities))
        assert (s.loss, s.entropy, s.perplexity) == pytest.approx(
            (-sums / (1e-5 + tokens), entropies / tokens, sum(perplexities) / len(perplexities)), rel=1e-9)
        for split, mask, lp, _ in batches:
            seed = torch.full_like(lp, float("nan"))
            _tensors.run(device, library().bp_loss_seed, loss, split._handle, lp.numel(), ctypes.byref(values_of(mask)),
                         -1.0, ctypes.byref(values_of(seed)))
            assert_close(seed, -mask.double().div(1e-5 + tokens).float(), atol=0, rtol=1e-6)
    finally:
        library().bp_loss_destroy(ctypes.byref(loss))
