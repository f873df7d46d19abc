# SPDX-License-Identifier: Apache-2.0
"""Training with Megatron-FSDP on two ranks (gloo), pooled and not: the same bits."""

import unittest

import pytest

pytest.importorskip("megatron_fsdp", reason="the megatron-fsdp package is not installed")

import process_group  # noqa: E402
from megatron_train import all_runs, changed_dtype, run_permuted, two_modules  # noqa: E402


class Training(unittest.TestCase):
    def test_same_bits(self) -> None:
        results = process_group.run(all_runs, ranks=2, seconds=300)
        for rank, runs in enumerate(results):
            expected = runs["without double buffers"]
            self.assertEqual(len(set(expected["losses"])), len(expected["losses"]))  # it learns
            for name, run in runs.items():
                with self.subTest(rank=rank, run=name):
                    self.assertEqual(run["losses"], expected["losses"])
                    self.assertEqual(run["weights"], expected["weights"])
                    self.assertEqual(run.get("deviations", 0), 0)
        for name, run in results[0].items():
            if run["bytes"]:
                print(f"{name}: {run['bytes']} bytes of buffers, last loss {float.fromhex(run['losses'][-1])!r}")
        pooled = results[0]["pooled, scheduled"]
        for name in {"FixedPoolAllocator", "MaxPoolAllocator"} & set(results[0]):
            self.assertLessEqual(pooled["bytes"], results[0][name]["bytes"])
        self.assertEqual(pooled["live"]["grad"], [])

    def test_other_orders(self) -> None:
        """Units in another order each time: the same bits where modules save parameters, as Transformer Engine does;
        never other bits where they save views, as nn.Linear does: ScheduleError then."""
        for saves_views in (False, True):
            for shuffle in (0, 1):
                expected, = process_group.run(run_permuted, "none", shuffle, saves_views, ranks=2)[:1]
                for on_mismatch in ("replan", "plain"):
                    with self.subTest(saves_views=saves_views, shuffle=shuffle, on_mismatch=on_mismatch):
                        run, = process_group.run(run_permuted, on_mismatch, shuffle, saves_views, ranks=2)[:1]
                        if saves_views and "error" in run:
                            self.assertIn("autograd saved views", run["error"])
                            continue
                        self.assertGreater(run.pop("busy"), 0)
                        self.assertEqual(run, expected)

    def test_two_modules(self) -> None:
        for run in process_group.run(two_modules, ranks=2):
            self.assertTrue(run["same"])
            self.assertEqual(run["pools"], 2)
            self.assertIn("2 modules are wrapped", run["refused"])
            self.assertTrue(all(run["served"]))
            self.assertEqual(run["unplanned"], [0, 0])

    def test_changed_dtype(self) -> None:
        for run in process_group.run(changed_dtype, ranks=2):
            for name in ("replan", "plain"):
                self.assertEqual(run[name]["losses"], run["fixed"]["losses"])
                self.assertGreater(run[name]["counts"]["differing"], 0)
            self.assertEqual((run["replan"]["counts"]["replans"], run["plain"]["counts"]["replans"]), (1, 0))
            self.assertLess(run["replan"]["counts"]["differing"], run["plain"]["counts"]["differing"])
            self.assertIn("planned as fp32, requested as bf16", run["error"]["losses"][0])


if __name__ == "__main__":
    unittest.main()
