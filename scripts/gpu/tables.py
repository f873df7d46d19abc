"""Fills the results of docs/internals/gpu.md from bench/results/*.json: python3 scripts/gpu/tables.py"""

import glob
import json
import os
import statistics

PAGE = os.path.join("docs", "internals", "gpu.md")
BEGIN, END = "<!-- results: scripts/gpu/tables.py -->\n", "<!-- end of results -->\n"
WORDS = ("passed", "differs", "failed", "cut", "skipped", "not run")


def documents(folder=os.path.join("bench", "results")):
    """The newest results of each run and device, without rehearsals."""
    newest = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        if document.get("format") == "bucketpool.gpu/2" and not document["rehearsal"]:
            key = document["device"], document["run"]
            newest[key] = max(newest.get(key, document), document, key=lambda d: d["date"])
    return [newest[key] for key in sorted(newest)]


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


SHOWN = ("ns_median", "ns_min", "ratio_median", "bandwidth_fraction", "group", "name", "ratio_to")


def rest(row):
    """Members without a column."""
    words = []
    for key, value in row.items():
        if key in SHOWN or value is None or isinstance(value, (list, dict)) or key.startswith(("ratio_", "windows", "pairs", "us_per")):
            continue
        if key.endswith("bytes") and isinstance(value, (int, float)):
            words.append(f"{key.removesuffix('_bytes').replace('_', ' ')} {size(value)}")
        else:
            words.append(f"{key.replace('_', ' ')} {value:.4g}" if isinstance(value, float) else f"{key.replace('_', ' ')} {value}")
    return ", ".join(words)


def figure_rows(part):
    for row in part.get("figures", ()):
        yield (row["group"], row["name"], duration(row["ns_median"]) if "ns_median" in row else "",
               f"{row['ratio_median']:.2f}" if "ratio_median" in row else "",
               f"{row['bandwidth_fraction']:.3f}" if "bandwidth_fraction" in row else "", rest(row))


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


def section(document):
    parts = document["parts"]
    counts = [f"{number} {word}" for word in WORDS for number in [sum(part["outcome"] == word for part in parts)] if number]
    driver = document.get("driver_version") or 0
    text = (f"### {document['device']}: {document['run']}\n\n{document['date'][:10]}, commit {document['commit']}, driver of CUDA "
            f"{driver // 1000}.{driver % 1000 // 10}, NCCL {document.get('nccl_version')}, {document.get('seconds', 0):.0f} s"
            f"{'' if document.get('finished') else ', not finished'}: {', '.join(counts) or 'no part'}. {ranges(parts)}\n\n")
    unusual = [(part["name"], part["outcome"], part.get("reason", "")) for part in parts if part["outcome"] != "passed"]
    unusual += [(name, check["outcome"], check["reason"]) for part in parts for check in part.get("checks", ())
                for name in [f"{part['name']}: {check['name']}"] if check["outcome"] == "failed"]
    unusual += [(f"{part['name']}: {rule}", part["rules"].get(rule, ""), what) for part in parts for rule, what in part.get("differing", {}).items()]
    unusual += [(skip["name"], "skipped", skip["reason"]) for part in parts for skip in part.get("skipped", ())]
    if unusual:
        text += table(("PART", "OUTCOME", "REASON"), unusual) + "\n"
    rows = [row for part in parts for row in figure_rows(part)]
    if rows:
        text += table(("GROUP", "FIGURE", "MEDIAN", "RATIO", "OF COPY", "ALSO"), rows) + "\n"
    return text


def render(known):
    if not known:
        return "No results yet: nothing of bucketpool has run on a GPU.\n"
    return "\n".join(section(document) for document in known)


def page(known):
    """docs/internals/gpu.md with the results in place."""
    with open(PAGE, encoding="utf-8") as file:
        text = file.read()
    head, behind = text.split(BEGIN)
    return head + BEGIN + render(known) + END + behind.split(END)[1]


if __name__ == "__main__":
    filled = page(documents())
    with open(PAGE, "w", encoding="utf-8") as output:
        output.write(filled)
