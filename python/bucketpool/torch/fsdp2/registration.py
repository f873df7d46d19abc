# SPDX-License-Identifier: Apache-2.0
"""Registration of a pool with the NCCL communicators of a sharded module. Internal."""

from typing import Any, List

from ...device import Device
from ...pool import Pool
from ...registration import Registration
from ..nccl import register
from .groups import Group, _field


def register_groups(pool: Pool, device: Device, groups: List[Group], kind: str) -> Registration:
    """Registers the slabs with the NCCL communicators of all groups, in their order. Collective. The caller closes the
    registration.
    """
    used: List[Any] = []
    for group in groups:
        for name in ("_all_gather_process_group", "_reduce_scatter_process_group"):
            used.append(_field(group.handle, name))
    averages = any(not _field(group.handle, "force_sum_reduction_for_comms") for group in groups)
    traffic = ["gather", "reduce_scatter"] + ["float_avg"] * averages
    return register(pool, device, used, groups[0].device, kind, traffic)
