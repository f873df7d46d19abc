# SPDX-License-Identifier: Apache-2.0
"""Answers that were found before: $XDG_CACHE_HOME/bucketpool/fit, by the content of model, options and versions."""

import contextlib
import glob
import hashlib
import json
import os
import sys
import uuid
from typing import Any, Dict, Optional

from ...errors import FileError

__all__ = ["key_of", "load", "recording_path", "store", "versions"]

KEPT = 64  # files; the oldest go


_DECIDE = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE", "TORCH_CUBLASLT_UNIFIED_WORKSPACE", "DISABLE_ADDMM_CUDA_LT",
           "TORCH_CUDNN_SDPA_DEPRIORITIZED", "PYTHONHASHSEED")  # variables that recordings depend on


def folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(base, "bucketpool", "fit")
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except OSError as error:
        raise FileError(f"{path}: the folder of answers cannot be made: {error.strerror}; set XDG_CACHE_HOME to another one") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileError(f"{path}: the folder of answers cannot be written; set XDG_CACHE_HOME to another one")
    return path


def versions() -> Dict[str, str]:
    """Of what decides an answer."""
    from ... import __version__
    found = {"bucketpool": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("torch", "transformers"):
        if name in sys.modules:
            found[name] = str(sys.modules[name].__version__)
    return found


def key_of(options: Dict[str, Any], config: bytes, command: Optional[str]) -> str:
    """Also of this package's and the command's files, which change while they are developed."""
    variables = {name: os.environ[name] for name in _DECIDE if name in os.environ}
    whole = hashlib.sha256(json.dumps([options, versions(), variables], sort_keys=True).encode() + config)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path in [*sorted(glob.glob(os.path.join(own, "*.py")) + glob.glob(os.path.join(own, "*", "*.py"))),
                 *([command] if command else [])]:
        with open(path, "rb") as file:
            whole.update(hashlib.sha256(file.read()).digest())
    return whole.hexdigest()[:32]


def load(key: str) -> Optional[Dict[str, Any]]:
    """The document; None: there is none, or its recording is gone."""
    path = os.path.join(folder(), f"{key}.json")
    try:
        with open(path, encoding="utf-8") as file:
            document: Dict[str, Any] = json.load(file)
    except (OSError, ValueError):
        return None
    recording = document.get("shown", {}).get("recording")
    if recording is not None and not os.path.exists(recording):
        return None
    for each in (path, recording):
        if each is not None:
            with contextlib.suppress(OSError):  # another process removed it, or owns it
                os.utime(each)
    return {**document, "is_cached": True}


def store(key: str, document: Dict[str, Any]) -> None:
    """Another process may store the same at the same time. An answer that finds no room is not stored."""
    path = os.path.join(folder(), f"{key}.json")
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
    _prune()


def recording_path() -> str:
    """A new file, which stays until newer ones replace it."""
    return os.path.join(folder(), f"{uuid.uuid4().hex}.pickle")


def _prune() -> None:
    ages = []
    for path in glob.glob(os.path.join(folder(), "*")):
        with contextlib.suppress(OSError):  # another process removed it
            ages.append((os.path.getmtime(path), path))
    for _, path in sorted(ages)[:-KEPT]:
        with contextlib.suppress(OSError):
            os.remove(path)
