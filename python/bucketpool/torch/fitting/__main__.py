# SPDX-License-Identifier: Apache-2.0
"""Answers `bucketpool fit`: options as JSON in the first argument, lines of JSON as the answer."""

import contextlib
import gc
import json
import os
import sys
import time
import warnings
from typing import Any, Dict, List, Sequence, Tuple

from ...errors import Error, InvalidArgument, Unsupported

MISSING = "fit needs PyTorch and transformers, and {0} is missing; install them with {1} -m pip install torch transformers"


DEFAULTS = {"dp": 1, "ep": 1, "tp": 1, "sequence": 4096, "checkpointing": "auto", "optimizer": "adamw", "weights": "fp32",
            "param_dtype": "bf16", "reduce_dtype": "fp32", "reshard": True, "loss": "labels"}


_answers = sys.stdout


def _say(line: Dict[str, Any]) -> None:
    print(json.dumps(line), flush=True, file=_answers)


def _keep_answers_apart() -> None:
    """Prints of models and of libraries go to standard error."""
    global _answers
    _answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)


def _answer(options: Dict[str, Any]) -> Dict[str, Any]:
    from . import cache, cores, document
    from .answer import explore
    from .gpus import find
    from .jobs import Jobs
    from .measured import command

    begin = time.monotonic()
    fresh, name = options.pop("fresh", False), options.pop("name", "") or _name(options["model"])
    options = {**DEFAULTS, **options}
    options.setdefault("runtime", "fsdp2" if options["dp"] > 1 else "single")
    gpu = find(options.get("gpu"), options.get("memory"), options.get("reserve"), options["dp"] * options["tp"])
    try:
        with open(options["model"], "rb") as file:
            config = file.read()
    except OSError as error:
        raise InvalidArgument(f"{options['model']}: {error.strerror}") from None
    key = cache.key_of({**options, "model": name}, config, command())
    known = None if fresh else cache.load(key)
    if known is not None:
        return known
    asked = options["checkpointing"]
    ways = [_program({**options, "checkpointing": way}, gpu) for way in (("full", ) if asked == "full" else ("none", "full"))]
    _preload(options)
    jobs = Jobs(cores(), lambda what, done, total: _say({"progress": what, "done": done, "total": total}))
    found = explore(jobs, gpu, ways, lambda way: _changes({**options, "checkpointing": way}, gpu), options.get("batch"),
                    cache.recording_path, asked == "auto")
    answer = document(name, options, gpu, found, time.monotonic() - begin)
    cache.store(key, answer)
    return answer


def _preload(options: Dict[str, Any]) -> None:
    """Imports what recordings need, once, before their processes are forked."""
    import torch._dynamo  # noqa: F401
    import torch.distributed.fsdp
    import torch.testing._internal.distributed.fake_pg  # noqa: F401

    from .training import Training
    with contextlib.suppress(Exception):  # a model of few layers, where that is possible
        Training({**options, "runtime": "fsdp2", "dp": 2, "ep": 1, "checkpointing": "none", "layers": 2}).model()
    gc.collect()
    gc.freeze()  # or each process collects, and copies, what they share


def _name(path: str) -> str:
    """Of a model without another one: that of its folder."""
    return os.path.basename(os.path.dirname(os.path.abspath(path))) or path


def _program(options: Dict[str, Any], gpu: Any) -> Any:
    from .measured import Program
    from .training import Training

    training = Training(options)
    return Program(training, gpu.capability, options["checkpointing"])


def _changes(options: Dict[str, Any], gpu: Any) -> List[Any]:
    """Other ways to train the same."""
    from .answer import Change

    found: List[Tuple[str, str, Dict[str, Any]]] = []
    if options["loss"] != "bucketpool":
        found.append(("a loss of the bucketpool client's log-probabilities", "--loss bucketpool", {"loss": "bucketpool"}))
    if options["optimizer"] == "adamw":
        found.append(("AdamW in one kernel", "--optimizer fused-adamw", {"optimizer": "fused-adamw"}))
    if options["runtime"] == "fsdp2":
        dp = 2 * options["dp"]
        found.append((f"shards on {dp} ranks", f"--dp {dp}", {"dp": dp}))
        if not options["reshard"]:
            found.append(("parameters gathered again in backward", "without --no-reshard", {"reshard": True}))
    return [Change(what, option, _program({**options, **change}, gpu)) for what, option, change in found]


def main(arguments: Sequence[str]) -> int:
    """Exit status: 0, or that of the error. Prints lines of JSON."""
    _keep_answers_apart()
    try:
        options = {name.replace("-", "_"): value for name, value in json.loads(arguments[0]).items()}
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # recordings compute next to nothing
        import torch
        import transformers
        torch.set_num_threads(1)
        logging: Any = transformers.logging
        logging.set_verbosity_error()
        warnings.simplefilter("ignore")
    except ImportError as error:
        _say({"error": MISSING.format(error.name, sys.executable), "exit": 3})
        return 3
    try:
        _say(_answer(options))
    except (InvalidArgument, Unsupported) as error:
        _say({"error": str(error), "exit": 2})
        return 2
    except Error as error:
        _say({"error": str(error), "exit": 3})
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
