# SPDX-License-Identifier: Apache-2.0
"""`bucketpool fit` with its Python: the answer that docs/guides/fit.md shows, errors of the training, the cache.

UPDATE_GOLDEN=1 stores the answer and its picture anew; UPDATE_GOLDEN=1 of tests/cli/test_docs.py then renews the page.
"""

import json
import os
import subprocess
import sys

import pytest

import bucketpool
from bucketpool.torch.fitting.measured import command

pytest.importorskip("transformers")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))
STORED = os.path.join(ROOT, "examples", "files", "llama_fit.json")
PICTURE = os.path.join(ROOT, "docs", "images", "fit-llama.svg")
PAGE = ("Llama-3.1-8B", "--dp", "8", "--sequence", "8192")


def fit(*words, cache):
    environment = {**os.environ, "BUCKETPOOL_PYTHON": sys.executable, "XDG_CACHE_HOME": str(cache), "BUCKETPOOL_PROGRESS": "0",
                   "PYTHONPATH": os.pathsep.join(filter(None, [os.path.dirname(os.path.dirname(bucketpool.__file__)), os.environ.get("PYTHONPATH")]))}
    return subprocess.run([command(), "fit", *words], env=environment, capture_output=True, text=True, timeout=900, check=False)


def test_page(tmp_path):
    """The stored answer is what the command says with these versions."""
    picture = PICTURE if os.environ.get("UPDATE_GOLDEN") else str(tmp_path / "fit.svg")
    result = fit(*PAGE, "--json", "--plot", picture, cache=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    answer["shown"]["recording"] = None
    answer["options"].pop("model", None)  # a path of this machine
    if os.environ.get("UPDATE_GOLDEN"):
        with open(STORED, "w", encoding="utf-8") as file:
            json.dump(answer, file, indent=1)
            file.write("\n")
    with open(STORED, encoding="utf-8") as file:
        stored = json.load(file)
    if answer["versions"]["torch"] != stored["versions"]["torch"] or answer["versions"]["transformers"] != stored["versions"]["transformers"]:
        pytest.skip(f"stored with {stored['versions']}, this is {answer['versions']}")
    for document in (answer, stored):
        document.update(seconds=0, versions={})
    assert answer == stored
    with open(PICTURE, encoding="utf-8") as one, open(picture, encoding="utf-8") as two:
        assert one.read() == two.read(), "the picture is stale: UPDATE_GOLDEN=1 renews it"


def test_cache_and_errors(tmp_path):
    """The second answer is the first one; mistakes in options are a line."""
    words = ("Qwen3-0.6B", "--layers", "1", "--sequence", "64", "--batch", "1", "--json")
    first, second = (json.loads(fit(*words, cache=tmp_path).stdout) for _ in range(2))
    assert second["is_cached"] and not first["is_cached"]
    assert {**first, "is_cached": True} == second
    for options, message in ((("--gpu", "h101"), "h101"), (("--optimizer", "adam"), "fused-adamw"), (("--dp", "8", "--ep", "3"), "3 does not divide dp")):
        result = fit("Qwen3-0.6B", *options, cache=tmp_path)
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
        assert message in result.stderr
