# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed ZeRO-3 on two ranks (gloo), without and with a pool: the same bits, and what the pool takes."""

import os
import re
import sys

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed", reason="the deepspeed package is not installed")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import bucketpool as bp  # noqa: E402
import deepspeed  # noqa: E402
import deepspeed.ops  # noqa: E402
import process_group  # noqa: E402
from places import ROOT
from bucketpool.torch import deepspeed as pooled  # noqa: E402
from bucketpool.torch.memory import tensor_at  # noqa: E402
from fsdp2_models import Block, Experts, Stack  # noqa: E402

BUCKET = 5000  # elements of gradients
ORDERS = [[0, 1, 2, 3]] * 6 + [[3, 1, 0, 2], [0, 3], [1, 1, 2], [3, 1, 0, 2]]
STEPS = 8  # micro-batches; an optimizer step after every second one


def engine_of(recompute=False, tied=False, optimizer=True, zero=None, **config):
    """An engine with several different layers, the same on every rank and call."""
    os.environ["LOCAL_RANK"] = str(dist.get_rank())
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # a compiled copy of gloo's collectives
    torch.manual_seed(7)
    model = Stack([Block(48), Block(17, recompute), Experts(2, 40), Block(96)], tied=tied)
    model.layers[1].up.requires_grad_(False)
    zero = {"stage": 3, "stage3_prefetch_bucket_size": 2000, "stage3_param_persistence_threshold": 30,
            "stage3_max_live_parameters": 6000, "stage3_max_reuse_distance": 0, "reduce_bucket_size": BUCKET,
            **(zero or {})}
    config = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2, "zero_optimization": zero,
              **config}
    if optimizer:
        config["optimizer"] = {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}}
    trained = [each for each in model.parameters() if each.requires_grad] if optimizer else None
    return deepspeed.initialize(model=model, model_parameters=trained, config=config, dist_init_required=False)[0]


def loss_of(engine, step):
    tokens = torch.randint(0, 40, (3, 5), generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
    return nn.functional.cross_entropy(engine(tokens).float().flatten(0, 1), tokens.flatten())


def train(engine, steps=STEPS, orders=None, note=lambda: None):
    """Losses, with those of evaluation after each optimizer step. note: called before each."""
    losses = []
    for step in range(steps):
        note()
        if orders:
            engine.module.passes = orders[step]
        loss = loss_of(engine, step)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item().hex())
        if step % 2:
            with torch.no_grad():
                losses.append(loss_of(engine, 100 + step).item().hex())
    engine.empty_partition_cache()
    return losses


def parameters_of(engine):
    whole = []
    for each in engine.module.parameters():
        with deepspeed.zero.GatheredParameters(each):
            whole.append(each.detach().clone())
    return whole


class Measured(TorchFunctionMode):
    """Live bytes of the buffers that DeepSpeed allocates itself in forward, by the file of the allocating code.

    Each is rounded as in plans. Backward runs without modes.
    """

    FILES = "partition_parameters.py", "coalesced_collectives.py"

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        callers = frame.f_code.co_filename, frame.f_back.f_code.co_filename  # the second for annotated calls
        if func in (torch.empty, torch.cat) and "out" not in (kwargs or {}) and made.numel() \
                and any(os.path.basename(each) in self.FILES for each in callers):
            count = (made.nbytes + 255) // 256 * 256
            self.live += count
            self.peak = max(self.peak, self.live)
            return tensor_at(made.data_ptr(), made.numel(), made.dtype, made.device,
                             lambda _memory=made: self.ended(count)).view(made.shape)
        return made

    def ended(self, count):
        self.live -= count


def compared(orders=None, options=None, steps=STEPS, **engine):
    """Training without and with a pool."""
    plain = engine_of(**engine)
    losses = train(plain, steps, orders)
    weights = parameters_of(plain)
    pool = engine_of(**engine)
    with pooled.attach(pool, **(options or {})) as attached:
        plain = []
        same = losses == train(pool, steps, orders, lambda: plain.append(attached.plain))
        same = same and all(map(torch.equal, weights, parameters_of(pool)))
        answer = {"same": same, "served": dict(attached.served), "plain": plain, "replans": attached.replans,
                  "bytes": attached.plan.bytes, "bound": attached.plan.lower_bound_bytes, "peak": attached.peak_bytes,
                  "memory": attached.memory().pool_bytes}
    again = train(pool, 2)  # DeepSpeed's own memory again
    assert len(again) == 3 and attached.pool is None
    return answer


def steady():
    return {"guarded": compared(options={"guard": "on"}),
            "recomputed": compared(recompute=True, tied=True, bf16={"enabled": True}),
            "sequential": compared(zero={"stage3_allgather_sequential": True, "contiguous_gradients": False})}


