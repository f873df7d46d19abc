# SPDX-License-Identifier: Apache-2.0
"""Parts of a GPU run: each is recorded before and after it runs, gets a share of the run's time, and cannot end the run."""

import ctypes
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import time
import traceback
import typing

PREPARATIONS = ("build", "PyTorch", "predictions")  # parts that others need
RESERVE_SECONDS = 4  # of the budget: to end a part and write
MIN_SECONDS = 3  # a part that would get less is not started


class Stopped(Exception):
    """The run was told to end (SIGTERM, SIGINT, SIGHUP)."""


@dataclasses.dataclass
class Part:
    """`function` is given the running part (a Running) and returns an outcome, or an outcome and its reason."""

    name: str
    seconds: float  # at most
    function: typing.Callable


class Running:
    """A part while it runs: starts commands for it, and keeps its entry of the document up to date."""

    def __init__(self, run, part):
        self.run, self.entry, self.output = run, {"name": part.name, "outcome": "running", "seconds": 0.0}, ""
        self.begin = time.monotonic()
        self.deadline = self.begin + min(part.seconds * run.patience, run.left())

    def left(self):
        return self.deadline - time.monotonic()

    def command(self, arguments, env=None, seconds=None, document=None):
        """Runs a command in a separate process group, within the part's time. Returns its exit status (124: cut, negative: a signal) and
        output. `document`: the file in which the command keeps figures, checks and skips; they are copied whenever it changes."""
        path = os.path.join(self.run.folder, "output.txt")
        if document is not None and os.path.exists(document):
            os.remove(document)
        with open(path, "wb") as sink:
            try:
                process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT, env=env,
                                           start_new_session=True, preexec_fn=die_with_parent)
            except OSError as error:
                return 127, str(error)
        seconds = min(self.left(), seconds or self.left())
        try:
            code = self._wait(process, time.monotonic() + max(seconds, 0.1), document)
        finally:
            interruptible, self.run.interruptible = self.run.interruptible, False
            end_group(process)
            if document is not None:
                self._copy(document)
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read()
            self.output += f"$ {' '.join(map(str, arguments))}\n{text}"
            self.run.interruptible = interruptible
        if self.run.stopped:  # a signal came while the group was ended
            raise Stopped
        return code, text

    def _wait(self, process, deadline, document):
        sampled = time.monotonic()
        while time.monotonic() < deadline:
            try:
                return process.wait(timeout=0.1)
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() - sampled >= 0.5:
                sampled = time.monotonic()
                self.run.telemetry.sample()
                if document is not None:
                    self._copy(document)
        return 124

    def _copy(self, document):
        """Figures, checks and skips of the command's document, and the rest of it as `about`, where it has changed."""
        try:
            with open(document, encoding="utf-8") as file:
                read = json.load(file)
        except (OSError, ValueError):
            return
        new = {key: read.pop(key) for key in ("figures", "checks", "skipped") if read.get(key)}
        new["about"] = {key: value for key, value in read.items() if value not in ([], None)}
        if any(self.entry.get(key) != value for key, value in new.items()):
            self.entry.update(new)
            self.run.results.write()


