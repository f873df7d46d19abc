# SPDX-License-Identifier: Apache-2.0
"""Files that somebody has prepared: links and leftovers where the command writes, pipes and devices where it reads.

Arguments: source directory, the command."""

import json
import os
import random
import resource
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
import unicodedata
import unittest

from answers import InFolder, readable_copies

SOURCE, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
if os.geteuid() == 0:  # the command also runs as another user, who may not enter the folders of a clone in root's home
    PLACE, PROGRAM = readable_copies(SOURCE, PROGRAM, ("examples/models", "examples/files", "tests/fuzz/corpus/trace"))
    os.mkdir(os.path.join(PLACE, "home"))  # libraries keep caches there
    os.chmod(os.path.join(PLACE, "home"), 0o777)
else:
    PLACE = SOURCE
MODELS = os.path.join(PLACE, "examples", "models")
MODEL = os.path.join(MODELS, "Llama-3.1-8B")
SNAPSHOT = os.path.join(PLACE, "examples", "files", "step_1", "snapshot_rank00.pickle")
STEPS = os.path.join(PLACE, "tests", "fuzz", "corpus", "trace", "regular.pickle")
FIT = os.path.join(SOURCE, "tests", "data", "fit", "llama.json")
PACKING = os.path.join(PLACE, "examples", "files", "packing.csv")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ
LIMIT = 240  # seconds: only what hangs takes so long
NOBODY = 65534
STAGED = ".bucketpool-"

# Each way to write a file.
WRITERS = {
    "plan.json": ("plan", MODEL, "-o"),
    "plan.svg": ("plan", MODEL, "--plot"),
    "schedule.svg": ("schedule", MODEL, "--plot"),
    "trace.json": ("run", MODEL, "--device", "null", "--steps", "1", "--trace"),
    "packing.csv": ("pack", PACKING, "-o"),
    "packing.svg": ("pack", PACKING, "--plot"),
    "step.json": ("step", STEPS, "-o"),
    "step.svg": ("step", STEPS, "--plot"),
    "page.html": ("view", SNAPSHOT, "--html"),
    "view.svg": ("view", SNAPSHOT, "--plot"),
    "flame.svg": ("view", SNAPSHOT, "--flame"),
}


def run(*arguments, **more):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=LIMIT, check=False, **more)


def as_nobody(umask=0o022):
    """Drops root's privileges, which would hide errors."""
    def change():
        os.umask(umask)
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
    return {"preexec_fn": change, "env": {**os.environ, "HOME": os.path.join(PLACE, "home")} if os.geteuid() == 0 else None}


def may_be_nobody():
    try:
        return subprocess.run(["true"], check=False, **as_nobody()).returncode == 0
    except subprocess.SubprocessError:  # in a namespace with one user
        return False


needs_nobody = unittest.skipUnless(may_be_nobody(), "processes may not become another user here")


class InSharedFolder(InFolder):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir="/tmp")
        self.addCleanup(shutil.rmtree, self.folder)
        os.chmod(self.folder, 0o777)

    def write(self, name, text="old"):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)

    def read(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def names(self):
        return sorted(os.listdir(self.folder))

    def answered(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""))

    def plan(self, target, **more):
        return run("plan", MODEL, "-o", target, **more)


