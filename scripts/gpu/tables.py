# SPDX-License-Identifier: Apache-2.0
"""Makes docs/internals/gpu_results.md, and the measured table and the chart of README.md, from bench/results: python3 scripts/gpu/tables.py"""

import glob
import json
import os
import statistics

import chart
import claims
from parts import PREPARATIONS

RESULTS = os.path.join("bench", "results")
PAGE, README = os.path.join("docs", "internals", "gpu_results.md"), "README.md"
FRONT = "<!-- measured: made by scripts/gpu/tables.py -->\n", "<!-- end of measured -->\n"  # around the table of README.md
HEAD = """# Results on GPUs

Made by `python3 scripts/gpu/tables.py` from the documents of `bench/results`, one for each
run: the newest outcome of each part on each GPU. [Runs on a GPU](gpu.md#figures) explains the figures.
Figures are measured on the GPU of the heading, unless they say emulated or computed: then no GPU ran them.

"""
LIMITS = """## Not shown by one GPU

- Bytes and time that NCCL saves with registered memory, over NVLink and NVLS. One GPU shows that registration is
  granted, and its cost.
- Overlap of communication with computation: collectives of the 8 emulated ranks of `fsdp2` and `step` are copies on
  the same GPU.
- Memory at `dp` larger than 8, and hybrid sharding across nodes.
- Any figure of several GPUs: no run had more than one.

"""
DECIDED = ("passed", "differs", "failed")
WORDS = (*DECIDED, "cut", "running", "skipped", "not run")


def documents(folder=RESULTS):
    """All results, by device and date, without rehearsals."""
    found = []
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document.get("format") == "bucketpool.gpu/2" and not document["rehearsal"]:
            found.append(document)
    return sorted(found, key=lambda d: (d["device"], d["date"]))


def failures(folder=RESULTS):
    """Why parts and tests failed, by name."""
    with open(os.path.join(folder, "failures.json"), encoding="utf-8") as file:
        return json.load(file)


# ---- cells ---------------------------------------------------------------------------------------------------------------


def duration(ns):
    return f"{ns:.0f} ns" if ns < 1e4 else f"{ns / 1e3:.1f} us" if ns < 1e6 else f"{ns / 1e6:.2f} ms" if ns < 1e10 else f"{ns / 1e9:.1f} s"


def size(count):
    return f"{count / (1 << 30):.2f} GiB" if count >= 1 << 29 else f"{count / (1 << 20):.1f} MiB"


def cell(value):
    return str(value).replace("|", "\\|").replace("\n", " ")


def table(columns, rows):
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns), *(f"| {' | '.join(map(cell, row))} |" for row in rows)]
    return "\n".join(lines) + "\n"


# Members of a row that are shown beside its time, and their names.
SHOWN = {"ranks": "ranks", "peak_torch_bytes": "PyTorch's peak", "peak_driver_bytes": "driver's peak",
         "used_bytes_of_the_training": "driver's peak", "pool_bytes": "pool", "torch_peak_reserved_bytes": "PyTorch reserved",
         "reserved_peak_bytes": "reserved", "live_peak_bytes": "live at the peak", "slab_bytes": "slab", "unaccounted_growth_bytes": "kept by the driver", "served_share": "share served",
         "waits_per_step": "waits a step", "covered_share": "share of communication covered", "freed_bytes": "freed", "gib_per_s": "GiB/s", "tokens_per_s": "tokens/s",
         "largest_batch": "largest batch", "smallest_that_fails": "smallest that fails", "limit_bytes": "limit",
         "pool_peak_bytes": "pool", "grad_made_in": "gradient made in",
         "code": "code", "beside_bytes": "the driver's used beside PyTorch's reserved", "fit_reserve_bytes": "reserve of fit",
         "grad_dtype": "gradient stored as", "in_place": "in place", "registers": "registers", "dram_percent": "memory in % of its peak",
         "occupancy_percent": "warps in % of the most", "bytes": "bytes", "launches": "replays"}


def rest(row):
    """Members without a column."""
    words = []
    for key, name in SHOWN.items():
        value = row.get(key)
        if value is True:
            words.append(name)
        elif value:
            words.append(f"{name} {size(value) if 'bytes' in key else f'{value:.4g}' if isinstance(value, float) else value}")
    if row.get("complete") is False:
        words.append("no time for those between")
    return ", ".join(words)


def figure_rows(figures):
    for row in figures:
        median = row.get("ns_median", row.get("ns"))
        yield (row["group"].removeprefix("gpu: "), row["name"], "" if median is None else duration(median),
               f"{row['ratio_median']:.2f}" if "ratio_median" in row else "",
               f"{row['bandwidth_fraction']:.3f}" if "bandwidth_fraction" in row else "", rest(row))


