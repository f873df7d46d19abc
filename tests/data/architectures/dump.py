#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parameters that transformers makes of configurations, on PyTorch's meta device.

dump.py CONFIG            prints the lines name<TAB>shape of digests.tsv
dump.py --digest CONFIG.. prints a line of digests.tsv for each

Names are those of published checkpoints: transformers' own conversion, run backwards. Of a multimodal configuration it
is the text part.
"""
import copy
import glob
import hashlib
import json
import os
import re
import sys
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers.core_model_loading import revert_weight_conversion

# Classes of types that are not trained as causal language models.
CLASSES = {"bert": "AutoModelForMaskedLM", "whisper": "AutoModelForSpeechSeq2Seq", "t5": "AutoModelForSeq2SeqLM",
           "vit": "AutoModelForImageClassification"}
# Wrappers whose towers need a package beside transformers: their text part alone is built.
TEXT_ONLY = ("gemma3n",)
# Types that transformers plans with the code of another.
ALIASES = {"kimi_k2": "deepseek_v3", "mimo": "qwen2"}
# Types whose publishers' code has the router's correction bias as a parameter; transformers has a buffer.
BIASED = ("deepseek_v3", "kimi_k2")
OTHER_PARTS = re.compile(r"^(model\.)?(visual|vision|multi_modal|audio|embed_vision|embed_audio|connector|patch_merge_mlp|vit_large)")


def text_types():
    """The configurations of this folder by type: their paths. Without wrappers, which have other parts beside the text."""
    chosen = {}
    for path in sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "*.json"))):
        values = read(path)
        if "text_config" not in values and "vision_config" not in values:
            chosen.setdefault(values["model_type"], []).append(path)
    return sorted(chosen.items())


def build(values):
    """The model of a configuration (a dict), without memory."""
    values = {k: v for k, v in copy.deepcopy(values).items() if k not in ("quantization_config", "auto_map")}
    kind = values.pop("model_type")
    kind = ALIASES.get(kind, kind)
    config = transformers.AutoConfig.for_model(kind, **values)
    if kind in TEXT_ONLY:
        config = config.get_text_config()
    autos = [CLASSES[kind]] if kind in CLASSES else ["AutoModelForImageTextToText", "AutoModelForCausalLM", "AutoModel"]
    for auto in (getattr(transformers, name) for name in autos):
        if type(config) in auto._model_mapping:
            with torch.device("meta"):
                model = auto.from_config(config)
            model.tie_weights()
            return model
    raise ValueError(f"transformers {transformers.__version__} has no model of type {kind}")


def parameters(values):
    """{name: shape} of the text part, tied parameters once."""
    model = build(values)
    own = dict(model.named_parameters(remove_duplicate=True))
    if values["model_type"] in BIASED:
        own.update((name, buffer) for name, buffer in model.named_buffers()
                   if name.endswith(".e_score_correction_bias"))
    own = revert_weight_conversion(model, own)
    shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
    if not any(name.endswith("_config") and isinstance(value, dict) for name, value in values.items()):
        return shapes
    text = {name: shape for name, shape in shapes.items() if not OTHER_PARTS.match(name)}
    renamed = ((re.sub(r"^(model\.language_model|language_model\.model)\.", "model.", name), shape)
               for name, shape in text.items())
    return {re.sub(r"^language_model\.lm_head", "lm_head", name): shape for name, shape in renamed}


def lines(shapes):
    return sorted(f"{name}\t{'x'.join(map(str, shape)) or 'scalar'}\n" for name, shape in shapes.items())


def numel(shapes):
    total = 0
    for shape in shapes.values():
        product = 1
        for size in shape:
            product *= size
        total += product
    return total


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main(arguments):
    if arguments[:1] != ["--digest"]:
        sys.stdout.writelines(lines(parameters(read(arguments[0]))))
        return
    for path in arguments[1:]:
        shapes = parameters(read(path))
        text = "".join(lines(shapes))
        print(path, len(shapes), numel(shapes), hashlib.sha256(text.encode()).hexdigest(), sep="\t", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
