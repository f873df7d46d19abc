# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a model of transformers: tensor parallelism by the model's plan, and expert parallelism.

Parameters are replaced by this rank's parts, and modules communicate by torch.distributed. These are the computations
and collectives of transformers on DTensors (transformers.distributed), which recordings cannot differentiate.
"""

import inspect
import re
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn import functional

from ...errors import InvalidArgument, Unsupported

__all__ = ["expert_modules", "expert_parallel", "tensor_parallel"]

# ---- collectives ---------------------------------------------------------------------------------------------------


def _summed(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result, group=group)
    return result


def _gathered(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """Along the last dimension."""
    ranks = dist.get_world_size(group)
    whole = tensor.new_empty((ranks * tensor.shape[0], *tensor.shape[1:]))
    dist.all_gather_into_tensor(whole, tensor.contiguous(), group=group)
    return torch.cat(whole.chunk(ranks), -1)


def _own(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """This rank's part of the last dimension."""
    return tensor.chunk(dist.get_world_size(group), -1)[dist.get_rank(group)].contiguous()


def _same(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    return tensor


def _function(forward: Callable[..., Any], backward: Callable[..., Any]) -> Callable[..., torch.Tensor]:
    """An autograd function of a tensor and a group."""

    class Communication(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, tensor: torch.Tensor, group: Any) -> torch.Tensor:
            ctx.group = group
            result: torch.Tensor = forward(tensor, group)
            return result.view_as(result) if result is tensor else result

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Optional[torch.Tensor], None]:
            return backward(gradient, ctx.group), None

    apply: Callable[..., torch.Tensor] = Communication.apply
    return apply


to_parts = _function(_same, _summed)  # a replicated tensor is used by parts, whose gradients are partial
from_parts = _function(_summed, _same)  # partial sums
gather = _function(_gathered, _own)
split = _function(_own, _gathered)


