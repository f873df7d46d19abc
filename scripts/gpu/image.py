# SPDX-License-Identifier: Apache-2.0
"""Loads images of kernels by the driver, without its compiler for PTX (CUDA_DISABLE_PTX_JIT), and says which code it took.

usage: python3 scripts/gpu/image.py [--json FILE] IMAGE...     IMAGE: a fatbin, or a library that has one

Exits 0, 1 (an image does not load) or 77 (no image, or no GPU)."""

import argparse
import ctypes
import os
import sys
import time

os.environ["CUDA_DISABLE_PTX_JIT"] = "1"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path += [os.path.join(ROOT, "bench", "torch"), os.path.join(ROOT, "clients", "logprob", "src", "cuda")]

import fatbin  # noqa: E402
from report import Report, skip_all  # noqa: E402

KERNEL, BINARY_VERSION, NOT_SUPPORTED = b"bp_forward_bf16", 6, 801


class Driver:
    """The calls of libcuda that loading takes. Raises RuntimeError with the code of a call that failed."""

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            skip_all(f"no CUDA driver: {error}")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGet", ctypes.byref(device), 0)
        except RuntimeError as error:
            skip_all(f"no GPU: {error}")
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        code = getattr(self.library, name)(*arguments)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def load(self, image):
        """Nanoseconds, and the compute capability that the code was assembled for; None where the driver does not say it."""
        module, kernel, version = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
        begin = time.perf_counter_ns()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        self.call("cuModuleGetFunction", ctypes.byref(kernel), module, KERNEL)
        took = time.perf_counter_ns() - begin
        code = self.library.cuFuncGetAttribute(ctypes.byref(version), BINARY_VERSION, kernel)
        if code not in (0, NOT_SUPPORTED):
            raise RuntimeError(f"cuFuncGetAttribute: {code}")
        self.call("cuModuleUnload", module)
        return took, version.value if code == 0 else None


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("images", nargs="+")
    options = parser.parse_args()
    images = {}
    for path in options.images:
        with open(path, "rb") as file:
            image = fatbin.image_of(file.read())
        if image:
            images[path] = image
    if not images:
        skip_all("no kernels in " + ", ".join(map(os.path.basename, options.images)))
    driver, report = Driver(), Report(options.json, program="gpu/image")
    for path, image in images.items():
        name = os.path.basename(path)
        try:
            took, version = driver.load(image)
        except RuntimeError as error:
            report.check(f"{name} loads", False, str(error))
            continue
        report.figure("kernels' image", name, [took], bytes=len(image), **({"code": f"sm_{version}"} if version else {}))
        report.check(f"{name} loads", True, f"sm_{version}" if version else "")
    return report.status()


if __name__ == "__main__":
    sys.exit(main())
