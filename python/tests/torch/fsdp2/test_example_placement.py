# SPDX-License-Identifier: Apache-2.0
"""Placement of ranks by examples/fsdp2_train.py: equal decisions on all ranks of a machine, for any number of GPUs."""

import os
import sys

import pytest
from places import ROOT

sys.path.append(os.path.join(ROOT, "examples"))
import fsdp2_train  # noqa: E402


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("gpus", [0, 1, 2, 4])
def test_placement(gpus, ranks):
    placed = [fsdp2_train.placement(rank, ranks, gpus) for rank in range(ranks)]
    assert {backend for backend, _, _ in placed} == {"nccl" if gpus else "gloo"}
    devices = [str(device) for _, device, _ in placed]
    assert devices == [f"cuda:{rank % gpus}" if gpus else "cpu" for rank in range(ranks)]
    hosts = [environment.get("NCCL_HOSTID") for _, _, environment in placed]
    if 0 < gpus < ranks:  # NCCL refuses two ranks of one host on one GPU
        assert None not in hosts and len(set(hosts)) == ranks
        assert all(environment["NCCL_SOCKET_IFNAME"] == "lo" for _, _, environment in placed)
    else:
        assert not any(environment for _, _, environment in placed)
