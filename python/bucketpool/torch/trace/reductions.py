# SPDX-License-Identifier: Apache-2.0
"""Memory in which blocks of a reduction's kernel meet: large where few outputs have many inputs, as gradients of
biases and of weights of norms.

Source, of PyTorch 2.11: aten/src/ATen/native/cuda/Reduce.cuh (setReduceConfig).
"""

from typing import Any, Callable, Dict, List, Tuple

import torch

from .kernels import MULTIPROCESSORS

__all__ = ["TEMPORARIES"]

aten = torch.ops.aten

_THREADS_OF_MULTIPROCESSOR, _WARP, _THREADS = 2048, 32, 512
_VECTOR = 4  # elements
_FEW, _MANY = 16, 256  # inputs of a thread


def _divided(value: int, by: int) -> int:
    return -(-value // by)


def _power(value: int) -> int:
    """The largest power of two that is not above the value; 1 for 0."""
    return 1 << max(0, value.bit_length() - 1)


def _merged(sizes_and_strides: List[Tuple[int, int]]) -> List[Tuple[int, int]]:
    """Dimensions by stride, neighbours in memory merged."""
    found: List[Tuple[int, int]] = []
    for size, stride in sorted(sizes_and_strides, key=lambda each: each[1]):
        if found and found[-1][0] * found[-1][1] == stride:
            found[-1] = found[-1][0] * size, found[-1][1]
        else:
            found.append((size, stride))
    return found


def _reduction(tensor: Any, dimensions: Any, bytes_of_sum: int) -> List[int]:
    """Partial results and semaphores; none where a block of threads has all inputs of its outputs."""
    if tensor.numel() == 0:
        return []
    chosen = {each % tensor.dim() for each in dimensions} if dimensions else set(range(tensor.dim()))
    places = [(place in chosen, (size, stride)) for place, (size, stride) in enumerate(
        zip(tensor.shape, tensor.stride())) if size > 1]
    reduced = _merged([each for is_reduced, each in places if is_reduced])
    kept = _merged([each for is_reduced, each in places if not is_reduced])
    if not reduced:
        return []
    inputs = outputs = 1
    for size, _ in reduced:
        inputs *= size
    for size, _ in kept:
        outputs *= size
    along = not kept or reduced[0][1] < kept[0][1]  # neighbours in memory are summed up
    width, height = (inputs, outputs) if along else (outputs, inputs)
    vector = 1
    if along:
        if reduced[0][1] == 1 and width >= 128 and len(reduced) == 1:
            width //= _VECTOR
    elif kept[0][1] == 1:
        vector = _VECTOR
        for each in [kept[0][0], tensor.storage_offset(), *(stride for _, stride in reduced + kept[1:])]:
            while each % vector:
                vector //= 2
        width //= vector
    threads = _THREADS // vector
    columns, rows = (_power(each) if each < threads else threads for each in (width, height))
    block_rows = min(rows, threads // min(columns, _WARP))
    block_columns = min(columns, threads // block_rows)
    of_thread = _divided(inputs, block_columns) if along else inputs
    if of_thread < min(block_rows * 16, _MANY):
        return []
    of_thread = _divided(inputs, (block_columns if along else 1) * block_rows)
    grid = _divided(outputs // vector, 1 if along else block_columns)
    wanted = MULTIPROCESSORS * (_THREADS_OF_MULTIPROCESSOR // (block_columns * block_rows))
    if of_thread < _MANY or grid > wanted:
        return []
    blocks = max(min(_divided(wanted, grid), _divided(of_thread, _FEW)), _divided(of_thread, _MANY))
    if blocks < 2:
        return []
    return [bytes_of_sum * outputs * blocks * (1 if along else block_columns * vector), 4 * grid]


def _sum_bytes(tensor: Any) -> int:
    """Of the type in which elements are summed up."""
    return 8 if tensor.dtype in (torch.float64, torch.int64) or not tensor.dtype.is_floating_point else 4


def _sum(args: Tuple[Any, ...]) -> List[int]:
    return _reduction(args[0], args[1] if len(args) > 1 else None, _sum_bytes(args[0]))


def _norm(args: Tuple[Any, ...]) -> List[int]:
    return _reduction(args[0], args[2] if len(args) > 2 else None, _sum_bytes(args[0]))


def _largest(args: Tuple[Any, ...]) -> List[int]:
    return _reduction(args[0], args[1] if len(args) > 1 else None, args[0].element_size())


# As those of kernels.py.
TEMPORARIES: Dict[Any, Callable[..., List[int]]] = {
    aten.sum.default: _sum, aten.sum.dim_IntList: _sum, aten.mean.default: _sum, aten.mean.dim: _sum,
    aten.linalg_vector_norm.default: _norm, aten.amax.default: _largest, aten.amin.default: _largest,
}
