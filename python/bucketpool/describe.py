# SPDX-License-Identifier: Apache-2.0
"""units.json of models that bucketpool does not know: any model of transformers, or any torch module.

    from bucketpool import describe

    document = describe.describe("config.json")        # or a class: "transformers.MambaForCausalLM"
    document = describe.units_of(my_module, "mine")    # any torch module, on any device

At a prompt: python3 -m bucketpool describe config.json -o units.json

Models are built on PyTorch's meta device, without memory. Units are the modules of repeated layer lists, as in FSDP
wrap policies. torch and transformers are imported when a function needs them.
"""

import argparse
import copy
import fcntl
import importlib
import json
import os
import re
import secrets
import stat
import sys
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from .errors import Error, FileError, FormatError, InvalidArgument, Unsupported

__all__ = ["describe", "main", "numel_of", "units_of"]

# For a configuration that names no class: the first of these that knows its model type.
AUTO_CLASSES = (
    "AutoModelForImageTextToText",
    "AutoModelForMultimodalLM",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSpeechSeq2Seq",
    "AutoModelForImageClassification",
    "AutoModel",
)
ENCODER_DECODERS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq", "AutoModel")
DTYPES = ("bf16", "fp16", "fp32", "fp8_e4m3")
_TORCH_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}

# ---- models --------------------------------------------------------------------------------------------------------


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise Unsupported(f"describe needs {name}: {error}; pip install torch transformers") from error


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


_DESCRIPTORS = ("/dev/stdin", "/dev/stdout", "/dev/fd/", "/proc/self/fd/")


def _open_input(path: str, flags: int) -> int:
    """Opens regular files and descriptors of this process only, because others could block or never end."""
    if not path.startswith(_DESCRIPTORS) and not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(0, "not a regular file")
    return os.open(path, flags)


