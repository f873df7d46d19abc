# SPDX-License-Identifier: Apache-2.0
"""Geometry of the pictures: no text covers another one or leaves its box or the page, bars are proportional.

Arguments: source directory, the command."""

import json
import os
import random
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree

import recordings
import snapshots
from answers import InFolder

SOURCE, PROGRAM = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
MODELS = os.path.join(SOURCE, "examples", "models")
FILES = os.path.join(SOURCE, "examples", "files")
BRIEF = "BUCKETPOOL_BRIEF" in os.environ
SMALLEST = 9  # pixels of the text on a page that is shown 420 wide
MARK = "#9e0142"

# Advance widths from the space on, in thousandths of the size: those of DejaVu Sans, regular and bold, a wide font.
REGULAR = """318 401 460 838 636 950 780 275 390 390 500 838 318 361 318 337 636 636 636 636 636 636 636 636 636 636 337
337 838 838 838 531 1000 684 686 698 770 632 575 775 752 295 295 656 557 863 748 787 603 787 695 635 611 732
684 989 685 611 685 390 337 390 838 500 500 613 635 550 635 615 352 635 634 278 278 579 278 974 634 612 635
635 411 521 392 634 592 818 592 592 525 636 337 636 838""".split()
BOLD = """348 456 521 838 696 1002 872 306 457 457 523 838 380 415 380 365 696 696 696 696 696 696 696 696 696 696 400
400 838 838 838 580 1000 774 762 734 830 683 683 821 837 372 372 775 637 995 837 850 733 850 770 720 682 812
774 1103 771 724 725 457 365 457 838 500 500 675 716 593 716 678 435 716 712 343 343 665 343 1042 712 687 716
716 493 595 478 712 652 924 645 652 582 712 365 712 838""".split()


def run(*arguments):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, errors="replace", timeout=240, check=False)


def text_width(text, size, bold):
    widths = BOLD if bold else REGULAR
    return size * sum(int(widths[ord(c) - 32]) if " " <= c <= "~" else 1000 for c in text) / 1000


class Box:
    def __init__(self, x, y, width, height, what=""):
        self.x, self.y, self.right, self.bottom, self.what = x, y, x + width, y + height, what

    def meets(self, other, slack=0.05):
        return (self.x < other.right - slack and other.x < self.right - slack and
                self.y < other.bottom - slack and other.y < self.bottom - slack)

    def holds(self, other, slack=0.05):
        return (self.x <= other.x + slack and other.right <= self.right + slack and
                self.y <= other.y + slack and other.bottom <= self.bottom + slack)

    def __repr__(self):
        return f"{self.what!r} {self.x:.1f}..{self.right:.1f} {self.y:.1f}..{self.bottom:.1f}"


RECTANGLE = re.compile(r"M(\S+) (\S+?)h(\S+?)v(\S+?)h-\S+?z")


class Page:
    def __init__(self, path):
        root = ElementTree.parse(path).getroot()
        _, _, self.width, self.height = map(float, root.get("viewBox").split())
        self.texts, self.boxes, self.areas, self.marks, self.sizes = [], [], [], [], []
        for element in root.iter():
            kind, get = element.tag.split("}")[1], lambda name, e=element: float(e.get(name))
            if kind == "text":
                size = float(element.get("font-size", root.get("font-size")))
                width = text_width(element.text, size, element.get("font-weight") == "bold")
                width = float(element.get("textLength", width))
                left = get("x") - {None: 0, "middle": width / 2, "end": width}[element.get("text-anchor")]
                self.texts.append(Box(left, get("y") - 0.73 * size, width, 0.94 * size, element.text))
                self.sizes.append(size)
            elif kind == "rect" and element.get("x") is not None:
                self.boxes.append(Box(get("x"), get("y"), get("width"), get("height"), element.get("fill")))
            elif kind == "path" and element.get("class") == "boxes":
                self.boxes += [Box(*map(float, r), element.get("fill")) for r in RECTANGLE.findall(element.get("d"))]
            elif kind == "path":
                self.areas.append(self.extent(element.get("d")))
            elif kind == "line" and element.get("stroke") == MARK:
                self.marks.append(Box(get("x1"), get("y1"), get("x2") - get("x1"), get("y2") - get("y1"), "mark"))

    @staticmethod
    def extent(path):
        """Around the points of a path of absolute commands."""
        xs, ys = [], []
        for command, words in re.findall(r"([MLHV])([^MLHVz]*)", path):
            numbers = [float(word) for word in words.split()]
            xs += numbers[:1] if command in "MLH" else []
            ys += numbers[-1:] if command in "MLV" else []
        return Box(min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys), "area")

    def mistakes(self):
        page = Box(0, 0, self.width, self.height)
        found = [f"too small: {size}" for size in set(self.sizes) if size * 420 / self.width < SMALLEST]
        found += [f"outside the page: {text}" for text in self.texts if not page.holds(text)]
        found += [f"{text} covers {other}" for i, text in enumerate(self.texts) for other in self.texts[:i]
                  if text.meets(other)]
        found += [f"{text} covers {box}" for text in self.texts for box in self.boxes
                  if text.meets(box) and not box.holds(text)]
        found += [f"{text} covers {area}" for text in self.texts for area in self.areas if text.meets(area)]
        found += [f"{text} is crossed by {mark}" for text in self.texts for mark in self.marks
                  if text.meets(mark, -0.1)]
        return found


