# SPDX-License-Identifier: Apache-2.0
"""The surroundings of a peer's tests: our functions in the peer's modules, and stand-ins for what this machine lacks.

- An import hook replaces attributes of the peer's modules (replacements.py) as soon as a module has been executed.
- A package that the peer imports and that is not installed is a module of names that accept everything and do nothing.
- Without a GPU, tensors that tests ask for on "cuda" are on the CPU, and groups of NCCL are groups of gloo."""

import ast
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

class Anything:
    """A name of an absent package: called with one function it returns the function (a decorator), otherwise itself."""

    def __init__(self, name="anything"):
        self.__name__ = self.__qualname__ = name
        self.__module__ = "absent"

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")

    def __call__(self, *arguments, **keywords):
        alone = len(arguments) == 1 and not keywords and isinstance(arguments[0], (types.FunctionType, type))
        return arguments[0] if alone else self

    def __mro_entries__(self, bases):
        return (AbsentBase,) if next(base for base in bases if isinstance(base, Anything)) is self else ()

    def __instancecheck__(self, instance):
        return False

    def __getitem__(self, key):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        return None

    def __bool__(self):
        return False

    def __iter__(self):
        return iter(())


class AbsentBase:
    """Stands for absent base classes."""

    def __init__(self, *arguments, **keywords):
        pass

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(name)


class AbsentModule(types.ModuleType):
    __version__ = "0"
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(f"{self.__name__}.{name}")


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules of `replaced`, to change them after their execution."""

    def __init__(self, replaced):
        self.replaced, self.inner = replaced, {}

    def find_spec(self, fullname, path=None, target=None):
        if fullname not in self.replaced or fullname in self.inner:
            return None
        self.inner[fullname] = None  # the search below comes here again
        spec = importlib.util.find_spec(fullname)
        if spec is not None:
            self.inner[fullname] = spec.loader
            spec.loader = self
        return spec

    def create_module(self, spec):
        return self.inner[spec.name].create_module(spec)

    def exec_module(self, module):
        self.inner[module.__name__].exec_module(module)
        import torch
        if not torch.cuda.is_available():
            on_the_cpu()
        for name, made in self.replaced[module.__name__](vars(module)).items():
            if not hasattr(module, name):
                raise ImportError(f"{module.__name__} has no {name} any more; adapt python/tests/peers/replacements.py")
            setattr(module, name, made)


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last in the search: packages that a file of the copy imports, except where it handles their absence."""

    def __init__(self, copy):
        self.copy = os.path.join(os.path.realpath(copy), "")

    def find_spec(self, fullname, path=None, target=None):
        parent = fullname.rpartition(".")[0]
        if not (isinstance(sys.modules.get(parent), AbsentModule) if parent else self.needed()):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def needed(self):
        """Looks at the statement that imports: the nearest frame outside of the import system."""
        frame = sys._getframe(2)
        while frame and frame.f_code.co_filename.startswith(("<frozen importlib", importlib.__file__)):
            frame = frame.f_back
        file = os.path.realpath(frame.f_code.co_filename) if frame else ""
        return file.startswith(self.copy) and frame.f_lineno not in guarded_lines(file)

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


@functools.lru_cache(maxsize=None)
def guarded_lines(file):
    """Lines of imports inside try blocks with handlers."""
    with open(file, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    handled = [node for node in ast.walk(tree) if isinstance(node, ast.Try) and node.handlers]
    blocks = [statement for node in handled for statement in node.body]
    importing = (ast.Import, ast.ImportFrom, ast.Call)  # a call of importlib.import_module
    imports = [node for block in blocks for node in ast.walk(block) if isinstance(node, importing)]
    return {line for node in imports for line in range(node.lineno, node.end_lineno + 1)}


def on_the_cpu():
    """Tensors and groups for GPUs on the CPU. Once a process."""
    import torch
    import torch.distributed as dist
    from torch.overrides import TorchFunctionMode

    if getattr(torch.cuda, "on_the_cpu", None):
        return

    def moved(value, name=""):
        is_device = isinstance(value, (str, torch.device))
        is_device = is_device and str(value).split(":")[0] == "cuda" or name == "device" and type(value) is int
        return torch.device("cpu") if is_device else value

    class Moved(TorchFunctionMode):
        makes_devices = False  # "cuda" as a device object, which only its uses move

        def __torch_function__(self, function, kinds, arguments=(), keywords=None):
            keywords = {name: moved(value, name) for name, value in (keywords or {}).items()}
            if function in (torch.Tensor.cuda, torch.Tensor.pin_memory):
                return arguments[0]
            if function is torch.device and arguments:
                return function(*arguments) if self.makes_devices else moved(function(*arguments))
            return function(*[moved(value) for value in arguments], **keywords)

    class Event:
        def __init__(self, *arguments, **keywords):
            pass

        def record(self, *arguments):
            pass

        def elapsed_time(self, other):
            return 0.0

    torch.cuda.on_the_cpu = Moved  # of a thread
    Moved().__enter__()  # for the life of the process
    nothing = Anything()
    for name in ("synchronize", "set_device", "reset_peak_memory_stats", "empty_cache"):
        setattr(torch.cuda, name, nothing)
    torch.cuda.max_memory_allocated = lambda *arguments: 0
    torch.cuda.device_count = lambda: 4  # ranks that tests may start
    torch.cuda.Event = Event
    inner = dist.init_process_group

    def init_process_group(backend=None, *arguments, **keywords):
        return inner("gloo" if backend and "nccl" in backend else backend, *arguments, **keywords)

    dist.init_process_group = init_process_group


def install(peer):
    import replacements
    sys.meta_path.insert(0, Hook(replacements.REPLACED.get(peer, {})))
    sys.meta_path.append(Absent(os.environ["BUCKETPOOL_PEER_COPY"]))
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # tests compile what they compare with
    if sys.version_info < (3, 12):  # pydantic refuses the TypedDict of older versions, which SkyRL's models have
        import typing

        import typing_extensions
        typing.TypedDict = typing_extensions.TypedDict
