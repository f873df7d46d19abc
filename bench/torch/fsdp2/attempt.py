# SPDX-License-Identifier: Apache-2.0
"""Runs a function in a forked process with a time limit. The parent imports PyTorch once and never initializes CUDA. A context that hangs, or
FSDP2's undefined state after running out of memory, ends with its process."""

import ctypes
import multiprocessing
import os
import signal
import time
import traceback

OUT_OF_TIME = "out of time"
_FORK = multiprocessing.get_context("fork")


def end_with_parent():
    """If the parent is killed, this process ends, too, and frees the GPU's memory (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def _child(function, arguments, pipe):
    end_with_parent()
    try:
        pipe.send((None, function(*arguments)))
    except BaseException as error:  # noqa: B902: the parent reports every error
        pipe.send((f"{type(error).__name__}: {error}", traceback.format_exc()))
    pipe.close()
    os._exit(0)  # skips destructors: the state may be undefined


class Attempt:
    """A function that has been started in a forked process."""

    def __init__(self, function, *arguments):
        self.begin = time.monotonic()
        self._pipe, theirs = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_child, args=(function, arguments, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def result(self, seconds):
        """Ends it. Returns the error or None, the result or the traceback, and the seconds it took."""
        try:
            if not self._pipe.poll(max(0.0, seconds)):
                error, result = f"{OUT_OF_TIME}: no answer for {seconds:.0f} s", None
            else:
                try:
                    error, result = self._pipe.recv()
                except EOFError:
                    self._process.join(10)
                    error, result = f"the process ended with {self._process.exitcode}", None
        finally:
            self._process.kill()
            self._process.join()
            self._pipe.close()
        return error, result, time.monotonic() - self.begin


def attempt(function, *arguments, seconds):
    """Runs it to its end, as Attempt.result()."""
    return Attempt(function, *arguments).result(seconds)


def gpu_is_there():
    """Checked in a process that ends, because a process with CUDA initialized cannot be forked."""
    import torch

    error, found, _ = attempt(torch.cuda.is_available, seconds=60)
    return error is None and found
