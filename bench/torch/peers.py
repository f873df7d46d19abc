# SPDX-License-Identifier: Apache-2.0
"""Packages to compare with, from a folder and without network: wheels, which are zip files of packages, and copies of repositories."""

import atexit
import glob
import importlib
import importlib.util
import os
import shutil
import sys
import tempfile
import types
import zipfile

# Folders with the package, in copies as `git clone` makes them.
COPIES = {"Liger-Kernel": "src", "ml-cross-entropy": ".", "flash-linear-attention": "."}
SKYRL = os.path.join("SkyRL", "skyrl", "backends", "skyrl_train", "distributed", "megatron", "model_utils.py")


class Unavailable(Exception):
    """The reason why a peer cannot run here."""


def unpack(folder):
    """Adds the wheels and copies in a folder to Python's path until exit. Returns their names; none if `folder` is None."""
    wheels = sorted(glob.glob(os.path.join(folder, "*.whl"))) if folder else []
    copies = [name for name in COPIES if folder and os.path.isdir(os.path.join(folder, name))]
    sys.path += [os.path.abspath(os.path.join(folder, name, COPIES[name])) for name in copies]  # after installed packages
    if wheels:
        target = tempfile.mkdtemp(prefix="wheels.")
        atexit.register(shutil.rmtree, target, ignore_errors=True)
        for file in wheels:
            with zipfile.ZipFile(file) as wheel:
                wheel.extractall(target)
        sys.path.append(target)
    skyrl.file = os.path.join(folder, SKYRL) if folder else SKYRL
    return [os.path.basename(file) for file in wheels] + copies + ["SkyRL"] * os.path.exists(skyrl.file)


def attribute(module, name):
    """`name` of a module. Raises Unavailable with the import error."""
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # packages look for a GPU at import
        raise Unavailable(f"{module}: {type(error).__name__}: {error}") from error


def skyrl(name):
    """`name` of SkyRL's module of log-probabilities, whose import of Megatron-LM is for other functions."""
    if not os.path.exists(skyrl.file):
        raise Unavailable("no copy of SkyRL in the folder of --peers")
    parts = ["megatron", "megatron.core", "megatron.core.parallel_state"]
    before = {part: sys.modules.get(part) for part in parts}
    try:
        for part in parts:
            sys.modules[part] = types.ModuleType(part)
        sys.modules["megatron.core"].parallel_state = sys.modules[parts[2]]
        spec = importlib.util.spec_from_file_location("skyrl_model_utils", skyrl.file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)
    except Exception as error:
        raise Unavailable(f"SkyRL: {type(error).__name__}: {error}") from error
    finally:
        for part, value in before.items():
            if value is None:
                sys.modules.pop(part, None)
            else:
                sys.modules[part] = value


skyrl.file = SKYRL
