# SPDX-License-Identifier: Apache-2.0
"""The claims of the front page beside the recorded runs that show them, and its measured table. A claim without a run says how it was computed."""

GIB = 1 << 30
LLAMA, HYBRID, MEGATRON = "steps: llama", "fsdp2: one length", "megatron-fsdp: two ranks on one device"
PLAIN, EXPANDABLE, POOL, WHOLE = "as it is", "expandable segments", "bucketpool: pool", "bucketpool: whole step"


class Trained:
    """A training of the front page: name, group of its figures, and for each kind of memory the names of its figures; of several, all that are
    there are shown, and of the whole step the first: "plan" ran on a GPU, "planned" is computed."""

    def __init__(self, name, group, **memories):
        self.name, self.group, self.memories = name, group, memories


TRAININGS = (
    Trained("FSDP2, Llama of 1.24 B", LLAMA, plain="plain", expandable="expandable", pool="pool", whole=("plan", "planned")),
    Trained("FSDP2, hybrid of 2.15 B", HYBRID, plain="plain", expandable="expandable_segments", others="cuda_malloc_async", pool="scheduled",
            whole=("plan", "planned")),
    Trained("Megatron-FSDP 0.6.1, hybrid of 1.14 B, each of two ranks", MEGATRON, plain="no double buffers",
            others=("FixedPoolAllocator", "MaxPoolAllocator"), pool="scheduled"),
)
LABELS = {"cuda_malloc_async": "cudaMallocAsync"}
COLUMNS = {"plain": PLAIN, "expandable": EXPANDABLE, "others": "other allocators", "pool": POOL, "whole": WHOLE}


class Found:
    """Figures and parts of the newest results: `parts` are (part, document) of all devices, older documents first."""

    def __init__(self, parts):
        self.parts = parts
        self.rows = {}
        for part, document in parts:
            for row in part.get("figures", ()):
                self.rows[row["group"], row["name"]] = row, document

    def row(self, group, name):
        return self.rows.get((group, name), (None, None))[0]

    def source(self, group, name):
        return where(self.rows[group, name][1])

    def trainings(self):
        """Trainings with results, and for each memory [(name, bytes, whether they are computed)]; live bytes at the peak; GPU."""
        for training in TRAININGS:
            known, plain = {}, self.row(training.group, training.memories["plain"])
            if plain is None:
                continue
            for kind, names in training.memories.items():
                rows = [(name, self.row(training.group, name)) for name in ([names] if isinstance(names, str) else names)]
                rows = [(name, together(row), bool(row.get("computed"))) for name, row in rows if row]
                known[kind] = rows[:1] if kind == "whole" else rows
            device = self.rows[training.group, training.memories["plain"]][1]["device"]
            yield training, known, live(plain), short(device)


def short(device):
    """H100 of NVIDIA H100 80GB HBM3."""
    return device.removeprefix("NVIDIA ").split()[0]


def where(document):
    return f"{short(document['device'])}, {document['date'][:10]}, {document['commit']}"


def reserved(row):
    return row.get("torch_peak_reserved_bytes") or row.get("reserved_peak_bytes")


def live(row):
    return row.get("torch_peak_allocated_bytes") or row.get("live_peak_bytes")


def together(row):
    """The bytes that PyTorch reserved at most, and the pool's."""
    return reserved(row) + row.get("pool_bytes", 0)


def gib(count):
    return f"{count / GIB:.2f}"


# ---- the front page --------------------------------------------------------------------------------------------------------


def front(found):
    """The measured table of README.md."""
    lines = [f"| measured on a GPU, GiB of a rank | {' | '.join(COLUMNS.values())} | live at the peak |",
             "|---" * (len(COLUMNS) + 2) + "|"]
    for training, known, peak, device in found.trainings():
        cells = [", ".join(f"{gib(size)}{' (' + LABELS.get(name, name) + ')' if kind == 'others' else ''}{' (computed)' if computed else ''}"
                           for name, size, computed in known.get(kind, ())) for kind in COLUMNS]
        lines.append(f"| {training.name}, {device} | {' | '.join(cells)} | {gib(peak)} |")
    return "\n".join(lines) + "\n"


# ---- claims ------------------------------------------------------------------------------------------------------------------


REFUTED = "does not hold: "


def of_memory(group, holds, *names):
    """Bytes of the figures, in this order. holds: whether these show the claim."""
    def words(found):
        figures = [found.row(group, name) for name in names]
        sizes = [together(row) for row in figures]
        text = "; ".join(f"{gib(size)} GiB {name}{' (computed)' if row.get('computed') else ''}" for size, name, row in zip(sizes, names, figures))
        measured = next(name for name, row in zip(names, figures) if not row.get("computed"))
        return ("" if holds(*sizes) else REFUTED) + text, found.source(group, measured)

    return [(group, name) for name in names], words


