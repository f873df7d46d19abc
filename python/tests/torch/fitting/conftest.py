# SPDX-License-Identifier: Apache-2.0
"""Tests of fits use the command of the build, and a separate cache."""

import os

import pytest


@pytest.fixture(autouse=True)
def _command(monkeypatch, tmp_path):
    if "BUCKETPOOL_BUILD" in os.environ:
        monkeypatch.setenv("BUCKETPOOL_COMMAND", os.path.join(os.environ["BUCKETPOOL_BUILD"], "tools", "bucketpool"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
