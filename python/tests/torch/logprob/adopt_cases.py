# SPDX-License-Identifier: Apache-2.0
"""Cases of test_adopt.py, each in a separate process: values of originals and replacements, states of adoptions."""

import importlib
import importlib.util
import inspect
import os
import sys
import types

import torch
import torch.distributed as dist

from places import TESTS
from adopt_releases import FLOATS, RELEASES, TOLERANCE, Absent, Twice, areal, called, inputs, release, skyrl, trl, verl

# ---- TRL -------------------------------------------------------------------------------------------------------------

LOGPROBS, ENTROPY, BOTH = "selective_log_softmax", "entropy_from_logits", "selective_log_softmax_and_entropy"


def trl_values():
    from bucketpool.torch import adopt

    module = trl()

    def calls(twice):
        def check(name, *arguments, ours=True, **keywords):
            twice.check(module, name, arguments, keywords, ours=ours)

        for dtype in FLOATS:
            for shape in ((3, 5), (7, ), (2, 3, 2)):
                logits, index = inputs(shape, dtype=dtype)
                mask = torch.rand(shape) < 0.6
                check(ENTROPY, logits)
                check(ENTROPY, logits, chunk_size=2)
                check(BOTH, logits, index, entropy_requires_grad=False)
                for options in ({}, dict(temperature=0.7), dict(row_mask=mask), dict(row_mask=mask.long()),
                                dict(temperature=2, row_mask=mask)):
                    check(LOGPROBS, logits, index, **options)
                    check(BOTH, logits, index, **options)
            logits, index = inputs(dtype=dtype, k=4)
            check(LOGPROBS, logits, index)
            check(LOGPROBS, logits, index, temperature=0.7, row_mask=torch.rand(index.shape) < 0.5)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype != torch.float16):
                check(LOGPROBS, *inputs(dtype=dtype))
                check(BOTH, *inputs(dtype=dtype))
        logits, index = inputs()
        check(LOGPROBS, logits[:, ::2], index[:, ::2])
        check(LOGPROBS, logits.transpose(0, 1), index.transpose(0, 1))
        with torch.no_grad():
            check(BOTH, logits, index)
        for outside in (-100, -1, 37):  # all raise
            index[1, 2] = outside
            check(LOGPROBS, logits, index)
            check(BOTH, logits, index)
            check(LOGPROBS, logits, index.unsqueeze(-1))
        double = inputs(dtype=torch.float64)
        check(LOGPROBS, *double, ours=False)
        check(ENTROPY, double[0], ours=False)
        check(BOTH, *double, ours=False)
        for temperature in (0.0, -1, torch.tensor(0.5), float("nan")):
            check(LOGPROBS, *inputs(), temperature=temperature, ours=False)
            check(BOTH, *inputs(), temperature=temperature, ours=False)
        for shape in ((0, 5), (3, 0), (0, )):
            check(LOGPROBS, *inputs(shape), ours=False)
            check(ENTROPY, inputs(shape)[0], ours=False)
        check(LOGPROBS, *inputs(k=130), ours=False)
        check(LOGPROBS, *inputs(k=0), ours=False)
        check(LOGPROBS, *inputs(), row_mask=torch.ones(5), ours=False)
        check(LOGPROBS, inputs()[0], inputs((3, 4))[1], ours=False)
        check(ENTROPY, inputs(())[0])  # one token, without dimensions of tokens
        check(LOGPROBS, *inputs(()), ours=False)
        check(ENTROPY, inputs(())[0][0], ours=False)

    text = str(Twice(adopt.trl, calls).adopted)
    logits, _ = inputs()
    logits[0, 0, 3] = -torch.inf  # the difference that the module describes
    assert module.entropy_from_logits(logits)[0, 0].isnan()
    with adopt.trl():
        assert module.entropy_from_logits(logits).isfinite().all()
    return text