LOGPROB = "gpu: logprob "  # groups of a shape: "65536 x 128000 bf16, gradient fp32"
# Rows of such a group, without the gradient's dtype: a column each.
WAYS = ("forward", "backward", "forward and backward", "both at once", "forward and backward, with entropy", "both at once, with entropy",
        "forward and backward, calls of 1024 tokens", "both at once, calls of 1024 tokens")


def shape_rows(figures):
    """A line for each shape of log-probabilities: the copy's time, and of each way its time and its bandwidth over the copy's."""
    groups = {}
    for row in figures:
        groups.setdefault(row["group"].removeprefix(LOGPROB), {})[row["name"].split(", gradient")[0]] = row
    for shape, rows in groups.items():
        copy = next((duration(row["ns_median"]) for name, row in rows.items() if name.startswith("copy")), "")
        cells = [f"{duration(row['ns_median'])} {row['bandwidth_fraction']:.3f}" if row else "" for row in map(rows.get, WAYS)]
        yield (shape, copy, *cells)


# Groups of whole trainings, and what they are; figures with bytes that PyTorch reserved.
TRAININGS = {claims.HYBRID: "FSDP2, hybrid of 2.15 B", "fsdp2: varying lengths": "FSDP2, hybrid of 2.15 B, varying lengths",
             claims.LLAMA: "FSDP2, Llama of 1.24 B", "steps: experts": "FSDP2, Qwen3-MoE with 8 layers",
             claims.MEGATRON: "Megatron-FSDP, hybrid of 1.14 B, each of two ranks"}


def is_training(row):
    return row["group"] in TRAININGS and bool(claims.reserved(row))


def training_rows(figures):
    """A line for each training and memory, in GiB. PyTorch's live bytes exclude a pool."""
    def amount(count):
        return claims.gib(count) if count else ""

    for row in figures:
        pool = row.get("pool_bytes", 0)
        driver = next(filter(None, (row.get(key) for key in ("used_bytes_of_the_training", "driver_peak_bytes", "driver_bytes_of_both_ranks"))), None)
        yield (TRAININGS[row["group"]], row["name"] + (" (computed)" if row.get("computed") else ""), amount(claims.reserved(row)), amount(pool),
               amount(claims.together(row)), amount(None if pool else claims.live(row)), amount(driver),
               f"{row['ns_median'] / 1e6:.1f}" if "ns_median" in row else "")


FIT = "fit: "  # groups of a training, with a row for each allocator
FIT_COLUMNS = ("TRAINING", "ALLOCATOR", "LARGEST BY FIT", "THAT RAN", "RESERVED BY FIT", "MEASURED", "OFF", "PEAK BY FIT", "MEASURED", "OFF", "RETRIES BY FIT",
               "MEASURED")


def fit_rows(figures):
    """A line for each training and allocator: what fit says beside what was measured; sizes without a limit, retries in the limit."""
    def amount(value, function=str):
        return "" if value is None else function(value)

    for row in figures:
        pairs = [(row[f"fit_{what}_bytes"], row[measured], row[f"{what}_percent"])
                 for what, measured in (("reserved", "torch_peak_reserved_bytes"), ("peak", "torch_peak_allocated_bytes"))]
        yield (row["group"].removeprefix(FIT), row["name"], row["fit_largest"], row["largest_batch"],
               *(text for said, seen, off in pairs for text in (amount(said, size), amount(seen, size), amount(off, "{:+.2f} %".format))),
               amount(row["fit_retries"]), amount(row["num_alloc_retries"]))


# ---- the page --------------------------------------------------------------------------------------------------------------


def ranges(parts):
    """Clocks and power over all parts."""
    words = []
    for key, unit in (("sm_mhz", "MHz"), ("power_w", "W"), ("temperature_c", "degrees C")):
        seen = [during[key] for part in parts for during in [(part.get("gpu") or {}).get("during") or {}] if key in during]
        if seen:
            low, middle, high = min(s[0] for s in seen), statistics.median(s[1] for s in seen), max(s[2] for s in seen)
            words.append(f"{low:.0f} to {high:.0f} {unit}, usually {middle:.0f}")
    return "; ".join(words)


def head(document):
    driver, nccl, seconds = (document.get(key) for key in ("driver_version", "nccl_version", "seconds"))
    known = [f"{document['run']}: {document['date'][:10]}", f"commit {document['commit']}", driver and f"driver of CUDA {driver // 1000}.{driver % 1000 // 10}",
             nccl and f"NCCL {nccl}", seconds and f"{seconds:.0f} s", document.get("origin"), None if document.get("finished") else "not finished"]
    return ", ".join(filter(None, known))


