# SPDX-License-Identifier: Apache-2.0
"""A text file as a C source: an array of characters and its length. Arguments: the file, the source to write, the array's header and name."""

import sys

with open(sys.argv[1], "rb") as file:
    text = file.read()
with open(sys.argv[2], "w", encoding="utf-8") as file:
    file.write(f'#include "{sys.argv[3]}"\n\nconst unsigned long {sys.argv[4]}_bytes = {len(text)};\nconst char {sys.argv[4]}_text[] = {{\n')
    numbers = [str(byte - 256 if byte > 127 else byte) for byte in text + b"\0"]
    for i in range(0, len(numbers), 24):
        file.write(", ".join(numbers[i:i + 24]) + ",\n")
    file.write("};\n")