def is_above_the_better(plain, expandable, pool):
    return pool > min(plain, expandable)


def is_smallest(whole, *others):
    return whole < min(others)


def is_between(none, fixed, largest, pool):
    return fixed < pool < min(largest, none)


def of_graphs(found):
    group = "fsdp2: forward and backward"
    times = [found.row(group, name)["ns_median"] / 1e6 for name in ("captured and replayed", "eager")]
    return f"a captured step replays in {times[0]:.1f} ms, {times[1]:.1f} eager", found.source(group, "eager")


def of_logprobs(found):
    group, ours, eager = "8192 x 128000, bfloat16", "bucketpool, in place", "torch log_softmax in fp32, gather"
    sizes = [found.row(group, name)["peak_torch_bytes"] for name in (ours, eager)]
    return f"{group}: {sizes[0] / (1 << 20):.1f} MiB beside the logits, PyTorch {gib(sizes[1])} GiB", found.source(group, ours)


def of_checks(part_name, words):
    """Checks of the newest part that has any."""
    def function(found):
        for part, document in reversed(found.parts):  # the newest first
            outcomes = [check["outcome"] for check in part.get("checks", ()) if part["name"] == part_name and words in check["name"]]
            if outcomes:
                refuted = REFUTED if set(outcomes) != {"passed"} else ""
                return f"{refuted}{outcomes.count('passed')} of {len(outcomes)} checks passed", where(document)
        return None

    return function


def of_fit(found):
    rows = [(row, document) for row, document in found.rows.values() if row.get("fit_largest") and row.get("reserved_percent") is not None]
    worst = max((abs(row["reserved_percent"]) for row, _ in rows), default=None)
    return rows and (f"reserved at most {worst:.1f} % off, of {len(rows)} trainings", where(rows[0][1]))


PLANNED = "computed: by `bucketpool plan`, from the models' configurations ([bytes](../concepts/policies.md#bytes-on-real-models))"
EMULATED = "emulated: PyTorch's own CUDA allocator over an emulated driver ([ten trainings](../guides/step_memory.md#ten-trainings)); not run on a GPU"
FITTED = "computed: played recordings, beside what GPUs reserved ([accuracy](../guides/step_memory.md#accuracy)); the run `fit` has no results"

# Claim; figures that it needs; function that says what was measured, and where, or None; what is said then.
CLAIMS = (
    ("A served step takes 5 to 28 % less than PyTorch reserves by default, 0 to 26 % less than with expandable segments",
     *of_memory(LLAMA, lambda plan, plain, expandable: plan < min(plain, expandable), "plan", "plain", "expandable"), EMULATED),
    ("FSDP2: a pool of buckets takes more than the better one of PyTorch's settings", *of_memory(LLAMA, is_above_the_better, "plain", "expandable", "pool"),
     "not measured"),
    ("the same, hybrid of 2.15 B", *of_memory(HYBRID, is_above_the_better, "plain", "expandable_segments", "scheduled"), "not measured"),
    ("FSDP2: a plan of the whole step takes less than each of these", *of_memory(LLAMA, is_smallest, "planned", "plain", "expandable", "pool"), "not measured"),
    ("the same, hybrid of 2.15 B", *of_memory(HYBRID, is_smallest, "planned", "plain", "expandable_segments", "cuda_malloc_async", "scheduled"),
     "not measured"),
    ("Megatron-FSDP: less than without double buffers and than its MaxPoolAllocator, more than its FixedPoolAllocator",
     *of_memory(MEGATRON, is_between, "no double buffers", "FixedPoolAllocator", "MaxPoolAllocator", "scheduled"), "not measured"),
    ("Communication buffers take fewer bytes than MaxPoolAllocator's", [], lambda found: None, PLANNED),
    ("Losses keep their bits", [], of_checks("same losses", "losses"), "not measured"),
    ("Pools work inside CUDA graphs", [("fsdp2: forward and backward", "eager")], of_graphs, "not measured"),
    ("NCCL registers the pool", [], of_checks("two ranks", "registered with NCCL"), "not measured"),
    ("`bucketpool fit` predicts what PyTorch reserves", [], of_fit, FITTED),
    ("Log-probabilities without a copy of the logits", [("8192 x 128000, bfloat16", "bucketpool, in place")], of_logprobs, "not measured"),
)


def rows(found):
    """(claim, what was measured, where), or (claim, what is not, "")."""
    for claim, needed, function, otherwise in CLAIMS:
        shown = function(found) if all(key in found.rows for key in needed) else None
        yield (claim, *shown) if shown else (claim, otherwise, "no recorded run")
