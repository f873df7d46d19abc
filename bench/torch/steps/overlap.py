# SPDX-License-Identifier: Apache-2.0
"""Overlap of communication and computation, from the events of a Chrome trace of PyTorch's profiler."""

import collections

ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


def union(intervals):
    """Disjoint intervals in order."""
    merged = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    return merged


def length(intervals):
    return sum(end - begin for begin, end in intervals)


def common(first, second):
    """The length of the intersection of two lists of union()."""
    total, place = 0, 0
    for begin, end in first:
        while place < len(second) and second[place][1] <= begin:
            place += 1
        at = place
        while at < len(second) and second[at][0] < end:
            total += min(end, second[at][1]) - max(begin, second[at][0])
            at += 1
    return total


def measured(events):
    """The stream with the most work computes; work of the others is communication: FSDP2's all-gathers and reduce-scatters have separate
    streams. Microseconds, and the covered share; {} without work of several streams."""
    streams = collections.defaultdict(list)
    for event in events:
        if event.get("cat") in ON_DEVICE and "stream" in event.get("args", {}):
            streams[event["args"]["stream"]].append((event["ts"], event["ts"] + event["dur"]))
    busy = {stream: union(intervals) for stream, intervals in streams.items()}
    if len(busy) < 2:
        return {}
    computing = max(busy, key=lambda stream: length(busy[stream]))
    communication = union(interval for stream, intervals in busy.items() if stream != computing for interval in intervals)
    covered, total = common(communication, busy[computing]), length(communication)
    return {"communication_us": round(total, 1), "covered_us": round(covered, 1), "covered_share": round(covered / total, 4),
            "busy_us": round(length(union([*communication, *busy[computing]])), 1), "streams": len(busy)}
