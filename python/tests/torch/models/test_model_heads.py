# SPDX-License-Identifier: Apache-2.0
"""Classes without the published head, as "architectures" names them: base models, classifiers of sequences and tokens, question
answering. The parameters of every known type are compared with those of the class in transformers, on the meta device.
"""

import os
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")

import bucketpool as bp
from places import ROOT

FOLDER = os.path.join(ROOT, "tests", "data", "architectures")
sys.path.insert(0, FOLDER)
import dump

AUTOS = ("AutoModel", "AutoModelForSequenceClassification", "AutoModelForTokenClassification",
         "AutoModelForQuestionAnswering")
MAX_ELEMENTS = 1 << 24
# Classes that the tables do not know: the note says so. Those of T5 and Whisper have other decoders.
UNKNOWN = {("t5", "AutoModelForSequenceClassification"), ("t5", "AutoModelForTokenClassification"),
           ("t5", "AutoModelForQuestionAnswering")}


def theirs(values, auto):
    """The sizes of the class's parameters, and its name; None where transformers has no such class of this type."""
    values = {k: v for k, v in values.items() if k not in ("quantization_config", "auto_map")}
    kind = dump.ALIASES.get(values["model_type"], values["model_type"])
    config = transformers.AutoConfig.for_model(kind, **{k: v for k, v in values.items() if k != "model_type"})
    mapping = getattr(transformers, auto)._model_mapping
    if type(config) not in mapping:
        return None, None
    with torch.device("meta"):
        model = getattr(transformers, auto).from_config(config)
    model.tie_weights()
    sizes = {name: p.numel() for name, p in model.named_parameters(remove_duplicate=True)}
    if kind in dump.BIASED:
        sizes.update((n, b.numel()) for n, b in model.named_buffers() if n.endswith(".e_score_correction_bias"))
    return sizes, type(model).__name__


def ours(values):
    with bp.Model.parse(values) as model:
        return ({p.name.replace("*", str(copy), 1): torch.Size(p.shape).numel() for p in model.parameters
                 if not p.prediction for copy in range(p.copies)}, list(model.notes))


@pytest.mark.parametrize("auto", AUTOS)
@pytest.mark.parametrize("kind,paths", dump.text_types(), ids=lambda value: str(value)[:20])
def test_counts(kind, paths, auto):
    for path in paths:
        values = {**dump.read(path), "num_labels": 3}
        try:
            expected, name = theirs(values, auto)
        except Exception:  # sizes that this release refuses: test_model_types.py names them
            continue
        if expected is None:
            pytest.skip(f"transformers has no such class of {kind}")
        if sum(expected.values()) > MAX_ELEMENTS:
            continue
        values.update(architectures=[name])
        mine, notes = ours(values)
        if (kind, auto) in UNKNOWN:
            assert [n for n in notes if name in n and "not known" in n]
            return
        assert sum(mine.values()) == sum(expected.values()), (name, path)
        assert not [n for n in notes if "not known" in n]
        if auto == "AutoModel":  # its names have no prefix
            assert {n for n in mine if "embed" in n} == {n for n in expected if "embed" in n} or kind in CHECKPOINTS
        return
    pytest.skip(f"transformers refuses the configurations of {kind}")


# Published checkpoints name these embeddings otherwise than transformers.
CHECKPOINTS = {"mamba2", "nemotron_h", "deepseek_v4", "whisper", "dbrx"}


def test_encoder_of_t5():
    values = dump.read(os.path.join(FOLDER, "t5.1.json"))
    config = transformers.AutoConfig.for_model("t5", **{k: v for k, v in values.items() if k != "model_type"})
    with torch.device("meta"):
        model = transformers.T5EncoderModel(config)
    expected = sum(p.numel() for p in set(model.parameters()))
    assert sum(ours({**values, "architectures": ["T5EncoderModel"]})[0].values()) == expected


@pytest.mark.parametrize("name,head", [("LlamaForRewardModel", False), ("LlamaCriticModel", False),
                                       ("LlamaForCausalLMEagle3", True), ("LlamaForCausalLMWithValueHead", True)])
def test_other_classes_are_named(name, head):
    values = dump.read(os.path.join(FOLDER, "llama.1.json"))
    values.update(architectures=[name], tie_word_embeddings=False)
    mine, notes = ours(values)
    assert ("lm_head.weight" in mine) == head
    assert [n for n in notes if name in n and "not known" in n]
