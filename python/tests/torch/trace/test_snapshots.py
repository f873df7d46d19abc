# SPDX-License-Identifier: Apache-2.0
"""Memory snapshots by configuration: pools, and PyTorch's allocator, whose recorder is emulated on CPUs."""

import contextlib
import os
import pickle
import subprocess
import sys

import pytest
import torch

from unittest import mock

import bucketpool as bp
from bucketpool.torch.snapshots import Snapshots
from devices import CUDA
import process_group
from places import ROOT

BUILD = os.environ.get("BUCKETPOOL_BUILD", os.path.join(ROOT, "build"))


class Recorder:
    """The recorder of PyTorch's caching allocator: a ring of events, without a GPU."""

    def __init__(self):
        self.most, self.events, self.calls, self.live = 0, [], [], 0

    def record(self, enabled="all", context="all", stacks="all", max_entries=sys.maxsize):
        self.calls.append((enabled, context, stacks, max_entries if enabled else None))
        self.most = max_entries if enabled else 0
        self.events = [] if enabled is None else self.events

    def allocate(self, size):
        if self.most:
            self.events.append({"action": "alloc", "addr": 4096 * (1 + self.live), "size": size, "stream": 0,
                                "time_us": 7 + self.live, "frames": []})
            self.events = self.events[-self.most:]
        self.live += 1

    def dump(self, path):
        blocks = [{"address": event["addr"], "size": 4096, "requested_size": event["size"],
                   "state": "active_allocated", "frames": []} for event in self.events]
        segments = [{"device": 0, "address": block["address"], "total_size": 4096, "allocated_size": 4096,
                     "active_size": 4096, "requested_size": 4096, "stream": 0, "segment_type": "large",
                     "segment_pool_id": (0, 0), "is_expandable": False, "frames": [], "blocks": [block]}
                    for block in blocks]
        with open(path, "wb") as file:
            pickle.dump({"segments": segments, "device_traces": [self.events], "allocator_settings": {}}, file)

    @contextlib.contextmanager
    def instead(self):
        with mock.patch.object(torch.cuda, "is_available", lambda: True), \
                mock.patch.object(torch.cuda.memory, "_record_memory_history", self.record), \
                mock.patch.object(torch.cuda.memory, "_dump_snapshot", self.dump):
            yield self


def pool_of(device=None):
    model = bp.Model("small")
    model.add_bucket(model.add_unit("u0"), "bf16", 1000)
    buckets = bp.Buckets(model, bucketing="given", padding="given", roles=["param"])
    return bp.Pool(device or bp.Device.host(), bp.Plan(buckets, bp.Schedule.training(buckets)))


def files(folder):
    return sorted(os.path.relpath(os.path.join(where, name), folder) for where, _, names in os.walk(folder)
                  for name in names)


def loaded(*path):
    with open(os.path.join(*path), "rb") as file:
        return pickle.load(file)


def train(pool, recorder, times=3):
    stream = pool.device.stream()
    for turn in range(times):
        view, = pool.acquire([0], stream)
        view.release()
        recorder.allocate(100 + turn)


def test_steps(tmp_path):
    pool = pool_of()
    with Recorder().instead() as recorder:
        with Snapshots(pool, [1, 2, 5], directory=tmp_path, max_entries=2, rank=3, ranks=8, coordinates="p0d1c0t1",
                       formats=["pickle", "trace"], context="alloc", stacks="all") as snapshots:
            for step in range(7):
                snapshots.step(step)
                assert snapshots.recording == (step in (1, 2, 5))
                train(pool, recorder)
            assert snapshots.torch_path == str(tmp_path / "step_5" / "torch_rank03_p0d1c0t1.pickle")
            assert snapshots.pickle_path == str(tmp_path / "step_5" / "snapshot_rank03_p0d1c0t1.pickle")
    started = ("all", "alloc", "all", 2)
    assert recorder.calls == [started, (None, "all", "all", None)] * 3
    assert files(tmp_path) == [f"step_{step}/{name}_rank03_p0d1c0t1.{ending}" for step in (1, 2, 5)
                               for name, ending in (("snapshot", "pickle"), ("torch", "pickle"), ("trace", "json"))]
    assert [event["size"] for event in loaded(tmp_path, "step_2", "torch_rank03_p0d1c0t1.pickle")["device_traces"][0]
            ] == [101, 102]
    pools = loaded(tmp_path, "step_2", "snapshot_rank03_p0d1c0t1.pickle")["bucketpool"]
    assert (pools["step"], pools["rank"], len(pools["pools"][0]["events"])) == (2, 3, 2)


def test_view_reads_both(tmp_path):
    pool = pool_of()
    with Recorder().instead() as recorder, Snapshots(pool, [0], directory=tmp_path) as snapshots:
        snapshots.step(0)
        train(pool, recorder)
    command = os.path.join(BUILD, "tools", "bucketpool")
    if not os.path.exists(command):
        pytest.skip("no command was built")
    for name in files(tmp_path):
        done = subprocess.run([command, "view", os.path.join(tmp_path, name)], capture_output=True, text=True)
        assert done.returncode == 0 and "EVENTS" in done.stdout, done.stdout + done.stderr