class Targets(InSharedFolder):
    """An existing target decides how it is replaced, in the same way for all writers."""

    def test_links(self):
        os.mkdir(self.path("elsewhere"))
        for name, words in WRITERS.items():
            os.symlink(os.path.join("elsewhere", name), self.path("step-" + name))
            os.symlink("step-" + name, self.path(name))
            self.write(os.path.join("elsewhere", name))
            self.answered(run(*words, self.path(name)))
            self.assertTrue(os.path.islink(self.path(name)) and os.path.islink(self.path("step-" + name)), name)
            self.assertNotEqual(self.read(os.path.join("elsewhere", name)), b"old", name)
        self.assertEqual(sorted(os.listdir(self.path("elsewhere"))), sorted(WRITERS))
        self.assertEqual(len(self.names()), 2 * len(WRITERS) + 1)

    def test_dangling_links(self):
        for name, words in WRITERS.items():
            os.symlink("gone-" + name, self.path(name))
            self.refused(run(*words, self.path(name)), 3, f"{self.path(name)}: cannot be written: a symbolic link to ",
                         "gone-" + name, "does not exist; create that file or remove the link")
        os.symlink("loop.json", self.path("loop.json"))
        self.refused(self.plan(self.path("loop.json")), 3, "Too many levels of symbolic links")
        self.assertEqual(self.names(), sorted([*WRITERS, "loop.json"]))

    def test_long_names(self):
        for name, words in WRITERS.items():
            ending = os.path.splitext(name)[1]
            for stem in ("x" * (255 - len(ending)), "é" * 125):
                target = self.path(stem + ending)
                for _ in range(2):  # a new file, one that is replaced
                    self.answered(run(*words, target))
                os.unlink(target)
        self.assertEqual(self.names(), [])
        self.refused(self.plan(self.path("x" * 256)), 3, "File name too long")
        self.refused(self.plan("/x" * 3000), 3, "File name too long")

    @needs_nobody
    def test_modes(self):
        for umask, mode in ((0o022, 0o644), (0o077, 0o600), (0o007, 0o660)):
            for name, words in WRITERS.items():
                self.answered(run(*words, self.path(name), **as_nobody(umask)))
                self.assertEqual(stat.S_IMODE(os.stat(self.path(name)).st_mode), mode, name)
                os.chmod(self.path(name), 0o604)
                self.answered(run(*words, self.path(name), **as_nobody(umask)))
                self.assertEqual(stat.S_IMODE(os.stat(self.path(name)).st_mode), 0o604, name)
                os.unlink(self.path(name))

    def test_set_id_bits(self):
        """The new content was never meant to run as somebody else."""
        for name, words in WRITERS.items():
            os.chmod(self.write(name), 0o6755)
            self.answered(run(*words, self.path(name)))
            self.assertEqual(stat.S_IMODE(os.stat(self.path(name)).st_mode), 0o755, name)

    @needs_nobody
    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_owners(self):
        path = self.write("plan.json")
        os.chown(path, 1234, 2345)
        os.chmod(path, 0o640)
        self.answered(self.plan(path))
        about = os.stat(path)
        self.assertEqual((about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)), (1234, 2345, 0o640))
        # one may write who can keep neither owner nor group: the other group gets no more than all
        os.chmod(path, 0o662)
        self.answered(self.plan(path, **as_nobody()))
        about = os.stat(path)
        self.assertEqual((about.st_uid, about.st_gid, stat.S_IMODE(about.st_mode)), (NOBODY, NOBODY, 0o622))

    @needs_nobody
    def test_protected_files(self):
        path = self.write("plan.json")
        os.chmod(path, 0o444)
        self.refused(self.plan(path, **as_nobody()), 3, f"-o {path}: cannot be written: Permission denied")
        self.assertEqual((self.read("plan.json"), self.names()), (b"old", ["plan.json"]))

    @needs_nobody
    def test_protected_folders(self):
        os.mkdir(self.path("folder"), 0o555)
        for name, words in WRITERS.items():
            self.refused(run(*words, self.path("folder/" + name), **as_nobody()), 3, "Permission denied")
        self.assertEqual(os.listdir(self.path("folder")), [])
        os.chmod(self.path("folder"), 0o333)  # that may not be listed
        self.answered(self.plan(self.path("folder/plan.json"), **as_nobody()))

    def test_closed_standard_descriptors(self):
        """The answer must not go into a file that happened to get the number of standard output."""
        for closed in ((1,), (0, 1), (0, 1, 2), (0,), (2,)):
            def close(numbers=closed):
                for number in numbers:
                    os.close(number)
            target = self.write("plan.json")
            result = subprocess.run([PROGRAM, "plan", MODEL, "-o", target], preexec_fn=close, timeout=LIMIT,
                                    check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertEqual(result.returncode, 3 if 1 in closed else 0, closed)
            if 1 in closed:
                self.assertEqual(self.read("plan.json"), b"old")
            else:
                self.assertEqual(json.loads(self.read("plan.json"))["format"], "bucketpool.plan/1")


class Streams(InSharedFolder):
    """Targets that cannot be replaced."""

    def test_pipes(self):
        for name, words in WRITERS.items():
            os.mkfifo(self.path(name))
            with subprocess.Popen([PROGRAM, *words, self.path(name)], stdout=subprocess.DEVNULL) as writer:
                content = self.read(name)
                self.assertEqual(writer.wait(LIMIT), 0, name)
            self.assertTrue(stat.S_ISFIFO(os.stat(self.path(name)).st_mode), name)
            self.answered(run(*words, self.path("file-" + name)))
            self.assertEqual(len(content), len(self.read("file-" + name)), name)
        self.assertEqual(len(self.names()), 2 * len(WRITERS))

    def test_descriptors(self):
        alone = run("plan", MODEL, "-o", "-").stdout
        for target in ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"):
            with open(self.path("all"), "w", encoding="utf-8") as file:
                subprocess.run([PROGRAM, "plan", MODEL, "-o", target], stdout=file, check=True, timeout=LIMIT)
            self.assertEqual(self.read("all").decode(), alone + run("plan", MODEL).stdout, target)
            with open(self.path("all"), "a", encoding="utf-8") as file:
                subprocess.run([PROGRAM, "plan", MODEL, "-o", target], stdout=file, check=True, timeout=LIMIT)
            self.assertEqual(self.read("all").decode(), 2 * (alone + run("plan", MODEL).stdout), target)
            self.assertEqual(run("plan", MODEL, "-o", target).stdout, alone + run("plan", MODEL).stdout)
        os.unlink(self.path("all"))
        self.assertEqual(self.names(), [])

    def test_sockets(self):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            process = subprocess.run([PROGRAM, "pack", PACKING, "-o", "/dev/stdout"], stdout=theirs, timeout=LIMIT,
                                     check=False)
            self.assertEqual(process.returncode, 0)
            theirs.close()
            self.assertIn(b"offset", ours.makefile("rb").read())
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(self.path("socket"))
            self.refused(self.plan(self.path("socket")), 3, "No such device or address")

    def test_devices(self):
        self.answered(self.plan("/dev/null"))
        for command in (("plan", MODEL), ("pack", PACKING)):
            self.refused(run(*command, "-o", "/dev/full"), 3,
                         "-o /dev/full: cannot be written: No space left on device")
        self.assertTrue(stat.S_ISCHR(os.stat("/dev/full").st_mode))


class Writers(InSharedFolder):
    """Many at once, killed ones, ones without room."""

    def start(self, target, **more):
        return subprocess.Popen([PROGRAM, "plan", MODEL, "-o", target], stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True, **more)

    def test_planted_names(self):
        """Names that can be guessed from the target and the process, by everyone who may make files there."""
        victim = self.write("victim", "precious")
        for name, words in WRITERS.items():
            stem, ending = os.path.splitext(name)
            target = self.path(name)

            def plant(stem=stem, ending=ending, target=target):
                for staged in (self.path(f".{stem}.{os.getpid()}{ending}"),
                               *(f"{target}.{os.getpid()}-{i}.tmp" for i in range(3))):
                    os.symlink(victim, staged)
            self.answered(run(*words, target, preexec_fn=plant))
            self.assertFalse(os.path.islink(target), name)
            self.assertNotEqual(self.read(name), b"precious", name)
            self.assertEqual(self.read("victim"), b"precious", name)

    def test_planted_staging_files(self):
        """Links, pipes and folders that are called as staging files are."""
        victim = self.write("victim", "precious")
        os.symlink(victim, self.path(STAGED + "0" * 16))
        os.link(victim, self.path(STAGED + "1" * 16))
        os.mkfifo(self.path(STAGED + "2" * 16))
        os.mkdir(self.path(STAGED + "3" * 16))
        with socket.socket(socket.AF_UNIX) as named:
            named.bind(self.path(STAGED + "4" * 16))
        for other in (STAGED + "5", STAGED + "g" * 16, STAGED + "6" * 17, "x" + STAGED + "7" * 16):
            self.write(other)
        before = self.names()
        self.answered(self.plan(self.path("plan.json")))
        self.assertEqual(self.read("victim"), b"precious")
        self.assertEqual(self.names(), sorted(set(before) - {STAGED + "1" * 16} | {"plan.json"}))

    def test_many_writers(self):
        """One whole document, whoever was last; nothing else."""
        target = self.path("plan.json")
        for _ in range(2 if BRIEF else 10):
            writers = [self.start(target) for _ in range(12)]
            for writer in writers:
                self.assertEqual((writer.communicate(timeout=LIMIT)[1], writer.returncode), ("", 0))
            self.assertEqual(json.loads(self.read("plan.json"))["format"], "bucketpool.plan/1")
            self.assertEqual(self.names(), ["plan.json"])

    def test_one_process_number(self):
        """As two containers have on one volume."""
        unshare = ["unshare", "--pid", "--fork", "--"]
        if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True,
                                                             check=False).returncode != 0:
            self.skipTest("unshare --pid is not allowed")
        commands = [("plan", MODEL), ("plan", os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B"))]
        whole = set()
        for command in commands:
            self.answered(run(*command, "-o", self.path("plan.json")))
            whole.add(self.read("plan.json"))
        for _ in range(3 if BRIEF else 15):
            writers = [subprocess.Popen([*unshare, PROGRAM, *commands[i % 2], "-o", self.path("plan.json")],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) for i in range(8)]
            for writer in writers:
                self.assertEqual((writer.communicate(timeout=LIMIT)[1], writer.returncode), ("", 0))
            self.assertIn(self.read("plan.json"), whole)
            self.assertEqual(self.names(), ["plan.json"])

    def test_killed_writers(self):
        """The target is old or new; what they leave vanishes with the next write, to any file of the folder."""
        target = self.path("plan.json")
        self.answered(self.plan(target))
        new = self.read("plan.json")
        begun = time.monotonic()
        self.answered(self.plan(target))
        lasts = time.monotonic() - begun
        for seed in range(10 if BRIEF else 60):
            self.write("plan.json")
            writer = self.start(target)
            time.sleep(random.Random(seed).uniform(0, 1.2 * lasts))
            writer.kill()
            writer.communicate(timeout=LIMIT)
            self.assertIn(self.read("plan.json"), (b"old", new))
        self.answered(run("pack", PACKING, "-o", self.path("packing.csv")))
        self.assertEqual(self.names(), ["packing.csv", "plan.json"])

    def test_stopped_writers(self):
        """One killed while it surely has a staging file, one that lives: only the first one's goes."""
        read, write = os.pipe()  # nobody reads: both stop with the table half out, their plans staged
        with open(read, "rb") as reader, open(write, "wb") as full:
            os.set_blocking(write, False)
            try:
                while True:
                    os.write(write, bytes(65536))
            except BlockingIOError:
                os.set_blocking(write, True)
            writers = [subprocess.Popen([PROGRAM, "plan", MODEL, "-o", self.path("plan.json")], stdout=full,
                                        stderr=subprocess.PIPE)
                       for _ in range(2)]
            deadline = time.monotonic() + LIMIT
            while len(self.names()) < 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            staged = self.names()
            self.assertEqual([name.startswith(STAGED) for name in staged], [True, True], staged)
            self.answered(self.plan(self.path("other.json")))
            self.assertEqual(self.names(), sorted([*staged, "other.json"]))
            writers[0].kill()
            writers[0].communicate(timeout=LIMIT)
            self.answered(self.plan(self.path("other.json")))
            self.assertEqual(len(self.names()), 2)
            full.close()
            while reader.read(65536):
                pass
            self.assertEqual((writers[1].communicate(timeout=LIMIT)[1], writers[1].returncode), (b"", 0))
        self.assertEqual(self.names(), ["other.json", "plan.json"])

    def test_limit_of_size(self):
        def limit(bytes_of_a_file):
            return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_a_file, bytes_of_a_file))
        for name, words in WRITERS.items():
            for limited in (0, 1, 100):
                self.write(name)
                result = subprocess.run([PROGRAM, *words, self.path(name)], stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True,
                                        preexec_fn=limit(limited), timeout=LIMIT, check=False)
                self.refused(result, 3, self.path(name), "cannot be written: File too large")
                self.assertEqual(self.read(name), b"old", name)
        self.assertEqual(self.names(), sorted(WRITERS))

    @unittest.skipUnless(os.geteuid() == 0, "needs root")
    def test_full_disk(self):
        os.mkdir(self.path("disk"))
        script = (
            'mount -t tmpfs -o size=64k none "$0" && printf old > "$0/plan.json" && head -c 60000 /dev/zero >'
            ' "$0/rest"; shift 0; "$@" > /dev/null; code=$?; cat "$0/plan.json"; ls -A "$0"; exit $code'
        )
        unshare = ["unshare", "--mount", "--", "sh", "-c"]
        if subprocess.run([*unshare, 'mount -t tmpfs none "$0"', self.path("disk")], capture_output=True,
                          check=False).returncode != 0:
            self.skipTest("mounting is not allowed")
        result = subprocess.run([*unshare, script, self.path("disk"), PROGRAM, "plan", MODEL, "-o",
                                 self.path("disk/plan.json")],
                                capture_output=True, text=True, timeout=LIMIT, check=False)
        self.one_line(result, 3, "cannot be written: No space left on device")
        self.assertEqual(result.stdout, "oldplan.json\nrest\n")


