# SPDX-License-Identifier: Apache-2.0
"""Arguments: every public callable of bucketpool.torch with every kind of object, and copies of its objects."""

import copy
import importlib
import inspect
import pickle

import pytest
import torch

import bucketpool as bp
from bucketpool.pool import Prepared
from bucketpool.torch.cp import PackedSplit
from bucketpool.torch.loss import Loss
from bucketpool.torch.memory import tensor_at, tensors_of
from support import Served

MODULES = ("accounting", "allocator", "capture", "comm", "cp", "distillation", "fsdp2", "lm_head", "logprob", "loss",
           "replanner", "snapshots")
# Replace the allocator of the process, or all following calls; are made by other functions.
LEFT_OUT = {"pluggable_allocator", "serving", "set_timeout", "trust", "close", "Attachment", "GraphCapture", "Planned"}
REFUSED = (bp.Error, TypeError, ValueError, OverflowError, ImportError, NotImplementedError)


def good_values():
    """Good arguments by the names of parameters."""
    logits = torch.randn(4, 8)
    targets = torch.tensor([0, 1, 2, 3])
    hidden, weight = torch.randn(4, 6), torch.randn(8, 6)
    split = PackedSplit([0, 2, 4])
    served = Served()
    return {"logits": logits, "targets": targets, "labels": targets, "hidden": hidden, "weight": weight,
            "reference": torch.randn(4, 8), "vocab_parallel_logits": logits, "cu_seqlens": [0, 2, 4], "split": split,
            "logprob_grad": torch.ones(4), "tensor": torch.arange(4), "k": 2, "max_sequences": 4, "pool": served.pool,
            "pools": served.pool, "module": torch.nn.Linear(2, 2), "ranks": 1, "tp": 1, "target": targets,
            "vocab_parallel_logits_": logits, "reference_hidden": torch.randn(4, 6), "inference_only": True,
            "reference_weight": torch.randn(8, 6), "index": targets, "logprobs": torch.randn(4), "device": "cpu",
            "student": logits, "teacher": torch.randn(4, 8), "vocab_start_index": 0, "vocab_end_index": 8,
            "tp_group": None, "group": None, "cp_group": None, "plan": served.plan}


def wrong_values():
    served = Served()
    closed = bp.Pool(served.device, served.plan)
    closed.close()
    return [served.device, served.stream, served.plan, served.pool, closed, served.take(0), served.plan.handle,
            PackedSplit([0, 2]), None, True, 5, -1, 2**40, 2**70, 1.5, float("nan"), "x", "\ud800", b"", [], [None], {},
            object(), bp.Pool, print, torch.zeros(0), torch.zeros(3, 5), torch.zeros(4, dtype=torch.int64) - 2**40,
            torch.zeros(4, dtype=torch.complex64), torch.zeros(4, 8, device="meta"), torch.zeros((), dtype=torch.bool)]


def callables():
    for module in MODULES:
        try:
            found = importlib.import_module(f"bucketpool.torch.{module}")
        except ImportError:
            continue
        for name in getattr(found, "__all__", ()):
            value = getattr(found, name)
            if callable(value) and name not in LEFT_OUT and not (inspect.isclass(value) and issubclass(value, tuple)):
                yield f"{module}.{name}", value


@pytest.mark.parametrize("name, function", [pytest.param(*each, id=each[0]) for each in callables()])
def test_wrong_arguments(name, function):
    try:
        parameters = [each for each in inspect.signature(function).parameters.values()
                      if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    except ValueError:
        pytest.skip("a callable without a signature")
    faults = []
    for parameter in parameters:
        for index, value in enumerate(wrong_values()):
            known = good_values()
            arguments = {each.name: known.get(each.name) for each in parameters if each.default is each.empty}
            arguments[parameter.name] = value
            given = [arguments.pop(each.name) for each in parameters
                     if each.kind == each.POSITIONAL_ONLY and each.name in arguments]
            try:
                function(*given, **arguments)
            except REFUSED:
                pass
            except Exception as error:  # noqa: B902: the test's subject
                faults.append(f"{name}({parameter.name}={value!r:.60}): {type(error).__name__}: {str(error)[:120]}")
    assert not faults, "\n".join(faults)


def test_tensors_of_a_request():
    """A tensor has at most the bytes of its request."""
    served = Served()
    prepared = Prepared(served.pool, 0)
    tensor = tensors_of(prepared, torch.bfloat16, torch.device("cpu"), lambda: prepared.release(served.stream))
    for numel in (1001, 2**40, 2**62, 2**63, -1, -2**63):
        with pytest.raises((bp.InvalidArgument, OverflowError)):
            tensor(served.stream, numel)
    for wrong in (None, 5, served.device, served.plan, object()):
        with pytest.raises(bp.InvalidArgument, match="stream: expected a Stream"):
            tensor(wrong, 10)
    assert tensor(served.stream, 1000).numel() == 1000
    assert tensor_at(served.pool.slabs[0].address, 4, torch.uint8, torch.device("cpu")).numel() == 4


def test_copies():
    """A module that holds a plan is deep-copied; the end of the copy leaves the original."""
    served = Served()

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.plan, self.stream = torch.nn.Linear(2, 2), served.plan, served.stream

    net = Net()
    before = served.plan.fingerprint
    average = copy.deepcopy(net)
    average.plan.close()
    average.stream.close()
    del average
    served.stream.synchronize()
    assert served.plan.fingerprint == before and not torch.equal(net.layer.weight, net.layer.weight + 1)
    net.pool = served.pool
    with pytest.raises(TypeError, match="Pool cannot be copied"):
        copy.deepcopy(net)
    split, loss = PackedSplit([0, 2, 4]), Loss(4)
    assert copy.deepcopy(split) is split and copy.copy(split) is split
    for each in (split, loss):
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(each)
    with pytest.raises(TypeError, match="Loss cannot be copied"):
        copy.deepcopy(loss)


def test_plans_in_checkpoints(tmp_path):
    """torch.save writes the document of a plan."""
    served = Served()
    torch.save({"plan": served.plan}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=False)["plan"]
    assert loaded.fingerprint == served.plan.fingerprint
