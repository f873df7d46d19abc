#!/usr/bin/env python3
"""dump.py config.json  ->  TSV: name<TAB>shape<TAB>param|buffer   (meta device, nothing allocated)
Totals go to stderr: tensors, numel, buffer tensors, buffer numel, tied aliases."""
import sys, json, os, warnings
warnings.filterwarnings("ignore")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch, transformers
from transformers import AutoConfig, AutoModelForCausalLM
TEXT = {"gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        "gemma3_text": ("Gemma3TextConfig", "Gemma3ForCausalLM"),
        "llama4": ("Llama4TextConfig", "Llama4ForCausalLM"),
        "llama4_text": ("Llama4TextConfig", "Llama4ForCausalLM")}
def load(path):
    d = json.load(open(path))
    for k in ("quantization_config", "auto_map"):
        d.pop(k, None)
    mt = d["model_type"]
    if mt in TEXT:
        cfgc, mc = (getattr(transformers, n) for n in TEXT[mt])
        if "text_config" in d:
            t = dict(d["text_config"])
            t.pop("quantization_config", None)
        else:
            t = d
        cfg = cfgc(**{k: v for k, v in t.items() if k != "model_type"})
        return cfg, mc
    d.pop("model_type")
    cfg = AutoConfig.for_model(mt, **d)
    return cfg, None
def build(path):
    cfg, mc = load(path)
    with torch.device("meta"):
        m = mc(cfg) if mc else AutoModelForCausalLM.from_config(cfg)
    m.tie_weights()
    return cfg, m
def main(path, out=sys.stdout):
    cfg, m = build(path)
    n = tot = bn = bt = 0
    seen = set(); rows = []
    for name, p in m.named_parameters(remove_duplicate=True):
        rows.append((name, p, "param")); n += 1; tot += p.numel()
    pers = set(m.state_dict().keys())
    for name, b in m.named_buffers():
        if name in pers:
            rows.append((name, b, "buffer")); bn += 1; bt += b.numel()
    have = {r[0] for r in rows}
    alias = sorted(pers - have)
    for name, t, k in rows:
        out.write("%s\t%s\t%s\n" % (name, "x".join(map(str, t.shape)) or "scalar", k))
    return dict(tensors=n, numel=tot, buffers=bn, bufnumel=bt, alias=alias, cls=type(m).__name__)
def publish_nemotron(text):
    """native transformers-5 names (model., fused 3-D experts) -> publisher's checkpoint names (backbone., one 2-D matrix per expert)"""
    o = []; n = 0
    for l in text.splitlines():
        name, shape, kind = l.split("\t")
        if name.startswith("model."): name = "backbone." + name[6:]
        if name.endswith((".experts.up_proj", ".experts.down_proj")):
            e, sh = shape.split("x", 1); base, p = name.rsplit(".", 1)
            for i in range(int(e)): o.append(f"{base}.{i}.{p}.weight\t{sh}\t{kind}"); n += 1
        else:
            o.append(f"{name}\t{shape}\t{kind}"); n += kind == "param"
    return "\n".join(o) + "\n", n
if __name__ == "__main__":
    r = main(sys.argv[1])
    print("transformers %s %s params: %d tensors, %d numel; persistent buffers: %d, %d numel; tied aliases: %s" % (
        transformers.__version__, r["cls"], r["tensors"], r["numel"], r["buffers"], r["bufnumel"], ",".join(r["alias"]) or "-"), file=sys.stderr)
