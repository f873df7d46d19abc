# SPDX-License-Identifier: Apache-2.0
"""The fused language-model head: log-probabilities and entropies of hidden states, without storing logits.

    from bucketpool.torch.lm_head import linear_logprobs

    logprobs = linear_logprobs(hidden, weight, targets, group=tp_group)     # float32, of the shape of targets

Tensors. Hidden states: [..., sequence, hidden]; weight: [columns, hidden], this rank's part of the vocabulary;
float32, bfloat16 or float16. Under autocast both are cast to its dtype, otherwise hidden states to the dtype of
the weight. Products are accumulated in float32.

Memory. Logits take at most 1 GiB, or memory= bytes: for few tokens those of all tokens, from forward to backward,
otherwise workspaces for a piece of the tokens or of the vocabulary, which are allocated once for each shape and kept
until free_clients(). Forward saves hidden states, weight and 8 bytes for each token, 12 with entropy.
linear_loss.py has the losses whose gradients forward can make.

Targets, ranks, streams and errors are as in bucketpool.torch.logprob.
"""

from typing import Any, NamedTuple, Optional, Tuple

import torch
import torch.distributed as dist

from ._head import Maybe, outputs_of_head
from ._passes import ENTROPY, IGNORED, LOGPROB, LOGSUMEXP, MEAN_LOGPROB, Asked, Temperature

__all__ = ["FusedLinearChunkedDistributedLogprob", "FusedLinearLogprobEntropy", "TokenStatistics", "linear_logprobs",
           "linear_logprobs_and_entropy", "linear_token_statistics"]

Both = Tuple[Any, Any]  # tensors, or None for an output that is not requested


class TokenStatistics(NamedTuple):
    """Outputs of one pass, float32. logprobs: None without targets; mean_logprobs: over the whole vocabulary."""

    logprobs: Maybe
    entropy: torch.Tensor
    logsumexp: torch.Tensor
    mean_logprobs: torch.Tensor


# ---- the functions of SkyRL ----------------------------------------------------------------------------------------


class FusedLinearChunkedDistributedLogprob:
    """Log-probabilities of targets, with SkyRL's arguments first. Use apply, or linear_logprobs:

        .apply(hidden, weight, target, vocab_start_index, vocab_end_index, chunk_size, tp_group,
               inference_only=False, temperature=1.0, mask=None, partial_hidden_grad=True, ignore_index=None,
               outside="mask")

    - chunk_size: tokens whose logits are computed at once; None and 0: as memory= in linear_logprobs
    - partial_hidden_grad: True: the gradient of the hidden states is this rank's part, as in SkyRL, and the layers
      before the head sum the parts, as Megatron's do. False: backward sums it over the ranks (collective).
    - target: as SkyRL's function, a target outside the vocabulary, -100 among them, has the log-probability 0 and the
      gradient of -log of the whole sum: mask it, or pass ignore_index=-100, outside="error", the defaults of
      linear_logprobs
    """

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
              partial_hidden_grad: bool = True, ignore_index: Optional[int] = None,
              outside: str = "mask") -> torch.Tensor:
        asked = Asked("FusedLinearChunkedDistributedLogprob", LOGPROB, tp_group, vocab_start_index, vocab_end_index,
                      chunk_size, temperature, mask, ignore_index, outside=outside, inference_only=inference_only,
                      partial_hidden_grad=partial_hidden_grad)
        logprobs: torch.Tensor = outputs_of_head(hidden, weight, None, target, asked)[0]
        return logprobs


class FusedLinearLogprobEntropy:
    """Log-probabilities and entropies of one pass; arguments as FusedLinearChunkedDistributedLogprob, but
    ignore_index=-100 and outside="error".
    """

    @staticmethod
    def apply(hidden: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, vocab_start_index: Optional[int],
              vocab_end_index: Optional[int], chunk_size: Optional[int], tp_group: Optional[dist.ProcessGroup],
              inference_only: bool = False, temperature: Temperature = 1.0, mask: Optional[torch.Tensor] = None,
              partial_hidden_grad: bool = True, ignore_index: Optional[int] = IGNORED,
              outside: str = "error") -> Both:
        asked = Asked("FusedLinearLogprobEntropy", LOGPROB | ENTROPY, tp_group, vocab_start_index, vocab_end_index,
                      chunk_size, temperature, mask, ignore_index, outside=outside, inference_only=inference_only,
                      partial_hidden_grad=partial_hidden_grad)
        logprobs, entropies, _, _ = outputs_of_head(hidden, weight, None, target, asked)
        return logprobs, entropies


