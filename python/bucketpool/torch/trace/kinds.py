# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory: parameters, gradients, optimizer state, communication buffers, logits, workspaces.

A kind belongs to a storage, also when FSDP frees its memory and allocates it again. Each is learned where PyTorch makes
the thing: nn.Parameter and its data, buffers of modules, AccumulateGrad and .grad, the state after Optimizer.step(),
outputs of all-gathers, and both sides of reduce-scatters. Logits, their copies, log-probabilities of all words and
gradients of these have the vocabulary as their last dimension: that of the largest nn.Embedding of a model.
"""

from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

import torch

from .recording import Block
from .values import tensors_in

__all__ = ["COMMUNICATION", "GRADIENTS", "LOGITS", "OPTIMIZER_STATE", "PARAMETERS", "WORKSPACE", "Kinds",
           "inner_tensors"]

PARAMETERS, GRADIENTS, OPTIMIZER_STATE = "parameters", "gradients", "optimizer state"
COMMUNICATION, LOGITS, WORKSPACE = "communication", "logits", "workspace"
_LEAST = 1024  # of a vocabulary: smaller dimensions are also those of other tensors
_ORDER = ("", LOGITS, COMMUNICATION, OPTIMIZER_STATE, GRADIENTS, PARAMETERS)  # a later one replaces an earlier one


class Kinds:
    """Kinds of storages, and of their blocks."""

    def __init__(self, blocks: Dict[int, Tuple[Any, Optional[Block]]]) -> None:
        self.of: Dict[int, str] = {}  # by address of the storage, as blocks are
        self._blocks = blocks
        self.vocabularies: Set[int] = set()

    def mark(self, kind: str, value: Any) -> None:
        """The tensors in a value."""
        for tensor in inner_tensors(value):
            try:
                key = tensor.untyped_storage()._cdata
            except (NotImplementedError, RuntimeError):  # sparse and uninitialized tensors have no storage
                continue
            if key in self.of and _ORDER.index(kind) > _ORDER.index(self.of[key]):
                self.of[key] = kind
                block = self._blocks[key][1]
                if block is not None:
                    block.kind = kind

    def collective(self, name: str, args: Any, result: Any) -> None:
        """A collective of c10d, by its name."""
        if "reduce_scatter" in name:
            self.mark(COMMUNICATION, tensors_in(args) + tensors_in(result))
        elif "allgather" in name or "all_gather" in name:
            self.mark(COMMUNICATION, tensors_in(result) or tensors_in(args[:1]))

    def learn(self, root: Any) -> None:
        """The vocabulary of a model."""
        sizes = [each.num_embeddings for each in root.modules() if isinstance(each, torch.nn.Embedding)]
        if max(sizes, default=0) >= _LEAST:
            self.vocabularies.add(max(sizes))

    def logits(self, tensors: List[Any]) -> None:
        """Results of an operator. Not of those that transpose weights, which are views."""
        for tensor in tensors:
            if tensor.dim() > 1 and tensor.shape[-1] in self.vocabularies and tensor.is_contiguous():
                self.mark(LOGITS, tensor)

    def parameters(self, module: Any) -> None:
        """Parameters and buffers of a module itself."""
        self.mark(PARAMETERS, list(module._parameters.values()) + list(module._buffers.values()))


def inner_tensors(value: Any) -> Iterator[Any]:
    """Tensors in modules and containers; of tensor subclasses, such as DTensor, those in them."""
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple, set)):
        for each in value:
            yield from inner_tensors(each)
    elif isinstance(value, torch.Tensor):
        flatten = getattr(value, "__tensor_flatten__", None)
        if flatten is None:
            yield value
        else:
            for name in flatten()[0]:
                yield from inner_tensors(getattr(value, name))
