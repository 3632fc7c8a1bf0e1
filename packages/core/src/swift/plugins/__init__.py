"""Finding, checking and running plugins. Importing this package imports neither torch nor any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from swift.plugins.hooks import implements as implements
    from swift.plugins.hooks import open_hooks as open_hooks
    from swift.plugins.hooks import read_third_party as read_third_party
    from swift.plugins.hooks import write_third_party as write_third_party
    from swift.plugins.inference import open_inference as open_inference
    from swift.plugins.inference import serve_model as serve_model
    from swift.plugins.known import CHECKPOINT_MARKS as CHECKPOINT_MARKS
    from swift.plugins.known import ENGINE as ENGINE
    from swift.plugins.known import ENGINE_TITLE as ENGINE_TITLE
    from swift.plugins.known import TRANSFORMERS as TRANSFORMERS
    from swift.plugins.known import install_command as install_command
    from swift.plugins.load import LoadedPlugin as LoadedPlugin
    from swift.plugins.load import load_engine as load_engine
    from swift.plugins.objective import load_objective_of_run as load_objective_of_run
    from swift.plugins.objective import make_objective as make_objective
    from swift.plugins.objective import make_objective_of_run as make_objective_of_run


def load_plugin(group: str, name: str) -> LoadedPlugin:
    """Return the installed plugin of a kind, such as `swift.rewards`, and a name; raise `PluginError` without one."""
    from swift.plugins.load import find, load

    return load(find(group, name))


def plugin_names(group: str) -> list[str]:
    """Return the names of the installed plugins of a kind that may be used, without importing them."""
    from swift.plugins.discover import list_plugins

    return sorted({entry.name for entry in list_plugins(group) if entry.allowed})


def blaming_on(plugin: LoadedPlugin, function: str) -> AbstractContextManager[None]:
    """Raise `PluginError`, which names a plugin and its function, for errors inside.

    Errors for the user (`SwiftError`) pass, as does Ctrl-C.
    """
    from swift.plugins.blame import failing

    return failing(plugin.entry, function)


def interrupts(cause: BaseException) -> bool:
    """Return whether an exception ends the process or the work, such as Ctrl-C, and is not an error of a plugin."""
    from swift.plugins import blame

    return blame.interrupts(cause)


def result_alone() -> AbstractContextManager[Callable[[str], None]]:
    """Yield a function that takes lines of a command's result; what plugins print meanwhile goes to standard error."""
    from swift.plugins.output import result_alone

    return result_alone()


__getattr__ = lazy_names(
    __name__,
    {
        "hooks": "implements open_hooks read_third_party write_third_party",
        "inference": "open_inference serve_model",
        "known": "CHECKPOINT_MARKS ENGINE ENGINE_TITLE TRANSFORMERS install_command",
        "load": "LoadedPlugin load_engine",
        "objective": "load_objective_of_run make_objective make_objective_of_run",
    },
)
