# SPDX-License-Identifier: Apache-2.0
"""`bucketpool bench logprob`: rows, figures that follow from one another, wrong results that are found, mistakes.

Arguments: source directory, the bucketpool executable, a library that makes results wrong when it is loaded first ("":
there is none, as under sanitizers), whether the head has matrix products on the host (1 or 0), the folders of the
emulated libcuda.so.1 and libcublas.so.13, and the kernels that they run ("": the library was built without CUDA
kernels). With UPDATE_GOLDEN=1 the golden files are written anew.
"""

import json
import os
import subprocess
import sys
import unittest

from answers import Answers

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
WRONG = os.path.abspath(sys.argv[3]) if sys.argv[3] else ""
HAS_PRODUCTS = sys.argv[4] == "1"
FAKE = os.path.abspath(sys.argv[5])
CUBLAS = os.path.abspath(sys.argv[6])
KERNELS = os.path.abspath(sys.argv[7]) if sys.argv[7] else ""
WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4}
ONCE = ("--turns", "1")
DOCUMENT = {"format", "bench", "device", "device_model", "kernels", "products", "threads", "scale", "scale_picked",
            "turns", "copy_bytes_per_s", "dtype", "grad_dtype", "entropy", "fused", "hidden", "rows"}
ROW = {"seq", "vocab", "chunk", "unscaled_seq", "time_ms", "forward_ms", "backward_ms", "peak_bytes", "workspace_bytes",
       "planned_workspace_bytes", "bytes_per_logit", "bandwidth_fraction", "copy_bytes_per_s", "products_ms",
       "products_ratio", "error"}


def run(*arguments, **environment):
    return subprocess.run([TOOL, "bench", *arguments], capture_output=True, text=True, cwd=ROOT, timeout=600,
                          check=False, env={**os.environ, **environment})