class _Exchange(torch.autograd.Function):
    """All-to-all of rows: sends and receives are numbers of rows for each rank."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, sends: List[int], receives: List[int], group: Any) -> torch.Tensor:
        ctx.sizes = sends, receives, group
        result = rows.new_empty((sum(receives), *rows.shape[1:]))
        dist.all_to_all_single(result, rows.contiguous(), receives, sends, group=group)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Tuple[Any, ...]:
        sends, receives, group = ctx.sizes
        result = gradient.new_empty((sum(sends), *gradient.shape[1:]))
        dist.all_to_all_single(result, gradient.contiguous(), sends, receives, group=group)
        return result, None, None, None


_exchange: Callable[..., torch.Tensor] = _Exchange.apply

# ---- tensor parallelism --------------------------------------------------------------------------------------------


def tensor_parallel(model: Any, group: Any) -> None:
    """Replaces parameters by this rank's parts, as the plan of transformers says: the model's _tp_plan.

    Raises Unsupported without a plan, and InvalidArgument where the ranks do not divide a size.
    """
    ranks = dist.get_world_size(group)
    plan: Dict[str, str] = dict(getattr(model, "_tp_plan", None) or {})
    modules, parameters = dict(model.named_modules()), dict(model.named_parameters(remove_duplicate=False))
    if not any(style in _MODULES or style in _DIMENSIONS for style in plan.values()):
        raise Unsupported(f"tp: {type(model).__name__} has no tensor-parallel plan in transformers; pass tp 1")
    _check_heads(model.config, plan, ranks)
    parts = _Parts(model.config, group)
    for style, name, _ in _matches(plan, parameters):
        if style in _DIMENSIONS:
            owner, _, of = name.rpartition(".")
            parts.cut(modules[owner], of, style, name)
    for style, name, module in _matches(plan, modules):
        if style in _MODULES:
            _MODULES[style](module, name, parts)
        elif style not in _NOTHING and style not in _DIMENSIONS:
            raise Unsupported(f"tp: {name} has the style {style!r} in the plan of transformers, which is not modelled; "
                              "pass tp 1")


def _matches(plan: Dict[str, str], names: Dict[str, Any]) -> Iterator[Tuple[str, str, Any]]:
    for pattern, style in plan.items():
        expression = re.compile(re.escape(pattern).replace(r"\*", r"\d+"))
        for name, value in names.items():
            if expression.fullmatch(name):
                yield style, name, value


def _check_heads(config: Any, plan: Dict[str, str], ranks: int) -> None:
    if not any(name.endswith("k_proj") and style == "colwise" for name, style in plan.items()):
        return  # attention is not divided
    for name, what in (("num_attention_heads", "attention"), ("num_key_value_heads", "key-value")):
        heads = getattr(config, name, None)
        if isinstance(heads, int) and heads % ranks:
            raise InvalidArgument(f"tp: {ranks} ranks do not divide the {heads} {what} heads of the model; pass a "
                                  "number that does")


class _Parts:
    """This rank's parts of parameters; those that modules share stay shared."""

    def __init__(self, config: Any, group: Any) -> None:
        self.config = config
        self.group, self.rank, self.ranks = group, dist.get_rank(group), dist.get_world_size(group)
        self._known: Dict[int, Any] = {}
        self._whole: List[Any] = []  # so that no address is used twice

    def cut(self, module: Any, name: str, style: str, shown: str) -> None:
        whole = module._parameters.get(name)
        if whole is None:
            return
        if id(whole) not in self._known:
            self._whole.append(whole)
            self._known[id(whole)] = self._part(whole, style, shown)
        module._parameters[name] = self._known[id(whole)]

    def _part(self, whole: Any, style: str, shown: str) -> Any:
        dimension, pieces = _DIMENSIONS[style](whole)
        if dimension is None:
            return whole
        size, requires = whole.shape[dimension], whole.requires_grad
        if size % (pieces * self.ranks):
            if style not in ("vocabulary", "colwise_gather_output", "colwise_rep"):
                raise InvalidArgument(f"tp: {self.ranks} ranks do not divide the {size} rows or columns of {shown}; "
                                      "pass a number that does")
            padding = [0] * (2 * whole.dim())
            padding[2 * (whole.dim() - 1 - dimension) + 1] = -size % self.ranks
            whole = functional.pad(whole.detach(), padding)
        with torch.no_grad():
            each = [piece.chunk(self.ranks, dimension)[self.rank] for piece in whole.detach().chunk(pieces, dimension)]
            part = torch.cat(each, dimension)
        return torch.nn.Parameter(part, requires_grad=requires)

    def linear(self, module: Any, name: str, style: str) -> None:
        for of in ("weight", "bias"):
            self.cut(module, of, style, f"{name}.{of}")


def _columns(whole: Any) -> Tuple[Optional[int], int]:
    return (0 if whole.dim() == 1 else whole.dim() - 2), 1


def _rows(whole: Any) -> Tuple[Optional[int], int]:
    return (None if whole.dim() == 1 else whole.dim() - 1), 1


# The dimension of a parameter that a style divides, and the pieces along it that are divided each (gate and up).
_DIMENSIONS: Dict[str, Callable[[Any], Tuple[Optional[int], int]]] = {
    "colwise": _columns, "colwise_rep": _columns, "colwise_gather_output": _columns,
    "rowwise": _rows, "rowwise_rep": _rows, "rowwise_split_input": _rows,
    "packed_colwise": lambda whole: (_columns(whole)[0], 2), "packed_rowwise": lambda whole: (_rows(whole)[0], 2),
    "vocabulary": lambda whole: (0, 1)}


def _wrap(module: Any, before: Optional[Callable[..., Any]], after: Optional[Callable[..., Any]]) -> None:
    """before(arguments) gives other positional arguments, after(output) another output."""
    inner = module.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        output = inner(*(arguments if before is None else before(arguments)), **named)
        return output if after is None else after(output)

    module.forward = forward