def trl_kernel():
    """TRL's Triton kernel, which runs on GPUs: here in Triton's interpreter."""
    from bucketpool.torch import adopt

    module = trl()
    supports = module._supports_trl_loss_kernel
    assert inspect.signature(supports).parameters.keys() == {"logits", "index", "row_mask"}
    module._supports_trl_loss_kernel = lambda logits, index=None, row_mask=None: logits.dtype != torch.float64

    def calls(twice):
        logits, index = inputs()
        mask = torch.rand(3, 5) < 0.6
        index[~mask] = -100  # not read
        for options in (dict(row_mask=mask), dict(temperature=0.7, row_mask=mask)):
            twice.check(module, LOGPROBS, (logits, index), options)
            twice.check(module, BOTH, (logits, index), options)
        twice.check(module, ENTROPY, (logits, ))
        twice.check(module, ENTROPY, (logits.half(), ))  # its results are float32

    return str(Twice(adopt.trl, calls).adopted)


# ---- SkyRL and verl --------------------------------------------------------------------------------------------------


def flash(module, flag, adopt):
    """flash-attn's cross entropy, which needs a GPU, is float32, ignores -100 and overwrites logits; so do replacements
    where it is installed.
    """
    setattr(module, flag, True)
    with adopt(["logprobs_from_logits"]):
        logits, labels = inputs(dtype=torch.bfloat16)
        labels[1, 2] = -100
        wanted = -torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
        for in_place in (True, False):
            leaf = logits.clone().requires_grad_()
            given = leaf * 1
            got = module.logprobs_from_logits(given, labels.flatten(), inplace_backward=in_place)
            torch.testing.assert_close(got, wanted.view(3, 5))  # its dtype, too
            got.sum().backward()
            assert not leaf.grad[1, 2].any() and leaf.grad[1, 1].any()
            assert torch.equal(given, leaf) != in_place
        leaf = logits.clone().requires_grad_()
        module.logprobs_from_logits(leaf, labels).sum().backward()
        assert torch.equal(leaf, logits)
    setattr(module, flag, False)


def shards(columns=24, shape=(2, 6), dtype=torch.float32):
    """This rank's columns, the ids of all, and the bounds."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    logits, labels = inputs(shape, columns * ranks, dtype)
    start = rank * columns
    return logits[..., start:start + columns].contiguous(), labels, start, start + columns


def tensor_parallel():
    """All ranks are Megatron's tensor-parallel ranks."""
    import megatron.core.parallel_state as mpu

    mpu._TENSOR_MODEL_PARALLEL_GROUP = dist.group.WORLD
    mpu._MPU_TENSOR_MODEL_PARALLEL_RANK = dist.get_rank()
    mpu._MPU_TENSOR_MODEL_PARALLEL_WORLD_SIZE = dist.get_world_size()


def skyrl_values():
    from bucketpool.torch import adopt

    module, _ = skyrl()
    logprobs, entropy = "logprobs_from_logits", "chunked_entropy_from_logits"

    def calls(twice):
        for dtype in FLOATS:
            logits, labels = inputs(dtype=dtype)
            for in_place in (True, False):
                twice.check(module, logprobs, (logits, labels, in_place))
            for mask in (None, torch.rand(3, 5) < 0.5, (torch.rand(3, 5) < 0.5).long(), torch.rand(3, 5)):
                for grad in (False, True):
                    twice.check(module, entropy, (logits, ),
                                dict(requires_grad=grad, attention_mask=mask, chunk_size=2))
        for outside in (-100, 37):
            twice.check(module, logprobs, (inputs()[0], torch.full((3, 5), outside)))
        for arguments in (inputs(dtype=torch.float64), inputs((0, 4)), (inputs()[0], inputs((3, 4))[1])):
            twice.check(module, logprobs, arguments, ours=False)
        twice.check(module, entropy, inputs()[:1], dict(attention_mask=torch.ones(3, 4)), ours=False)
        twice.check(module, entropy, inputs((0, 4))[:1], ours=False)

    twice = Twice(adopt.skyrl, calls)
    flash(module, "FLASH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", adopt.skyrl)
    return str(twice.adopted)


