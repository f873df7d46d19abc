# SPDX-License-Identifier: Apache-2.0
"""Exits 0 if this machine starts programs that a compiler makes: of another machine, it does where the kernel knows an emulator.

usage: can_start.py COMPILER..."""

import os
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory() as folder:
    program = os.path.join(folder, "program")
    subprocess.run([*sys.argv[1:], "-x", "c", "-", "-o", program], input=b"int main(void) { return 0; }", check=True)
    try:
        sys.exit(subprocess.run([program], check=False).returncode)
    except OSError as error:
        sys.exit(str(error))
