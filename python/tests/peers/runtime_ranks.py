# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: runs each test in processes that only this test has, plain and then with pools attached.

This process imports and collects. A test forks the ranks, which are pytest's fixtures, test and teardown with RANK and
WORLD_SIZE set, as of torchrun. Where all ranks pass plain, they run once more with pools. What remains of a test is
killed with its process group. The file BUCKETPOOL_PEER_RESULTS gets a line of JSON for each test:

    {"test": "FILE::NAME", "plain": OUTCOME, "said": "...", "pooled": OUTCOME, "pooled_said": "...", "served": N,
     "refused": ["..."], "crashes": N, "pooled_crashes": N, "seconds": S}

Outcomes are passed, failed and skipped; "pooled" is absent where plain did not pass. A run that a signal ends, as
happens with threads that make DTensors, plain and with pools alike, is counted and repeated; the third one fails."""

import contextlib
import faulthandler
import gc
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import pytest
from _pytest.runner import runtestprotocol

MAX_SECONDS = int(os.environ.get("BUCKETPOOL_PEER_SECONDS", "240"))  # of the ranks of a test
GRACE_SECONDS = 10  # of the other ranks, after one has failed
MAX_SAID = 400  # characters


class Run(NamedTuple):
    outcome: str
    said: str
    served: int
    refused: List[str]


def pytest_configure(config: Any) -> None:
    import runtime_cpu
    runtime_cpu.prepare(os.environ["BUCKETPOOL_PEER"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("pytest was ended"))  # and ends its ranks


def pytest_collection_finish(session: Any) -> None:
    import runtime_pools
    runtime_pools.load(os.environ["BUCKETPOOL_PEER"])
    gc.collect()
    gc.freeze()  # ranks collect garbage often, and each would copy what all share


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: Any, nextitem: Any) -> bool:
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    begin = time.monotonic()
    late = time.time() > float(os.environ["BUCKETPOOL_PEER_UNTIL"])
    plain, crashes = repeated(item, pooled=False) if not late else (Run("passed", "", 0, []), 0)
    result = {"test": item.nodeid, "plain": plain.outcome, "said": plain.said, "crashes": crashes}
    if plain.outcome == "passed":
        late_run = Run("failed", "no time was left to run it", 0, [])
        pooled, crashes = repeated(item, pooled=True) if not late else (late_run, 0)
        result.update(pooled=pooled.outcome, pooled_said=pooled.said, served=pooled.served, refused=pooled.refused,
                      pooled_crashes=crashes)
    result["seconds"] = round(time.monotonic() - begin, 2)
    with open(os.environ["BUCKETPOOL_PEER_RESULTS"], "a", encoding="utf-8") as file:
        print(json.dumps(result), file=file)
    outcome = result.get("pooled", plain.outcome)
    report = pytest.TestReport(item.nodeid, item.location, {}, outcome, None if outcome != "failed" else
                               f"plain: {plain.outcome} {plain.said}\npooled: {result.get('pooled_said')}", "call")
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def repeated(item: Any, pooled: bool) -> Tuple[Run, int]:
    """The first run that no signal ends, of three, and the number of crashes before it."""
    for crashes in range(3):
        result = run(item, pooled)
        if "ended with signal" not in result.said:
            break
    return result, crashes


def run(item: Any, pooled: bool) -> Run:
    """The test on all ranks: failed if one failed, skipped if one was skipped."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: os.path.join(folder, name) for name in ("served", "refused")}
        for path in files.values():
            open(path, "w", encoding="utf-8").close()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_port()), BUCKETPOOL_PEER_SERVED=files["served"],
                          BUCKETPOOL_PEER_REFUSED=files["refused"])
        group: List[int] = []
        for rank in range(int(os.environ["WORLD_SIZE"])):
            process = os.fork()
            if process == 0:
                _rank(item, rank, group[0] if group else 0, pooled, folder)
            with contextlib.suppress(OSError):  # the rank does so too, whoever is first
                os.setpgid(process, group[0] if group else process)
            group.append(process)
        ended = _wait(group, folder)
        results = [_result(folder, rank, ended.get(rank)) for rank in range(len(group))]
        with open(files["refused"], encoding="utf-8") as file:
            refused = sorted(set(file.read().splitlines()))
        served = os.path.getsize(files["served"])
    for outcome in ("failed", "skipped"):
        said = [each["said"] for each in results if each["outcome"] == outcome]
        if said:
            return Run(outcome, min(said, key=_distance), served, refused)
    return Run("passed", "", served, refused)


