# SPDX-License-Identifier: Apache-2.0
"""Answers that were found before: $XDG_CACHE_HOME/bucketpool/fit, by the content of model, options and versions."""

import glob
import hashlib
import json
import os
import sys
import uuid
from typing import Any, Dict, Optional

__all__ = ["key_of", "load", "recording_path", "store", "versions"]

KEPT = 64  # files; the oldest go


def folder() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = os.path.join(base, "bucketpool", "fit")
    os.makedirs(path, mode=0o700, exist_ok=True)
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
    whole = hashlib.sha256(json.dumps([options, versions()], sort_keys=True).encode() + config)
    own = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for path in [*sorted(glob.glob(os.path.join(own, "trace", "*.py")) + glob.glob(os.path.join(own, "fitting", "*.py"))),
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
    recording = document["shown"]["recording"]
    if recording is not None and not os.path.exists(recording):
        return None
    for each in (path, recording):
        if each is not None:
            os.utime(each)
    return {**document, "is_cached": True}


def store(key: str, document: Dict[str, Any]) -> None:
    """Another process may store the same at the same time."""
    path = os.path.join(folder(), f"{key}.json")
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(temporary, path)
    _prune()


def recording_path() -> str:
    """A new file, which stays until newer ones replace it."""
    return os.path.join(folder(), f"{uuid.uuid4().hex}.pickle")


def _prune() -> None:
    files = sorted(glob.glob(os.path.join(folder(), "*")), key=os.path.getmtime)
    for path in files[:-KEPT]:
        try:
            os.remove(path)
        except OSError:
            pass
