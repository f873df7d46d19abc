# SPDX-License-Identifier: Apache-2.0
"""Results of several ranks, compared with one rank that has the whole vocabulary. Run by logprob_ranks.py."""

import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import logprob as L
from bucketpool.torch.comm import comm_of, trust

FP32 = dict(atol=1e-5, rtol=1e-4)


def shares(ranks, uneven, width=24):
    """The starts of the ranks' vocabulary shards, and the end."""
    begins = [0]
    for rank in range(ranks):
        begins.append(begins[-1] + width + (rank * 7 if uneven else 0))
    return begins


def reference(logits, target, temperature=1.0):
    """Log-probabilities and entropies of the whole, in fp64."""
    logs = torch.log_softmax(logits.double() / temperature, -1)
    return logs.gather(-1, target.long()[..., None])[..., 0], -(logs.exp() * logs).sum(-1)


def expect(kind, function, *parts):
    try:
        function()
    except kind as error:
        for part in parts:
            assert part in str(error), f"{part!r} is not in {str(error)!r}"
        return
    raise AssertionError(f"{kind.__name__} was expected")


def compared(rank, ranks, dtype, uneven, shape, tolerance, seed):
    torch.manual_seed(seed)
    begins = shares(ranks, uneven)
    whole = (3 * torch.randn(*shape, begins[-1])).to(dtype)
    target = torch.randint(0, begins[-1], shape)
    up, up_entropy = torch.randn(shape), torch.randn(shape)
    start, end = begins[rank], begins[rank + 1]
    full = whole.float().requires_grad_()
    lp, entropy = reference(full, target, 0.7)
    wanted, = torch.autograd.grad((lp * up + entropy * up_entropy).sum(), full)
    mine = whole[..., start:end].requires_grad_()  # rows with gaps
    got_lp, got_entropy = L.logprobs_and_entropy(mine, target, group=dist.group.WORLD, temperature=0.7)
    got, = torch.autograd.grad((got_lp * up + got_entropy * up_entropy).sum(), mine)
    assert_close(got_lp, lp.float(), **tolerance)
    assert_close(got_entropy, entropy.float(), **tolerance)
    assert got.dtype == dtype
    assert_close(got.float(), wanted[..., start:end], **tolerance)


def case_values_fp32(rank, ranks):
    for seed, shape in enumerate([(2, 7), (1, 1), (3, 1), (1, 65), (4, 33), (17, )]):
        compared(rank, ranks, torch.float32, seed % 2 == 1, shape, FP32, seed)


def case_values_bf16(rank, ranks):
    for seed, shape in enumerate([(2, 7), (1, 65)]):  # inputs are bf16 on both sides; the gradient is rounded to it
        compared(rank, ranks, torch.bfloat16, seed % 2 == 1, shape, dict(atol=8e-3, rtol=8e-3), seed)


def case_skyrl_arguments(rank, ranks):
    begins = shares(ranks, True)
    whole, target = torch.randn(2, 9, begins[-1]), torch.randint(0, begins[-1], (2, 9))
    mine = whole[..., begins[rank]:begins[rank + 1]].clone().requires_grad_()
    bounds = begins[rank], begins[rank + 1]
    plain = L.DistributedLogprob.apply(mine, target, *bounds, dist.group.WORLD)
    wanted, = torch.autograd.grad(plain.sum(), mine)
    assert_close(plain, reference(whole, target)[0].float(), **FP32)
    for chunk in (1, 3, 5, 9, 512, None):
        chunked = L.ChunkedDistributedLogprob.apply(mine, target, *bounds, chunk, dist.group.WORLD)
        assert torch.equal(chunked, plain)
        assert torch.equal(torch.autograd.grad(chunked.sum(), mine)[0], wanted)
    only = L.ChunkedDistributedLogprob.apply(mine, target, *bounds, 4, dist.group.WORLD, True)
    assert torch.equal(only, plain) and not only.requires_grad


def case_equal_bits(rank, ranks):
    mine = torch.randn(3, 5, 40) + rank
    out = torch.stack(L.logprobs_and_entropy(mine, torch.zeros(3, 5, dtype=torch.int64), group=dist.group.WORLD))
    everybody = [torch.empty_like(out) for _ in range(ranks)]
    dist.all_gather(everybody, out)
    assert all(torch.equal(out, other) for other in everybody)


def case_targets_outside(rank, ranks):
    begins = shares(ranks, False)
    mine = torch.randn(1, 3, 24, requires_grad=True)
    target = torch.tensor([[0, begins[-1], -1]])
    lp = L.logprobs_from_logits(mine, target, group=dist.group.WORLD, outside="mask")
    assert lp[0, 1] == 0 and lp[0, 2] == 0
    lp.sum().backward()
    assert (mine.grad[0, 1:] < 0).all()
    for outside in ("error", "check"):
        expect(errors.InvalidArgument,
               lambda: L.logprobs_from_logits(mine, target, group=dist.group.WORLD, outside=outside), str(begins[-1]))


