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


def attempt(function, *arguments, seconds):
    """Returns the error or None, the result or the traceback, and the seconds it took."""
    begin = time.monotonic()
    mine, theirs = _FORK.Pipe(duplex=False)
    process = _FORK.Process(target=_child, args=(function, arguments, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        if not mine.poll(max(0.0, seconds)):
            error, result = f"{OUT_OF_TIME}: no answer for {seconds:.0f} s", None
        else:
            try:
                error, result = mine.recv()
            except EOFError:
                process.join(10)
                error, result = f"the process ended with {process.exitcode}", None
    finally:
        process.kill()
        process.join()
        mine.close()
    return error, result, time.monotonic() - begin


def gpu_is_there():
    """Checked in a process that ends, because a process with CUDA initialized cannot be forked."""
    import torch

    error, found, _ = attempt(torch.cuda.is_available, seconds=60)
    return error is None and found
