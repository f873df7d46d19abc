# SPDX-License-Identifier: Apache-2.0
"""Uses the installed wheel as a user does: run by packaging/wheel.py in a clean root, in an environment with numpy.

usage: try_wheel.py EXAMPLES PYTHON     PYTHON: the version that this is expected to run with, 3.9"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata

import numpy as np

import bucketpool as bp
from bucketpool import _abi
from bucketpool._library import binding, call, configured, logprob, made

PACKAGE = os.path.dirname(bp.__file__)
TOKENS, VOCAB = 64, 5003


def expect(condition: bool, what: str) -> None:
    if not condition:
        sys.exit(f"failed: {what}")


def command() -> None:
    """The command, by its name and as a module, with a model of the wheel."""
    for words in (["bucketpool"], [sys.executable, "-I", "-m", "bucketpool"]):
        printed = subprocess.run([*words, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
        expect(re.fullmatch(r"bucketpool \d+\.\d+\.\d+\S*\n", printed) is not None, printed)
        printed = subprocess.run([*words, "plan", "Llama-3.1-8B", "--dp", "8"], check=True, stdout=subprocess.PIPE, text=True).stdout
        expect("scheduled" in printed and "optimal" in printed, printed)
    with tempfile.TemporaryDirectory() as folder:
        picture = os.path.join(folder, "pool.svg")
        subprocess.run(["bucketpool", "plan", "Qwen3-0.6B", "--plot", picture], check=True, stdout=subprocess.DEVNULL)
        with open(picture, encoding="utf-8") as file:
            expect(file.read().endswith("</svg>\n"), picture)
    subprocess.run(["bucketpool", "run", "Qwen3-0.6B", "--scale", "256"], check=True, stdout=subprocess.DEVNULL)


def values(array: np.ndarray) -> _abi.bp_token_values:
    return _abi.bp_token_values(data=array.ctypes.data, stride=1)


def log_probabilities() -> None:
    """Of random logits, on the host, against numpy in double precision."""
    random = np.random.default_rng(1)
    logits = random.normal(0, 3, (TOKENS, VOCAB)).astype(np.float32)
    target = random.integers(0, VOCAB, TOKENS)
    found, entropy = np.zeros(TOKENS, np.float32), np.zeros(TOKENS, np.float32)
    library, device = logprob(), bp.Device.host()
    config = configured(library.bp_logprob_config_init, _abi.bp_logprob_config, max_tokens=TOKENS, vocab=VOCAB)
    batch = configured(library.bp_logprob_batch_init, _abi.bp_logprob_batch)
    outputs = configured(library.bp_logprob_outputs_init, _abi.bp_logprob_outputs)
    batch.logits = _abi.bp_token_rows(data=logits.ctypes.data, dtype=_abi.BP_DTYPE_FP32, batch=1, sequence=TOKENS, columns=VOCAB)
    batch.tokens.target = values(target)
    outputs.logprob, outputs.entropy = values(found), values(entropy)
    client = made(library.bp_logprob_create, device._handle, ctypes.byref(config))
    call(library.bp_logprob_forward, client, ctypes.byref(batch), ctypes.byref(outputs), None)
    library.bp_logprob_destroy(ctypes.byref(client))
    exact = logits.astype(np.float64)
    exact -= np.log(np.exp(exact).sum(1, keepdims=True))
    expect(np.abs(found - exact[np.arange(TOKENS), target]).max() < 1e-5, "log-probabilities differ from numpy's")
    expect(np.abs(entropy + (np.exp(exact) * exact).sum(1)).max() < 1e-5, "entropies differ from numpy's")


def main() -> None:
    examples, python = sys.argv[1:]
    expect(platform.python_version().startswith(python + "."), f"this is Python {platform.python_version()}")
    expect(not any(shutil.which(compiler) for compiler in ("cc", "gcc", "clang")), "there is a compiler")
    expect(bp.__file__.startswith(sys.prefix), f"bucketpool is from {bp.__file__}")
    command()
    sys.argv[1:] = [os.path.join(PACKAGE, "models", "Qwen3-0.6B")]
    runpy.run_path(os.path.join(examples, "use_in_runtime.py"))
    log_probabilities()
    expect((binding() is not None) == (sys.version_info >= (3, 11)), f"binding: {binding()}")
    with open("/proc/self/maps", encoding="ascii") as file:
        ours = {line.split()[-1] for line in file if re.search(r"bucketpool|jansson|smartcols|_binding", line)}
    expect(all(path.startswith(PACKAGE) for path in ours), f"loaded from elsewhere: {sorted(ours)}")
    kernels = ", ".join(bp.cuda_arch_list()) or "none"
    print(f"{metadata.version('bucketpool')}: command, example, log-probabilities, {'compiled' if binding() else 'ctypes'} calls; kernels {kernels}")


if __name__ == "__main__":
    main()
