# SPDX-License-Identifier: Apache-2.0
"""When steps of a GPU are not served, or no longer, on a model of its decorator; lines of reports; names of files."""

import logging

import pytest
import torch

from bucketpool import _abi
from bucketpool.step_plan import StepItem, StepKind, StepPlan
from bucketpool.torch.steps import _text
from bucketpool.torch.steps._decorator import STATES, Status
from bucketpool.torch.steps._device import ServedDevice
from bucketpool.torch.steps._session import Rounds

GIB = 1 << 30


def plan(size=10 * GIB, before=17 * GIB, needed=None):
    kind = StepKind((StepItem(size, 0), ), lower_bound_bytes=needed or size, bytes=size)
    return StepPlan.from_kinds([kind], bytes=size, reserved_before_bytes=before)


class Decorator:
    """Counters that a test sets, in GiB."""

    kind, index, name = "cuda", 0, "cuda:0"

    def __init__(self):
        self.reserved = self.live = 0
        self.used, self.missed = 10, 0.0  # a share of allocations
        self.calls, self.allocations, self.state, self.because = [], 0, "off", b""

    def mark(self):
        self.allocations += 100

    def status(self):
        return Status(state=STATES.index(self.state), slab=1, peak_reserved_bytes=int(self.reserved * GIB),
                      reserved_bytes=int(self.reserved * GIB), live_bytes=int(self.live * GIB), peak_live_bytes=int(self.live * GIB),
                      because=self.because)

    def statistics(self):
        made = _abi.bp_step_statistics(peak_live_bytes=int(self.used * GIB))
        made.outcomes[1] = int(self.allocations * self.missed)
        made.outcomes[0] = self.allocations - made.outcomes[1]
        return made

    def serve(self, plan, wait_bytes):
        self.calls.append(("serve", wait_bytes))
        self.state = "serving"

    def stop(self):
        self.calls.append("stop")
        self.state = "stopping"

    def record(self):
        self.calls.append("record")

    def forget(self):
        self.calls.append("forget")

    def reset_peak(self):
        self.calls.append("reset_peak")

    def losses(self):
        return []

    waits = losses


def served(**options):
    device = ServedDevice(Decorator())
    device.serve(plan(**options))
    device.mark()
    assert device.state == "serving" and device.decorator.calls == [("serve", 1), "reset_peak"]
    return device


def test_serves_while_less_is_reserved(caplog):
    device = served()
    device.decorator.reserved, device.decorator.live = 15, 14
    for _ in range(8):
        device.mark()
    assert device.state == "serving" and device.steps == 8 and device.because == "" and not caplog.records
    assert device.last_step == (100, 100)
    summary = device.summary()
    assert summary["reserved_peak_bytes"] == 15 * GIB and summary["reserved_peak_before_bytes"] == 17 * GIB
    assert _text.closing_line(summary) == ("cuda:0: reserved 15.0 GiB instead of 17.0 GiB (12 % less), 800 of 800 allocations served "
                                           "in 8 steps")


def test_stops_when_more_is_reserved(caplog):
    device = served()
    device.decorator.reserved = 17.5
    with caplog.at_level(logging.WARNING, "bucketpool"):
        for _ in range(3):
            device.mark()
    assert device.state == "stopped" and device.decorator.calls[-1] == "stop" and len(caplog.records) == 1
    assert "reserved 17.5 GiB while the plan was served, and would need about 17.0 GiB without it" in caplog.text
    assert device.steps == 1 and "(3 % more)" in _text.closing_line(device.summary())


def test_live_memory_may_grow():
    """Longer sequences than the recorded ones would have needed more without a plan, too."""
    device = served()
    device.live_before, device.decorator.live, device.decorator.reserved = 14 * GIB, 16, 18.5
    device.mark()
    assert device.state == "serving"
    device.decorator.reserved = 19.5
    device.mark()
    assert device.state == "stopped"


@pytest.mark.parametrize("used, state", [(9, "serving"), (8.1, "serving"), (7.9, "stopped"), (0, "stopped")])
def test_stops_when_the_slab_is_not_used(used, state):
    device = served()
    device.decorator.used, device.decorator.missed = used, 0.5
    device.mark(), device.mark()
    assert device.state == "serving"
    device.mark()
    assert device.state == state, device.because


def test_steps_that_are_served_may_use_less():
    """All that was planned is served: these are the planned steps, and less of them was live at once."""
    device = served()
    device.decorator.used, device.decorator.missed = 7, 0.01
    for _ in range(4):
        device.mark()
    assert device.state == "serving"


