# SPDX-License-Identifier: Apache-2.0
"""The architecture tables compared with transformers: names and shapes of all parameters of small configurations, and
the table of docs/reference/models.md, which BUCKETPOOL_UPDATE_MODELS=1 rewrites.
"""

import collections
import ctypes
import glob
import os
import sys
import textwrap

import pytest

transformers = pytest.importorskip("transformers")

import bucketpool as bp
from bucketpool._library import core
from places import ROOT

FOLDER = os.path.join(ROOT, "tests", "data", "architectures")
PAGE = os.path.join(ROOT, "docs", "reference", "models.md")
BEGIN, END = "<!-- model types: begin -->\n", "<!-- model types: end -->\n"
MAX_ELEMENTS = 1 << 24  # larger ones have publishers' sizes and hundreds of experts: minutes of conversion

sys.path.insert(0, FOLDER)
import dump

PATHS = sorted(glob.glob(os.path.join(FOLDER, "*.json")))
# Configurations that earlier releases took and transformers 5.23.0 refuses.
ODD, NULL = "RoPE of odd heads, or hidden_size no multiple of num_attention_heads", "a field is null"
REFUSED = {"gemma3.3": ODD, "gemma3_text.1": ODD, "gemma3_text.2": ODD, "granitemoehybrid.4": ODD, "llama.4": ODD,
           "mistral.2": ODD,
           "mistral.4": ODD, "gpt_oss.4": NULL, "jamba.4": NULL, "llama4_text.4": NULL, "mixtral.2": NULL}


# Types that transformers does not have: test_formats.c has the sizes of nemotron-nas, minimax_m3 has the table of minimax_m3_vl.
ELSEWHERE = {"nemotron-nas", "minimax_m3"}


def ours(path):
    """{name: shape} without prediction layers, which transformers does not build."""
    shapes = {}
    with bp.Model.read(path) as model:
        for p in model.parameters:
            if not p.prediction:
                for copy in range(p.copies):
                    shapes[p.name.replace("*", str(copy), 1)] = tuple(p.shape)
    return shapes


def known_types():
    function, types = core().bp_arch_model_type, []
    function.restype = ctypes.c_char_p  # of our own libraries, not in _abi.py
    while (name := function(ctypes.c_size_t(len(types)))) is not None:
        types.append(name.decode())
    return types


def types_of(values):
    """A file's type, and that of its text part."""
    return [part["model_type"] for part in (values, values.get("text_config") or {}) if "model_type" in part]


compared = collections.defaultdict(lambda: [0, 0, 0])  # by type: configurations, elements of ours and of transformers


@pytest.mark.parametrize("path", PATHS, ids=lambda path: os.path.basename(path)[:-len(".json")])
def test_names_and_shapes(path):
    mine, name = ours(path), os.path.basename(path)[:-len(".json")]
    if dump.numel(mine) > MAX_ELEMENTS:
        pytest.skip("as large as a published model: digests.tsv compares it")
    values = dump.read(path)
    if name in REFUSED:
        with pytest.raises(Exception):  # of several classes of huggingface_hub's
            dump.build(values)
        return
    theirs = dump.parameters(values)
    assert {n: s for n, s in mine.items() if theirs.get(n) != s} == {n: s for n, s in theirs.items()
                                                                     if mine.get(n) != s}
    for kind in types_of(values):
        entry = compared[kind]
        compared[kind] = [entry[0] + 1, entry[1] + dump.numel(mine), entry[2] + dump.numel(theirs)]


def test_page():
    """All types were compared, and the page says so."""
    if len(compared) < 10:
        pytest.skip("needs the comparisons of this file")
    types = [kind for kind in known_types() if kind not in ELSEWHERE]
    assert [kind for kind in types if kind not in compared] == []
    assert [kind for kind in types if compared[kind][1] != compared[kind][2]] == []
    files, elements, _ = (sum(compared[kind][i] for kind in types) for i in range(3))
    lines = textwrap.fill(", ".join(types), 100)
    lines += f"\n\n{files} configurations, summed over the types {elements:,} elements in both.\n"
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    wanted = before + BEGIN + lines + END + after
    if os.environ.get("BUCKETPOOL_UPDATE_MODELS"):
        with open(PAGE, "w", encoding="utf-8") as file:
            file.write(wanted)
        return
    assert text == wanted, (
        "docs/reference/models.md is of other types: BUCKETPOOL_UPDATE_MODELS=1 ./check --torch -k model_types"
        " rewrites it"
    )
