# SPDX-License-Identifier: Apache-2.0
"""Outcomes of other projects' tests, and deviations that are known."""

import os
import signal
import subprocess
from typing import Dict, List, NamedTuple


class Result(NamedTuple):
    """Of a test. uses: calls of our functions, or buffers from our pools."""

    outcome: str  # passed, failed or skipped
    uses: int
    said: str


class Kind(NamedTuple):
    """Of deviations: a line of the guide's table. because: ours differs because."""

    name: str
    because: str


class Deviation(NamedTuple):
    """Tests of `peer` fail with ours: those whose names match the regular expression `tests`, all of which must fail,
    or, where it is empty, those whose failure matches `said`.
    """

    peer: str
    kind: Kind
    tests: str = ""
    said: str = ""


def pytest_output(command: List[str], folder: str, env: Dict[str, str], most_seconds: int) -> str:
    """Output of pytest, which is ended with the processes of its tests after `most_seconds`, and with this process."""
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                               text=True, errors="replace", start_new_session=True)
    try:
        return process.communicate(timeout=most_seconds)[0]
    except subprocess.TimeoutExpired:
        _end(process)
        return f"{process.communicate()[0]}\nthe tests take more than {most_seconds} s"
    except BaseException:
        _end(process)
        raise


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends pytest, which ends the groups of processes that it has started, and then the rest of its session."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
