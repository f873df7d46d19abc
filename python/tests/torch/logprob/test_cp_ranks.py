# SPDX-License-Identifier: Apache-2.0
"""Packed sequences, split over context-parallel ranks and brought back, on 2 and 4 processes (gloo)."""

import pytest

from logprob_ranks import case_names, outcome


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("module,case", [pair for pair in case_names() if pair[0] == "cp_cases"])
def test_case(ranks, module, case):
    wrong = outcome(ranks)[f"{module}.{case}"]
    assert not wrong, "\n".join(wrong)
