# SPDX-License-Identifier: Apache-2.0
"""verl's comparisons of its fused head, which are programs for GPUs: the same classes, with sizes for any machine."""

import importlib.util
import os
import subprocess
import sys

import pytest

SIZES = [(37, 96, 1031), (64, 128, 2048)]  # tokens, hidden, vocabulary of a rank


def loaded(file):
    spec = importlib.util.spec_from_file_location(file, os.path.join("tests", "utils", file + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def with_sizes(kind, sizes):
    """A subclass whose cases are of `sizes`."""
    import torch

    class Sized(kind):
        def generate_hyper(self):
            self.dtype, self.batch_size = torch.bfloat16, 1
            self.num_tokens, self.hidden_size, self.vocab_size = sizes

    return Sized


@pytest.mark.parametrize("sizes", SIZES)
def test_linear_cross_entropy(sizes):
    with_sizes(loaded("test_linear_cross_entropy").TestLinearCrossEntropy, sizes)(0).verify_correctness(iterations=2)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_tensor_parallel(ranks):
    done = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone",
                           f"--nproc_per_node={ranks}", __file__],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:]


if __name__ == "__main__":
    test = with_sizes(loaded("test_special_linear_cross_entropy_tp").TestLinearCrossEntropy_TensorParallel, SIZES[1])()
    test.initialize(0)
    test.verify_torch_itself(iterations=1)
    test.verify_kernel_correctness(iterations=2)
    test.shutdown()
