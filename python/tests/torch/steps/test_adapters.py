# SPDX-License-Identifier: Apache-2.0
"""Served steps in transformers' Trainer and torchtitan."""

import json
import os
import subprocess
import sys
import textwrap

import pytest


def python(folder, code, *arguments):
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), *arguments], capture_output=True, text=True, timeout=300,
                          cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


TRAINER = """
    import json
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    from bucketpool.torch.trainer import StepCallback

    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(3)
    data = [{"input_ids": ids, "labels": ids} for ids in torch.randint(0, 64, (24, 8), generator=generator)]

    def train(*callbacks):
        torch.manual_seed(5)
        model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
                                             num_attention_heads=2, num_key_value_heads=2))
        arguments = TrainingArguments(".", per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=10, logging_steps=1,
                                      save_strategy="no", report_to=[], use_cpu=True, seed=5, disable_tqdm=True)
        trainer = Trainer(model, arguments, train_dataset=data, callbacks=list(callbacks))
        trainer.train()
        return [[each.get(key) for key in ("loss", "grad_norm", "step_allocations", "step_served")] for each in trainer.state.log_history
                if "loss" in each]

    callback = StepCallback(device="cpu", save="plan.json")
    plain, recorded = train(), train(callback)
    again = StepCallback("plan.json", device="cpu")
    print(json.dumps([plain, recorded, train(again), callback.report, again.report, callback.served is None]))
"""


def test_trainer(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    plain, recorded, served, report, again, stopped = python(tmp_path, TRAINER)
    losses = [[each[:2] for each in log] for log in (plain, recorded, served)]
    print(report, again, served[-3:])
    assert losses[0] == losses[1] == losses[2] and stopped and "allocations served" in report
    assert plain[-1][2] is None and recorded[-1][3] >= 0.9 * recorded[-1][2] > 100, recorded
    assert served[-1][3] >= 0.9 * served[-1][2] > 100, served


TITAN = """
    import json, sys, types
    import torch

    class Config:
        def build(self, *, model_parts, **given):
            return Optimizers(model_parts)

    class Optimizers(torch.optim.AdamW):
        def __init__(self, parts):
            super().__init__([p for part in parts for p in part.parameters()])

    def derive(config, kind):
        return kind()

    def module(name, **contents):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(contents)

    module("torchtitan"), module("torchtitan.config"), module("torchtitan.components")  # torchtitan 0.3, as far as it is used
    module("torchtitan.config.override", derive=derive, override=lambda **_: lambda function: function)
    module("torchtitan.components.optimizer", OptimizersContainer=types.SimpleNamespace(Config=Config))
    from bucketpool.torch import titan

    model = torch.nn.Linear(64, 64)
    optimizer = titan.pool(Config(), serve_step="record").build(model_parts=[model])
    for _ in range(6):
        model(torch.ones(8, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    served, = titan.served
    print(json.dumps([titan.attached, served.summary()]))
"""


def test_titan(tmp_path):
    """torchtitan's two functions that the override uses are replaced; python/tests/torch/fsdp2 has torchtitan itself."""
    attached, summary = python(tmp_path, TITAN)
    assert attached == [] and summary["state"] == "serving" and summary["served"] > 0 and summary["steps"] == 3, summary
