# SPDX-License-Identifier: Apache-2.0
"""`bucketpool pack`: placements, capacities, checks, files and mistakes. What was written is checked here again, item
by item.

Arguments: source directory, the bucketpool executable. With UPDATE_GOLDEN=1 the golden files are written anew; look at
the difference before committing it.
"""

import csv
import functools
import io
import json
import os
import random
import re
import subprocess
import sys
import unittest

import answers
from answers import InFolder

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
GOLDEN = os.path.join(ROOT, "tests", "cli", "golden")

# Three layers, each live with the next one: what is live at once is the least, and can be reached.
LAYERS = "id,lower,upper,size\na,0,2,10\nb,1,3,20\nc,2,4,10\nd,3,5,5\n"
# A ring of five, each in the way of the next: two are live at once, but three times their size is needed.
RING = "id,lower,upper,size,gaps\n0,0,2,8,\n1,1,3,8,\n2,2,4,8,\n3,3,5,8,\n4,0,5,8,1-4\n"
run = functools.partial(answers.run, "pack")


def random_rows(seed, count):
    """Rows as text, some with gaps and sizes of zero."""
    generator = random.Random(seed)
    rows = []
    for i in range(count):
        lower = generator.randrange(60)
        upper = lower + generator.randrange(1, 25)
        gaps = []
        if upper - lower > 6 and generator.random() < 0.5:
            begin = generator.randrange(lower, upper - 4)
            gaps = [f"{begin}-{begin + 2}"] + ([f"{begin + 2}-{begin + 3}"] if generator.random() < 0.3 else [])
            generator.shuffle(gaps)
        size = generator.choice([0, 1, 3, 8, 8, 64, 100, 4096])
        rows.append([f'item "{i}", {"x" * (i % 3)}', str(lower), str(upper), str(size), " ".join(gaps)])
    return rows


def times(row):
    """When an item is live."""
    live = set(range(int(row["lower"]), int(row["upper"])))
    for gap in (row.get("gaps") or "").split():
        begin, end = gap.split("-")
        live -= set(range(int(begin), int(end)))
    return live


