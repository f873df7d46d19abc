# SPDX-License-Identifier: Apache-2.0
"""Memory of pools beside PyTorch's, and snapshots with both."""

import pickle
import resource

import pytest

import bucketpool as bp
from bucketpool.torch import snapshots
from bucketpool.torch.accounting import memory, memory_summary
from support import small_plan


def pool_of(device):
    _buckets, _schedule, plan = small_plan([65536] * 2)
    return bp.Pool(device, plan, name="a pool with a long name, of tests")


def test_memory():
    device = bp.Device.host()
    with pool_of(device) as pool, pool_of(device) as other:
        stream = device.stream("compute")
        view, = pool.acquire([0], stream)
        now = memory([pool, other])
        assert now.pool_bytes == now.held_bytes == device.usage.committed_bytes
        assert (now.live_bytes, now.peak_live_bytes) == (view.bytes, view.bytes)
        assert (now.torch_bytes, now.torch_reserved_bytes) == (0, 0)
        view.release()
        assert memory(pool).live_bytes == 0 and memory(pool).peak_live_bytes == view.bytes
        assert str(now).startswith("held 1 MiB: pools 1 MiB (live 128 KiB, peak 128 KiB), PyTorch 0 B")
        head, *rows = memory_summary([pool, other]).splitlines()[-3:]
        assert head.startswith("| bucketpool ") and len(rows) == 2
        assert all(len(row) == len(head) and row.startswith("| a pool with a long nam |") for row in rows)
        assert "128 KiB" in rows[0] and "scheduled" in rows[0]
    with pytest.raises(bp.InvalidArgument, match="closed"):
        memory(pool)


def torch_snapshot(path, times):
    """A snapshot as PyTorch's allocator writes it (torch.cuda.memory._snapshot)."""
    segment = {"device": 0, "address": 4096, "total_size": 2048, "allocated_size": 1024, "active_size": 1024,
               "requested_size": 1000, "stream": 0, "segment_type": "small", "segment_pool_id": (0, 0),
               "is_expandable": False, "frames": [],
               "blocks": [{"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated",
                           "frames": []}]}
    events = [{"action": "alloc", "addr": 4096, "size": 1024, "stream": 0, "time_us": time, "frames": []}
              for time in times]
    with open(path, "wb") as file:
        pickle.dump({"segments": [segment], "device_traces": [events, []], "allocator_settings": {"a": 1}}, file)


def test_merge(tmp_path):
    device = bp.Device.host()
    with pool_of(device) as pool, snapshots.Snapshots(pool, steps=[0], directory=tmp_path) as recorded:
        recorded.step(0)
        view, = pool.acquire([0], device.stream("compute"))
        view.release()
        recorded.step(1)
        ours = recorded.pickle_path
        with open(ours, "rb") as file:
            alone = pickle.load(file)
        times = [event["time_us"] for event in alone["device_traces"][0]]
        torch_snapshot(tmp_path / "torch.pickle", [times[0] - 1, times[-1] + 1])
        snapshots.merge(tmp_path / "both.pickle", ours, tmp_path / "torch.pickle")
    with open(tmp_path / "both.pickle", "rb") as file:
        both = pickle.load(file)
    events = both["device_traces"][0]
    assert [event["time_us"] for event in events] == [times[0] - 1, *times, times[-1] + 1]
    assert events[1:-1] == alone["device_traces"][0] and len(both["device_traces"]) == 2
    assert len(both["segments"]) == len(alone["segments"]) + 1
    assert both["bucketpool"] == alone["bucketpool"]


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def test_bad_snapshots(tmp_path, capsys):
    path = tmp_path / "bad.pickle"
    for content, match in ((pickle.dumps(Evil()), "builtins.print"), (b"text", "not a snapshot"), (b"", "not a snapshot"),
                           (pickle.dumps([1]), "no segments"), (pickle.dumps({"segments": 1}), "no segments"),
                           (pickle.dumps({"segments": [], "device_traces": [[{}]]}), "time_us")):
        path.write_bytes(content)
        with pytest.raises(bp.FileError, match=match):
            snapshots.merge(tmp_path / "out.pickle", path)
    with pytest.raises(bp.FileError, match="cannot be read"):
        snapshots.merge(tmp_path / "out.pickle", tmp_path / "missing.pickle")
    with pytest.raises(bp.FileError, match="cannot be written"):
        torch_snapshot(path, [1])
        snapshots.merge(tmp_path / "no folder" / "out.pickle", path)
    with pytest.raises(bp.InvalidArgument, match="no snapshot given"):
        snapshots.merge(tmp_path / "out.pickle")
    former = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))  # as a full disk
    try:
        with pytest.raises(bp.FileError, match="cannot be written: File too large"):
            snapshots.merge(path, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == former and [each.name for each in tmp_path.iterdir()] == ["bad.pickle"]
    assert capsys.readouterr().out == ""
