# SPDX-License-Identifier: Apache-2.0
"""The loss of packed sequences on one process, logit ranges, and splits of a rank given as a number."""

import math

import pytest
import torch

from torch.testing import assert_close

from bucketpool import errors
from bucketpool.torch import comm
from bucketpool.torch.cp import PackedSplit
from bucketpool.torch.logprob import free_clients
from bucketpool.torch.loss import Loss, Statistics, logit_range
from logprob_ranks import case_names, outcome


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("module,case", [pair for pair in case_names() if pair[0] == "loss_cases"])
def test_case(ranks, module, case):
    wrong = outcome(ranks)[f"{module}.{case}"]
    assert not wrong, "\n".join(wrong)


def test_golden_values(on_device):
    """Three sequences, the second without valid tokens: sums by hand."""
    loss, split = Loss(3), PackedSplit([0, 2, 3, 5])
    mask, lp = torch.tensor([1, 0, 0, 1, 1]), torch.tensor([-1.0, 7.0, 7.0, -2.0, -4.0])
    loss.begin()
    loss.add(split, mask, lp, torch.full((5, ), 0.5), (lp - 1, lp + 1))
    got = loss.reduce()
    assert got == loss.statistics
    assert (got.sequences, got.tokens, got.valid, got.perplexity_sequences) == (3, 5, 3, 2)
    assert (got.logprob_sum, got.entropy_sum, got.logit_min, got.logit_max) == (-7, 1.5, -5, 0)
    assert_close(got.loss, 7 / 3.00001)
    assert_close(got.perplexity, (math.exp(1) + math.exp(3)) / 2)
    assert [(s.valid, s.logprob_sum) for s in loss.sequences] == [(1, -1), (0, 0), (2, -6)]
    assert_close(loss.seed(split, mask), -mask / 3.00001, check_dtype=False)
    assert_close(loss.seed(split, mask[None] * 2.5, 2), 2 * mask[None] / 3.00001, check_dtype=False)


def test_views(on_device):
    """Strided, broadcast and [1, tokens] values are those of contiguous ones."""
    split = PackedSplit([0, 6])
    mask, lp = torch.tensor([[True, False, True] * 2] * 2), torch.randn(6, 3)
    results = []
    for one, values in ((mask[0], lp[:, 1].contiguous()), (mask[1:], lp[:, 1]), (mask[:1].float(), lp.t()[None, 1]),
                        (mask[0].expand(1, 1, 6), lp[:, 1].requires_grad_())):
        loss = Loss(1)
        with loss.step():
            loss.add(split, one, values)
        results.append(loss.statistics)
        assert loss.seed(split, one).shape == one.shape
    assert results == [results[0]] * 4 and results[0].valid == 4
    with loss.step():
        loss.add(split, torch.ones(1).expand(6), torch.tensor([-2.0]).expand(6))
    assert loss.statistics.logprob_sum == -12


def test_nothing_counts(on_device):
    for cu in ([0], [0, 0], [0, 4]):
        loss, split = Loss(2), PackedSplit(cu)
        mask = torch.zeros(split.local_tokens)
        with loss.step():
            loss.add(split, mask, mask)
        assert loss.statistics.loss == 0 and loss.statistics.perplexity == 0
        assert loss.statistics.logit_min == math.inf and loss.statistics.logit_max == -math.inf
        assert torch.equal(loss.seed(split, mask), mask)


def test_dummies_and_padding(on_device):
    """They never count, whatever the mask says."""
    split = PackedSplit([0, 3, 7], rank=0, ranks=1, multiple=4, total_multiple=16)
    assert (split.sequences, split.data_sequences, split.data_tokens, split.padded_tokens) == (3, 2, 7, 16)
    loss, ones = Loss(3), torch.ones(split.local_tokens)
    with loss.step():
        loss.add(split, ones, -ones)
    assert loss.statistics[:4] == (2, 7, 7, -7)
    assert loss.seed(split, ones).count_nonzero() == 7 and len(loss.sequences) == 2


def test_misuse(on_device):
    loss, split = Loss(1), PackedSplit([0, 4])
    mask = torch.ones(4)
    for arguments, words in (((mask[:3], ), r"\[3\]"), ((mask.expand(2, 4), ), r"\[2, 4\]"),
                             ((mask, mask.bfloat16()), "bfloat16"),
                             ((mask, None, [1.0]), "list"), ((mask.to("meta"), ), "meta"),
                             ((torch.ones(()), ), r"\[\]"),
                             ((mask, mask, None, (mask, mask[:2])), r"logits\[1\]")):
        loss.begin()
        with pytest.raises(errors.InvalidArgument, match=words):
            loss.add(split, *arguments)
        with pytest.raises(errors.InvalidArgument, match=words):
            loss.reduce()
    loss.begin()
    loss.add(split, mask, mask)
    with pytest.raises(errors.InvalidArgument, match="max_sequences"):
        loss.add(split, mask, mask)
    other = Loss(2)
    other.begin()
    other.add(split, mask, mask)
    with pytest.raises(errors.InvalidArgument, match="same set"):
        other.add(split, mask, mask, mask)
    other.set_count(4)
    with pytest.raises(errors.InvalidArgument, match="CP ranks"):
        other.seed(PackedSplit([0, 8], rank=1, ranks=2), mask)
    with pytest.raises(errors.ScheduleError, match="no successful"):
        other.statistics
    for options, words in ((dict(max_sequences=0), "max_sequences"), (dict(max_sequences=1, epsilon=-1.0), "epsilon"),
                           (dict(max_sequences=-1), "max_sequences"), (dict(max_sequences=1, cp=(0, 1, 2)), "cp"),
                           (dict(max_sequences=1, tp="tp"), "tp"), (dict(max_sequences=1, gradients="sum"), "summed")):
        with pytest.raises(errors.InvalidArgument, match=words):
            Loss(**options)
    with pytest.raises(errors.Mismatch):
        Loss(1, cp=(0, 2))
    free_clients()
    with pytest.raises(errors.ScheduleError, match="create another"):
        loss.begin()


