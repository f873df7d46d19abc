# SPDX-License-Identifier: Apache-2.0
"""The runner of other projects' tests (python/tests/peers), on a made-up copy of one."""

import os
import re
import sys

import pytest

from places import ROOT, TESTS

PEERS = os.path.join(TESTS, "peers")
GUIDE = os.path.join(ROOT, "docs", "guides", "log_probabilities_setup.md")
sys.path.append(PEERS)

import functions  # noqa: E402
import run  # noqa: E402
import runtimes  # noqa: E402

KIND = functions.Kind("a kind", "a reason")

MODULE = """
import a_package_that_is_not_installed.part as absent
from a_package_that_is_not_installed import Base, decorator

try:
    import another_package_that_is_not_installed
    GUARDED = False
except ImportError:
    GUARDED = True


@decorator
class Kept(Base):
    pass


@absent.with_options(size=3)
def kept():
    return 5


def logprobs_from_logits(logits, labels, inplace_backward=True):
    raise RuntimeError("not replaced")


def entropy_from_logits(logits):
    raise RuntimeError("not replaced")
"""

TESTS = """
import subprocess
import sys

import torch
from verl.utils import torch_functional as functional


def test_values():
    logits = torch.randn(2, 3, 7, device="cuda", dtype=torch.float32)
    labels = torch.randint(0, 7, (2, 3)).to("cuda:1")
    expected = logits.log_softmax(-1).gather(-1, labels[..., None])[..., 0]
    torch.testing.assert_close(functional.logprobs_from_logits(logits, labels), expected)


def test_process():
    code = "import torch, verl.utils.torch_functional as f; print(f.entropy_from_logits(torch.zeros(1, 8)).item())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2.0794")


def test_stand_ins():
    assert functional.GUARDED and functional.kept() == 5 and functional.Kept.__name__ == "Kept"


def test_wrong():
    assert functional.entropy_from_logits(torch.zeros(1, 8)).item() == 1
"""


@pytest.fixture
def copy(tmp_path):
    files = {"verl/__init__.py": "", "verl/utils/__init__.py": "", "verl/utils/torch_functional.py": MODULE,
             "test_it.py": TESTS}
    for name, text in files.items():
        file = tmp_path / "verl" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(tmp_path)


def judged(monkeypatch, found, *rows, name="verl"):
    monkeypatch.setattr(run, "DEVIATIONS", [functions.Deviation(name, KIND, *row) for row in rows])
    return run.judge(name, found)[0]


def test_copy(copy, monkeypatch, capsys):
    found, output = functions.results(copy, "verl", functions.Peer(["."], ["test_it.py"]), [])
    outcomes = {test.split("::")[-1]: (result.outcome, result.uses) for test, result in found.items()}
    assert outcomes == {"test_values": ("passed", 1), "test_process": ("passed", 1), "test_stand_ins": ("passed", 0),
                        "test_wrong": ("failed", 1)}, output
    assert judged(monkeypatch, found) == (2, 1, 0, 0)  # test_stand_ins uses nothing of ours
    assert "FAILED" in capsys.readouterr().out
    assert judged(monkeypatch, found, ("test_wrong",)) == (2, 0, 0, 1)
    assert judged(monkeypatch, found, ("", "assert 2.07")) == (2, 0, 0, 1)
    assert "1 deviate: a kind: a reason" in capsys.readouterr().out
    assert run.judge("verl", found)[1] == {KIND: 1}
    assert run.table({"verl": 2, "trl": 7}, {"verl": {KIND: 1}, "trl": {}}) == [
        "| tests | verl | trl | ours differs because |", "|---|---|---|---|", "| pass | 2 | 7 |  |", "| a kind | 1 |  | a reason |"]
    # an unexpected pass, and a row without a failure
    assert judged(monkeypatch, found, ("test_wrong",), ("test_process",))[1] == 2
    assert "PASSED" in capsys.readouterr().out
    assert judged(monkeypatch, found, ("test_wrong",), ("no such test",))[1] == 1


