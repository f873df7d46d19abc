# SPDX-License-Identifier: Apache-2.0
"""Refusals and fallbacks of FSDP2's adapter, and detection of early releases."""

import os
import re

import pytest

import fsdp2_models as models
import process_group
from places import ROOT


def said(kind, function, *arguments, **named):
    """The message of the exception that a call raises. Fails without one of this kind."""
    try:
        function(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__}")


def wrong_modules():
    import torch
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    from bucketpool import Device, errors
    from bucketpool.torch import fsdp2

    answers = {"plain": said(errors.InvalidArgument, fsdp2.attach, nn.Linear(4, 4))}
    model = models.build()
    attached = fsdp2.attach(model)
    answers["twice"] = said(errors.InvalidArgument, fsdp2.attach, model)
    with fsdp2.record(models.build()):
        pass
    answers["recorded"] = said(errors.InvalidArgument, fsdp2.record(model).__enter__)
    models.train(model, 1)
    answers["part"] = said(errors.InvalidArgument, fsdp2.attach, model.layers[0])
    attached.detach()
    attached.detach()
    fsdp2.attach(model).detach()
    answers["device"] = said(errors.Mismatch, fsdp2.attach, model, device=Device.null())
    answers["gpu"] = said(errors.Unsupported, fsdp2.attach(model).register)
    odd = fully_shard(nn.Linear(4, 4, dtype=torch.complex128))
    answers["dtype"] = said(errors.InvalidArgument, fsdp2.attach, odd)
    answers["policy"] = said(errors.InvalidArgument, fsdp2.attach, models.build(), policy="best")
    with fsdp2.record(models.build()) as nothing:
        pass
    answers["nothing"] = said(errors.InvalidArgument, fsdp2.attach, models.build(), nothing)
    tied = models.build("tied")
    with fsdp2.record(tied) as other:
        models.train(tied, 1)
    answers["other"] = said(errors.Mismatch, fsdp2.attach, models.build("embedding"), other)
    with fsdp2.attach(tied, other) as attached:
        answers["plan"] = said(errors.Mismatch, fsdp2.attach, models.build("embedding"), plan=attached.plan,
                               on_mismatch="error")
        answers["mismatch"] = said(errors.InvalidArgument, fsdp2.attach, models.build(), on_mismatch="ignore")
    answers["option"] = said(TypeError, fsdp2.attach, models.build(), polcy="max")
    answers["options"] = said(TypeError, fsdp2.attach_parameters, models.build(), other=1)
    return answers


def test_refused_modules():
    for answers in process_group.run(wrong_modules):
        assert '"replan", "plain" or "error"' in answers.pop("mismatch")
        expected = {"plain": "Linear: it is not sharded; call torch.distributed.fsdp.fully_shard",
                    "twice": "it has a pool or is being recorded",
                    "recorded": "has a pool", "part": "pass the root", "device": "device null: the module is on cpu",
                    "gpu": "register only pools on GPUs with NCCL",
                    "dtype": "complex128", "policy": "best", "nothing": "run a training step inside record()",
                    "option": "attach: unknown option 'polcy'; did you mean 'policy'?",
                    "options": "attach_parameters: unknown option 'other'; it has module, policy, ",
                    "other": "record the module that the pool is for",
                    "plan": "the plan has 14 requests, the buckets have 17"}
        assert set(answers) == set(expected)
        for name, words in expected.items():
            assert words in answers[name], (name, answers[name])


def one_rank():
    from bucketpool import errors
    from bucketpool.torch import fsdp2

    return said(errors.Unsupported, fsdp2.attach, models.build())


def test_one_rank():
    assert "sharded over one rank" in process_group.run(one_rank, ranks=1)[0]


