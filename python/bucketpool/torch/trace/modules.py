# SPDX-License-Identifier: Apache-2.0
"""Names of the modules that allocations belong to, in forward, backward, recomputation and the optimizer.

Forward: hooks of all modules keep the stack of running modules. Backward: an autograd node has a sequence number, and
each time that the running module changes, its number is noted; so a node belongs to the module that made it.
"""

import bisect
import weakref
from typing import Any, Dict, List, Tuple

import torch
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer

from .kinds import GRADIENTS, OPTIMIZER_STATE, PARAMETERS, Kinds

__all__ = ["Modules"]


class Modules:
    """The running module and phase. start() and stop() add and remove hooks that are global in PyTorch."""

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._names: "weakref.WeakKeyDictionary[Any, str]" = weakref.WeakKeyDictionary()
        self._running: List[str] = []
        self._numbers: List[int] = []  # sequence numbers at which the running module changed, and the module from there
        self._modules: List[str] = []
        self._parameters: Dict[int, Tuple[Any, str]] = {}
        self._in_optimizer = 0
        self._is_forward = False  # a module has run, and neither backward nor the optimizer since: a loss is computed, perhaps
        self._hooks: List[Any] = []

    def start(self) -> None:
        self._hooks = [torch_modules.register_module_forward_pre_hook(self._enter),
                       torch_modules.register_module_forward_hook(self._leave, always_call=True),
                       torch_optimizer.register_optimizer_step_pre_hook(self._begin_optimizer),
                       torch_optimizer.register_optimizer_step_post_hook(self._end_optimizer)]

    def stop(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def now(self) -> Tuple[str, str]:
        """Module and phase of an allocation that is made now."""
        if self._in_optimizer:
            return "", "optimizer"
        if torch._C._current_graph_task_id() == -1:
            return self._running[-1] if self._running else "", "forward" if self._is_forward else ""
        self._is_forward = False
        if self._running:
            return self._running[-1], "recompute"
        node: Any = torch._C._current_autograd_node()
        return self._of(node) if node is not None else "", "backward"

    def accumulates(self) -> bool:
        """AccumulateGrad runs: its results are gradients."""
        if self._in_optimizer or torch._C._current_graph_task_id() == -1:
            return False
        node: Any = torch._C._current_autograd_node()
        return getattr(node, "variable", None) is not None

    def _of(self, node: Any) -> str:
        variable = getattr(node, "variable", None)
        if variable is not None:  # AccumulateGrad
            known = self._parameters.get(id(variable))
            return known[1] if known is not None and known[0]() is variable else ""
        place = bisect.bisect_right(self._numbers, node._sequence_nr()) - 1
        return self._modules[place] if place >= 0 else ""

    def _enter(self, module: Any, _inputs: Any) -> None:
        name = self._names.get(module)
        if name is None:
            name = self._learn(module)
        self._running.append(name)
        self._is_forward = True
        self._note(name)

    def _leave(self, _module: Any, _inputs: Any, _output: Any) -> None:
        if self._running:
            self._running.pop()
        self._note(self._running[-1] if self._running else "")

    def _note(self, name: str) -> None:
        self._numbers.append(torch._C._autograd._get_sequence_nr())
        self._modules.append(name)

    def _learn(self, root: Any) -> str:
        """Names of a root that runs for the first time, and of all modules in it."""
        self._kinds.learn(root)
        for name, module in root.named_modules():
            self._names.setdefault(module, name.replace("_orig_mod.", "") or type(root).__name__)
            self._kinds.parameters(module)
            for own, parameter in module.named_parameters(recurse=False):
                self._parameters[id(parameter)] = weakref.ref(parameter), f"{name}.{own}".lstrip(".")
        return self._names[root]

    def _begin_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._in_optimizer += 1
        self._is_forward = False
        for group in optimizer.param_groups:
            self._kinds.mark(PARAMETERS, group["params"])
            self._kinds.mark(GRADIENTS, [each.grad for each in group["params"]])

    def _end_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._in_optimizer -= 1
        self._kinds.mark(OPTIMIZER_STATE, list(optimizer.state.values()))
