# SPDX-License-Identifier: Apache-2.0
"""Type hints of the package, under mypy --strict. Skipped without mypy."""

import os
import subprocess
import sys

import pytest
from places import ROOT

pytest.importorskip("mypy")


def test_strict(tmp_path):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path), "bucketpool"],
                          capture_output=True, text=True, timeout=600, cwd=os.path.join(ROOT, "python"))
    assert done.returncode == 0, done.stdout + done.stderr