def aligned(*sizes):
    return sum((size + 255) // 256 * 256 for size in sizes)


def tokens_bytes(seq, entropy):
    """Targets, log-probabilities and their gradients, what is saved; entropies and their gradients."""
    return aligned(8 * seq, 4 * seq, 4 * seq, (12 if entropy else 8) * seq, *((4 * seq, 4 * seq) if entropy else ()))


class Case(Answers):
    def document(self, *arguments):
        result = run("logprob", *arguments, "--json")
        self.assertEqual((result.returncode, result.stderr), (0, ""), arguments)
        return json.loads(result.stdout)


class Logits(Case):
    def check_rows(self, document, width, grad_width, in_place=False):
        for row in document["rows"]:
            self.assertEqual(set(row), ROW)
            logits = row["seq"] * row["vocab"]
            stored = aligned(width * logits) + (0 if in_place else aligned(grad_width * logits))
            self.assertEqual(row["peak_bytes"], stored + tokens_bytes(row["seq"],
                                                                      document["entropy"]) + row["workspace_bytes"])
            self.assertIn(row["workspace_bytes"], (4096, 65536))  # the report of targets: a page, a granule of the GPU
            self.assertEqual(row["bytes_per_logit"], (1 if document["fused"] else 2) * width + grad_width)
            fraction = row["bytes_per_logit"] * logits / (row["time_ms"] / 1e3) / row["copy_bytes_per_s"]
            self.assertAlmostEqual(row["bandwidth_fraction"] / fraction, 1, places=5)
            self.assertGreater(min(row["time_ms"], row["forward_ms"], row["backward_ms"]), 0)
            self.assertEqual((row["products_ms"], row["products_ratio"], row["error"]), (None, None, None))

    def test_document(self):
        document = self.document("--seq", "7,40", "--vocab", "33,5000", "--chunk", "none,3,32", "--turns", "2")
        self.assertEqual(set(document), DOCUMENT)
        self.assertEqual([(r["seq"], r["vocab"], r["chunk"]) for r in document["rows"]],
                         [(s, v, c) for s in (7, 40) for v in (33, 5000) for c in (0, 3, 32)])
        self.assertEqual((document["format"], document["bench"], document["device"]),
                         ("bucketpool.bench/1", "logprob", "host"))
        self.assertEqual((document["dtype"], document["grad_dtype"], document["entropy"]), ("bf16", "fp32", False))
        self.assertEqual((document["scale"], document["scale_picked"], document["turns"]), (1, False, 2))
        self.assertIn(document["kernels"], ("plain", "avx2", "avx512", "neon"))
        self.assertGreaterEqual(document["threads"], 1)
        self.assertGreater(document["copy_bytes_per_s"], 1e6)
        self.check_rows(document, 2, 4)

    def test_dtypes(self):
        for dtype, grad in (("bf16", "logits"), ("bf16", "in-place"), ("fp16", "fp32"), ("fp16", "in-place"),
                            ("fp32", "logits")):
            with self.subTest(dtype=dtype, grad=grad):
                document = self.document("--seq", "9", "--vocab", "2051", "--chunk", "none,4", "--dtype", dtype,
                                         "--grad-dtype", grad, "--entropy", *ONCE)
                self.assertEqual((document["dtype"], document["grad_dtype"], document["entropy"]), (dtype, grad, True))
                self.check_rows(document, WIDTHS[dtype], 4 if grad == "fp32" else WIDTHS[dtype], grad == "in-place")

    def test_fused(self):
        for dtype, grad in (("bf16", "in-place"), ("fp16", "fp32"), ("fp32", "fp32")):
            with self.subTest(dtype=dtype, grad=grad):
                document = self.document("--seq", "9", "--vocab", "2051", "--chunk", "none,4", "--dtype", dtype,
                                         "--grad-dtype", grad, "--entropy", "--fused", *ONCE)
                self.assertIs(document["fused"], True)
                self.check_rows(document, WIDTHS[dtype], 4 if grad == "fp32" else WIDTHS[dtype], grad == "in-place")

    def test_order_of_lists(self):
        document = self.document("--seq", "12,3,12", "--vocab", "9,2", "--chunk", "5,none,5", *ONCE)
        self.assertEqual([(r["seq"], r["vocab"], r["chunk"]) for r in document["rows"]],
                         [(s, v, c) for s in (12, 3, 12) for v in (9, 2) for c in (5, 0, 5)])

    def test_scale(self):
        document = self.document("--seq", "100,7", "--vocab", "10", "--chunk", "none", "--scale", "10", *ONCE)
        self.assertEqual([(r["seq"], r["unscaled_seq"]) for r in document["rows"]], [(10, 100), (1, 7)])
        self.assertEqual((document["scale"], document["scale_picked"]), (10, False))

    def test_default_table(self):
        """Small enough with small vocabularies; its scale is picked."""
        document = self.document("--vocab", "2", *ONCE)
        self.assertEqual([(r["unscaled_seq"], r["chunk"]) for r in document["rows"]],
                         [(s, c) for s in (32768, 65536, 131072) for c in (0, 32, 1024, 4096, 8192, 16384)])
        self.assertTrue(document["scale_picked"])
        self.assertEqual({r["seq"] * document["scale"] for r in document["rows"]}, {32768, 65536, 131072})

    def test_machine(self):
        document = self.document("--seq", "5", "--vocab", "70", "--chunk", "none", "--threads", "1",
                                 "--kernels", "plain", *ONCE)
        self.assertEqual((document["threads"], document["kernels"]), (1, "plain"))
        for kernels in ("avx2", "avx512", "neon"):
            result = run("logprob", "--seq", "5", "--vocab", "70", "--chunk", "none", "--kernels", kernels,
                         "--json", *ONCE)
            if result.returncode != 0:
                self.refused(result, 3, f"--kernels {kernels}")
            else:
                self.assertEqual(json.loads(result.stdout)["kernels"], kernels)

    def test_skipped_rows(self):
        """Are told with the bytes, and the others are measured."""
        arguments = ("--seq", "1099511627776,4", "--vocab", "300000,5", "--chunk", "none,8", *ONCE)
        document = self.document(*arguments)
        measured = [(r["seq"], r["vocab"], r["chunk"]) for r in document["rows"] if r["error"] is None]
        self.assertEqual(measured, [(4, v, c) for v in (300000, 5) for c in (0, 8)])
        refused = document["rows"][0]
        needed = aligned(2 * refused["seq"] * refused["vocab"], 4 * refused["seq"] * refused["vocab"])
        pages = os.sysconf("SC_PAGESIZE")
        needed += tokens_bytes(refused["seq"], False)
        needed = (needed + pages - 1) // pages * pages + 16 * refused["seq"]  # and what the client works in
        self.assertRegex(refused["error"],
                         rf"^needs [\d.]+ EiB \({needed} bytes\), but [\d.]+ [KMGT]iB \(\d+ bytes\) are free$")
        for member in ROW - {"seq", "vocab", "chunk", "unscaled_seq", "bytes_per_logit", "error"}:
            self.assertIsNone(refused[member], member)
        table = run("logprob", *arguments)
        self.assertEqual((table.returncode, table.stderr), (0, ""))
        self.assertIn(refused["error"].split(",")[0], table.stdout)

    def test_nothing_fits(self):
        self.one_line(run("logprob", "--seq", "1099511627776", "--vocab", "300000"), 3, "no shape fits", "--scale auto")

    def test_limit_of_a_container(self):
        """Control groups of both versions, under a temporary root. Reclaimable file pages are not counted."""
        inside = "mount -t tmpfs none /sys/fs/cgroup && "
        if subprocess.run(["unshare", "-rm", "sh", "-c", inside + "true"], capture_output=True,
                          check=False).returncode != 0:
            self.skipTest("nothing can be mounted here")
        mebibyte, page = 1 << 20, os.sysconf("SC_PAGESIZE")
        free = (64 - 16 + 6) * mebibyte // 8 * 7
        copies = 2 * (free // 16 // page * page)
        for folder, limit, used, cached in (("", "memory.max", "memory.current", "inactive_file"),
                                            ("/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                             "total_inactive_file")):
            script = (
                inside
                + f"cd /sys/fs/cgroup && mkdir memory && cd .{folder} && echo {64 * mebibyte} > {limit} && "
                f"echo {16 * mebibyte} > {used} && echo {cached} {6 * mebibyte} > memory.stat && exec \"$@\""
            )
            result = subprocess.run(["unshare", "-rm", "sh", "-c", script, "sh", TOOL, "bench", "logprob",
                                     "--seq", "4,4000", "--vocab",
                                     "5000", "--chunk", "none", *ONCE], capture_output=True, text=True, timeout=600,
                                    check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertIn(f"({free - copies} bytes) are free", result.stdout)

    def test_table(self):
        result = run("logprob", "--seq", "6", "--vocab", "11,2050", "--chunk", "none,2", "--scale", "2")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0],
                         r"^host, (plain|avx2|avx512|neon) kernels, \d+ threads?; copies at [\d.]+ GB/s, read and written$")
        self.assertEqual(lines[1], "bf16 logits, fp32 gradient; sequences divided by 2; median of 5 turns")
        self.assertEqual(lines[3].split(), ["SEQUENCE", "VOCABULARY", "CHUNK", "TIME", "FORWARD", "BACKWARD", "PEAK",
                                            "WORKSPACE", "B/LOGIT", "BANDWIDTH"])
        self.assertEqual([line.split()[:3] for line in lines[4:]],
                         [["3", v, c] for v in ("11", "2050") for c in ("none", "2")])
        self.assertNotIn("\033", result.stdout)
        self.assertIn("\033[1mhost", run("logprob", "--seq", "1", "--vocab", "1", "--color", "always", *ONCE).stdout)


class Head(Case):
    def test_document(self):
        arguments = ("--head", "48", "--seq", "10", "--vocab", "300", "--chunk", "none,4", "--entropy", "--turns", "2")
        if not HAS_PRODUCTS:
            self.refused(run("logprob", *arguments), 3, "BLAS")
            return
        for dtype, grad, more in (("bf16", "fp32", ()), ("fp16", "logits", ()), ("fp32", "fp32", ()),
                                  ("bf16", "logits", ("--fused",)), ("fp32", "fp32", ("--fused",))):
            with self.subTest(dtype=dtype, grad=grad, more=more):
                self.check(self.document(*arguments, "--dtype", dtype, "--grad-dtype", grad, *more), WIDTHS[dtype],
                           4 if grad == "fp32" else WIDTHS[dtype])

    def check(self, document, width, grad_width, products="lib"):
        own = document["products"] == "avx512_bf16"  # on a host, without a library to compare with
        self.assertEqual((document["hidden"], own or document["products"].startswith(products)), (48, True))
        self.assertEqual([r["chunk"] for r in document["rows"]], [0, 4])
        for row in document["rows"]:
            self.assertEqual(set(row), ROW)
            stored = aligned(width * 10 * 48, width * 300 * 48, grad_width * 10 * 48, 4 * 300 * 48)
            self.assertEqual(row["peak_bytes"], stored + tokens_bytes(10, True) + row["workspace_bytes"])
            self.assertGreaterEqual(row["workspace_bytes"], row["planned_workspace_bytes"])
            if own:
                self.assertEqual((row["products_ms"], row["products_ratio"]), (None, None))
            else:
                self.assertAlmostEqual(row["products_ratio"], row["time_ms"] / row["products_ms"], places=5)
            self.assertEqual((row["bytes_per_logit"], row["bandwidth_fraction"], row["error"]), (None, None, None))

    @unittest.skipUnless(HAS_PRODUCTS, "no BLAS library")
    def test_table(self):
        result = run("logprob", "--head", "16", "--seq", "5", "--vocab", "40", *ONCE)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        lines = result.stdout.splitlines()
        self.assertRegex(lines[0], ", products by (lib|avx512_bf16)")
        self.assertEqual(lines[1], "fused head, hidden size 16, bf16, fp32 gradient of hidden states; median of 1 turn")
        self.assertIn("x PRODUCTS", lines[3])
        self.assertEqual(lines[4].split()[:3], ["5", "40", "1024"])


@unittest.skipUnless(WRONG, "a sanitizer's runtime wants to be loaded first")
class Wrong(Case):
    """Results that are not those of a computation in double precision, or that were not written at all."""

    def found(self, what, *arguments):
        result = run("logprob", "--vocab", "600", *arguments, *ONCE, LD_PRELOAD=WRONG, WRONG_LOGPROB=what)
        self.one_line(result, 1, "sequence 9, vocabulary 600, chunk ", "instead of")
        self.assertIn(result.stderr.split(": ", 2)[2].strip(), result.stdout)  # and the table has it

    def test_logits(self):
        for what, grad in (("forward", "fp32"), ("unwritten", "fp32"), ("backward", "logits")):
            self.found(what, "--seq", "9", "--chunk", "none", "--grad-dtype", grad)
        self.found("entropy", "--seq", "9", "--chunk", "4", "--entropy")

    @unittest.skipUnless(HAS_PRODUCTS, "no BLAS library")
    def test_head(self):
        for what in ("weight", "hidden"):
            self.found(what, "--seq", "9", "--head", "32", "--chunk", "4")

    def test_right(self):
        result = run("logprob", "--seq", "9", "--vocab", "600", *ONCE, LD_PRELOAD=WRONG)
        self.assertEqual((result.returncode, result.stderr), (0, ""))


class Emulated(Case):
    """On the emulated driver, which runs the kernels' own source, and reports at the end what was broken or left
    behind.
    """

    def emulated(self, *arguments, fake="memory=1g"):
        settings = f"report=1,host_faults=1,{fake}" + (f",kernels={KERNELS}" if KERNELS else "")
        return run("logprob", "--device", "cuda", *arguments, *ONCE, LD_LIBRARY_PATH=f"{FAKE}:{CUBLAS}",
                   FAKE_CUDA=settings)

    def rows(self, *arguments, **more):
        result = self.emulated(*arguments, "--json", **more)
        # AddressSanitizer, of emulated threads
        said = [line for line in result.stderr.splitlines() if "swapcontext" not in line]
        self.assertEqual((result.returncode, said), (0, []))
        return json.loads(result.stdout)

    @unittest.skipUnless(KERNELS, "built without CUDA kernels")
    def test_rows(self):
        for dtype, grad in (("bf16", "fp32"), ("fp16", "in-place"), ("fp32", "logits")):
            document = self.rows("--seq", "5", "--vocab", "300,2050", "--chunk", "none,4", "--dtype", dtype,
                                 "--grad-dtype", grad, "--entropy")
            self.assertEqual((document["device"], document["device_model"], document["kernels"], document["threads"]),
                             ("cuda", "Emulated GPU", "cuda", 1))
            Logits.check_rows(self, document, WIDTHS[dtype], 4 if grad == "fp32" else WIDTHS[dtype], grad == "in-place")

    @unittest.skipUnless(KERNELS, "built without CUDA kernels")
    def test_little_memory(self):
        document = self.rows("--seq", "500", "--vocab", "300", "--chunk", "none", "--scale", "auto", fake="memory=1m")
        self.assertEqual((document["scale"], document["rows"][0]["seq"]), (2, 250))
        document = self.rows("--seq", "100000,500,400", "--vocab", "300", "--chunk", "none,256", fake="memory=1m")
        errors = [row["error"] for row in document["rows"]]
        self.assertIn("are free", errors[0])
        # the client has no room
        self.assertIn("needs 960.0 KiB (983040 bytes), but 896.0 KiB (917504 bytes) are free", errors[2])
        self.assertEqual((errors[0], errors[2], errors[4:]), (errors[1], errors[3], [None, None]))

    @unittest.skipIf(KERNELS, "built with CUDA kernels")
    def test_no_kernels(self):
        self.refused(self.emulated("--seq", "5", "--vocab", "30"), 3, "kernels")

    @unittest.skipUnless(KERNELS, "built without CUDA kernels")
    def test_head(self):
        for dtype, grad, more in (("bf16", "logits", ()), ("fp32", "fp32", ()), ("bf16", "logits", ("--fused",))):
            document = self.rows("--head", "48", "--seq", "10", "--vocab", "300", "--chunk", "none,4", "--entropy",
                                 "--dtype", dtype, "--grad-dtype", grad, *more)
            Head.check(self, document, WIDTHS[dtype], WIDTHS[dtype], "cublas")


class Mistakes(Case):
    def test_lists(self):
        for option in ("--seq", "--vocab", "--chunk"):
            for value in ("0", "-1", "", "1,", ",1", "1,0", "x", "1.5", "1e3", "1,,2", "99999999999999999999", " 1"):
                self.refused(run("logprob", option, value), 2, option)
            self.refused(run("logprob", option, ",".join(["1"] * 33)), 2, "more than 32")
        for option in ("--seq", "--vocab"):
            self.refused(run("logprob", option, "none"), 2, option)

    def test_values(self):
        for arguments in (("--dtype", "fp64"), ("--dtype", "fp8"), ("--grad-dtype", "bf16"), ("--device", "null"),
                          ("--device", "gpu"),
                           ("--device", "cuda:x"), ("--threads", "0"), ("--threads", "-2"), ("--kernels", "sse"),
                          ("--turns", "0"), ("--scale", "0"), ("--scale", "half"), ("--head", "0"), ("--head", "-5"),
                          ("--color", "blue")):
            self.refused(run("logprob", *arguments), 2, arguments[0], arguments[1].split(":")[-1])

    def test_excluding_options(self):
        for arguments in (("--device", "cuda", "--threads", "2"), ("--device", "cuda", "--kernels", "plain"),
                          ("--head", "8", "--grad-dtype", "in-place")):
            self.refused(run("logprob", *arguments), 2, "--")

    def test_size_overflow(self):
        huge = "1099511627776"
        self.refused(run("logprob", "--seq", huge, "--vocab", huge), 2, "64 bits", huge)
        self.refused(run("logprob", "--seq", "5", "--vocab", huge, "--head", huge), 2, "64 bits", "--head")

    def test_words(self):
        self.refused(run("logprob", "--sequence", "5"), 2, "--sequence")
        self.refused(run("logprob", "--seq"), 2, "--seq")
        self.refused(run("logprob", "model.json"), 2, "model.json")
        self.refused(run("logprobs"), 2, "logprobs")
        self.refused(run(), 2, "give logprob or offload")

    def test_no_gpu(self):
        """On a machine with GPUs, the device number is too high."""
        self.refused(run("logprob", "--device", "cuda:1000"), 3, "")

    def test_closed_output(self):
        for arguments in (("logprob", "--seq", "1", "--vocab", "1"), ("logprob", "--help"), ("--help",)):
            reader, writer = os.pipe()
            os.close(reader)
            result = subprocess.run([TOOL, "bench", *arguments], stdout=writer, stderr=subprocess.PIPE, text=True,
                                    check=False)
            os.close(writer)
            self.assertEqual((result.returncode, result.stderr), (141, ""))


class Documents(Case):
    def test_help(self):
        self.golden("help-bench.txt", run("--help").stdout)
        self.golden("help-bench-logprob.txt", run("logprob", "--help").stdout)

    def test_progress(self):
        command = [TOOL, "bench", "logprob", "--seq", "64", "--vocab", "20000", "--kernels", "plain", "--turns", "20"]
        code, data = self.on_terminal(command, "stderr", stdout=subprocess.PIPE, cwd=ROOT)
        self.assertEqual(code, 0)
        if data:  # a machine may be faster than the first half second
            self.assertRegex(data, rb"measurement \d+ of 126, \d+ %")
            self.assertTrue(data.endswith(b"\r\033[K"), data[-40:])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