def _read(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8", opener=_open_input) as file:
            values = json.load(file)
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from error
    if not isinstance(values, dict) or not isinstance(values.get("model_type"), str):
        raise FormatError(f'{path}: no "model_type"; pass a config.json of transformers or the path of a class')
    return values


def _of_config(path: str) -> Tuple[Any, Optional[str]]:
    """The model of a config.json, and its dtype there."""
    values = _read(path)
    torch, transformers = _imported("torch"), _imported("transformers")
    dtype = next((values[key] for key in ("torch_dtype", "dtype") if isinstance(values.get(key), str)), None)
    if dtype is None and isinstance(values.get("text_config"), dict):
        dtype = next((values["text_config"][key] for key in ("torch_dtype", "dtype")
                      if isinstance(values["text_config"].get(key), str)), None)
    values = {
        key: value for key, value in copy.deepcopy(values).items() if key not in ("quantization_config", "auto_map")
    }
    kind = values.pop("model_type")
    architectures = values.get("architectures") or []
    try:
        config = transformers.AutoConfig.for_model(kind, **values)
    except Exception as error:  # transformers raises many classes, for unknown types and refused fields
        raise Unsupported(
            f'{path}: transformers {transformers.__version__} has no configuration of model_type "{kind}": '
            f'{_first_line(error)[:90]}'
        ) from error
    named = [getattr(transformers, str(name), None) for name in architectures]
    wanted = ENCODER_DECODERS if getattr(config, "is_encoder_decoder", False) else AUTO_CLASSES
    autos = [getattr(transformers, name) for name in wanted if hasattr(transformers, name)]
    with torch.device("meta"):
        for cls in named:
            if cls is not None and getattr(cls, "config_class", None) is type(config):
                return _made(lambda: cls(config), path), dtype
        for auto in autos:
            if type(config) in auto._model_mapping:
                return _made(lambda: auto.from_config(config), path), dtype
    raise Unsupported(f'{path}: transformers {transformers.__version__} has no model of model_type "{kind}"')


def _of_class(path: str) -> Any:
    """An object of the class "package.module.Class", with its default configuration if it has one."""
    torch = _imported("torch")
    module, _, name = path.replace(":", ".").rpartition(".")
    cls = getattr(_imported(module), name, None) if module else None
    if not isinstance(cls, type) or not issubclass(cls, torch.nn.Module):
        raise InvalidArgument(f'"{path}" is neither a file nor a class of torch modules; pass a config.json or a path '
                              'such as transformers.BertModel')
    config = getattr(cls, "config_class", None)
    with torch.device("meta"):
        return _made((lambda: cls(config())) if config is not None else cls, path)


def _made(make: Any, path: str) -> Any:
    try:
        return make()
    except Exception as error:  # constructors of other packages raise anything
        raise Unsupported(f"{path}: the model cannot be built on the meta device: {_first_line(error)}") from error


# ---- units ---------------------------------------------------------------------------------------------------------


def _lists(module: Any, nn: Any, prefix: str = "") -> Iterator[Tuple[str, Any]]:
    """The outermost lists of layers: two or more modules with submodules. Lists of experts or of plain
    projections are skipped, and layers are not searched for further lists.
    """
    for name, child in module.named_children():
        path = prefix + name
        members = list(child.children()) if isinstance(child, (nn.ModuleList, nn.Sequential)) else []
        layers = [m for m in members if any(True for _ in m.children()) and any(True for _ in m.parameters())]
        kinds = {type(m) for m in members}
        alike = len(kinds) == 1 or (isinstance(child, nn.ModuleList) and len(kinds) < len(members))
        if len(members) >= 2 and len(layers) == len(members) and alike and "expert" not in name:
            yield path, child
        else:
            yield from _lists(child, nn, path + ".")


def _expert_lists(unit: Any, nn: Any) -> Set[str]:
    """Paths of lists of modules of one class whose name ends in "experts"."""
    return {path for path, module in unit.named_modules() if isinstance(module, nn.ModuleList)
            and path.rpartition(".")[2].endswith("experts") and len({type(m) for m in module}) == 1}


def _entries(
    module: Any, parameters: List[Tuple[str, Any]], prefix: str, dtype: str, in_unit: bool, nn: Any
) -> List[Dict[str, Any]]:
    """Parameters as entries of units.json. A matrix of all experts in a list is one entry with copies."""
    experts = _expert_lists(module, nn) if in_unit else set()
    linear = {path + ".weight" for path, m in module.named_modules() if isinstance(m, nn.Linear)}
    entries: Dict[str, Dict[str, Any]] = {}
    shapes: Dict[str, Set[Tuple[Any, ...]]] = {}
    plain: List[Tuple[str, Any, str]] = []
    for name, parameter in parameters:
        family = name
        for path in experts:
            inner = re.match(re.escape(path) + r"\.\d+\.", name)
            if inner:
                family = f"{path}.*.{name[inner.end():]}"
        plain.append((name, parameter, family))
        shapes.setdefault(family, set()).add((tuple(parameter.shape), parameter.requires_grad))
    for name, parameter, family in plain:
        key = family if len(shapes[family]) == 1 else name
        if key in entries:
            entries[key]["copies"] += 1
            continue
        entry: Dict[str, Any] = {"name": prefix + key, "shape": list(parameter.shape), "dtype": dtype}
        if key != name:
            entry.update(copies=1, experts=True)
        elif in_unit and re.search(r"(^|\.)experts\.", name) and parameter.dim() == 3:
            entry["expert_dim"] = 0
        if in_unit and (name in linear or "expert_dim" in entry):
            entry["gemm"] = True
        if not parameter.requires_grad:
            entry["frozen"] = True
        entries[key] = entry
    return [
        {**entry, "name": entry["name"].replace("*", "0")} if entry.get("copies") == 1 else entry
        for entry in entries.values()
    ]


def units_of(model: Any, name: str, dtype: str = "bf16") -> Dict[str, Any]:
    """The units.json document (bucketpool.units/1) of a torch module on any device.

    name, dtype: of the model and of all parameters. Tied parameters belong to the first unit that has them.
    """
    nn = _imported("torch").nn
    layers = [(f"{path}.{i}", layer) for path, members in _lists(model, nn) for i, layer in enumerate(members)]
    seen: Set[int] = set()
    units: List[Dict[str, Any]] = []
    in_units = {id(p) for _, layer in layers for p in layer.parameters()}
    outside = [(n, p) for n, p in model.named_parameters() if id(p) not in in_units]
    for path, layer in layers:
        own = [(n, p) for n, p in layer.named_parameters() if id(p) not in seen]
        seen.update(id(p) for _, p in own)
        if own:
            units.append({"name": path, "parameters": _entries(layer, own, path + ".", dtype, True, nn)})
    document: Dict[str, Any] = {"format": "bucketpool.units/1", "model": name, "units": units}
    if outside:
        document["outside"] = {"parameters": _entries(model, outside, "", dtype, False, nn)}
    return document


def numel_of(document: Dict[str, Any]) -> int:
    """Elements of all parameters of a document."""
    total = 0
    for unit in [*document["units"], document.get("outside", {"parameters": []})]:
        for entry in unit["parameters"]:
            count = entry.get("copies", 1)
            for size in entry["shape"]:
                count *= size
            total += count
    return total


def describe(model: str, dtype: Optional[str] = None) -> Dict[str, Any]:
    """The units.json document of a model of transformers.

    - model: a config.json, a folder with one, or the path of a class such as "transformers.BertModel"
    - dtype: of all parameters; None: that of the configuration, else bf16

    Raises FileError, FormatError, InvalidArgument, Unsupported (torch or transformers is missing, or does not know
    the model).
    """
    path = os.path.join(model, "config.json") if os.path.isdir(model) else model
    if os.path.exists(path) or path.endswith(".json") or os.sep in path:
        built, written = _of_config(path)
        folder = os.path.basename(os.path.dirname(os.path.abspath(path)))
        name = folder if os.path.basename(path) == "config.json" else os.path.splitext(os.path.basename(path))[0]
    else:
        built, written = _of_class(path), None
        name = path.replace(":", ".").rpartition(".")[2]
    if hasattr(built, "tie_weights"):
        built.tie_weights()
    return units_of(built, name, dtype or _TORCH_DTYPES.get(written or "", "bf16"))


# ---- command -------------------------------------------------------------------------------------------------------


def _write(path: str, text: str) -> None:
    """Writes a file atomically, by the rules of src/core/files.c, which also removes staging files of killed writers
    by their name. Raises OSError.
    """
    target = os.path.realpath(path)
    if os.path.islink(path) and not os.path.exists(path):
        raise OSError(0, f"a symbolic link to {target}, which does not exist; create that file or remove the link")
    if path.startswith(_DESCRIPTORS) or (os.path.exists(path) and not os.path.isfile(path)):
        with open(path, "a" if path.startswith(_DESCRIPTORS) else "w", encoding="utf-8") as file:
            file.write(text)
        return
    mode = stat.S_IMODE(os.stat(target).st_mode) & 0o777 if os.path.exists(target) else None
    if mode is not None and not os.access(target, os.W_OK):
        raise OSError(0, "Permission denied")
    staged = os.path.join(os.path.dirname(target), f".bucketpool-{secrets.token_hex(8)}")
    with open(
        staged, "x", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o666 if mode is None else 0o600)
    ) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(text)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
            os.replace(staged, target)
        except BaseException:
            os.unlink(staged)
            raise


