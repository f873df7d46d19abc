# SPDX-License-Identifier: Apache-2.0
"""Packed sequences over several context-parallel ranks. Run by logprob_ranks.py."""

import torch
import torch.distributed as dist
from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import cp
from bucketpool.torch import logprob as L
from logprob_cases import expect


def batch(ranks, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = 2 * ranks * torch.randint(0, 5, (4, ), generator=generator)
    lengths[1] = 2 * ranks
    return torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def local_places(cu, rank, ranks):
    """Indices in the packed batch of a rank's tokens: chunks `rank` and 2 ranks - 1 - rank of each sequence."""
    places = []
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        chunk = (end - begin) // (2 * ranks)
        for k in (rank, 2 * ranks - 1 - rank):
            places += range(begin + k * chunk, begin + (k + 1) * chunk)
    return torch.tensor(places, dtype=torch.int64)


def case_round_trip(rank, ranks):
    default_group = dist.group.WORLD
    for seed in range(3):
        cu = batch(ranks, seed)
        total, mine = int(cu[-1]), local_places(cu, rank, ranks)
        for value in (torch.arange(total), torch.randn(total, 3).bfloat16(), torch.rand(total)
                      < 0.5, torch.randn(total, 2, 2,
                                         dtype=torch.float64), torch.randn(3, total).t(), torch.randn(2 * total)[::2]):
            local = cp.split_packed_seqs_for_context_parallel(value, cu.int(), default_group)
            assert torch.equal(local, value[mine])
            assert torch.equal(cp.reassemble_cp_packed_logprobs(local, cu, default_group), value)
            assert torch.equal(cp.allgather_cp_sharded_packed_tensor(local, cu, default_group), value)
            assert torch.equal(cp.postprocess_packed_seqs_context_parallel(local[None], cu, True, group=default_group),
                               value)
            assert torch.equal(cp.postprocess_packed_seqs_context_parallel(local[None], cu, True, False, default_group),
                               local)


def case_shifted_labels(rank, ranks):
    cu = batch(ranks, 1)
    ids, mine = torch.randint(1, 100, (int(cu[-1]), )), local_places(cu, rank, ranks)
    split = cp.PackedSplit(cu, dist.group.WORLD, cu_padded=cu)
    following, wrapped = torch.full_like(ids, -100), ids.clone()
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end > begin:
            following[begin:end - 1] = ids[begin + 1:end]
            wrapped[begin:end] = ids[begin:end].roll(-1)
    assert torch.equal(split.split(ids, "next", -100), following[mine])
    assert torch.equal(split.split(ids, "next_wrapped"), wrapped[mine])
    assert torch.equal(split.split(torch.ones_like(ids, dtype=torch.bool), "next"), (following != -100)[mine])
    assert torch.equal(split.index_map("packed", "local"), mine)
    assert torch.equal(split.cu_seqlens("local").long(), cu // ranks)


def case_padding(rank, ranks):
    split = cp.PackedSplit([0, 5, 5, 5 + 2 * ranks + 1], dist.group.WORLD)
    value = torch.arange(1, split.packed_tokens + 1, dtype=torch.float32)
    local = split.split(value, fill=-1.0)
    assert split.padded_tokens % (2 * ranks) == 0 and split.local_tokens == split.padded_tokens // ranks
    assert torch.equal(split.reassemble(local), value)
    padded = split.reassemble(local, "padded")
    assert (padded == -1).sum() == split.padded_tokens - split.packed_tokens


def case_gradients(rank, ranks):
    default_group, cu = dist.group.WORLD, batch(ranks, 2)
    total, mine = int(cu[-1]), local_places(cu, rank, ranks)
    up = torch.randn(total, 2, generator=torch.Generator().manual_seed(5)) + rank
    summed = up.clone()
    dist.all_reduce(summed)
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 5e-2)):
        local = torch.randn(len(mine), 2, dtype=dtype, requires_grad=True)
        whole = cp.reassemble_cp_packed_logprobs(local, cu, default_group)
        got, = torch.autograd.grad((whole * up.to(dtype)).sum(), local)
        assert_close(got.float(), summed[mine], atol=tolerance * ranks, rtol=tolerance)
        own, = torch.autograd.grad((cp.allgather_cp_sharded_packed_tensor(local, cu,
                                                                          default_group) * up.to(dtype)).sum(),
                                   local)
        assert torch.equal(own, up.to(dtype)[mine])
    value = torch.randn(total, requires_grad=True)
    cp.split_packed_seqs_for_context_parallel(value, cu, default_group).sum().backward()
    wanted = torch.zeros(total)
    wanted[mine] = 1
    assert torch.equal(value.grad, wanted)


def case_loss(rank, ranks):
    """Gathered log-probabilities of local tokens: loss and gradient equal those of one rank with the whole batch."""
    cu, default_group = batch(ranks, 3), dist.group.WORLD
    total = int(cu[-1])
    ids, logits = torch.randint(0, 50, (total, )), torch.randn(total, 50)
    split = cp.PackedSplit(cu, default_group, cu_padded=cu)
    mine = local_places(cu, rank, ranks)
    local = logits[mine].clone().requires_grad_()
    lp = split.reassemble(
        L.logprobs_from_logits(local, split.split(ids, "next"), mask=split.split(torch.ones(total), "next")),
        sum_gradients=False)
    lp.sum().backward()
    whole = logits.clone().requires_grad_()
    wanted = torch.zeros(total)
    for begin, end in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if end > begin:
            logs = torch.log_softmax(whole[begin:end - 1], -1)
            wanted = wanted.index_put((torch.arange(begin, end - 1), ), logs.gather(1, ids[begin + 1:end, None])[:, 0])
    wanted.sum().backward()
    assert_close(lp, wanted, atol=1e-5, rtol=1e-5)
    assert_close(local.grad, whole.grad[mine], atol=1e-6, rtol=1e-5)


def case_different_arguments(rank, ranks):
    default_group, cu = dist.group.WORLD, batch(ranks, 0)
    odd = rank == ranks - 1
    other = torch.tensor([0, 2 * ranks, 6 * ranks]) if odd else torch.tensor([0, 4 * ranks, 6 * ranks])
    local = torch.randn(6)
    expect(errors.Mismatch, lambda: cp.reassemble_cp_packed_logprobs(local, other, default_group), f"rank {ranks - 1}",
           "batch")
    local = torch.randn(int(cu[-1]) // ranks)
    expect(errors.InvalidArgument, lambda: cp.reassemble_cp_packed_logprobs(local[:-1]
                                                                            if odd else local, cu, default_group),
           "tokens")
    expect(errors.Mismatch, lambda: cp.reassemble_cp_packed_logprobs(local.double()
                                                                     if odd else local, cu, default_group), "bytes")
    expect(errors.InvalidArgument, lambda: cp.PackedSplit([0, 3], default_group, cu_padded=[0, 3]), "3")
    expect(errors.InvalidArgument, lambda: cp.PackedSplit([0, 8, 4], default_group))
    expect(errors.InvalidArgument, lambda: cp.reassemble_cp_packed_logprobs(local.double().requires_grad_(), cu,
                                                                            default_group),
           "float64")
    assert torch.equal(cp.reassemble_cp_packed_logprobs(local, cu, default_group)[local_places(cu, rank, ranks)], local)
