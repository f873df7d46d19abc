# SPDX-License-Identifier: Apache-2.0
"""Searches for the largest micro-batch that fits, against micro-batches that are traced one by one."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import bucketpool
from bucketpool.torch import fit
from bucketpool.torch.fitting import cache, gpus, scaling
from bucketpool.torch.fitting.jobs import Jobs
from bucketpool.torch.fitting.measured import Amounts, Program, Totals, measure, record, traced
from bucketpool.torch.fitting.search import EXACT, MOST, WITHIN, Table

WIDTH = 512


class Perceptron:
    """A training whose sizes are linear in the batch, but for sums of many rows (a mean, biases), which take temporaries whose
    sizes are not. From `jump` on another kernel runs.
    """

    ranks = 1

    def __init__(self, layers=3, jump=None, keeps_gradients=False, sums=True):
        self.layers, self.jump, self.keeps_gradients, self.sums = layers, jump, keeps_gradients, sums

    def build(self):
        with torch.device("cuda"):
            model = torch.nn.Sequential(*(layer for _ in range(self.layers)
                                          for layer in (torch.nn.Linear(WIDTH, 4 * WIDTH, self.sums), torch.nn.GELU(),
                                                        torch.nn.Linear(4 * WIDTH, WIDTH, self.sums))))
        return model, torch.optim.AdamW(model.parameters())

    def step(self, built, batch):
        model, optimizer = built
        if self.keeps_gradients:
            optimizer.zero_grad()
        x = torch.ones(1024 * batch, WIDTH, device="cuda")
        if self.jump is not None and batch >= self.jump:
            x = x + 3 * x.double().mean(-1, keepdim=True).expand(-1, WIDTH * batch).sum(-1, keepdim=True).to(x.dtype)
        result = model(x)
        (result.pow(2).mean() if self.sums else result).backward(None if self.sums else torch.ones_like(result))
        optimizer.step()
        if not self.keeps_gradients:
            optimizer.zero_grad()


def searched(training, limit, count=2):
    jobs = Jobs(count)
    table = Table(jobs, Program(training), limit)
    jobs.run([table.search()])
    return table


def one_by_one(training, limit, last):
    """Totals of each micro-batch, traced with both steps."""
    rows = {batch: traced(Program(training), batch, limit).amounts.totals[0] for batch in range(1, last + 1)}
    runs = {"served": max((batch for batch, row in rows.items() if row.served <= limit), default=0)}
    smooth = {}
    for name in ("default", "expandable"):
        retries = {batch: getattr(row, f"{name}_retries") for batch, row in rows.items()}
        runs[name] = max((batch for batch, count in retries.items() if count is not None), default=0)
        smooth[name] = max((batch for batch, count in retries.items() if count == 0), default=0)
        for batch, row in rows.items():
            assert retries[batch] == 0 or name == "expandable" or getattr(row, name) > limit  # its addresses depend on the GPU, too
            assert getattr(row, name) <= limit or retries[batch] != 0
            assert retries[batch] is not None or row.peak > 0.9 * limit
    return rows, runs, smooth


@pytest.mark.parametrize("training", [Perceptron(sums=False), Perceptron(), Perceptron(jump=5),
                                      Perceptron(keeps_gradients=True)],
                         ids=["linear", "sums", "another kernel from 5 on", "gradients kept"])
def test_search(training):
    """The rows and edges are those of a search without scaling."""
    limit = (700 if training.sums else 560) << 20
    table = searched(training, limit)
    rows, runs, smooth = one_by_one(training, limit, table.best + 1)
    assert (table.largest, table.smooth) == (runs, smooth) and table.best >= 4
    for batch, amounts in table.rows.items():
        found, expected = amounts.totals[0], rows[batch]
        assert found[3] == pytest.approx(expected[3], rel=WITHIN), f"micro-batch {batch}"
        if batch in table.traced:
            assert found == expected, f"micro-batch {batch}"
    edges = [*table.largest.values(), *table.smooth.values()]
    assert {batch + more for batch in edges for more in (0, 1)} - {0} <= set(table.traced)
    assert table.deviation <= WITHIN and (table.is_scaled or training.sums)


def test_scaled_recordings():
    """Each event of a scaled recording is that of a traced one."""
    program = Program(Perceptron(sums=False))
    recordings = {batch: record(program, batch) for batch in (2, 3, 7)}
    line = scaling.Scaling.of(recordings[2], 2, recordings[3])
    assert scaling.same(line.at(7), recordings[7])
    assert not scaling.same(line.at(6), recordings[7])
    assert measure((line.at(7), ), 1 << 30) == measure((recordings[7], ), 1 << 30)
    assert scaling.Scaling.of(recordings[2], 2, record(Program(Perceptron(jump=3)), 3)) is None
    assert line.at(-100) is None


def test_repeated_steps():
    """A recording of one step has a second one made from it, unless its steps depend on each other."""
    whole, one = record(Program(Perceptron()), 2), record(Program(Perceptron()), 2, steps=1)
    assert scaling.repeats(whole) and scaling.same(scaling.repeated(one), whole)
    assert scaling.repeated(one).peak_rounded_bytes == whole.peak_rounded_bytes
    assert scaling.repeated(one).snapshot()["external_annotations"] == whole.snapshot()["external_annotations"]
    kept = record(Program(Perceptron(keeps_gradients=True)), 2)
    assert not scaling.repeats(kept)  # the second step frees the gradients of the first


def test_another_limit():
    """A table uses the traces of another one of the same program."""
    first = searched(Perceptron(), 700 << 20)
    jobs = Jobs(2)
    second = Table(jobs, Program(Perceptron()), 1000 << 20, first.traced)
    jobs.run([second.search()])
    alone = searched(Perceptron(), 1000 << 20)
    assert (second.largest, second.rows) == (alone.largest, alone.rows) and second.best > first.best


class Steep(Table):
    """Rows of a program with `slope` bytes for each sample, where allocators need more than lives at the peak."""

    def __init__(self, limit, slope):
        super().__init__(Jobs(1), Program(Perceptron()), limit)
        self.slope = slope
        for batch in (1, 2, 3):
            assert not list(self.row(batch))

    def row(self, batch):
        peak = 1000 + self.slope * batch
        runs = [0 if share * peak <= self.limit_bytes else None for share in (2, 1.25)]
        self.rows.setdefault(batch, Amounts((Totals(2 * peak, peak * 5 // 4, peak, peak, *runs), ), ()))
        yield from ()


@pytest.mark.parametrize("limit", [100_000, 5_000_000, 3_000_000_000])
def test_edges_far_away(limit):
    """The number of rows is logarithmic, also where the line of peaks leads beyond the edge."""
    table = Steep(limit, 1000)
    assert not list(table._edges())
    for name, share in (("default", 2), ("expandable", 1.25), ("served", 1)):
        edge, found = int((limit / share - 1000) // 1000), table.largest[name]
        assert found == edge if edge < EXACT else edge * 255 / 256 - 1 < found <= edge
    assert len(table.rows) < 120
    assert any("steps of" in note for note in table.notes) == (limit >= 1000 * EXACT)


def test_edges_nowhere():
    """A program that takes the same memory for any micro-batch."""
    table = Steep(100_000, 0)
    assert not list(table._edges())
    assert set(table.largest.values()) == {MOST} and len(table.rows) < 40


def test_nothing_fits():
    table = searched(Perceptron(), 10 << 20)
    assert table.best == 0 and list(table.rows) == [1] and not table.is_scaled


def test_one_batch():
    answer = fit(Perceptron().build, Perceptron().step, memory=700 << 20, reserve=0, batch=4)
    assert [row["batch"] for row in answer.rows] == [4] and answer.largest == {"default": 4, "expandable": 4, "served": 4}
    answer = fit(Perceptron().build, Perceptron().step, memory=700 << 20, reserve=0, batch=400)
    assert not answer.fits


def test_answer(tmp_path):
    """The document of a fit in Python: changes, kinds, the recording that is shown."""
    said = []
    small, large = Perceptron(), Perceptron(layers=5)
    answer = fit(large.build, large.step, memory=500 << 20, reserve=100 << 20, name="five layers",
                 changes={"three layers": (small.build, small.step)}, progress=lambda *each: said.append(each))
    document = answer.document
    assert document["limit_bytes"] == 400 << 20 and document["gpu"]["source"] == "as given"
    at = document["shown"]["batch"]
    assert at == max(answer.largest.values())
    row = next(row for row in answer.rows if row["batch"] == at)
    assert sum(kind["bytes"] for kind in document["shown"]["kinds"]) == row["peak_bytes"]
    changes = {change["change"]: change for change in document["changes"]}
    expected = traced(Program(small), at, 1 << 40).amounts.totals[0]
    assert changes["three layers"]["after_bytes"] == expected.default < changes["three layers"]["before_bytes"]
    assert changes["served steps"]["after_bytes"] == row["served_bytes"]
    assert [change["after_bytes"] for change in document["changes"]] == sorted(
        change["after_bytes"] for change in document["changes"])
    assert os.path.exists(document["shown"]["recording"])
    assert all(done < total for _, done, total in said) and len(said) > 3
    answer.write(tmp_path / "fit.json")
    assert json.loads((tmp_path / "fit.json").read_text())["model"] == "five layers"


def test_arguments():
    training = Perceptron()
    for named in ({"gpu": "h1000"}, {"memory": 1 << 20, "reserve": 1 << 20}, {"ranks": 0}, {"batch": 0},
                  {"batch": "2"}, {"memory": -5}):
        with pytest.raises((bucketpool.InvalidArgument, TypeError)):
            fit(training.build, training.step, **named)
    with pytest.raises(bucketpool.InvalidArgument):
        fit(None, training.step)


def test_programs_that_fail():
    """Errors of the program come back from its process, and no process stays."""
    training = Perceptron()

    def step(built, batch):
        raise ValueError("no data")

    with pytest.raises(bucketpool.Unsupported, match="micro-batch 1: ValueError: no data"):
        fit(training.build, step)

    def indices(built, batch):
        built[0](torch.ones(8192, WIDTH, device="cuda")[torch.rand(8192, device="cuda") > 0.5])

    with pytest.raises(bucketpool.Unsupported, match="nonzero|index"):
        fit(training.build, indices)


def test_routing():
    """Rows of sizes that depend on values are for a uniform and a skewed routing, of which the larger decides."""
    training = Perceptron()

    def step(built, batch):
        model, optimizer = built
        tokens = torch.ones(4096 * batch, WIDTH, device="cuda")
        chosen = torch.nonzero(torch.randn(4096 * batch, device="cuda") > 0).squeeze(-1)
        model(tokens[chosen]).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    routing = {"uniform": lambda mask: mask.numel() // 4, "skewed": lambda mask: mask.numel() // 2}
    answer = fit(training.build, step, memory=700 << 20, reserve=0, nonzero=routing)
    alone = [fit(training.build, step, memory=700 << 20, reserve=0, nonzero=count) for count in routing.values()]
    assert answer.largest == alone[1].largest != alone[0].largest
    first = answer.rows[0]
    assert first["skewed"] == {name: alone[1].rows[0][name] for name in first["skewed"]}
    assert all(first[name] == alone[0].rows[0][name] for name in first["skewed"])
    with pytest.raises(bucketpool.Unsupported, match="nonzero"):
        fit(training.build, step)
    with pytest.raises(bucketpool.InvalidArgument, match="nonzero"):
        fit(training.build, step, nonzero={"uniform": 3})


def test_changes_that_fail():
    """A way to train that cannot be recorded is named, and costs no answer."""
    training = Perceptron()

    def step(built, batch):
        raise ValueError("no such kernel")

    answer = fit(training.build, training.step, batch=1, changes={"other kernels": (training.build, step)})
    assert answer.fits and "other kernels" not in [each["change"] for each in answer.document["changes"]]
    assert answer.document["notes"][-1] == "other kernels: not compared: micro-batch 1: ValueError: no such kernel"


@pytest.mark.parametrize("count", [1, 2])
def test_processes(count):
    """A fit in a process without threads of autograd, which forks; here (after other tests) it may not."""
    program = (f"import sys; sys.path[:0] = {[os.path.dirname(os.path.abspath(__file__))]!r}\n"
               "from test_fit import Perceptron, searched\nimport os\nfrom bucketpool.torch.fitting.jobs import Jobs\n"
               f"assert Jobs(1)._forks\ntable = searched(Perceptron(), 700 << 20, {count})\n"
               "print(table.largest, sorted(table.rows.items()))\ntry: os.waitpid(-1, 0)\nexcept ChildProcessError: print('none left')")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=300)
    table = searched(Perceptron(), 700 << 20)
    assert done.stdout.splitlines() == [f"{table.largest} {sorted(table.rows.items())}", "none left"], done.stderr


def test_jobs(monkeypatch):
    """Searches wait for their own jobs; at most so many run at once."""
    jobs, seen = Jobs(2), []
    monkeypatch.setattr(jobs, "_forks", True)

    def search(name, count):
        for number in range(count):
            job = jobs.submit(name, lambda number=number: (name, number, time.monotonic(), time.sleep(0.1), time.monotonic()))
            yield [job]
            seen.append(job.result())
        return name * count

    assert jobs.run([search("a", 3), search("b", 1), search("c", 2), search("d", 0)]) == ["aaa", "b", "cc", ""]
    spans = [(each[2], each[4]) for each in seen]
    assert max(sum(begin <= at < end for begin, end in spans) for at, _ in spans) == 2

    def large():
        job = jobs.submit("large", lambda: b"x" * (5 << 20))
        yield [job]
        return len(job.result())

    assert jobs.run([large()]) == [5 << 20]

    submitted = [jobs.submit("killed", lambda: os.kill(os.getpid(), signal.SIGKILL)), jobs.submit("slow", lambda: time.sleep(60))]

    def killed():
        yield submitted[:1]
        return submitted[0].result()

    begin = time.monotonic()
    with pytest.raises(bucketpool.InternalError, match="killed: its process ended without a result .signal 9"):
        jobs.run([killed()])
    assert time.monotonic() - begin < 30 and [job.process for job in submitted] == [0, 0]  # both ended and waited for


def test_gpus():
    for name, (title, gib, capability) in gpus.GPUS.items():
        gpu = gpus.find(name, None, None, 1)
        assert gpu.name == title and gpu.capability == capability and 10 < gib < 200
        assert gpus.find(name, None, None, 8).limit_bytes < gpu.limit_bytes < gpu.bytes
    assert gpus.find(None, 1 << 40, 5, 1).limit_bytes == (1 << 40) - 5


def test_cache(monkeypatch):
    """Documents by the content of what decides them; the oldest go."""
    key = cache.key_of({"dp": 8}, b"{}", None)
    assert key == cache.key_of({"dp": 8}, b"{}", None)
    assert len({key, cache.key_of({"dp": 4}, b"{}", None), cache.key_of({"dp": 8}, b"{} ", None),
                cache.key_of({"dp": 8}, b"{}", __file__)}) == 4
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    assert cache.key_of({"dp": 8}, b"{}", None) != key
    assert cache.load(key) is None
    recording = cache.recording_path()
    with open(recording, "w", encoding="utf-8") as file:
        file.write("x")
    cache.store(key, {"shown": {"recording": recording}, "is_cached": False})
    assert cache.load(key) == {"shown": {"recording": recording}, "is_cached": True}
    os.remove(recording)
    assert cache.load(key) is None
    monkeypatch.setattr(cache, "KEPT", 3)
    for number in range(5):
        cache.store(f"{number}", {"shown": {"recording": None}, "is_cached": False})
        os.utime(os.path.join(cache.folder(), f"{number}.json"), (number, number))
    cache.store("last", {"shown": {"recording": None}, "is_cached": False})
    assert len(os.listdir(cache.folder())) == 3 and cache.load("last") is not None


def test_cache_without_a_folder(monkeypatch, tmp_path):
    """A folder that cannot be written is said before the search; a full disk costs no answer."""
    monkeypatch.setattr(json, "dump", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    cache.store("full", {"shown": {"recording": None}, "is_cached": False})
    assert os.listdir(cache.folder()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(bucketpool.FileError, match="set XDG_CACHE_HOME"):
        cache.load("any")


CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1000,
          "max_position_embeddings": 512, "tie_word_embeddings": False}


def started(**options):
    """Lines of `python -m bucketpool.torch.fitting`, and its exit status."""
    done = subprocess.run([sys.executable, "-m", "bucketpool.torch.fitting", json.dumps(options)], capture_output=True,
                          text=True, check=False, timeout=300)
    return [json.loads(line) for line in done.stdout.splitlines()], done.returncode


def test_lines(monkeypatch, tmp_path):
    """The program that the command starts prints progress, then the document; again, from the cache; errors as a line.
    Code of models prints elsewhere.
    """
    (tmp_path / "sitecustomize.py").write_text(
        "import os\nos.register_at_fork(after_in_child=lambda: os.write(1, b'{not an answer\\n'))\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    config = tmp_path / "tiny" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(CONFIG))
    options = {"model": str(config), "sequence": 128, "dp": 2, "memory": 400 << 20, "reserve": 0, "batch": 2}
    lines, status = started(**options)
    assert status == 0 and all(set(line) == {"progress", "done", "total"} for line in lines[:-1]) and len(lines) > 3
    document = lines[-1]
    assert document["format"] == "bucketpool.fit/1" and document["model"] == "tiny" and not document["is_cached"]
    assert document["parameters"] == 2 * 64 * 1000 + 64 + 2 * (2 * 64 + 64 * (64 + 32 + 32 + 64) + 3 * 64 * 128)
    again, status = started(**options)
    assert status == 0 and len(again) == 1 and again[0] == {**document, "is_cached": True}
    fresh, _ = started(**options, fresh=True)
    assert {**fresh[-1], "seconds": 0, "shown": 0} == {**document, "seconds": 0, "shown": 0}
    for wrong, said in (({"optimizer": "adamx"}, "optimizer"), ({"gpu": "h1000", "memory": None}, "h1000"),
                        ({"model": str(tmp_path)}, str(tmp_path)), ({"ep": 3}, "ep")):
        lines, status = started(**{**options, **wrong})
        assert status == 2 and said in lines[-1]["error"] and lines[-1]["exit"] == 2, wrong
