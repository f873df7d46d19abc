# SPDX-License-Identifier: Apache-2.0
"""Trainings of a config.json, for recordings: the model of transformers, its sharding, optimizer and step.

Models are made on the meta device or on a recorded GPU, so that no process ever has their weights.
"""

import json
import os
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from ...errors import InvalidArgument, Unsupported
from . import losses

__all__ = ["DTYPES", "OPTIMIZERS", "Training", "config_of"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
RUNTIMES = ("fsdp2", "ddp", "single")
RATE = 1e-5  # learning rate
OPTIMIZERS: Dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
    "fused-adamw": lambda parameters: torch.optim.AdamW(parameters, lr=RATE, fused=True),
    "loop-adamw": lambda parameters: torch.optim.AdamW(parameters, lr=RATE, foreach=False),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=RATE),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters, lr=RATE),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=RATE),
}


def config_of(path: str, layers: int = 0) -> Any:
    """The configuration of the text model in a config.json or its folder. layers: the first ones only; 0: all."""
    from transformers.models.auto import configuration_auto

    file = os.path.join(path, "config.json") if os.path.isdir(path) else path
    try:
        with open(file, encoding="utf-8") as opened:
            fields = json.load(opened)
    except (OSError, ValueError) as error:
        raise InvalidArgument(f"{file}: {error}; pass a config.json of transformers") from None
    kind = fields.get("model_type") if isinstance(fields, dict) else None
    if kind is None:
        raise InvalidArgument(f"{file}: no model_type; pass a config.json of transformers")
    if kind not in configuration_auto.CONFIG_MAPPING:
        raise Unsupported(f"{file}: model type {kind!r} is not in this version of transformers"
                          + (", and its code on the hub is not run" if "auto_map" in fields else "")
                          + "; install a version that has it, or use bucketpool.torch.fit with your own model")
    if layers:
        for part in (fields, fields.get("text_config")):
            if isinstance(part, dict):
                _keep_layers(part, layers)
    config = configuration_auto.CONFIG_MAPPING[kind].from_dict(fields).get_text_config()
    config.use_cache = False
    return config


def _keep_layers(fields: Dict[str, Any], layers: int) -> None:
    """Cuts the number of layers, and the lists and patterns with one entry for each."""
    count = fields.get("num_hidden_layers")
    if not isinstance(count, int) or layers >= count:
        return
    for name, value in fields.items():
        if isinstance(value, (list, str)) and len(value) == count:
            fields[name] = value[:layers]
    fields["num_hidden_layers"] = layers


