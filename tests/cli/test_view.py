# SPDX-License-Identifier: Apache-2.0
"""`bucketpool view`: tables, JSON, the page, pictures and mistakes, on snapshots that snapshots.py makes and that a
profile wrote. What is printed is computed here again, event by event. In a browser only where chromium is installed.

Arguments: source directory, the bucketpool executable. With UPDATE_GOLDEN=1 the golden files are written anew; look at
the difference before committing it.
"""

import functools
import html
import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import unittest

import answers
from answers import InFolder
import recordings
from segments import Segments
import snapshots

ROOT, TOOL = sys.argv[1], os.path.abspath(sys.argv[2])
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "</script><script>document.title='broken'</script><!--\u2028\"\\'&amp;"
run = functools.partial(answers.run, "view")


def play(pool, first):
    """The most that is live in memory, when, what, and the free ranges then: the events once more."""
    slabs, size = pool["slabs"], [request["bytes"] for request in pool["requests"]]
    resident = [slab["resident"] for slab in slabs]
    for gained, slab, _ in reversed(pool["slab_events"]):
        resident[slab] = not gained
    held = {entry["id"]: entry["address"] for entry in pool["live"]}

    def slab_of(address):
        return next((i for i, slab in enumerate(slabs) if slab["address"] <= address < slab["address"] + slab["bytes"]),
                    None)

    def live():
        return {i for i, address in held.items() if size[i]
                and (slab_of(address) is None or resident[slab_of(address)])}

    def free():
        ranges = []
        for index, slab in enumerate(slabs):
            inside = sorted((held[i] - slab["address"], size[i]) for i in live() if slab_of(held[i]) == index)
            end = 0
            for offset, bytes_ in inside + [(slab["bytes"], 0)]:
                if resident[index] and offset > end:
                    ranges.append(offset - end)
                end = max(end, offset + bytes_)
        return ranges

    peak = (sum(size[i] for i in live()), 0, live(), free())
    changes = [(event[2], 0, event) for event in pool["slab_events"]] + [(event[4], 1, event)
                                                                         for event in pool["events"]]
    for time, is_event, event in sorted(changes, key=lambda change: change[:2]):
        if not is_event:
            resident[event[1]] = bool(event[0])
        elif event[0] == snapshots.ACQUIRE:
            held[event[1]] = event[5]
        elif event[0] in (snapshots.RELEASE, snapshots.CANCEL):
            held.pop(event[1], None)
        total = sum(size[i] for i in live())
        if total > peak[0]:
            peak = (total, time - first, live(), free())
    return peak


class Case(InFolder):
    def write(self, name, snapshot, protocol=2):
        return snapshots.write(self.path(name), snapshot, protocol)

    def good(self, result):
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def report(self, *arguments):
        return json.loads(self.good(run(*arguments, "--json")))


