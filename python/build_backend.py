# SPDX-License-Identifier: Apache-2.0
"""The build backend of the wheel: meson-python's, whose tag names one version of Python. The package loads its
libraries with ctypes, so one wheel serves every Python 3 of a platform: py3-none-<platform>. The compiled binding is
optional: a Python older than 3.11 leaves it alone (_library.py), which a tag of cp311-abi3 would not allow.
"""

import os
import subprocess
import sys

from mesonpy import *  # noqa: F403: the other hooks are meson-python's
from mesonpy import build_wheel as build_tagged


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    print(
        "bucketpool: compiles the libraries and the command, about a minute on two cores, and CUDA kernels where there is nvcc,"
        " a minute or two for each architecture: this machine's GPU, else sm_90 with PTX for others;"
        " -Csetup-args=-Dkernels_arch=all compiles all, -Csetup-args=-Dkernels=disabled none",
        flush=True,
    )
    name = build_tagged(wheel_directory, config_settings, metadata_directory)
    retag = [sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", "py3", "--abi-tag", "none"]
    result = subprocess.run(
        [*retag, os.path.join(wheel_directory, name)], stdout=subprocess.PIPE, text=True, check=True
    )
    return os.path.basename(result.stdout.split()[-1])
