# SPDX-License-Identifier: Apache-2.0
"""Types of arguments, DTensors and compiled calls, over process groups (gloo) of 1, 2 and 4 processes."""

import pytest

pytest.importorskip("numpy")

from logprob_ranks import case_names, outcome  # noqa: E402


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("module,case", [pair for pair in case_names() if pair[0] == "argument_cases"])
def test_case(ranks, module, case):
    wrong = outcome(ranks)[f"{module}.{case}"]
    assert not wrong, "\n".join(wrong)
