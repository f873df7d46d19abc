# SPDX-License-Identifier: Apache-2.0
"""Megatron-FSDP v2 (megatron_fsdp.experimental) on two ranks (gloo), without and with a pool: the same bits."""

import contextlib
import functools
import types
import unittest.mock

import pytest

pytest.importorskip("megatron_fsdp.experimental", reason="the megatron-fsdp package is not installed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import bucketpool as bp  # noqa: E402
from megatron_fsdp import experimental  # noqa: E402
import process_group  # noqa: E402
from bucketpool.torch.megatron_fsdp import v2  # noqa: E402
from megatron_cpu import Unit, random_stack, step, without_cuda  # noqa: E402

STEPS = 3


@contextlib.contextmanager
def on_cpu():
    """v2 makes streams and averages, which needs NCCL's operations; on a CPU work is done when a call returns."""
    scatter = dist.reduce_scatter_tensor

    def averaged(output, input, op=None, group=None, **named):
        work = scatter(output, input, op=dist.ReduceOp.SUM, group=group, **named)
        output /= dist.get_world_size(group)
        return work

    nvtx = types.SimpleNamespace(range_push=lambda *_: None, range_pop=lambda *_: None)
    patch = unittest.mock.patch.object
    with without_cuda() as memory, patch(torch.cuda, "device", lambda _device: contextlib.nullcontext()), \
            patch(torch.cuda, "nvtx", nvtx), patch(dist, "reduce_scatter_tensor", averaged):
        stream = torch.cuda.current_stream()
        # main notes the stream of an allocation, and has none on a CPU
        with patch(experimental.DBuffer, "allocation_stream", property(lambda _self: stream, lambda _self, _value: None),
                   create=True):
            yield memory


def build(seed=4):
    """A sharded stack, with v2 of the package 0.6.1 or of Megatron-LM's main, which has contexts."""
    model = random_stack(seed)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    context = getattr(experimental, "fully_shard_context", None)
    if context is None:
        context, flat, placements_of = contextlib.nullcontext, experimental.Flat(), experimental.Placements
    else:
        context, flat = functools.partial(context, torch.device("cuda", 0)), torch.distributed.tensor.Shard(0)
        placements_of = experimental.Placements
    placements = placements_of(parameter=[flat], gradient=[flat], optimizer=[flat], dp_axes=["dp"])
    with context():
        for unit in model.modules():
            if isinstance(unit, Unit):
                experimental.fully_shard(unit, mesh=mesh, placements=placements)
        experimental.fully_shard(model, mesh=mesh, placements=placements)
    return model


def train(model, steps=STEPS):
    optimizer = torch.optim.Adam([each for each in model.parameters() if each.requires_grad], 1e-2)
    experimental.fully_shard_optimizer(optimizer)
    losses = []
    for number in range(steps):
        for microbatch in range(2):
            losses.append(step(model, 100 * number + 10 * microbatch + dist.get_rank()).item().hex())
        optimizer.step()
        optimizer.zero_grad()
    return losses, [each.to_local().detach().clone() for each in model.parameters()]


def same(one, other):
    return one[0] == other[0] and all(map(torch.equal, one[1], other[1]))


def runs():
    answers = {}
    with on_cpu():
        plain = train(build())
        for policy in ("scheduled", "max", "fixed"):
            model = build()
            with v2.attach(model, policy=policy) as attached:
                def noted(group, attached=attached):
                    return group.weight.local_buffer.untyped_storage()._cdata

                got = train(model)
                storages = [noted(group) for group in attached.groups if group.param]
                more = train(model, 1)
                answers[policy] = {"same": same(plain, got), "served": dict(attached.served), "plain": attached.plain,
                                   "replans": attached.replans, "bytes": attached.plan.bytes,
                                   "bound": attached.plan.lower_bound_bytes, "memory": attached.memory().pool_bytes,
                                   "stays": storages == [noted(group) for group in attached.groups if group.param],
                                   "pooled": len(storages), "finite": all(torch.isfinite(each).all() for each in more[1])}
            again = train(model, 1)
            answers[policy]["detached"] = len(again[0]) == 2 and attached.pool is None
        guarded = build()
        with v2.attach(guarded, guard="on") as attached:
            answers["guarded"] = same(plain, train(guarded))
    return answers


def test_same_bits():
    for answers in process_group.run(runs, ranks=2):
        assert answers.pop("guarded")
        for policy, answer in answers.items():
            assert answer["same"] and answer["stays"] and answer["finite"] and answer["detached"], (policy, answer)
            assert answer["served"]["param"] > 20 and answer["served"]["grad"] > 10, (policy, answer)
            assert not answer["plain"] and not answer["replans"], (policy, answer)
            assert answer["bytes"] <= answer["memory"]
        assert answers["scheduled"]["bytes"] == answers["scheduled"]["bound"] <= answers["max"]["bytes"]


def refusals():
    answers = {}

    def said(name, kind, function, *arguments, **named):
        try:
            function(*arguments, **named)
        except kind as error:
            answers[name] = str(error)

    said("plain", bp.InvalidArgument, v2.attach, nn.Linear(2, 2))
    with on_cpu():
        model = build()
        said("policy", bp.InvalidArgument, v2.attach, model, policy="dynamic")
        with v2.attach(model) as attached:
            said("twice", bp.InvalidArgument, v2.attach, model)
            train(model, 2)
            first = attached.groups[-1].group
            first.unshard_parameters()
            said("middle", bp.ScheduleError, attached.detach)
            stream = attached._streams.current()
            for other in attached.groups[1:-1]:
                if other.param.try_acquire(stream) is None:
                    said("busy", bp.ScheduleError, other.group.unshard_parameters)
                else:
                    other.param.release(stream)
            first.release_unsharded_storage()
            first.reshard_parameters()
    return answers


def test_refusals():
    for answers in process_group.run(refusals, ranks=2):
        assert set(answers) == {"plain", "policy", "twice", "middle", "busy"}, answers
        assert "fully_shard" in answers["plain"] and "no fixed address" in answers["policy"]
        assert "detach() it first" in answers["twice"] and "in use" in answers["middle"]
        assert "cannot move" in answers["busy"]
