# SPDX-License-Identifier: Apache-2.0
"""Functions in forked processes, several at a time, and searches that wait for them.

Recordings take a core each, and a process can make one at a time. Forks need nothing of the functions but that they return
what pickle knows.
"""

import os
import pickle
import select
import sys
import traceback
from typing import Any, Callable, Dict, Generator, List, Optional, Sequence

from ...errors import Error, InternalError, Unsupported

__all__ = ["Job", "Jobs", "Search"]

Search = Generator[List["Job"], None, Any]  # yields what it waits for


class Job:
    """A function that runs in a separate process; result() after it has ended."""

    def __init__(self, what: str, function: Callable[[], Any]) -> None:
        self.what, self._function = what, function
        self.process = self._pipe = 0
        self._received: List[bytes] = []
        self._result: Any = None
        self.ended = False

    def start(self) -> int:
        """Forks. Returns the descriptor that becomes readable."""
        self._pipe, writes = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            status = 1
            try:
                os.close(self._pipe)
                with os.fdopen(writes, "wb") as file:
                    file.write(pickle.dumps(_called(self._function), protocol=4))
                status = 0
            finally:
                os._exit(status)
        os.close(writes)
        return self._pipe

    def run(self) -> None:
        """In this process."""
        self._result, self.ended = _called(self._function), True

    def receive(self) -> bool:
        """Reads what is there; True at the end."""
        part = os.read(self._pipe, 1 << 20)
        if part:
            self._received.append(part)
            return False
        os.close(self._pipe)
        _, status = os.waitpid(self.process, 0)
        self.process, self.ended = 0, True
        try:
            self._result = pickle.loads(b"".join(self._received))
        except (pickle.UnpicklingError, EOFError):
            reason = (f"signal {-os.waitstatus_to_exitcode(status)}: out of memory of the host, perhaps"
                      if os.WIFSIGNALED(status) else f"exit status {os.waitstatus_to_exitcode(status)}")
            self._result = InternalError(f"{self.what}: its process ended without a result ({reason})")
        self._received = []
        return True

    def stop(self) -> None:
        if self.process:
            os.kill(self.process, 9)
            os.close(self._pipe)
            os.waitpid(self.process, 0)
            self.process = 0

    def result(self) -> Any:
        """Of the function; raises what it raised."""
        if isinstance(self._result, BaseException):
            raise self._result
        return self._result


def _called(function: Callable[[], Any]) -> Any:
    """Its result, or an error that a process can send."""
    try:
        return function()
    except Error as error:
        return error
    except Exception as error:  # the program's own: its traceback is known here alone
        traceback.print_exc()
        return Unsupported(f"{type(error).__name__}: {error}")


def _can_fork() -> bool:
    """False: PyTorch has begun threads of autograd in this process, and refuses backward in its forks."""
    import torch
    process = os.fork()
    if process == 0:
        status = 1
        try:
            loss: Any = torch.ones(1, requires_grad=True).sum()
            loss.backward()
            status = 0
        except RuntimeError:
            pass
        finally:
            os._exit(status)
    return os.waitpid(process, 0)[1] == 0


class Jobs:
    """At most `limit` processes; where PyTorch cannot be forked, jobs run one after the other in this process.
    progress(what, done, total) is called when a job begins.
    """

    def __init__(self, limit: int, progress: Optional[Callable[[str, int, int], None]] = None) -> None:
        self._limit, self._progress = max(1, limit), progress
        self._waiting: List[Job] = []
        self._running: Dict[int, Job] = {}
        self._done, self._forks = 0, _can_fork()

    def submit(self, what: str, function: Callable[[], Any]) -> Job:
        job = Job(what, function)
        self._waiting.append(job)
        return job

    def run(self, searches: Sequence[Search]) -> List[Any]:
        """Runs searches side by side to their ends. Returns their results; raises the first error."""
        wanted: Dict[int, List[Job]] = {}
        results: List[Any] = [None] * len(searches)
        try:
            for number, search in enumerate(searches):
                self._advance(number, search, wanted, results)
            while wanted:
                self._step()
                for number in [each for each, jobs in wanted.items() if all(job.ended for job in jobs)]:
                    del wanted[number]
                    self._advance(number, searches[number], wanted, results)
            return results
        finally:
            for job in self._running.values():
                job.stop()
            self._running, self._waiting = {}, []

    @staticmethod
    def _advance(number: int, search: Search, wanted: Dict[int, List[Job]], results: List[Any]) -> None:
        """Until it waits, or ends."""
        try:
            jobs = next(search)
            while all(job.ended for job in jobs):
                jobs = next(search)
            wanted[number] = jobs
        except StopIteration as end:
            results[number] = end.value

    def _step(self) -> None:
        while self._waiting and len(self._running) < self._limit:
            job = self._waiting.pop(0)
            if self._progress is not None:
                self._progress(job.what, self._done, self._done + len(self._running) + len(self._waiting) + 1)
            if not self._forks:
                job.run()
                self._done += 1
                return
            self._running[job.start()] = job
        ready, _, _ = select.select(list(self._running), [], [])
        for each in ready:
            if self._running[each].receive():
                del self._running[each]
                self._done += 1
