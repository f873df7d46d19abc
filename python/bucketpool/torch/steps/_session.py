# SPDX-License-Identifier: Apache-2.0
"""Served steps of a process: the marks of its optimizers, and the devices that follow them."""

import atexit
import functools
import gc
import json
import logging
import os
import threading
from types import TracebackType
from typing import Any, Dict, List, Optional, Tuple, Type, Union

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ...errors import Error, FileError, InvalidArgument, ScheduleError
from ...names import Path, shown, whole
from ...step_plan import StepPlan
from ._decorator import Decorator, decorators_of
from ._device import LONGEST, ServedDevice
from ._text import closing_line, of_rank, report_text

__all__ = ["Served", "install", "mark", "serve", "write_report"]

_log = logging.getLogger("bucketpool")
_current: Optional["Served"] = None


class Rounds:
    """Counts steps of a program with one or several optimizers, which end a step each in a round. Recordings of steps that
    differ take up to LONGEST times the wanted ones.
    """

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self._steps: Dict[int, int] = {}
        self._over = 0

    def mark(self, optimizer: int) -> bool:
        """True: a round is over, and so are the wanted ones. An optimizer that no longer steps is waited for as long again."""
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        late = max(self._steps.values()) - (2 * self.wanted - 1)
        over = min(steps for steps in self._steps.values() if steps > late)
        before, self._over = self._over, max(over, self._over)
        return self._over > before and over >= self.wanted

    @property
    def are_enough(self) -> bool:
        """True: no more are recorded."""
        return max(self._steps.values()) >= LONGEST * self.wanted


class Served:
    """The steps of this process, served from a plan, or recorded, planned and then served. serve() makes it.

    - state: "recording", "waiting" (for the slab), "serving", "stopped", "failed" or "unused", of its first device
    - plans: by the name of the device
    """

    def __init__(self, devices: List[ServedDevice], record: int, save: Optional[str], report: Optional[str]) -> None:
        self._devices, self._save, self._report = devices, save, report
        self._rounds = Rounds(record)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._is_recording = self._is_from_start = self._over = False

    # ---- what a program calls --------------------------------------------------------------------------------------

    @property
    def state(self) -> str:
        return self._main.state

    @property
    def on_cuda(self) -> bool:
        """True: the device is a GPU."""
        return self._main.decorator.kind == "cuda"

    @property
    def plans(self) -> Dict[str, StepPlan]:
        return {device.name: device.plan for device in self._devices if device.plan is not None}

    @property
    def last_step(self) -> Tuple[int, int]:
        """Allocations of the last whole step, and how many of them were served."""
        return self._main.last_step

    def mark(self) -> None:
        """The step of an optimizer that is not PyTorch's has ended."""
        self._mark(0)

    def summary(self) -> Dict[str, Any]:
        """The report as plain data, described in docs/reference/formats.md."""
        with self._lock:
            devices = [self._main, *(each for each in self._devices if each is not self._main and each.state != "unused")]
            first, *others = [device.summary() for device in devices]
        return {"format": "bucketpool.served/1", **first, "other_devices": others}

    def report(self) -> str:
        """The report as text. Its first line is closing_line()."""
        summary = self.summary()
        return "\n".join(report_text(each) for each in (summary, *summary["other_devices"]))

    def closing_line(self) -> str:
        """The gain of serving, in one line."""
        summary = self.summary()
        return "; ".join(closing_line(each) for each in (summary, *summary["other_devices"]))

    def check(self) -> None:
        """Verifies that the live memory of the slabs is disjoint, and the counters its own. Raises Mismatch."""
        for device in self._devices:
            device.decorator.check()

    def stop(self) -> None:
        """Stops serving, and writes the plan and the report where they were asked for. Memory of a slab stays valid; the
        slab goes back when it is empty. May be repeated. Raises FileError.
        """
        global _current
        if self._over or os.getpid() != self._process:
            return
        with self._lock:
            self._over = True
            if _current is self:
                _current = None
            atexit.unregister(self._stop_quietly)
            try:
                if self._is_recording and self._save is not None and self._main.marks:
                    self._end_recording()
            finally:
                for device in self._devices:
                    device.stop()
                if self._report is not None:
                    write_report(self._report, self.summary())

    def __enter__(self) -> "Served":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        if kind is None:
            self.stop()
        else:  # the program's exception is the one that it gets
            self._stop_quietly()

    # ---- its life --------------------------------------------------------------------------------------------------

    @property
    def _main(self) -> ServedDevice:
        """The device with the most allocations; the first one before there are any."""
        return max(self._devices, key=lambda device: (device.state != "unused", device.plan.peak_live_bytes
                                                      if device.plan else 0))

    def _begin(self, plan: Optional[StepPlan]) -> None:
        global _current
        if plan is None:
            self._is_recording, self._is_from_start = True, not _have_stepped()
            for device in self._devices:
                device.record()
        else:
            for device in self._devices:
                device.serve(plan)
        _follow_optimizers()
        atexit.register(self._stop_quietly)
        _current = self

    def _mark(self, optimizer: int) -> None:
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._over:
                return
            try:
                for device in self._devices:
                    device.mark(optimizer)
                if self._is_recording and self._rounds.mark(optimizer):
                    settled = [device.settled(self._is_from_start, self._rounds.wanted) for device in self._devices]
                    if all(settled) or self._rounds.are_enough:
                        for device in self._end_recording():
                            assert device.plan is not None
                            device.serve(device.plan)
            except Exception as error:  # training continues
                for device in self._devices:
                    device.stop(f"{type(error).__name__}: {error}")

    def _end_recording(self) -> List[ServedDevice]:
        """Returns the devices that have plans, which are saved."""
        self._is_recording = False
        planned = [device for device in self._devices if device.end_recording(self._is_from_start)]
        for device in planned if self._save is not None else ():
            assert device.plan is not None and self._save is not None
            path = of_rank(self._save, "" if device is self._main else device.name)
            try:
                device.plan.write(path)
                device.saved = path
            except Error as error:
                _log.warning("%s: the plan is not saved: %s", device.name, error)
        return planned

    def _stop_quietly(self) -> None:
        try:
            self.stop()
        except Error as error:
            _log.warning("%s", error)


