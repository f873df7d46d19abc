# SPDX-License-Identifier: Apache-2.0
"""Memory that CUDA kernels of PyTorch take beside their outputs, and the choice of an attention kernel.

Sources, of PyTorch 2.11: aten/src/ATen/cuda/CublasHandlePool.cpp (workspaces), native/cuda/Blas.cpp (products of
cuBLASLt), native/transformers/cuda/sdp_utils.cpp (choice), native/transformers/cuda/flash_attn/flash_api.cpp and
native/transformers/cuda/attention_backward.cu (temporaries), native/cuda/layer_norm_kernel.cu,
native/cuda/Embedding.cu.
"""

import os
import re
from typing import Any, Callable, Dict, List, Tuple

import torch

__all__ = ["ATTENTION", "LEFT_OUT", "MULTIPROCESSORS", "PRODUCTS", "TEMPORARIES", "attention_kernel",
           "lt_workspace_bytes", "uses_lt", "workspace_bytes"]

aten = torch.ops.aten

MULTIPROCESSORS = 132  # of an H100
ATTENTION = ("auto", "cudnn", "flash", "efficient", "math")

# Operators whose kernels take a workspace from PyTorch's pool of cuBLAS handles.
PRODUCTS = frozenset(getattr(getattr(aten, name), overload) for name, overload in (
    ("mm", "default"), ("mm", "out"), ("addmm", "default"), ("addmm", "out"), ("bmm", "default"), ("bmm", "out"),
    ("baddbmm", "default"), ("baddbmm", "out"), ("addmv", "default"), ("mv", "default"), ("dot", "default"),
    ("_scaled_mm", "default"), ("_int_mm", "default"), ("_addmm_activation", "default")))
_BIASED = frozenset((aten.addmm.default, aten.addmm.out, aten._addmm_activation.default))
_ALWAYS_LT = frozenset((aten._scaled_mm.default, aten._int_mm.default))


