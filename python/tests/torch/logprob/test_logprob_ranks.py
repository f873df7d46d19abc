# SPDX-License-Identifier: Apache-2.0
"""Log-probabilities, entropies and the fused head over process groups (gloo) of 2 and 4 processes."""

import pytest

from logprob_ranks import case_names, outcome


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("module,case", [pair for pair in case_names() if pair[0] == "logprob_cases"])
def test_case(ranks, module, case):
    wrong = outcome(ranks)[f"{module}.{case}"]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("ranks", [2, 4])
def test_exit_of_processes(ranks):
    assert not outcome(ranks).get("end"), "\n".join(outcome(ranks)["end"])