# ---- functions -----------------------------------------------------------------------------------------------------


def linear_logprobs(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                    group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                    vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = None,
                    memory: Optional[int] = None, temperature: Temperature = 1.0,
                    mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED, outside: str = "error",
                    inference_only: bool = False,
                    partial_hidden_grad: bool = False, bias: Optional[torch.Tensor] = None,
                    soft_cap: Optional[float] = None, round_to: Optional[torch.dtype] = None,
                    drop_masked: bool = False) -> torch.Tensor:
    """Log-probabilities of targets: log softmax((hidden weight^T + bias) / temperature)[targets], float32.

    - hidden, weight: [..., sequence, hidden] and [columns, hidden]
    - memory: bytes for logits; None: 1 GiB. Where the logits of all tokens, in float32, take at most half of it (on each
      rank of a group, but never in trusted groups, whose ranks do not tell), forward keeps them for backward; otherwise pieces of the tokens take turns, and backward computes their logits again
    - chunk_size: tokens of a piece, of which none is kept; None: as many as the memory holds, at least 1,024
    - partial_hidden_grad: leaves the sum of the hidden states' gradient over the ranks to the caller; False:
      backward sums it (collective)
    - bias: [columns]; added to the logits before they are rounded or capped. Taken as float32; its gradient has its
      dtype
    - drop_masked: masked and ignored tokens are left out of the products. The same mask on all ranks. On GPUs the
      host waits for the number of the others; in torch.compile their number breaks the graph

    Further arguments as in bucketpool.torch.logprob.logprobs_from_logits. Collective with a group.
    """
    asked = Asked("linear_logprobs", LOGPROB, group, vocab_start_index, vocab_end_index, chunk_size,
                  temperature, mask, ignore_index, soft_cap, round_to, outside, False, inference_only,
                  partial_hidden_grad, memory)
    logprobs: torch.Tensor = outputs_of_head(hidden, weight, bias, targets, asked, drop_masked)[0]
    return logprobs


def linear_logprobs_and_entropy(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, *,
                                group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                                vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = None,
                                memory: Optional[int] = None, temperature: Temperature = 1.0,
                                mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED, outside: str = "error",
                                inference_only: bool = False,
                                partial_hidden_grad: bool = False, bias: Optional[torch.Tensor] = None,
                                soft_cap: Optional[float] = None, round_to: Optional[torch.dtype] = None,
                                drop_masked: bool = False) -> Tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and entropies of one pass; both are differentiable. Arguments as in linear_logprobs."""
    asked = Asked("linear_logprobs_and_entropy", LOGPROB | ENTROPY, group, vocab_start_index, vocab_end_index,
                  chunk_size, temperature, mask, ignore_index, soft_cap, round_to, outside, False, inference_only,
                  partial_hidden_grad, memory)
    logprobs, entropies, _, _ = outputs_of_head(hidden, weight, bias, targets, asked, drop_masked)
    return logprobs, entropies


def linear_token_statistics(hidden: torch.Tensor, weight: torch.Tensor, targets: Optional[torch.Tensor] = None, *,
                            group: Optional[dist.ProcessGroup] = None, vocab_start_index: Optional[int] = None,
                            vocab_end_index: Optional[int] = None, chunk_size: Optional[int] = None,
                            memory: Optional[int] = None, temperature: Temperature = 1.0,
                            mask: Optional[torch.Tensor] = None, ignore_index: Optional[int] = IGNORED, outside: str = "error",
                            inference_only: bool = False,
                            partial_hidden_grad: bool = False, bias: Optional[torch.Tensor] = None,
                            soft_cap: Optional[float] = None, round_to: Optional[torch.dtype] = None,
                            drop_masked: bool = False) -> TokenStatistics:
    """All outputs of one pass, as bucketpool.torch.logprob.token_statistics. Arguments as in linear_logprobs."""
    outputs = ENTROPY | LOGSUMEXP | MEAN_LOGPROB | (0 if targets is None else LOGPROB)
    asked = Asked("linear_token_statistics", outputs, group, vocab_start_index, vocab_end_index, chunk_size,
                  temperature, mask, ignore_index, soft_cap, round_to, outside, False, inference_only,
                  partial_hidden_grad, memory)
    return TokenStatistics(*outputs_of_head(hidden, weight, bias, targets, asked, drop_masked))
