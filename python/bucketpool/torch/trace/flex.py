# SPDX-License-Identifier: Apache-2.0
"""flex_attention in a recording: memory of the kernels that torch.compile makes of it, which is how it runs on a GPU.

Source, of PyTorch 2.11: torch/_inductor/kernel/flex/flex_attention.py (outputs and gradients). Without compilation
PyTorch would materialise the scores of each head.
"""

from typing import Any, List, Tuple

import torch

__all__ = ["NOTE", "OPERATOR", "fused"]

OPERATOR: Any = getattr(torch.ops.higher_order, "flex_attention", None)
NOTE = ("flex_attention: recorded as its compiled kernel; without torch.compile PyTorch also materialises the scores, "
        "which is not recorded")

_Function: Any = torch.autograd.Function


def fused(query: Any, key: Any, value: Any, score_mod: Any, _block_mask: Any, _scale: Any, kernel_options: Any,
          *_: Any) -> Tuple[Any, Any, Any]:
    """Output, logsumexp, and maxima of the scores (empty unless asked for)."""
    maxima = bool((kernel_options or {}).get("OUTPUT_MAX"))
    learned = [each for each in _captured(score_mod) if each.requires_grad]
    output, sums, scores = _Fused.apply(query, key, value, maxima, *learned)
    return output, sums, scores


class _Fused(_Function):
    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any, maxima: bool, *learned: Any) -> Tuple[Any, Any, Any]:
        batch, heads, rows, _ = query.shape
        output = query.new_empty((batch, heads, rows, value.shape[-1]))
        sums = query.new_empty((batch, heads, rows), dtype=torch.float32)
        scores = query.new_empty((batch, heads, rows) if maxima else (0, ), dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, sums, *learned)
        ctx.mark_non_differentiable(scores)
        return output, sums, scores

    @staticmethod
    def backward(ctx: Any, grad: Any, _sums: Any, _scores: Any) -> Tuple[Any, ...]:
        query, key, value, _, sums, *learned = ctx.saved_tensors
        delta = torch.empty_like(sums)
        grads = [torch.empty_like(query)]
        for each in (key, value):  # of the batch of queries; keys of one sequence get the sum
            whole = each.new_empty((query.shape[0], *each.shape[1:]))
            grads.append(whole if each.shape[0] == query.shape[0] else whole.sum(0, keepdim=True))
        del delta, grad
        return (*grads, None, *(torch.zeros_like(each) for each in learned))


def _captured(score_mod: Any) -> List[Any]:
    """Tensors that the function refers to, such as a learned bias."""
    cells = getattr(score_mod, "__closure__", None) or ()
    return [each.cell_contents for each in cells if isinstance(each.cell_contents, torch.Tensor)]
