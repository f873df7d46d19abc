# SPDX-License-Identifier: Apache-2.0
"""bench_gpu on the emulated driver: groups by name, and a JSON that keeps the groups before a crash.

Arguments: the program; the libraries of the emulated driver, cuBLAS and NCCL; the kernels."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM, DRIVER, CUBLAS, NCCL, KERNELS = sys.argv[1:6]
SMALL = ["--divide", "4096", "--turns", "3"]
FIRST, SECOND = "gpu: logprob 16 x 32 bf16, gradient fp32", "gpu: logprob 16 x 32 bf16, gradient bf16"
LAYERS, SYNCHRONISED = "gpu: layers of 16 MiB in turn", "gpu: memory of 32 MiB"


def environment(settings=""):
    folders = ":".join(os.path.dirname(library) for library in (DRIVER, CUBLAS))
    return {**os.environ, "LD_LIBRARY_PATH": folders, "FAKE_CUDA": f"kernels={KERNELS},report=1{settings}"}


def run(*arguments, settings="", env=None):
    return subprocess.run([PROGRAM, *SMALL, *arguments], env=env or environment(settings), capture_output=True,
                          text=True, timeout=600, check=False)


def names():
    return run("--list").stdout.splitlines()


def groups(document):
    seen = []
    for figure in document["figures"]:
        if figure["group"] not in seen:
            seen.append(figure["group"])
    return seen


class BenchGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.json = os.path.join(folder.name, "figures.json")

    def read(self):
        with open(self.json, encoding="utf-8") as file:
            return json.load(file)

    def measure(self, *arguments, settings=""):
        answer = run("--json", self.json, "--nccl", NCCL, *arguments, settings=settings)
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        # nothing broken, nothing left: the threshold of the driver's pool is what it was
        self.assertEqual(answer.stderr, "")
        return self.read()

    def test_list_without_driver(self):
        answer = subprocess.run([PROGRAM, "--list"], env={"LD_LIBRARY_PATH": "/nowhere"}, capture_output=True,
                                text=True, timeout=600, check=False)
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        listed = answer.stdout.splitlines()
        self.assertEqual(len(set(listed)), len(listed))
        self.assertEqual(listed[0], "gpu: fused head 8192 x 4096 x 128256")
        kinds = ["gpu: fused head", "gpu: logprob", "gpu: range", "gpu: loss", "gpu: rearrange", "gpu: a record",
                 "gpu: layers", "gpu: memory", "gpu: offload", "nccl: slab"]
        firsts = [next(i for i, name in enumerate(listed) if name.startswith(kind)) for kind in kinds]
        self.assertEqual(firsts, sorted(firsts))
        for shape in ("32768 x 151936", "32768 x 50257"):
            for dtypes in ("bf16, gradient fp32", "bf16, gradient bf16", "bf16, gradient bf16 in place",
                           "fp32, gradient fp32"):
                self.assertIn(f"gpu: logprob {shape} {dtypes}", listed)
        self.assertEqual(len(names()), len(listed))
        self.assertIn(FIRST, names())

    def test_all_groups(self):
        document = self.measure(settings=",memory=512m")
        skipped = [group["name"] for group in document["skipped"]]
        self.assertEqual([name for name in names() if name not in skipped], groups(document))
        self.assertEqual(len(groups(document)) + len(skipped), len(names()))
        self.assertIn("gpu: memory of 8 GiB", skipped)
        self.assertIn("device memory", document["skipped"][0]["reason"])
        self.assertEqual(document["device"]["memory_bytes"], 512 << 20)
        rows = {(row["group"], row["name"]): row for row in document["figures"]}
        for dtypes, forward, both in (("bf16, gradient fp32", 2, 8), ("bf16, gradient bf16", 2, 6),
                                      ("fp32, gradient fp32", 4, 12), ("bf16, gradient bf16 in place", 2, 6)):
            group, gradient = f"gpu: logprob 16 x 32 {dtypes}", dtypes.split(", ")[1]
            for name, expected in ((f"copy, {both} bytes per logit", both), ("forward", forward),
                                   (f"backward, {gradient}", both - forward),
                                   (f"both at once, {gradient}", both - forward),
                                   (f"forward and backward, {gradient}", both)):
                self.assertEqual(rows[group, name]["bytes_per_logit"], expected, (group, name))

    def test_only_one_group(self):
        document = self.measure("--only", SECOND, "--nccl", "/nowhere/libnccl.so.2")
        self.assertEqual((groups(document), document["skipped"]), ([SECOND], []))

    def test_restored_driver_pool(self):
        document = self.measure("--only", LAYERS)
        self.assertIn("cuMemAllocAsync, cuMemFreeAsync, freed memory kept",
                      [row["name"] for row in document["figures"]])
        self.assertEqual(groups(self.measure("--only", SYNCHRONISED)), [SYNCHRONISED])

    def test_wrong_arguments(self):
        for arguments, text in ((["--only", "gpu: logprob"], 'unknown group "gpu: logprob"'),
                                (["--fast"], "unknown option --fast"), (["--json"], "--json requires a value")):
            answer = run(*arguments)
            self.assertEqual(answer.returncode, 2)
            self.assertIn(text, answer.stderr)

    def test_skipped_group(self):
        for arguments, settings, reason in (
                (["--only", "nccl: slab of 32 MiB", "--nccl", "/nowhere/libnccl.so.2"], "", "no NCCL: /nowhere"),
                (["--only", "gpu: memory of 8 GiB"], "", "needs 32.0 GiB of device memory, but 0.2 GiB are free"),
                (["--only", FIRST], ",attribute=75:1", "")):
            answer = run("--json", self.json, *arguments, settings=settings)
            self.assertEqual(answer.returncode, 77, answer.stdout + answer.stderr)
            self.assertIn(reason, answer.stdout.splitlines()[-1])
            document = self.read()
            self.assertEqual(document["figures"], [])
            self.assertEqual(document["skipped"], [{"name": arguments[1], "reason": answer.stdout.splitlines()[-1]}])

    def test_late_host_memory(self):
        """The free host memory comes from /proc/meminfo, which a mount namespace replaces."""
        meminfo = self.json + ".meminfo"
        with open(meminfo, "w", encoding="ascii") as file:
            file.write("MemTotal: 100 kB\nMemAvailable: 100 kB\n")
        inside = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /proc/meminfo && exec "$@"', meminfo]
        if not shutil.which("unshare") or subprocess.run([*inside, "true"], capture_output=True,
                                                         check=False).returncode != 0:
            self.skipTest("no mount namespaces here")
        answer = subprocess.run([*inside, PROGRAM, *SMALL, "--json", self.json, "--only", "gpu: offload of a group"],
                                env=environment(), capture_output=True, text=True, timeout=600, check=False)
        self.assertEqual(answer.returncode, 77, answer.stdout + answer.stderr)
        self.assertIn("bytes of host memory are needed, but 102400 are free", self.read()["skipped"][0]["reason"])

    def test_shapes(self):
        """Every dtype and place of a gradient for vocabularies that are powers of two times 1000, odd, and neither."""
        whole = subprocess.run([PROGRAM, "--list"], capture_output=True, text=True, timeout=600,
                               check=True).stdout.splitlines()
        for shape in ("65536 x 128000", "32768 x 151936", "32768 x 50257"):
            for kind in ("bf16, gradient fp32", "bf16, gradient bf16", "bf16, gradient bf16 in place",
                         "fp32, gradient fp32"):
                self.assertIn(f"gpu: logprob {shape} {kind}", whole)

    def test_no_gpu(self):
        answer = run("--only", FIRST, settings=",devices=0")
        self.assertEqual(answer.returncode, 77)
        self.assertNotEqual(answer.stdout.strip(), "")

    def test_results_after_failure(self):
        answer = run("--json", self.json, settings=",fail=cuMemAlloc:12:2")
        self.assertEqual(answer.returncode, 1)
        self.assertIn("CUDA_ERROR_OUT_OF_MEMORY", answer.stderr)
        kept = groups(self.read())
        self.assertEqual(kept, names()[:len(kept)])
        self.assertGreater(len(kept), 0)
        self.assertLess(len(kept), 12)

    def test_results_after_kill(self):
        with subprocess.Popen([PROGRAM, *SMALL, "--json", self.json, "--nccl", NCCL], env=environment(),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            for _ in range(3000):
                if process.poll() is not None or (os.path.exists(self.json) and self.read()["figures"]):
                    break
                time.sleep(0.01)
            process.kill()
        self.assertLess(process.returncode, 0)
        kept = groups(self.read())
        self.assertGreater(len(kept), 0)
        self.assertEqual(kept, names()[:len(kept)])


unittest.main(argv=sys.argv[:1])