class Case(InFolder):
    def write(self, name, text):
        with open(self.path(name), "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        return self.path(name)

    def read(self, name):
        with open(self.path(name), encoding="utf-8", newline="") as file:
            return file.read()

    def random_file(self, seed, count):
        with open(self.path(f"random{seed}.csv"), "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "lower", "upper", "size", "gaps"])
            writer.writerows(random_rows(seed, count))
        return self.path(f"random{seed}.csv")

    def good(self, result):
        self.assertEqual((result.returncode, result.stderr), (0, ""), result.stdout)
        return result.stdout

    def total_of(self, name):
        """The largest end of an item in a file that was written; no two items may be in each other's way."""
        with open(self.path(name), encoding="utf-8", newline="") as file:
            rows = [r for r in csv.DictReader(file) if int(r["size"]) > 0]
        lives = [times(r) for r in rows]
        spans = [(int(r["offset"]), int(r["offset"]) + int(r["size"])) for r in rows]
        for i, (begin, end) in enumerate(spans):
            for k in range(i):
                if spans[k][0] < end and begin < spans[k][1]:
                    self.assertFalse(lives[i] & lives[k], (rows[i], rows[k]))
        return max((end for _, end in spans), default=0)


class Answers(Case):
    def test_lines(self):
        out = self.good(run(self.write("x.csv", LAYERS)))
        self.assertRegex(out, r"^\S*x\.csv: 4 items, live in 4 intervals\n")
        self.assertRegex(out, r"(?m)^total +30 \(30 B\)$")
        self.assertRegex(out, r"(?m)^bound +30 \(30 B\), 2 items live at the same time$")
        self.assertRegex(out, r"(?m)^gap +0 %$")
        self.assertRegex(out, r"(?m)^proof +proven optimal: the bound is reached$")
        self.assertRegex(out, r"(?m)^method +\S.*, [\d.]+( [KMBT])? steps of work$")

    def test_optimum_above_the_bound(self):
        out = self.good(run(self.write("x.csv", RING)))
        self.assertRegex(out, r"(?m)^total +24 ")
        self.assertRegex(out, r"(?m)^bound +16 ")
        self.assertRegex(out, r"(?m)^gap +50\.00 %$")
        self.assertRegex(out, r"(?m)^proof +proven optimal: the search is exhausted$")

    def test_nothing_to_place(self):
        out = self.good(run(self.write("x.csv", "id,lower,upper,size\na,0,1,0\n")))
        self.assertIn("1 item, live in 1 interval\n", out)
        self.assertRegex(out, r"(?m)^total +0 \(0 B\)$")

    def test_random_instances(self):
        for seed in range(12):
            path = self.random_file(seed, 4 + 7 * seed)
            out = self.good(run(path, "-o", self.path("out.csv"), "--work", "2000000"))
            total, bound = (int(re.search(rf"(?m)^{label} +(\d+) ", out).group(1)) for label in ("total", "bound"))
            self.assertEqual(self.total_of("out.csv"), total)
            self.assertGreaterEqual(total, bound)
            given, written = (list(csv.reader(io.StringIO(self.read(name))))
                              for name in (os.path.basename(path), "out.csv"))
            self.assertEqual([row[:-1] for row in written], given)
            self.assertEqual(written[0][-1], "offset")
            rows = [dict(zip(given[0], row)) for row in given[1:]]
            self.assertEqual(max(sum(int(r["size"]) for r in rows if time in times(r)) for time in range(90)), bound)
            checked = self.good(run("--check", self.path("out.csv")))
            self.assertRegex(checked, rf"(?m)^total +{total} ")
            self.assertRegex(checked, rf"(?m)^bound +{bound} ")
            self.assertRegex(checked, r"(?m)^offsets +valid$")

    def test_determinism(self):
        path = self.random_file(3, 60)
        for name in ("one.csv", "two.csv"):
            self.good(run(path, "-o", self.path(name), "--work", "500000"))
        self.assertEqual(self.read("one.csv"), self.read("two.csv"))

    def test_table(self):
        paths = [self.write("x.csv", LAYERS), self.write("ring.csv", RING)]
        table = self.good(run(*paths))
        self.assertRegex(table, r"^FILE +ITEMS +TOTAL +BOUND +GAP +PROVEN +METHOD\n")
        self.assertRegex(table, r"(?m)^\S*x\.csv +4 +30 +30 +0 % bound reached +\S")
        self.assertRegex(table, r"(?m)^\S*ring\.csv +5 +24 +16 +50\.00 % search exhausted +\S")
        self.assertTrue(table.endswith("\n2 of 2 proven optimal\n"))
        self.assertIn("\033", run(*paths, "--color", "always").stdout)
        self.assertNotIn("\033", table)

    def test_help(self):
        path = os.path.join(GOLDEN, "help-pack.txt")
        text = run("--help").stdout
        if os.environ.get("UPDATE_GOLDEN"):
            with open(path, "w", encoding="utf-8") as file:
                file.write(text)
        with open(path, encoding="utf-8") as file:
            self.assertEqual(file.read(), text)


class Capacity(Case):
    def test_fits(self):
        path = self.write("x.csv", LAYERS)
        for capacity in ("30", "31", "1000", "18446744073709551615"):
            out = self.good(run(path, "--capacity", capacity, "-o", self.path("out.csv")))
            self.assertRegex(out, rf"(?m)^capacity +{capacity} .*: fits$")
            self.assertLessEqual(self.total_of("out.csv"), int(capacity))

    def test_capacity_below_live_bytes(self):
        path = self.write("x.csv", LAYERS)
        result = run(path, "--capacity", "29", "-o", self.path("out.csv"))
        self.one_line(result, 1, "x.csv: infeasible, proven: 2 items", "take 30, the capacity is 29")
        self.assertRegex(result.stdout, r"(?m)^capacity +29 \(29 B\): infeasible, proven$")
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_capacity_below_proven_bytes(self):
        path = self.write("x.csv", RING)
        self.good(run(path, "--capacity", "24"))
        result = run(path, "--capacity", "23", "-o", self.path("out.csv"))
        self.one_line(result, 1, "infeasible, proven: no placement takes less than 24, the capacity is 23")
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_work_limit(self):
        """With next to no work nothing is found or proven that the bound does not say; with either answer the exit code
        is 1.
        """
        rings = "".join(f"{r}.{row}\n" for r in range(40) for row in RING.splitlines()[1:])
        path = self.write("x.csv", RING.splitlines()[0] + "\n" + rings)
        result = run(path, "--capacity", str(8 * 81), "--work", "1", "-o", self.path("out.csv"))
        self.one_line(result, 1, "the capacity is 648")
        self.assertRegex(result.stderr, r"not found within \d+ steps of work: the best placement takes \d+,|infeasible, proven")
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_capacity_below_an_item(self):
        path = self.write("x.csv", LAYERS)
        self.refused(run(path, "--capacity", "19"), 2, "x.csv", "--capacity 19", '"b"', "20")
        self.refused(run(path, "--capacity", "19", "--json"), 2, '"b"')

    def test_table(self):
        paths = [self.write("x.csv", LAYERS), self.write("ring.csv", RING)]
        result = run(*paths, "--capacity", "25")
        self.one_line(result, 1, "x.csv: infeasible, proven: 2 items")
        self.assertRegex(result.stdout, r"(?m)^\S*x\.csv .* infeasible +\S")
        self.assertRegex(result.stdout, r"(?m)^\S*ring\.csv +5 +2[45] +16 ")


class Check(Case):
    def test_good(self):
        path = self.write("x.csv", "offset,id,lower,upper,size\n20,a,0,2,10\n0,b,1,3,20\n40,c,2,4,10\n0,d,3,5,5\n")
        out = self.good(run("--check", path))
        self.assertRegex(out, r"(?m)^total +50 ")
        self.assertRegex(out, r"(?m)^bound +30 ")
        self.assertRegex(out, r"(?m)^gap +66\.67 %$")
        self.assertRegex(out, r"(?m)^proof +not proven: no placement takes less than 30$")
        self.assertRegex(self.good(run("--check", path, "--capacity", "50")), r"(?m)^capacity +50 .*: fits$")
        self.one_line(run("--check", path, "--capacity", "49"), 1, 'item "c" takes 10 at 40', "the capacity of 49")

    def test_wrong(self):
        path = self.write("x.csv", "id,lower,upper,size,offset\na,0,2,10,20\nb,1,3,20,0\nc,2,4,10,15\nd,3,5,5,0\n")
        result = run("--check", path)
        self.one_line(result, 1, "x.csv", 'items "b" (20 at 0) and "c" (10 at 15) share bytes')
        self.assertRegex(result.stdout, r"(?m)^total +30 ")
        self.assertRegex(result.stdout, r"(?m)^offsets +not valid$")

    def test_invalid_offsets_without_proof(self):
        path = self.write("x.csv", "id,lower,upper,size,offset\na,0,4,4,0\nb,0,9,4,0\nc,5,9,4,4\n")
        result = run("--check", path)
        self.one_line(result, 1, '"a" (4 at 0) and "b" (4 at 0)')
        self.assertRegex(result.stdout, r"(?m)^total +8 .*\nbound +8 ")
        self.assertRegex(result.stdout, r"(?m)^proof +none: the offsets are not valid$")
        self.assertNotIn("optimal", result.stdout)
        (file,) = json.loads(run("--check", path, "--json").stdout)["files"]
        self.assertEqual((file["outcome"], file["total"], file["bound"], file["optimal"]),
                         ("does_not_hold", 8, 8, False))

    def test_missing_offsets(self):
        self.refused(run("--check", self.write("x.csv", LAYERS)), 2, "x.csv", 'no column "offset"')
        text = "id,lower,upper,size,offset\na,0,1,1,0\nb,0,1,1,\n"
        self.refused(run("--check", self.write("x.csv", text)), 2, "x.csv:3:9:", '"b"', "no offset")
        self.refused(run(self.write("x.csv", text)), 2, "x.csv:3:9:")

    def test_table(self):
        good = self.write("good.csv", "id,lower,upper,size,offset\na,0,2,10,0\n")
        wrong = self.write("wrong.csv", "id,lower,upper,size,offset\na,0,2,10,0\nb,1,2,10,9\n")
        self.assertIn("bound reached", self.good(run("--check", good, good)))
        result = run("--check", good, wrong)
        self.one_line(result, 1, "wrong.csv", '"a" (10 at 0) and "b" (10 at 9)')
        self.assertRegex(result.stdout, r"(?m)^\S*wrong\.csv .* not valid$")
        self.assertTrue(result.stdout.endswith("\n1 of 2 proven optimal\n"))


class Report(Case):
    def documented(self):
        with open(os.path.join(ROOT, "docs", "reference", "formats.md"), encoding="utf-8") as file:
            section = file.read().split("\n## bucketpool.pack/1\n")[1].split("\n## ")[0]
        whole, one = section.split("\nMembers of a file:\n")
        members = " ".join(re.findall(r"(?m)^- (.*?):", one))
        return {"format", *re.findall(r"`(\w+)`", whole)}, set(re.findall(r"`(\w+)`", members))

    def test_members(self):
        paths = [self.write("x.csv", LAYERS), self.write("ring.csv", RING)]
        report = json.loads(self.good(run(*paths, "--json")))
        members, file_members = self.documented()
        self.assertEqual(set(report), members)
        self.assertEqual((report["format"], report["capacity"]), ("bucketpool.pack/1", None))
        layers, ring = report["files"]
        for file in report["files"]:
            self.assertEqual(set(file), file_members)
            self.assertEqual((file["outcome"], file["reason"], file["optimal"]), ("placed", None, True))
            self.assertEqual(file["proven"], file["total"])
            self.assertGreaterEqual(file["work"], 0)
        self.assertEqual((layers["file"], layers["items"], layers["total"], layers["gap_percent"]),
                         (paths[0], 4, 30, 0))
        self.assertEqual((ring["bound"], ring["total"], ring["gap_percent"], len(ring["witness"])), (16, 24, 50, 2))
        self.assertEqual(len(layers["offsets"]), 4)
        self.assertIn("b", layers["witness"])

    def test_negative(self):
        result = run(self.write("x.csv", LAYERS), "--capacity", "29", "--json")
        self.one_line(result, 1, "infeasible")
        report = json.loads(result.stdout)
        (file,) = report["files"]
        self.assertEqual((report["capacity"], file["outcome"], file["offsets"]), (29, "infeasible", None))
        self.assertIn(file["reason"], result.stderr)

    def test_check(self):
        path = self.write("x.csv", "id,lower,upper,size,offset\na,0,2,10,0\nb,1,2,10,9\n")
        result = run("--check", path, "--json")
        self.one_line(result, 1, '"a" (10 at 0)')
        (file,) = json.loads(result.stdout)["files"]
        self.assertEqual((file["outcome"], file["method"], file["offsets"]), ("does_not_hold", None, [0, 9]))
        self.assertIn(file["reason"], result.stderr)

    def test_numbers_of_64_bits(self):
        path = self.write("x.csv", "id,lower,upper,size\na,0,18446744073709551615,18446744073709551614\nb,1,2,1\n")
        (file,) = json.loads(self.good(run(path, "--json", "-o", self.path("out.csv"))))["files"]
        self.assertEqual((file["total"], file["bound"]), (2**64 - 1, 2**64 - 1))
        self.good(run("--check", self.path("out.csv")))

    def test_binary_names(self):
        name = os.path.join(self.folder.encode(), b"\xff\x1b.csv")
        with open(name, "w", encoding="utf-8") as file:
            file.write(LAYERS)
        result = subprocess.run([TOOL, "pack", name, "--json"], capture_output=True, cwd=ROOT, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["files"][0]["file"].endswith("/?\x1b.csv"))


class Files(Case):
    def test_output_over_input(self):
        path = self.write("x.csv", "id,offset,lower,upper,size\na,7,0,2,10\nb,7,1,3,20\n")
        self.good(run(path, "-o", path))
        lines = self.read("x.csv").splitlines()
        self.assertEqual(lines[0], "id,offset,lower,upper,size")
        self.assertRegex(lines[1], r"^a,\d+,0,2,10$")
        self.assertEqual(self.total_of("x.csv"), 30)
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_older_output_stays(self):
        path = self.write("x.csv", LAYERS)
        self.write("out.csv", "old")
        for arguments, code in (((path, "--capacity", "29"), 1), ((path, "--capacity", "1"), 2),
                                ((self.path("gone.csv"),), 2)):
            self.assertEqual(run(*arguments, "-o", self.path("out.csv")).returncode, code)
            self.assertEqual(self.read("out.csv"), "old")
        result = run(path, "-o", self.path("out.csv"), "--plot", self.path("no/such/folder.svg"))
        self.refused(result, 3, "--plot")
        self.assertEqual(self.read("out.csv"), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), ["out.csv", "x.csv"])

    def test_unwritable_output(self):
        self.refused(run(self.write("x.csv", LAYERS), "-o", self.path("no/such/folder.csv")), 3, "no/such/folder.csv")

    def test_lost_output(self):
        path = self.write("x.csv", LAYERS)
        for arguments in ((path,), (path, "--json"), (path, path), ("--help",), (path, "-o", self.path("out.csv"))):
            with open("/dev/full", "w", encoding="utf-8") as full:
                result = subprocess.run([TOOL, "pack", *arguments], stdout=full, stderr=subprocess.PIPE, text=True,
                                        check=False)
            self.assertEqual(result.returncode, 3, arguments)
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertEqual(os.listdir(self.folder), ["x.csv"])

    def test_picture(self):
        path = self.write("x.csv", RING)
        result = run(path, "--plot", self.path("x.svg"))
        self.good(result)
        self.assertIn("<svg", self.read("x.svg"))
        huge = ("id,lower,upper,size,gaps\na,0,18446744073709551615,9223372036854775807,5-10\n"
                "b,9223372036854775808,9223372036854775809,7,\n")
        late = "id,lower,upper,size\na,18446744073709551614,18446744073709551615,0\n"
        many = "id,lower,upper,size\n" + "".join(f"{i},{i},{i + 3},{i % 7 + 1}\n" for i in range(4500))
        for name, text in (("huge", huge), ("late", late), ("many", many)):
            self.good(run(self.write("x.csv", text), "--plot", self.path(f"{name}.svg"), "--work", "100000"))
            self.assertGreater(os.path.getsize(self.path(f"{name}.svg")), 1000)
        self.good(run(path, "-o", self.path("out.csv"), "--work", "100000"))
        self.good(run("--check", self.path("out.csv"), "--plot", self.path("checked.svg")))
        self.assertIn("<svg", self.read("checked.svg"))
        self.refused(run(path, "--plot", self.path("x.bmp"), "--work", "100000"), 2, "ends in .svg")


class Mistakes(Case):
    HEAD = "id,lower,upper,size,gaps\n"

    def test_bad_files(self):
        for text, *words in (
            ("", ":1:1:", "id, lower, upper, size"), (self.HEAD, ":2:1:", "no rows"),
            ("id,lower,upper\na,0,1\n", ":1:1:", '"size"'),
            ("id,lower,upper,size,x\na,0,1,1,1\n", ":1:21:", '"x"', "gaps and offset"),
            ("id,id\n", ":1:4:", "duplicate column"),
            (self.HEAD + "a,0,1,1\n", ":2:7:", "field 4 of 5"), (self.HEAD + "a,0,1,1,,\n", ":2:10:", "5 columns"),
            (self.HEAD + "a,5,4,1,\n", ":2:5:", "upper 4", "lower 5"), (self.HEAD + "a,5,5,1,\n", ":2:5:", "upper 5"),
            (self.HEAD + "a,-5,4,1,\n", ":2:3:", "-5"), (self.HEAD + "a,0,1.5,1,\n", ":2:5:", "1.5"),
            (self.HEAD + "a,0,1,99999999999999999999,\n", ":2:7:", "18446744073709551615"),
            (self.HEAD + "a,0,1,18446744073709551615,\nb,2,3,1,\n", ":3:7:", "exceeds"),
            (self.HEAD + "a,0,1,1,\na,0,1,1,\n", ":3:1:", 'duplicate id "a"', "line 2"),
            (self.HEAD + ",0,1,1,\n", ":2:1:", "empty id"),
            (self.HEAD + "a,2,9,1,1-3\n", ":2:9:", "1-3", "2-9"), (self.HEAD + "a,2,9,1,4-4\n", ":2:9:", "empty"),
            (self.HEAD + "a,2,9,1,6-4\n", ":2:9:", "before"),
            (self.HEAD + "a,2,9,1,3-5 4-6\n", ":2:13:", "overlaps gap 3-5"),
            (self.HEAD + "a,2,9,1,2-9\n", ":2:9:", "nothing"), (self.HEAD + "a,2,9,1,x\n", ":2:9:", '"x"'),
            (self.HEAD + "a,0,1,\0,\n", ":2:7:", "0x00"), (self.HEAD + "\x1b[2J,0,1,1,\n", ":2:1:", "0x1b"),
            (self.HEAD + '"a,0,1,1,\n', ":2:1:", "quote"),
        ):
            with self.subTest(text=text):
                result = run(self.write("x.csv", text), "-o", self.path("out.csv"), "--plot", self.path("out.svg"))
                self.refused(result, 2, "x.csv" + words[0], *words[1:])
                self.assertEqual(os.listdir(self.folder), ["x.csv"])
        self.refused(run(self.path("gone.csv")), 2, "gone.csv", "No such file")
        self.refused(run(self.folder), 2, "directory")
        self.refused(run(self.write("x.csv", LAYERS), self.write("bad.csv", "id\n")), 2, "bad.csv:1:1:")

    def test_bad_options(self):
        path = self.write("x.csv", LAYERS)
        for options, words in ((["--capacity", "0"], ["--capacity"]), (["--capacity", "-1"], ["--capacity"]),
                               (["--capacity", "1.5"], ["--capacity"]),
                               (["--capacity", "18446744073709551616"], ["--capacity"]),
                               (["--capacity", "1MiB"], ["--capacity", "1MiB"]), (["--work", "0"], ["--work"]),
                               (["--work", "fast"], ["--work", "fast"]), (["--color", "blue"], ["always"]),
                               (["-o", ""], ["-o"]), (["--plot", "x/"], ["--plot"]),
                               (["-o", "y.svg", "--plot", "y.svg"], ["same file"]),
                               (["--check", "-o", "y.csv"], ["--check", "-o"]),
                               (["--check", "--work", "5"], ["--check", "--work"]),
                               ([path, "-o", "y.csv"], ["one file, got 2"]),
                               ([path, "--plot", "y.svg"], ["one file, got 2"]), (["--best"], ["--best"])):
            with self.subTest(options=options):
                self.refused(run(path, *options), 2, *words)
        self.refused(run(), 2, "no file")
        self.refused(run("--capacity"), 2, "--capacity")


class Documents(Case):
    def text(self, *path):
        with open(os.path.join(ROOT, *path), encoding="utf-8") as file:
            return file.read()

    def test_example(self):
        example = re.search(r"```csv\n(id,lower.*?)```", self.text("docs", "reference", "formats.md"), re.DOTALL).group(1)
        self.good(run(self.write("x.csv", example), "-o", self.path("out.csv")))
        self.assertEqual(self.total_of("out.csv"), 5120)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
