# SPDX-License-Identifier: Apache-2.0
"""TRL's tests of its patched head that need no model of a hub. TRL skips their class without a GPU."""

from tests.test_utils import TestPatchChunkedLMHead as Theirs

SIZES = ("B", "S", "H", "V", "CHUNK_SIZE")
TestHead = type("TestHead", (), {name: value for name, value in vars(Theirs).items()
                                 if name in SIZES or name.startswith(("_build", "test_dummy"))})
