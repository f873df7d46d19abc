# SPDX-License-Identifier: Apache-2.0
"""AReaL's vocabulary-parallel tests, on one rank too, and without GPUs."""

import pytest
from tests.test_vocab_parallel import _run_test_with_torchrun


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_vocab_parallel(ranks):
    _run_test_with_torchrun(world_size=ranks)
