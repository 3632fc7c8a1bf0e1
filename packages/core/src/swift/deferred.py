"""Heavy modules that are imported when they are used, not when torch or transformers mention them.

`import transformers` and every optimizer of torch import torch's compiler (`torch._dynamo`, with DTensor and sympy
behind it), and transformers torchao, for a decorator or a name that does nothing unless something is compiled, sharded
or quantised. That is half of the CPU time that a training process takes to its first step.

Here they are deferred, in a process that the `swift` command has to itself: torchao always, the compiler where nothing
is compiled and the process has the whole model, alone or with others by DDP.
Whatever is asked of them beyond the decorators imports them as ever: what was put off is then made up for.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from swift.config.sections import Config

COMPILER = "torch._dynamo"
_OF_TORCHAO = {"torchao.prototype.safetensors.safetensors_support": ("flatten_tensor_state_dict",)}
_CALLED_ONLY = {f"{COMPILER}._trace_wrapped_higher_order_op": ("TransformGetItemToIndex",), **_OF_TORCHAO}
"""Module → names that transformers takes from it when it is imported itself, and later does nothing with but call."""
_ASKING = ("masking_utils", "modeling_utils", "models.auto.modeling_auto")
"""Modules of transformers that do so."""

_own_process = False


def has_own_process() -> None:
    """Say that this process runs one command of swift and nothing else."""
    global _own_process
    _own_process = True


def is_own_process() -> bool:
    """Return whether that was said."""
    return _own_process


def defer_heavy_imports(config: Config) -> None:
    """Import transformers without torchao, and without the compiler where this process needs none."""
    if not _own_process or "transformers.modeling_utils" in sys.modules:
        return
    import torch

    if config.backend.name != "torch" or config.train.compile or COMPILER in sys.modules:
        _import_transformers(_OF_TORCHAO, {})
        return
    compiler = _Compiler(torch.__path__)
    sys.modules[COMPILER] = compiler
    sys.meta_path.insert(0, _Submodules(compiler))
    _without_distributed()
    _import_transformers(_CALLED_ONLY, compiler.stand_ins)


class _Compiler(ModuleType):
    """Stands for `torch._dynamo` until something is asked of it that only the real one can do.

    Outside of compiled code the methods below do the same as the functions of their names.
    """

    def __init__(self, path_of_torch: Sequence[str]) -> None:
        super().__init__(COMPILER)
        spec = PathFinder.find_spec(COMPILER, path_of_torch)
        assert spec is not None
        self.__spec__ = spec
        self.__path__ = list(spec.submodule_search_locations or ())
        self.real: ModuleType | None = None
        self.stand_ins: dict[str, ModuleType] = {}
        # Joining a group of processes asks to forget what was compiled, and DDP whether it reduces in Python.
        self._asked = {"trace_rules": _CalledLater(self, "trace_rules", clear_lru_cache=None)}
        self._asked["utils"] = _CalledLater(self, "utils", get_optimize_ddp_mode="ddp_optimizer")
        self._lock = threading.RLock()
        self._loading = False
        self._marked: list[tuple[str, Callable[..., Any]]] = []

    def allow_in_graph(self, function: Any) -> Any:
        return self._mark("allow_in_graph", function)

    def assume_constant_result(self, function: Any) -> Any:
        return self._mark("assume_constant_result", function)

    def graph_break(self, msg: str = "") -> None:
        if self.real is not None:
            self.real.graph_break(msg)

    def disable(self, fn: Any = None, recursive: bool = True, **options: Any) -> Any:
        if fn is None:
            return partial(self.disable, recursive=recursive, **options)
        disabled: Any = None

        @wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal disabled
            if self.real is None:
                return fn(*args, **kwargs)
            if disabled is None:
                disabled = self.real.disable(fn, recursive, **options)
            return disabled(*args, **kwargs)

        return call

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {COMPILER!r} has no attribute {name!r}")
        if self.real is None and name in self._asked:
            return self._asked[name]
        return getattr(self.load(), name)

    def load(self) -> ModuleType:
        """Return the real one."""
        with self._lock:
            if self._loading:  # it asks for itself while it is imported
                return sys.modules[COMPILER]
            if self.real is None:
                self._loading = True
                _withdraw(self.stand_ins)
                if sys.modules.get(COMPILER) is self:
                    del sys.modules[COMPILER]
                real = importlib.import_module(COMPILER)
                for mark, function in self._marked:
                    getattr(real, mark)(function)
                self.real, self._loading = real, False
            return self.real

    def _mark(self, mark: str, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.real is None:
            self._marked.append((mark, function))
            return function
        marked: Callable[..., Any] = getattr(self.real, mark)(function)
        return marked


class _CalledLater:
    """Stands for a module of the compiler that answers some calls as the real one does when nothing is compiled."""

    def __init__(self, compiler: _Compiler, name: str, **answers: Any) -> None:
        self._compiler, self._name, self._answers = compiler, name, answers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"{COMPILER}.{self._name} has no attribute {name!r}")
        if self._compiler.real is None and name in self._answers:
            return lambda: self._answers[name]
        return getattr(getattr(self._compiler.load(), self._name), name)


class _Submodules(MetaPathFinder):
    """Imports the real package before any of its modules."""

    def __init__(self, compiler: _Compiler) -> None:
        self._compiler = compiler

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a module that is there already where the dummy was asked for it, else what other finders say."""
        if not fullname.startswith(f"{COMPILER}.") or sys.modules.get(COMPILER) is not self._compiler:
            return None
        self._compiler.load()
        module = importlib.import_module(fullname)
        # Python takes the module's own spec over what is returned, where the module already exists.
        module.__spec__ = ModuleSpec(fullname, _AlreadyThere(module))
        return module.__spec__


class _AlreadyThere(Loader):
    """Loads a module that has been imported: importing the package may have done so."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _import_transformers(called_only: Mapping[str, Sequence[str]], stand_ins: dict[str, ModuleType]) -> None:
    """Import it with functions instead of modules, which import these when they are called."""
    for module, names in called_only.items():
        if module not in sys.modules:
            sys.modules[module] = stand_ins[module] = _StandIn(module, names)
    try:
        for name in _ASKING:
            importlib.import_module(f"transformers.{name}")
    finally:
        _withdraw(stand_ins)


def _withdraw(stand_ins: Mapping[str, ModuleType]) -> None:
    """Take the dummies away that only transformers was to see."""
    for name, module in stand_ins.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


class _StandIn(ModuleType):
    """A module of functions that import the real one of its name when they are called."""

    def __init__(self, name: str, functions: Sequence[str]) -> None:
        super().__init__(name)
        for function in functions:
            setattr(self, function, partial(self._call, function))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real(), name)

    def _call(self, function: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._real(), function)(*args, **kwargs)

    def _real(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


def _without_distributed() -> None:
    """Let transformers see a torch that is built without torch.distributed, as there is on some platforms.

    It asks once, caches the result, and then needs no DTensor. The torch backend shards nothing.
    """
    import torch.distributed
    from transformers.utils import is_torch_distributed_available

    is_available = torch.distributed.is_available
    torch.distributed.is_available = lambda: False
    try:
        is_torch_distributed_available()
    finally:
        torch.distributed.is_available = is_available