class Run:
    """Executes parts in order until the budget is used up. `folder`: for files of the parts; `patience`: times the seconds of a part that it may
    take."""

    def __init__(self, results, telemetry, folder, seconds, patience=1):
        self.patience = patience
        self.results, self.telemetry, self.folder = results, telemetry, folder
        self.begin = time.monotonic()
        self.deadline = self.begin + seconds - RESERVE_SECONDS
        self.stopped, self.interruptible = None, False
        shutil.rmtree(folder, ignore_errors=True)  # documents of another run
        os.makedirs(folder)

    def left(self):
        return self.deadline - time.monotonic()

    def execute(self, parts):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        for part in self._protected(parts):
            if self.stopped:
                self._record(Running(self, part), "not run", self.stopped)
            elif self.left() < MIN_SECONDS:
                self._record(Running(self, part), "not run", "the time of the run was used up")
            else:
                self._one(part)
        self.results.document["finished"] = self.results.count("not run") + self.results.count("cut") == 0
        self.results.write()

    def _protected(self, parts):
        """The next parts are determined between parts: a failure there becomes a failed part that ends the run."""
        try:
            yield from parts
        except Exception:
            reason = traceback.format_exc()
            yield Part("the rest of the run", 10, lambda running: ("failed", "the runner: " + reason.strip().splitlines()[-1]))

    def _stop(self, number, _frame):
        self.stopped = self.stopped or f"the run was ended by {signal.Signals(number).name}"
        if self.interruptible:
            self.interruptible = False
            raise Stopped

    def _one(self, part):
        running = Running(self, part)
        self.results.document["parts"].append(running.entry)
        self.results.write()
        self.telemetry.begin()
        try:
            self.interruptible = True
            answer = part.function(running)
            self.interruptible = False
            outcome, reason = answer if isinstance(answer, tuple) else (answer, "")
        except Stopped:
            outcome, reason = "cut", self.stopped
        except Exception:  # a defect of ours must not cost the other parts
            running.output += traceback.format_exc()
            outcome, reason = "failed", "the runner: " + traceback.format_exc().strip().splitlines()[-1]
        self.interruptible = False
        self._record(running, outcome, reason)

    def _record(self, running, outcome, reason):
        entry, parts = running.entry, self.results.document["parts"]
        if not parts or parts[-1] is not entry:
            parts.append(entry)
        seconds = time.monotonic() - running.begin
        entry.update(outcome=outcome, seconds=round(seconds, 2), **({"reason": reason[:500]} if reason else {}))
        if outcome not in ("not run", "skipped"):
            readings = self.telemetry.end()
            entry.update({"gpu": readings} if readings else {})
        self.results.document["seconds"] = round(time.monotonic() - self.begin, 1)
        self.results.append_log(f"{entry['name']}: {outcome}, {seconds:.1f} s", running.output)
        self.results.write()
        print(f"  {outcome:8} {entry['name']}  {seconds:.1f} s{'  ' + reason[:150] if reason else ''}", flush=True)


def die_with_parent():
    """In a child: killed when the runner is (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end_group(process):
    """Ends a command and everything that it has started."""
    for number, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 3)):
        try:
            os.killpg(process.pid, number)
            process.wait(timeout=seconds)
        except (ProcessLookupError, PermissionError):
            break
        except subprocess.TimeoutExpired:
            continue
    process.poll()


# ---- the usual parts -----------------------------------------------------------------------------------------------------


def last_line(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def outcome_of(code, text):
    """Of a program that exits 0, 77 (skipped, the reason is its last line) or otherwise."""
    if code == 0:
        return "passed", ""
    if code == 77:
        return "skipped", last_line(text)
    if code == 124:
        return "cut", "the part's time was used up"
    return "failed", f"{'signal ' + str(-code) if code < 0 else 'exit ' + str(code)}: {last_line(text)}"


def program(name, seconds, arguments, env=None, with_document=False, find=None):
    """A part that is one command. `with_document`: it takes --json FILE. `find`: from the exit status and the output to further members
    of the entry."""

    def function(running):
        document = document_path(running.run.folder, name) if with_document else None
        code, text = running.command([*arguments, *(["--json", document] if document else [])], env, document=document)
        running.entry.update(find(text) if find else {})
        outcome, reason = outcome_of(code, text)
        return ("differs" if outcome == "passed" and "differs" in running.entry.get("rules", {}).values() else outcome), reason

    return Part(name, seconds, function)


def document_path(folder, name):
    """The file in which the command of a part keeps figures, checks and skips."""
    return os.path.join(folder, re.sub(r"\W+", "-", name) + ".json")


def absent(name, reason):
    """A part that cannot run here."""
    return Part(name, 1, lambda running: ("skipped", reason))
