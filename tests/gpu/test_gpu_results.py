# SPDX-License-Identifier: Apache-2.0
"""docs/internals/gpu_results.md, the measured table and the chart of README.md: made by scripts/gpu/tables.py from bench/results. Argument: source
directory."""

import glob
import json
import os
import re
import sys
import tempfile
import unittest

SOURCE = os.path.abspath(sys.argv[1])
os.chdir(SOURCE)
sys.path.insert(0, os.path.join(SOURCE, "scripts", "gpu"))

import chart  # noqa: E402
import claims  # noqa: E402
import tables  # noqa: E402

HEAD = {"device": "Some GPU (80 GB)", "run": "proof", "date": "2026-01-02T03:04:05Z"}


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


class ResultsTest(unittest.TestCase):
    def test_files(self):
        """They are what tables.py makes of bench/results."""
        made = dict(tables.files(tables.documents(), tables.failures()))
        self.assertEqual(list(made), ["README.md", tables.PAGE, chart.FILE])
        for path, text in made.items():
            with self.subTest(path), open(path, encoding="utf-8") as file:
                self.assertEqual(file.read(), text, f"{path} is not what its program makes: run python3 scripts/gpu/tables.py")

    def test_numbers_of_the_front_page(self):
        """Each number of the measured table, and of the chart, is the sum of reserved bytes and pool, or the live bytes, of a recorded figure."""
        known = set()
        for path in glob.glob(os.path.join(tables.RESULTS, "*.json")):
            for row in (row for part in read(path).get("parts", ()) for row in part.get("figures", ())):
                for keys in (("torch_peak_reserved_bytes", "pool_bytes"), ("reserved_peak_bytes", "pool_bytes"), ("torch_peak_allocated_bytes",),
                             ("live_peak_bytes",)):
                    known.add(f"{sum(row.get(key) or 0 for key in keys) / 2**30:.2f}")
        with open("README.md", encoding="utf-8") as file:
            front = file.read()
        table, picture = front.split(tables.FRONT[0])[1].split(tables.FRONT[1])[0], re.search(r"!\[(.*)\]\(" + re.escape(chart.FILE), front)[1]
        picture = re.sub(r"of [\d.]+ B", "", picture)
        cells = [cell for line in table.splitlines()[3:] for cell in line.split("|")[2:-1]] + [picture]
        with open(chart.FILE, encoding="utf-8") as file:
            cells += re.findall(r">(?:live at the peak: )?([\d.]+)(?: computed)?</text>", file.read())
        numbers = [number for cell in cells for number in re.findall(r"\d+\.\d+", cell)]
        self.assertGreater(len(numbers), 20)
        self.assertEqual([number for number in numbers if number not in known], [])

    def test_emulated_numbers_of_the_front_page(self):
        """Rows and ranges of README.md are those of the guide's ten trainings."""
        with open(os.path.join("docs", "guides", "step_memory.md"), encoding="utf-8") as file:
            rows = [line.split("|")[3:-1] for line in file.read().split("## Ten trainings")[1].split("\n\n")[2].splitlines()[2:]]
        with open("README.md", encoding="utf-8") as file:
            front = file.read()
        ours = re.findall(r"^\| .* \| ([\d.]+) GiB \| ([\d.]+) GiB \| \*\*([\d.]+) GiB\*\* \| ([\d.]+) GiB \|$", front, re.MULTILINE)
        self.assertEqual((len(rows), len(ours)), (10, 4))
        self.assertLessEqual(set(ours), {tuple(cell.strip() for cell in row[:4]) for row in rows})
        for at, words in ((0, "by default"), (1, "expandable")):
            saved = [1 - float(row[2]) / float(row[at]) for row in rows]
            self.assertRegex(front, rf"\b{100 * min(saved):.0f} to {100 * max(saved):.0f} % of what\s+(PyTorch|it)\s+reserves\s+(with )?{words}")

    def test_reasons_of_failures(self):
        """Each failure of the page has a text in failures.json, and each text a failure."""
        failed = {name for known in tables.by_device(tables.documents()).values()
                  for name, outcome, _ in tables.unusual_in([part for part, _ in tables.newest_of(known)]) if outcome == "failed"}
        self.assertEqual(failed, set(tables.failures()))

    def test_page_without_results(self):
        text = tables.page([])
        self.assertTrue(text.endswith("No results yet.\n"))
        claims_of = [line for line in text.splitlines() if line.endswith("| no recorded run |")]
        self.assertEqual(len(claims_of), len(claims.CLAIMS))
        for line in claims_of:
            self.assertRegex(line, r"\| (computed: |emulated: |not measured)")
        self.assertIn("</svg>", chart.drawn(tables.found_in([])))

    def test_claims(self):
        """A claim has the figures of the newest run on any GPU. What is computed says so, and makes room for what a GPU ran."""
        def document(day, device, name, gib, **more):
            row = {"group": claims.LLAMA, "name": name, "reserved_peak_bytes": gib << 30, "live_peak_bytes": 9 << 30, **more}
            return {**HEAD, "run": "step", "device": device, "date": f"2026-01-0{day}", "commit": "c", "parts": [
                {"name": f"steps {name}", "outcome": "passed", "figures": [row], **({"computed": "by hand"} if "computed" in more else {})}]}

        known = [document(1, "NVIDIA B1 80GB", "plain", 12), document(2, "NVIDIA A1", "plain", 11), document(1, "NVIDIA A1", "planned", 10, computed=True)]
        found, text = tables.found_in(known), tables.page(known)
        self.assertEqual(claims.front(found).splitlines()[2], "| FSDP2, Llama of 1.24 B, A1 | 11.00 |  |  |  | 10.00 (computed) | 9.00 |")
        self.assertIn(claims.EMULATED, text)
        self.assertIn("steps planned: computed by hand.", text)
        self.assertIn("## NVIDIA A1\n\n1 passed.", text)
        self.assertIn(">10.00 computed</text>", chart.drawn(found))
        known += [document(3, "NVIDIA A1", "plan", 9), document(3, "NVIDIA A1", "expandable", 13)]
        found = tables.found_in(known)
        self.assertEqual(claims.front(found).splitlines()[2], "| FSDP2, Llama of 1.24 B, A1 | 11.00 | 13.00 |  |  | 9.00 | 9.00 |")
        self.assertIn("| 9.00 GiB plan; 11.00 GiB plain; 13.00 GiB expandable | A1, 2026-01-03, c |", tables.page(known))
        known.append(document(4, "NVIDIA A1", "plan", 12))
        self.assertIn("| does not hold: 12.00 GiB plan; 11.00 GiB plain;", tables.page(known))
        known.append(document(5, "NVIDIA A1", "pool", 12))
        self.assertIn("| 10.00 GiB planned (computed); 11.00 GiB plain; 13.00 GiB expandable; 12.00 GiB pool | A1, 2026-01-02, c |", tables.page(known))

    def test_recorded_claims(self):
        """A result that refutes a claim asks for another front page."""
        shown = list(claims.rows(tables.found_in(tables.documents())))
        self.assertEqual([row for row in shown if row[1].startswith(claims.REFUTED)], [])
        self.assertGreater(len([row for row in shown if row[2] != "no recorded run"]), 6)

    def test_memory_of_trainings(self):
        rows = [{"group": claims.MEGATRON, "name": name, "ns_median": 2e9, "torch_peak_reserved_bytes": 4 << 30, "torch_peak_allocated_bytes": 3 << 30,
                 "driver_bytes_of_both_ranks": 9 << 30,
                 **({"pool_bytes": 1 << 29} if name == "scheduled" else {})} for name in ("no double buffers", "scheduled")]
        text = tables.page([{**HEAD, "commit": "c", "parts": [{"name": "p", "outcome": "passed", "figures": rows}]}])
        for piece in ("| no double buffers | 4.00 |  | 4.00 | 3.00 | 9.00 | 2000.0 |", "| scheduled | 4.00 | 0.50 | 4.50 |  | 9.00 | 2000.0 |"):
            self.assertIn(piece, text)

    def test_figures_and_failures(self):
        telemetry = {"before": {}, "after": {}, "throttle_reasons": 4,
                     "during": {"sm_mhz": [1200, 1900, 1980], "power_w": [90.0, 600, 650.5]}}
        shape = "gpu: logprob 8 x 16 bf16, gradient fp32"
        document = {**HEAD, "finished": True, "seconds": 12, "commit": "abc", "driver_version": 13000,
                    "nccl_version": 22809, "rehearsal": False,
                    "parts": [{"name": "logprob", "outcome": "passed", "seconds": 1},
                              {"name": "pool", "outcome": "failed", "seconds": 1, "reason": "exit 1: 3 | 4"},
                              {"name": "rules-driver", "outcome": "differs", "seconds": 1,
                               "rules": {"a_rule": "differs"}, "differing": {"a_rule": "cuMemFree returned 0"}},
                              {"name": "figures g", "outcome": "passed", "seconds": 1, "gpu": telemetry, "figures": [
                                  {"group": shape, "name": "copy, 8 bytes per logit", "ns_median": 4e6},
                                  {"group": shape, "name": "backward, gradient fp32", "ns_median": 3e6, "bandwidth_fraction": 0.91},
                                  {"group": "g", "name": "copy", "ns_median": 2e6},
                                  {"group": "g", "name": "forward", "ns_median": 1e6, "ratio_median": 0.5,
                                   "bandwidth_fraction": 0.97, "pool_bytes": 1 << 30}]}]}
        text = tables.page([document])
        for piece in ("Some GPU (80 GB)", "2 passed", "1 failed", "exit 1: 3 \\| 4", "a_rule", "cuMemFree returned 0",
                      "| 8 x 16 bf16, gradient fp32 | 4.00 ms |  | 3.00 ms 0.910 |", "| g | forward | 1.00 ms | 0.50 | 0.970 | pool 1.00 GiB |",
                      "1200 to 1980 MHz, usually 1900"):
            self.assertIn(piece, text)

    def test_fit(self):
        """Figures of fit are beside measured ones; there are none where a training did not run."""
        row = {"group": "fit: dense", "name": "default", "fit_largest": 15, "largest_batch": 16, "limit_bytes": 16 << 30, "fit_reserved_bytes": 15 << 30,
               "torch_peak_reserved_bytes": 16 << 30, "reserved_percent": -6.25, "fit_peak_bytes": 14 << 30, "torch_peak_allocated_bytes": 14 << 30,
               "peak_percent": 0.0, "fit_retries": 0, "num_alloc_retries": 2}
        none = {**row, "name": "expandable", "fit_largest": 0, "largest_batch": 0, **dict.fromkeys(
            [key for key in row if key.endswith(("reserved_bytes", "allocated_bytes", "peak_bytes", "percent", "retries"))])}
        document = {**HEAD, "commit": "abc", "parts": [{"name": "edge dense", "outcome": "passed", "figures": [row, none]},
                                                       {"name": "context and libraries", "outcome": "passed", "figures": [
                                                           {"group": "fit: beside", "name": "context", "beside_bytes": 1 << 29}]}]}
        text = tables.page([document])
        for piece in ("in 16.00 GiB, by `bucketpool fit`",
                      "| dense | default | 15 | 16 | 15.00 GiB | 16.00 GiB | -6.25 % | 14.00 GiB | 14.00 GiB | +0.00 % | 0 | 2 |",
                      "| dense | expandable | 0 | 0 |  |  |  |  |  |  |  |  |", "| fit: beside | context |  |  |  | the driver's used beside PyTorch's reserved 0.50 GiB |"):
            self.assertIn(piece, text)

    def test_newest_outcome_of_each_part(self):
        def document(day, *parts):
            return {**HEAD, "date": f"2026-01-0{day}", "commit": f"of day {day}",
                    "parts": [{"name": name, "outcome": outcome, "reason": f"{outcome} on day {day}"} for name, outcome in parts]}

        text = tables.page([document(1, ("a", "failed"), ("b", "failed"), ("c", "failed")), document(2, ("a", "passed"), ("c", "not run"))])
        self.assertIn("1 passed, 2 failed", text)
        self.assertNotIn("| a |", text)
        for piece in ("of day 1", "of day 2", "| b | failed | failed on day 1 |", "| c | failed | failed on day 1 |"):
            self.assertIn(piece, text)

    def test_parts_that_did_not_end(self):
        """A later run without time for a part keeps what is known of it."""
        for later in ("skipped", "cut", "running", "not run"):
            known = [{**HEAD, "date": f"2026-01-0{day}", "commit": "c", "parts": [{"name": "a", "outcome": outcome}]}
                     for day, outcome in ((1, "passed"), (2, later))]
            self.assertIn("1 passed", tables.page(known))

    def test_rehearsals_on_page(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, rehearsal in (("a", True), ("b", False)):
                with open(os.path.join(folder, name + ".json"), "w", encoding="utf-8") as file:
                    json.dump({**HEAD, "format": "bucketpool.gpu/2", "rehearsal": rehearsal, "commit": name,
                               "parts": []}, file)
            self.assertEqual([d["commit"] for d in tables.documents(folder)], ["b"])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
