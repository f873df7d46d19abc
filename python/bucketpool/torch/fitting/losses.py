# SPDX-License-Identifier: Apache-2.0
"""Losses of language models: cross entropy of labels, and policy gradients from log-probabilities of tokens."""

from typing import Any, Callable, Dict, Optional

import torch
from torch.nn import functional

from .. import lm_head

__all__ = ["LOSSES", "logprobs", "policy_loss", "returns_logprobs"]


def logprobs(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the next tokens in fp32, as most RL trainers compute them: [batch, sequence - 1]."""
    return functional.log_softmax(logits[:, :-1].float(), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)


def policy_loss(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """The clipped loss of PPO and GRPO with an advantage of one. old: of the policy that sampled the tokens."""
    ratio = torch.exp(new - old)
    return -torch.minimum(ratio, ratio.clamp(0.8, 1.2)).mean()


def of_labels(model: Any, tokens: torch.Tensor, _reference: Any) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=tokens, labels=tokens).loss
    return loss


def of_logprobs(model: Any, tokens: torch.Tensor, reference: Any) -> torch.Tensor:
    return _policy_loss(lambda of: logprobs(of(input_ids=tokens).logits, tokens), model, reference)


def of_client(model: Any, tokens: torch.Tensor, reference: Any) -> torch.Tensor:
    """For models of returns_logprobs()."""
    return _policy_loss(lambda of: of(tokens), model, reference)


def _policy_loss(logprobs_of: Callable[[Any], torch.Tensor], model: Any, reference: Any) -> torch.Tensor:
    old = None
    if reference is not None:
        with torch.no_grad():
            old = logprobs_of(reference)
    new = logprobs_of(model)
    return policy_loss(new, torch.zeros_like(new) if old is None else old)


# Of a model, tokens, and a reference model, or None: the other policy's log-probabilities are given.
LOSSES: Dict[str, Callable[[Any, torch.Tensor, Any], torch.Tensor]] = {
    "labels": of_labels, "logprobs": of_logprobs, "bucketpool": of_client}


def returns_logprobs(model: Any, group: Optional[Any] = None) -> None:
    """Replaces the forward pass of a causal language model: log-probabilities of the next tokens from hidden states,
    by the fused head. The head's weight is used where FSDP has gathered it: in the root's forward pass.
    """
    config = model.config
    decoder = next(each for each in (model.get_decoder(), model.base_model, model.model) if each is not model)
    cap = getattr(config, "final_logit_softcapping", None)
    scale = getattr(config, "logits_scaling", None)  # of Granite, which divides by it
    if scale is None:
        scale = 1.0 / (getattr(config, "logit_scale", None) or 1.0)  # of Cohere, which multiplies

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state
        head = model.get_output_embeddings()
        return lm_head.linear_logprobs(hidden[:, :-1], head.weight, tokens[:, 1:], group=group,
                                       temperature=float(scale), bias=head.bias, soft_cap=cap)

    model.forward = forward
