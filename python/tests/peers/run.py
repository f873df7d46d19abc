"""./check --torch --peers DIR: tests of other projects, with their functions replaced by ours.

    python run.py DIR [OPTION OF PYTEST]...

DIR contains copies of the projects, as `git clone` makes them: DIR/SkyRL, DIR/AReaL, DIR/verl, DIR/Liger-Kernel,
DIR/trl. A copy that is missing is skipped by name. The files of tests are theirs and unchanged; `wrappers` are ours,
and call tests that pytest cannot collect.

A test counts if it calls one of our functions, in its process or in one that it starts. Each failure needs a row in
DEVIATIONS, and each row a failure: an unexpected failure, an unexpected pass and a row without a failure all fail the
run. With options of pytest, which may select tests, a row without a failure is accepted."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from typing import Dict, List, NamedTuple

HERE = os.path.dirname(os.path.abspath(__file__))
MOST_SECONDS = 1800  # of a peer's tests


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


class Deviation(NamedTuple):
    """Tests of `peer` fail with ours because of `reason`: those whose names match the regular expression `tests`, all
    of which must fail, or, where it is empty, those whose failure matches `said`.
    """

    peer: str
    reason: str
    tests: str = ""
    said: str = ""


FP64 = "fp64 logits are refused: arithmetic is fp32"
WIDER = "their reference, PyTorch in fp32, is further from fp64 than their bound; ours is within it"
NARROW = ("their reference is PyTorch on a CPU, which rounds to 16 bits within its sums; ours round once, and are "
          "nearer to fp64")

DEVIATIONS: List[Deviation] = [
    Deviation("SkyRL", FP64, r"test_vocab_entropy_(chunking_matches|weighted_sum)"),
    Deviation("SkyRL", "it looks for a call of scatter_add_; our gradient is one kernel",
              r"chunked_backward_uses_scatter_add_path"),
    Deviation("Liger-Kernel", "class weights, factors of tokens, accuracies and predicted tokens are the caller's",
              said=r"NotOffered"),
    Deviation("Liger-Kernel", WIDER, r"test_correctness_not_last_layer_with_other_params.*-dtype1-.*-sum-.*-32000\]"),
    Deviation("Liger-Kernel", WIDER, r"test_correctness_with_z_loss_with_other_params_once\[0\.2-.*-dtype1-.*-423-32000\]"),
    Deviation("Liger-Kernel", "it launches their kernel", r"test_float32_internal"),
    Deviation("trl", FP64, r"dtype0"),
    Deviation("trl", NARROW, r"TestSelectiveLogSoftmax::.*dtype[23]\]"),
    Deviation("trl", NARROW, r"TestEntropyFromLogits::.*(dtype2-\d+-shape[123]|dtype3-)"),  # fp16, shape0: one token
]


class Result(NamedTuple):
    outcome: str  # passed, failed or skipped
    calls: int
    said: str


def pytest_output(command, folder, env):
    """Output of pytest, which is ended with the processes of its tests after MOST_SECONDS."""
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    try:
        return process.communicate(timeout=MOST_SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return f"{process.communicate()[0]}\nthe tests take more than {MOST_SECONDS} s"


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
                                "--junitxml", report, *files, *wrappers, *select, *options], copy, env)
        found = {file: Result("failed", 0, "the copy has no such file; adapt PEERS")
                 for file in peer.files if file not in files}
        if not os.path.exists(report):
            return {**found, name: Result("failed", 0, "pytest wrote no report")}, output
        for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
            place = [part for part in case.get("classname", "").split(".") if part != os.path.basename(copy)]
            found["::".join(filter(None, ["/".join(place), case.get("name")]))] = result_of(case)
    return found, output


def listed(rows, test, result):
    """The row of a test, or None."""
    return next((row for row in rows if (re.search(row.tests, test) if row.tests else
                                         result.outcome == "failed" and re.search(row.said, result.said))), None)


def judge(name, found, whole=True):
    """Prints deviations, what is unexpected, and a line of counts. `whole`: all tests have run, so that each row needs
    a failure. Returns (passed, unexpected, skipped, deviating).
    """
    rows = [row for row in DEVIATIONS if row.peer == name]
    counts = dict.fromkeys(("passed", "unexpected", "skipped", "idle", *rows), 0)

    def unexpected(word, test, said):
        counts["unexpected"] += 1
        print(f"  {word:9} {test}: {said.splitlines()[0][:200] if said else ''}")

    for test, result in sorted(found.items()):
        row = listed(rows, test, result)
        if result.outcome == "skipped":
            counts["skipped"] += 1
        elif result.outcome == "failed":
            if row:
                counts[row] += 1
            else:
                unexpected("FAILED", test, result.said)
        elif row:
            unexpected("PASSED", test, f"listed as a deviation: {row.reason}")
        else:
            counts["passed" if result.calls else "idle"] += 1
    for row in rows:
        if counts[row]:
            print(f"  {counts[row]:4} deviate: {row.reason}")
        elif whole:
            unexpected("NO TEST", row.tests or row.said, row.reason)
    if whole and not counts["passed"]:
        unexpected("FAILED", name, "no test passed with a call of ours")
    deviating = sum(counts[row] for row in rows)
    print(f"{name}: {counts['passed']} passed with ours, {deviating} deviate as listed, {counts['unexpected']} "
          f"unexpected, {counts['skipped']} skipped by the peer, {counts['idle']} call none of ours", flush=True)
    return counts["passed"], counts["unexpected"], counts["skipped"], deviating


def main():
    if len(sys.argv) < 2 or not os.path.isdir(sys.argv[1]):
        print(f"peers: expected a folder with copies of {', '.join(PEERS)}, got {' '.join(sys.argv[1:2]) or 'none'}")
        return 2
    folder, options = os.path.abspath(sys.argv[1]), sys.argv[2:]
    totals = [0, 0, 0, 0]
    for name, peer in PEERS.items():
        if not os.path.isdir(os.path.join(folder, name)):
            print(f"{name}: skipped: {folder} has no {name}")
            totals[2] += 1
            continue
        found, output = results(folder, name, peer, options)
        counts = judge(name, found, whole=not options)
        if counts[1]:
            print("\n".join(output.splitlines()[-40:]))
        totals = [total + count for total, count in zip(totals, counts)]
    print(f"{totals[3]} deviate as listed")
    print(f"{totals[0]} passed, {totals[1]} failed, {totals[2]} skipped")
    return 1 if totals[1] else 0 if totals[0] else 77


if __name__ == "__main__":
    sys.exit(main())
