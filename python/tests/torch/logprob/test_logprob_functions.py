# SPDX-License-Identifier: Apache-2.0
"""Further functions of logits and of the fused head, on one rank and over process groups (gloo) of 2 and 4."""

import pytest
import torch

import function_cases
from logprob_ranks import case_names, outcome

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.mark.parametrize("name", [name for name in sorted(vars(function_cases)) if name.startswith("case_")])
def test_one_rank(name):
    torch.manual_seed(1)
    getattr(function_cases, name)(0, 1)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("module,case", [pair for pair in case_names() if pair[0] == "function_cases"])
def test_case(ranks, module, case):
    wrong = outcome(ranks)[f"{module}.{case}"]
    assert not wrong, "\n".join(wrong)
