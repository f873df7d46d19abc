# SPDX-License-Identifier: Apache-2.0
"""Reports of served steps as text, and the names of files of ranks."""

import os
from typing import Any, Dict, List, Optional, Tuple

__all__ = ["amount", "closing_line", "report_text", "of_rank", "rank_and_ranks"]

WELL_SERVED = 0.9  # of the allocations
LISTED = 8  # classes of allocations that were not served


def amount(size: float) -> str:
    """Bytes with three digits: 14.9 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1000 or unit == "GiB":
            return f"{size:.0f} B" if unit == "B" else f"{size:.{0 if size >= 100 else 1 if size >= 10 else 2}f} {unit}"
        size /= 1024
    raise AssertionError


def closing_line(summary: Dict[str, Any]) -> str:
    """The gain of serving on a device, in one line."""
    before, reserved = summary["reserved_peak_before_bytes"], summary["reserved_peak_bytes"]
    served = f"{summary['served']:,} of {summary['allocations']:,} allocations served"
    steps = f" in {summary['steps']:,} steps" if summary["steps"] != 1 else " in 1 step"
    if summary["steps"] == 0:
        if summary["because"]:
            return f"{summary['device']}: {'not served' if summary['state'] == 'failed' else 'stopped serving'}: {summary['because']}"
        saved = f"; {summary['plan']} has the plan, of {amount(summary['slab_bytes'])}" if summary["plan"] else ""
        if summary["slab_bytes"] and summary["allocations"]:
            return f"{summary['device']}: the program ended within its first served step, {served}{saved}"
        if summary["marks"] == 0:
            return (f"{summary['device']}: not served: no optimizer of PyTorch has ended a step in this process; under torchrun, run "
                    "torchrun -m bucketpool.torch.steps, and for other optimizers call bucketpool.torch.steps.mark()")
        return f"{summary['device']}: the program ended after {_marks(summary['marks'])}, before a whole step was served{saved}"
    if summary["device"] == "cpu":
        text = f"{served}{steps} from {amount(summary['slab_bytes'])}"
    elif before == 0:
        text = f"reserved {amount(reserved)}, {served}{steps}"
    elif reserved <= before:
        text = (f"reserved {amount(reserved)} instead of {amount(before)} ({100 * (before - reserved) / before:.0f} % less), "
                f"{served}{steps}")
    else:
        text = (f"reserved {amount(reserved)}, and {amount(before)} in the recorded steps "
                f"({100 * (reserved - before) / before:.0f} % more), {served}{steps}")
    if summary["because"]:
        text += f"; stopped: {summary['because']}"
    elif summary["served"] < WELL_SERVED * summary["allocations"] and summary["unknown"] + summary["misplaced"]:
        text += "; steps of other lengths or kinds than the planned ones are served in part; record more steps (--record)"
    return f"{summary['device']}: {text}"


def report_text(summary: Dict[str, Any]) -> str:
    """The report of a device for people."""
    lines = [closing_line(summary)]
    if summary["slab_bytes"]:
        kind = "optimal" if summary["optimal"] else f"at least {amount(summary['lower_bound_bytes'])}"
        lines.append(f"  slab {amount(summary['slab_bytes'])}, {kind}, {summary['kinds']} kinds of steps, "
                     f"used {amount(summary['peak_used_bytes'])} at the peak; live on the device {amount(summary['peak_live_bytes'])}")
    missed = [f"{summary[name]:,} {name}" for name in ("unknown", "misplaced", "outside", "busy", "unordered", "paused")
              if summary[name]]
    if missed:
        lines.append(f"  not served: {', '.join(missed)}")
    losses = sorted(summary["losses"], key=lambda loss: -loss["count"] * loss["bytes"])
    for loss in losses[:LISTED]:
        place = f", {loss['place']}" if loss["place"] else ""
        lines.append(f"    {loss['outcome']}: {loss['count']:,} of {loss['bytes']:,} bytes on stream {loss['stream']}, "
                     f"first after mark {loss['mark']}{place}")
    if len(losses) > LISTED:
        lines.append(f"    and {len(losses) - LISTED} more, in the JSON")
    for wait in summary["waits_by_streams"]:
        lines.append(f"  stream {wait['waiting']} waited {wait['waits']:,} times for stream {wait['before']}")
    return "\n".join(lines)


def _marks(count: int) -> str:
    return "1 mark" if count == 1 else f"{count:,} marks"


def rank_and_ranks() -> Tuple[Optional[int], int]:
    """Rank and number of ranks that torchrun and others set; None and 1 for a program by itself."""
    try:
        rank, ranks = int(os.environ["RANK"]), int(os.environ.get("WORLD_SIZE", "1"))
    except (KeyError, ValueError):
        return None, 1
    return rank, ranks


def of_rank(path: str, device: str = "") -> str:
    """The file of this rank: plan.json is plan.rank3.json, or "{rank}" in the name is 3. device: of a process with several,
    whose files are plan.cuda-1.json.
    """
    rank, ranks = rank_and_ranks()
    marks: List[str] = []
    if "{rank}" in path:
        path = path.replace("{rank}", str(rank or 0))
    elif rank is not None and ranks > 1:
        marks.append(f".rank{rank}")
    if device:
        marks.append("." + device.replace(":", "-"))
    base, extension = os.path.splitext(path)
    return base + "".join(marks) + extension
