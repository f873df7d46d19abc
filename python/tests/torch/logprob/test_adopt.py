# SPDX-License-Identifier: Apache-2.0
"""bucketpool.torch.adopt on released packages, which ./check --torch installs: values, signatures, reports, undoing."""

import importlib.util
import os
import re

import pytest

import adopt_cases
import adopt_releases
import process_group
from places import ROOT

GUIDE = os.path.join(ROOT, "docs", "guides", "log_probabilities_setup.md")
TRITON = importlib.util.find_spec("triton") is not None

pytestmark = pytest.mark.skipif(
    not os.path.isdir(adopt_releases.RELEASES),
    reason=f"no released packages in {adopt_releases.RELEASES}; ./check --torch installs them")


def run(case, ranks=1):
    return process_group.run(getattr(adopt_cases, case), ranks=ranks,
                             environment={"TRITON_INTERPRET": "1"} if TRITON else None)[0]


@pytest.mark.parametrize("case, ranks, functions", [
    ("trl_values", 1, 3), ("skyrl_values", 1, 6), ("skyrl_ranks", 2, 6), ("verl_values", 1, 6), ("verl_ranks", 2, 6),
    ("areal_values", 1, 2), ("areal_ranks", 2, 2), ("liger_values", 1, 2)
])
def test_values(case, ranks, functions):
    report = run(case, ranks)
    print(report)
    assert report.count(" -> bucketpool.torch.logprob.") == functions
    assert "tested with" not in report and "cannot be imported" not in report


@pytest.mark.skipif(not TRITON, reason="no Triton")
def test_trl_kernel():
    run("trl_kernel")


def test_signatures_and_undoing():
    texts = run("states")
    full = "adopt.trl: trl 1.16.0: trl.trainer.utils.selective_log_softmax"
    for found in ("(logits)", "(logits, index, temperature=0.9, row_mask=None)", "(*arguments, **keywords)",
                  "(logits, index, *, temperature=1.0, row_mask=None)", "nothing of this name"):
        assert (f"{full}: expected (logits, index, temperature=1.0, row_mask=None), the signature of release 1.16.0, "
                f"found {found}; install trl==1.16.0, or leave the function out: "
                "adopt.trl(['entropy_from_logits', 'selective_log_softmax_and_entropy'])") in texts
    assert any(text.startswith("adopt.trl: functions: got 'selective_log_softmx'; expected names of sel") for text in texts)
    assert texts[-1].endswith(
        "trl 1.16.0: undone\n"
        "trl 1.16.0: trl.trainer.utils.selective_log_softmax: left as it is, because it was changed since\n"
        "trl 1.16.0: trl_user.scores: left as it is, because it was changed since")


def test_guide():
    with open(GUIDE, encoding="utf-8") as page:
        block = re.search(r"```text\n(trl [^`]*)```", page.read())[1]
    first, last = block.split("...\n")  # of the replaced functions
    report = run("report")
    assert report.startswith(first.rstrip("\n")) and report.endswith(last.strip("\n"))


def test_missing_parts():
    partly, nothing, missing = run("partly")
    assert "verl 0.9.1: verl.utils.megatron.tensor_parallel: not replaced, it cannot be imported: No module" in partly
    assert partly.count(" -> bucketpool.") == 3
    assert nothing.startswith("adopt.verl: verl 0.9.1: nothing was replaced: verl.utils.megatron.tensor_parallel: No ")
    assert missing == ("adopt.liger: liger-kernel is not installed; install it, liger-kernel==0.8.5 is the release "
                       "that this was tested with")
