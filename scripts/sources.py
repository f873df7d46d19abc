# SPDX-License-Identifier: Apache-2.0
"""The files of the project, from the current folder, which is its root."""

import os
import shutil
import subprocess


def tracked(*endings):
    """Paths with one of these endings, sorted: as git knows them, with new ones, or in a source tarball all but build folders."""
    paths = []
    if os.path.exists(".git") and shutil.which("git"):
        known = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], capture_output=True, text=True, check=False)
        paths = known.stdout.split("\0") if known.returncode == 0 else []
    if not paths:  # also where git refuses a clone of another owner
        for folder, folders, names in os.walk("."):
            folders[:] = [name for name in folders if not os.path.exists(os.path.join(folder, name, "meson-private"))]  # of any name, as Debian's obj-*
            paths += [os.path.relpath(os.path.join(folder, name)) for name in names]
        paths = [path for path in paths if not path.startswith(("build", ".git/", "dist/"))]
    return sorted(path for path in paths if path.endswith(endings) and os.path.exists(path))