def skyrl_ranks():
    from bucketpool.torch import adopt

    _, module = skyrl()
    tensor_parallel()

    def whole(logits, labels):
        return module.from_parallel_logits_to_logprobs(logits, labels, *bounds, dist.group.WORLD, False, None, 3)

    def calls(twice):
        nonlocal bounds
        for dtype in FLOATS:
            for group in (dist.group.WORLD, None):  # None: the default group
                logits, labels, *bounds = shards(dtype=dtype)
                head = torch.randn(2, 6, 16).to(dtype), torch.randn(24, 16).to(dtype)
                given = logits, labels, *bounds
                twice.check(module, "DistributedLogprob", (*given, group, False))
                twice.check(module, "ChunkedDistributedLogprob", (*given, 4, group))
                twice.check(module, "ChunkedDistributedLogprob", (*given, 4, group, True), leaves=())
                outside = labels.clone()
                outside[0, 1], outside[1, 2] = -100, 1000  # 0, and the gradient of the softmax
                twice.check(module, "DistributedLogprob", (logits, outside, *bounds, group))
                twice.check(module, "ChunkedDistributedLogprob", (logits, outside, *bounds, 4, group))
                for ids in (labels, outside):
                    twice.check(module, "FusedLinearChunkedDistributedLogprob", (*head, ids, *bounds, 4, group),
                                leaves=(0, 1))
            twice.check(module, "vocab_parallel_entropy", (logits, ))
            twice.check(types.SimpleNamespace(whole=whole), "whole", (logits, labels))  # their caller
        for mixed in ((head[0].float(), head[1]), (head[0], head[1].float())):
            twice.check(module, "FusedLinearChunkedDistributedLogprob", (*mixed, labels, *bounds, 4, None), leaves=(0, 1))
        twice.check(module, "vocab_parallel_entropy", (logits.double(), ), ours=False)

    bounds = []
    return str(Twice(adopt.skyrl, calls).adopted)