@pytest.mark.parametrize("is_recorded, advice", [(False, "record a new plan"), (True, "record more of them (--record)")])
def test_advice(is_recorded, advice):
    """A plan of this run is not of another program: its steps differ from the recorded ones."""
    device = served()
    device.is_recorded, device.decorator.used, device.decorator.missed = is_recorded, 5, 0.5
    device.mark(), device.mark(), device.mark()
    assert device.state == "stopped" and advice in device.because


@pytest.mark.parametrize("outcome, missed, is_advised", [("misplaced", 200, True), ("unknown", 200, True), ("misplaced", 10, False),
                                                         ("busy", 200, False)])
def test_closing_line_of_other_steps(outcome, missed, is_advised):
    device = served()
    for _ in range(4):
        device.mark()
    summary = device.summary()
    summary["served"], summary[outcome] = summary["served"] - missed, missed
    assert ("are served in part; record more steps (--record)" in _text.closing_line(summary)) == is_advised


def test_steps_of_several_optimizers():
    """One for each parameter, for example: a whole step ends where the first of them steps again."""
    device = ServedDevice(Decorator())
    device.serve(plan())
    for number in range(1, 36):
        device.mark(number % 10)
        device.decorator.used = 0 if number < 30 else 10
    assert device.state == "serving" and device.steps == 3 and device.last_step == (1000, 1000), device.because


def test_use_is_of_the_steps_that_came():
    """Steps shorter than the longest kind of the plan use less, rightly."""
    device = served(needed=5 * GIB)
    device.decorator.used = 4.5
    for _ in range(3):
        device.mark()
    assert device.state == "serving"


def in_process(reserved_at_end, expandable, monkeypatch):
    """A device whose steps were recorded, at the end of a step with 6 GiB of live memory."""
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    if expandable:
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    device = ServedDevice(Decorator())
    device.decorator.live, device.decorator.reserved, device.reserved_before = 6, reserved_at_end, 11 * GIB
    device.serve(plan())
    return device


def test_start_in_a_process(monkeypatch):
    """Segments that live memory holds count, unless they can be expanded."""
    assert in_process(6.5, False, monkeypatch).state != "failed"
    refused = in_process(7.5, False, monkeypatch)
    assert refused.state == "failed" and refused.decorator.calls == []
    assert "PyTorch would reserve 11.5 GiB with the slab of 10.0 GiB, because 1.50 GiB are free in segments" in refused.because
    assert "not served: PyTorch would reserve" in _text.closing_line(refused.summary())
    assert in_process(7.5, True, monkeypatch).decorator.calls == [("serve", 1 << 20)]


def test_no_memory_for_the_slab():
    device = ServedDevice(Decorator())
    device.serve(plan())
    device.decorator.state, device.decorator.because = "failed", b"CUDA out of memory"
    device.mark()
    assert device.state == "failed" and device.because == "CUDA out of memory"


def test_rounds():
    def marks(wanted, optimizers):
        rounds = Rounds(wanted)
        return next((number for number, each in enumerate(optimizers, 1) if rounds.mark(each)), None)

    rounds = Rounds(3)
    assert [rounds.mark(each) for each in [1, 2] * 9] == [False] * 5 + [True] + [False, True] * 6, "once a round"

    assert marks(3, [1] * 5) == 3
    assert marks(3, [1, 2] * 5) == 6, "two optimizers: each has three steps"
    assert marks(3, [2] + [1] * 9) == 7, "one of them only steps once"


@pytest.mark.parametrize("path, environment, device, expected", [
    ("plan.json", {}, "", "plan.json"), ("a.b/plan", {"RANK": "3", "WORLD_SIZE": "8"}, "", "a.b/plan.rank3"),
    ("plan.json", {"RANK": "3", "WORLD_SIZE": "8"}, "cuda:1", "plan.rank3.cuda-1.json"), ("plan.json", {"RANK": "0", "WORLD_SIZE": "1"}, "", "plan.json"),
    ("of-{rank}.json", {"RANK": "3", "WORLD_SIZE": "8"}, "", "of-3.json"), ("of-{rank}.json", {}, "", "of-0.json")])
def test_files_of_ranks(path, environment, device, expected, monkeypatch):
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _text.of_rank(path, device) == expected


@pytest.mark.parametrize("size, text", [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1536, "1.50 KiB"), (10 << 20, "10.0 MiB"),
                                        (163 << 20, "163 MiB"), (1000 << 20, "0.98 GiB"), (int(14.92 * GIB), "14.9 GiB"), (4000 * GIB, "4000 GiB")])
def test_amounts(size, text):
    assert _text.amount(size) == text
