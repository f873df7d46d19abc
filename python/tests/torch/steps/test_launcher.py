# SPDX-License-Identifier: Apache-2.0
"""python -m bucketpool.torch.steps: the program runs as without it, and the files and lines that are added."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

TRAIN = """
    import os, sys
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.Linear(256, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(int(sys.argv[1])):
        loss = model(torch.randn(128, 64)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())
        if sys.argv[2:3] == ["fail"] and step == 6:
            raise RuntimeError("in step 6")
"""
FSDP2 = """
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(), ))
    model = nn.Sequential(*(nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())
    for step in range(9):
        loss = model(torch.randn(64, 128)).pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if dist.get_rank() == 0:
            print(step, loss.item())
    dist.destroy_process_group()
"""
SHOW = """
    import __main__, os, sys
    print(sys.argv, sys.path[0], __name__, __file__, __spec__ and __spec__.name, __main__.__dict__ is globals())
    import beside
    print(beside.VALUE)
"""


@pytest.fixture
def programs(tmp_path):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    (tmp_path / "show.py").write_text(textwrap.dedent(SHOW))
    (tmp_path / "beside.py").write_text("VALUE = 7\n")
    return tmp_path


def python(folder, *arguments, **environment):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=300, cwd=folder,
                          env={**os.environ, "PYTHONWARNINGS": "ignore", "XDG_CACHE_HOME": CACHE, **environment})


def launched(folder, *arguments, **environment):
    return python(folder, "-m", "bucketpool.torch.steps", "--device", "cpu", *arguments, **environment)


CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")


def test_records_saves_and_serves(programs):
    """Same output; the plan of a run serves the first step of the next."""
    plain = python(programs, "train.py", "9")
    recorded = launched(programs, "--save", "plan.json", "--report", "report.json", "train.py", "9")
    assert recorded.returncode == plain.returncode == 0, recorded.stderr
    assert recorded.stdout == plain.stdout
    line, = recorded.stderr.splitlines()
    report = json.loads((programs / "report.json").read_text())
    assert report["state"] in ("stopped", "stopping") and report["steps"] == 6 and report["device"] == "cpu", report
    assert report["plan"] == "plan.json"
    assert report["served"] + report["outside"] == report["allocations"] > 400 and report["outside"] <= 6  # the variable `loss`
    assert f"{report['served']:,} of {report['allocations']:,} allocations served in 6 steps from" in line, line
    served = launched(programs, "--plan", "plan.json", "--report", "second.json", "--quiet", "train.py", "9")
    second = json.loads((programs / "second.json").read_text())
    assert served.stdout == plain.stdout and served.stderr == "" and second["steps"] == 8, second
    assert second["slab_bytes"] == report["slab_bytes"] and second["served"] + second["outside"] == second["allocations"]


@pytest.mark.parametrize("arguments", [["show.py", "a", "--report", "-m", "--", "b"], ["-m", "show", "a", "--save", "x"],
                                       ["./show.py"]])
def test_program_sees_what_python_shows_it(programs, arguments):
    plain, other = python(programs, *arguments), launched(programs, "--quiet", *arguments)
    assert plain.returncode == other.returncode == 0, other.stderr
    assert other.stdout == plain.stdout and other.stderr == plain.stderr


def test_failing_program(programs):
    """Exit code and traceback are the program's, and the report is written."""
    plain = python(programs, "train.py", "9", "fail")
    failed = launched(programs, "--report", "report.json", "train.py", "9", "fail")
    assert failed.returncode == plain.returncode == 1 and failed.stdout == plain.stdout
    *trace, line = failed.stderr.splitlines()
    assert trace == plain.stderr.splitlines() and "allocations served in 4 steps" in line
    assert json.loads((programs / "report.json").read_text())["steps"] == 4


@pytest.mark.parametrize("code", ["import sys; sys.exit(5)", "raise SystemExit('over')", "1 +", "import os; os._exit(3)",
                                  "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
                                  "import os, sys\nif os.fork() == 0:\n    sys.exit(4)\nprint(os.wait()[1])",
                                  "import atexit, __main__\natexit.register(lambda: print(__main__.late(), late()))\n"
                                  "def late():\n    return 5"])
def test_exits(programs, code):
    (programs / "exits.py").write_text(code)
    plain, other = python(programs, "exits.py"), launched(programs, "--quiet", "exits.py")
    assert other.returncode == plain.returncode and other.stdout == plain.stdout
    if plain.returncode != -signal.SIGINT:  # Python's traceback then has the launcher's frames, too
        assert other.stderr == plain.stderr


@pytest.mark.parametrize("contents", [None, "", "{}", '{"format": "bucketpool.step_plan/1"', "\x00\x01"])
def test_damaged_plan(programs, contents):
    """A line says so, and the program runs."""
    if contents is not None:
        (programs / "plan.json").write_text(contents)
    done = launched(programs, "--plan", "plan.json", "--report", "report.json", "train.py", "2")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    line, = done.stderr.splitlines()
    assert "plan.json" in line and line.endswith("the program runs without a plan"), line
    assert json.loads((programs / "report.json").read_text())["state"] == "failed"


def test_no_compiler(programs, tmp_path):
    done = launched(programs, "train.py", "2", CXX=str(tmp_path / "none"), XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 2
    line, = done.stderr.splitlines()
    assert "compiler" in line and line.endswith("the program runs without a plan"), line


def test_program_without_enough_steps(programs):
    """The plan of what there was is saved."""
    done = launched(programs, "--save", "plan.json", "train.py", "2")
    assert done.returncode == 0 and (programs / "plan.json").exists()
    assert "the program ended after 2 marks" in done.stderr and "plan.json has the plan" in done.stderr
    nothing = launched(programs, "--save", "none.json", "--report", "none.report", "show.py")
    assert nothing.returncode == 0 and not (programs / "none.json").exists()
    assert "no optimizer of PyTorch has ended a step in this process" in nothing.stderr


def test_ranks(programs):
    """Under torchrun each rank has files; the first one says how it went."""
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bucketpool.torch.steps", "--device", "cpu"]
    done = python(programs, *run, "--save", "plan.json", "--report", "of-{rank}.json", "train.py", "6")
    assert done.returncode == 0, done.stderr[-2000:]
    for rank in range(2):
        assert (programs / f"plan.rank{rank}.json").exists()
        assert json.loads((programs / f"of-{rank}.json").read_text())["plan"] == f"plan.rank{rank}.json"
    assert done.stderr.count("allocations served in 3 steps") == 1
    again = python(programs, *run, "--plan", "plan.json", "--report", "again.json", "train.py", "6")
    assert again.returncode == 0, again.stderr[-2000:]
    assert [json.loads((programs / f"again.rank{rank}.json").read_text())["steps"] for rank in range(2)] == [5, 5]


def test_fsdp2(programs):
    """Two ranks that gather and reduce: the same losses."""
    (programs / "sharded.py").write_text(textwrap.dedent(FSDP2))
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    plain = python(programs, *run, "sharded.py")
    served = ["-m", "bucketpool.torch.steps", "--device", "cpu", "--report", "report.json"]
    recorded = python(programs, *run, *served, "--save", "plan.json", "sharded.py")
    planned = python(programs, *run, *served, "--plan", "plan.json", "sharded.py")
    assert plain.returncode == recorded.returncode == planned.returncode == 0, planned.stderr[-2000:]
    assert plain.stdout == recorded.stdout == planned.stdout and len(plain.stdout.splitlines()) == 9
    for rank in range(2):
        report = json.loads((programs / f"report.rank{rank}.json").read_text())
        assert report["steps"] == 8 and report["served"] >= 0.95 * report["allocations"] > 1000, report


@pytest.mark.parametrize("arguments, said", [
    ([], "no program"), (["--record", "1", "train.py"], "expected an integer in [2, 65535]"),
    (["--plan", "a", "--save", "b", "train.py"], "nothing is recorded with --plan"), (["--foo", "train.py"], "--foo"),
    (["none.py"], "none.py")])
def test_refusals(programs, arguments, said):
    done = launched(programs, *arguments)
    assert done.returncode == 2 and said in done.stderr


def test_help_is_quick(programs):
    """Without PyTorch."""
    code = "import runpy, sys; sys.argv = ['steps', '--help']\ntry:\n    runpy.run_module('bucketpool.torch.steps', run_name='__main__')\n" \
           "finally:\n    print('torch' in sys.modules)"
    done = python(programs, "-c", code)
    assert "--record STEPS" in done.stdout and done.stdout.splitlines()[-1] == "False"