def units(name, sizes, count):
    return {"format": "bucketpool.units/1", "model": name, "units": [
        {"name": f"{name}.{i}", "parameters": [{"name": f"{name}.{i}.{k}", "shape": [size], "dtype": "bf16"}
                                               for k, size in enumerate(sizes(i))]} for i in range(count)]}


DOCUMENTS = {
    "nemotron-3-nano.svg": ("plan", os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B"), "--ep", "8"),
    "step-memory.svg": ("step", os.path.join(FILES, "llama_steps.pickle")),
    "view-timeline.svg": ("view", os.path.join(FILES, "step_1", "snapshot_rank00.pickle")),
}
CHARACTERS = "aWi.-_/<>&'\"]]>%{}€éжЖ模型ﷺ\U0001F600\u0301\u200d "
HOSTILE = {
    "one": units("only", lambda i: [1], 1),
    "few": units("layers", lambda i: [10**6 * (i + 1)], 3),
    "thousand": units("layers", lambda i: [1000 + i], 1000),
    "buckets": units("layers", lambda i: [1000 * (k + 1) for k in range(100)], 10),
    "long": units("модуль." + "W" * 200 + "模型<script>&\"'", lambda i: [10**7 * (i + 1)], 4),
    "extremes": units("layers", lambda i: [1 if i % 2 else 2**49], 5),
}


class Geometry(InFolder):
    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text if isinstance(text, str) else json.dumps(text))
        return self.path(name)

    def draw(self, *arguments, option="--plot"):
        target = self.path("x.svg")
        with self.subTest(arguments=arguments):
            result = run(*arguments, option, target)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            page = Page(target)
            self.assertEqual(page.mistakes(), [])
            return page
        return None

    def bars(self, path, *options):
        """A bar for each policy of the report, as long as its bytes; the lower bound on the same scale."""
        page = self.draw("plan", path, *options)
        report = json.loads(run("plan", path, *options, "--json").stdout)["models"][0]
        names = {text.what: text for text in page.texts}
        scales = []
        for policy in report["policies"]:
            name = names[policy["policy"]]
            bar = [box for box in page.boxes if box.x == 116 and box.y < name.bottom and name.y < box.bottom]
            self.assertEqual(len(bar), 1, policy["policy"])
            scales.append((bar[0].right - bar[0].x, policy["bytes"]))
        bound = [mark for mark in page.marks if mark.x == mark.right and mark.bottom - mark.y > 20]
        scales.append((bound[0].x - 116, max(p["lower_bound_bytes"] for p in report["policies"])))
        widest, most = max(scales)
        for width, size in scales:
            self.assertAlmostEqual(width, widest * size / most, delta=0.02)

    def test_models(self):
        for model in sorted(os.listdir(MODELS))[::4 if BRIEF else 1]:
            self.bars(os.path.join(MODELS, model))
            self.draw("schedule", os.path.join(MODELS, model))

    def test_options(self):
        nano = os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B")
        for options in (["--ep", "8"], ["--roles", "param,grad,state,optimizer"], ["--policy", "scheduled", "--joint"],
                        ["--policy", "dynamic"], ["--streams", "unified"]):
            self.bars(nano, *options)
        self.draw("schedule", nano, "--roles", "param,grad,state,optimizer")

    def test_hostile_units(self):
        for name, content in HOSTILE.items():
            path = self.write(name + ".json", content)
            self.bars(path)
            self.draw("schedule", path)

    def test_random_names(self):
        random.seed(46)
        for _ in range(4 if BRIEF else 25):
            name = "x" + "".join(random.choices(CHARACTERS, k=random.randrange(1, 120)))
            model = units(name, lambda i: [random.randrange(1, 10**6)], random.randrange(1, 9))
            path = self.write("units.json", model)
            self.bars(path)
            self.draw("schedule", path)

    def test_placements(self):
        rows = "id,lower,upper,size\n"
        random.seed(46)
        for text in (rows + "a,0,1,1\n", rows + "a,0,1,1125899906842624\nb,0,1,1\n",
                     rows + "".join(f"{'W' * i} é{i},{i},{i + 3},{i % 7 + 1}\n" for i in range(60)),
                     rows + "".join(f"{i},{i},{i + 3},{i % 7 + 1}\n" for i in range(4500)),
                     rows + "".join(f"{i},{random.randrange(9)},{random.randrange(10, 20)},{random.randrange(1, 99)}\n"
                                    for i in range(40))):
            self.draw("pack", self.write("x.csv", text), "--work", "10000")
        self.draw("pack", os.path.join(FILES, "packing.csv"))

    def test_recordings(self):
        recordings.write_steps(self.path("steps.pickle"), layers=2)
        for path in (self.path("steps.pickle"), os.path.join(FILES, "llama_steps.pickle")):
            for grouping in ("kind", "module"):
                self.draw("step", path, "--by", grouping)
        many = snapshots.write(self.path("many.pickle"), snapshots.ours(units=60, steps=60))
        few = snapshots.write(self.path("few.pickle"), snapshots.ours())
        for path in (many, few, os.path.join(FILES, "llama_steps.pickle"),
                     os.path.join(FILES, "step_1", "snapshot_rank00.pickle")):
            for option in ("--plot", "--flame"):
                self.draw("view", path, option=option)

    def fit_document(self, recording, name, shares):
        """An answer whose totals are shares of the limit: default, expandable, served, peak live."""
        with open(os.path.join(SOURCE, "tests", "data", "fit", "one-batch.json"), encoding="utf-8") as file:
            document = json.load(file)
        row, table = document["tables"][0]["rows"][0], document["tables"][0]
        for kind, share in zip(("default", "expandable", "served", "peak"), shares):
            row[f"{kind}_bytes"] = int(document["limit_bytes"] * share)
            fits = row["batch"] if share <= 1 else 0
            if kind != "peak":
                table["largest"][kind] = fits
            if kind in ("default", "expandable"):
                table["largest_without_retries"][kind], row[f"{kind}_retries"] = fits, 0 if fits else None
        document["model"], document["shown"]["recording"] = name, recording
        return self.write("fit.json", document)

    def test_fits(self):
        """Levels and limit at their heights, names apart from each other."""
        recordings.write_steps(self.path("steps.pickle"), layers=2)
        paths = self.path("steps.pickle"), os.path.join(FILES, "llama_steps.pickle"), os.path.join(SOURCE, "tests/fuzz/corpus/trace/regular.pickle")
        for path in paths:
            for shares in ((0.9, 0.85, 0.8, 0.799), (1, 1, 1, 1), (2.5, 2.4, 2.39, 2.3), (1.3, 1.01, 0.99, 0.99), (0.001,) * 4, (50, 0.1, 0.1, 0)):
                document = self.fit_document(path, "W" * 300 if shares == (1, 1, 1, 1) else "Llama-3.1-8B", shares)
                with self.subTest(path=path, shares=shares):
                    result = run("fit", document, "--plot", self.path("x.svg"))
                    self.assertEqual((result.returncode, result.stderr), (0 if min(shares[:3]) <= 1 else 1, ""))
                    page = Page(self.path("x.svg"))
                    self.assertEqual(page.mistakes(), [])
                    names = [text.what.split(" ")[0] for text in page.texts if text.x > 440]
                    self.assertEqual(sorted(names), ["default", "expandable", "limit", "peak", "served"])

    def test_pictures_of_documents(self):
        """Each is drawn again by its command; UPDATE_GOLDEN=1 writes it. That of fit needs PyTorch (test_fit_command.py)."""
        self.assertEqual(Page(os.path.join(SOURCE, "docs", "images", "fit-llama.svg")).mistakes(), [])
        for name, arguments in DOCUMENTS.items():
            path = os.path.join(SOURCE, "docs", "images", name)
            target = path if os.environ.get("UPDATE_GOLDEN") else self.path(name)
            result = run(*arguments, "--plot", target)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(Page(path).mistakes(), [])
            with open(path, "rb") as one, open(target, "rb") as two:
                self.assertTrue(one.read() == two.read(), f"{name} is stale: UPDATE_GOLDEN=1 renews it")

    def test_same_bytes(self):
        for name in ("a.svg", "b.svg"):
            run("plan", os.path.join(MODELS, "Llama-3.1-8B"), "--plot", self.path(name))
        with open(self.path("a.svg"), "rb") as one, open(self.path("b.svg"), "rb") as two:
            self.assertEqual(one.read(), two.read())

    def test_infeasible(self):
        """A policy that is impossible has its reason instead of a bar."""
        model = os.path.join(MODELS, "Nemotron-3-Nano-30B-A3B")
        for options in ((), ("--policy", "max")):
            result = run("plan", model, "--buffers", "1", *options, "--plot", self.path("x.svg"))
            self.assertEqual(result.stderr, "")
            page = Page(self.path("x.svg"))
            self.assertEqual(page.mistakes(), [])
            words = [text.what for text in page.texts]
            self.assertEqual(words.count("impossible"), 1)
            self.assertTrue(any("1 buffer set is too few for role param" in text for text in words), words)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
