#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clean roots: the smallest system of a distribution in a folder, in which artefacts are built, installed and tried.

mmdebstrap makes the root of a system once and keeps it as a tar file; each use unpacks a new copy. bubblewrap runs the
commands, with separate processes and mounts. Downloaded packages are kept, too. Needs root rights. Roots of another processor
run by qemu-user, for which the kernel must know qemu (binfmt_misc): it is told where that is possible.

usage: roots.py SYSTEM [--packages LIST] [--bind FOLDER:PLACE]... [--offline] -- COMMAND...

SYSTEM: debian-11, -12 or -13, also with -arm64 at the end, or ubuntu-22.04, -24.04 or -26.04. --packages: installed first, separated by commas.
--bind: a folder of this machine, writable at a place of the root. --offline: COMMAND has no network.
Roots and packages are kept in build-roots, or in the folder that BUCKETPOOL_ROOTS names."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any, Iterable, Mapping, Sequence

PROJECT = Path(__file__).resolve().parent.parent
KEPT = Path(os.environ.get("BUCKETPOOL_ROOTS", PROJECT / "build-roots")).resolve()
DEBIAN = ("http://deb.debian.org/debian", "main", "debian-archive-keyring.gpg")
UBUNTU = ("http://archive.ubuntu.com/ubuntu", "main universe", "ubuntu-archive-keyring.gpg")
KEYRINGS = Path("/usr/share/keyrings")
SYSTEMS = {  # suite, mirror, components, keys
    "debian-11": ("bullseye", *DEBIAN),
    "debian-12": ("bookworm", *DEBIAN),
    "debian-13": ("trixie", *DEBIAN),
    "ubuntu-22.04": ("jammy", *UBUNTU),
    "ubuntu-24.04": ("noble", *UBUNTU),
    "ubuntu-26.04": ("resolute", *UBUNTU),
}
ARM64 = "-arm64"
SYSTEMS.update({name + ARM64: SYSTEMS[name] for name in ("debian-11", "debian-12", "debian-13")})
TOOLS = {"mmdebstrap": "mmdebstrap", "bwrap": "bubblewrap", "xz": "xz-utils"}
BINFMT = Path("/proc/sys/fs/binfmt_misc")
QEMU = Path("/usr/bin/qemu-aarch64-static")
ZERO, ONES = r"\x00", r"\xff"
# The first 20 bytes of arm64's programs, a mask of those that count, and F: the kernel keeps the interpreter open, so that roots need none.
ARM64_PROGRAMS = rf":qemu-aarch64:M::\x7fELF\x02\x01\x01{9 * ZERO}\x02\x00\xb7\x00:{7 * ONES}\x00{8 * ONES}\xfe{3 * ONES}:{QEMU}:F"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")  # this machine's: a root need not have any
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")
PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "PIP_INDEX_URL",
             "PIP_DEFAULT_TIMEOUT")


class Missing(Exception):
    """Roots cannot be made on this machine, for this reason."""


class Failed(Exception):
    """A command in a root failed; the message has the end of its output."""


def place_of(folder: Path) -> str:
    """The place in a root of a folder that has this path here, without what make and lists of options take for syntax."""
    return "/root" + re.sub(r"[^A-Za-z0-9/._+-]", "_", str(folder))


def pip_cache() -> dict[str | Path, str]:
    """For run(binds=): the downloads of pip, kept beside the roots."""
    cache = KEPT / "pip"
    cache.mkdir(parents=True, exist_ok=True)
    return {cache: "/root/.cache/pip"}


def require() -> None:
    if os.geteuid() != 0:
        raise Missing("roots: only root can make them; run this with sudo")
    missing = [package for tool, package in TOOLS.items() if not shutil.which(tool)]
    if missing:
        raise Missing(f"roots: missing {' '.join(missing)}; apt-get install {' '.join(missing)}")


def emulate() -> None:
    """Lets the kernel run arm64's programs by qemu, in roots, too."""
    if platform.machine() == "aarch64":
        return
    if not (BINFMT / "register").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", BINFMT], stderr=subprocess.DEVNULL, check=False)
    known = BINFMT / "qemu-aarch64"
    if known.exists():
        state = known.read_text(encoding="ascii")
        if not state.startswith("enabled"):
            raise Missing(f"roots: {known} is disabled; as root, run: echo 1 > {known}")
        if not re.search("^flags: .*F", state, re.MULTILINE):
            raise Missing(f"roots: {known} lacks the flag F, so that its qemu is not found in roots; install qemu-user-static")
        return
    if not QEMU.exists():
        raise Missing("roots: arm64 needs qemu; apt-get install qemu-user-static")
    try:
        (BINFMT / "register").write_text(ARM64_PROGRAMS, encoding="ascii")
    except OSError as error:
        raise Missing(f"roots: arm64 needs qemu in the kernel's binfmt_misc, and {BINFMT}/register cannot be written: {error.strerror}") from error


def keys_of(name: str) -> Path:
    """A keyring of this machine, or Ubuntu's as Debian 13 ships it: Debian 12 does not."""
    if not (KEYRINGS / name).exists() and name.startswith("ubuntu") and not (KEPT / name).exists():
        with Root("debian-13") as root:
            root.install(["ubuntu-keyring"])
            shutil.copy(root.path / KEYRINGS.relative_to("/") / name, KEPT / name)
    return KEYRINGS / name if (KEYRINGS / name).exists() else KEPT / name