def unplanned():
    """Steps that differ from the plan, strict and not."""
    import torch

    from bucketpool.torch import fsdp2

    answers = {}
    small, large = models.build("uniform"), models.build("sizes")
    with fsdp2.record(small) as of_small:
        models.train(small, 1)
    attached = fsdp2.attach(large, of_small, on_mismatch="error")
    answers["larger"] = said(fsdp2.Unplanned, models.train, large, 1)
    fallback = models.build("sizes")
    with fsdp2.attach(fallback, of_small, on_mismatch="plain") as loose:
        answers["loose"] = models.same(models.train(models.build("sizes"), 2),
                                       models.train(fallback, 2)) and dict(loose.fallbacks)
        answers["report"] = loose.report()

    again = models.build("repeated")
    strict = fsdp2.attach(again, on_mismatch="error")
    again.passes = [0, 1, 1, 2]
    answers["again"] = said(fsdp2.Unplanned, models.train, again, 1)

    skipping = models.build("uniform")
    skipping.passes = [0, 1]
    with fsdp2.record(skipping) as of_two:
        models.train(skipping, 1)
    skipping.passes = [0, 1, 2]
    skipped = fsdp2.attach(skipping, of_two, on_mismatch="error")
    answers["new"] = said(fsdp2.Unplanned, models.train, skipping, 1)

    reordered = models.build("sizes")
    reordered.passes = [3, 1, 0, 2]
    plain = models.train(made_again("sizes", [3, 1, 0, 2]), 2)
    with fsdp2.attach(reordered, on_mismatch="plain", poison=True) as moved:
        answers["moved"] = models.same(plain, models.train(reordered, 2)), dict(moved.fallbacks)

    fewer, kinds = models.build("sizes"), []
    for passes in ([0, 1, 2, 3], [0, 2]):  # layers 0 and 2 are neighbours in one kind of step only
        fewer.passes = passes
        with fsdp2.record(fewer) as recording:
            models.loss_of(fewer, 0).backward()
        fewer.zero_grad()
        kinds.append(recording)
    with fsdp2.attach(fewer, kinds, poison=True) as both:
        answers["fewer"] = models.same(models.train(made_again("sizes", [0, 2]), 2),
                                       models.train(fewer, 2)) and both.report()
        fewer.passes = [0, 1, 2, 3]
        models.train(fewer, 1)
        answers["united"] = both.plan.bytes
    del attached, strict, skipped
    return answers


def made_again(kind, passes):
    model = models.build(kind)
    model.passes = passes
    return model


def test_unplanned_buffers():
    for answers in process_group.run(unplanned):
        assert "elements of torch.float32 requested" in answers["larger"] and "planned" in answers["larger"]
        assert "bucketpool.torch.fsdp2.record()" in answers["larger"] and "on_mismatch" in answers["larger"]
        assert answers["loose"] and answers["loose"]["another size"] > 0
        assert f"plain memory instead: {answers['loose']['another size']} times, another size" in answers["report"]
        assert "requested again while" in answers["again"] or "its memory is in use" in answers["again"]
        assert "the recording or prediction does not contain it" in answers["new"]
        assert answers["moved"][0] and answers["moved"][1].get("unplanned overlap", 0) > 0
        assert answers["fewer"] and "instead" not in answers["fewer"] and answers["united"] > 0


def released_early():
    """A faulty adapter that releases buffers when their collective returns, before the copy-out."""
    import torch

    from bucketpool.torch import fsdp2
    from bucketpool.torch.fsdp2 import comms

    plain, model = models.train(models.build("sizes"), 1), models.build("sizes")
    attached = fsdp2.attach(model, poison=True)
    call = comms._Comm.__call__

    def too_early(self, *arguments, **named):
        work = call(self, *arguments, **named)
        for buffer in list(attached._in_use.values()):
            attached._fill(buffer, buffer.stream)
        return work

    comms._Comm.__call__ = too_early
    wrong = models.train(model, 1)
    return models.same(plain, wrong), any(bool(torch.isnan(each).any()) for each in wrong)


def test_poison_of_early_releases():
    for same, nan in process_group.run(released_early):
        assert not same and nan