def test_pools_alone(tmp_path):
    """Without a GPU only the pools are recorded, and allocator=True is refused."""
    pool = pool_of()
    with mock.patch.object(torch.cuda, "is_available", lambda: False):
        with Snapshots([pool], directory=tmp_path) as snapshots:
            for step in range(3):
                snapshots.step(step)
        with pytest.raises(bp.Unsupported):
            Snapshots(pool, allocator=True)
    assert files(tmp_path) == ["step_0/snapshot_rank00.pickle", "step_1/snapshot_rank00.pickle"]
    with Recorder().instead() as recorder:
        Snapshots(pool, [0], directory=tmp_path, allocator=False).step(0)
    assert recorder.calls == []


def test_allocator_alone(tmp_path):
    with Recorder().instead() as recorder:
        with Snapshots(steps=[0], directory=tmp_path, ranks=1000, rank=0) as snapshots:
            snapshots.step(0)
            snapshots.step(1)
            assert snapshots.pickle_path == "" and not snapshots.recording
        with Snapshots(steps=[0], record_ranks=[1], rank=0, ranks=2) as other:
            other.step(0)
            assert not other.recording
    assert files(tmp_path) == ["step_0/torch_rank000.pickle"] and len(recorder.calls) == 2


def test_failures(tmp_path):
    """A file that cannot be written is an error of its step, nothing is left of it, and the next step is recorded."""
    wall, pool = tmp_path / "wall", pool_of()
    wall.touch()
    with Recorder().instead() as recorder:
        snapshots = Snapshots(pool, [0, 1], directory=wall)
        snapshots.step(0)
        with pytest.raises(bp.FileError, match="wall"):
            snapshots.step(1)
        assert snapshots.recording and recorder.most == 100_000
        wall.unlink()
        snapshots.close()
        snapshots.close()
        assert recorder.most == 0
        with mock.patch.object(torch.cuda.memory, "_dump_snapshot", side_effect=OSError(28, "No space left")):
            with Snapshots(steps=[0], directory=tmp_path / "full") as full:
                full.step(0)
                with pytest.raises(bp.FileError, match="No space left"):
                    full.close()
    assert files(wall) == ["step_1/snapshot_rank00.pickle", "step_1/torch_rank00.pickle"]
    assert files(tmp_path / "full") == []
    for options in (dict(rank=1), dict(rank=2, ranks=2), dict(coordinates="a/b"), dict(coordinates=""),
                    dict(steps=[-1]), dict(max_entries=-1), dict(max_entries="x")):
        with pytest.raises(bp.InvalidArgument):
            Snapshots(**options)


def test_exception_in_a_step(tmp_path):
    """An exception, such as running out of memory, writes the open step and stays the exception."""
    with Recorder().instead(), pytest.raises(torch.OutOfMemoryError):
        with Snapshots(pool_of(), [0], directory=tmp_path) as snapshots:
            snapshots.step(0)
            raise torch.OutOfMemoryError("used up")
    assert files(tmp_path) == ["step_0/snapshot_rank00.pickle", "step_0/torch_rank00.pickle"]


def test_exit(tmp_path):
    """The open step is written when the interpreter exits."""
    code = ("import sys; import test_snapshots as t\n"
            "context = t.Recorder().instead(); context.__enter__()\n"
            "s = t.Snapshots(t.pool_of(), [0], directory=sys.argv[1]); s.step(0)")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True,
                          cwd=os.path.dirname(__file__))
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert files(tmp_path) == ["step_0/snapshot_rank00.pickle", "step_0/torch_rank00.pickle"]


def _rank(folder):
    with Recorder().instead(), Snapshots(pool_of(), [0], directory=folder) as snapshots:
        snapshots.step(0)
    return snapshots.rank, snapshots.ranks


def test_ranks_of_the_process_group(tmp_path):
    assert process_group.run(_rank, str(tmp_path), ranks=2) == [(0, 2), (1, 2)]
    assert files(tmp_path) == [f"step_0/{name}_rank0{rank}.pickle" for name in ("snapshot", "torch")
                               for rank in (0, 1)]


@pytest.mark.skipif(not CUDA, reason="needs a GPU")
def test_allocator_of_pytorch(tmp_path):
    with Snapshots(steps=[1], directory=tmp_path, max_entries=1000) as snapshots:
        for step in range(3):
            snapshots.step(step)
            kept = [torch.empty(1 << 20, device="cuda") for _ in range(5)]
            del kept
    trace = [event for each in loaded(tmp_path, "step_1", "torch_rank00.pickle")["device_traces"] for event in each]
    assert len([event for event in trace if event["action"] == "alloc"]) == 5