def _first(function: Callable[..., Any], group: Any) -> Callable[..., Any]:
    return lambda arguments: (function(arguments[0], group), *arguments[1:])


def _colwise(module: Any, name: str, parts: _Parts) -> None:
    parts.linear(module, name, "colwise")
    _wrap(module, _first(to_parts, parts.group), None)


def _colwise_gathered(module: Any, name: str, parts: _Parts) -> None:
    columns = module.weight.shape[0]
    parts.linear(module, name, "colwise_rep")
    _wrap(module, _first(to_parts, parts.group), lambda output: gather(output, parts.group)[..., :columns])


def _packed_colwise(module: Any, name: str, parts: _Parts) -> None:
    parts.linear(module, name, "packed_colwise")
    _wrap(module, _first(to_parts, parts.group), None)


def _rowwise(module: Any, name: str, parts: _Parts) -> None:
    parts.linear(module, name, "rowwise")

    def forward(x: torch.Tensor) -> torch.Tensor:
        output = from_parts(functional.linear(x, module.weight), parts.group)
        return output if module.bias is None else output + module.bias

    module.forward = forward


def _rowwise_split(module: Any, name: str, parts: _Parts) -> None:
    _rowwise(module, name, parts)
    _wrap(module, _first(split, parts.group), None)


def _vocabulary(module: Any, name: str, parts: _Parts) -> None:
    """An embedding whose rows are divided; tokens of other ranks' rows count as 0."""
    parts.cut(module, "weight", "vocabulary", f"{name}.weight")
    module.padding_idx = None
    inner = module.forward

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        rows = module.weight.shape[0]
        local = tokens - parts.rank * rows
        outside = (local < 0) | (local >= rows)
        found = inner(local.masked_fill(outside, 0))
        return from_parts(found.masked_fill(outside.unsqueeze(-1), 0), parts.group)

    module.forward = forward


def _experts(module: Any, _name: str, parts: _Parts) -> None:
    """Each rank has a part of every expert."""
    group = parts.group
    _wrap(module, lambda given: (to_parts(given[0], group), *(
        to_parts(each, group) if each.is_floating_point() else each for each in given[1:])),
        lambda output: from_parts(output, group))


def _partial_gradients(module: Any, _name: str, parts: _Parts) -> None:
    """Parameters that see this rank's heads alone; FSDP, which has its own hooks, needs no memory for it."""
    def add(parameter: Any) -> None:
        dist.all_reduce(parameter.grad, group=parts.group)

    for parameter in module.parameters(recurse=False):
        if parameter.requires_grad and parameter.device.type != "meta":
            parameter.register_post_accumulate_grad_hook(add)


def _latent(module: Any, _name: str, parts: _Parts) -> None:
    """MLA: the rotated key of all heads bypasses divided modules; its gradient is partial."""
    width = int(parts.config.qk_rope_head_dim)

    def joined(output: Any) -> torch.Tensor:
        kept, rotated = output.split([output.shape[-1] - width, width], -1)
        return torch.cat([kept, to_parts(rotated, parts.group)], -1)

    _wrap(module, None, joined)


_MODULES: Dict[str, Callable[[Any, str, _Parts], None]] = {
    "colwise": _colwise, "colwise_rep": _colwise_gathered, "colwise_gather_output": _colwise_gathered,
    "rowwise": _rowwise, "rowwise_rep": _rowwise_split, "rowwise_split_input": _rowwise_split,
    "packed_colwise": _packed_colwise, "embedding_rowwise": _vocabulary, "moe_tp_experts": _experts,
    "replicated_with_grad_allreduce": _partial_gradients, "mla_kv_a_proj": _latent,
    "all_reduce": lambda module, _, parts: _wrap(module, None, lambda output: from_parts(output, parts.group)),
    "moe_identity_expert": lambda module, _, parts: _wrap(
        module, lambda given: (given[0] / parts.ranks, *given[1:]), None)}
_NOTHING = ("replicate", "local_params", "packed_rowwise")