class Python(InSharedFolder):
    """`python3 -m bucketpool describe` reads and writes by itself."""

    def python(self, *arguments, **more):
        environment = {**os.environ, "PYTHONPATH": os.path.join(SOURCE, "python"), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=LIMIT,
                              env=environment, check=False, **more)

    def write_by_it(self, target, **more):
        return self.python("-c", "import sys; from bucketpool import describe; describe._write(sys.argv[1], 'new')",
                           target, **more)

    def test_inputs(self):
        os.mkfifo(self.path("config.json"))
        for path in (self.folder, self.path("config.json")):
            result = self.python("-m", "bucketpool", "describe", path)
            self.assertEqual((result.returncode, result.stderr),
                             (2, f"python3 -m bucketpool describe: {self.path('config.json')}: not a regular file\n"))

    def test_outputs(self):
        for name, words in (("units.json", None), ("x" * 255, None), ("link.json", None),
                            ("gone.json", "does not exist"),
                            ("units.json/x", "Not a directory"), ("folder", "Is a directory")):
            if name == "link.json":
                os.symlink(self.write("target.json"), self.path(name))
            elif name == "gone.json":
                os.symlink("nothing", self.path(name))
            elif name == "folder":
                os.mkdir(self.path(name))
            result = self.write_by_it(self.path(name))
            if words is not None:
                self.assertIn(words, result.stderr)
            else:
                self.assertEqual((result.stderr, self.read(name)), ("", b"new"))
        self.assertTrue(os.path.islink(self.path("link.json")))
        os.chmod(self.path("units.json"), 0o4640)
        os.chmod(self.path("target.json"), 0o444)
        self.write_by_it(self.path("units.json"))
        self.assertEqual(stat.S_IMODE(os.stat(self.path("units.json")).st_mode), 0o640)
        script = (
            f"import os; from bucketpool import describe; os.geteuid() or os.setuid({NOBODY});"
            " describe._write('target.json', 'newer')"
        )
        self.assertIn("Permission denied", self.python("-c", script, cwd=self.folder).stderr)
        self.assertEqual(self.read("target.json"), b"new")
        self.assertEqual(self.write_by_it("/dev/stdout").stdout, "new")
        self.assertEqual([name for name in self.names() if name.startswith(".")], [])

    def test_killed_writers(self):
        """The command removes what this one leaves."""
        script = (
            "import os, signal; from bucketpool import describe; os.replace = lambda *_: os.kill(os.getpid(),"
            " signal.SIGKILL); describe._write('units.json', 'new')"
        )
        self.python("-c", script, cwd=self.folder)
        self.assertEqual([name.startswith(STAGED) for name in self.names()], [True])
        self.answered(self.plan(self.path("plan.json")))
        self.assertEqual(self.names(), ["plan.json"])