def test_same_bits():
    for answers in process_group.run(steady, ranks=2):
        for name, answer in answers.items():
            assert answer["same"], (name, answer)
            assert answer["served"]["param"] > 100 and answer["served"]["grad"] > 5, (name, answer)
            # The first evaluation may differ: DeepSpeed waits for its prefetches for backward together.
            assert answer["plain"][5] == answer["plain"][-1] < 20 and len(answer["replans"]) <= 1, (name, answer)
            assert answer["peak"] <= answer["bytes"] == answer["bound"] <= answer["memory"], (name, answer)


def measured():
    zero = {"stage3_param_persistence_threshold": 0}  # nothing else stays gathered
    own = engine_of(zero=zero)
    with Measured() as measure:
        losses = train(own)
    pool = engine_of(zero=zero)
    plain = []
    with pooled.attach(pool) as attached:
        assert train(pool, note=lambda: plain.append(attached.plain)) == losses
        return measure.peak, 4 * BUCKET, attached.plan.bytes, dict(attached.served), plain


def test_memory():
    (own, bucket, planned, served, plain), *_ = process_group.run(measured, ranks=2)
    print(f"DeepSpeed in forward: {own} bytes at the peak and {bucket} of the bucket of gradients; pool: {planned}; "
          f"served {served['param']} of parameters, {served['grad']} of gradients, {plain[-1]} by PyTorch")
    assert planned < 0.9 * (own + bucket) and plain[5] == plain[-1]


def other_orders():
    answers = {name: compared(ORDERS, {"on_mismatch": name}, len(ORDERS)) for name in ("replan", "plain")}
    engine = engine_of()
    pooled.attach(engine, on_mismatch="error")
    try:
        train(engine, len(ORDERS), ORDERS)
    except pooled.Unplanned as error:
        answers["error"] = str(error)
    return answers


def test_other_orders():
    for answers in process_group.run(other_orders, ranks=2):
        replanned, plain = answers["replan"], answers["plain"]
        assert replanned["same"] and plain["same"], answers
        assert 1 < len(replanned["replans"]) < 8, replanned
        assert replanned["bytes"] == replanned["bound"] < 1.5 * plain["bytes"], answers
        assert plain["plain"][-1] > replanned["plain"][-1] > 0 and not plain["replans"], answers
        assert "attach() after a few steps" in answers["error"], answers


def inference_and_refusals():
    answers = {}

    def said(name, kind, function, *arguments, **named):
        try:
            function(*arguments, **named)
        except kind as error:
            answers[name] = str(error)

    engine = engine_of(optimizer=False)
    with torch.no_grad(), pooled.attach(engine) as attached:
        losses = [loss_of(engine, 1).item() for _ in range(8)]
        answers["inference"] = len(set(losses)) == 1, attached.served["param"], attached.plain
        said("twice", bp.InvalidArgument, pooled.attach, engine)
        engine.empty_partition_cache()
    engine = engine_of()
    with pooled.attach(engine) as attached:
        engine.backward(loss_of(engine, 1))
        loss = loss_of(engine, 1)
        said("middle", bp.ScheduleError, attached.detach)
        engine.backward(loss)
        engine.step()
    said("module", bp.InvalidArgument, pooled.attach, engine.module)
    said("mismatch", bp.InvalidArgument, pooled.attach, engine, on_mismatch="never")
    config = engine._config.zero_config
    for name, value in (("zero_quantized_weights", True), ("zero_hpz_partition_size", 2),
                        ("use_all_reduce_for_fetch_params", True)):
        before = getattr(config, name)
        setattr(config, name, value)
        said(name, bp.Unsupported, pooled.attach, engine)
        setattr(config, name, before)
    said("stage", bp.InvalidArgument, pooled.attach, engine_of(zero={"stage": 2}))
    said("all-reduce", bp.Unsupported, pooled.attach, engine_of(zero={"reduce_scatter": False}))
    deepspeed.__version__ = "0.1.0"
    said("version", bp.Unsupported, pooled.attach, engine)
    return answers


def test_inference_and_refusals():
    for answers in process_group.run(inference_and_refusals, ranks=2):
        same, served, plain = answers.pop("inference")
        assert same and served > 50 and not plain
        assert set(answers) == {"twice", "middle", "module", "mismatch", "zero_quantized_weights", "all-reduce",
                                "stage", "zero_hpz_partition_size", "use_all_reduce_for_fetch_params",
                                "version"}, answers
        assert "detach() it first" in answers["twice"] and "empty_partition_cache" in answers["middle"]
        assert "stage None" in answers["module"] and "stage 2" in answers["stage"]
        assert "reduce_scatter: false" in answers["all-reduce"] and "any_version" in answers["version"]


def test_options_of_the_guide():
    """Each option that the guide names exists."""
    folder = os.path.join(ROOT, "docs", "guides")
    with open(os.path.join(folder, "deepspeed.md"), encoding="utf-8") as file:
        section = file.read().split("\n## Options\n")[1]
    fields = deepspeed.runtime.zero.config.DeepSpeedZeroConfig.model_fields
    known = {*fields, *(each.alias for each in fields.values())}
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    rows.append(section.split("`Unsupported` is raised for")[1])
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 15 and named - known == {"cpu", "nvme", "torch_autocast", "bf16"}
