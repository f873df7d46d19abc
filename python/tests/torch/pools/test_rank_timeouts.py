# SPDX-License-Identifier: Apache-2.0
"""A stopped rank of a gloo group: the others name it within the time-out, and later calls fail at once."""

import datetime
import os
import signal
import time

import pytest

import process_group

RANKS = 4
SECONDS = 3.0
AFTER = 60.0  # a busy machine


def _stop():
    os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        time.sleep(60)


def _failed(function):
    """Kind, words and seconds."""
    begin = time.monotonic()
    try:
        function()
    except Exception as error:  # noqa: B902: the test looks at it
        return type(error).__name__, str(error), time.monotonic() - begin
    return "nothing", "", time.monotonic() - begin


def _group(how):
    """A group with a time-out of SECONDS: its own, that of set_timeout(), or that of the environment."""
    import torch.distributed as dist
    from bucketpool.torch import comm

    if how == "own":
        return dist.new_group(list(range(RANKS)), timeout=datetime.timedelta(seconds=SECONDS))
    if how == "store":
        box, store = [0], None
        if dist.get_rank() == 0:
            store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            box = [store.port]
        rank = dist.get_rank()
        dist.broadcast_object_list(box)
        store = store or dist.TCPStore("127.0.0.1", box[0], is_master=False)
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS,
                                timeout=datetime.timedelta(seconds=40))
    if how == "environment":
        os.environ["BUCKETPOOL_COMM_TIMEOUT"] = str(int(SECONDS))
    else:
        comm.set_timeout(dist.group.WORLD, SECONDS)
    return dist.group.WORLD


def lose_rank(how, missing, late):
    """On each rank: the errors of a call of the log-prob client, of the next, and of a communicator's own exchange."""
    import torch
    import torch.distributed as dist
    from bucketpool.torch import comm
    from bucketpool.torch import logprob as L

    group = _group(how)
    rank = dist.get_rank()

    def call():
        L.logprobs_from_logits(torch.randn(2, 6, 24), torch.zeros(2, 6, dtype=torch.int64), group=group)

    def exchange():
        ours = comm.comm_of(group)
        mine, everybody = torch.zeros(8, dtype=torch.uint8), torch.zeros(8 * RANKS, dtype=torch.uint8)
        assert ours.handle is not None
        comm.call(comm.core().bp_comm_exchange, ours.handle, mine.data_ptr(), 8, everybody.data_ptr())

    call()
    exchange()
    if rank in missing:
        _stop()
    if rank == late:  # slow, but there: it is not named
        time.sleep(SECONDS / 2)
    answers = _failed(call), _failed(call), _failed(exchange), _failed(comm.close)
    if how == "store" and 0 not in missing:  # rank 0 serves it: the others may still ask
        store = dist.distributed_c10d._get_default_store()
        store.set(f"done/{rank}", "")
        if rank == 0:
            store.wait([f"done/{other}" for other in range(RANKS) if other not in missing],
                       datetime.timedelta(seconds=60))
    return answers


@pytest.mark.parametrize("how,missing,late", [("own", [2], None), ("set", [2], 0), ("set", [1, 2], None),
                                              ("set", [0], 3), ("environment", [3], None), ("store", [2], 1)])
def test_missing_ranks(how, missing, late):
    names = f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} of 4 ha"
    for rank, answer in enumerate(process_group.run(lose_rank, how, missing, late, ranks=RANKS, seconds=180,
                                                    silent=missing)):
        if rank in missing:
            continue
        (kind, words, took), (again, same, at_once), exchanged, closed = answer
        assert kind == "RankTimeout" and names in words and " not answered within 3 s; " in words, answer
        assert words.startswith("logprobs_from_logits over torch group ") and took < SECONDS + AFTER, answer
        assert again == kind and f"is broken: {words}" in same and at_once < SECONDS, answer
        assert exchanged[0] == kind and words in exchanged[1] and exchanged[2] < SECONDS, answer
        assert closed[0] == "nothing" and closed[2] < AFTER, answer


def test_missing_store():
    """The process that serves the store is missing, so the missing ranks are unknown."""
    for rank, answer in enumerate(process_group.run(lose_rank, "store", [0], None, ranks=RANKS, seconds=180,
                                                    silent=[0])):
        if rank == 0:
            continue
        (kind, words, took), (again, same, at_once), *_ = answer
        assert kind == again == "RankTimeout" and "unknown which" in words and "rank 0" in words, answer
        assert took < SECONDS + AFTER and at_once < SECONDS, answer


def count_exchanges():
    import torch.distributed as dist
    from bucketpool.torch import comm

    ours, gathers = comm.comm_of(dist.group.WORLD), []
    gather = ours._gather_host
    ours._gather_host = lambda *arguments: (gathers.append(1), gather(*arguments))
    for _ in range(3):
        ours.agree("a call", {"size": 7}, {})
    return len(gathers), int(dist.group.WORLD.get_group_store().get(f"bucketpool/{dist.get_rank()}"))


def test_exchanges_of_an_agreement():
    """Whatever the number of ranks; each rank has noted its arrivals."""
    assert process_group.run(count_exchanges, ranks=RANKS) == [(3, 3)] * RANKS


def refuse_values():
    import torch.distributed as dist
    from bucketpool import errors
    from bucketpool.torch import comm

    words = []
    for wrong in (0, -1, float("nan"), 1e7):
        try:
            comm.set_timeout(dist.group.WORLD, wrong)
        except errors.InvalidArgument as error:
            words.append(str(error))
    comm.set_timeout(dist.group.WORLD, 5)
    ours = comm.comm_of(dist.group.WORLD)
    set_to = ours.timeout
    comm.set_timeout(dist.group.WORLD, None)
    return words, set_to, ours.timeout


def test_time_out_values():
    for words, set_to, own in process_group.run(refuse_values):
        assert len(words) == 4 and all("expected seconds in (0, 1000000]" in one for one in words)
        assert (set_to, own) == (5.0, 40.0)