def _port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port


def _wait(group: List[int], folder: str) -> Dict[int, str]:
    """Waits for the ranks, and kills what is left. Returns how ranks ended by themselves."""
    until = time.monotonic() + MAX_SECONDS
    ended: Dict[int, str] = {}
    try:
        while len(ended) < len(group) and time.monotonic() < until:
            for rank, process in enumerate(group):
                if rank in ended:
                    continue
                state = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if state:
                    ended[rank] = f"status {state.si_status}" if state.si_code == os.CLD_EXITED else \
                        f"signal {state.si_status}"
                    if _result(folder, rank, ended[rank])["outcome"] == "failed":
                        until = min(until, time.monotonic() + GRACE_SECONDS)
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group[0], signal.SIGKILL)  # its first process is not reaped yet, so the number is not reused
        for process in group:
            os.waitpid(process, 0)
    return ended


def _result(folder: str, rank: int, ended: Optional[str]) -> Dict[str, str]:
    path = os.path.join(folder, f"{rank}.json")
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            found: Dict[str, str] = json.load(file)
        return found
    with open(os.path.join(folder, f"{rank}.txt"), errors="replace", encoding="utf-8") as file:
        last = (file.read().strip().splitlines() or [""])[-1][-MAX_SAID:]
    why = f"ended with {ended}" if ended else f"did not end in {MAX_SECONDS} s, or after another rank's failure"
    return {"outcome": "failed", "said": f"rank {rank} {why}: {last}"}


def _rank(item: Any, rank: int, group: int, pooled: bool, folder: str) -> None:
    """The whole life of the process of a rank."""
    try:
        os.setpgid(0, group)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        output = os.open(os.path.join(folder, f"{rank}.txt"), os.O_WRONLY | os.O_CREAT)
        for handle in (1, 2):
            os.dup2(output, handle)
        faulthandler.enable(output)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        import runtime_cpu
        import runtime_pools
        runtime_cpu.begin(rank)
        if pooled:
            runtime_pools.attach(os.environ["BUCKETPOOL_PEER"])
        result = _outcome(runtestprotocol(item, nextitem=None, log=False))
        path = os.path.join(folder, f"{rank}.json")
        with open(path + ".part", "w", encoding="utf-8") as file:
            json.dump(result, file)
        os.rename(path + ".part", path)
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        os._exit(0)  # no teardown of threads of gloo


def _outcome(reports: List[Any]) -> Dict[str, str]:
    for report in reports:
        if report.outcome != "passed":
            said: Optional[str] = getattr(getattr(report.longrepr, "reprcrash", None), "message", None)
            if said is None:
                said = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
            if report.outcome == "failed" and "BUCKETPOOL_PEER_TRACES" in os.environ:
                with open(os.environ["BUCKETPOOL_PEER_TRACES"], "a", encoding="utf-8") as file:
                    print(report.nodeid, report.when, report.longreprtext, sep="\n", file=file)
            return {"outcome": report.outcome, "said": f"{report.when}: {_cause(said)}"[:MAX_SAID]}
    return {"outcome": "passed", "said": ""}


def _cause(said: str) -> str:
    """The error that a message quotes from a process that the test has started, rather than of the others, which lose
    their connections.
    """
    quoted = re.findall(r"^(?:\w+\.)*\w*(?:Error|Exception)\b.*(?:\n(?! |\n|To execute).*)?", said, re.MULTILINE)[1:]
    return min(quoted, key=_distance) if quoted else said


def _distance(said: str) -> int:
    """From the cause of a failure: a rank also fails because another one has ended, or waits for it."""
    words = ("ended with", "gloo", "did not end")
    return next((1 + distance for distance, word in enumerate(words) if word in said), 0)