def held():
    """Detaching inside a step, and after an exception in it. Gradients are never in the pool."""
    from bucketpool import errors
    from bucketpool.torch import fsdp2

    addresses = {}
    serve = fsdp2.Attachment.serve

    def noted(self, *request, **named):
        tensor = serve(self, *request, **named)
        addresses.setdefault(self._in_use[tensor.data_ptr()].slot, set()).add(tensor.data_ptr())
        return tensor

    fsdp2.Attachment.serve = noted
    answers, model = {}, models.build("sizes")
    attached = fsdp2.attach(model)
    handle = model.layers[0].unshard(async_op=True)
    answers["middle"] = said(errors.ScheduleError, attached.detach)
    handle.wait()
    model.layers[0].reshard()
    models.train(model, 1)
    loss = models.loss_of(model, 0)
    loss.backward()
    places = [(slab.address, slab.address + slab.bytes) for slab in attached.pool.slabs]
    tensors = [t for p in model.parameters() for t in (p.to_local(), p.grad.to_local())]
    answers["outside"] = all(not begin <= t.data_ptr() < end for t in tensors for begin, end in places)
    model.zero_grad()
    models.train(model, 3)
    answers["stable"] = len(addresses) > 8 and all(len(each) == 1 for each in addresses.values())

    def aliases():
        return [alias for each in attached._buffers.values() for buffer in each for alias in buffer.aliases.values()]

    made = aliases()  # kept, so that no other tensor gets their ids
    models.train(model, 1)
    answers["aliases"] = len(made) > 8 and list(map(id, made)) == list(map(id, aliases()))
    report = attached.report()
    attached.detach()
    answers["plain"] = type(model.layers[0]._get_fsdp_state()._fsdp_param_group._all_gather_comm).__name__
    served = dict(attached.served)
    models.train(model, 1)
    answers["after"] = served == attached.served and attached.report() == report
    return answers


def test_detach_and_addresses():
    for answers in process_group.run(held):
        assert "detach between steps" in answers["middle"]
        assert answers["outside"] and answers["stable"] and answers["aliases"] and answers["plain"] == "DefaultAllGather" and answers["after"]


def left_by_an_exception():
    """A block that an exception leaves in the middle of a step takes its pool along, once: the next one is not touched
    when the first is detached later."""
    from bucketpool.torch import fsdp2

    model = models.build("sizes")
    first = fsdp2.attach(model)
    try:
        with first:
            handle = model.layers[0].unshard(async_op=True)
            raise KeyError("in a step")
    except KeyError:
        held = len(first.live())
    handle.wait()
    model.layers[0].reshard()
    with fsdp2.attach(model) as second:
        first.detach()
        models.train(model, 1)
        return held, first.pool.closed, second.served["param"]


def test_exception_in_step():
    for held, closed, served in process_group.run(left_by_an_exception):
        assert held == 1 and closed and served > 0


def written_past_the_end():
    """The overrun is detected at the release of the step's last buffer, so detach() raises it."""
    import ctypes

    from bucketpool import errors
    from bucketpool.torch import fsdp2

    serve = fsdp2.Attachment.serve

    def overrun(self, comm, *request, **named):
        tensor = serve(self, comm, *request, **named)
        if comm.group.name == "(root)" and comm.role == "grad":
            ctypes.memset(self._in_use[tensor.data_ptr()].end, 1, 1)
        return tensor

    fsdp2.Attachment.serve = overrun
    model = models.build("sizes")
    attached = fsdp2.attach(model, guard="on", alignment=4096)
    models.loss_of(model, 0).backward()
    return said(errors.ScheduleError, attached.detach), attached.pool.closed


def test_detach_after_overrun():
    for message, closed in process_group.run(written_past_the_end):
        assert "(root)" in message and closed


