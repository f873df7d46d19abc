# SPDX-License-Identifier: Apache-2.0
"""Fields that a model type does not read: each field of transformers' configuration is changed, the model is built on the meta device,
and a field that changes the number of parameters must be read or named in a note. A note about any other field is noise.
"""

import os
import sys

import pytest

transformers = pytest.importorskip("transformers")

import bucketpool as bp
from places import ROOT

FOLDER = os.path.join(ROOT, "tests", "data", "architectures")
sys.path.insert(0, FOLDER)
import dump

MAX_ELEMENTS = 1 << 24
# Publishers' own code reads these fields, and transformers does not.
OTHERWISE = {("deepseek_v3", "moe_layer_freq"), ("kimi_k2", "moe_layer_freq"), ("nemotron_h", "attention_bias"),
             ("nemotron_h", "tie_word_embeddings")}


def theirs(values):
    return dump.numel(dump.parameters(values))


def ours(values):
    """Elements without prediction layers, and the notes."""
    with bp.Model.parse(values) as model:
        return (dump.numel({(p.name, copy): p.shape for p in model.parameters if not p.prediction
                            for copy in range(p.copies)}), "; ".join(model.notes))


def changes(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value or 2, value + 1]
    if isinstance(value, float):
        return [2 * value or 0.5]
    return [4, True] if value is None else []


@pytest.mark.parametrize("kind,paths", dump.text_types(), ids=lambda value: str(value)[:20])
def test_fields(kind, paths):
    for path in paths:
        values = dump.read(path)
        try:
            before = theirs(values)
        except Exception:  # sizes that this release refuses: test_model_types.py names them
            continue
        if before < MAX_ELEMENTS:
            break
    else:
        pytest.skip(f"transformers refuses the configurations of {kind}")
    assert ours(values)[0] == before
    config = transformers.AutoConfig.for_model(dump.ALIASES.get(kind, kind),
                                               **{k: v for k, v in values.items() if k != "model_type"})
    missed, noise, compared = [], [], 0
    for field, value in sorted(config.to_dict().items()):
        if (kind, field) in OTHERWISE:
            continue
        for changed in changes(value):
            new = {**values, field: changed}
            try:
                after = theirs(new)
            except Exception:  # sizes that do not fit each other
                continue
            compared += 1
            try:
                mine, notes = ours(new)
            except bp.Error:
                break
            named = f"{field} " in notes
            if mine != after and not named:
                missed.append((field, value, changed, after - before, mine - before))
            elif mine == after == before and named and "differs from" not in notes:
                noise.append((field, value, changed))
            break
    assert (missed, noise) == ([], [])
    assert compared > 10