def verl_values():
    from bucketpool.torch import adopt

    module, _ = verl()
    logprobs, entropy, chunks = "logprobs_from_logits", "entropy_from_logits", "entropy_from_logits_with_chunking"

    def calls(twice):
        for dtype in FLOATS:
            for shape in ((3, 5), (9, )):
                logits, labels = inputs(shape, dtype=dtype)
                twice.check(module, logprobs, (logits, labels))
                twice.check(module, logprobs, (logits, labels, False))
                twice.check(module, entropy, (logits, ))
            twice.check(module, chunks, (logits, ))
            twice.check(module, chunks, (logits, 2))
            torch.set_default_dtype(torch.bfloat16)  # of their results
            twice.check(module, chunks, (logits, 2), leaves=())
            torch.set_default_dtype(torch.float32)
        twice.check(module, logprobs, (inputs()[0], torch.full((3, 5), -100)))
        twice.check(module, logprobs, inputs(dtype=torch.float64), ours=False)
        twice.check(module, entropy, inputs(dtype=torch.float64)[:1], ours=False)
        twice.check(module, entropy, inputs((0, ))[:1], ours=False)
        twice.check(module, chunks, inputs()[:1], ours=False)  # three dimensions, which it refuses

    twice = Twice(adopt.verl, calls)
    flash(module, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", adopt.verl)
    torch.compiler.set_stance("default")
    eager, arguments = [getattr(module, name) for name in (logprobs, entropy)], inputs()
    with adopt.verl():  # verl compiles them
        compiled = [torch.compile(getattr(module, name), dynamic=True, fullgraph=True, backend="aot_eager")
                    for name in (logprobs, entropy)]
        for one, other in zip(compiled, eager):
            given = arguments if other is eager[0] else arguments[:1]
            torch.testing.assert_close(one(*given), other(*given))
    torch.testing.assert_close(compiled[0](*arguments), eager[0](*arguments))
    return str(twice.adopted)


def verl_ranks():
    from bucketpool.torch import adopt

    _, module = verl()
    tensor_parallel()

    def calls(twice):
        for dtype in FLOATS:
            logits, labels, _, _ = shards(dtype=dtype)
            twice.check(module, "vocab_parallel_log_probs_from_logits", (logits, labels))
            twice.check(module, "vocab_parallel_entropy", (logits, ))
            twice.check(module, "vocab_parallel_entropy_with_chunking", (logits, 6))
            # without gradients, which verl's refuses for several chunks
            twice.check(module, "vocab_parallel_entropy_with_chunking", (logits, 4), leaves=())
        twice.check(module, "vocab_parallel_entropy", (logits.double(), ), ours=False)

    return str(Twice(adopt.verl, calls).adopted)


# ---- AReaL -----------------------------------------------------------------------------------------------------------


def areal_values():
    from bucketpool.torch import adopt

    module = areal()

    def calls(twice):
        for name in ("gather_logprobs", "gather_logprobs_entropy"):
            for dtype in FLOATS:
                for shape in ((9, ), (3, 5)):
                    for keywords in ({}, dict(temperature=0.6), dict(chunk_size=4), dict(tp_group=dist.group.WORLD)):
                        twice.check(module, name, inputs(shape, dtype=dtype), keywords)
            for outside in (-100, 37):
                twice.check(module, name, (inputs()[0], torch.full((3, 5), outside)))
            twice.check(module, name, inputs(dtype=torch.float64), ours=False)
            twice.check(module, name, inputs((0, )), ours=False)
            twice.check(module, name, inputs(), dict(temperature=torch.tensor([[2.0]])), ours=False)

    return str(Twice(adopt.areal, calls).adopted)


def areal_ranks():
    from bucketpool.torch import adopt

    module = areal()

    def calls(twice):
        for name in ("gather_logprobs", "gather_logprobs_entropy"):
            for dtype in FLOATS:
                for temperature in (1.0, 0.7):
                    logits, labels, _, _ = shards(dtype=dtype)
                    twice.check(module, name, (logits, labels, temperature, dist.group.WORLD))

    return str(Twice(adopt.areal, calls).adopted)


# ---- Liger Kernel ----------------------------------------------------------------------------------------------------


def liger_values():
    """Against PyTorch; and where Triton is installed, against Liger's kernels in its interpreter."""
    triton = importlib.util.find_spec("triton") is not None
    if not triton:
        sys.path.append(os.path.join(TESTS, "peers"))
        import stand_ins
        Absent.create_module = lambda self, spec: stand_ins.AbsentModule(spec.name)
    release(absent=("triton", ))
    from bucketpool.torch import adopt

    module = importlib.import_module("liger_kernel.transformers.functional")
    ranks = importlib.import_module("liger_kernel.ops.vocab_parallel_cross_entropy")
    original = module.LigerCrossEntropyFunction
    with adopt.liger():
        made = module.LigerCrossEntropyFunction
        assert made is not original and issubclass(made, original)

    def calls(twice):
        for dtype in FLOATS[::2]:  # the interpreter computes with numpy, which has no bf16
            for ignored in (0, 3, 8):
                logits, target = inputs((8, ), dtype=dtype)
                target[:ignored] = -100
                for reduction in ("none", "mean", "sum"):
                    for smoothing, square in ((0.0, 0.0), (0.2, 0.0), (0.0, 1e-2), (0.2, 1e-3)):
                        options = dict(reduction=reduction, label_smoothing=smoothing, lse_square_scale=square)
                        twice.check(module, "liger_cross_entropy", (logits, target), options)
                for smoothing, formula in ((0.0, "pytorch"), (0.2, "pytorch"), (0.2, "megatron")):
                    twice.check(ranks, "LigerVocabParallelCEFunction",
                                (logits.view(4, 2, -1), target.view(4, 2), None, -100, smoothing, formula, "global"))
        for reduction in ("none", "mean", "sum"):
            logits, target = inputs((8, ))
            target[2:4] = -100
            given = dict(weight=torch.rand(37), lse_square_scale=1e-2, reduction=reduction)
            twice.check(module, "liger_cross_entropy", (logits, target), given)
        twice.check(module, "liger_cross_entropy", inputs((8, )), dict(weight=torch.rand(37), label_smoothing=0.1), leaves=(), ours=False)
        twice.check(module, "liger_cross_entropy", (inputs((8, ))[0], torch.full((8, ), 37)))

    def reference(logits, target, reduction="none", smoothing=0.0, square=0.0, cap=None, weight=None, scaled=False):
        """Loss and z-loss in fp64; scaled: by the probability of the target."""
        values = logits.double() if cap is None else cap * torch.tanh(logits.double() / cap)
        kept = target != -100
        z_loss = square * values.logsumexp(-1)**2 * kept
        factors = kept.double() if weight is None else weight.double()[target * kept] * kept
        loss = torch.nn.functional.cross_entropy(values, target, weight if weight is None else weight.double(),
                                                 reduction="none", label_smoothing=smoothing)
        if scaled:
            scale = values.softmax(-1).gather(-1, (target * kept)[:, None])[:, 0].detach()
            loss, z_loss = loss * scale, z_loss * scale
        counts = [over.sum() if kept.any() and reduction == "mean" else 1 for over in (factors, kept)]
        loss, z_loss = [one if reduction == "none" else one.sum() / count for one, count in zip((loss, z_loss), counts)]
        return [one.to(logits.dtype) for one in (loss + z_loss, z_loss)]

    def check(wanted, got, *arguments, leaves=(0, )):
        wanted, got = [called(function, arguments, {}, leaves) for function in (wanted, got)]
        torch.testing.assert_close(got, wanted, **TOLERANCE[arguments[0].dtype])

    if triton:
        Twice(adopt.liger, calls)
    with adopt.liger() as adopted:
        for dtype in FLOATS:
            for ignored in (0, 3, 8):
                logits, target = inputs((8, ), dtype=dtype)
                target[:ignored] = -100
                for reduction in ("none", "mean", "sum"):
                    for more in ((0.0, 0.0, None, None), (0.2, 0.0, None, None), (0.0, 1e-2, 5.0, None),
                                 (0.2, 1e-3, None, None), (0.0, 1e-2, 5.0, torch.rand(37))):
                        names, wanted = ("label_smoothing", "lse_square_scale", "softcap", "weight"), (reduction, *more)
                        options = dict(zip(names, more), reduction=reduction)
                        check(lambda x, y: reference(x, y, *wanted)[0],
                              lambda x, y: module.liger_cross_entropy(x, y, **options), logits, target)
                        z_loss = module.liger_cross_entropy(logits, target, return_z_loss=True, **options).z_loss
                        torch.testing.assert_close(z_loss, reference(logits, target, *wanted)[1], **TOLERANCE[dtype])
                    found = module.liger_cross_entropy(logits, target, reduction=reduction, return_token_accuracy=True,
                                                       return_predicted_tokens=True)
                    predicted = logits.argmax(-1).where(target != -100, -1)
                    right = (predicted == target).float()
                    right = right if reduction == "none" else right.sum() / (target != -100).sum()
                    assert torch.equal(found.predicted_tokens, predicted) and found.predicted_tokens.dtype == torch.int64
                    torch.testing.assert_close(found.token_accuracy, right, equal_nan=True)  # NaN where all are ignored
                check(lambda x, y: reference(x.float().flatten(0, 1), y.flatten(), smoothing=0.2)[0].view(4, 2),
                      lambda x, y: ranks.LigerVocabParallelCEFunction.apply(x, y, None, -100, 0.2, "pytorch", "global"),
                      logits.view(4, 2, -1), target.view(4, 2))
                logits, outside = torch.randn(4, 2, 9), torch.full((4, 2), 9)  # not read, as in the original: in no shard
                assert ranks.LigerVocabParallelCEFunction.apply(logits, outside, None, -100, 0.0, "pytorch", "global").isfinite().all()
        leaf = torch.randn(4, 9, requires_grad=True)
        made = leaf * 1
        module.liger_cross_entropy(made, torch.arange(4)).backward()
        assert torch.equal(made, leaf.grad)  # as Liger's, the gradient is in the logits' memory
        assert not adopted.passed_on
    assert module.LigerCrossEntropyFunction is original
    liger_head_values(module, reference, check)
    return str(adopted)


def liger_head_values(module, reference, check):
    """The fused head, which is replaced where it is named."""
    from bucketpool.torch import adopt

    name = "LigerFusedLinearCrossEntropyFunction"
    original = getattr(module, name)
    with adopt.liger():
        assert getattr(module, name) is original
    with adopt.liger([name]) as adopted:
        assert getattr(module, name) is not original and adopted.functions == [f"liger_kernel.ops.fused_linear_cross_entropy.{name}"]
        for dtype in FLOATS:
            hidden, weight, bias = [torch.randn(*shape).to(dtype) for shape in ((8, 16), (37, 16), (37, ))]
            target = torch.randint(0, 37, (8, ))
            for ignored, reduction in ((0, "none"), (3, "mean"), (8, "mean"), (3, "sum")):
                target[:ignored] = -100
                for more in (dict(), dict(smoothing=0.2, square=1e-2), dict(weight=torch.rand(37), cap=5.0), dict(scaled=True, square=1e-2)):
                    names = dict(smoothing="label_smoothing", square="lse_square_scale", weight="ce_weight", cap="softcap",
                                 scaled="use_token_scaling")
                    options = dict({names[key]: value for key, value in more.items()}, reduction=reduction, ignore_index=-100)
                    check(lambda h, w, b, y: reference(h.float() @ w.float().t() + b.float(), y, reduction, **more)[0],
                          lambda h, w, b, y: module.liger_fused_linear_cross_entropy(h, w, y, b, **options),
                          hidden, weight, bias, target, leaves=(0, 1, 2))
                found = module.liger_fused_linear_cross_entropy(hidden, weight, target, bias, reduction=reduction, return_token_accuracy=True,
                                                                return_predicted_tokens=True)
                predicted = (hidden.float() @ weight.float().t() + bias.float()).argmax(-1).where(target != -100, -1)
                right = (predicted == target).float()
                torch.testing.assert_close(found.token_accuracy, right if reduction == "none" else right.sum() / (target != -100).sum(),
                                           equal_nan=True)
                assert torch.equal(found.predicted_tokens, predicted)
        assert not adopted.passed_on and f"{name} -> bucketpool.torch.linear_loss.linear_cross_entropy" in str(adopted)
    assert getattr(module, name) is original


# ---- signatures, reports and undoing ---------------------------------------------------------------------------------


def states():
    from bucketpool import errors
    from bucketpool.torch import adopt

    module = trl()
    names = "selective_log_softmax", "entropy_from_logits", "selective_log_softmax_and_entropy"
    originals = {name: getattr(module, name) for name in names}

    def untouched():
        return all(getattr(module, name) is original for name, original in originals.items())

    def refused(call, kind=errors.Unsupported):
        try:
            call()
        except kind as error:
            assert untouched(), error
            return str(error)
        raise AssertionError("not refused")

    texts = []
    exec("def selective_log_softmax(logits, index): return logits", vars(module))  # as in TRL 1.8
    adopt.trl(["selective_log_softmax"]).undo()
    module.selective_log_softmax = originals["selective_log_softmax"]
    for mutated in ("logits", "logits, index, temperature=1.0", "index, logits, temperature=1.0, row_mask=None",
                    "logits, index, temperature, row_mask=None",
                    "logits, index, temperature=0.9, row_mask=None", "logits, index, *, temperature=1.0, row_mask=None",
                    "logits, index, row_mask=None, temperature=1.0",
                    "logits, index, temperature=1.0, row_mask=None, k=1",
                    "logits, labels, temperature=1.0, row_mask=None", "*arguments, **keywords"):
        exec(f"def selective_log_softmax({mutated}): return logits", vars(module))
        originals["selective_log_softmax"], kept = module.selective_log_softmax, originals["selective_log_softmax"]
        texts.append(refused(adopt.trl))
        adopt.trl(names[1:]).undo()
        module.selective_log_softmax = originals["selective_log_softmax"] = kept
    del module.selective_log_softmax
    originals.pop("selective_log_softmax")
    texts.append(refused(adopt.trl))
    module.selective_log_softmax = originals["selective_log_softmax"] = kept
    texts.append(refused(lambda: adopt.trl(["selective_log_softmx"]), errors.InvalidArgument))
    texts.append(refused(lambda: adopt.trl([]), errors.InvalidArgument))

    # modules that hold a function by its name, loaded before and after, under another name too
    before, after = types.ModuleType("trl_user"), types.ModuleType("trl_late_user")
    before.scores = kept
    sys.modules["trl_user"] = before
    inner = [importlib.import_module("trl.experimental.sdft.loss_utils")]
    adopted = adopt.trl()
    made = module.selective_log_softmax
    assert made is not kept and before.scores is made and all(one.selective_log_softmax is made for one in inner)
    assert inspect.signature(made) == inspect.signature(kept) and made.__name__ == kept.__name__
    exec("from trl.trainer.utils import selective_log_softmax", vars(after))
    sys.modules["trl_late_user"] = after
    texts.append(str(adopted))
    assert after.selective_log_softmax is made and repr(adopted) == str(adopted)
    used = str(adopted).splitlines()[0].partition("; used by ")[2].split(", ")
    assert {"trl.experimental.sdft.loss_utils", "trl_late_user", "trl_user"} <= {*used}
    logits, index = inputs()
    partial = module.selective_log_softmax
    module.selective_log_softmax(logits.double(), index)
    assert adopted.passed_on == {("selective_log_softmax", "logits of torch.float64"): 1}
    adopted.undo()
    adopted.undo()
    assert untouched() and before.scores is kept and after.selective_log_softmax is kept and not adopted.changed
    assert all(one.selective_log_softmax is kept for one in inner)
    torch.testing.assert_close(partial(logits, index), kept(logits, index), rtol=0, atol=0)  # the original again
    texts.append(str(adopted))

    # nested, and undone in both orders
    for order in ((0, 1), (1, 0)):
        two = adopt.trl(), adopt.trl(["entropy_from_logits"])
        assert module.entropy_from_logits is not originals["entropy_from_logits"]
        held = module.entropy_from_logits
        two[order[0]].undo()
        assert module.entropy_from_logits is held
        two[order[1]].undo()
        assert untouched()
    with adopt.trl(), adopt.trl():
        assert not untouched()
    assert untouched()
    try:
        with adopt.trl():
            raise KeyError("in the block")
    except KeyError:
        assert untouched()

    # somebody else sets a name in between, or wraps the replacement
    adopted = adopt.trl()
    wrapped = module.selective_log_softmax
    other = module.selective_log_softmax = lambda *given, **more: wrapped(*given, **more)
    before.scores = len
    adopted.undo()
    assert module.selective_log_softmax is other and before.scores is len
    assert module.entropy_from_logits is originals["entropy_from_logits"]
    assert sorted(adopted.changed) == ["trl.trainer.utils.selective_log_softmax", "trl_user.scores"]
    torch.testing.assert_close(other(logits, index), kept(logits, index), rtol=0, atol=0)
    texts.append(str(adopted))
    module.selective_log_softmax = kept
    assert untouched() and after.selective_log_softmax is kept
    adopt.trl().undo()
    assert untouched()
    return texts


def report():
    """The list that the guide shows, after two trainers were imported."""
    from bucketpool.torch import adopt

    trl()
    importlib.import_module("trl.experimental.sdft.sdft_trainer")
    importlib.import_module("trl.experimental.tpo.tpo_trainer")
    return str(adopt.trl())


def partly():
    """Without Megatron, the functions of FSDP; without the package, nothing."""
    from bucketpool import errors
    from bucketpool.torch import adopt

    sys.modules["megatron"] = None
    release(bare=("verl", "verl.utils", "verl.utils.megatron"), absent=("tensordict", "ray"))
    texts = [str(adopt.verl())]
    try:
        adopt.verl(["vocab_parallel_entropy"])
    except errors.Unsupported as error:
        texts.append(str(error))
    sys.path.remove(RELEASES)
    try:
        adopt.liger()
    except errors.Unsupported as error:
        texts.append(str(error))
    return texts
