# SPDX-License-Identifier: Apache-2.0
"""Tests of projects whose log-probability functions are replaced by ours, and their deviations."""

import os
import sys
import tempfile
import xml.etree.ElementTree
from typing import Dict, List, NamedTuple

from outcomes import Deviation, Kind, Result, pytest_output

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_SECONDS = 1800  # of a peer's tests


class Peer(NamedTuple):
    """`path`: folders of the copy in Python's path. `files`: its tests, by their paths in the copy. `wrappers`: our
    files beside this one. `select`: pytest's -k, where files have tests of other things.
    """

    path: List[str]
    files: List[str]
    wrappers: List[str] = []
    select: str = ""


PEERS: Dict[str, Peer] = {
    "SkyRL": Peer(["."], [
        "tests/backends/skyrl_train/distributed/test_vocab_entropy_chunking.py",
        "tests/backends/skyrl_train/distributed/test_chunked_logprob_backward_streaming.py",
        "tests/backends/skyrl_train/gpu/gpu_ci/megatron/test_chunked_logprob_backward.py",
        "tests/backends/skyrl_train/gpu/gpu_ci/megatron/test_fused_linear_logprob.py",
    ]),
    "AReaL": Peer(["."], [], ["wrap_areal.py"]),
    "verl": Peer(["."], [], ["wrap_verl.py"]),
    "Liger-Kernel": Peer(["src", "."], [
        "test/transformers/test_cross_entropy.py",
        "test/transformers/test_fused_linear_cross_entropy.py",
        "test/megatron/test_cross_entropy.py",
    ], [], "not 4096-32000"),  # these take minutes on CPUs
    "trl": Peer(["."], ["tests/test_utils.py"], ["wrap_trl.py"],
                "TestSelectiveLogSoftmax or TestEntropyFromLogits or TestChunkedLogProbFunction or TestHead"),
}


FP64 = Kind("fp64 logits", "arithmetic is fp32; `adopt` leaves these calls to the original")
NARROW = Kind("bits of 16-bit results on a CPU",
              "PyTorch, their reference, rounds within its sums; ours round once, and are nearer to fp64")
WIDER = Kind("a tolerance below their reference's error",
             "PyTorch in fp32 is further from fp64 than the tolerance; ours is within it")
SMOOTHED = Kind("label smoothing over class weights",
                "a weighted sum of logits would be another read of them; `adopt` leaves these calls to the original")
INSPECTED = Kind("calls inside their function",
                 "our gradient is one kernel: it calls no `scatter_add_`, and launches none of theirs")

DEVIATIONS: List[Deviation] = [
    Deviation("SkyRL", FP64, said=r"logits of torch\.float64"),
    Deviation("trl", FP64, said=r"logits of torch\.float64"),
    Deviation("trl", NARROW, r"TestSelectiveLogSoftmax::.*dtype[23]\]"),
    Deviation("trl", NARROW, r"TestEntropyFromLogits::.*(dtype2-\d+-shape[123]|dtype3-)"),  # fp16, shape0: one token
    Deviation("Liger-Kernel", WIDER, r"test_correctness_not_last_layer_with_other_params.*-dtype1-.*-sum-.*-32000\]"),
    Deviation("Liger-Kernel", WIDER,
              r"test_correctness_with_z_loss_with_other_params_once\[0\.2-.*-dtype1-.*-423-32000\]"),
    Deviation("Liger-Kernel", SMOOTHED, said=r"label smoothing over class weights"),
    Deviation("SkyRL", INSPECTED, r"chunked_backward_uses_scatter_add_path"),
    Deviation("Liger-Kernel", INSPECTED, r"test_float32_internal"),
]


def result_of(case):
    """Result of a test case of a report."""
    count = next((int(entry.get("value")) for entry in case.iter("property") if entry.get("name") == "calls"), 0)
    for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
        if case.find(kind) is not None:
            return Result(outcome, count, case.find(kind).get("message", ""))
    return Result("passed", count, "")


def results(folder, name, peer, options):
    """Results of the peer's tests by name, and the output of pytest."""
    copy = os.path.realpath(os.path.join(folder, name))
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report.xml")
        path = [os.path.join(HERE, "startup"), *[os.path.normpath(os.path.join(copy, part)) for part in peer.path],
                *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "BUCKETPOOL_PEER": name, "BUCKETPOOL_PEER_COPY": copy,
               "BUCKETPOOL_PEER_CALLS": os.path.join(scratch, "calls"), "PYTHONDONTWRITEBYTECODE": "1",
               "HF_HUB_OFFLINE": "1", "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]}
        files = [file for file in peer.files if os.path.exists(os.path.join(copy, file))]
        wrappers = [os.path.join(HERE, wrapper) for wrapper in peer.wrappers]
        select = ["-k", peer.select] if peer.select else []
        output = pytest_output([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "count_calls",
                                "-c", os.devnull, "--rootdir", copy, "--noconftest", "-W", "ignore", "--tb=short",
                                "--junitxml", report, *files, *wrappers, *select, *options], copy, env, MAX_SECONDS)
        found = {file: Result("failed", 0, "the copy has no such file; adapt PEERS")
                 for file in peer.files if file not in files}
        if not os.path.exists(report):
            return {**found, name: Result("failed", 0, "pytest wrote no report")}, output
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            place = [part for part in case.get("classname", "").split(".") if part != os.path.basename(copy)]
            found["::".join(filter(None, ["/".join(place), case.get("name")]))] = result_of(case)
    return found, output