def workspace_bytes(capability: Tuple[int, int]) -> int:
    """Bytes of cuBLAS's workspace for each handle and stream: CUBLAS_WORKSPACE_CONFIG (pairs of KiB and count), or
    32 MiB on Hopper, else 2 * 4096 KiB + 8 * 16 KiB.
    """
    pairs = re.findall(r":([0-9]+):([0-9]+)", os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
    if pairs:
        return sum(int(size) * int(count) for size, count in pairs) << 10
    return 32 << 20 if tuple(capability) == (9, 0) else (2 * 4096 + 8 * 16) << 10


def lt_workspace_bytes(capability: Tuple[int, int]) -> int:
    """Bytes of cuBLASLt's workspace for each handle and stream, beside cuBLAS's: CUBLASLT_WORKSPACE_SIZE in KiB, 1 MiB
    without it; at most cuBLAS's, unless TORCH_CUBLASLT_UNIFIED_WORKSPACE is 0. 0: it is 1, and the memory is cuBLAS's.
    """
    unified = os.environ.get("TORCH_CUBLASLT_UNIFIED_WORKSPACE")
    found = re.match(r"\s*[0-9]+", os.environ.get("CUBLASLT_WORKSPACE_SIZE", ""))
    size = int(found.group()) << 10 if found else 1 << 20
    return 0 if unified == "1" else size if unified == "0" else min(size, workspace_bytes(capability))


def uses_lt(func: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> bool:
    """The product runs in cuBLASLt: fp8, int8, and those that add a bias (isInputCompliesAddmmCudaLt)."""
    if func not in _BIASED:
        return func in _ALWAYS_LT
    bias, left, right = args[:3]
    return (kwargs.get("beta", 1) == 1 and os.environ.get("DISABLE_ADDMM_CUDA_LT") != "1"
            and sum(each != 1 for each in bias.shape) <= 1 and bias.is_contiguous()
            and bias.shape[-1:] == right.shape[1:] and left.dtype.is_floating_point
            and min(*left.shape, *right.shape) > 1)


def attention_kernel(query: Any, key: Any, value: Any, mask: Any, wanted: str, capability: Tuple[int, int]) -> str:
    """"cudnn", "flash", "efficient" or "math", as scaled_dot_product_attention chooses on sm_80 and later."""
    if wanted != "auto":
        return wanted
    half = query.dtype in (torch.float16, torch.bfloat16)
    enabled: Any = torch.backends.cuda
    plain = query.dim() == 4 and all(each.stride(-1) == 1 for each in (query, key, value))
    if half and plain and enabled.cudnn_sdp_enabled() and _prefers_cudnn(query, key, value, capability):
        return "cudnn"
    if (half and plain and mask is None and query.shape[-1] <= 256 and query.shape[-1] == value.shape[-1]
            and enabled.flash_sdp_enabled()):
        return "flash"
    if (plain and query.dtype != torch.float64 and query.shape[-3] == key.shape[-3]
            and query.shape[-1] % (8 if half else 4) == 0 and enabled.mem_efficient_sdp_enabled()):
        return "efficient"
    return "math"


def _prefers_cudnn(query: Any, key: Any, value: Any, capability: Tuple[int, int]) -> bool:
    """check_prefer_cudnn_attention and can_use_cudnn_attention. cuDNN 9.15.1 is in builds for CUDA 13, not before."""
    widths = query.shape[-1], value.shape[-1]
    deterministic = (torch.are_deterministic_algorithms_enabled()
                     and not torch.is_deterministic_algorithms_warn_only_enabled())
    return (tuple(capability) in ((9, 0), (10, 0), (10, 3)) and int((torch.version.cuda or "13").split(".")[0]) >= 13
            and os.environ.get("TORCH_CUDNN_SDPA_DEPRIORITIZED") != "1" and not deterministic
            and all(each % 8 == 0 for each in widths) and key.shape[-2] > 1 and min(query.shape) > 0
            and (max(widths) <= (256 if tuple(capability) == (9, 0) else 128) or capability[0] == 10
                 and widths == (192, 128)))


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _flash_backward(args: Tuple[Any, ...]) -> List[int]:
    """Deterministic algorithms split dq_accum over the multiprocessors."""
    splits = -(-MULTIPROCESSORS // (args[1].shape[0] * args[1].shape[1]))
    return _flash_temporaries(args, splits if torch.are_deterministic_algorithms_enabled() else 1)


def _flash_temporaries(args: Tuple[Any, ...], splits: int) -> List[int]:
    """softmax_d and dq_accum in fp32; dk and dv of every query head where keys have fewer."""
    query, key = args[1], args[2]
    batch, heads, rows, width = query.shape
    rows, width = _up(rows, 128), _up(width, 32) if width <= 192 else 256
    sizes = [4 * batch * heads * rows, 4 * batch * heads * rows * width * splits]
    if key.shape[1] != heads:
        sizes += [batch * key.shape[2] * heads * query.shape[3] * query.element_size()] * 2
    return sizes


def _cudnn_backward(args: Tuple[Any, ...]) -> List[int]:
    """cuDNN's workspace, which is not published. On an H100 (head size 64, 32 heads of queries, 8 of keys) it had the
    size of flash's temporaries and 256 bytes, in one block.
    """
    return [sum(_flash_temporaries(args, 1)) + 256]


def _efficient_backward(args: Tuple[Any, ...]) -> List[int]:
    """delta in fp32, and sums in fp32 where the gradient of the output type cannot hold them."""
    query, key, value = args[1:4]
    batch, heads, rows, _ = query.shape
    sizes = [4 * batch * heads * rows]
    if query.dtype != torch.float32:
        sizes.append(4 * (query.numel() + key.numel() + value.numel()))
    return sizes


def _layer_norm_backward(args: Tuple[Any, ...]) -> List[int]:
    """Partial sums of the gradients of weight and bias, two of at most 64 rows."""
    grad, width = args[0], 1
    for each in args[2]:
        width *= each
    rows = grad.numel() // max(1, width)
    return [min(64, -(-rows // 16)) * width * 4] * 2 if rows > 128 else []


def _embedding_backward(args: Tuple[Any, ...]) -> List[int]:
    """Sorted indices and their origins, with the scratch memory of the sort, for more than 3072 indices."""
    indices = args[1]
    return [indices.numel() * indices.element_size()] * 4 if indices.numel() > 3072 else []


# Bytes of each temporary, from the operator's arguments. They are live at once, beside the outputs, and end with the
# operator.
TEMPORARIES: Dict[Any, Callable[[Tuple[Any, ...]], List[int]]] = {
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
}

LEFT_OUT = ("not modelled: buffers of NCCL, cuDNN (but for attention) and of other libraries, and small temporaries of "
            "sorts, scans and copies of many tensors")
