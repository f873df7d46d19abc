# SPDX-License-Identifier: Apache-2.0
"""Tests of the runtimes whose buffers our pools serve, plain and with pools, and their deviations.

Each test runs in separate processes (runtime_ranks.py), once plain, and where it passes once more with pools
(runtime_pools.py). Tests that fail plain, without a GPU for instance, are counted and not compared."""

import json
import os
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Tuple

from outcomes import Deviation, Result, pytest_output

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_SECONDS = 5400  # of a part; later tests are not started, and fail


class Part(NamedTuple):
    """`root`: the folder of the copy in which pytest runs. `files`: its tests. `ranks`: processes of a test, which is
    one where tests start their ranks. `path`: folders in Python's path. `select`: pytest's -k, without tests that use
    no buffer that pools serve, or need packages that nothing replaces.
    """

    root: str
    files: List[str]
    ranks: int
    path: List[str]
    select: str


SUITES: Dict[str, List[Part]] = {
    "Megatron-LM": [
        # without Transformer Engine, and without strategies that gather and reduce no parameters in buffers; one mesh of
        # each test, and checkpoints of the smaller module, because a test takes 8 processes for up to a minute
        Part("tests/unit_tests/distributed/mfsdp_v1", ["test_mfsdp_fully_shard.py"], 8, ["."],
             "not te_ and not optim-cnn and not optim-transformer and not no_shard-cnn and not no_shard-transformer and "
             "(mesh_dim_config0 or not (common_args or dcp)) and not (dcp and transformer)"),
        Part("tests/unit_tests/distributed/mfsdp_v2", [
            "test_fully_shard.py", "test_context.py", "test_annotation.py", "test_checkpoint.py", "test_optimizer.py",
            "test_mcore_adapter.py"], 4, ["."], ""),
    ],
    "pytorch": [
        Part("test/distributed/_composable/fsdp", [
            "test_fully_shard_autograd.py", "test_fully_shard_clip_grad_norm_.py", "test_fully_shard_comm.py",
            "test_fully_shard_extensions.py", "test_fully_shard_frozen.py", "test_fully_shard_grad_scaler.py",
            "test_fully_shard_init.py", "test_fully_shard_mixed_precision.py", "test_fully_shard_state.py",
            "test_fully_shard_state_dict.py", "test_fully_shard_training.py"], 1, [], "not test_compiled_fsdp"),
    ],
}

DEVIATIONS: List[Deviation] = []


def results(folder: str, name: str, parts: List[Part], options: List[str]) -> Tuple[Dict[str, Result], str]:
    """Results of the tests that pass plain by name, and the output of pytest. Prints a table of all."""
    copy = os.path.realpath(os.path.join(folder, name))
    found: Dict[str, Result] = {}
    lines: List[Dict[str, Any]] = []
    output, begin = "", time.monotonic()
    for part in parts:
        root = os.path.join(copy, part.root)
        files = [file for file in part.files if os.path.exists(os.path.join(root, file))]
        found.update({file: Result("failed", 0, f"the copy has no {part.root}/{file}; adapt SUITES")
                      for file in part.files if file not in files})
        if not files:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            answers = os.path.join(scratch, "results")
            path = [os.path.join(HERE, "startup"), HERE, *[os.path.normpath(os.path.join(copy, each))
                                                           for each in part.path],
                    *filter(None, [os.environ.get("PYTHONPATH")])]
            env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "BUCKETPOOL_PEER": name,
                   "BUCKETPOOL_PEER_COPY": copy, "BUCKETPOOL_PEER_RESULTS": answers, "WORLD_SIZE": str(part.ranks),
                   "BUCKETPOOL_PEER_UNTIL": str(time.time() + MAX_SECONDS), "RANK": "0", "LOCAL_RANK": "0",
                   "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": scratch}
            select = ["-k", part.select] if part.select else []
            output += pytest_output([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p",
                                     "runtime_ranks", "-p", "runtime_cpu", "-c", os.devnull, "--rootdir", root,
                                     "--noconftest", "-W", "ignore", "--tb=short", *files, *select, *options], root,
                                    env, MAX_SECONDS + 600)
            if not os.path.exists(answers):
                found[part.root] = Result("failed", 0, "pytest ran no test")
                continue
            with open(answers, encoding="utf-8") as file:
                lines += [json.loads(line) for line in file]
    for line in lines:
        if line["plain"] == "passed":
            outcome = "passed" if line["pooled"] == "passed" else "failed"  # not skipped
            found[line["test"]] = Result(outcome, line["served"], line["pooled_said"])
        elif line["plain"] == "skipped":
            found[line["test"]] = Result("skipped", 0, line["said"])
    _print(name, lines, time.monotonic() - begin)
    return found, output


def _print(name: str, lines: List[Dict[str, Any]], seconds: float) -> None:
    """A line of counts for each file, and why modules were refused."""
    print(f"  {'plain: passed, failed, skipped':>76}   {'with pools: passed, failed':27} buffers")
    for file in dict.fromkeys(line["test"].split("::")[0] for line in lines):
        here = [line for line in lines if line["test"].startswith(file + "::")]
        plain = [sum(line["plain"] == outcome for line in here) for outcome in ("passed", "failed", "skipped")]
        pooled = [sum(line.get("pooled") == outcome for line in here) for outcome in ("passed", "failed")]
        served = sum(line.get("served", 0) for line in here)
        print(f"  {file:45} {plain[0]:14} {plain[1]:7} {plain[2]:8}   {pooled[0]:19} {pooled[1]:7} {served:7}")
    for refused in sorted({each for line in lines for each in line.get("refused", [])}):
        print(f"  refused: {refused[:200]}")
    crashes = sum(line["crashes"] for line in lines), sum(line.get("pooled_crashes", 0) for line in lines)
    if any(crashes):
        print(f"  crashed and repeated: {crashes[0]} runs plain, {crashes[1]} with pools")
    print(f"  {seconds:.0f} s", flush=True)