# ---- the module's functions ------------------------------------------------------------------------------------------


def install(device: Optional[str] = None) -> None:
    """Puts the decorator in front of PyTorch's allocator, which passes everything on until serve(). Call it first in a
    program: storages that were made before stay with PyTorch, also when they are resized.

    device: "cuda", "cpu", or None: "cuda" where there is a GPU. Raises Unsupported (no compiler, a PyTorch that is not
    known, another allocator than PyTorch's native one).
    """
    decorators_of(_device(device))


def serve(plan: Union[StepPlan, Path, None] = None, *, record: int = 3, device: Optional[str] = None,
          save: Optional[Path] = None, report: Optional[Path] = None, lead: Optional[int] = None) -> Served:
    """Serves the training steps of this process: its memory gets the addresses of a plan.

    - plan: a StepPlan or its file, which serves from now on; None: the next steps are recorded, planned, and then
      served
    - record: so many steps are recorded; the first one makes the optimizer's state
    - device: "cuda", "cuda:1" or "cpu"; None: "cuda" where there is a GPU. A plan serves the GPU of LOCAL_RANK, or the
      first one; recordings are of all GPUs that the process uses
    - save: file for the recorded plan; report: file for the report, which stop() writes. Ranks have separate files:
      plan.rank3.json, or "{rank}" in the name
    - lead: as in StepPlan.from_events()

    Steps end with the step() of an optimizer of PyTorch, or with mark(). A wrong plan serves less, and changes no
    results. Raises Unsupported, ScheduleError (steps are served already), FileError, FormatError, InvalidArgument.
    """
    if _current is not None:
        raise ScheduleError("serve: steps of this process are served already; call stop() of the other one first")
    if whole(record, 16, "record") < 2:
        raise InvalidArgument(f"record: {record}; pass 2 or more steps, because the first one is a separate kind")
    if lead is not None:
        whole(lead, 31, "lead")
    if plan is not None and not isinstance(plan, StepPlan):
        plan = StepPlan.read(plan_file(os.fspath(plan)))
    if save is not None and plan is not None:
        raise InvalidArgument("save: a plan was given, so nothing is recorded; leave one of them out")
    decorators = decorators_of(_device(device))
    if plan is not None and len(decorators) > 1:
        decorators = [decorators[_main_gpu(len(decorators))]]
    served = Served([ServedDevice(each, lead) for each in decorators], record, None if save is None else os.fspath(save),
                    None if report is None else of_rank(os.fspath(report)))
    served._begin(plan)
    return served


def mark() -> None:
    """The step of an optimizer that is not PyTorch's has ended. Does nothing while no steps are served."""
    if _current is not None:
        _current.mark()


def plan_file(path: str) -> str:
    """The file of this rank, or the one for all ranks."""
    own = of_rank(path)
    return path if not os.path.exists(own) and os.path.exists(path) else own


def _device(device: Optional[str]) -> str:
    if device is None:
        return "cuda" if torch.cuda.device_count() else "cpu"
    if not isinstance(device, str) or device.partition(":")[0] not in ("cuda", "cpu"):
        raise InvalidArgument(f"device: {shown(device)}; pass 'cuda', 'cuda:1' or 'cpu'")
    return device


def _main_gpu(count: int) -> int:
    cuda: Any = torch.cuda
    if cuda.is_initialized():
        return int(cuda.current_device())
    rank = os.environ.get("LOCAL_RANK", "")
    return int(rank) if rank.isdecimal() and int(rank) < count else 0


@functools.lru_cache(maxsize=None)
def _follow_optimizers() -> None:
    """Once: PyTorch does not let a hook remove one."""
    untraced: Any = torch
    register_optimizer_step_post_hook(untraced._disable_dynamo(_stepped))


def _stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
    if _current is not None:
        _current._mark(id(optimizer))


def _have_stepped() -> bool:
    """True: an optimizer has state, which the first step of a program makes."""
    return any(getattr(each, "state", None) for each in gc.get_objects() if issubclass(type(each), torch.optim.Optimizer))


def write_report(path: str, summary: Dict[str, Any]) -> None:
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(summary, file, indent=1)
            file.write("\n")
        os.replace(temporary, path)
    except OSError as error:
        raise FileError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)