def main(arguments: List[str]) -> int:
    """Runs `python3 -m bucketpool describe` with these arguments. Returns an exit status: 0, 2 or 3."""
    parser = argparse.ArgumentParser(
        prog="python3 -m bucketpool describe",
        description=(
            "Writes a model of transformers as units.json, "
            "for `bucketpool plan`. The model is built on the meta device; layer lists become "
            "units."
        ),
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a config.json, a folder with one, or the path of a class (transformers.BertModel)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="output file (default: standard output)")
    parser.add_argument(
        "--dtype", choices=DTYPES, help="dtype of all parameters (default: that of the configuration, else bf16)"
    )
    options = parser.parse_args(arguments)
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        document = describe(options.model, options.dtype)
    except Error as error:
        print(f"python3 -m bucketpool describe: {error}", file=sys.stderr)
        return 3 if isinstance(error, Unsupported) else 2
    shapes = re.compile(r"\[([\d,\s]+)\]")  # put on one line each
    text = (
        shapes.sub(lambda m: "[" + ", ".join(m[1].replace(",", " ").split()) + "]", json.dumps(document, indent=1))
        + "\n"
    )
    try:
        if options.output is None:
            sys.stdout.write(text)
        else:
            _write(options.output, text)
    except OSError as error:
        print(f"python3 -m bucketpool describe: {options.output}: {error.strerror}", file=sys.stderr)
        return 2
    kept = sum(len(entry["parameters"]) for entry in [document.get("outside", {"parameters": []})])
    print(
        f"{document['model']}: {numel_of(document)} parameters in {len(document['units'])} units, {kept} tensors"
        " outside",
        file=sys.stderr,
    )
    return 0
