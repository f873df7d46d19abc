# SPDX-License-Identifier: Apache-2.0
"""Runs a program of PyTorch whose training steps get planned addresses: python -m bucketpool.torch.steps train.py ...

The program runs as `python train.py ...` or `python -m module ...` would run it, with its exit code and its tracebacks.
Where nothing can be served, one line says why, and the program runs with PyTorch's allocator as it is.
"""

import argparse
import importlib.metadata
import logging
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING, Any, List, Optional, Tuple

if TYPE_CHECKING:
    from ._session import Served

NAME = "bucketpool.torch.steps"
SETTING = "expandable_segments:True"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog=f"python -m {NAME}", allow_abbrev=False, usage="%(prog)s [options] SCRIPT [ARGUMENTS]\n       %(prog)s [options] -m MODULE [ARGUMENTS]",
        description="Runs a PyTorch program. Its first training steps are recorded and planned, and the following ones get "
                    "their memory at the planned addresses; with --plan, all steps.",
        epilog="Under torchrun each rank has separate files: plan.json is plan.rank3.json, and {rank} in a name is the rank.")
    made.add_argument("--plan", metavar="FILE", help="serve this plan from the first step on, and record nothing")
    made.add_argument("--record", metavar="STEPS", type=_steps, default=3, help="record so many steps, 2 or more (default: 3)")
    made.add_argument("--save", metavar="FILE", help="write the recorded plan, for --plan of the next run")
    made.add_argument("--report", metavar="FILE", help="write what was served as JSON, also if the program fails")
    made.add_argument("--device", metavar="DEVICE", help="cuda, cuda:1 or cpu (default: cuda where there is a GPU)")
    made.add_argument("--lead", metavar="EVENTS", type=int,
                      help="keep memory of side streams free for so many events before its use (default: about a layer)")
    made.add_argument("--quiet", action="store_true", help="print nothing beside the program's output")
    return made


def split(arguments: List[str]) -> Tuple[List[str], bool, List[str]]:
    """The launcher's options; true if a module follows; and the program with its arguments, which are not looked at."""
    taking = {option for action in parser()._actions if action.nargs is None for option in action.option_strings}
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        if arguments[at] in ("-m", "--"):
            return arguments[:at], arguments[at] == "-m", arguments[at + 1:]
        at += 2 if arguments[at] in taking else 1
    return arguments[:at], False, arguments[at:]


def _steps(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f'expected an integer in [2, 65535], got "{text}"')
    return int(text)


class Launcher:
    """Serves around a program."""

    def __init__(self, options: argparse.Namespace, is_module: bool, program: List[str]) -> None:
        self.options, self.is_module, self.program = options, is_module, program
        self.served: Optional["Served"] = None
        self.process = os.getpid()

    def say(self, text: str) -> None:
        """A line, of the first rank only."""
        if not self.options.quiet and os.environ.get("RANK", "0") == "0":
            print(f"{NAME}: {text}", file=sys.stderr, flush=True)

    def start(self) -> None:
        """Serves or records, or says why not."""
        options = self.options
        if options.quiet:
            logging.getLogger("bucketpool").addHandler(logging.NullHandler())
        setting = self._set_segments() if options.plan is None and options.device != "cpu" else ""
        try:
            from ._session import serve
            self.served = serve(options.plan, record=options.record, device=options.device, save=options.save,
                                report=options.report, lead=options.lead)
            if setting and self.served.on_cuda:
                self.say(f"set {setting}={SETTING}, so that the slab finds room after the recorded steps")
            elif setting:
                del os.environ[setting]
        except Exception as error:
            if setting:
                del os.environ[setting]
            self.say(f"{error}; the program runs without a plan")
            self._write_failure(str(error))

    def _set_segments(self) -> str:
        """Sets PyTorch's expandable segments, unless the user has set anything. Returns the name of the variable."""
        if "PYTORCH_ALLOC_CONF" in os.environ or "PYTORCH_CUDA_ALLOC_CONF" in os.environ:
            return ""
        try:
            release = tuple(int(part) for part in importlib.metadata.version("torch").split(".")[:2])
        except (importlib.metadata.PackageNotFoundError, ValueError):
            return ""
        name = "PYTORCH_ALLOC_CONF" if release >= (2, 9) else "PYTORCH_CUDA_ALLOC_CONF"
        os.environ[name] = SETTING
        return name

    def _write_failure(self, because: str) -> None:
        if self.options.report is None:
            return
        try:
            from ._session import write_report
            from ._text import of_rank
            write_report(of_rank(self.options.report), {"format": "bucketpool.served/1", "state": "failed", "because": because})
        except Exception as error:
            self.say(str(error))

    def finish(self) -> None:
        """The closing line and the files. A forked child of the program has none."""
        served, self.served = self.served, None
        if served is None or os.getpid() != self.process:
            return
        try:
            served.stop()
            self.say(served.closing_line())
        except Exception as error:
            self.say(str(error))

    def run(self) -> int:
        """Runs the program. Returns its exit code, if it does not exit by itself."""
        try:
            if self.is_module:
                self._run_module()
            else:
                self._run_script()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            if os.getpid() != self.process:
                raise
            error.__traceback__ = _of_program(error.__traceback__)
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        finally:
            self.finish()
        return 0

    def _run_module(self) -> None:
        sys.argv[:] = self.program  # runpy puts the file in front
        runpy.run_module(self.program[0], run_name="__main__", alter_sys=True)

    def _run_script(self) -> None:
        sys.argv[:] = self.program
        path = os.path.join(os.getcwd(), self.program[0])  # as Python does, without normalizing it
        if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
            del sys.path[:not _is_safe()]
            runpy.run_path(path, run_name="__main__")
            return
        if not _is_safe():
            sys.path[0] = os.path.dirname(os.path.realpath(path))
        with open(path, "rb") as file:
            code = compile(file.read(), path, "exec")
        main = types.ModuleType("__main__")  # stays after the end of the program, for its threads and exit handlers
        main.__dict__.update(__file__=path, __builtins__=__builtins__, __loader__=SourceFileLoader("__main__", path),
                             __spec__=None, __package__=None, __cached__=None)
        sys.modules["__main__"] = main
        exec(code, main.__dict__)


def _is_safe() -> bool:
    """True: python puts no folder in front of sys.path."""
    return bool(getattr(sys.flags, "safe_path", False) or sys.flags.isolated)


def _of_program(trace: Optional[types.TracebackType]) -> Optional[types.TracebackType]:
    """The frames behind those of the launcher and of runpy."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    here = trace
    while here is not None and here.tb_frame.f_code.co_filename in own:
        here = here.tb_next
    return here


def main(arguments: Optional[List[str]] = None) -> Any:
    own, is_module, program = split(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(own)
    if not program:
        parser().error("no program; pass a SCRIPT, or -m MODULE, behind the options")
    if options.plan is not None and options.save is not None:
        parser().error("--save: nothing is recorded with --plan; leave one of them out")
    if not is_module and not os.path.exists(program[0]):
        print(f"{NAME}: can't open file {os.path.abspath(program[0])!r}: no such file", file=sys.stderr)
        return 2
    launcher = Launcher(options, is_module, program)
    launcher.start()
    return launcher.run()


if __name__ == "__main__":
    sys.exit(main())
