"""The architecture: permitted includes between folders, needed libraries, exported symbols.

Arguments: source directory, core library, those of the formats, MPI and log-probability libraries that are built.
"""

import os
import re
import subprocess
import sys
import unittest

ROOT, CORE = sys.argv[1:3]
FORMATS = next((library for library in sys.argv[3:] if "formats" in os.path.basename(library)), None)
MPI = next((library for library in sys.argv[3:] if "mpi" in os.path.basename(library)), None)
LOGPROB = next((library for library in sys.argv[3:] if "logprob" in os.path.basename(library)), None)

# A folder may include its own headers and those of the folders named here.
MAY_INCLUDE = {
    "core": {"core"},
    "files": {"core", "files"},
    "model": {"core", "model"},
    "packing": {"core", "packing"},
    "schedule": {"core", "model", "schedule"},
    "plan": {"core", "model", "schedule", "plan"},
    "whatif": {"core", "model", "schedule", "plan"},
    "devices": {"core", "devices"},
    "memory": {"core", "devices", "memory"},
    "nvtx": {"nvtx"},
    "pinned": {"core", "devices", "pinned"},
    "offload": {"core", "devices", "memory", "pinned", "allocators", "offload"},
    "allocators": {"core", "devices", "memory", "nvtx", "plan", "schedule", "allocators"},
    "comms": {"core", "devices", "memory", "nvtx", "comms"},
    "profile": {"core", "devices", "memory", "allocators", "files", "profile"},
    "steps": {"core", "steps"},
    "torch": {"core", "devices", "memory", "torch"},
    "formats": {"core", "files", "formats"},
    "logprob": {"core", "logprob"},
    "mpi": {"core", "mpi"},
}
# Separate libraries, which use the core's public headers, and sources that are compiled into several libraries.
OUTSIDE = ("files", "formats", "logprob", "mpi")
# The GPU emulation, for kernels that are compiled for it.
EMULATION = {os.path.join("src", "logprob", "cuda", "device.cuh"): "simt.h"}
# libc, and the loader, which implements thread-local storage.
LIBC = {"libc.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
# Core headers with inline functions only: other libraries may include them.
INLINE_HEADERS = {"core/fail.h", "core/arith.h", "core/halves.h", "core/structs.h", "core/text.h", "core/timeout.h"}
# Headers, not installed, of functions for other libraries and the command: exported as BUCKETPOOL_PRIVATE.
PRIVATE_HEADERS = {"devices/clients.h", "devices/cuda_driver.h", "formats/packing_file.h",
                   "formats/snapshots/snapshot.h", "formats/snapshots/trace_file.h", "memory/slab_callbacks.h", "model/arch_config.h",
                   "plan/from_info.h", "steps/caching_allocator.h", "steps/playback.h", "steps/steps.h", "steps/trace.h"}