def image(system: str) -> Path:
    """The tar file of a system's root, made where it is not there yet."""
    suite, mirror, components, keyring = SYSTEMS[system]
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{system}.tar"
    with open(KEPT / f"{system}.lock", "w", encoding="utf-8") as lock:  # others may make the same one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            require()
            keys = keys_of(keyring)
            staged = path.with_suffix(".new.tar")
            sources = f"deb {mirror} {suite} {components}"
            foreign = ["--architectures=arm64", "--skip=check/qemu"] if system.endswith(ARM64) else []  # emulate() has checked, without arch-test
            options = ["--variant=apt", "--mode=root", "--quiet", f"--keyring={keys}", *foreign]
            made = subprocess.run(["mmdebstrap", *options, suite, staged, sources], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
            if made.returncode != 0:
                raise Missing(f"roots: {system} could not be made: {made.stdout.strip()[-500:]}")
            staged.rename(path)
    return path


class Root:
    """A new copy of a system's root; gone after its `with` block, unless `keep` is set."""

    def __init__(self, system: str, keep: bool = False) -> None:
        require()
        if system.endswith(ARM64):
            emulate()
        tar = image(system)
        self.system, self.keep = system, keep
        self.packages = KEPT / f"{system}.packages"
        self.packages.mkdir(exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix=f"{system}-", dir=KEPT))
        subprocess.run(["tar", "-x", "-f", tar, "-C", self.path, "--numeric-owner"], check=True)
        self.path.chmod(0o755)
        self.archives = self.path / "var/cache/apt/archives"
        self._link(self.packages, self.archives)
        (self.path / "etc/dpkg/dpkg.cfg.d/roots").write_text("force-unsafe-io\n", encoding="utf-8")  # nothing outlives a loss of power
        # packages start no services
        policy = self.path / "usr/sbin/policy-rc.d"
        policy.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
        policy.chmod(0o755)
        # the root has this machine's name
        (self.path / "etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n", encoding="utf-8")

    @staticmethod
    def _link(source: Path, target: Path) -> None:
        for package in source.glob("*.deb"):
            if not (target / package.name).exists():
                try:
                    os.link(package, target / package.name)
                except FileExistsError:  # another root was faster
                    pass

    def __enter__(self) -> Root:
        return self

    def __exit__(self, *_: object) -> None:
        self._link(self.archives, self.packages)
        if not self.keep:
            shutil.rmtree(self.path, ignore_errors=True)

    def run(self, command: Sequence[str] | str, *, cwd: str = "/root", binds: Mapping[str | Path, str] | None = None,
            readable: Mapping[str | Path, str] | None = None, env: Mapping[str, str] | None = None, offline: bool = False,
            log: IO[str] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Runs a command, or a string by `sh -euc`. binds: host folders by place, writable; readable: read-only.

        The output goes to `log`, or into the result. A failure raises Failed, unless `check` is false."""
        words = ["sh", "-euc", command] if isinstance(command, str) else list(command)
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8",
                     "DEBIAN_FRONTEND": "noninteractive", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_ROOT_USER_ACTION": "ignore"}
        variables.update({name: os.environ[name] for name in PASSED_ON if name in os.environ})
        arguments = ["bwrap", "--bind", str(self.path), "/", "--dev", "/dev", "--proc", "/proc", "--ro-bind", "/sys", "/sys",
                     "--ro-bind", "/etc/resolv.conf", "/etc/resolv.conf", "--tmpfs", "/run", "--unshare-pid", "--unshare-ipc",
                     "--die-with-parent", "--cap-add", "ALL", "--chdir", cwd]
        if CERTIFICATES.exists():
            arguments += ["--ro-bind", str(CERTIFICATES), "/run/certificates.crt"]
            variables.update({name: "/run/certificates.crt" for name in CERTIFICATE_VARIABLES})
        for option, places in (("--bind", binds), ("--ro-bind", readable)):
            for source, place in (places or {}).items():
                arguments += [option, str(source), place]
        arguments += ["--unshare-net"] if offline else []
        variables.update(env or {})
        result = subprocess.run([*arguments, *words], env=variables, stdin=subprocess.DEVNULL, stdout=log or subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
        if check and result.returncode != 0:
            shown = " ".join(words)
            raise Failed(f"{self.system}: {shown[:200]}: exit status {result.returncode}\n{(result.stdout or '')[-4000:]}")
        return result

    def measured(self, command: str, **more: Any) -> tuple[float, int]:
        """Runs a command as run() does: its seconds, and the bytes that it added to the root, without apt's downloads."""
        def size() -> int:
            counted = subprocess.run(["du", "-s", "-x", "-B1", "--exclude=var/cache/apt", self.path], stdout=subprocess.PIPE, text=True, check=True)
            return int(counted.stdout.split()[0])

        before, begun = size(), time.monotonic()
        self.run(command, **more)
        return time.monotonic() - begun, size() - before

    def install(self, packages: Iterable[str], log: IO[str] | None = None) -> None:
        """Installs packages: names of the distribution, or paths inside the root that begin with / or ./"""
        self.run(["apt-get", "update", "-qq"], log=log)
        self.run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages], log=log)


def main() -> int:
    parser = argparse.ArgumentParser(usage=(__doc__ or "").split("usage: ")[1].split("\n", maxsplit=1)[0])
    parser.add_argument("system", choices=SYSTEMS)
    parser.add_argument("--packages", default="")
    parser.add_argument("--bind", action="append", default=[])
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    binds = dict(pair.split(":", 1) for pair in options.bind)
    try:
        with Root(options.system) as root:
            if options.packages:
                root.install(options.packages.split(","))
            cwd = next(iter(binds.values()), "/root")
            return root.run(options.command, cwd=cwd, binds=binds, offline=options.offline, log=sys.stdout, check=False).returncode
    except (Missing, Failed) as error:
        print(error, file=sys.stderr)
        return 77 if isinstance(error, Missing) else 1


if __name__ == "__main__":
    sys.exit(main())