def unusual_in(parts):
    """Yields parts, single tests, rules and cases that failed, differ or were skipped."""
    for part in parts:
        if part["outcome"] != "passed":
            yield part["name"], part["outcome"], part.get("reason", "")
        yield from ((f"{part['name']}: {check['name']}", "failed", check["reason"]) for check in part.get("checks", ()) if check["outcome"] == "failed")
        yield from ((f"{part['name']}: {rule}", part["rules"].get(rule, ""), what) for rule, what in part.get("differing", {}).items())
        yield from ((skip["name"], "skipped", skip["reason"]) for skip in part.get("skipped", ()))


def newest_of(known):
    """The newest outcome of each part over all runs of a device: (part, its document)."""
    newest = {}
    for document in known:
        for part in document["parts"]:
            key = document["run"], part["name"]
            if part["outcome"] in DECIDED or key not in newest or newest[key][0]["outcome"] not in DECIDED:
                newest[key] = part, document
    return [pair for (_, name), pair in newest.items() if name not in PREPARATIONS]


def section(device, known, why):
    """One device."""
    newest = newest_of(known)
    parts = [part for part, _ in newest]
    counts = [f"{number} {word}" for word in WORDS for number in [sum(part["outcome"] == word and "computed" not in part for part in parts)] if number]
    text = f"## {device}\n\n{', '.join(counts) or 'No part'}. {ranges(parts)}\n\n" + "".join(f"- {head(document)}\n" for document in known) + "\n"
    unusual = list(unusual_in(parts))
    if unusual:
        text += table(("PART", "OUTCOME", "REASON", "WHY"), [(name, outcome, reason, why.get(name, "")) for name, outcome, reason in unusual]) + "\n"
    figures = [row for part in parts for row in part.get("figures", ())]
    trainings = [row for row in figures if is_training(row)]
    if trainings:
        text += "Memory of trainings, GiB: what PyTorch reserved at most after the warm-up, bucketpool's pool, and tensors live at the peak. "
        text += "The driver's bytes are the most it had given to the training, with context and libraries; for Megatron-FSDP to both ranks.\n\n"
        text += table(("TRAINING", "MEMORY", "RESERVED", "POOL", "TOGETHER", "LIVE", "DRIVER", "MS A STEP"), training_rows(trainings)) + "\n"
        text += "".join(f"{part['name']}: computed {part['computed']}.\n\n" for part in parts if "computed" in part)
    shapes = list(shape_rows(row for row in figures if row["group"].startswith(LOGPROB)))
    if shapes:
        text += "Log-probabilities, tokens x vocabulary: the time, and the bandwidth over that of the copy.\n\n"
        text += table(("LOGITS", "COPY OF ALL BYTES", *(way.upper() for way in WAYS)), shapes) + "\n"
    fits = [row for row in figures if "fit_largest" in row]
    if fits:
        limits = ", ".join(sorted({size(row["limit_bytes"]) for row in fits}))
        text += f"Largest micro-batches in {limits}, by `bucketpool fit` and as they ran, and memory of the largest by fit.\n\n"
        text += table(FIT_COLUMNS, fit_rows(fits)) + "\n"
    others = {(row["group"], row["name"]): row for row in figures if not row["group"].startswith(LOGPROB) and "fit_largest" not in row and not is_training(row)}
    rows = list(figure_rows(others.values()))
    if rows:
        text += table(("GROUP", "FIGURE", "MEDIAN", "RATIO", "OF COPY", "ALSO"), rows) + "\n"
    return text


def by_device(known):
    devices = {}
    for document in known:
        devices.setdefault(document["device"], []).append(document)
    return devices


def found_in(known):
    """The newest figures of all devices; of a figure on several, the newest one."""
    pairs = [pair for each in by_device(known).values() for pair in newest_of(each)]
    return claims.Found(sorted(pairs, key=lambda pair: pair[1]["date"]))


def page(known, why=None):
    shown = "## Claims of the front page\n\n" + table(("CLAIM", "FIGURE", "RECORDED RUN"), claims.rows(found_in(known))) + "\n"
    return HEAD + shown + LIMITS + ("\n".join(section(*each, why or {}) for each in by_device(known).items()) or "No results yet.\n")


def with_front(text, known):
    """README.md with the measured table of these documents."""
    begin, end = (text.index(mark) for mark in FRONT)
    return text[:begin] + FRONT[0] + "\n" + claims.front(found_in(known)) + "\n" + text[end:]


def files(known, why):
    """All that is made from the results: path, text."""
    with open(README, encoding="utf-8") as file:
        yield README, with_front(file.read(), known)
    yield PAGE, page(known, why)
    yield chart.FILE, chart.drawn(found_in(known))


if __name__ == "__main__":
    for path, text in files(documents(), failures()):
        with open(path, "w", encoding="utf-8") as output:
            output.write(text)
