# SPDX-License-Identifier: Apache-2.0
"""The kernels in libbucketpool-logprob: a table of their ELF and PTX versions; and the emulated driver loads them from the version on that
the headers promise, and their PTX before.

Arguments: the source directory, the build directory, the folder of the emulated driver, its library of kernels or "", the ptxas that assembled
the kernels or ""."""

import os
import re
import subprocess
import sys
import unittest

SOURCE, BUILD, FOLDER, EMULATED, PTXAS = sys.argv[1:]
sys.path.insert(0, os.path.join(SOURCE, "clients", "logprob", "src", "cuda"))
import fatbin  # noqa: E402

with open(os.path.join(BUILD, "clients", "logprob", "libbucketpool-logprob.so.0"), "rb") as library:
    IMAGE = fatbin.image_of(library.read())
ENTRIES = fatbin.entries(IMAGE) if IMAGE else []
LOAD = """import ctypes
import bucketpool as bp
from bucketpool import _abi
from bucketpool._library import logprob
library, config, client = logprob(), _abi.bp_logprob_config(), _abi.bp_logprob()
library.bp_logprob_config_init(ctypes.byref(config), ctypes.sizeof(config))
config.max_tokens, config.vocab = 8, 32
device = bp.Device.cuda(0)
if library.bp_logprob_create(device.handle, ctypes.byref(config), ctypes.byref(client)) != 0:
    print(bp._library.core().bp_error_detail().decode())
else:
    print("loaded")
    library.bp_logprob_destroy(ctypes.byref(client))
"""


def older(driver):
    """The release of CUDA before one."""
    return {(13, 0): (12, 9)}.get(driver, (driver[0], driver[1] - 1))


def load(driver, capability):
    """Creates a client on an emulated GPU with a driver, and returns what the library says."""
    major, minor = divmod(capability, 10)
    environment = {**os.environ, "LD_LIBRARY_PATH": FOLDER, "PYTHONPATH": os.path.join(SOURCE, "python"),
                   "BUCKETPOOL_LIBRARY_PATH": os.path.join(BUILD, "src") + ":" + os.path.join(BUILD, "clients", "logprob"),
                   "FAKE_CUDA": f"version={driver[0]}0{driver[1]}0,attribute=75:{major},attribute=76:{minor},kernels={EMULATED}"}
    done = subprocess.run([sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, check=False, timeout=100)
    return done.stdout + done.stderr


@unittest.skipUnless(ENTRIES, "this build has no CUDA kernels")
class Image(unittest.TestCase):
    def test_versions(self):
        print(fatbin.table(IMAGE))
        self.assertEqual(ENTRIES[-1].code, "compute_80")
        for entry in ENTRIES:
            self.assertEqual(entry.compression, "LZ4", entry.code)
        self.assertEqual((ENTRIES[-1].abi, ENTRIES[-1].driver), ((7, 0), (12, 0)))

    def test_headers(self):
        """The headers of entries have the versions of the code, so that the library reads them without decompression."""
        place = fatbin.HEADER.size
        for entry in ENTRIES:
            _, _, header, padded, _, _, minor, major, _, _, _, _ = fatbin.ENTRY.unpack_from(IMAGE, place)
            self.assertEqual((major, minor), entry.abi if entry.code.startswith("compute") else (1, entry.abi[1]))
            place += header + padded

    @unittest.skipIf(PTXAS == "", "the kernels were compiled by another build")
    def test_assembler(self):
        """A ptxas of CUDA 12 makes kernels for every driver of CUDA 12 that knows the GPU."""
        release, = re.findall(r"release (\d+)\.", subprocess.run([PTXAS, "--version"], capture_output=True, text=True, check=True).stdout)
        for entry in ENTRIES[:-1]:
            new = fatbin.GPUS.get(int(entry.code[3:]))
            self.assertEqual(entry.driver, new or ((12, 0) if release == "12" else (13, 0)), entry.code)

    @unittest.skipIf(EMULATED == "", "the kernels are not emulated here")
    def test_drivers(self):
        for entry in ENTRIES:
            capability = int(entry.code.split("_")[1]) if entry.code.startswith("sm") else 110  # of no cubin here
            self.assertEqual(load(entry.driver, capability), "loaded\n", entry.code)
            if entry.driver > fatbin.OLDEST:  # the PTX serves it
                self.assertEqual(load(older(entry.driver), capability), "loaded\n", entry.code)
        self.assertIn("need 8.0 or later", load((13, 0), 75))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
