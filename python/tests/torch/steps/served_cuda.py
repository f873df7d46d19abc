# SPDX-License-Identifier: Apache-2.0
"""Programs on PyTorch's CUDA allocator with its decorator, on the emulated runtime and driver. Prints a JSON object; ends with a
traceback where something is not as it should be.

Arguments: the name of a program, and a seed.
"""

import ctypes
import json
import os
import random
import sys
import threading
import time

import torch

from decorated import Decorated, Item, plan_of, rounded

MIB = 1 << 20
driver = ctypes.CDLL("libcuda.so.1")
libc = ctypes.CDLL(None)


def tensor(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def late(stream: torch.cuda.Stream, microseconds: int = 3000) -> None:
    driver.cuLaunchHostFunc(ctypes.c_void_p(stream.cuda_stream), libc.usleep, ctypes.c_void_p(microseconds))


def fill(data: torch.Tensor, value: int, stream: torch.cuda.Stream) -> None:
    assert driver.cuMemsetD8Async(ctypes.c_uint64(data.data_ptr()), ctypes.c_ubyte(value), ctypes.c_size_t(data.numel()),
                                  ctypes.c_void_p(stream.cuda_stream)) == 0


def content(data: torch.Tensor) -> bytes:
    return ctypes.string_at(data.data_ptr(), data.numel())


def random_plan(rng: random.Random, streams: int = 1, items: int = 60) -> tuple[list[Item], int]:
    """Items at random places: nearly each overlaps others."""
    slab = 64 * MIB
    sizes = [rng.choice((rng.randrange(1, 1 << 20), rng.randrange(MIB, 8 * MIB))) for _ in range(12)]
    made = []
    for _ in range(items):
        size = rng.choice(sizes)
        made.append(Item(size, rng.randrange(0, slab - rounded(size) + 1, 512), rng.randrange(streams), rng.randrange(2)))
    return made, slab


def statistics(seed: int) -> dict:
    """memory_stats and snapshots are those of the tensors, wherever they live."""
    rng = random.Random(seed)
    items, slab = random_plan(rng)
    decorated = Decorated("cuda")
    early = [tensor(rng.randrange(1, 4 * MIB)) for _ in range(5)]
    decorated.serve(plan_of([items], slab))
    live: list[torch.Tensor] = []
    requested = sum(t.numel() for t in early)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    peak, most, made, freed, in_slab = requested, len(early), 0, 0, 0
    for turn in range(2000):
        if turn % 100 == 0:
            decorated.mark()
        if turn == 1000:
            torch.cuda.reset_peak_memory_stats()
            peak, most = requested, len(live) + len(early)
        if turn == 1400:  # what lives stays
            items, slab = random_plan(rng)
            decorated.called("replace", 0, plan_of([items], slab))
            decorated.check()
        if live and rng.random() < 0.48:
            gone = live.pop(rng.randrange(len(live)))
            requested -= gone.numel()
            freed += gone.numel()
            del gone
        else:
            size = rng.choice(items).bytes if rng.random() < 0.8 else rng.randrange(1, 3 * MIB)
            live.append(tensor(size))
            requested += size
            made += size
            in_slab += decorated.holds(live[-1].data_ptr())
        peak, most = max(peak, requested), max(most, len(live) + len(early))
        if turn % 50 == 0:
            stats = torch.cuda.memory_stats()
            seen = {key: stats[key] for key in ("requested_bytes.all.current", "requested_bytes.all.peak", "requested_bytes.all.allocated",
                                                "requested_bytes.all.freed", "allocation.all.current", "allocation.all.peak")}
            assert list(seen.values()) == [requested, peak, made, freed, len(live) + len(early), most], (turn, seen, requested, peak, made,
                                                                                                       freed, len(live), most)
            blocks = [block for segment in torch.cuda.memory._snapshot()["segments"] for block in segment["blocks"]]
            active = [block for block in blocks if block["state"] == "active_allocated"]
            assert sum(block["requested_size"] for block in active) == requested
            assert {block["address"] for block in active} == {t.data_ptr() for t in live + early}
            assert sum(block["size"] for block in active) == stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
            assert sum(s["total_size"] for s in torch.cuda.memory._snapshot()["segments"]) == torch.cuda.memory_reserved()
            for segment in torch.cuda.memory._snapshot()["segments"]:
                assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
                assert sum(b["size"] for b in segment["blocks"] if b["state"] == "active_allocated") == segment["allocated_size"]
            decorated.check()
    assert stats["allocated_bytes.all.peak"] >= stats["allocated_bytes.all.current"]
    live.clear()
    torch.cuda.empty_cache()
    assert decorated.status().slab != 0 and torch.cuda.memory_reserved() >= slab
    decorated.stop()
    assert decorated.status().slab == 0 and decorated.status().state == 0
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() < slab and torch.cuda.memory_allocated() >= sum(t.numel() for t in early)
    return {"in_slab": in_slab}


def order(seed: int) -> dict:
    """Work on streams is late. Memory that a stream used is written by the next user only behind that."""
    decorated = Decorated("cuda")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
    wrong = {}
    for flagged in (0, 1):
        decorated.serve(plan_of([[Item(MIB, 0, 1, flagged), Item(2 * MIB, 0, 0, flagged)]], 2 * MIB, streams=(0, 1)))
        for name in ("allocating stream", "recorded stream"):
            wrong[f"{name}, {flagged}"] = 0
            for _ in range(20):
                decorated.mark()
                with torch.cuda.stream(streams[1]):
                    first = tensor(MIB)
                user = streams[1] if name == "allocating stream" else streams[2]
                late(user)
                fill(first, 1, user)
                if user is streams[2]:
                    first.record_stream(user)
                where = first.data_ptr()
                del first
                second = tensor(2 * MIB)
                assert second.data_ptr() == where and decorated.holds(where)
                fill(second, 2, streams[0])
                torch.cuda.synchronize()
                wrong[f"{name}, {flagged}"] += content(second) != b"\2" * (2 * MIB)
                del second
        events, waits = decorated.statistics().events, decorated.statistics().waits
        decorated.stop()
    return {"wrong": wrong, "events": events, "waits": waits}


def other_streams(seed: int) -> dict:
    """Streams beyond those that the server knows, and streams of others, which may be gone: PyTorch serves them, and memory that they use
    is written by the next user only behind their work, also if that was issued after record_stream."""
    decorated = Decorated("cuda")
    main, handle = torch.cuda.current_stream(), ctypes.c_void_p()
    decorated.serve(plan_of([[Item(MIB, 0), Item(2 * MIB, 0)]], 2 * MIB))
    wrong = in_slab = 0
    for turn in range(48):
        if turn % 2:
            assert driver.cuStreamCreate(ctypes.byref(handle), 1) == 0
        user = torch.cuda.ExternalStream(handle.value) if turn % 2 else torch.cuda.Stream(priority=-(turn // 2 % 2))
        decorated.mark()
        with torch.cuda.stream(user):
            own = tensor(MIB)
            in_slab += turn % 2 and decorated.holds(own.data_ptr())
            del own
        decorated.mark()
        first = tensor(MIB)
        assert decorated.holds(first.data_ptr())
        first.record_stream(user)
        late(user)
        fill(first, 1, user)
        del first
        second = tensor(2 * MIB)
        assert decorated.holds(second.data_ptr()), list(decorated.statistics().outcomes)
        fill(second, 2, main)
        torch.cuda.synchronize()
        wrong += content(second) != b"\2" * (2 * MIB)
        if turn % 2:
            assert driver.cuStreamDestroy_v2(handle) == 0
        del second
    decorated.stop()
    return {"wrong": wrong, "in_slab": in_slab, "state": decorated.status().state, "reserved": decorated.status().slab}


def slab_order(seed: int) -> dict:
    """The slab may be memory that PyTorch has freed and whose work is late, and PyTorch gets it back while its work is late."""
    decorated = Decorated("cuda")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    wrong = {"taken": 0, "given back": 0}
    for _ in range(10):
        whole = tensor(200 * MIB)
        del whole
        held, rest = tensor(2 * MIB), tensor(100 * MIB)  # of one segment, which stays
        late(main)
        fill(rest, 1, main)
        del rest
        plan = plan_of([[Item(100 * MIB, 0, 1)]], 100 * MIB, streams=(0, 1))
        decorated.serve(plan)
        decorated.mark()
        with torch.cuda.stream(side):
            served = tensor(100 * MIB)
        assert decorated.holds(served.data_ptr())
        fill(served, 2, side)
        torch.cuda.synchronize()
        wrong["taken"] += content(served[:MIB]) != b"\2" * MIB
        late(side)
        fill(served, 3, side)
        where = served.data_ptr()
        del served
        decorated.stop()
        kept = [tensor(20 * MIB) for _ in range(4)]
        for each in kept:
            fill(each, 4, main)
        torch.cuda.synchronize()
        wrong["given back"] += any(content(each[:MIB]) != b"\4" * MIB for each in kept)
        del held, kept, each
        torch.cuda.empty_cache()
    return {"wrong": wrong, "where": where > 0}


def random_order(seed: int) -> dict:
    """Each tensor is filled by the streams that use it, late, and has its own bytes when it is freed and all streams are done."""
    rng = random.Random(seed)
    decorated = Decorated("cuda")
    streams = [torch.cuda.current_stream(), *(torch.cuda.Stream() for _ in range(3))]
    items, slab = random_plan(rng, streams=4, items=40)
    items = [item._replace(bytes=min(item.bytes, 256 << 10)) for item in items]
    decorated.serve(plan_of([items], slab, streams=(0, 1, 2, 3)))
    wrong = in_slab = 0
    for turn in range(60):
        decorated.mark()
        if turn % 20 == 19:
            items = [item._replace(bytes=min(item.bytes, 256 << 10)) for item in random_plan(rng, streams=4, items=40)[0]]
            decorated.called("replace", 0, plan_of([items], slab, streams=(0, 1, 2, 3)))
        kept = []
        for item in items:
            user = streams[item.stream]
            with torch.cuda.stream(user):
                data = tensor(item.bytes)
            in_slab += decorated.holds(data.data_ptr())
            value, other = rng.randrange(1, 255), rng.choice(streams)
            if rng.random() < 0.3:
                late(user, rng.choice((100, 1000)))
            fill(data, value, user)
            if rng.random() < 0.3:
                other.wait_stream(user)
                late(other, rng.choice((100, 1000)))
                fill(data, value, other)
                data.record_stream(other)
            kept.append((data, value))
            if rng.random() < 0.7:
                kept.pop(rng.randrange(len(kept)))
            del data
        torch.cuda.synchronize()
        wrong += sum(content(data) != bytes([value]) * data.numel() for data, value in kept)
    decorated.check()
    return {"wrong": wrong, "in_slab": in_slab, "waits": decorated.statistics().waits, "events": decorated.statistics().events}


def out_of_memory(seed: int) -> dict:
    """Before an allocation fails, free ranges of the slab serve it; then PyTorch's error has PyTorch's type and text."""
    free, _ = torch.cuda.mem_get_info()
    decorated = Decorated("cuda")
    decorated.serve(plan_of([[Item(10 * MIB, 0), Item(20 * MIB, 100 * MIB)]], 600 * MIB))
    rest = tensor(free - 1000 * MIB)
    kept = [tensor(300 * MIB)]
    kept.append(tensor(400 * MIB))  # of the slab: the device has about 100 MiB
    assert not decorated.holds(kept[0].data_ptr()) and decorated.holds(kept[1].data_ptr())
    decorated.mark()
    try:
        kept.append(tensor(500 * MIB))
        raise AssertionError("there was memory")
    except torch.OutOfMemoryError as error:
        text = str(error)
    planned = tensor(10 * MIB)  # its range is in use, or is not: never both
    assert all(abs(planned.data_ptr() - t.data_ptr()) >= 10 * MIB for t in kept)
    decorated.check()
    stats = torch.cuda.memory_stats()
    assert stats["requested_bytes.all.current"] == rest.numel() + 710 * MIB
    return {"anywhere": decorated.statistics().anywhere, "text": text[:60], "ooms": stats["num_ooms"]}


def observed(seed: int) -> dict:
    """While memory for a slab is missing, PyTorch calls the program's observer, which may look at the decorator."""
    decorated, seen = Decorated("cuda"), []
    tensor(MIB)
    torch._C._cuda_attach_out_of_memory_observer(lambda *given: seen.append(decorated.status().state))
    try:
        decorated.serve(plan_of([[Item(MIB, 0)]], 1 << 50))
    except RuntimeError as error:
        seen.append(str(error)[:18])
    return {"seen": seen}


def pools(seed: int) -> dict:
    """PyTorch serves a MemPool, on its streams. The slab survives empty_cache; too large a slab is refused."""
    decorated = Decorated("cuda")
    decorated.serve(plan_of([[Item(MIB, i * MIB) for i in range(8)]], 8 * MIB))
    pool = torch.cuda.MemPool()
    first = tensor(MIB)
    with torch.cuda.use_mem_pool(pool):
        inside = tensor(MIB)
    behind = tensor(MIB)
    assert [decorated.holds(t.data_ptr()) for t in (first, inside, behind)] == [True, False, True]
    torch.cuda.empty_cache()
    assert decorated.holds(first.data_ptr())
    raw = torch.cuda.caching_allocator_alloc(MIB)
    assert not decorated.holds(raw)
    torch.cuda.caching_allocator_delete(raw)
    freed, live = tensor(MIB), decorated.statistics().live
    torch.cuda.caching_allocator_delete(freed.data_ptr())  # raw_delete; the tensor lives until the process ends
    assert decorated.statistics().live == live - 1
    storage = tensor(MIB).untyped_storage()
    storage.resize_(0)
    storage.resize_(MIB)
    assert decorated.holds(storage.data_ptr())
    torch.cuda.caching_allocator_enable(False)
    direct = tensor(MIB)
    assert not decorated.holds(direct.data_ptr())
    del direct
    torch.cuda.caching_allocator_enable(True)
    refused = ""
    del first, inside, behind, storage
    try:
        decorated.serve(plan_of([[Item(MIB, 0)]], MIB))
    except RuntimeError as error:
        refused = str(error)
    decorated.stop()
    try:
        decorated.serve(plan_of([[Item(MIB, 0)]], 1 << 50))
    except RuntimeError as error:
        too_large = str(error)
    decorated.serve(plan_of([[Item(MIB, 0)]], MIB))
    decorated.mark()
    assert decorated.holds(tensor(MIB).data_ptr())
    return {"refused": refused, "too_large": too_large[:40]}


def threads(seed: int) -> dict:
    """Four threads on two streams: no two live tensors share a byte."""
    decorated = Decorated("cuda")
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    items = [Item((i % 7 + 1) * MIB, i % 16 * 7 * MIB, i % 2) for i in range(64)]
    decorated.serve(plan_of([items], 16 * 7 * MIB, streams=(0, 1)))
    lock, live, faults, in_slab = threading.Lock(), {}, [], [0]

    def work(number: int) -> None:
        rng, mine = random.Random(seed * 10 + number), []
        with torch.cuda.stream(streams[number % 2]):
            for _ in range(5000):
                if mine and (len(mine) > 6 or rng.random() < 0.5):
                    data = mine.pop(rng.randrange(len(mine)))
                    with lock:
                        del live[data.data_ptr()]
                    if rng.random() < 0.2:
                        data.record_stream(streams[1 - number % 2])
                    del data
                else:
                    data = tensor((rng.randrange(8) + 1) * MIB)
                    begin, end = data.data_ptr(), data.data_ptr() + data.numel()
                    with lock:
                        if any(begin < other_end and other < end for other, other_end in live.items()):
                            faults.append((begin, end))
                        live[begin] = end
                        in_slab[0] += decorated.holds(begin)
                    mine.append(data)
                if rng.random() < 0.02:
                    decorated.mark()
        with lock:
            for data in mine:
                del live[data.data_ptr()]

    workers = [threading.Thread(target=work, args=(number, )) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    decorated.check()
    return {"faults": faults, "in_slab": in_slab[0]}


def life(seed: int) -> dict:
    """Plans begin, change and end on two GPUs while threads allocate and free there, and others look at the memory."""
    decorated = Decorated("cuda")
    places = [(device, stream) for device in range(2) for stream in (torch.cuda.default_stream(device), torch.cuda.Stream(device))]
    plans = [plan_of([[Item((i % 7 + 1) * MIB, i * (3 + 2 * p) % (16 - p) * 7 * MIB, i % 2) for i in range(64)]], (16 - p) * 7 * MIB, streams=(0, 1))
             for p in range(3)]
    lock, live, faults, over = threading.Lock(), ({}, {}), [], threading.Event()

    def work(number: int) -> None:
        rng, mine = random.Random(seed * 10 + number), []
        while not over.is_set():
            device, stream = rng.choice(places)
            if mine and (len(mine) > 8 or rng.random() < 0.5):
                where, data = mine.pop(rng.randrange(len(mine)))
                with lock:
                    del live[where][data.data_ptr()]
                if rng.random() < 0.2:
                    data.record_stream(rng.choice([s for d, s in places if d == where]))
                del data  # where another device may be current
            else:
                with torch.cuda.device(device), torch.cuda.stream(stream):
                    data = tensor((rng.randrange(8) + 1) * MIB)
                begin, end = data.data_ptr(), data.data_ptr() + data.numel()
                with lock:
                    if any(begin < other_end and other < end for other, other_end in live[device].items()):
                        faults.append((begin, end))
                    live[device][begin] = end
                mine.append((device, data))
                del data
        with lock:
            for where, data in mine:
                del live[where][data.data_ptr()]

    def look() -> None:
        while not over.is_set():
            torch.cuda.memory._snapshot()
            for device in range(2):
                if min(torch.cuda.memory_stats(device)["allocated_bytes.all.current"], torch.cuda.max_memory_allocated(device)) < 0:
                    faults.append(torch.cuda.memory_stats(device))

    workers = [threading.Thread(target=work, args=(number, )) for number in range(3)] + [threading.Thread(target=look)]
    for worker in workers:
        worker.start()
    rng, done = random.Random(seed), {name: 0 for name in ("serve", "stop", "replace", "mark", "record", "forget", "history", "empty")}
    for turn in range(1500):
        device, name = turn % 2, rng.choice([*done, "mark", "mark", "serve"])
        try:
            if name == "serve":
                decorated.called("serve", device, rng.choice(plans), ctypes.c_uint64(rng.choice((0, 0, 40 * MIB))))
            elif name == "replace":
                decorated.called("replace", device, rng.choice(plans))
            elif name == "history":
                torch.cuda.memory._record_memory_history(rng.choice((None, "all")), max_entries=1000)
            elif name == "empty":
                torch.cuda.empty_cache()
            elif name != "stop" or rng.random() < 0.3:
                getattr(decorated.library, "bp_decorator_" + name)(device)
            done[name] += 1
        except RuntimeError as error:
            assert "served" in str(error) or "slab" in str(error), error
        time.sleep(0.002 * rng.random())
    over.set()
    for worker in workers:
        worker.join()
    for device in range(2):
        decorated.library.bp_decorator_stop(device)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    left = [(torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)) for device in range(2)]
    return {"faults": faults, "left": left, "slab": decorated.status().slab, "done": done}


def captured(seed: int) -> dict:
    """While a stream is captured, nothing is recorded on it or waited for, and memory that it used goes to no other stream."""
    decorated = Decorated("cuda")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    decorated.serve(plan_of([[Item(MIB, 0, 1, 1), Item(2 * MIB, 0, 0, 1)]], 2 * MIB, streams=(0, 1)))
    graph = ctypes.c_void_p()
    for is_captured in (False, True, False):
        decorated.mark()
        with torch.cuda.stream(side):
            first = tensor(MIB)
        assert decorated.holds(first.data_ptr())
        if is_captured:
            assert driver.cuStreamBeginCapture_v2(ctypes.c_void_p(side.cuda_stream), 2) == 0  # relaxed
            fill(first, 1, side)
        del first
        second = tensor(2 * MIB)
        assert decorated.holds(second.data_ptr()) != is_captured
        if is_captured:
            assert driver.cuStreamEndCapture(ctypes.c_void_p(side.cuda_stream), ctypes.byref(graph)) == 0
        fill(second, 2, main)
        torch.cuda.synchronize()
        del second
    return {"unordered": decorated.statistics().outcomes[5]}


def other_device(seed: int) -> dict:
    """Memory of GPU 1 that a thread frees whose device is GPU 0: events are recorded on GPU 1, and GPU 0 gets no context."""
    torch.cuda.set_device(1)
    decorated = Decorated("cuda")
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    decorated.called("serve", 1, plan_of([[Item(MIB, 0, 1, 1), Item(2 * MIB, 0, 0, 1)]], 2 * MIB, streams=(0, 1)), ctypes.c_uint64(0))
    flags, context, wrong = ctypes.c_uint(), ctypes.c_int(), 0
    for _ in range(10):
        decorated.library.bp_decorator_mark(1)
        for size, stream in ((MIB, side), (2 * MIB, main)):
            with torch.cuda.stream(stream):
                held = [tensor(size)]
            late(stream)
            fill(held[0], size // MIB, stream)
            if stream is main:
                torch.cuda.synchronize()
                wrong += content(held[0]) != b"\2" * size
            worker = threading.Thread(target=held.clear)
            worker.start()
            worker.join()
    assert driver.cuDevicePrimaryCtxGetState(0, ctypes.byref(flags), ctypes.byref(context)) == 0
    statistics = decorated.statistics(1)
    return {"wrong": wrong, "context": context.value, "served": statistics.outcomes[0], "events": statistics.events}


def fork(seed: int) -> dict:
    """A child is native, and frees what it inherited without touching the slab of its parent."""
    decorated = Decorated("cuda")
    decorated.serve(plan_of([[Item(MIB, 0), Item(MIB, MIB)]], 2 * MIB))
    inherited = tensor(MIB)
    child = os.fork()
    if child == 0:
        del inherited
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert decorated.statistics().live == 1
    return {}


def history(seed: int) -> dict:
    """Snapshots have the events and call stacks of the slab's tensors beside those of PyTorch's: played, they give what is live."""
    rng = random.Random(seed)
    items, slab = random_plan(rng)
    decorated = Decorated("cuda")
    decorated.serve(plan_of([items], slab))
    torch.cuda.memory._record_memory_history(max_entries=100000, context="all", stacks="python")
    live: list[torch.Tensor] = []
    in_slab = 0
    for turn in range(600):
        if turn % 60 == 0:
            decorated.mark()
        if live and rng.random() < 0.48:
            live.pop(rng.randrange(len(live)))
        else:
            live.append(tensor(rng.choice(items).bytes if rng.random() < 0.8 else rng.randrange(1, 3 * MIB)))
            in_slab += decorated.holds(live[-1].data_ptr())
    snapshot = torch.cuda.memory._snapshot()
    played: dict[int, int] = {}
    events = snapshot["device_traces"][0]
    for event in events:
        if event["action"] == "alloc":
            assert event["addr"] not in played
            played[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            assert played.pop(event["addr"]) == event["size"]
    assert played == {t.data_ptr(): t.numel() for t in live}
    assert all(event["frames"][0]["name"] for event in events if event["action"] in ("alloc", "free_requested"))
    assert sum(event["action"] == "alloc" and decorated.holds(event["addr"]) for event in events) == in_slab
    for segment in snapshot["segments"]:
        assert all(block["frames"] for block in segment["blocks"] if block["state"] == "active_allocated" and played.get(block["address"]))
    torch.cuda.memory._record_memory_history(enabled=None)
    live.append(tensor(items[0].bytes))
    torch.cuda.memory._record_memory_history(max_entries=100000, context=None)
    assert not [e for e in torch.cuda.memory._snapshot()["device_traces"][0] if e["action"] == "alloc"]
    return {"in_slab": in_slab}


def refused(seed: int) -> dict:
    try:
        Decorated("cuda")
    except RuntimeError as error:
        return {"because": str(error)}
    return {"because": ""}


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](int(sys.argv[2]))))
    sys.stdout.flush()
    os._exit(0)  # PyTorch's streams outlive the emulated driver's threads
