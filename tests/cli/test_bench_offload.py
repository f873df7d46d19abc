# SPDX-License-Identifier: Apache-2.0
"""`bucketpool bench offload`: figures that follow from one another, memory that goes back, wrong bytes that are found,
mistakes.

Arguments: source directory, the bucketpool executable, a library that makes offloads wrong when it is loaded first ("":
there is none, as under sanitizers), the folder of the emulated libcuda.so.1. With UPDATE_GOLDEN=1 the golden file is
written anew.
"""

import json
import os
import subprocess
import sys
import unittest

from answers import Answers

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
WRONG = os.path.abspath(sys.argv[3]) if sys.argv[3] else ""
FAKE = os.path.abspath(sys.argv[4])
PAGE, MIB, GIB = 4096, 1 << 20, 1 << 30
WAY = {"gib_per_s", "copy_gib_per_s", "plain_gib_per_s", "ratio", "whole_ratio", "ms", "without_copy_ms", "copy_ms",
       "plain_ms", "first_ms"}
DOCUMENT = {"format", "bench", "device", "device_model", "bytes", "groups", "parts", "chunk_bytes", "turns", "out",
            "back", "backing", "device_bytes", "error"}
BACKING = {"asked", "used", "host_bytes", "pinned_bytes", "huge_bytes", "pin_ms", "touch_ms"}
SMALL = ("--bytes", "1MiB", "--chunk", "64KiB", "--turns", "2")


