# SPDX-License-Identifier: Apache-2.0
"""Many copies of the library in one process, as from plugins: each loads, and each has a separate error detail.

Argument: the core library."""

import ctypes
import os
import shutil
import sys
import tempfile
import threading
import unittest

CORE = sys.argv[1]
COPIES = 16


class Copies(unittest.TestCase):
    def load(self, folder, number):
        path = os.path.join(folder, f"libcopy{number}.so")
        shutil.copy(CORE, path)
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            if "__ubsan" in str(error):
                self.skipTest(f"python lacks the sanitizer's runtime: {error}")
            raise
        library.bp_error_detail.restype = ctypes.c_char_p
        return library

    def record_and_read(self, libraries, who):
        for number, library in enumerate(libraries):
            self.assertEqual(library.bp_error_detail(), b"")
            self.assertEqual(library.bp_error_record(1, f"{who} {number}".encode()), 1)
        return [library.bp_error_detail() for library in libraries]

    def test_error_texts(self):
        with tempfile.TemporaryDirectory() as folder:
            libraries = [self.load(folder, number) for number in range(COPIES)]
        found = []
        thread = threading.Thread(target=lambda: found.extend(self.record_and_read(libraries, "thread")))
        expected = [f"main {number}".encode() for number in range(COPIES)]
        self.assertEqual(self.record_and_read(libraries, "main"), expected)
        thread.start()
        thread.join()
        self.assertEqual(found, [f"thread {number}".encode() for number in range(COPIES)])
        self.assertEqual([library.bp_error_detail() for library in libraries], expected)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