# ---- expert parallelism --------------------------------------------------------------------------------------------


def expert_modules(model: Any) -> List[Tuple[str, Any]]:
    """Modules with the fused weights of all experts: [experts, rows, columns]."""
    return [(name, module) for name, module in model.named_modules()
            if any(parameter.dim() == 3 and parameter.shape[0] == getattr(module, "num_experts", None)
                   for parameter in module.parameters(recurse=False))]


def expert_parallel(model: Any, group: Any, routing: str) -> None:
    """Gives each rank a part of the experts, and sends tokens to the experts' ranks and back (all-to-all).

    routing: "uniform": each rank receives as many rows (tokens times experts of a token) as it sends; "skewed": twice
    as many. "": the numbers are those of the router, which must have values.
    """
    found = expert_modules(model)
    if not found:
        raise InvalidArgument(f"ep: {type(model).__name__} has no experts; pass ep 1")
    ranks = dist.get_world_size(group)
    for name, module in found:
        if module.num_experts % ranks:
            raise InvalidArgument(f"ep: {ranks} ranks do not divide the {module.num_experts} experts of {name}; pass a "
                                  "number that does")
        if len(inspect.signature(module.forward).parameters) < 3:
            raise Unsupported(f"ep: {name} takes no routing of tokens in transformers; pass ep 1")
        _Experts(module, group, routing)


class _Experts:
    """Replaces the forward pass of a module of experts: AllToAllEP of transformers."""

    def __init__(self, module: Any, group: Any, routing: str) -> None:
        self.group, self.routing, self.ranks = group, routing, dist.get_world_size(group)
        for name, whole in list(module.named_parameters(recurse=False)):
            if whole.shape[0] == module.num_experts:
                part = whole.detach().chunk(self.ranks)[dist.get_rank(group)].clone()
                module._parameters[name] = torch.nn.Parameter(part)
        module.num_experts //= self.ranks
        self.count, self.inner = module.num_experts, module.forward
        module._is_expert_parallel = True
        module.forward = self.forward

    def _sizes(self, sends: torch.Tensor, receives: torch.Tensor, pairs: int) -> Tuple[List[int], List[int]]:
        """Rows to and from each rank; on the host, which waits for them."""
        if not self.routing:
            return sends.sum(1).tolist(), receives.sum(1).tolist()
        share = [pairs * (rank + 1) // self.ranks - pairs * rank // self.ranks for rank in range(self.ranks)]
        if self.routing == "uniform" or self.ranks == 1:
            return share, share
        own, others = min(2 * share[0], pairs), self.ranks - 1  # this rank is the popular one
        rest = pairs - own
        return ([own] + [rest * (rank + 1) // others - rest * rank // others for rank in range(others)],
                [2 * each for each in share])

    def forward(self, hidden: torch.Tensor, index: torch.Tensor, weights: torch.Tensor, *_: Any) -> torch.Tensor:
        top, ids = index.shape[-1], index.reshape(-1)
        order = torch.argsort(ids)
        rows = hidden[order // top]
        sent = torch.zeros(self.count * self.ranks, dtype=torch.long, device=hidden.device)
        sent = sent.scatter_add_(0, ids, torch.ones_like(ids)).view(self.ranks, self.count)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=self.group)
        sends, receives = self._sizes(sent, received, ids.shape[0])
        rows = _exchange(rows, sends, receives, self.group)
        local = torch.arange(self.count, device=hidden.device).repeat(self.ranks)
        local = local.repeat_interleave(received.reshape(-1), output_size=sum(receives)).unsqueeze(-1)
        output = self.inner(rows, local, torch.ones_like(local, dtype=rows.dtype))
        output = _exchange(output, receives, sends, self.group)
        ordered = torch.empty_like(output)
        ordered[order] = output
        return (ordered.view(*weights.shape, hidden.shape[-1]) * weights.unsqueeze(-1)).sum(1).to(hidden.dtype)