class Numbers(Case):
    def check(self, path):
        with open(path, "rb") as file:
            whole = pickle.load(file)["bucketpool"]
        (file,) = self.report(path)["files"]
        self.assertEqual((file["rank"], file["step"]), (whole["rank"], whole["step"]))
        for pool, answer in zip(whole["pools"], file["pools"]):
            peak, time, ids, ranges = play(pool, whole["first_time_ns"])
            self.assertEqual((answer["peak_bytes"], answer["peak_ns"]), (peak, time))
            self.assertEqual(sorted((pool["requests"][i]["unit"], pool["requests"][i]["bucket"]) for i in ids),
                             sorted((entry["unit"], entry["bucket"]) for entry in answer["live_at_peak"]))
            self.assertEqual((answer["peak_free_bytes"], answer["peak_largest_free_bytes"]),
                             (sum(ranges), max(ranges, default=0)))
            self.assertEqual(sum(role["at_peak_bytes"] for role in answer["roles"]), peak)
            self.assertEqual((answer["events"], answer["lost_events"]), (len(pool["events"]), pool["lost_events"]))

    def test_every_protocol(self):
        answers = set()
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            path = self.write("x.pickle", snapshots.ours(rank=2, ranks=4), protocol)
            self.check(path)
            answers.add(run(path, "--json").stdout)
        self.assertEqual(len(answers), 1)

    def test_several_steps_and_lost_events(self):
        snapshot = snapshots.ours(units=7, steps=3, lost=12)
        self.check(self.write("x.pickle", snapshot))
        pool = snapshot["bucketpool"]["pools"][0]
        cut = len(pool["events"]) // 3  # as a ring that forgot: what was live then is live before
        live = {entry["id"]: entry for entry in pool["live"]}
        for kind, request, stream, step, _, address in pool["events"][:cut]:
            if kind == snapshots.ACQUIRE:
                live[request] = {"id": request, "address": address, "stream": stream, "step": step}
            elif kind == snapshots.RELEASE:
                live.pop(request)
        pool["live"], pool["events"] = list(live.values()), pool["events"][cut:]
        self.check(self.write("y.pickle", snapshot))

    def test_buckets_without_elements(self):
        snapshot = snapshots.ours(units=2)
        pool = snapshot["bucketpool"]["pools"][0]
        pool["requests"].append(dict(pool["requests"][0], bytes=0, bucket="empty"))
        last = pool["events"][-1]
        pool["events"].append([snapshots.ACQUIRE, len(pool["requests"]) - 1, 0, 0, last[4] + 5, 0])
        path = self.write("x.pickle", snapshot)
        self.check(path)
        self.good(run(path, "--html", self.path("x.html")))

    def test_profile_files(self):
        model = os.path.join(ROOT, "examples", "models", "Qwen3-8B")
        result = subprocess.run([TOOL, "run", model, "--scale", "4096", "--profile", self.path("p")],
                                capture_output=True, text=True, cwd=ROOT, timeout=600, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        for step in ("step_0", "step_1"):
            (name,) = [name for name in os.listdir(self.path(f"p/{step}")) if name.endswith(".pickle")]
            self.check(self.path(f"p/{step}/{name}"))
            self.good(run(self.path(f"p/{step}/{name}"), "--html", self.path("p.html")))

    def test_of_pytorch(self):
        for protocol in (2, 4):
            (file,) = self.report(self.write("torch.pickle", snapshots.torch(), protocol))["files"]
            (pool,) = file["pools"]
            self.assertIsNone(file["rank"])
            self.assertIsNone(pool["plan_bytes"])
            self.assertEqual((pool["pool"], pool["slab_bytes"]), ("cuda:0", 40 * snapshots.MIB))
            self.assertEqual((pool["peak_bytes"], pool["peak_ns"]), (30 * snapshots.MIB, 20_000))
            self.assertEqual({(entry["unit"], entry["bucket"], entry["bytes"] // snapshots.MIB)
                              for entry in pool["live_at_peak"]},
                             {("train.py", "weights", 8), ("", "", 6), ("train.py", "forward", 12),
                              ("train.py", "backward", 4)})
            self.assertEqual(pool["peak_slab_bytes"], 40 * snapshots.MIB)
            self.assertEqual((pool["peak_free_bytes"], pool["peak_largest_free_bytes"]),
                             (10 * snapshots.MIB, 6 * snapshots.MIB))

    def test_reused_addresses(self):
        """A segment is freed, and a smaller one has its address: memory of the first is not there any more."""
        trace, base = [], snapshots.BASE
        for action, address, size in (("segment_alloc", 0, 20), ("alloc", 0, 20), ("free_completed", 0, 20),
                                      ("segment_free", 0, 20), ("segment_alloc", 0, 4), ("alloc", 0, 4),
                                      ("segment_alloc", 64, 20), ("alloc", 64, 20)):
            trace.append({"action": action, "addr": base + address * snapshots.MIB, "size": size * snapshots.MIB, "stream": 0,
                          "time_us": len(trace), "frames": []})
        segments = [{"device": 0, "address": base + address * snapshots.MIB, "total_size": size * snapshots.MIB, "stream": 0,
                     "blocks": [{"size": size * snapshots.MIB, "state": "active_allocated"}]}
                    for address, size in ((0, 4), (64, 20))]
        path = self.write("x.pickle", {"segments": segments, "device_traces": [trace]})
        (pool,) = self.report(path)["files"][0]["pools"]
        self.assertEqual((pool["slab_bytes"], pool["peak_slab_bytes"], pool["peak_free_bytes"]),
                         (24 * snapshots.MIB, 24 * snapshots.MIB, 0))
        self.assertRegex(run(path).stdout, r"cuda:0 24\.00 MiB .* 0\.0 %")

    def test_segments(self):
        for seed in range(25):
            for lost in (0, 100):
                recording = Segments(seed, 250)
                path = self.write("x.pickle", recording.snapshot(lost))
                (pool,) = self.report(path)["files"][0]["pools"]
                found = [pool[name] / snapshots.MIB for name in ("peak_bytes", "peak_slab_bytes", "peak_free_bytes",
                                                                 "peak_largest_free_bytes", "slab_bytes")]
                self.assertEqual(tuple(found), recording.answer(lost), (seed, lost))
                if pool["peak_ns"] == 0:
                    continue  # before the first event, at the same time
                page = Page.data(self, Page.page(self, path))["files"][0]["pools"][0]
                gone = [page["gone"][i:i + 5] for i in range(0, len(page["gone"]), 5)]
                mapped = sum(slab[1] for slab in page["slabs"]) - sum(
                    size for _, _, size, begin, end in gone if begin <= pool["peak_ns"] < end)
                self.assertEqual(mapped, pool["peak_slab_bytes"])

    def test_without_segments(self):
        """bucketpool.torch.trace records no segments, but has one for each block that is live at the end."""
        recording = recordings.Model(1)
        for _ in range(3):
            recording.step()
        path = self.write("x.pickle", recording.rec.snapshot())
        (pool,) = self.report(path)["files"][0]["pools"]
        self.assertEqual((pool["slab_bytes"], pool["peak_slab_bytes"], pool["peak_free_bytes"]), (0, 0, 0))
        self.assertRegex(run(path).stdout, r"cuda:0 +- ")

    def test_offloaded_state(self):
        """State stays held while its slab is unmapped, and is live again when it is mapped: the optimizer's is
        offloaded at the peak.
        """
        snapshot = snapshots.ours(units=6, steps=2)
        half = snapshot["bucketpool"]
        pool = half["pools"][0]
        whole = play(dict(pool, slab_events=[]), half["first_time_ns"])
        pool["slab_events"] = [[0, 2, half["first_time_ns"] + 1]]
        pool["slabs"][2]["resident"] = False
        path = self.write("x.pickle", snapshot)
        self.check(path)
        (answer,) = self.report(path)["files"][0]["pools"]
        self.assertLess(answer["peak_bytes"], whole[0])
        (state,) = [role for role in answer["roles"] if role["role"] == "optimizer"]
        self.assertEqual((state["peak_bytes"], state["peak_ns"], state["at_peak_bytes"]), (60 * snapshots.MIB, 0, 0))
        pool["slab_events"] = [[0, 2, half["first_time_ns"] + 1], [1, 2, half["last_time_ns"]]]
        pool["slabs"][2]["resident"], pool["events"] = True, []
        self.check(self.write("x.pickle", snapshot))

    def test_empty_snapshot(self):
        snapshot = snapshots.ours()
        pool = snapshot["bucketpool"]["pools"][0]
        pool["events"], pool["live"], pool["slab_events"], pool["plan"] = [], [], [], None
        path = self.write("x.pickle", snapshot)
        self.check(path)
        self.good(run(path, "--html", self.path("x.html")))
        self.assertIn("0 buckets live", run(path).stdout)


class Tables(Case):
    def test_golden(self):
        for name, files in (("view-one.txt", [0]), ("view-ranks.txt", [0, 1, 2, 3])):
            paths = [self.write(f"rank{rank}.pickle", snapshots.ours(rank, 4,
                                                                     scratch=80 * snapshots.MIB if rank == 2 else None))
                     for rank in files]
            self.golden(name, self.good(run(*paths)).replace(self.folder, "FOLDER"))
        self.golden("help-view.txt", run("--help").stdout)

    def test_color(self):
        path = self.write("x.pickle", snapshots.ours())
        self.assertNotIn("\033", run(path).stdout)
        self.assertIn("\033", run(path, "--color", "always").stdout)

    def test_outlier(self):
        paths = [self.write(f"{rank}.pickle", snapshots.ours(rank, 5,
                                                             scratch=100 * snapshots.MIB if rank == 3 else None))
                 for rank in range(5)]
        report = self.report(*paths)
        (peak,) = [entry for entry in report["spread"] if entry["of"] == "live peak"]
        peaks = [file["pools"][0]["peak_bytes"] for file in report["files"]]
        self.assertEqual((peak["least"], peak["most"], peak["most_file"], peak["odd_file"]),
                         (min(peaks), max(peaks), 3, 3))
        (events,) = [entry for entry in report["spread"] if entry["of"] == "events"]
        self.assertIsNone(events["odd_file"])
        self.assertRegex(run(*paths).stdout, r"(?m)live peak .* rank 3 p0d3t0 +rank 3 p0d3t0: 3\d\d\.\d MiB$")
        two = [entry for entry in self.report(*paths[2:4])["spread"] if entry["of"] == "live peak"]
        self.assertIsNone(two[0]["odd_file"])  # of two nobody can say

    def test_one_pool(self):
        snapshot = snapshots.ours()
        other = json.loads(json.dumps(snapshot["bucketpool"]["pools"][0]))
        other["name"] = "other"
        snapshot["bucketpool"]["pools"].append(other)
        path = self.write("x.pickle", snapshot)
        self.assertEqual([pool["pool"] for pool in self.report(path)["files"][0]["pools"]], ["params+grads", "other"])
        self.assertEqual([pool["pool"] for pool in self.report(path, "--pool", "other")["files"][0]["pools"]],
                         ["other"])
        self.refused(run(path, "--pool", "x"), 2, 'unknown pool "x"; the file has ', ", other")


class Mistakes(Case):
    def test_bad_files(self):
        good = pickle.dumps(snapshots.ours(units=1), 2)
        for data, *words in (
            (b"", "byte 0", "expected a pickle"), (b"{}", "byte 0", "expected a pickle"), (b"\x80\x09.", "protocol 9"),
            (good[:-1], f"byte {len(good) - 1}", "ends before the pickle"),
            (good[:200], "byte "), (good + b"x", "1 bytes after"),
            (pickle.dumps(os.system, 2), "byte 2", "names the global posix.system"),
            (pickle.dumps(os.system, 4), "names the global posix.system"), (pickle.dumps({"a": {1}}, 4), "set"),
            (pickle.dumps([2**70], 2), "64 bits"), (pickle.dumps([]), "not a snapshot"),
            (pickle.dumps({"bucketpool": {"format": "x"}}), "bucketpool.format"),
            (pickle.dumps({"segments": []}), "device_traces"),
            (pickle.dumps({"segments": [], "device_traces": [[], []]}), "the snapshot has no pools"),
        ):
            with self.subTest(data=data[:60]):
                with open(self.path("x.pickle"), "wb") as file:
                    file.write(data)
                result = run(self.path("x.pickle"), "--html", self.path("x.html"), "--plot", self.path("x.svg"))
                self.refused(result, 2, "x.pickle: ", *words)
                self.assertEqual(os.listdir(self.folder), ["x.pickle"])
        self.refused(run(self.path("gone.pickle")), 2, "gone.pickle", "No such file")
        self.refused(run(self.folder), 2, "x.pickle")
        good = self.write("good.pickle", snapshots.ours())
        alone = self.good(run(good))
        for files in ((good, self.path("x.pickle")), (self.path("gone.pickle"), good)):
            result = run(*files)  # the other one is reported
            self.assertEqual((result.returncode, result.stdout), (2, alone))
            self.assertRegex(result.stderr, r"^bucketpool: \S+/(x|gone)\.pickle: .*\n$")
        result = run(self.path("x.pickle"), self.path("gone.pickle"))
        self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 2))

    def test_directory(self):
        paths = [self.write(f"{rank}.pickle", snapshots.ours(rank, 2)) for rank in range(2)]
        self.assertEqual(run(self.folder).stdout, self.good(run(*paths)))
        self.refused(run(self.folder, "--plot", self.path("x.svg")), 2, "--plot requires one file, got 2")
        self.good(run(self.folder, "--html", self.path("page.html")))
        self.refused(run(self.folder), 2, "(0.pickle, 1.pickle) and other files (page.html)")

    def test_repeated_slabs(self):
        """A short file can say that many buckets were live again many times."""
        snapshot = snapshots.ours(units=1)
        half = snapshot["bucketpool"]
        pool = half["pools"][0]
        pool["requests"] = [dict(pool["requests"][0], bytes=1)] * 5000
        pool["live"] = [{"id": i, "address": snapshots.BASE + i, "stream": 0, "step": 0} for i in range(5000)]
        pool["events"], pool["slab_events"] = [], [[i % 2, 0, half["first_time_ns"] + i] for i in range(2000)]
        self.refused(run(self.write("x.pickle", snapshot), "--html", self.path("x.html")), 2,
                     "x.pickle: pool params+grads", "too often")
        self.assertFalse(os.path.exists(self.path("x.html")))

    def test_pickled_code(self):
        class Trap:
            def __reduce__(self):
                return os.mkdir, (target,)
        target = self.path("trap")
        for protocol in (2, 4):
            path = self.write("x.pickle", {"bucketpool": Trap()}, protocol)
            self.refused(run(path), 2, "names the global posix.mkdir")
            self.assertFalse(os.path.exists(target))

    def test_every_cut(self):
        snapshot = snapshots.ours(units=1)
        snapshot["bucketpool"]["pools"][0]["events"] = snapshot["bucketpool"]["pools"][0]["events"][:2]
        data = pickle.dumps(snapshot, 4)
        for length in range(0, len(data), 41):
            with open(self.path("x.pickle"), "wb") as file:
                file.write(data[:length])
            self.refused(run(self.path("x.pickle")), 2, "x.pickle: byte ")

    def test_bad_options(self):
        path = self.write("x.pickle", snapshots.ours())
        for options, words in ((["--html", ""], ["--html"]), (["--plot", "x.bmp"], ["--plot", "ends in .svg"]),
                               (["--flame", "x"], ["--flame"]),
                               (["--html", "a.svg", "--plot", "a.svg"], ["same file"]),
                               (["--plot", "a.svg", "--flame", "a.svg"], ["same file"]),
                               ([path, "--plot", "a.svg"], ["one file, got 2"]),
                               ([path, "--flame", "a.svg"], ["one file, got 2"]), (["--best"], ["--best"]),
                               (["--color", "blue"], ["always"])):
            with self.subTest(options=options):
                self.refused(run(path, *options), 2, *words)
        self.refused(run(), 2, "no file")

    def test_output_over_snapshot(self):
        """`view --html *.pickle`: the first is the option's value."""
        paths = [self.write(f"{rank}.pickle", snapshots.ours(rank, 2)) for rank in range(2)]
        other = self.write("other", snapshots.ours())
        before = [os.stat(path).st_mtime_ns for path in (*paths, other)]
        self.refused(run("--html", *paths), 2, "--html", '0.pickle" is a snapshot')
        self.refused(run("--html", other, other), 2, "--html", 'other" is a snapshot')
        self.refused(run("--html", self.path("./other"), other), 2, "is a snapshot")
        self.assertEqual([os.stat(path).st_mtime_ns for path in (*paths, other)], before)

    def test_outputs(self):
        path = self.write("x.pickle", snapshots.ours())
        self.refused(run(path, "--html", self.path("no/folder/x.html")), 3, "--html", "no/folder/x.html")
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([TOOL, "view", path, "--html", self.path("x.html")], stdout=full,
                                    stderr=subprocess.PIPE, text=True, check=False)
        self.assertEqual(result.returncode, 3, result.stderr)
        self.refused(run(path, "--html", "/dev/full"), 3, "--html /dev/full")
        with open(self.path("old.html"), "w", encoding="utf-8") as file:
            file.write("old")
        self.refused(run(self.folder, "--html", self.path("old.html")), 2)
        with open(self.path("old.html"), encoding="utf-8") as file:
            self.assertEqual(file.read(), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), ["old.html", "x.pickle"])


