"""Runs a test in several processes with a gloo process group, with one import of PyTorch and without ports."""

import contextlib
import datetime
import faulthandler
import multiprocessing
import multiprocessing.connection
import os
import tempfile
import time
import traceback

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.distributed.tensor", "torch.optim",
                                 "bucketpool.torch.fsdp2", "megatron_fsdp", "torch.utils.checkpoint", "torch._dynamo"])


def _run(function, rank, ranks, store, arguments, pipe):
    import torch
    import torch.distributed as dist

    faulthandler.enable()
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=ranks,
                                timeout=datetime.timedelta(seconds=40))
        dist.barrier()  # before one that communicates nothing ends, and the other cannot connect
        pipe.send((None, function(*arguments)))
    except BaseException:  # noqa: B902: whatever it is, the test has to say it
        pipe.send((traceback.format_exc(), None))
    finally:
        pipe.close()
    os._exit(0)  # the other rank may be gone, and gloo would wait for it


@contextlib.contextmanager
def _environment(values):
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def run(function, *arguments, ranks=2, seconds=300, environment=None, silent=()):
    """function(*arguments) in each of `ranks` processes; what each returned, by rank. Raises AssertionError with the
    first traceback. environment: of new processes, where the loader has to see it as they start. silent: ranks that
    never answer; they are killed in the end."""
    context = multiprocessing.get_context("spawn") if environment else _CONTEXT
    with tempfile.TemporaryDirectory() as folder:
        pipes, processes = [], []
        for rank in range(ranks):
            mine, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_run, args=(function, rank, ranks, os.path.join(folder, "store"),
                                                         arguments, theirs), daemon=True)
            with _environment(environment or {}):
                process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
        answers, until = {}, time.monotonic() + seconds
        try:
            while len(answers) < ranks - len(silent):
                waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers and rank not in silent]
                ready = multiprocessing.connection.wait(waiting, max(0.0, until - time.monotonic()))
                assert (
                    ready
                ), f"ranks {sorted(set(range(ranks)) - set(answers) - set(silent))} said nothing for {seconds} s"
                for pipe in ready:
                    rank = pipes.index(pipe)
                    try:
                        error, answer = pipe.recv()
                    except EOFError:
                        processes[rank].join(5)
                        error, answer = f"it ended with {processes[rank].exitcode}", None
                    assert error is None, f"rank {rank} of {ranks}: {error}"
                    answers[rank] = answer
        finally:
            for process in processes:
                process.kill()
                process.join()
        return [answers.get(rank) for rank in range(ranks)]