def from_file(folder):
    """The exported model, planned from its file, as the command does it, and attached with that plan."""
    import torch.distributed as dist

    from bucketpool import Buckets, Model, Plan, Schedule
    from bucketpool.torch import fsdp2

    model = models.build("experts")
    here = os.path.join(folder, f"rank{dist.get_rank()}")
    os.mkdir(here)
    units, plan = os.path.join(here, "units.json"), os.path.join(here, "plan.json")
    fsdp2.plan_of(model).model.write_units(units)
    read = Model.read(units)
    buckets = Buckets(read, bucketing="given", padding="given")
    Plan(buckets, Schedule.recorded(read, buckets), joint=True).write(plan)
    with fsdp2.attach(model, plan=plan, poison=True) as attached:
        same = models.same(models.train(models.build("experts"), 2), models.train(model, 2))
        return same, attached.plan.bytes, [unit.name for unit in read.units], sorted({b.name for b in read.buckets})


def test_plan_of_units_json(tmp_path):
    for same, planned, units, buckets in process_group.run(from_file, str(tmp_path)):
        assert same and planned > 0
        assert units[:3] == ["(root)", "layers.0", "layers.1"] and "layers.1.experts.0" in units
        assert buckets == ["gather.backward", "gather.forward", "reduce"]


EXAMPLE = os.path.join(ROOT, "examples", "fsdp2_train.py")


def example(script, port, *options):
    import contextlib
    import io
    import runpy
    import sys

    import torch.distributed as dist

    rank = dist.get_rank()
    dist.destroy_process_group()
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                      MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    sys.argv = [script, *options]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        runpy.run_path(script, run_name="__main__")
    return text.getvalue()


def test_example(free_port):
    first, second = process_group.run(example, EXAMPLE, free_port, "--steps", "2", "--layers", "3", "--width", "16")
    lines = first.splitlines()
    assert second == "" and len(lines) == 6
    for step, line in enumerate(lines[:2]):
        words = line.replace(",", "").split()
        assert words[:2] == ["step", f"{step}:"] and words[3] == words[5]
    held, planned = int(lines[2].split()[3]), int(lines[3].split()[3])
    assert 0 < held <= planned <= held + 2048


def test_figures_of_the_guide(free_port):
    """docs/guides/fsdp2.md has the bytes that the example prints: live in plain FSDP2, and planned."""
    report = process_group.run(example, EXAMPLE, free_port)[0].splitlines()[2:]
    with open(os.path.join(os.path.dirname(EXAMPLE), "..", "docs", "guides", "fsdp2.md"), encoding="utf-8") as page:
        text = page.read()
    for line in report[:2]:
        assert f"{int(re.findall(r'[0-9]+', line)[0]):,}" in text, report


@pytest.fixture
def free_port():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def extended(model):
    """A parameter that is gathered as bf16 by extensions, as float8 parameters are, among others in fp32: packed as
    bytes."""
    import torch

    local = model.layers[0].up.weight._local_tensor

    def before(mesh):
        return (local.to(torch.bfloat16),), None

    def after(outputs, metadata, dtype, *, out=None):
        if out is None:
            whole = outputs[0].to(dtype)
            return whole, (whole,)
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(out):
            out.copy_(outputs[0])
        return None

    local.fsdp_pre_all_gather, local.fsdp_post_all_gather = before, after
    return model


def extensions():
    import torch

    from bucketpool import errors
    from bucketpool.torch import fsdp2

    plain, model = models.train(extended(models.build()), 2), extended(models.build())
    message = said(errors.Unsupported, fsdp2.attach, model)
    other = extended(models.build())
    with fsdp2.record(other) as recording:
        models.train(other, 1)
    with fsdp2.attach(model, recording, poison=True) as attached:
        same = models.same(plain, models.train(model, 2))
        sizes = {slot: size for slot, size in attached.planned.sizes.items() if slot.unit == "layers.0"
                 and slot.role == "param"}
    return message, same, {size.dtype == torch.uint8 for size in sizes.values()}


def test_all_gather_extensions():
    for message, same, packed in process_group.run(extensions):
        assert "layers.0: its parameters have all-gather extensions" in message and "record()" in message
        assert same and packed == {True}