def run(*arguments, **environment):
    return subprocess.run([TOOL, "bench", "offload", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600,
                          check=False, env={**os.environ, **environment})


class Case(Answers):
    def document(self, *arguments, **environment):
        result = run(*arguments, "--json", **environment)
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return json.loads(result.stdout)

    def check_way(self, way, size, turns):
        self.assertEqual(set(way), WAY)
        for name in WAY - {"first_ms"}:
            spread = way[name]
            self.assertEqual(set(spread), {"median", "min", "max"})
            self.assertLessEqual(0 < spread["min"] <= spread["median"] <= spread["max"], True, (name, spread))
            if turns == 1:
                self.assertEqual(spread["min"], spread["max"])
        self.assertGreater(way["first_ms"], 0)
        for rate, time in (("gib_per_s", "ms"), ("copy_gib_per_s", "copy_ms"), ("plain_gib_per_s", "plain_ms")):
            for one, other in (("min", "max"), ("median", "median"), ("max", "min")):
                self.assertAlmostEqual(way[rate][one] * way[time][other] / 1e3 / (size / GIB), 1, places=5)
        self.assertLessEqual(way["copy_ms"]["min"], way["ms"]["min"])
        self.assertLessEqual(way["copy_ms"]["max"], way["ms"]["max"])
        if turns == 1:
            self.assertAlmostEqual(way["ratio"]["median"], way["plain_ms"]["median"] / way["copy_ms"]["median"],
                                   places=5)
            self.assertAlmostEqual(way["whole_ratio"]["median"], way["plain_ms"]["median"] / way["ms"]["median"],
                                   places=5)

    def check(self, document, device, seen):
        self.assertEqual(set(document), DOCUMENT | {seen})
        self.assertEqual((document["format"], document["bench"], document["device"]),
                         ("bucketpool.bench/1", "offload", device))
        self.assertEqual(document["error"], None)
        self.assertEqual(set(document["backing"]), BACKING)
        for way in ("out", "back"):
            self.check_way(document[way], document["bytes"], document["turns"])
        memory = document["device_bytes"]
        self.assertEqual((memory["kept"], memory["discarded"], memory["before"]), (0, 0, memory["after"]))
        self.assertGreaterEqual(memory["before"], document["bytes"])
        self.assertEqual(set(document[seen]), set(memory))


class Host(Case):
    def test_document(self):
        for turns in (1, 3):
            document = self.document("--bytes", "3MiB", "--turns", str(turns), "--chunk", "1MiB")
            self.check(document, "host", "resident_bytes")
            self.assertEqual([document[m] for m in ("device_model", "bytes", "groups", "parts", "chunk_bytes",
                                                    "turns")],
                             [None, 3 * MIB, 1, 1, MIB, turns])

    def test_sizes(self):
        """Each group has whole pages, in parts of 256 MiB at most."""
        for size, groups, bytes_of_all, parts in ((1, 1, PAGE, 1), (100000, 3, 3 * 9 * PAGE, 3),
                                                  (64 * PAGE, 64, 64 * PAGE, 64)):
            document = self.document("--bytes", str(max(size, groups * PAGE)), "--groups", str(groups), "--turns", "1")
            self.check(document, "host", "resident_bytes")
            self.assertEqual((document["bytes"], document["groups"], document["parts"]), (bytes_of_all, groups, parts))

    def test_backings(self):
        for asked, used in (("auto", "pinned"), ("pinned", "pinned"), ("staged", "staged")):
            document = self.document("--bytes", "12MiB", "--groups", "2", "--chunk", "1MiB", "--turns", "1",
                                     "--backing", asked)
            self.check(document, "host", "resident_bytes")
            self.assertEqual((document["backing"]["asked"], document["backing"]["used"]), (asked, used))
            self.assertGreaterEqual(document["backing"]["host_bytes"], 12 * MIB)
            if used == "staged":
                self.assertLess(document["backing"]["pinned_bytes"], 12 * MIB)
            else:
                self.assertGreaterEqual(document["backing"]["pinned_bytes"], 12 * MIB)

    def test_unmapped_memory(self):
        """The pages of the slabs are not resident while they are offloaded, and resident again afterwards."""
        size = 96 * MIB
        for backing in ("pinned", "staged"):
            document = self.document("--bytes", "96MiB", "--turns", "1", "--groups", "2", "--backing", backing)
            self.check(document, "host", "resident_bytes")
            resident = document["resident_bytes"]
            self.assertGreater(resident["before"] - resident["discarded"], size * 0.9, resident)
            self.assertGreater(resident["after"] - resident["discarded"], size * 0.9, resident)

    def test_table(self):
        result = run(*SMALL, "--groups", "2")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertEqual(lines[:2], ["host; 1.000 MiB in 2 groups, chunks of 64.00 KiB, kept in pinned memory",
                                     "median of 2 turns"])
        self.assertEqual(lines[3].split(),
                         "TIME WITHOUT COPIES GiB/s COPIES GiB/s PLAIN GiB/s RATIO RANGE RATIO OF TIME".split())
        self.assertEqual([line.split()[0] for line in lines[4:6]], ["out", "back"])
        self.assertEqual(
            lines[7],
            "Memory of the device: 1.000 MiB before, 0 B while kept on the host, 0 B while discarded, 1.000 MiB after.",
        )
        self.assertTrue(lines[8].startswith("Resident pages of this process: "))
        self.assertTrue(lines[9].startswith("Kept bytes take 1.000 MiB of host memory; "))
        self.assertNotIn("\033", result.stdout)
        self.assertIn("\033[1mhost", run(*SMALL, "--color", "always").stdout)
        self.assertIn("kept in ordinary memory", run(*SMALL, "--backing", "staged").stdout)

    def test_too_much_memory(self):
        self.refused(run("--bytes", "16TiB"), 3, "bytes of host memory are needed", "use a smaller --bytes")


class Emulated(Case):
    """On the emulated driver, which reports at the end what was broken or left behind."""

    def emulated(self, *arguments, fake="memory=256m"):
        return run("--device", "cuda", *arguments, LD_LIBRARY_PATH=FAKE, FAKE_CUDA=f"report=1,host_faults=1,{fake}")

    def test_document(self):
        for options in ((), ("--groups", "3"), ("--backing", "staged", "--groups", "2")):
            result = self.emulated("--bytes", "9MiB", "--chunk", "1MiB", "--turns", "2", *options, "--json")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            document = json.loads(result.stdout)
            self.check(document, "cuda", "gpu_used_bytes")
            self.assertEqual(document["device_model"], "Emulated GPU")
            used = document["gpu_used_bytes"]
            self.assertEqual((used["before"] - used["discarded"], used["kept"], used["after"]),
                             (document["device_bytes"]["before"], used["discarded"], used["before"]))

    def test_table(self):
        result = self.emulated(*SMALL)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertTrue(result.stdout.startswith("cuda, Emulated GPU; 1.000 MiB in 1 group"), result.stdout)
        self.assertIn("\nUsed on the GPU, by all processes: ", result.stdout)

    def test_little_memory(self):
        self.refused(self.emulated("--bytes", "8MiB", fake="memory=4m"), 3, "8388608 bytes", "4194304 left")


@unittest.skipUnless(WRONG, "a sanitizer's runtime wants to be loaded first")
class Wrong(Case):
    def wrong(self, what, *arguments):
        return run(*SMALL, "--groups", "2", *arguments, LD_PRELOAD=WRONG, WRONG_OFFLOAD=what)

    def test_bytes(self):
        for backing in ("pinned", "staged"):
            result = self.wrong("bytes", "--backing", backing)
            self.one_line(result, 1, "turn 0: group state.1 was restored with wrong bytes, from byte ")
        result = self.wrong("bytes", "--json")
        self.one_line(result, 1, json.loads(result.stdout)["error"])

    def test_memory(self):
        self.one_line(self.wrong("memory"), 1, f"while {MIB} are kept: they were not unmapped")

    def test_right(self):
        result = self.wrong("")
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Mistakes(Case):
    def test_values(self):
        for arguments in (("--bytes", "0"), ("--bytes", "x"), ("--bytes", "65TiB"), ("--chunk", "0"), ("--chunk", "-1"),
                          ("--groups", "0"),
                          ("--groups", "65"), ("--backing", "disk"), ("--device", "null"), ("--turns", "0"),
                          ("--color", "blue")):
            self.refused(run(*arguments), 2, arguments[0], arguments[1])
        self.refused(run("--bytes", "8191", "--groups", "2"), 2, "8191", "2 groups")

    def test_words(self):
        self.refused(run("--size", "5"), 2, "--size")
        self.refused(run("--bytes"), 2, "--bytes")
        self.refused(run("optimizer"), 2, "bench offload", "optimizer")

    def test_no_gpu(self):
        """On a machine with GPUs, the device number is too high."""
        self.refused(run("--device", "cuda:1000"), 3, "")

    def test_closed_output(self):
        for arguments in (SMALL, (*SMALL, "--json"), ("--help",)):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, "bench", "offload", *arguments], stdout=full, stderr=subprocess.PIPE,
                                        text=True, check=False)
            self.assertEqual(result.returncode, 3, result.stderr)


class Documents(Case):
    def test_help(self):
        self.golden("help-bench-offload.txt", run("--help").stdout)

    def test_documented_members(self):
        with open(os.path.join(ROOT, "docs", "reference", "formats.md"), encoding="utf-8") as file:
            text = file.read().split("## bucketpool.bench/1")[1]
        for member in (DOCUMENT | WAY | BACKING | {"resident_bytes", "gpu_used_bytes", "before", "kept", "discarded", "after"}) - {"format"}:  # the heading
            self.assertIn(f"`{member}`", text)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
