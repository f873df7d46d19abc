# SPDX-License-Identifier: Apache-2.0
"""The life of one device: its steps are recorded, planned and served, and watched while they are.

    recording -> waiting (for the slab) -> serving -> stopped
"""

import logging
import os
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

import torch

from ... import _abi
from ...errors import Error
from ...step_plan import StepPlan
from ._decorator import OUTCOMES, STATES, Decorator, Loss
from ._text import amount

__all__ = ["LONGEST", "ServedDevice"]

_log = logging.getLogger("bucketpool")

LONGEST = 4       # times the wanted steps that a recording takes where steps differ
TRIAL = 3         # whole steps after which the use of the slab is checked
LEAST_USE = 0.8   # of the slab at its peak
MISSED = 0.03     # of the allocations of each of so many steps: then the steps are planned anew
RENEWALS = 2
SLACK = 1 << 20   # bytes beside the persistent ones when the slab is allocated


class ServedDevice:
    """state: "recording", "waiting", "serving", "stopping" (something still lives in the slab), "stopped", "failed", or
    "unused": nothing was allocated. because: why it stopped, failed or was not started.
    """

    def __init__(self, decorator: Decorator, lead: Optional[int] = None) -> None:
        self.decorator, self._lead = decorator, lead
        self.name = decorator.name
        self.state, self.because = "unused", ""
        self.plan: Optional[StepPlan] = None
        self.saved = ""
        self.is_recorded = False  # True: the plan is of this run
        self.slab_bytes = 0
        self.reserved_before = self.reserved_peak = 0  # bytes; 0: unknown
        self.live_before = 0   # peak live bytes while nothing was served
        self.live_peak = 0     # and since
        self.began_at = 0      # mark at which the first whole step began
        self.steps = 0         # whole steps that were served
        self.renewals = 0      # plans of steps that were recorded while serving
        self._checked_at = TRIAL
        self._missing = 0      # steps in a row that miss allocations
        self._kind_count = self._unchanged = 0
        self._renewing = 0     # steps recorded while serving
        self.marks = 0
        self._live_at_begin = 0
        self._optimizer = 0        # of the last mark
        self._seen: Set[int] = set()   # optimizers since the whole step began
        self._kinds: Set[int] = set()  # that were seen while serving
        self._first = _abi.bp_step_statistics()   # at the beginning of the first whole step, of the last one, and at its end
        self._before, self._last = self._first, self._first
        self._losses: Optional[List[Loss]] = None  # after the end
        self._waits: List[Any] = []

    # ---- recording -------------------------------------------------------------------------------------------------

    def record(self) -> None:
        self._live_at_begin = self.decorator.status().live_bytes
        self.decorator.reset_peak()
        self.decorator.record()
        self.state = "recording"

    def settled(self, is_from_start: bool, wanted: int) -> bool:
        """True: more steps would show no other kinds, as far as can be told: each kind was seen twice, or there were no others
        in the last `wanted` rounds. Called after each round.
        """
        plan = self._planned(is_from_start, work=1)
        if plan is None:
            return True
        kinds = plan._info.kind_count
        self._unchanged = self._unchanged + 1 if kinds == self._kind_count else 0
        self._kind_count = kinds
        return _is_settled(plan) or self._unchanged >= wanted

    def _planned(self, is_from_start: bool, held: Sequence[Tuple[int, int]] = (), work: int = 0) -> Optional[StepPlan]:
        """The plan of what was recorded so far; None if there is none, and then self.because may say why."""
        self.because = ""
        try:
            events, count = self.decorator.events()
            if count <= self.marks:  # nothing but marks
                return None
            return StepPlan._from_array(
                events, count, lead=self._lead, is_from_start=is_from_start, held=held, work=work,
                reserved_before_bytes=self.reserved_before if self.decorator.kind == "cuda" else 0)
        except Error as error:
            self.because = f"the recorded steps cannot be planned: {error}"
            return None

    def end_recording(self, is_from_start: bool) -> bool:
        """True: there is a plan."""
        self._watch_peaks()
        self.reserved_before, self.live_before = self.reserved_peak, self.live_peak
        self.plan = self._planned(is_from_start)
        self.is_recorded = True
        self.decorator.forget()
        if self.plan is None:
            self._end("failed" if self.because else "unused", self.because)
        return self.plan is not None

    # ---- serving ---------------------------------------------------------------------------------------------------

    def serve(self, plan: StepPlan) -> None:
        """Serves from the beginning of a program, or from the end of a step of one that runs."""
        self.plan, self.slab_bytes = plan, plan.bytes
        self.reserved_before = self.reserved_before or plan.reserved_before_bytes
        self.live_before = self.live_before or plan.peak_live_bytes
        try:
            wait = self._bytes_to_wait_for(plan)
            if self.state != "failed":
                self.decorator.serve(plan, wait)
                self.state = "waiting"
                if self.marks:
                    self._watch()  # a whole step begins here if the slab is there
        except Error as error:
            self._end("failed", str(error))

    def _bytes_to_wait_for(self, plan: StepPlan) -> int:
        """Live bytes at which the slab is allocated. Memory that was made between temporaries holds segments that the
        allocator cannot give back, so the slab waits until little else lives.
        """
        if self.decorator.kind == "cpu":  # now, or with a program that begins, behind its first step if that is not planned
            return 0 if self.marks else (1 << 64) - 1
        live = self.decorator.status().live_bytes
        if live == 0:
            return 1  # at the first allocation: no context is created before
        torch.cuda.empty_cache()
        status = self.decorator.status()
        stays = plan.persistent_bytes + plan.outside_bytes + self._live_at_begin
        held = max(0, status.reserved_bytes - status.live_bytes)
        if self.reserved_before and stays + held + plan.bytes > self.reserved_before and not _expandable():
            self._end("failed", f"PyTorch would reserve {amount(stays + held + plan.bytes)} with the slab of "
                                f"{amount(plan.bytes)}, because {amount(held)} are free in segments that live memory holds, and "
                                f"{amount(self.reserved_before)} without it; save the plan for the next run, which then "
                                "serves from its first step, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True")
        return stays + SLACK + stays // 50

    def mark(self, optimizer: int = 0) -> None:
        """An optimizer has ended its step. With several optimizers, a whole step ends where one of them steps again."""
        self.decorator.mark()
        self.marks += 1
        self._optimizer = optimizer
        if self.state == "recording":
            self._watch_peaks()
        elif self.state in ("waiting", "serving"):
            self._watch()

    def _watch_peaks(self) -> None:
        status = self.decorator.status()
        self.reserved_peak = max(self.reserved_peak, status.peak_reserved_bytes)
        self.live_peak = max(self.live_peak, status.peak_live_bytes)

    def _watch(self) -> None:
        status = self.decorator.status()
        if status.state != _SERVING:
            if STATES[status.state] == "failed":
                self._end("failed", status.because.decode(errors="replace"))
            return
        now = self.decorator.statistics()
        if self.state == "waiting":  # the first whole step begins
            self.state, self.began_at = "serving", self.marks
            self._first = self._before = self._last = now
            self.decorator.reset_peak()
            self.reserved_peak = self.live_peak = 0
            self._seen = {self._optimizer}
            return
        self.reserved_peak, self.live_peak = status.peak_reserved_bytes, status.peak_live_bytes
        self._kinds.add(now.kind)
        is_whole = self._optimizer in self._seen
        self._seen = {self._optimizer} if is_whole else self._seen | {self._optimizer}
        is_whole = is_whole and _allocations(now) != _allocations(self._last)  # else it is of another device
        if is_whole:
            self._before, self._last = self._last, now
            self.steps += 1
        if self.decorator.kind == "cuda" and self.reserved_before:
            needed = self.reserved_before + max(0, self.live_peak - self.live_before)
            if self.reserved_peak > needed:
                self.stop(f"PyTorch reserved {amount(self.reserved_peak)} while the plan was served, and would need "
                          f"about {amount(needed)} without it")
                return
        if not is_whole:
            return
        if self.steps == self._checked_at:
            expected = self._expected_use()
            if now.peak_live_bytes < LEAST_USE * expected and self._missed_share(now) > MISSED:
                advice = ("the recorded steps were others; record more of them (--record), or pad to a few lengths"
                          if self.is_recorded else "so that other steps were planned; record a new plan")
                self.stop(f"{TRIAL} steps used {amount(now.peak_live_bytes)} of the {amount(expected)} that the plan "
                          f"has for them, {advice}")
                return
        self._renew()

    def _renew(self) -> None:
        """Steps that differ from the plan for some time are recorded while they are served, and planned anew in the same slab.
        """
        allocations, served = self.last_step
        if self._renewing:
            self._renewing += 1
            if self._renewing > TRIAL:
                self._plan_anew(self._renewing > LONGEST * TRIAL)
            return
        self._missing = self._missing + 1 if served < (1 - MISSED) * allocations else 0
        if self._missing == TRIAL and self.renewals < RENEWALS:
            self.decorator.record()
            self._renewing = 1

    def _plan_anew(self, is_last: bool) -> None:
        """With the steps so far, if each kind of them was seen twice or these are the last ones."""
        found = self._planned(False, work=1)
        if found is not None and not is_last and not _is_settled(found):
            return
        plan = self._planned(False, held=self._stays())
        try:
            if plan is None:
                raise Error(self.because)
            self.decorator.replace(plan)
            self.plan, self.renewals = plan, self.renewals + 1
            self._kinds.clear()
            self._checked_at = self.steps + TRIAL
            _log.info("%s: planned anew after %d steps", self.name, self.steps)
        except Error as error:  # the old plan stays
            self.renewals, self.because = RENEWALS, ""
            _log.info("%s: not planned anew: %s", self.name, error)
        self._renewing = self._missing = 0
        self.decorator.forget()

    def _stays(self) -> List[Tuple[int, int]]:
        """Ranges of the slab that have been live for the whole recording."""
        events, count = self.decorator.events()
        blocks = self.decorator.blocks()
        slab = self.decorator.status().slab
        allocated = {event.address for event in events[:count] if event.action == _abi.BP_STEP_ALLOCATE} if blocks else set()
        return [(block.offset, block.bytes) for block in blocks if slab + block.offset not in allocated]

    def _missed_share(self, now: Any) -> float:
        """The share of allocations since the first whole step that the plan should have served, and did not. Where it is small the steps
        are the planned ones, and only less was live in them.
        """
        counts = {name: now.outcomes[i] - self._first.outcomes[i] for i, name in enumerate(OUTCOMES)}
        missed = sum(counts[name] for name in ("unknown", "misplaced", "busy", "unordered"))
        return float(missed / max(1, missed + counts["served"]))

    def _expected_use(self) -> int:
        """Peak live bytes of the kinds of steps that were seen, without what windows add."""
        assert self.plan is not None
        info = self.plan._info
        bounds = [info.kinds[kind].lower_bound_bytes for kind in self._kinds if kind < info.kind_count]
        most = max(bounds, default=0) or info.bytes
        return int(most * min(1.0, info.bytes_without_windows / info.bytes)) if info.bytes else 0

    # ---- the end ---------------------------------------------------------------------------------------------------

    def stop(self, because: str = "") -> None:
        """Stops serving; the slab goes back when it is empty. because: of the guard, which says so once."""
        if self.state == "recording":
            self.decorator.forget()
            self._end("failed" if because else "stopped", because)
        elif self.state in ("waiting", "serving"):
            self._end("stopped", because)

    def _end(self, state: str, because: str) -> None:
        if self._renewing:
            self._renewing = 0
            self.decorator.forget()
        if self.state in ("waiting", "serving"):
            self._last = self._last if self.steps else self.decorator.statistics()
            self._losses, self._waits = self.decorator.losses(), self.decorator.waits()
            self._watch_peaks()
            self.decorator.stop()
        self.state, self.because = state, because
        if because:
            _log.warning("%s: %s: %s", self.name, "stopped serving" if state == "stopped" else "not served", because)

    # ---- figures ---------------------------------------------------------------------------------------------------

    @property
    def last_step(self) -> Tuple[int, int]:
        """Allocations of the last whole step, and how many of them were served."""
        return _allocations(self._last) - _allocations(self._before), self._last.outcomes[0] - self._before.outcomes[0]

    def summary(self) -> Dict[str, Any]:
        """The report of this device: docs/reference/formats.md."""
        status = self.decorator.status()
        is_served = self.state in ("waiting", "serving")
        last = self.decorator.statistics() if is_served and not self.steps else self._last
        first = self._first if self.steps else _abi.bp_step_statistics()
        counts = {name: last.outcomes[i] - first.outcomes[i] for i, name in enumerate(OUTCOMES)}
        plan = self.plan
        losses = self.decorator.losses() if is_served else self._losses or []
        waits = self.decorator.waits() if is_served else self._waits
        if is_served:
            self._watch_peaks()
        state = "stopping" if self.state == "stopped" and status.slab else self.state
        return {
            "device": self.name, "state": state, "because": self.because, "began_at_mark": self.began_at, "marks": self.marks,
            "slab_bytes": self.slab_bytes or (plan.bytes if plan else 0), "lower_bound_bytes": plan.lower_bound_bytes if plan else 0,
            "optimal": plan.optimal if plan else False, "kinds": len(plan.kinds) if plan else 0,
            "peak_live_bytes": self.live_peak, "steps": self.steps, "renewals": self.renewals,
            "allocations": sum(counts.values()), **counts,
            "peak_used_bytes": last.peak_live_bytes, "anywhere": last.anywhere - first.anywhere,
            "resyncs": last.resyncs - first.resyncs, "kind_changes": last.kind_changes - first.kind_changes,
            "last_step": dict(zip(("allocations", "served"), self.last_step)),
            "waits": last.waits - first.waits,
            "waits_by_streams": [{"waiting": to, "before": of, "waits": count} for to, of, count in waits],
            "reserved_peak_bytes": self.reserved_peak, "reserved_peak_before_bytes": self.reserved_before,
            "losses": [{"outcome": loss.outcome, "bytes": loss.bytes, "stream": loss.stream, "count": loss.times,
                        "mark": loss.mark, "place": plan._place(loss.kind, loss.item)
                        if plan and loss.outcome in ("busy", "outside") else ""} for loss in losses],
            "plan": self.saved,
        }


def _is_settled(plan: StepPlan) -> bool:
    """True: each kind of step was seen twice, the first step of the program aside."""
    info = plan._info
    return all(kind.is_first or kind.steps > 1 for kind in info.kinds[:info.kind_count])


_SERVING = STATES.index("serving")


def _allocations(statistics: _abi.bp_step_statistics) -> int:
    return int(sum(statistics.outcomes))


def _expandable() -> bool:
    settings = os.environ.get("PYTORCH_ALLOC_CONF", "") + "," + os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return "expandable_segments:true" in settings.lower().replace(" ", "")
