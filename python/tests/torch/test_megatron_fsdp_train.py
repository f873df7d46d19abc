"""Training with Megatron-FSDP on two ranks (gloo), pooled and not: the same bits."""

import unittest

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron_fsdp", reason="the megatron-fsdp package is not installed")

import process_group  # noqa: E402
from megatron_train import all_runs  # noqa: E402


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


if __name__ == "__main__":
    unittest.main()