def case_head(rank, ranks):
    begins = shares(ranks, True)
    for dtype, tolerance, shape, chunk in ((torch.float32, FP32, (2, 9), 4), (torch.float32, FP32, (1, 33), None),
                                           (torch.bfloat16, dict(atol=3e-2, rtol=3e-2), (2, 9), 5)):
        hidden, weight = torch.randn(*shape, 16).to(dtype), torch.randn(begins[-1], 16).to(dtype)
        target, up, up_entropy = torch.randint(0, begins[-1], shape), torch.randn(shape), torch.randn(shape)
        h, w = hidden.double().requires_grad_(), weight.double().requires_grad_()
        lp, entropy = reference(torch.nn.functional.linear(h, w), target)
        wanted = torch.autograd.grad((lp * up + entropy * up_entropy).sum(), (h, w))
        mine_h, mine_w = hidden.clone().requires_grad_(), weight[begins[rank]:begins[rank + 1]].clone().requires_grad_()
        for partial in (False, True):
            got_lp, got_entropy = L.linear_logprobs_and_entropy(mine_h, mine_w, target, group=dist.group.WORLD,
                                                                chunk_size=chunk, partial_hidden_grad=partial)
            got = torch.autograd.grad((got_lp * up + got_entropy * up_entropy).sum(), (mine_h, mine_w))
            summed = got[0].float()
            if partial:
                dist.all_reduce(summed)
            assert_close(got_lp, lp.float(), **tolerance)
            assert_close(got_entropy, entropy.float(), **tolerance)
            assert got[0].dtype == got[1].dtype == dtype
            scale = wanted[0].abs().max().item()
            assert_close(summed / scale, wanted[0].float() / scale, **tolerance)
            part = wanted[1][begins[rank]:begins[rank + 1]].float()
            assert_close(got[1].float() / part.abs().max(), part / part.abs().max(), **tolerance)


def case_different_arguments(rank, ranks):
    odd = rank == ranks - 1
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    default_group = dist.group.WORLD
    who = f"rank {ranks - 1}"
    short = logits[:, :5] if odd else logits
    expect(errors.Mismatch, lambda: L.logprobs_from_logits(short, target[:, :short.shape[1]], group=default_group), who,
           "sequence")
    expect(errors.Mismatch, lambda: L.logprobs_from_logits(logits.bfloat16() if odd else logits, target,
                                                           group=default_group),
           who, "dtype", "bfloat16")
    expect(errors.Mismatch, lambda: L.logprobs_from_logits(logits, target, group=default_group, temperature=2.0
                                                           if odd else 0.5), who, "temperature", "2.0")

    def other_outputs():
        (L.vocab_parallel_entropy(logits, default_group) if odd
         else L.logprobs_from_logits(logits, target, group=default_group))

    expect(errors.Mismatch, other_outputs, "call different functions")
    ok = L.logprobs_from_logits(logits, target, group=default_group)  # the group is as good as before
    assert torch.isfinite(ok).all()


def case_failing_rank(rank, ranks):
    odd = rank == 0
    logits, target = torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64)
    default_group = dist.group.WORLD
    who = "targets" if odd else "rank 0"
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target[:1]
                                                                  if odd else target, group=default_group), who)
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits.double()
                                                                  if odd else logits, target, group=default_group),
           "float64")
    expect(
        errors.InvalidArgument,
        lambda: L.DistributedLogprob.apply(logits, target, *((24, 0) if odd else
                                                             (24 * rank, 24 * rank + 24)), default_group), "24 to 0")
    expect(
        errors.InvalidArgument,
        lambda: L.DistributedLogprob.apply(logits, target, *((0, 23)
                                                             if odd else (24 * rank, 24 * rank + 24)), default_group),
        "23 ids")
    expect(
        (errors.InvalidArgument, errors.Mismatch),
        lambda: L.DistributedLogprob.apply(  # a gap, an overlap
            logits, target, 48 * rank, 48 * rank + 24, default_group),
        "gap")
    expect(errors.InvalidArgument, lambda: L.linear_logprobs(logits, torch.randn(8, 23
                                                                                 if odd else 24), target,
                                                             group=default_group))
    assert torch.isfinite(L.logprobs_from_logits(logits, target, group=default_group)).all()


