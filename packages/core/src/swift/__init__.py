"""swift: train large language models on any parallel backend and serve the result.

The names below are imported when they are first used, so that `import swift` stays light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from swift.torchvision_ops import declare_missing_operators
from swift.version import __version__

if TYPE_CHECKING:
    from swift.api import MegatronArguments, Swift, SwiftModel, Trainer, TrainerConfig
    from swift.config.sections import Config, Section
    from swift.contracts import HOOK_API, Capabilities, LossSums, ModelView, Need, StepResult, Topology
    from swift.errors import ConfigError, PluginError, SwiftError, TrainingError, UnsupportedLayout
    from swift.hookspecs import hookimpl, lazy_hook

_HOMES = {
    "swift.api": ("MegatronArguments", "Swift", "SwiftModel", "Trainer", "TrainerConfig"),
    "swift.config.sections": ("Config", "Section"),
    "swift.contracts": ("HOOK_API", "Capabilities", "LossSums", "ModelView", "Need", "StepResult", "Topology"),
    "swift.errors": ("ConfigError", "PluginError", "SwiftError", "TrainingError", "UnsupportedLayout"),
    "swift.hookspecs": ("hookimpl", "lazy_hook"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "HOOK_API",
    "Capabilities",
    "Config",
    "ConfigError",
    "LossSums",
    "MegatronArguments",
    "ModelView",
    "Need",
    "PluginError",
    "Section",
    "StepResult",
    "Swift",
    "SwiftError",
    "SwiftModel",
    "Topology",
    "Trainer",
    "TrainerConfig",
    "TrainingError",
    "UnsupportedLayout",
    "__version__",
    "hookimpl",
    "lazy_hook",
]


declare_missing_operators()  # before anything imports transformers, which imports torchvision wherever it is


def __getattr__(name: str) -> Any:
    module = _HOME_OF.get(name)
    if module is None:
        from swift.elsewhere import advice

        if instead := advice(name):
            raise ImportError(instead)  # an AttributeError would lose its words: `from swift import ...` has its own
        raise AttributeError(f"module 'swift' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)
