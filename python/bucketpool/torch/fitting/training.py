# SPDX-License-Identifier: Apache-2.0
"""Trainings of a config.json, for recordings: the model of transformers, its sharding, optimizer and step.

Models are made on the meta device or on a recorded GPU, so that no process ever has their weights.
"""

import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

from ...errors import InvalidArgument, Unsupported
from . import losses, parallel

__all__ = ["DTYPES", "OPTIMIZERS", "Training", "config_of"]

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
RUNTIMES = ("fsdp2", "ddp", "single")
TOKEN_BY_TOKEN, TOKENS = ("falcon_mamba", "jamba", "mamba", "zamba"), 512  # Mamba of the first kind
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
    whole = configuration_auto.CONFIG_MAPPING[kind].from_dict(fields)
    config = whole.get_text_config()
    config.part_of = kind if config is not whole else None
    config.use_cache = False
    return config


def _keep_layers(fields: Dict[str, Any], layers: int) -> None:
    """Cuts the number of layers, and the lists and patterns with one entry for each."""
    count = fields.get("num_hidden_layers")
    if count is None:  # in hybrid models, the length of a list of kinds
        count = next((len(fields[name]) for name in ("layers_block_type", "hybrid_override_pattern", "layer_types")
                      if fields.get(name)), None)
    if not isinstance(count, int) or layers >= count:
        return
    for name, value in fields.items():
        if isinstance(value, (list, str)) and len(value) == count:
            fields[name] = value[:layers]
    if "num_hidden_layers" in fields:
        fields["num_hidden_layers"] = layers