class Names(InFolder):
    """Text from outside reaches the terminal as UTF-8 without control characters and bidirectional marks."""

    NAMES = (b"\xc2\x9b2J", b"a\x1b[31m", b"b\xe2\x80\xaec", b"d\xe2\x80\xa8e", b"f\xe9.json", b"\xff\xfe", b"\x7f\x01",
             "\u4f60".encode() * 80, b"x" + "\u4f60".encode() * 80, b"xx" + "\U0001f600".encode() * 60)

    def shown(self, *arguments, code=None):
        result = subprocess.run([PROGRAM.encode(), *arguments], capture_output=True, timeout=LIMIT, check=False,
                                cwd=self.folder)
        if code is not None:
            self.assertEqual(result.returncode, code, (arguments, result.stderr))
        self.assertIn(result.returncode, range(4), (arguments, result.stderr))
        for output in (result.stdout, result.stderr):
            for character in output.decode("utf-8"):  # fails for what is torn
                self.assertTrue(character in "\n\t\u200c\u200d" or unicodedata.category(character) not in ("Cc", "Cf", "Zl", "Zp"),
                                (arguments, character, output))
        return result

    def test_arguments(self):
        commands = ([], [b"plan"], [b"schedule"], [b"explain"], [b"run"], [b"pack"], [b"fit"], [b"step"], [b"view"], [b"models"],
                    [b"bench"], [b"plan", b"--gpu"], [b"plan", b"--dp"], [b"plan", b"--policy"], [b"view", b"--html"],
                    [b"plan", MODEL.encode(), b"-o"], [b"plan", MODEL.encode(), b"--plot"], [b"run", b"--plan"])
        for command in commands:
            for name in self.NAMES:
                for word in (name, b"--" + name, b"no/folder/" + name):
                    self.shown(*command, word)

    def test_files(self):
        sources = (("plan", os.path.join(SOURCE, "examples", "files", "units.json")), ("pack", PACKING), ("step", STEPS), ("view", STEPS),
                   ("view", SNAPSHOT), ("fit", FIT))
        for command, source in sources:
            for name in self.NAMES:
                path = os.path.join(os.fsencode(self.folder), name[:200] + os.fsencode(os.path.splitext(source)[1]))
                shutil.copy(source, path)
                self.shown(command.encode(), path)
                with open(path, "wb") as file:
                    file.write(b"neither")
                self.shown(command.encode(), path)

    def test_units(self):
        with open(os.path.join(SOURCE, "examples", "files", "units.json"), encoding="utf-8") as file:
            text = file.read()
        path = os.path.join(self.folder, "x.json")
        for name in self.NAMES:
            with open(path, "w", encoding="utf-8") as file:
                file.write(text.replace('layers.0"', json.dumps(name.decode("utf-8", "replace"))[1:]))
            for command in (b"plan", b"schedule", b"explain"):
                self.shown(command, os.fsencode(path), code=0 if name.decode("utf-8", "replace").isprintable() else None)


