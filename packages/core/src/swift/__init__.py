"""swift: train large language models on any parallel backend and serve the result.

Public names are imported when they are first used, so that `import swift` stays light.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from swift.version import __version__ as __version__

if TYPE_CHECKING:  # `as` marks names as public for type checkers
    from swift.api import MegatronArguments as MegatronArguments
    from swift.api import Swift as Swift
    from swift.api import SwiftModel as SwiftModel
    from swift.api import Trainer as Trainer
    from swift.api import TrainerConfig as TrainerConfig
    from swift.backends.base import TorchBackend as TorchBackend
    from swift.backends.base import TorchOptions as TorchOptions
    from swift.config.sections import Config as Config
    from swift.config.sections import Section as Section
    from swift.contracts import HOOK_API as HOOK_API
    from swift.contracts import Capabilities as Capabilities
    from swift.contracts import LossSums as LossSums
    from swift.contracts import ModelView as ModelView
    from swift.contracts import Need as Need
    from swift.contracts import StepResult as StepResult
    from swift.contracts import Topology as Topology
    from swift.errors import ConfigError as ConfigError
    from swift.errors import PluginError as PluginError
    from swift.errors import SwiftError as SwiftError
    from swift.errors import TrainingError as TrainingError
    from swift.errors import UnsupportedLayout as UnsupportedLayout
    from swift.hookspecs import hookimpl as hookimpl
    from swift.hookspecs import lazy_hook as lazy_hook

_HOMES = {
    "swift.api": ("MegatronArguments", "Swift", "SwiftModel", "Trainer", "TrainerConfig"),
    "swift.backends.base": ("TorchBackend", "TorchOptions"),
    "swift.config.sections": ("Config", "Section"),
    "swift.contracts": ("HOOK_API", "Capabilities", "LossSums", "ModelView", "Need", "StepResult", "Topology"),
    "swift.errors": ("ConfigError", "PluginError", "SwiftError", "TrainingError", "UnsupportedLayout"),
    "swift.hookspecs": ("hookimpl", "lazy_hook"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [*_HOME_OF, "__version__"]


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        if (instead := _advice(name)) is not None:
            raise ImportError(instead)  # `from swift import ...` would replace the message of an AttributeError
        raise AttributeError(f"module 'swift' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def _advice(name: str) -> str | None:
    """Return what to write instead of a name of a third-party program; None for an unknown one.

    Python asks for each module of swift here before it imports it, also while plugins are being found.
    """
    if name.startswith("_") or importlib.util.find_spec(f"swift.{name}") is not None:
        return None
    from swift.plugins.vocabularies import advice

    return advice(name)


def __dir__() -> list[str]:
    return sorted(__all__)
