# SPDX-License-Identifier: Apache-2.0
"""The machine of a GPU run: its driver, its libraries, and the GPU's clocks, power and temperature while parts run."""

import ctypes
import datetime
import glob
import os
import platform
import re
import statistics
import subprocess
import sys


def output_of(*command):
    """Standard output of a short command; "" where it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def query_driver(library="libcuda.so.1"):
    """Returns (facts, None), or (None, reason) without a usable GPU."""
    try:
        driver = ctypes.CDLL(library)
    except OSError as error:
        return None, f"no CUDA driver: {error}"
    code = driver.cuInit(0)
    if code != 0:
        return None, f"the CUDA driver does not start: cuInit returned {code}"
    count, version, name, device = ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(128), ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return None, "the CUDA driver finds no GPU"
    driver.cuDriverGetVersion(ctypes.byref(version))
    driver.cuDeviceGet(ctypes.byref(device), 0)
    driver.cuDeviceGetName(name, 128, device)
    return {"device": name.value.decode(errors="replace"), "devices": count.value, "driver_version": version.value}, None


def describe(facts, run, commit, nccl):
    """The head of a results document."""
    release = re.search(r"release ([\d.]+)", output_of("nvcc", "--version") or output_of("/usr/local/cuda/bin/nvcc", "--version"))
    return {
        "format": "bucketpool.gpu/2",
        "run": run,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "commit": commit or output_of("git", "describe", "--always", "--dirty", "--tags") or "unknown: pass --commit ID",
        **facts,
        "cuda_toolkit": release.group(1) if release else None,
        "nccl": nccl and os.path.basename(nccl),
        "nccl_version": nccl_version(nccl),
        "compiler": "".join(output_of("cc", "--version").splitlines()[:1]),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "cores": os.cpu_count(),
    }


# ---- libraries ---------------------------------------------------------------------------------------------------------


def python_packages():
    """The library folders of NVIDIA's Python packages on sys.path."""
    return [folder for path in sys.path for folder in sorted(glob.glob(os.path.join(path, "nvidia", "*", "lib")))]


def find_nccl():
    """The NCCL that a training runtime on this machine would load; the loader's where no copy is known by its path."""
    folders = [*python_packages(), "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"]
    found = [file for folder in folders for file in sorted(glob.glob(os.path.join(folder, "libnccl.so.2*")))]
    return found[0] if found else "libnccl.so.2"


def nccl_version(library):
    """As ncclGetVersion returns it; None where the library does not load."""
    try:
        version = ctypes.c_int()
        return version.value if ctypes.CDLL(library).ncclGetVersion(ctypes.byref(version)) == 0 else None
    except (OSError, AttributeError, TypeError):
        return None


def find_cublas():
    """The folder of a cuBLAS, of CUDA 13 before one of CUDA 12, outside the loader's search path: of a toolkit or of a Python package; "" where there is none."""
    folders = ["/usr/local/cuda/lib64", *python_packages()]
    return next((f for release in (13, 12) for f in folders if os.path.exists(os.path.join(f, f"libcublas.so.{release}"))), "")


# ---- clocks, power, temperature ------------------------------------------------------------------------------------------


class Telemetry:
    """Readings of GPU 0 through NVML, by its C interface (nvml.h). NVML stays open for the whole run: on a machine without the persistence
    daemon each process would otherwise start the driver anew. Without NVML every reading is None."""

    CLOCK_SM, CLOCK_MEMORY, SENSOR_GPU = 1, 2, 0

    def __init__(self):
        self.nvml, self.device, self.before, self.samples = None, ctypes.c_void_p(), None, []

    def open(self, library="libnvidia-ml.so.1"):
        """Returns why there are no readings, or None."""
        try:
            nvml = ctypes.CDLL(library)
            code = nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device))
        except (OSError, AttributeError) as error:
            return f"no NVML: {error}"
        if code != 0:
            return f"NVML does not start: error {code}"
        self.nvml = nvml
        return None

    def _read(self, function, kind, *arguments):
        value = kind()
        call = getattr(self.nvml, function, None)
        return value.value if call is not None and call(self.device, *arguments, ctypes.byref(value)) == 0 else None

    def read(self):
        """One reading, or None."""
        if self.nvml is None:
            return None
        milliwatts = self._read("nvmlDeviceGetPowerUsage", ctypes.c_uint)
        return {
            "sm_mhz": self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, self.CLOCK_SM),
            "memory_mhz": self._read("nvmlDeviceGetClockInfo", ctypes.c_uint, self.CLOCK_MEMORY),
            "power_w": None if milliwatts is None else milliwatts / 1000,
            "temperature_c": self._read("nvmlDeviceGetTemperature", ctypes.c_uint, self.SENSOR_GPU),
            "throttle_reasons": self._read("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong),
        }

    def begin(self):
        """Starts the readings of a part."""
        self.before, self.samples = self.read(), []

    def sample(self):
        """A reading while a program of the part runs."""
        self.samples.append(self.read())

    def end(self):
        """Readings before and after a part; while its programs ran the least, the median and the largest. None without NVML."""
        after = self.read()
        if self.before is None or after is None:
            return None
        seen = {key: [s[key] for s in self.samples if s and s[key] is not None] for key in after}
        reasons = 0
        for value in seen.pop("throttle_reasons"):
            reasons |= value
        return {"before": self.before, "after": after, "throttle_reasons": reasons,
                "during": {key: [min(values), statistics.median(values), max(values)] for key, values in seen.items() if values}}
