# SPDX-License-Identifier: Apache-2.0
"""The entry point of `bucketpool` and `python3 -m bucketpool`: runs the command, or `describe` in Python."""

import os
import shutil
import sys
from typing import List, Optional

from . import describe


def command_path() -> Optional[str]:
    """The path of the command: that of the wheel, else the one on PATH; None if there is none."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", "bucketpool")
    return own if os.path.exists(own) else shutil.which("bucketpool")


def main(arguments: Optional[List[str]] = None) -> int:
    """Runs `describe` in this process, or replaces the process by the command. Returns an exit status."""
    if arguments is None:
        arguments = sys.argv[1:]
    if arguments[:1] == ["describe"]:
        return describe.main(arguments[1:])
    path = command_path()
    if path is None:
        print("python3 -m bucketpool: the command is neither in the package nor on PATH; install the wheel "
              "(pip install .) or the library (meson install); `python3 -m bucketpool describe` works without it",
              file=sys.stderr)
        return 3
    os.environ.setdefault("BUCKETPOOL_PYTHON", sys.executable)  # which `bucketpool fit` starts
    try:
        os.execv(path, ["bucketpool", *arguments])
    except OSError as error:
        print(f"python3 -m bucketpool: {path}: {error.strerror}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
