# SPDX-License-Identifier: Apache-2.0
"""A snapshot of PyTorch's form with millions of events, and the time and memory that `bucketpool step` takes for it.

    bench/large_snapshot.py TOOL [EVENTS]      default: 10 million events, a file of 1.3 GB in the temporary folder

The file is written as opcodes of a pickle, because a list of so many dictionaries needs more memory than the snapshot.
Steps of 1,500 allocations have random sizes, live ranges and stacks of 20 frames; each stack is stored once, as PyTorch
stores it, and the trace begins and ends within a step."""

import heapq
import os
import pickle
import random
import struct
import subprocess
import sys
import tempfile
import time


class Writer:
    """Writes a pickle of protocol 4 of dictionaries, lists, texts and numbers; texts are stored once."""

    def __init__(self, file):
        self.file, self.memo, self.count = file, {}, 0
        file.write(b"\x80\x04")

    def memoize(self):
        self.file.write(b"\x94")
        self.count += 1
        return self.count - 1

    def get(self, index):
        self.file.write(b"h" + bytes([index]) if index < 256 else b"j" + struct.pack("<I", index))

    def text(self, text):
        if text in self.memo:
            self.get(self.memo[text])
            return
        data = text.encode()
        self.file.write(b"\x8c" + bytes([len(data)]) + data)
        self.memo[text] = self.memoize()

    def number(self, number):
        self.file.write(pickle.dumps(number, 4)[2:-1] if number < 1 << 31 else
                        b"\x8a" + bytes([8]) + struct.pack("<q", number))

    def dictionary(self, members):
        self.file.write(b"}")
        self.memoize()
        self.file.write(b"(")
        for key, value in members:
            self.text(key)
            value(self) if callable(value) else self.text(value) if isinstance(value, str) else self.number(value)
        self.file.write(b"u")


def stack_writer(frames, stored):
    """Writes a list of frames, the second time a reference to it. `stored`: by stack, its place in the memo."""
    key = tuple(frames)

    def write(w):
        if key in stored:
            w.get(stored[key])
            return
        w.file.write(b"]")
        stored[key] = w.memoize()
        w.file.write(b"(")
        for number in frames:
            frame = ("frame", number)
            if frame in w.memo:
                w.get(w.memo[frame])
                continue
            place = w.count
            w.dictionary([("filename", f"/site/pkg/module_{number % 37}.py"), ("line", number), ("name", f"f_{number}")])
            w.memo[frame] = place
        w.file.write(b"e")

    return write


def events_of(count, seed=1):
    """(action, address, bytes, stack) of steps that repeat."""
    rng = random.Random(seed)
    step = [(rng.choice([512, 1024, 4096, 1 << 20, 3 << 20, 40 << 20]) * rng.randrange(1, 4), rng.randrange(400),
             rng.randrange(1, 60)) for _ in range(1500)]
    ends, address, made = [], 0x7F0000000000, 0
    i = 700
    while made < count:
        while ends and ends[0][0] <= i:
            _, at, size, stack = heapq.heappop(ends)
            yield "free_requested", at, size, stack
            yield "free_completed", at, size, stack
            made += 2
        size, stack, life = step[i % len(step)]
        yield "alloc", address, size, stack
        heapq.heappush(ends, (i + life, address, size, stack))
        address = 0x7F0000000000 + (address - 0x7F0000000000 + size) % (1 << 44)
        made += 1
        i += 1


def write_snapshot(path, count):
    rng = random.Random(2)
    stored = {}
    stacks = [stack_writer([rng.randrange(2000) for _ in range(20)], stored) for _ in range(400)]
    with open(path, "wb") as file:
        w = Writer(file)
        file.write(b"}")
        w.memoize()
        file.write(b"(")
        w.text("segments")
        file.write(b"]")
        w.memoize()
        w.text("device_traces")
        file.write(b"]")
        w.memoize()
        file.write(b"]")
        w.memoize()
        made = 0
        for action, address, size, stack in events_of(count):
            if made % 1000 == 0:
                file.write(b"e(" if made else b"(")
            w.dictionary([("action", action), ("addr", address), ("size", size), ("stream", 0),
                          ("time_us", 1_700_000_000_000_000 + 4 * made), ("compile_context", "N/A"),
                          ("user_metadata", ""), ("frames", stacks[stack])])
            made += 1
        file.write(b"e" + b"a" + b"u.")
    return made


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    count = int(sys.argv[2]) if len(sys.argv) == 3 else 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "large.pickle")
        made = write_snapshot(path, count)
        print(f"{made} events, {os.path.getsize(path) / 1e6:.0f} MB", flush=True)
        begin = time.monotonic()
        process = subprocess.Popen([sys.argv[1], "step", path, "--places", "3"])
        _, status, usage = os.wait4(process.pid, 0)
        print(f"{time.monotonic() - begin:.1f} s, {usage.ru_maxrss / 1024:.0f} MiB at most")
        sys.exit(os.waitstatus_to_exitcode(status))


main()