class Training:
    """A training, described by the options of `bucketpool fit` with _ for -: see docs/guides/fit.md.

    - ranks: of the fake process group, which the caller starts before it records; 1: none
    - routings: where routing of experts decides sizes, its cases; else ("", ). Set `routing` to one before build()
    - notes: what is assumed or left out
    - parameters: of the whole model, after build()
    - device: "cuda", or "cpu" for trainings that run

    Raises InvalidArgument, and Unsupported for models that this version of transformers lacks.
    """

    def __init__(self, options: Dict[str, Any]) -> None:
        get = options.get
        self.dp, self.tp, self.ep = (_positive(options, name, 1) for name in ("dp", "tp", "ep"))
        self.sequence, self.layers = _positive(options, "sequence", 4096), get("layers") or 0
        self.runtime = _one_of(options, "runtime", RUNTIMES, "fsdp2" if self.dp > 1 else "single")
        self.loss = _one_of(options, "loss", losses.LOSSES, "labels")
        self.optimizer = _one_of(options, "optimizer", OPTIMIZERS, "adamw")
        self.checkpointing = _one_of(options, "checkpointing", ("none", "full"), "none") == "full"
        self.weights = DTYPES[_one_of(options, "weights", DTYPES, "fp32")]
        default = "bf16"
        self.param_dtype = DTYPES[_one_of(options, "param_dtype", DTYPES, default)]
        self.reduce_dtype = DTYPES[_one_of(options, "reduce_dtype", DTYPES, "fp32")]
        self.reshard = get("reshard") is not False
        self.ranks = self.dp * self.tp
        self.routings: Tuple[str, ...] = ("", )  # grouped products: a row for each expert of a token, however routed
        self.routing = ""
        self.parameters = 0
        self.device = "cuda"
        self.config = config_of(options["model"], self.layers)
        self.notes: List[str] = []
        self._check()

    def _check(self) -> None:
        if self.runtime == "single" and self.dp > 1:
            raise InvalidArgument(f"runtime single: no data parallelism, but dp is {self.dp}; pass fsdp2 or ddp")
        if self.runtime != "single" and self.ranks == 1:
            raise InvalidArgument(f"runtime {self.runtime}: needs ranks, but dp and tp are 1; pass dp, or runtime single")
        if self.runtime != "fsdp2" and (self.reduce_dtype != torch.float32 or not self.reshard):
            option = "reduce-dtype" if self.reshard else "no-reshard"
            raise InvalidArgument(f"{option}: has no effect with runtime {self.runtime}; leave it out, or pass fsdp2")
        if getattr(self.config, "is_encoder_decoder", False):
            raise Unsupported(f"model type {self.config.model_type!r}: an encoder and a decoder, and steps here train causal "
                              "language models; use bucketpool.torch.fit with your own model")
        if self.runtime != "fsdp2" and self.weights == torch.bfloat16 and self.param_dtype == torch.float32:
            raise InvalidArgument(f"runtime {self.runtime}: weights in bf16 are used in bf16; pass weights fp32 to "
                                  "compute in fp32")
        if self.runtime == "fsdp2" and self.optimizer == "adafactor":
            raise Unsupported("optimizer adafactor: PyTorch's fails on FSDP2's tensors (in-place operations on norms "
                              "of shards); pass another optimizer, or runtime ddp")
        if self.dp % self.ep:
            raise InvalidArgument(f"ep: {self.ep} does not divide dp, {self.dp}; pass a number that does")
        if self.ep > 1 and (self.tp > 1 or self.runtime != "fsdp2"):
            raise Unsupported("ep: experts are divided with fsdp2 and tp 1 alone; leave out ep or the other")
        if self.config.model_type in TOKEN_BY_TOKEN and self.sequence > TOKENS:
            raise Unsupported(f"model type {self.config.model_type!r}: without kernels transformers computes its Mamba "
                              f"layers token by token, too many operators for {self.sequence} tokens; pass sequence "
                              f"{TOKENS} or less")
        longest = getattr(self.config, "max_position_embeddings", None)
        if longest and self.sequence > longest:
            self.notes.append(f"sequence: {self.sequence} tokens are more than the {longest} positions of the model")
        if self.config.part_of:
            self.notes.append(f"model: the text model of {self.config.part_of} alone; its other parts, such as vision, are "
                              "left out")
        if self.layers:
            self.notes.append(f"layers: only the first {self.config.num_hidden_layers} of the model")
        if getattr(self.config, "quantization_config", None):
            self.notes.append("quantization_config of the model: left out, weights are trained in the given dtypes")
        if self.loss != "labels":
            self.notes.append("loss: the policy's update alone; log-probabilities of the policy that sampled are "
                              "given, and a reference model is not loaded")
        if self.runtime == "ddp":
            self.notes.append("ddp: buckets of 25 MiB beside the gradients, as DistributedDataParallel makes them")
        if self.ep > 1:
            self.routings = ("uniform", "skewed")
            self.notes.append("ep: all-to-all of tokens as in transformers; uniform: each rank receives as many rows "
                              "as it sends, skewed: this rank receives twice as many")

    # ---- model -------------------------------------------------------------------------------------------------------

    def model(self) -> Any:
        """The model, in training mode, on the recorded GPU, or on the meta device where it is divided later."""
        import transformers

        kind = type(self.config)
        auto: Any = transformers.AutoModelForCausalLM
        classes = auto._model_mapping
        if kind not in classes:
            raise Unsupported(f"model type {self.config.model_type!r}: transformers has no causal language model for "
                              "it; use bucketpool.torch.fit with your own model")
        attention = "sdpa" if getattr(classes[kind], "_supports_sdpa", True) else "eager"
        if attention == "eager":
            self._note("attention: eager, with all scores, because transformers has no other in PyTorch for this model")
        divided = self.runtime == "fsdp2" or self.tp > 1
        with torch.device("meta" if divided else self.device):
            model = auto.from_config(self.config, attn_implementation=attention, dtype=self.weights)
        self._check_positions(model)
        if self.checkpointing:
            enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
            enable({"use_reentrant": False})
        if any("mamba" in type(each).__name__.lower() for each in model.modules()):
            self._note("Mamba layers: by PyTorch's operators, which take more memory than the kernels of mamba-ssm")
        return model.train()

    def _check_positions(self, model: Any) -> None:
        """Learned positions end with their table, which recordings without values do not notice."""
        longest = getattr(self.config, "max_position_embeddings", None)
        if longest and self.sequence > longest and any(
                isinstance(each, torch.nn.Embedding) and longest <= each.num_embeddings <= longest + 2
                for each in model.modules()):
            raise InvalidArgument(f"sequence: {self.sequence} tokens, but the model has learned positions for {longest}; "
                                  f"pass sequence {longest} or less")

    def build(self) -> Any:
        """The model and its optimizer."""
        model = self.model()
        self.parameters = _size(model)
        shared = _shared(model)
        meshes = self._meshes()
        if self.tp > 1:
            parallel.tensor_parallel(model, meshes["tp"].get_group())
            self._note("tp: by the plan of transformers, without sequence parallelism: a rank has "
                       f"{100 * _size(model) / self.parameters:.1f} % of the parameters")
        if self.ep > 1:
            parallel.expert_parallel(model, meshes["ep"].get_group(), self.routing or "uniform")
        if self.loss == "bucketpool":
            losses.returns_logprobs(model, meshes["tp"].get_group() if self.tp > 1 else None)
        if self.runtime == "fsdp2":
            self.shard(model, meshes)
        if next(model.parameters()).device.type == "meta":
            model.to_empty(device=self.device)
            _share(shared)
        if self.runtime == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(
                model, process_group=meshes["dp"].get_group() if self.tp > 1 else None)
        return SimpleNamespace(model=model, optimizer=OPTIMIZERS[self.optimizer](model.parameters()), reference=None)

    def _meshes(self) -> Dict[str, Any]:
        """By name: dp, tp, ep, and efsdp, over which a rank's experts are sharded."""
        found: Dict[str, Any] = {}
        if self.ranks > 1 or self.runtime == "fsdp2":
            if self.tp > 1:
                both = init_device_mesh(self.device, (self.dp, self.tp), mesh_dim_names=("dp", "tp"))
                found = {name: both[name] for name in ("dp", "tp")}
            else:
                found["dp"] = init_device_mesh(self.device, (self.dp, ))
        if self.ep > 1:
            both = init_device_mesh(self.device, (self.dp // self.ep, self.ep), mesh_dim_names=("efsdp", "ep"))
            found.update((name, both[name]) for name in ("efsdp", "ep"))
        return found

    def shard(self, model: Any, meshes: Dict[str, Any]) -> None:
        """FSDP2 with a unit for each layer, and the root for embeddings, norm and head."""
        policy = MixedPrecisionPolicy(param_dtype=self.param_dtype, reduce_dtype=self.reduce_dtype)
        as_they_are = replace(policy, cast_forward_inputs=False)  # recomputation would not cast routing weights again
        for layer in layers_of(model):
            if self.ep > 1:
                for _, experts in parallel.expert_modules(layer):
                    fully_shard(experts, mesh=meshes["efsdp"], mp_policy=as_they_are,
                                reshard_after_forward=self.reshard,
                                shard_placement_fn=lambda parameter: _placement(parameter, self.dp // self.ep))
            fully_shard(layer, mesh=meshes["dp"], mp_policy=policy, reshard_after_forward=self.reshard)
        fully_shard(model, mesh=meshes["dp"], mp_policy=policy, reshard_after_forward=self.reshard)

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            self.notes.append(sentence)

    # ---- step --------------------------------------------------------------------------------------------------------

    def step(self, built: Any, batch: int) -> None:
        """A training step with that many sequences."""
        self.forward_backward(built, batch)
        self.update(built)

    def forward_backward(self, built: Any, batch: int) -> None:
        """Of a micro-batch. built.reference, if set: a model whose log-probabilities are computed, too."""
        autocast = self.runtime != "fsdp2" and self.weights != self.param_dtype
        tokens = torch.randint(0, self.config.vocab_size, (batch, self.sequence), device=self.device)
        with torch.autocast(self.device, self.param_dtype, enabled=autocast):
            loss: Any = losses.LOSSES[self.loss](built.model, tokens, built.reference)
        loss.backward()

    @staticmethod
    def update(built: Any) -> None:
        """Clips gradients, and updates the weights."""
        clip(built.model.parameters())
        built.optimizer.step()
        built.optimizer.zero_grad()


def clip(parameters: Any, most: float = 1.0) -> None:
    """clip_grad_norm_ for parameters of several meshes, as torchtitan clips with expert parallelism."""
    meshes: Dict[Any, List[Any]] = {}
    for each in parameters:
        if each.grad is not None:
            meshes.setdefault(getattr(each, "device_mesh", None), []).append(each)
    if len(meshes) == 1:
        torch.nn.utils.clip_grad_norm_(next(iter(meshes.values())), most)
        return
    norms = [torch.nn.utils.get_total_norm([each.grad for each in group]) for group in meshes.values()]
    total = torch.linalg.vector_norm(torch.stack([each.full_tensor() if hasattr(each, "full_tensor") else each
                                                  for each in norms]))
    for group in meshes.values():
        torch.nn.utils.clip_grads_with_norm_(group, most, total)


def _placement(parameter: Any, ranks: int) -> Any:
    """Of a rank's experts: by expert, or by rows where there are fewer experts than ranks, as torchtitan does."""
    by_rows = parameter.shape[0] < ranks and parameter.dim() > 1 and parameter.shape[1] % ranks == 0
    return Shard(1 if by_rows else 0)


def _shared(model: Any) -> List[List[Tuple[Any, str]]]:
    """Places of parameters that several modules have (tied weights)."""
    places: Dict[int, List[Tuple[Any, str]]] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            places.setdefault(id(parameter), []).append((module, name))
    return [each for each in places.values() if len(each) > 1]


def _share(places: List[List[Tuple[Any, str]]]) -> None:
    """Shares them again: to_empty() makes each place its own."""
    for (module, name), *others in places:
        for other, of in others:
            setattr(other, of, getattr(module, name))


def layers_of(model: Any) -> List[Any]:
    """The layers of the decoder: the list of modules with most parameters."""
    count = model.config.num_hidden_layers
    lists: List[Any] = [each for each in model.modules()
                        if isinstance(each, torch.nn.ModuleList) and len(each) == count]
    if not lists:
        raise Unsupported(f"{type(model).__name__}: no list of {count} layers, which are "
                          "FSDP's units; use bucketpool.torch.fit with your own sharding")
    return list(max(lists, key=_size))


def _size(model: Any) -> int:
    return sum(each.numel() for each in model.parameters())


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