class Inputs(InSharedFolder):
    """Inputs other than regular files are refused at once, by name."""

    # Each way to name an input; {} is the file, or the folder that it is in.
    READERS = {
        "units.json": ("plan", "{}"),
        "config.json": ("explain", "{}"),
        "model.safetensors": ("schedule", "{}"),
        "model.safetensors.index.json": ("plan", "{}"),
        "plan.json": ("run", MODEL, "--device", "null", "--steps", "1", "--plan", "{}"),
        "packing.csv": ("pack", "{}"),
        "placed.csv": ("pack", "--check", "{}"),
        "snapshot.pickle": ("view", "{}"),
        "steps.pickle": ("step", "{}"),
        "other.json": ("run", "{}", "--device", "null", "--steps", "1"),
    }

    def each(self):
        for name, words in self.READERS.items():
            yield self.path(name), [word.format(self.path(name)) for word in words]

    def test_pipes(self):
        for path, words in self.each():
            os.mkfifo(path)
            self.refused(run(*words), 2, f"{path}: is a named pipe, expected a regular file")

    def test_sockets(self):
        for path, words in self.each():
            with socket.socket(socket.AF_UNIX) as named:
                named.bind(path)
                self.refused(run(*words), 2, f"{path}: is a socket, expected a regular file")

    def test_devices(self):
        for path, words in self.each():
            for device in ("/dev/zero", "/dev/tty", "/dev/null"):
                os.symlink(device, path)
                self.refused(run(*words), 2, f"{path}: is a character device, expected a regular file")
                os.unlink(path)

    def test_folders(self):
        for path, words in self.each():
            os.mkdir(path)
            if os.path.basename(path) == "snapshot.pickle":
                self.refused(run(*words), 2, f"{path}: an empty directory; give snapshots")
            elif os.path.basename(path) in ("plan.json", "packing.csv", "placed.csv"):
                self.refused(run(*words), 2, f"{path}: is a directory, expected a regular file")
            else:
                self.refused(run(*words), 2, path)

    def test_dangling_links(self):
        for path, words in self.each():
            os.symlink("gone", path)
            self.refused(run(*words), 2, path, "No such file or directory")

    def test_parts_of_models(self):
        """The files that a folder or an index leads to."""
        os.mkdir(self.path("model"))
        os.mkfifo(self.path("model/config.json"))
        self.refused(run("plan", self.path("model")), 2, "config.json: is a named pipe")
        os.unlink(self.path("model/config.json"))
        os.mkfifo(self.path("model/model.safetensors"))
        self.refused(run("plan", self.path("model")), 2, "model.safetensors: is a named pipe")
        os.rename(self.path("model/model.safetensors"), self.path("model/a.safetensors"))
        self.write("model/model.safetensors.index.json", json.dumps({"weight_map": {"layers.0.w": "a.safetensors"}}))
        self.refused(run("plan", self.path("model")), 2, "a.safetensors: is a named pipe")

    def test_standard_input(self):
        """In every form, also as a pipe, which a shell's <(...) is as well."""
        with open(PACKING, "rb") as file:
            text = file.read()
        expected = run("pack", PACKING, "-o", "-").stdout
        for name in ("-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"):
            with open(PACKING, "rb") as file:
                from_file = subprocess.run([PROGRAM, "pack", name, "-o", "-"], stdin=file, capture_output=True,
                                           timeout=LIMIT, check=False)
            from_pipe = subprocess.run([PROGRAM, "pack", name, "-o", "-"], input=text, capture_output=True,
                                       timeout=LIMIT, check=False)
            ours, theirs = socket.socketpair()
            with ours, theirs:
                ours.sendall(text)
                ours.shutdown(socket.SHUT_WR)
                from_socket = subprocess.run([PROGRAM, "pack", name, "-o", "-"], stdin=theirs, capture_output=True,
                                             timeout=LIMIT, check=False)
            for result in (from_file, from_pipe, from_socket):
                self.assertEqual((result.returncode, result.stderr, result.stdout.decode()), (0, b"", expected), name)
        shell = f'"{PROGRAM}" pack <(cat "{PACKING}") -o -'
        result = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=LIMIT, check=False)
        self.assertEqual((result.returncode, result.stdout), (0, expected))

    def test_slow_standard_input(self):
        """A pipe that somebody has told not to block."""
        read, write = os.pipe()
        os.set_blocking(read, False)
        with open(PACKING, "rb") as file:
            text = file.read()
        with subprocess.Popen([PROGRAM, "pack", "-", "-o", "-"], stdin=read, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE) as reader:
            os.close(read)
            for part in (text[:20], text[20:]):
                time.sleep(0.2)  # so that it finds nothing to read
                os.write(write, part)
            os.close(write)
            out, error = reader.communicate(timeout=LIMIT)
        self.assertEqual((reader.returncode, error, out.decode()), (0, b"", run("pack", PACKING, "-o", "-").stdout))

    def test_other_standard_input(self):
        with open("/dev/null", "rb") as null:
            self.refused(run("pack", "-", stdin=null), 2, "stdin")
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            self.refused(run("pack", "-", stdin=folder), 2, "/dev/stdin: is a directory")
        finally:
            os.close(folder)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