class Pictures(Case):
    def test_pictures(self):
        for name, snapshot in (("ours", snapshots.ours()), ("torch", snapshots.torch()),
                               ("many", snapshots.ours(units=30, steps=30))):
            path = self.write("x.pickle", snapshot)
            for option in ("--plot", "--flame"):
                target = self.path(f"{name}{option}.svg")
                self.good(run(path, option, target))
                self.assertGreater(os.path.getsize(target), 1000)
        with open(self.path("ours--plot.svg"), encoding="utf-8") as file:
            self.assertIn("<svg", file.read())

    def test_short_blocks(self):
        """The curve stays between nothing and the peak: in PyTorch's traces many an end is at the time of its
        beginning.
        """
        trace = [{"action": action, "addr": snapshots.BASE + i * snapshots.MIB, "size": snapshots.MIB, "stream": 0,
                  "time_us": 1000 + i // 4}
                 for i in range(40) for action in ("alloc", "free_completed")]
        path = self.write("x.pickle", {"segments": [], "device_traces": [trace]})
        self.good(run(path, "--plot", self.path("x.svg")))
        with open(self.path("x.svg"), encoding="utf-8") as file:
            text = file.read()
        heights = [float(y) for line in re.findall(r' d="([^"]*)"', text) for y in re.findall(r"[ML]\S+ ([0-9.]+)", line)]
        self.assertLess(max(heights), float(re.search(r'viewBox="0 0 \S+ ([0-9.]+)"', text)[1]))


class Page(Case):
    def page(self, *files, **more):
        target = self.path("page.html")
        self.good(run(*files, "--html", target, **more))
        with open(target, encoding="utf-8") as file:
            return file.read()

    def data(self, page):
        """As a browser takes it: what is between the element's tags, whatever it is."""
        (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL)
        return json.loads(text)

    def test_single_file(self):
        page = self.page(self.write("x.pickle", snapshots.ours()))
        self.assertNotRegex(page, r"https?://|src=|@import|url\(|<link")
        self.assertIn("default-src 'none'", page)
        self.assertEqual(page.count("<script"), 2)

    def test_data(self):
        snapshot = snapshots.ours(rank=1)
        pool = snapshot["bucketpool"]["pools"][0]
        drawn = self.data(self.page(self.write("x.pickle", snapshot)))["files"][0]["pools"][0]
        spans = [drawn["spans"][i:i + 7] for i in range(0, len(drawn["spans"]), 7)]
        first, moves = snapshot["bucketpool"]["first_time_ns"], pool["slab_events"]
        self.assertEqual(len(moves), 2)
        self.assertEqual(len(spans), len(pool["live"]) + sum(event[0] == snapshots.ACQUIRE
                                                             for event in pool["events"]) + 1)
        begins = {(event[1], event[4] - first) for event in pool["events"] if event[0] == snapshots.ACQUIRE}
        ends = {(event[1], event[4] - first) for event in pool["events"] if event[0] == snapshots.RELEASE}
        self.assertEqual({(span[0], span[3]) for span in spans if not span[6] & 1},
                         begins | {(len(pool["requests"]) - 2, moves[1][2] - first)})
        self.assertEqual({(span[0], span[4]) for span in spans if not span[6] & 2},
                         ends | {(len(pool["requests"]) - 2, moves[0][2] - first)})
        for request, slab, offset, *_ in spans:
            self.assertLessEqual(offset + pool["requests"][request]["bytes"],
                                 pool["slabs"][slab]["bytes"] if slab >= 0 else 1 << 60)
        self.assertEqual(drawn["peakBytes"], play(pool, first)[0])

    def sampled(self, snapshot):
        """The page of a long recording has its largest boxes, all that are live at the peak, and the live bytes of
        everything.
        """
        (drawn,) = self.data(self.page(self.write("x.pickle", snapshot, 4)))["files"][0]["pools"]
        spans = [drawn["spans"][i:i + 7] for i in range(0, len(drawn["spans"]), 7)]
        wide = 2 * len(drawn["roles"]) + 1
        curve = [drawn["curve"][i:i + wide] for i in range(0, len(drawn["curve"]), wide)]
        self.assertLess(len(spans), drawn["allSpans"])
        self.assertEqual({span[0] for span in spans}, set(range(len(drawn["requests"]))))
        self.assertTrue(all(span[1] < len(drawn["slabs"]) for span in spans))
        self.assertEqual([moment[0] for moment in curve], sorted(moment[0] for moment in curve))
        self.assertEqual(max(sum(moment[1:]) for moment in curve), drawn["peakBytes"])
        self.assertLessEqual(len(curve), 2 * 4096)
        return drawn, spans, curve

    def test_of_a_long_recording(self):
        snapshot = snapshots.torch_training(170_000)
        drawn, spans, curve = self.sampled(snapshot)
        self.assertEqual(len(spans), 50_000)
        self.assertEqual(drawn["allSpans"], sum(entry["action"] == "alloc" for entry in snapshot["device_traces"][0]))
        at_peak = [span for span in spans if span[3] <= drawn["peakTime"]
                   and (span[4] > drawn["peakTime"] or span[6] & 2)]
        self.assertEqual(sum(drawn["requests"][span[0]][5] for span in at_peak), drawn["peakBytes"])
        live = [block["size"] for segment in snapshot["segments"] for block in segment["blocks"]]
        self.assertEqual(sum(curve[-1][1:]), sum(live))
        self.assertEqual(drawn["allSlabs"], len(drawn["slabs"]))
        self.assertLess(os.path.getsize(self.path("page.html")), 8 * snapshots.MIB)

    def test_of_many_segments(self):
        """3000 segments, of which the odd ones lose their memory for a moment again and again and the even ones for
        long.
        """
        trace, time, gap = [], 1_700_000_000_000_000, 4 * snapshots.MIB
        def event(action, segment, size):
            trace.append({"action": action, "addr": snapshots.BASE + segment * gap, "size": size, "stream": 0,
                          "time_us": time, "frames": []})
        for turn in range(20):
            for segment in range(3000):
                time += 10
                if turn == 0 or segment % 2:
                    event("segment_alloc", segment, 512 * (segment + 1))
                event("alloc", segment, 512)
                event("free_completed", segment, 512)
                if segment % 2 or turn == 10:
                    event("segment_free", segment, 512 * (segment + 1))
                    time += 1
                if turn == 10 and not segment % 2:
                    time += 100
                    event("segment_alloc", segment, 512 * (segment + 1))
                elif segment % 2:
                    event("segment_alloc", segment, 512 * (segment + 1))
                    event("segment_free", segment, 512 * (segment + 1))
        segments = [{"device": 0, "address": snapshots.BASE + i * gap, "total_size": 512 * (i + 1), "stream": 0,
                     "blocks": []}
                    for i in range(0, 3000, 2)]
        drawn, _, _ = self.sampled({"segments": segments, "device_traces": [trace]})
        self.assertEqual((drawn["allSlabs"], [slab[1] for slab in drawn["slabs"]]),
                         (3000, [512 * (i + 1) for i in range(2000, 3000)]))
        gone = [drawn["gone"][i:i + 5] for i in range(0, len(drawn["gone"]), 5)]
        self.assertTrue(all(end - begin >= drawn["length"] // 4096 for _, _, _, begin, end in gone))
        for slab in range(1000):
            times = sum(end - begin for index, _, _, begin, end in gone if index == slab)
            self.assertGreaterEqual(times, slab % 2 * 0.9 * drawn["length"])
            self.assertLessEqual(times, (1 if slab % 2 else 0.06) * drawn["length"] + 1)

    def test_of_a_recording(self):
        """Kinds of memory as the curve stacks them, steps where `step` finds them, and reserved bytes."""
        path = os.path.join(ROOT, "examples", "files", "llama_steps.pickle")
        (file,) = self.data(self.page(path))["files"]
        (drawn,) = file["pools"]
        self.assertRegex(run(path).stdout, r"events recorded, without times\n(.*\n)*.* at its peak of \S+ GiB, event \d+: ")
        self.assertEqual(drawn["roles"], ["parameters", "optimizer state", "gradients", "activations", "workspace"])
        self.assertEqual((drawn["recording"], file["countsEvents"], drawn["slabs"], drawn["reserved"]), (1, 1, [], [0, 0]))
        steps = json.loads(subprocess.run([TOOL, "step", path, "--json"], capture_output=True, check=True).stdout)
        steps = steps["devices"][0]["steps"]
        self.assertEqual(drawn["steps"], [1000 * step["begin_event"] for step in steps])
        self.assertGreater(len(steps), 2)
        spans = [drawn["spans"][i:i + 7] for i in range(0, len(drawn["spans"]), 7)]
        (pool,) = self.report(path)["files"][0]["pools"]
        live = dict.fromkeys(drawn["roles"], 0)
        for request, _, _, begin, end, _, flags in spans:
            if begin <= drawn["peakTime"] and (end > drawn["peakTime"] or flags & 2):
                live[drawn["roles"][drawn["requests"][request][4]]] += drawn["requests"][request][5]
        self.assertEqual(live, {role["role"]: role["at_peak_bytes"] for role in pool["roles"]})
        self.assertEqual(sum(live.values()), pool["peak_bytes"])
        for seed in range(5):
            recording = Segments(seed, 200)
            (drawn,) = self.data(self.page(self.write("x.pickle", recording.snapshot(0))))["files"][0]["pools"]
            mapped = [snapshots.MIB * len(state[0]) for state in recording.states]
            self.assertEqual((max(drawn["reserved"][1::2]), drawn["reserved"][-1]), (max(mapped), mapped[-1]))
            self.assertEqual(drawn["reserved"][::2], sorted(drawn["reserved"][::2]))

    def hostile(self):
        snapshot = snapshots.ours(units=3)
        half = snapshot["bucketpool"]
        half["coordinates"] = half["version"] = half["pools"][0]["name"] = half["pools"][0]["slabs"][0]["group"] = (
            HOSTILE
        )
        for request in half["pools"][0]["requests"]:
            request["unit"] = HOSTILE + request["unit"]
            request["role"] = HOSTILE + request["role"]
        half["pools"][0]["streams"][0]["name"] = HOSTILE
        return self.write("</script><img src=x>.pickle".replace("/", "_"), snapshot)

    def test_escaped_names(self):
        page = self.page(self.hostile())
        self.assertEqual(len(re.findall(r"<script", page, re.IGNORECASE)), 2)
        self.assertEqual(len(re.findall(r"</script", page, re.IGNORECASE)), 2)
        self.assertNotIn("<!--", page)
        name = self.data(page)["files"][0]["pools"][0]["name"]
        self.assertEqual(name, HOSTILE.replace("\u2028", "???"))  # a separator of lines is not printable
        self.good(run(self.path("<_script><img src=x>.pickle"), "--json"))

    @unittest.skipUnless(CHROMIUM, "no chromium")
    def test_in_a_browser(self):
        def dump(state):
            profile = self.path("profile")
            result = subprocess.run([CHROMIUM, "--headless", "--no-sandbox",
                                     "--disable-gpu", f"--user-data-dir={profile}", "--window-size=1300,800",
                                     "--dump-dom", "file://" + self.path("page.html") + state], capture_output=True,
                                    text=True, timeout=600, check=False)
            if result.returncode != 0 or "<html" not in result.stdout:
                self.skipTest("chromium does not run here")
            dom = result.stdout.split('id="data"')[0]
            return html.unescape(dom)
        paths = [self.write(f"{rank}.pickle", snapshots.ours(rank, 3,
                                                             scratch=90 * snapshots.MIB if rank == 1 else None))
                 for rank in range(3)]
        self.page(*paths)
        whole = snapshots.ours(1, 3, scratch=90 * snapshots.MIB)["bucketpool"]
        peak, time, ids, _ = play(whole["pools"][0], whole["first_time_ns"])
        dom = dump("#file=1&peak=1&theme=dark")
        self.assertIn('class="dark"', dom)
        self.assertIn(f"<b>{peak // snapshots.MIB} MiB</b>", dom)
        self.assertIn(f"Pinned at {time / 1e6:.3f} ms", dom)
        self.assertIn(f"{len(ids)} buckets", dom)
        self.assertIn("farthest from the median", dom)
        dom = dump("#t=0&hide=optimizer&unit=bucket")
        self.assertIn(">1 bucket<", dom)
        self.assertIn("bucket.0 · param", dom)
        self.page(os.path.join(ROOT, "examples", "files", "llama_steps.pickle"))
        dom = dump("#peak=1")
        self.assertIn("Largest modules and files at the peak", dom)
        self.assertIn("optimizer state", dom)
        self.assertIn("116 allocations", dom)
        self.page(self.hostile())
        dom = dump("#t=0")
        self.assertIn("<title>bucketpool view: ", dom)
        self.assertNotIn("<title>broken", dom)


class Documents(Case):
    def test_documented_members(self):
        with open(os.path.join(ROOT, "docs", "guides", "snapshots.md"), encoding="utf-8") as file:
            members = re.findall(r"(?m)^- (.*?):", file.read().split("## bucketpool.view/1")[1])
        documented = {"format", *re.findall(r"`(\w+)`", " ".join(members))}
        report = self.report(self.write("a.pickle", snapshots.ours(0, 2)), self.write("b.pickle", snapshots.ours(1, 2)))
        file, pool = report["files"][0], report["files"][0]["pools"][0]
        found = set(report) | set(file) | set(pool) | set(pool["live_at_peak"][0]) | set(report["spread"][0])
        found |= {member for role in pool["roles"] for member in role}
        self.assertEqual(found, documented)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
