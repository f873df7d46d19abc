"""Training with Megatron-FSDP on two ranks (gloo), pooled and not: the same bits."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import pytest

pytest.importorskip("torch")
pytest.importorskip("megatron_fsdp", reason="the megatron-fsdp package is not installed")

HERE = os.path.dirname(os.path.abspath(__file__))
RANKS = 2


class Training(unittest.TestCase):
    def test_same_bits(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            outputs = [os.path.join(folder, f"rank{rank}.json") for rank in range(RANKS)]
            environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONFAULTHANDLER="1")
            ranks = [subprocess.Popen([sys.executable, os.path.join(HERE, "megatron_train.py"), str(rank), str(RANKS),
                                       os.path.join(folder, "store"), outputs[rank]], env=environment,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                     for rank in range(RANKS)]
            try:
                said = [process.communicate(timeout=300)[0] for process in ranks]
            finally:
                for process in ranks:
                    process.kill()
            self.assertEqual([process.returncode for process in ranks], [0] * RANKS, "\n".join(said))
            results = []
            for path in outputs:
                with open(path, encoding="utf-8") as file:
                    results.append(json.load(file))
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
