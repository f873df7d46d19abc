"""Baseline packages from wheels, without network: a wheel is a zip file of the package."""

import atexit
import glob
import importlib
import os
import shutil
import sys
import tempfile
import zipfile


class Unavailable(Exception):
    """The reason why a baseline cannot run here."""


def unpack(folder):
    """Adds the wheels of a folder to Python's path until exit. Returns their file names; none if `folder` is None."""
    files = sorted(glob.glob(os.path.join(folder, "*.whl"))) if folder else []
    if not files:
        return []
    target = tempfile.mkdtemp(prefix="wheels.")
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for file in files:
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(target)
    sys.path.append(target)  # after installed packages
    return [os.path.basename(file) for file in files]


def attribute(module, name):
    """`name` of a module. Raises Unavailable with the import error."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # packages look for a GPU at import
        raise Unavailable(f"{module}: {type(error).__name__}: {error}") from error