def case_changing_shards(rank, ranks):
    """The shard of one rank changes and changes back: all ranks create new clients together."""
    for turn in range(5):
        width = 20 + (turn % 2 if rank == 0 else 0)
        mine = torch.randn(1, 4, width)
        widths = [20 + (turn % 2 if r == 0 else 0) for r in range(ranks)]
        start = sum(widths[:rank])
        total = torch.zeros(1, 4, sum(widths))
        total[..., start:start + width] = mine
        dist.all_reduce(total)
        target = torch.randint(0, sum(widths), (1, 4), generator=torch.Generator().manual_seed(turn))
        assert_close(L.logprobs_from_logits(mine, target, group=dist.group.WORLD),
                     reference(total, target)[0].float(), **FP32)


def case_groups(rank, ranks):
    pairs = [dist.new_group([first, first + 1]) for first in range(0, ranks, 2)]
    mine = pairs[rank // 2]
    logits, target = torch.randn(1, 3, 24), torch.zeros(1, 3, dtype=torch.int64)
    if ranks > 2:
        expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target, group=pairs[1 - rank // 2]),
               "group")
    L.logprobs_from_logits(logits, target, group=mine)
    comm = comm_of(mine)
    assert comm.ranks == 2 and comm.rank == rank % 2 and comm is comm_of(mine)
    trust(mine)
    trusted = L.DistributedLogprob.apply(logits, target, 24 * (rank % 2), 24 * (rank % 2) + 24, mine)
    expect(errors.InvalidArgument, lambda: L.logprobs_from_logits(logits, target, group=mine), "bounds")
    trust(mine, False)
    assert torch.equal(trusted, L.logprobs_from_logits(logits, target, group=mine))
    dist.destroy_process_group(mine)
    del mine, pairs
    expect(errors.Error, lambda: comm.agree("late", {}, {}), "destroyed")


def case_errors_of_torch(rank, ranks):
    group = dist.new_group(list(range(ranks)))
    logits, target = torch.randn(1, 3, 24), torch.zeros(1, 3, dtype=torch.int64)
    L.logprobs_from_logits(logits, target, group=group)
    original = dist.all_gather_into_tensor
    calls = []

    def failing(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:  # the first one compares, the second one is in a callback
            raise RuntimeError("the cable is out")
        return original(*arguments, **options)

    dist.all_gather_into_tensor = failing
    try:
        L.logprobs_from_logits(logits, target, group=group)
    except errors.CommError as error:
        assert "the cable is out" in str(error) and isinstance(error.__cause__, RuntimeError), repr(error)
    else:
        raise AssertionError("an exception was expected")
    finally:
        dist.all_gather_into_tensor = original
    L.logprobs_from_logits(logits, target, group=group)


def case_empty_batch(rank, ranks):
    for shape in ((0, 5), (2, 0), (0, )):
        mine = torch.randn(*shape, 24, requires_grad=True)
        lp = L.logprobs_from_logits(mine, torch.zeros(shape, dtype=torch.int64), group=dist.group.WORLD)
        lp.sum().backward()
        assert lp.shape == shape and mine.grad.shape == mine.shape


def case_collectives(rank, ranks):
    """The library's own calls over the group, in its dtypes."""
    import ctypes
    from bucketpool import _abi
    from bucketpool._library import call, core
    from bucketpool.torch import _tensors
    comm = comm_of(dist.group.WORLD)
    stream = _abi.bp_stream()
    call(core().bp_stream_create, _tensors.device_of(torch.device("cpu")), b"test", ctypes.byref(stream))
    for dtype, number in _tensors.DTYPES.items():
        given = torch.arange(2 * ranks).to(dtype) + rank
        everybody, reduced, part = torch.zeros(2 * ranks * ranks,
                                               dtype=dtype), torch.zeros_like(given), torch.zeros(2, dtype=dtype)
        comm.run(call,
                 core().bp_comm_all_gather, comm.handle, given.data_ptr(), everybody.data_ptr(),
                 given.numel() * given.element_size(), stream)
        assert torch.equal(everybody, torch.cat([torch.arange(2 * ranks).to(dtype) + r for r in range(ranks)]))
        for operation, wanted in ((_abi.BP_REDUCE_SUM, everybody.view(ranks, -1).sum(0).to(dtype)),
                                  (_abi.BP_REDUCE_MAX, torch.arange(2 * ranks).to(dtype) + ranks - 1),
                                  (_abi.BP_REDUCE_MIN, torch.arange(2 * ranks).to(dtype))):
            comm.run(call,
                     core().bp_comm_all_reduce, comm.handle, given.data_ptr(), reduced.data_ptr(), 2 * ranks, number,
                     operation, stream)
            assert torch.equal(reduced, wanted)
        comm.run(call,
                 core().bp_comm_reduce_scatter, comm.handle, given.data_ptr(), part.data_ptr(), 2, number,
                 _abi.BP_REDUCE_SUM, stream)
        assert torch.equal(part, everybody.view(ranks, -1).sum(0).to(dtype)[2 * rank:2 * rank + 2])
    core().bp_stream_destroy(ctypes.byref(stream))