def test_table_of_guide():
    """The guide's table, whose numbers are of a run with copies of the peers, has the kinds of the deviations and their peers."""
    with open(GUIDE, encoding="utf-8") as page:
        lines = [line.strip("| \n").split(" | ") for line in page if re.match(r"\| .*ours differs because|\| pass \|", line)
                 or any(line.startswith(f"| {row.kind.name} |") for row in run.DEVIATIONS)]
    head, passed, *kinds = lines
    peers = head[1:-1]
    assert peers == list(functions.PEERS) and all(int(count) > 0 for count in passed[1:]), lines
    listed = {}
    for row in run.DEVIATIONS:
        listed.setdefault(row.kind, set()).add(row.peer)
    assert [(name, because, {peer for peer, count in zip(peers, counts) if count.strip()}) for name, *counts, because in kinds] == [
        (kind.name, kind.because, of) for kind, of in listed.items()]


def test_changed_copy(copy):
    assert functions.results(copy, "verl", functions.Peer(["."], ["gone.py", "test_it.py"]), [])[0]["gone.py"].outcome == "failed"
    module = os.path.join(copy, "verl", "verl", "utils", "torch_functional.py")
    with open(module, "w", encoding="utf-8") as file:
        file.write(MODULE.replace("def entropy_from_logits", "def renamed"))
    found, output = functions.results(copy, "verl", functions.Peer(["."], ["test_it.py"]), [])
    assert not any(result.outcome == "passed" for result in found.values())
    assert "has no entropy_from_logits any more" in output


# Of a runtime: what passes plain runs once more with pools.
SHARDED = """
import os
import signal

import pytest

from places import TESTS
import torch
from places import TESTS
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard


@pytest.fixture
def model():
    dist.init_process_group("gloo", init_method="env://")
    made = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    for module in (*made, made):
        fully_shard(module, mesh=dist.device_mesh.init_device_mesh("cuda", (dist.get_world_size(),)))
    return made


def pooled():
    import runtime_pools
    return bool(runtime_pools._kept)


def test_served(model):
    assert dist.get_world_size() == 2 and dist.get_rank() == int(os.environ["RANK"])
    for _ in range(2):
        model(torch.ones(2, 8, device="cuda")).sum().backward()


def test_idle():
    assert torch.ones(1).to("cuda").item() == 1


def test_wrong_plain():
    assert os.environ["RANK"] == "0"


def test_wrong_pooled(model):
    model(torch.ones(2, 8))
    assert not pooled()


def test_crash(model):
    model(torch.ones(2, 8))
    if pooled() and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    dist.barrier()


def test_hangs(model):
    model(torch.ones(2, 8))
    if pooled():
        os.fork()
        signal.pause()


@pytest.mark.skip(reason="not here")
def test_skipped():
    pass
"""


def test_runtime(tmp_path, monkeypatch, capsys):
    (tmp_path / "pytorch" / "test").mkdir(parents=True)
    (tmp_path / "pytorch" / "test" / "test_it.py").write_text(SHARDED)
    monkeypatch.setenv("BUCKETPOOL_PEER_SECONDS", "15")
    parts = [runtimes.Part("test", ["test_it.py", "gone.py"], 2, [], "")]
    found, output = runtimes.results(str(tmp_path), "pytorch", parts, [])
    outcomes = {test.split("::")[-1]: (result.outcome, result.uses > 0) for test, result in found.items()}
    assert outcomes == {"gone.py": ("failed", False), "test_served": ("passed", True), "test_idle": ("passed", False),
                        "test_wrong_pooled": ("failed", True), "test_crash": ("failed", True),
                        "test_hangs": ("failed", True), "test_skipped": ("skipped", False)}, output
    assert found["test_it.py::test_served"].uses == 2 * 2 * 6  # 2 ranks, 2 steps: 4 all-gathers and 2 reduce-scatters
    said = {test.split("::")[-1]: result.said for test, result in found.items()}
    assert "rank 1 ended with signal 11" in said["test_crash"] and "did not end in 15 s" in said["test_hangs"]
    printed = capsys.readouterr().out.splitlines()
    assert next(line.split()[1:] for line in printed if "test_it.py" in line)[:6] == ["5", "1", "1", "2", "3", "36"]
    assert judged(monkeypatch, found, ("wrong_pooled|crash|hangs",), name="pytorch") == (1, 1, 1, 3)
    monkeypatch.setattr(runtimes, "MAX_SECONDS", 0)
    late = runtimes.results(str(tmp_path), "pytorch", parts, ["-k", "served"])[0]
    assert late["test_it.py::test_served"].said == "no time was left to run it"


def test_no_copies(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path)])
    assert run.main() == 77
    assert "SkyRL: skipped" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path / "none")])
    assert run.main() == 2
