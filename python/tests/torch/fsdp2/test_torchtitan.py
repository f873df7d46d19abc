# SPDX-License-Identifier: Apache-2.0
"""torchtitan's debug model on two ranks (gloo), without and with the flag of bucketpool.torch.titan: the same bits.

Runs with torchtitan 0.2.2 (PyTorch 2.11) and 0.3.0 (2.15). Not installed by ./check --torch, because its packages take
400 MB, with 0.3 1 GB.
"""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("torchtitan", reason="torchtitan is not installed")

import fsdp2_models  # noqa: E402
import process_group  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))


def write_assets(folder):
    """A tokenizer of bytes, and data of the form of torchtitan's c4_test."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*letters, "<eos>", "<bos>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>", "eos_token": "<eos>"}))
    (folder / "data").mkdir()
    lines = [{"text": " ".join(str(i * k * 7919 % 1009) for k in range(60)), "timestamp": "", "url": ""}
             for i in range(100)]
    (folder / "data" / "data.json").write_text("\n".join(map(json.dumps, lines)))


def run(folder, *flags):
    """The answers of both ranks, with these flags."""
    program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               os.path.join(HERE, "titan_train.py"), str(folder), *flags]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def has_overrides():
    try:
        import torchtitan.config.override  # noqa: F401
    except ImportError:
        return False
    return True


FLAG, LARGER = ((["--override.imports", "bucketpool.torch.titan.pool"],
                 ["--override.imports", 'bucketpool.torch.titan.pool={"policy": "max"}']) if has_overrides() else
                (["--job.custom_config_module", "bucketpool.torch.titan"],
                 ["--job.custom_config_module=bucketpool.torch.titan", "--bucketpool.policy", "max"]))


def test_same_bits(tmp_path):
    write_assets(tmp_path)
    for plain, pooled, larger in zip(run(tmp_path), run(tmp_path, *FLAG), run(tmp_path, *LARGER)):
        assert plain["pools"] == [] and len({tuple(step) for step in plain["steps"]}) == 3
        for answers, policy in ((pooled, "scheduled"), (larger, "max")):
            assert answers["steps"] == plain["steps"] and answers["weights"] == plain["weights"]
            only, = answers["pools"]
            assert only["policy"] == policy and only["live"] == []
            assert min(only["served"].values()) > 20 and only["plain"] <= 1 >= only["replans"], only
        scheduled = pooled["pools"][0]
        print(f"scheduled {scheduled}, max {larger['pools'][0]['bytes']} bytes")
        assert scheduled["bytes"] == scheduled["bound"] < larger["pools"][0]["bytes"]


def recorded():
    from bucketpool.torch import titan

    plain, model = fsdp2_models.train(fsdp2_models.build("sizes"), 3), fsdp2_models.build("sizes")
    parts, local = titan._Parts({"on_mismatch": "error"}), next(model.layers[0].parameters())._local_tensor
    type(local).fsdp_pre_all_gather = None  # a prediction sees an extension of unknown size
    try:
        parts.begin([model, fsdp2_models.Block(48)])
    finally:
        del type(local).fsdp_pre_all_gather
    before = len(titan.attached)

    def step(model, number):
        seen = fsdp2_models.plain_step(model, number)
        parts.stepped()
        return seen

    same = fsdp2_models.same(plain, fsdp2_models.train(model, 3, step))
    attached, = titan.attached
    attached.detach()
    return before, same, attached.served


def test_recorded_where_sizes_are_unknown():
    for before, same, served in process_group.run(recorded):
        assert before == 0 and same and min(served.values()) > 0, served