class Training:
    """A training, described by the options of `bucketpool fit` with _ for -: see docs/guides/fit.md.

    - ranks: of the fake process group, which the caller starts before it records; 1: none
    - routings: where routing of experts decides sizes, its cases; else ("", ). Set `routing` to one before build()
    - notes: what is assumed or left out
    - parameters: of the whole model, after build()

    Raises InvalidArgument, and Unsupported for models that this version of transformers lacks.
    """

    def __init__(self, options: Dict[str, Any]) -> None:
        get = options.get
        self.dp, self.tp, self.ep = (_positive(options, name, 1) for name in ("dp", "tp", "ep"))
        self.sequence, self.layers = _positive(options, "sequence", 4096), get("layers") or 0
        self.runtime = _one_of(options, "runtime", RUNTIMES, "fsdp2" if self.dp * self.tp > 1 else "single")
        self.loss = _one_of(options, "loss", losses.LOSSES, "labels")
        self.optimizer = _one_of(options, "optimizer", OPTIMIZERS, "adamw")
        self.checkpointing = _one_of(options, "checkpointing", ("none", "full"), "none") == "full"
        self.weights = DTYPES[_one_of(options, "weights", DTYPES, "fp32")]
        default = "bf16"
        self.param_dtype = DTYPES[_one_of(options, "param_dtype", DTYPES, default)]
        self.reduce_dtype = DTYPES[_one_of(options, "reduce_dtype", DTYPES, "fp32")]
        self.reshard = get("reshard") is not False
        self.ranks = self.dp * self.tp
        self.routings: Tuple[str, ...] = ("", )
        self.routing = ""
        self.parameters = 0
        self.config = config_of(options["model"], self.layers)
        self.notes: List[str] = []
        self._check()

    def _check(self) -> None:
        if self.runtime == "single" and self.ranks > 1:
            raise InvalidArgument(f"runtime single: one GPU, but dp * tp is {self.ranks}; pass fsdp2 or ddp")
        if self.runtime != "fsdp2" and self.weights == torch.bfloat16 and self.param_dtype == torch.float32:
            raise InvalidArgument(f"runtime {self.runtime}: weights in bf16 are used in bf16; pass weights fp32 to "
                                  "compute in fp32")
        if self.tp > 1 or self.ep > 1:
            raise Unsupported("tp and ep are not here yet")
        longest = getattr(self.config, "max_position_embeddings", None)
        if longest and self.sequence > longest:
            self.notes.append(f"sequence: {self.sequence} tokens are more than the {longest} positions of the model")
        if self.layers:
            self.notes.append(f"layers: only the first {self.config.num_hidden_layers} of the model")
        if self.loss != "labels":
            self.notes.append("loss: the policy's update alone; log-probabilities of the policy that sampled are "
                              "given, and a reference model is not loaded")

    def model(self) -> Any:
        """The model, in training mode, on the recorded GPU, or on the meta device where it is sharded later."""
        import transformers

        with torch.device("meta" if self.runtime == "fsdp2" else "cuda"):
            model = transformers.AutoModelForCausalLM.from_config(self.config, attn_implementation="sdpa",
                                                                  dtype=self.weights)
        if self.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model.train()

    def build(self) -> Any:
        """The model and its optimizer."""
        model = self.model()
        self.parameters = sum(each.numel() for each in model.parameters())
        if self.loss == "bucketpool":
            losses.returns_logprobs(model)
        if self.runtime == "fsdp2":
            self.shard(model)
        elif self.runtime == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
            self.notes.append("ddp: buckets of 25 MiB beside the gradients, as DistributedDataParallel makes them")
        return SimpleNamespace(model=model, optimizer=OPTIMIZERS[self.optimizer](model.parameters()))

    def shard(self, model: Any) -> None:
        """FSDP2 with a unit for each layer, and the root for embeddings, norm and head."""
        policy = MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype)
        for layer in layers_of(model):
            fully_shard(layer, mp_policy=policy, reshard_after_forward=self.reshard)
        fully_shard(model, mp_policy=policy, reshard_after_forward=self.reshard)
        model.to_empty(device="cuda")

    def step(self, built: Any, batch: int) -> None:
        """A training step with that many sequences."""
        self.forward_backward(built, batch)
        torch.nn.utils.clip_grad_norm_(built.model.parameters(), 1.0)
        built.optimizer.step()
        built.optimizer.zero_grad()

    def forward_backward(self, built: Any, batch: int) -> None:
        """Forward and backward of a microbatch."""
        autocast = self.runtime != "fsdp2" and self.weights != self.param_dtype
        tokens = torch.randint(0, self.config.vocab_size, (batch, self.sequence), device="cuda")
        with torch.autocast("cuda", self.param_dtype, enabled=autocast):
            loss = losses.LOSSES[self.loss](built.model, tokens)
        loss.backward()


def layers_of(model: Any) -> List[Any]:
    """The layers of the decoder: the list of modules with most parameters."""
    lists = [each for each in model.modules() if isinstance(each, torch.nn.ModuleList)
             and len(each) == model.config.num_hidden_layers]
    if not lists:
        raise Unsupported(f"{type(model).__name__}: no list of {model.config.num_hidden_layers} layers, which are "
                          "FSDP's units; use bucketpool.torch.fit with your own sharding")
    return list(max(lists, key=lambda each: sum(parameter.numel() for parameter in each.parameters())))


def _positive(options: Dict[str, Any], name: str, default: int) -> int:
    value = options.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidArgument(f"{name}: expected a number above 0, got {value!r}")
    return value


def _one_of(options: Dict[str, Any], name: str, values: Any, default: str) -> str:
    value = options.get(name)
    if value is None:
        return default
    if value not in values:
        raise InvalidArgument(f"{name}: expected {', '.join(values)}, got {value!r}")
    return str(value)
