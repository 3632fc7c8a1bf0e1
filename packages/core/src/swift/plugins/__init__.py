"""Finding, checking and running plugins. Importing this package imports neither torch nor any plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swift.lazy import lazy_names

if TYPE_CHECKING:
    from swift.plugins.blame import failing as failing
    from swift.plugins.blame import interrupts as interrupts
    from swift.plugins.discover import plugin_names as plugin_names
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
    from swift.plugins.load import load_plugin as load_plugin
    from swift.plugins.objective import load_objective_of_run as load_objective_of_run
    from swift.plugins.objective import make_objective_of_run as make_objective_of_run

__getattr__ = lazy_names(__name__)
