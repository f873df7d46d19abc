"""The runner of other projects' tests (python/tests/peers), on a made-up copy of one."""

import os
import sys

import pytest

PEERS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "peers")
sys.path.append(PEERS)

import run  # noqa: E402

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


def judged(monkeypatch, found, *rows):
    monkeypatch.setattr(run, "DEVIATIONS", [run.Deviation("verl", "a reason", *row) for row in rows])
    return run.judge("verl", found)


def test_copy(copy, monkeypatch, capsys):
    found, output = run.results(copy, "verl", run.Peer(["."], ["test_it.py"]), [])
    outcomes = {test.split("::")[-1]: (result.outcome, result.calls) for test, result in found.items()}
    assert outcomes == {"test_values": ("passed", 1), "test_process": ("passed", 1), "test_stand_ins": ("passed", 0),
                        "test_wrong": ("failed", 1)}, output
    assert judged(monkeypatch, found) == (2, 1, 0, 0)  # test_stand_ins calls none of ours
    assert "FAILED" in capsys.readouterr().out
    assert judged(monkeypatch, found, ("test_wrong",)) == (2, 0, 0, 1)
    assert judged(monkeypatch, found, ("", "assert 2.07")) == (2, 0, 0, 1)
    assert "1 deviate: a reason" in capsys.readouterr().out
    # an unexpected pass, and a row without a failure
    assert judged(monkeypatch, found, ("test_wrong",), ("test_process",))[1] == 2
    assert "PASSED" in capsys.readouterr().out
    assert judged(monkeypatch, found, ("test_wrong",), ("no such test",))[1] == 1


def test_changed_copy(copy):
    assert run.results(copy, "verl", run.Peer(["."], ["gone.py", "test_it.py"]), [])[0]["gone.py"].outcome == "failed"
    module = os.path.join(copy, "verl", "verl", "utils", "torch_functional.py")
    with open(module, "w", encoding="utf-8") as file:
        file.write(MODULE.replace("def entropy_from_logits", "def renamed"))
    found, output = run.results(copy, "verl", run.Peer(["."], ["test_it.py"]), [])
    assert not any(result.outcome == "passed" for result in found.values())
    assert "has no entropy_from_logits any more" in output


def test_no_copies(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path)])
    assert run.main() == 77
    assert "SkyRL: skipped" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["run.py", str(tmp_path / "none")])
    assert run.main() == 2
