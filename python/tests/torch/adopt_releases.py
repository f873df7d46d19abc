"""Calls of released functions and of their replacements, in a separate process (process_group.py).

BUCKETPOOL_RELEASES is a folder with the packages, without what they need. Where a package's __init__ imports too much,
the package is a folder of modules (bare), and packages that are not installed and that the functions do not use are
empty (absent). The functions run are those of the release, from its files.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

import torch
import torch.distributed as dist

RELEASES = os.environ.get("BUCKETPOOL_RELEASES", os.path.join(sys.prefix, "releases"))


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Modules of packages that are not installed: each name in them is a class."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        if any(fullname == name or fullname.startswith(name + ".") for name in self.names):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        def named(name):
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__class_getitem__": classmethod(lambda cls, key: cls)})

        module = types.ModuleType(spec.name)
        module.__getattr__ = named
        return module

    def exec_module(self, module):
        pass


def release(bare=(), absent=()):
    """Makes the released packages importable in this process."""
    sys.path.append(RELEASES)
    missing = [name for name in absent if "." in name or importlib.util.find_spec(name) is None]
    sys.meta_path.insert(0, Absent(missing))
    for name in bare:
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(RELEASES, *name.split("."))]
        assert os.path.isdir(module.__path__[0]), f"the release has no folder {name}"
        sys.modules[name] = module
    torch.manual_seed(5 + (dist.get_rank() if dist.is_initialized() else 0))
    torch.compiler.set_stance("force_eager")  # originals compile themselves


def trl():
    release(absent=("pandas", "datasets", "pyarrow"))
    return importlib.import_module("trl.trainer.utils")


def skyrl():
    chain = ("skyrl", "skyrl.backends", "skyrl.backends.skyrl_train", "skyrl.backends.skyrl_train.utils",
             "skyrl.backends.skyrl_train.distributed", "skyrl.backends.skyrl_train.distributed.megatron")
    release(bare=chain, absent=("jaxtyping", ))
    return importlib.import_module(chain[3] + ".torch_utils"), importlib.import_module(chain[5] + ".model_utils")


def areal():
    release(bare=("areal", "areal.utils"), absent=("areal.infra", "areal.api", "areal.utils.data"))
    importlib.import_module("areal.infra.platforms").is_npu_available = False
    return importlib.import_module("areal.utils.functional")


def verl():
    release(bare=("verl", "verl.utils", "verl.utils.megatron"), absent=("tensordict", "ray"))
    return (importlib.import_module("verl.utils.torch_functional"),
            importlib.import_module("verl.utils.megatron.tensor_parallel"))


# ---- comparisons -----------------------------------------------------------------------------------------------------

FLOATS = torch.float32, torch.bfloat16, torch.float16
TOLERANCE = {torch.float32: dict(atol=2e-5, rtol=1e-4), torch.bfloat16: dict(atol=2e-2, rtol=2e-2),
             torch.float16: dict(atol=3e-3, rtol=3e-3), torch.float64: dict(atol=0, rtol=0)}


def called(function, arguments, keywords, leaves):
    """Outputs of a call, and gradients of the arguments at `leaves` with fixed upstream gradients; or the exception."""
    made = {i: arguments[i].detach().clone().requires_grad_() for i in leaves}
    given = [made[i] * 1 if i in made else one for i, one in enumerate(arguments)]  # not a leaf: may be overwritten
    torch.manual_seed(11)
    try:
        outputs = function(*given, **keywords)
        outputs = [one for one in (outputs if isinstance(outputs, tuple) else (outputs, )) if one is not None]
        graded = [(one, torch.randn(one.shape).to(one.dtype)) for one in outputs if one.requires_grad]
        if graded:
            torch.autograd.backward(*zip(*graded))
    except Exception as error:
        return error, None
    return outputs, [leaf.grad for leaf in made.values()]


class Twice:
    """Runs the calls of a function first on originals, then on replacements, and compares: both fail, or have the same
    dtypes, outputs and gradients (for 16-bit logits, those of the original in fp64). Apart, because originals call each
    other.
    """

    def __init__(self, adopt, calls):
        self.wanted, self.adopted = [], None
        torch.manual_seed(3)
        calls(self)
        self.first = iter(self.wanted)
        with adopt() as self.adopted:
            torch.manual_seed(3)
            calls(self)
        assert next(self.first, None) is None

    def check(self, module, name, arguments, keywords=None, leaves=(0, ), ours=True):
        """ours: the replacement computes the call, or else the original does."""
        function = getattr(module, name)
        state = torch.get_rng_state()
        before = sum(self.adopted.passed_on.values()) if self.adopted else 0
        result = called(getattr(function, "apply", function), arguments, keywords or {}, leaves)
        torch.set_rng_state(state)
        if self.adopted is None:
            exact = None
            if arguments[0].dtype in FLOATS[1:]:  # the originals round in between
                doubles = [doubled(one) for one in arguments]
                exact = called(getattr(function, "apply", function), doubles, keywords or {}, leaves)
            torch.set_rng_state(state)
            self.wanted.append((result, exact if exact and exact[1] is not None else result))
            return
        what = f"{name}({', '.join(described(one) for one in arguments)}, {keywords})"
        assert (sum(self.adopted.passed_on.values()) > before) != ours, f"{what}:\n{self.adopted}"
        ((wanted, wanted_gradients), exact), (got, gradients) = next(self.first), result
        if isinstance(wanted, Exception) or isinstance(got, Exception):
            assert isinstance(wanted, Exception) and isinstance(got, Exception), f"{what}: {wanted!r}; adopted: {got!r}"
            return
        assert len(got) == len(wanted) and len(gradients) == len(wanted_gradients), what
        for one, other, value in zip([*got, *gradients], [*wanted, *wanted_gradients], [*exact[0], *exact[1]]):
            assert (one is None) == (other is None), what
            if one is not None:
                assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{what}: {one.dtype}, {other.dtype}"
                assert one.requires_grad == other.requires_grad, what
                tolerance = TOLERANCE[max(one.dtype, arguments[0].dtype, key=lambda dtype: -dtype.itemsize)]
                torch.testing.assert_close(one, value.to(one.dtype), **tolerance, equal_nan=True,
                                           msg=lambda text: f"{what}: {text}")


def doubled(argument):
    is_float = isinstance(argument, torch.Tensor) and argument.is_floating_point()
    return argument.double() if is_float else argument


def described(argument):
    return f"{argument.dtype} {list(argument.shape)}" if isinstance(argument, torch.Tensor) else repr(argument)


def inputs(shape=(3, 5), columns=37, dtype=torch.float32, k=None):
    logits = (torch.randn(*shape, columns) * 3).to(dtype)
    return logits, torch.randint(0, columns, shape if k is None else (*shape, k))
