# SPDX-License-Identifier: Apache-2.0
"""Roots of another processor: the programs that the kernel is told to run by qemu, and the answers where it cannot be told.

Argument: source directory.
"""

import os
import re
import struct
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join(sys.argv[1], "packaging"))
import roots  # noqa: E402

ET_EXEC, ET_DYN, ET_CORE = 2, 3, 4
EM_X86_64, EM_AARCH64 = 62, 183


def header(machine, kind=ET_DYN, bits=2, order=1, abi=0):
    """The first bytes of an ELF file."""
    return b"\x7fELF" + bytes([bits, order, 1, abi]) + bytes(8) + struct.pack("<HH", kind, machine)


class Emulation(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.binfmt = Path(temporary.name)
        self.qemu = self.binfmt / "qemu"
        self.qemu.touch()
        for name, value in (("BINFMT", self.binfmt), ("QEMU", self.qemu)):
            patched = mock.patch.object(roots, name, value)
            patched.start()
            self.addCleanup(patched.stop)
        for function, value in (("platform.machine", "x86_64"), ("subprocess.run", None)):
            patched = mock.patch(function, return_value=value)
            patched.start()
            self.addCleanup(patched.stop)

    def test_registered(self):
        (self.binfmt / "register").touch()
        roots.emulate()
        name, kind, _, magic, mask, _, flags = (self.binfmt / "register").read_text(encoding="ascii").split(":")[1:]
        self.assertEqual((name, kind, flags), ("qemu-aarch64", "M", "F"))
        bytes_of = [bytes(int(byte[2:], 16) if byte[0] == "\\" else ord(byte) for byte in re.findall(r"\\x..|.", text)) for text in (magic, mask)]
        self.assertEqual([len(text) for text in bytes_of], [20, 20])

        def taken(content):
            return all(byte & kept == wanted for byte, wanted, kept in zip(content, *bytes_of))

        for kind in (ET_EXEC, ET_DYN):
            for abi in (0, 3):  # none, GNU
                self.assertTrue(taken(header(EM_AARCH64, kind, abi=abi)))
        for other in (header(EM_X86_64), header(EM_AARCH64, ET_CORE), header(EM_AARCH64, bits=1), header(EM_AARCH64, order=2), b"#!" + bytes(18)):
            self.assertFalse(taken(other))

    def test_known(self):
        """Leaves a registration of the system as it is, if roots can use it."""
        (self.binfmt / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu-aarch64-static\nflags: OCF\n", encoding="ascii")
        roots.emulate()
        self.assertFalse((self.binfmt / "register").exists())
        (self.binfmt / "qemu-aarch64").write_text("enabled\ninterpreter /usr/bin/qemu-aarch64\nflags: OC\n", encoding="ascii")
        self.refused("lacks the flag F")
        (self.binfmt / "qemu-aarch64").write_text("disabled\ninterpreter /usr/bin/qemu-aarch64-static\nflags: OCF\n", encoding="ascii")
        self.refused("is disabled; as root, run: echo 1 >")

    def test_refused(self):
        (self.binfmt / "register").mkdir()  # cannot be written, also by root
        self.refused("register cannot be written")
        self.qemu.unlink()
        self.refused("apt-get install qemu-user-static")

    def refused(self, why):
        with self.assertRaisesRegex(roots.Missing, why):
            roots.emulate()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
