# SPDX-License-Identifier: Apache-2.0
"""The results of a GPU run: a JSON document and a log. The document is replaced at each change (temporary file, rename), the log is appended
to after each part: both hold all finished parts, whatever ends the run."""

import json
import os
import re

LOGGED_BYTES = 200_000  # of each part's output


class Results:
    """A document of the form described in docs/internals/gpu.md. `folder` is created; the files are named after `stem`."""

    def __init__(self, folder, stem, head):
        os.makedirs(folder, exist_ok=True)
        self.path, self.log = os.path.join(folder, stem + ".json"), os.path.join(folder, stem + ".log")
        self.document = {**head, "finished": False, "seconds": 0.0, "parts": []}
        with open(self.log, "w", encoding="utf-8"):
            pass
        self.write()

    def write(self):
        temporary = self.path + ".partial"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(self.document, file, indent=1)
            file.write("\n")
        os.replace(temporary, self.path)

    def append_log(self, title, text):
        """Keeps the beginning and the end of a long output."""
        if len(text) > LOGGED_BYTES:
            half = LOGGED_BYTES // 2
            text = f"{text[:half]}\n[... {len(text) - LOGGED_BYTES} characters left out ...]\n{text[-half:]}"
        with open(self.log, "a", encoding="utf-8", errors="replace") as file:
            file.write(f"==== {title}\n{text}\n")

    def count(self, outcome):
        return sum(part["outcome"] == outcome for part in self.document["parts"])


def file_stem(head):
    """device-run-date, without characters that a file system or a copy might refuse."""
    device = re.sub(r"[^a-z0-9]+", "-", head["device"].lower()).strip("-") or "gpu"
    return f"{device}-{head['run']}-{re.sub(r'[:Z]', '', head['date'])}"
