# SPDX-License-Identifier: Apache-2.0
"""Writes a fatbin as a C array of 64-bit words. Arguments: the fatbin, the source to write, the header that declares the
array, its name."""

import struct
import sys

with open(sys.argv[1], "rb") as file:
    image = file.read()
image += b"\0" * (-len(image) % 8)
words = [f"0x{word:x}u" for word in struct.unpack(f"={len(image) // 8}Q", image)]
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(f'#include "{sys.argv[3]}"\n\nconst uint64_t {sys.argv[4]}[] = {{\n')
    for i in range(0, len(words), 6):
        file.write(", ".join(words[i:i + 6]) + ",\n")
    file.write("};\n")