def test_merging():
    empty = Statistics(0, 0, 0, 0, 0, 0, 0, math.inf, -math.inf, 1e-5, 0, 0, 0)
    one = Statistics(1, 9, 4, -8.0, 2.0, 3.0, 1, -1.0, 5.0, 0.0, 2.0, 0.5, 3.0)
    assert empty.merged(one) == one
    both = one.merged(one._replace(valid=12, logprob_sum=0.0, logit_max=9.0))
    assert (both.valid, both.loss, both.logit_max, both.perplexity) == (16, 0.5, 9, 3)
    with pytest.raises(errors.SizeOverflow):
        one._replace(tokens=2**64 - 1).merged(one)
    with pytest.raises(errors.InvalidArgument):
        one._replace(tokens=-1).merged(one)


def test_compiled_callers():
    """torch.compile breaks the graph around the calls."""
    loss, split = Loss(1, device="cpu"), PackedSplit([0, 4])

    @torch.compile(backend="eager")
    def part(logits, mask):
        lp = logits * 2
        loss.add(split, mask, lp[:, 0], logits=logit_range(lp))
        return lp.sum()

    loss.begin()
    assert part(torch.arange(12.0).reshape(4, 3), torch.ones(4)) == 132
    assert (loss.reduce().logprob_sum, loss.statistics.logit_max) == (36, 22)

    @torch.compile(backend="eager")
    def weighted(mask):
        return 3 * loss.seed(split, mask)

    assert_close(weighted(torch.ones(4)), torch.full((4, ), -3 / 4.00001))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logit_ranges(on_device, dtype):
    logits = (100 * torch.randn(3, 5, 37)).to(dtype)
    logits[0, 0, 3], logits[0, 1, 36] = -math.inf, math.inf
    for given in (logits, logits.transpose(0, 1), logits[:, ::2, 1:], logits[1], logits[..., ::2],
                  logits[0, 2].expand(4, 37), logits.clone().requires_grad_()):
        least, largest = logit_range(given)
        assert least.dtype == torch.float32 and not least.requires_grad
        assert torch.equal(least, given.float().amin(-1)) and torch.equal(largest, given.float().amax(-1))
    logits[2, 2, 5] = math.nan
    mask = torch.rand(3, 5) < 0.5
    mask[2, 2] = True
    least, largest = logit_range(logits, mask)
    assert least[2, 2].isnan() and largest[2, 2].isnan()
    assert torch.equal(least[~mask], torch.zeros_like(least[~mask]))
    assert torch.equal(largest.nan_to_num(3), torch.where(mask, logits.float().amax(-1), 0).nan_to_num(3))
    assert logit_range(torch.empty(0, 7, 4, dtype=dtype))[0].shape == (0, 7)


def test_logit_range_misuse(on_device):
    for logits, mask in ((torch.ones(4, 0), None), (torch.ones(()), None), (torch.ones(2, 3).double(), None),
                         (torch.ones(2, 3), torch.ones(3)), ([1.0], None)):
        with pytest.raises(errors.InvalidArgument):
            logit_range(logits, mask)


def test_ranks_by_number():
    """A split without a process group is that of the rank; it cannot gather."""
    cu, value = [0, 5, 5, 18], torch.arange(18)
    parts = [PackedSplit(cu, rank=rank, ranks=4) for rank in range(4)]
    whole = torch.cat([part.split(value + 1) for part in parts])
    for part in parts:
        assert (part.rank, part.ranks, part.group) == (parts.index(part), 4, None)
        back = part.index_map("gathered", "packed")
        assert torch.equal(whole[back] - 1, value)
    with pytest.raises(errors.InvalidArgument, match="rank 1 of 4 without a group"):
        parts[1].reassemble(torch.ones(parts[1].local_tokens))
    alone = PackedSplit(cu, rank=0, ranks=1)
    assert torch.equal(alone.reassemble(alone.split(value)), value)
    for options in (dict(rank=0), dict(ranks=2), dict(rank=2, ranks=2), dict(rank=-1, ranks=2),
                    dict(rank=0, ranks=0), dict(rank=0, ranks=2, multiple=-4), dict(rank="0", ranks=2)):
        with pytest.raises(errors.InvalidArgument):
            PackedSplit(cu, **options)


def test_numbers_and_group(tmp_path):
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(errors.InvalidArgument, match="with a group"):
            PackedSplit([0, 4], dist.group.WORLD, rank=0, ranks=2)
        assert Loss(1, dist.group.WORLD, tp=dist.group.WORLD, dp=(0, 1), device="cpu").comm is None
    finally:
        comm.close()
        dist.destroy_process_group()
