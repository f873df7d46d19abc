# SPDX-License-Identifier: Apache-2.0
"""A rank's part of a model, by tensor and expert parallelism: values against the whole model, and recorded sizes."""

import json

import pytest
import torch
import torch.distributed as dist

import bucketpool as bp
import process_group
from bucketpool.torch.fitting import parallel
from test_training import EXPERTS, LLAMA, group, recorded, written  # noqa: F401

transformers = pytest.importorskip("transformers")

DEEPSEEK = dict(num_key_value_heads=4, moe_intermediate_size=32, n_routed_experts=8, num_experts_per_tok=2, n_group=2,
                topk_group=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=8, v_head_dim=8,
                first_k_dense_replace=1)
CONFIGS = {
    "llama": LLAMA,
    "llama-tied": dict(LLAMA, tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "gemma": dict(LLAMA, model_type="gemma3_text", tie_word_embeddings=True, head_dim=64, pad_token_id=0),
    "packed": dict(LLAMA, model_type="phi3", pad_token_id=0),
    "experts": EXPERTS,
    "deepseek-v3": dict(LLAMA, model_type="deepseek_v3", **DEEPSEEK),
    "deepseek-v2": dict(LLAMA, model_type="deepseek_v2", **DEEPSEEK),
    "mixtral": dict(LLAMA, model_type="mixtral", num_local_experts=4),
}


def model_of(fields):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(**{**fields, "use_cache": False})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").train()


def compared(fields, how):
    """Differences of logits and of gradients, relative; the share of parameters that this rank has."""
    whole, part = model_of(fields), model_of(fields)
    if how == "tp":
        parallel.tensor_parallel(part, dist.group.WORLD)
    else:
        parallel.expert_parallel(part, dist.group.WORLD, "")
    torch.manual_seed(1 if how == "tp" else 1 + dist.get_rank())  # with expert parallelism each rank has other tokens
    tokens = torch.randint(0, 1000, (3, 17))
    outputs = [model(input_ids=tokens, labels=tokens) for model in (whole, part)]
    for each in outputs:
        each.loss.backward()
    found = [_difference(outputs[0].logits, outputs[1].logits)]
    for (name, ours), theirs in zip(part.named_parameters(), whole.parameters()):
        if ours.shape == theirs.shape and ours.grad is not None:
            found.append(_difference(theirs.grad, ours.grad))
    rows = part.get_input_embeddings().weight
    if rows.shape[0] < 1024:
        own = whole.get_input_embeddings().weight.grad.chunk(2)[dist.get_rank()]
        found.append(_difference(own, rows.grad))
    return max(found), sum(each.numel() for each in part.parameters()) / sum(
        each.numel() for each in whole.parameters())


def _difference(a, b):
    return ((a - b).abs().max() / a.abs().max().clamp(min=1e-12)).item()


CASES = [*((name, "tp") for name in CONFIGS), *((name, "ep") for name in ("experts", "deepseek-v3", "mixtral"))]


def all_compared():
    return {(name, how): compared(CONFIGS[name], how) for name, how in CASES}


@pytest.fixture(scope="module")
def of_ranks():
    return process_group.run(all_compared)


@pytest.mark.parametrize("name, how", CASES)
def test_values(name, how, of_ranks):
    """Two ranks' parts compute what the whole model does: logits, and gradients of what is not divided."""
    for found in of_ranks:
        difference, share = found[name, how]
        assert difference < 1e-4 and 0.5 <= share < (0.6 if how == "tp" else 0.9)


def test_recorded_experts(written):  # noqa: F811
    """Experts are sharded over the other ranks: a rank's share is the same; a skewed routing takes more."""
    path = written(EXPERTS)
    found = {}
    for ep, routing in ((1, ""), (2, "uniform"), (2, "skewed"), (8, "uniform")):
        training, recording = recorded(path, batch=16, steps=1, dp=8, ep=ep, routing=routing)
        assert training.routings == (("", ) if ep == 1 else ("uniform", "skewed"))
        found[ep, routing] = training.kinds["parameters"], training.kinds["optimizer state"], recording.peak_bytes
    assert len({each[:2] for each in found.values()}) == 1
    assert found[2, "skewed"][2] > found[2, "uniform"][2]


def test_sizes():
    """Rows of each rank; this rank receives as much as it sends, or twice as much."""
    with group(4):
        training = model_of(EXPERTS)
        parallel.expert_parallel(training, dist.group.WORLD, "skewed")
        experts = training.model.layers[0].mlp.experts.forward.__self__
        sends, receives = experts._sizes(None, None, 1002)
        assert sum(sends) == 1002 and sum(receives) == 2 * sum(experts_uniform(experts)[1]) and sends[0] == max(sends)


def experts_uniform(experts):
    experts.routing = "uniform"
    return experts._sizes(None, None, 1002)


REFUSED = {
    "heads": (dict(LLAMA), dict(tp=8), "tp: 8 ranks do not divide the 4 attention heads of the model; "),
    "key-value": (dict(LLAMA), dict(tp=4), "tp: 4 ranks do not divide the 2 key-value heads of the model; "),
    "width": (dict(LLAMA, intermediate_size=513), dict(tp=2), "do not divide the 513 rows or columns of .*gate_proj"),
    "experts": (EXPERTS, dict(dp=16, ep=16), "ep: 16 ranks do not divide the 8 experts of model.layers.0.mlp.experts"),
    "dense": (dict(LLAMA), dict(dp=4, ep=2), "ep: LlamaForCausalLM has no experts; "),
    "plan": (dict(LLAMA, model_type="gptj", n_embd=64, n_head=4, n_layer=2, rotary_dim=8), dict(tp=2),
             "has no tensor-parallel plan in "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, written):  # noqa: F811
    fields, options, sentence = REFUSED[name]
    with pytest.raises((bp.InvalidArgument, bp.Unsupported), match=sentence):
        recorded(written(fields), **options)


def test_vocabulary_is_padded(written):  # noqa: F811
    """Rows of the embedding and the head that the ranks do not divide: a rank has one more."""
    training, _ = recorded(written(vocab_size=1021), tp=2)
    assert json.dumps(training.notes).count("a rank has 50.") == 1
