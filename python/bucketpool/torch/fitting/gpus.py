# SPDX-License-Identifier: Apache-2.0
"""Memory of GPUs, and what contexts and libraries take of it.

Totals are what PyTorch names in out-of-memory errors ("has a total capacity of"), the lowest that was found for each GPU:
drivers differ by 0.1 GiB. Reserves were measured on an H100 (PyTorch 2.11, CUDA 13.0): what the driver counts beside
the memory that PyTorch reserved. NCCL communicators of many ranks may take more.
"""

from typing import NamedTuple, Optional, Tuple

from ...errors import InvalidArgument

__all__ = ["GPUS", "Gpu", "find"]

GIB = 1 << 30
ALONE = int(0.82 * GIB)  # context, cuBLAS, kernels: FSDP2 steps on emulated ranks
WITH_NCCL = int(1.33 * GIB)  # Megatron-FSDP, two ranks of NCCL on one GPU, each


class Gpu(NamedTuple):
    """name; bytes that a program can have in all; reserve_bytes of contexts and libraries, and where that is from."""

    name: str
    bytes: int
    reserve_bytes: int
    source: str
    capability: Tuple[int, int] = (9, 0)

    @property
    def limit_bytes(self) -> int:
        """Left for PyTorch."""
        return self.bytes - self.reserve_bytes


GPUS = {  # title, GiB, capability; the names are those of `bucketpool plan --gpu`
    "h100": ("H100 80GB", 79.10, (9, 0)),
    "h200": ("H200", 139.72, (9, 0)),
    "a100-80": ("A100 80GB", 79.14, (8, 0)),
    "a100-40": ("A100 40GB", 39.38, (8, 0)),
    "b200": ("B200", 178.35, (10, 0)),
    "l40s": ("L40S", 44.39, (8, 9)),
    "a6000": ("RTX A6000", 47.41, (8, 6)),
    "rtx5090": ("RTX 5090", 31.36, (12, 0)),
    "rtx4090": ("RTX 4090", 23.53, (8, 9)),
    "rtx3090": ("RTX 3090", 23.57, (8, 6)),
    "a10": ("A10", 21.98, (8, 6)),
    "l4": ("L4", 21.95, (8, 9)),
    "t4": ("T4", 14.56, (7, 5)),
}


def find(name: Optional[str], memory: Optional[int], reserve: Optional[int], ranks: int) -> Gpu:
    """The GPU of a name (None: h100), or one with so much memory. reserve: replaces the measured one."""
    if name is not None and name not in GPUS:
        raise InvalidArgument(f"--gpu {name}: unknown; known are {', '.join(GPUS)}; --memory takes any size, such as 48g")
    title, gib, capability = GPUS[name or "h100"]
    if memory is not None:
        title, capability = title if name is not None else f"GPU of {memory / GIB:.4g} GiB", capability if name is not None else (9, 0)
    total = memory if memory is not None else int(gib * GIB)
    if reserve is not None:
        source = "as given"
    else:
        reserve = ALONE if ranks == 1 else WITH_NCCL
        source = "context and libraries" + (" with NCCL" if ranks > 1 else "") + ", measured on an H100"
    if reserve >= total:
        raise InvalidArgument(f"reserve: {reserve / GIB:.4g} GiB of context and libraries leave nothing of the GPU's "
                              f"{total / GIB:.4g} GiB; pass less")
    return Gpu(title, total, reserve, source, capability)
