# SPDX-License-Identifier: Apache-2.0
"""Commands whose output goes to logs, and their progress: on a terminal one line that moves, elsewhere a line every half minute."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time

BUILDS = os.path.join(os.getcwd(), "build-check")
TIMES = os.path.join(BUILDS, "times.json")  # seconds of the last runs on this machine, by their names
COUNT = re.compile(r"^(?:\[ *(\d+)/(\d+)\]|\s*(\d+)/(\d+) )", re.MULTILINE)  # of ninja and of meson test
PAUSE = 30  # seconds between two lines, except on a terminal
lane = threading.local()  # `cpu`: seconds of processors that the commands of this thread have used
lock = threading.RLock()
running = []  # title, log, its size when the command began, when that was
begun = time.monotonic()
state = {"moving": False, "about": 0, "more": lambda: "", "ticks": False}


def say(*words, sep=" "):
    """Prints a line at once, in place of the one that moves."""
    with lock:
        if state["moving"]:
            sys.stdout.write("\r\x1b[K")
            state["moving"] = False
        print(*words, sep=sep, flush=True)


def minutes(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def announce(name, first, more=lambda: ""):
    """Says how long a run takes: as long as the last one here, else `first`. `more`: what its lines of progress end with."""
    try:
        with open(TIMES, encoding="utf-8") as file:
            state["about"] = float(json.load(file)[name])
    except (OSError, ValueError, KeyError, TypeError):
        state["about"] = 0
    state["more"] = more
    return f"the last run here took {minutes(state['about'])}" if state["about"] else first


def record(name):
    """Keeps the time since the beginning for the next run's announcement."""
    try:
        with open(TIMES, encoding="utf-8") as file:
            times = dict(json.load(file))
    except (OSError, ValueError, TypeError):
        times = {}
    with open(TIMES, "w", encoding="utf-8") as file:
        json.dump({**times, name: round(time.monotonic() - begun)}, file)


def last_count(log, offset):
    """The last [12/640] behind an offset of a log, as two numbers; nothing where there is none."""
    try:
        with open(log, "rb") as file:
            file.seek(max(offset, os.path.getsize(log) - 65536))
            found = COUNT.findall(file.read().decode(errors="replace"))
    except OSError:
        found = []
    return (int(found[-1][0] or found[-1][2]), int(found[-1][1] or found[-1][3])) if found else None


def step(title, log, offset, since):
    """A command's title with its last count, or its seconds where it has none."""
    counted = last_count(log, offset)
    return f"{title} {counted[0]} of {counted[1]}" if counted else f"{title} {time.monotonic() - since:.0f} s"


def line():
    about = f" of about {minutes(state['about'])}" if state["about"] else ""
    return "; ".join(filter(None, [f"  {minutes(time.monotonic() - begun)}{about}", *(step(*one) for one in list(running)), state["more"]()]))


def tick():
    terminal = sys.stdout.isatty()
    while True:
        time.sleep(1 if terminal else PAUSE)
        with lock:
            if running and terminal:
                sys.stdout.write("\r" + line()[: shutil.get_terminal_size().columns - 1] + "\x1b[K")
                sys.stdout.flush()
                state["moving"] = True
            elif running:
                say(line())


def execute(command, log, title, **more):
    """Runs a command into a log, with progress; its exit status."""
    with lock:
        if not state["ticks"]:
            state["ticks"] = True
            threading.Thread(target=tick, daemon=True).start()
    with open(log, "a", encoding="utf-8") as file:
        print("$", " ".join(command), file=file, flush=True)
        entry = (title, log, os.path.getsize(log), time.monotonic())
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, **more)
        running.append(entry)
        ended = 0
        while not ended:
            time.sleep(0.1)
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
        running.remove(entry)
        process.returncode = os.waitstatus_to_exitcode(status)
        lane.cpu = getattr(lane, "cpu", 0) + used.ru_utime + used.ru_stime
        return process.returncode


def show_end(log):
    with open(log, encoding="utf-8", errors="replace") as file:
        say("".join(file.readlines()[-60:]))


def run(command, log, **more):
    """Runs a command into a log; prints the end of the log when it fails."""
    code = execute(command, log, os.path.basename(log).removesuffix(".log"), **more)
    if code != 0:
        show_end(log)
    return code == 0
