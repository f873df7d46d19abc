# SPDX-License-Identifier: Apache-2.0
"""The report of `bucketpool step`: memory that PyTorch had, requests that failed, places, modules, phases and kinds, and several files.

Arguments: source directory, the bucketpool executable.
"""

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import random
import re
import sqlite3
import subprocess
import sys
import tarfile
import unittest
import zipfile

import snapshots
from recordings import Model, Recording, frame, rounded
from step_command import MIB, TOOL, StepCommand


class Reports(StepCommand):
    def test_reserved(self):
        """Segment events of the recording: the most that PyTorch had."""
        model = Model(2)
        for _ in range(4):
            model.step()
        peak = self.device(model.rec.snapshot())["peak_bytes"]
        r = model.rec
        segment = rounded(peak) * 2
        r.events.insert(0, {"action": "segment_alloc", "addr": 0x7E0000000000, "size": segment, "stream": 0, "frames": [],
                            "time_us": 0})
        snapshot = r.snapshot()
        snapshot["segments"] = [{"device": 0, "address": 0x7E0000000000, "total_size": segment, "stream": 0,
                                 "segment_type": "large", "blocks": [], "frames": []}]
        device = self.device(snapshot)
        self.assertEqual(device["recorded_bytes"], segment)
        self.assertEqual(device["recorded_at_peak_bytes"], segment)

    def phases(self, frames, rounds=3):
        """Rounds of two phases, generation and training, after which memory that is not live goes back to the device."""
        recording = Recording()
        recording.alloc_segment(512 * MIB, "state")
        for _ in range(rounds):
            for count, size, place in ((6, 1024, "rollout"), (7, 1126, "train")):
                for address in [recording.alloc_segment(size * MIB, place) for _ in range(count)]:
                    recording.free(address)
                recording.empty_cache(frames)
        return recording

    def test_empty_cache(self):
        """Memory that empty_cache released is not held in the next phase: default is as recorded."""
        right = (512 + 7 * 1126) * MIB
        for frames in ((), [{"name": "empty_cache", "filename": "/x/torch/cuda/memory.py", "line": 224}]):
            device = self.device(self.phases(frames).snapshot())
            self.assertEqual((device["recorded_bytes"], device["default_bytes"], device["peak_bytes"]), (right,) * 3)
            self.assertEqual(device["causes"]["cached"], 0)
            self.assertEqual(device["empty_caches"], 6)
        self.assertIn("follow 6 calls of torch.cuda.empty_cache", self.run_step("x.pickle").stdout)

    def test_empty_cache_without_segments(self):
        """As bucketpool.torch.trace records it."""
        recording = self.phases(())
        events = [event for event in recording.events if event["action"] != "segment_alloc"]
        for before, event in zip([None, *events], events):
            if event["action"] == "segment_free" and before["action"] == "free_completed":
                event.update(action="empty_cache", addr=0, size=0)
        recording.events = [event for event in events if event["action"] != "segment_free"]
        device = self.device(recording.snapshot())
        self.assertEqual(device["default_bytes"], (512 + 7 * 1126) * MIB)
        self.assertEqual((device["causes"]["cached"], device["empty_caches"], device["unknown_events"]), (0, 6, 0))

    def test_retries(self):
        """An allocation that finds no memory frees the cache: events like those of empty_cache, which no one called."""
        recording = Recording()
        for _ in range(3):
            for address in [recording.alloc_segment(1024 * MIB, "rollout") for _ in range(6)]:
                recording.free(address)
            first = recording.alloc_segment(1126 * MIB, "train")  # 7.1 GiB: the device is full
            recording.empty_cache()
            for address in [recording.alloc_segment(1126 * MIB, "train") for _ in range(5)] + [first]:
                recording.free(address)
            recording.empty_cache()
        recording.alloc_segment(1024 * MIB, "rollout")
        device = self.device(recording.snapshot())
        self.assertEqual(device["empty_caches"], 0)
        self.assertGreater(device["unclear_releases"], 0)
        self.assertEqual(device["default_bytes"], device["default_most_bytes"])
        self.assertGreater(device["default_most_bytes"], device["default_least_bytes"])
        self.assertRegex(self.run_step("x.pickle").stdout, r"\d releases .* does not tell. Default is \S+ GiB or \S+ GiB")

    def test_out_of_memory(self):
        """Four equal steps, and a longer one that fails: the report is about the failure."""
        r = Recording()
        r.segments = True
        params = [r.alloc((20 + i) * MIB, frames=[frame("__init__", "/home/u/model.py", i)]) for i in range(10)]
        def step(scale, fails):
            saved = [r.alloc((11 + 3 * i) * MIB * scale, frames=[frame("layer", "/home/u/layer.py", 10 + i)]) for i in range(20)]
            if fails:
                r.event("oom", 900 * MIB, 4000 * MIB, 0, [frame("malloc", "??", 0), frame("logits_float", "/home/u/loss.py", 33),
                                                          frame("<module>", "/home/u/train.py", 5)])
                return
            r.free(r.alloc(97 * MIB * scale, frames=[frame("loss", "/home/u/loss.py", 33)]))
            for address in reversed(saved):
                r.free(address)
        for _ in range(4):
            step(1, False)
        step(7, True)
        live = sum(size for size, _ in r.live.values())
        device = self.device(r.snapshot())
        self.assertEqual(device["peak_bytes"], live)
        oom = device["oom"]
        self.assertEqual((oom["event"], oom["requested_bytes"], oom["device_free_bytes"], oom["live_bytes"]),
                         (len(r.events) - 1, 4000 * MIB, 900 * MIB, live))
        self.assertEqual([each["function"] for each in oom["frames"]], ["malloc", "logits_float", "<module>"])
        self.assertEqual(sum(h["bytes"] for h in oom["holders"]), live)
        self.assertEqual(oom["holders"][0]["line"], 29)
        self.assertEqual(len(params), 10)
        text = self.report(r)
        self.assertIn("OUT OF MEMORY at event", text)
        self.assertIn("a request of 3.906 GiB on stream 0\n  at loss.py:33 logits_float\n  at train.py:5\n", text)
        self.assertIn("Live when the request failed: 5.640 GiB", text)

    def oom_of(self, free, request=100 * MIB, device_free=10 * MIB, settings=()):
        """A failed request of stream 0: the free memory, and the text. Each of `free`: stream, pool, type of the segment, free ranges."""
        r, segments, address = Recording(), [], 0x7A0000000000
        for stream, pool, kind, ranges in free:
            blocks, begin = [], address
            for size in ranges:
                for bytes_, state in ((MIB, "active_allocated"), (size, "inactive")):
                    blocks.append({"address": address, "size": bytes_, "requested_size": bytes_, "state": state, "frames": []})
                    address += bytes_
            segments.append({"device": 1, "address": begin, "total_size": address - begin, "stream": stream,
                             "segment_type": kind, "segment_pool_id": pool,
                             "is_expandable": False, "frames": [], "blocks": blocks})
            address += 1 << 30
        r.free(r.alloc(512))
        r.event("oom", device_free, request)
        snapshot = r.snapshot()
        other = Recording() # another device, whose blocks are not those of this one
        other.alloc(500 * MIB)
        snapshot["segments"] = [*other.snapshot()["segments"], *segments]
        snapshot["device_traces"] = [[], r.events]
        snapshot["allocator_settings"].update(settings)
        oom = self.device(snapshot)["oom"]
        self.assertEqual(oom["reserved_bytes"], sum(s["total_size"] for s in segments))
        self.assertEqual(oom["reserved_bytes"], oom["live_bytes"] + sum(m["bytes"] for m in oom["free"]))
        return oom["free"], self.run_step("x.pickle").stdout

    def test_free_memory(self):
        """Of each stream and pool, and one sentence that says why none of it serves the request."""
        own, pool = (0, (0, 0)), (0, (1, 2))
        free, text = self.oom_of([(*own, "large", [30 * MIB, 40 * MIB, 25 * MIB])])
        self.assertEqual([(m["ranges"], m["bytes"], m["largest_bytes"]) for m in free], [(3, 95 * MIB, 40 * MIB)])
        self.assertIn("too small: PyTorch asks for 100.0 MiB", text)
        free, text = self.oom_of([(*own, "large", [30 * MIB]), (7, (0, 0), "large", [500 * MIB]), (*pool, "large", [200 * MIB])])
        self.assertEqual([(m["stream"], m["pool"], m["bytes"]) for m in free],
                         [(7, 0, 500 * MIB), (0, 1, 200 * MIB), (0, 0, 30 * MIB)])
        for words in ("of another stream", "of a private pool"):
            self.assertIn(words, text)
        limit, pieces, others = "The device had room", "The memory is there, in pieces", "A free range of another stream, pool or size"
        split, range_, pending = "in ranges that no setting joins", "A free range is large enough", "Enough is free with the pending memory"
        expandable = {"expandable_segments": True}
        cases = [
            ([(*own, "large", [30 * MIB, 64 * MIB])], {}, pieces),
            ([(*own, "large", [30 * MIB, 64 * MIB])], {"settings": expandable}, split),
            ([(*own, "large", [MIB] * 120)], {}, split), # expandable segments cannot give such pages back
            ([(7, (0, 0), "large", [MIB] * 120)], {}, split),
            ([(7, (0, 0), "large", [100 * MIB])], {}, others),
            ([(*own, "large", [100 * MIB])], {}, range_),
            ([(*own, "large", [30 * MIB])], {"device_free": 40 << 30}, limit),
            ([(*own, "large", [30 * MIB])], {}, "60.00 MiB more are needed, whatever the allocator"),
            ([(*own, "large", [4 * MIB])], {"request": 5 * MIB, "device_free": 12 * MIB}, "too small: PyTorch asks for 20.00 MiB"),
            ([(*own, "large", [4 * MIB])], {"request": 1000, "device_free": MIB}, "too small: PyTorch asks for 2.000 MiB"),
            ([(*own, "large", [4 * MIB])], {"request": 1000, "device_free": MIB}, others),
            ([(*own, "small", [MIB])], {"request": 4000, "device_free": MIB}, range_),
        ]
        for free, more, words in cases:
            self.assertIn(words, self.oom_of(free, **more)[1], (free, more))
        r = Recording()
        address = r.alloc(95 * MIB)
        r.event("free_requested", address, 95 * MIB)
        r.event("oom", 10 * MIB, 100 * MIB)
        snapshot = r.snapshot()
        snapshot["segments"][0]["blocks"][0]["state"] = "active_pending_free"
        oom = self.device(snapshot)["oom"]
        self.assertEqual((oom["pending_bytes"], oom["free"]), (95 * MIB, []))
        self.assertIn(pending, self.run_step("x.pickle").stdout)

    def test_frames_of_failures(self):
        """Those of the program; of PyTorch, or of C++ behind the allocator, where there are no others. Sizes do not wrap."""
        cxx = [frame("torch::unwind::unwind()", "??", 0), frame("at::_ops::mm::call(at::Tensor const&)", "??", 0),
               frame("x" * 100000, "??", 0)]
        torch = [frame("linear", "/env/site-packages/torch/nn/functional.py", 5)]
        for frames, lines in ((cxx, ["at::_ops::mm::call", "x" * 200]), (cxx + torch, ["functional.py:5 linear"]),
                              (cxx + torch + [frame("forward", "/home/model.py", 7)], ["model.py:7 forward"]),
                              ([], [])):
            r = Recording()
            r.free(r.alloc(512))
            r.event("oom", (1 << 64) - 1, (1 << 62) - 1, 0, frames)
            text = self.report(r)
            self.assertEqual(re.findall(r"(?m)^  at (.*)$", text), lines)

    def test_failure_without_allocations(self):
        """The blocks at the end and the request are there."""
        r = Recording()
        r.alloc(40 * MIB)
        r.events.clear()
        r.event("oom", 5 * MIB, 80 * MIB)
        oom = self.device(r.snapshot())["oom"]
        self.assertEqual((oom["live_bytes"], oom["requested_bytes"]), (40 * MIB, 80 * MIB))
        text = self.run_step("x.pickle").stdout
        self.assertIn("No allocations were recorded", text)
        self.assertIn("75.00 MiB more are needed", text)

    def test_several_failed_requests(self):
        """All are listed; the one with most live bytes is told."""
        r = Recording()
        blocks = [r.alloc(size * MIB) for size in (3, 9)]
        r.event("oom", 0, 40 * MIB)
        for address in blocks:
            r.free(address)
        for _ in range(12):
            r.event("oom", 0, 50 * MIB)
        device = self.device(r.snapshot())
        self.assertEqual((device["oom_events"], device["oom"]["event"], device["oom"]["live_bytes"]), (13, 2, 12 * MIB))
        text = self.report(r)
        self.assertIn("OUT OF MEMORY at event 2,", text)
        self.assertIn("13 requests found no memory", text)
        self.assertIn("  event 2: a request of 40.00 MiB, 12.00 MiB live\n  event 7: a request of 50.00 MiB, 0 B live\n", text)
        self.assertIn("  and 5 more\n", text)

    def test_failed_requests_of_files(self):
        """In the report of several files, too."""
        r = Recording()
        r.free(r.alloc(5 * MIB))
        r.event("oom", 0, 8 * MIB)
        r.alloc(512)
        self.write(r.snapshot(), "a.pickle")
        self.write(Model(1).rec.snapshot(), "b.pickle")
        text = self.run_step("a.pickle", "b.pickle").stdout
        self.assertIn("a.pickle, cuda:0: OUT OF MEMORY at event 3", text)

    def test_warnings_of_files(self):
        """Steps that miss the peak, in one report and in the table of several."""
        model = Model(4)
        model.rec.free(model.rec.alloc(900 * MIB))
        for number in range(3):
            model.rec.mark(f"ProfilerStep#{number}")
            model.step()
        self.write(model.rec.snapshot(), "a.pickle")
        self.write(Model(1).rec.snapshot(), "b.pickle")
        text = self.run_step("a.pickle", "b.pickle").stdout
        self.assertRegex(text, r"(?m)^a.pickle, cuda:0: Warning: the peak of the recording, 9\d\d.\d MiB, is not in the steps after")
        self.assertRegex(text, r"(?m)^a.pickle +cuda:0 .* 1[.]\d\d optimal")
        text = self.run_step("a.pickle").stdout
        self.assertRegex(text, r"(?m)^planned .* 1[.]\d\d one address for each allocation of the steps, times their peak")
        self.assertRegex(text, r"(?m)^peak live +9\d\d.\d MiB +1.00 of the recording")

    def test_peak_before_the_recording(self):
        recording = Recording()
        early = recording.alloc(100 * MIB)
        recording.events.clear()
        recording.events.append({"action": "free_completed", "addr": early, "size": 100 * MIB, "stream": 0, "time_us": 5,
                                 "frames": []})
        recording.live.clear()
        recording.free(recording.alloc(MIB))
        device = self.device(recording.snapshot())
        self.assertEqual((device["peak_bytes"], device["peak_event"]), (100 * MIB, None))
        self.assertEqual([(h["live_at_start"], h["bytes"]) for h in device["holders"]], [(True, 100 * MIB)])
        text = self.run_step("x.pickle").stdout
        self.assertIn("The peak: 100.0 MiB live before the first event", text)
        self.assertIn("live before the recording", text)

    def test_places(self):
        """The frame of the program or its framework, with a whole name."""
        torch, cxx = "/env/lib/python3.11/site-packages/torch/", frame("torch::unwind::unwind()", "??", 0)
        name = "a_function_with_a_name_that_is_much_longer_than_a_column_of_a_table"
        cases = [
            ([cxx, frame("linear", torch + "nn/functional.py", 5), frame("forward", "/home/model.py", 7)], "model.py:7 forward"),
            ([cxx, frame("<module>", "/home/train.py", 12)], "train.py:12 "),
            ([frame(name, f"/home/{name}.py", 7)], f"{name}.py:7 {name}"),
            ([frame("linear", torch + "nn/functional.py", 5), frame("run", "/env/lib/python3.11/threading.py", 3),
              frame("forward", "/env/lib/python3.11/site-packages/transformers/models/llama/modeling_llama.py", 9)],
             "modeling_llama.py:9 forward"),
            ([frame("__torch_function__", torch + "utils/_device.py", 5), frame("convert", torch + "nn/modules/module.py", 9)],
             "module.py:9 convert"),
            ([cxx, frame("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0),
              frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "Functions.cpp", 0),
              frame("torch::autograd::Engine::thread_main(std::shared_ptr<Task> const&)", "??", 0)],
             "torch::autograd::generated::MmBackward0::apply "),
            ([cxx, frame("at::_ops::mm::call(at::Tensor const&)", "??", 0)], "at::_ops::mm::call "),
            ([cxx], "without frames"),
        ]
        for frames, place in cases:
            recording = Recording()
            recording.alloc(MIB, frames=frames)
            text = self.report(recording)
            self.assertIn("\n" + place, text)
            self.assertNotIn("unwind", text)
            self.assertNotIn("<module>", text)

    def test_groups(self):
        """Modules and phases that the recording names; the kinds that it names, and those that live ranges tell."""
        r = Recording()
        def alloc(size, module, phase, kind="", inner=()):
            address = r.alloc(size * MIB, frames=[frame("aten::mm", f"{module} ({phase})" if module and phase else module or phase, 0),
                                                  *inner, frame("train", "/home/train.py", 3)])
            r.events[-1]["user_metadata"] = kind
            return address
        alloc(10, "", "", inner=[frame("__init__", "/home/model.py", 5)])
        alloc(3, "", "", "kind=parameters")
        saved = [alloc(7, f"model.layers.{i}.mlp", "forward") for i in range(12)]
        gathered = alloc(5, "model", "forward", inner=[frame("all_gather", "/home/comm.py", 5)])
        workspace = alloc(2, "model", "forward", "kind=workspace")
        gradient = alloc(11, "model.norm", "backward")
        r.free(alloc(1, "model.norm", "backward"))
        state = alloc(20, "", "optimizer")
        r.free(alloc(1, "", "optimizer"))
        alloc(4, "model", "forward")
        device = self.device(r.snapshot())
        self.assertEqual(self.groups(device, "kinds"),
                         {"parameters": 13 * MIB, "activations": 88 * MIB, "communication": 5 * MIB, "workspace": 2 * MIB,
                          "gradients": 11 * MIB, "optimizer state": 20 * MIB})
        self.assertEqual(self.groups(device, "modules")["model.layers.*.mlp"], 84 * MIB)
        self.assertEqual(self.groups(device, "phases"),
                         {"setup": 10 * MIB, "forward": 98 * MIB, "backward": 11 * MIB, "optimizer": 20 * MIB})
        for grouping, name in (("kind", "optimizer state"), ("module", "model.layers.*.mlp"), ("phase", "backward")):
            text = self.report(r, "--by", grouping)
            self.assertRegex(text, rf"(?m)^{grouping.upper()} +ALLOCATIONS")
            self.assertRegex(text, rf"(?m)^{re.escape(name)} ")
        self.assertRegex(self.report(r), r"(?m)^train.py:3 train +model.layers.\*.mlp +forward +12 84.00 MiB")
        self.assertEqual(len({*saved, gathered, workspace, gradient, state}), 16)

    def test_phases_of_frames(self):
        """Those of PyTorch: checkpointing, autograd's thread, optimizers of several projects."""
        torch = "/env/site-packages/torch/"
        forward = frame("forward", "/home/model.py", 4)
        engine = frame("_engine_run_backward", torch + "autograd/graph.py", 4)
        cases = [
            ([forward, frame("train", "/home/train.py", 3)], "forward"),
            ([forward, frame("recompute_fn", torch + "utils/checkpoint.py", 5), engine], "recompute"),
            ([forward, frame("backward", "/home/megatron/core/tensor_parallel/random.py", 5)], "recompute"),
            ([engine, frame("backward", torch + "utils/checkpoint.py", 5), engine], "backward"),
            ([frame("backward", "/home/function.py", 4)], "backward"),
            ([], "backward"),
            ([frame("step", "/env/apex/optimizers/fused_adam.py", 4)], "optimizer"),
            ([frame("clip_grad_norm_", torch + "nn/utils/clip_grad.py", 4)], "optimizer"),
            ([frame("__init__", torch + "nn/modules/linear.py", 4), frame("build", "/home/optimal.py", 3)], "setup"),
            ([frame("__init__", "/home/cache.py", 4), forward], "forward"),
        ]
        for frames, phase in cases:
            recording = Recording()
            recording.free(recording.alloc(512, frames=[forward]))
            recording.alloc(MIB, frames=frames)
            self.assertEqual(self.groups(self.device(recording.snapshot()), "phases"), {phase: MIB}, frames)
        silent = Recording() # no frames at all: nothing is known
        silent.alloc(MIB, frames=[])
        device = self.device(silent.snapshot())
        self.assertEqual((self.groups(device, "phases"), self.groups(device, "kinds")), ({"unknown": MIB}, {"unknown": MIB}))

    def test_devices_and_files(self):
        models = [Model(seed) for seed in range(2)]
        for model in models:
            for _ in range(3):
                model.step()
        both = models[0].rec.snapshot()
        both["device_traces"] = [models[0].rec.events, [], models[1].rec.events]
        self.write(both, "both.pickle")
        self.write(models[1].rec.snapshot(), "one.pickle")
        result = self.run_step("both.pickle", "one.pickle")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([line.split()[:2] for line in result.stdout.splitlines()[1:]],
                         [["both.pickle", "cuda:0"], ["both.pickle", "cuda:2"], ["one.pickle", "cuda:0"]])
        self.refused(self.run_step("both.pickle", "-o", "plan.json"), 2, "requires one device of one file, got 2")

    def test_file_without_events(self):
        """The others are answered; exit code 2 says that one is not."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        self.write(good, "good.pickle")
        self.write({**good, "device_traces": [[]]}, "empty.pickle")
        self.write({"segments": []}, "other.pickle")
        alone = self.run_step("good.pickle")
        self.assertEqual(alone.returncode, 0, alone.stderr)
        for files in (("empty.pickle", "good.pickle"), ("good.pickle", "gone.pickle"), ("other.pickle", "good.pickle")):
            result = self.run_step(*files)
            self.assertEqual((result.returncode, result.stdout), (2, alone.stdout))
            (bad,) = set(files) - {"good.pickle"}
            self.assertRegex(result.stderr, rf"^bucketpool: {bad}: .*\n$")
        result = self.run_step("empty.pickle", "good.pickle", "other.pickle", "good.pickle", "--json")
        self.assertEqual((result.returncode, len(json.loads(result.stdout)["devices"])), (2, 2))
        self.assertEqual(len(result.stderr.splitlines()), 2)
        self.assertEqual(self.run_step("empty.pickle", "other.pickle").stdout, "")
        result = self.run_step("good.pickle", "empty.pickle", "-o", "plan.json")
        self.assertEqual(result.returncode, 2)
        self.assertIn("requires one device of one file, got 2", result.stderr)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "plan.json")))

    def test_device_without_events(self):
        """PyTorch writes the moment of the snapshot for each device."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = model.rec.snapshot()
        good["device_traces"].append([{"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "time_us": 9, "frames": []}])
        self.assertEqual(self.device(good)["device"], 0)

    def test_other_files(self):
        """Files of other tools are named, in `step` and in `view`."""
        model = Model(4)
        for _ in range(3):
            model.step()
        good = pickle.dumps(model.rec.snapshot(), 4)
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("archive/data.pkl", good)
        with tarfile.open(os.path.join(self.folder, "x.tar"), "w") as file:
            file.add(TOOL, "x")
        with open(os.path.join(self.folder, "x.tar"), "rb") as file:
            tar = file.read(2048)
        database = sqlite3.connect(os.path.join(self.folder, "x.db"))
        database.execute("create table kernels (name text)")
        database.commit()
        database.close()
        with open(os.path.join(self.folder, "x.db"), "rb") as file:
            nsight = file.read()
        for name, data, words in (
            ("x.pickle.gz", gzip.compress(good), "x.pickle.gz: compressed with gzip; gunzip it first"),
            ("x.pickle", lzma.compress(good), "compressed with xz"),
            ("x.pickle", bz2.compress(good), "compressed with bzip2"),
            ("x.pickle", b"\x28\xb5\x2f\xfd" + good, "compressed with zstd"),
            ("x.pt", archive.getvalue(), "a zip archive"),
            ("x.tar", tar, "a tar archive"),
            ("x.sqlite", nsight, "an SQLite database"),
            ("x.nsys-rep", b"\x01\x02\x03binary", "a report of Nsight Systems"),
            ("x.json", b'{\n  "schemaVersion": 1,\n  "traceEvents": []}', "a Chrome trace"),
            ("x.json", b'[{"ph": "X", "ts": 1, "name": "gemm"}]', "a Chrome trace"),
            ("x.json", b'{"format": "bucketpool.plan/1", "slabs": []}', "a plan (bucketpool.plan/1)"),
            ("x.json", b'{"name": "something else"}', "a JSON document"),
            ("x.html", b"\n<!DOCTYPE html>\n<html></html>", "a page"),
            ("x.npy", b"\x93NUMPY\x01\x00", "an array of NumPy"),
        ):
            with open(os.path.join(self.folder, name), "wb") as file:
                file.write(data)
            for command in ("step", "view"):
                result = subprocess.run([TOOL, command, name], capture_output=True, text=True, cwd=self.folder, check=False)
                self.refused(result, 2, f"{name}: ", words)

    def test_snapshot_of_pools(self):
        with open(os.path.join(self.folder, "pools.pickle"), "wb") as file:
            pickle.dump(snapshots.ours(), file, 2)
        self.refused(self.run_step("pools.pickle"), 2, "a snapshot of bucketpool's pools; use `bucketpool view`")

    def test_directory(self):
        model = Model(4)
        for _ in range(3):
            model.step()
        os.makedirs(os.path.join(self.folder, "d/rank"))
        self.refused(self.run_step("d"), 2, "d: a directory without snapshots, but with directories (rank)")
        self.refused(self.run_step("d/rank"), 2, "d/rank: an empty directory")
        for name in ("b.pickle", "a.pickle"):
            self.write(model.rec.snapshot(), f"d/{name}")
        both = self.run_step("d/a.pickle", "d/b.pickle")
        result = self.run_step("d/")
        self.assertEqual((result.returncode, result.stdout), (0, both.stdout))
        with open(os.path.join(self.folder, "d/notes.txt"), "w", encoding="utf-8") as file:
            file.write("x")
        self.refused(self.run_step("d"), 2, "d: a directory with snapshots (a.pickle, b.pickle) and other files (notes.txt)")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
