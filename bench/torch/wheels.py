"""Packages that are baselines, unpacked from wheels without network: a wheel is a zip file whose content is the package."""

import atexit
import glob
import importlib
import os
import shutil
import sys
import tempfile
import zipfile


class Unavailable(Exception):
    """Why a baseline cannot run here."""


def unpack(folder):
    """Puts the wheels of a folder on Python's path until exit. The names of their files; none where `folder` is None."""
    files = sorted(glob.glob(os.path.join(folder, "*.whl"))) if folder else []
    if not files:
        return []
    target = tempfile.mkdtemp(prefix="wheels.")
    atexit.register(shutil.rmtree, target, ignore_errors=True)
    for file in files:
        with zipfile.ZipFile(file) as wheel:
            wheel.extractall(target)
    sys.path.append(target)  # behind what is installed
    return [os.path.basename(file) for file in files]


def attribute(module, name):
    """`name` of a module. Raises Unavailable with what the import says."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # packages look for a GPU when they are imported
        raise Unavailable(f"{module}: {type(error).__name__}: {error}") from error
