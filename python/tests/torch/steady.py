"""pytest's plugin for a run without a terminal: failures as they happen, and a line every half minute in place of a dot for each test."""

import os
import threading
import time

PAUSE = float(os.environ.get("BUCKETPOOL_TEST_PAUSE", "30"))
begun = time.monotonic()
counts = {"all": 0, "done": 0, "failed": 0}


def say(text):
    os.write(counts["out"], (text + "\n").encode())


def tick():
    while True:
        time.sleep(PAUSE)
        say(f"torch: {counts['done']} of {counts['all']} tests, {counts['failed']} failed, {time.monotonic() - begun:.0f} s")


def pytest_sessionstart(session):
    counts["out"] = os.dup(1)  # while a test runs, 1 is a file of pytest


def pytest_collection_finish(session):
    counts["all"] = len(session.items)
    say(f"torch: {counts['all']} tests")
    threading.Thread(target=tick, daemon=True).start()


def pytest_runtest_logfinish(nodeid, location):
    counts["done"] += 1


def pytest_report_teststatus(report):
    if report.failed:
        counts["failed"] += 1
        say(f"  failed: {report.nodeid}")
        return "error" if report.when != "call" else "failed", "", "FAILED"
    if report.skipped:
        return "skipped", "", "SKIPPED"
    return ("passed" if report.when == "call" else ""), "", ""
