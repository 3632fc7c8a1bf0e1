"""`swift serve MODEL` and its alias `swift deploy`: an engine's server for a model and its adapters."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from swift.config.limits import Name
from swift.config.options import Aliases
from swift.errors import UsageError
from swift.plugins import ENGINE
from swift.terminal import print_note
from swift_infer.serving.options import ServeOptions

KEYS = ("SWIFT_API_KEY", "VLLM_API_KEY")
"""Environment variables with the key, if --api-key is not given."""


class ServeCommandOptions(ServeOptions):
    """Serves completions, chat and the list of models: the base model and its adapters, by name.

    Flags that are not listed here are passed to the engine's server. Ctrl-C stops it.
    """

    examples = ("swift serve output/my-model/v0-20260101-120000", "swift serve qwen3-0.6b --adapters law=FOLDER")
    engine: Annotated[Name, Aliases("infer_backend")] = Field(ENGINE, description="Inference engine")


class ServeCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Serve a model to OpenAI clients, with its adapters"
    group = "Use the result"
    options_model = ServeCommandOptions
    passes_on = True

    def run(self, options: ServeCommandOptions, passed_on: Sequence[str] = ()) -> int:
        """Serve until the user stops it; return the exit code."""
        if passed_on and not passed_on[0].startswith("-"):  # positional arguments come first
            raise UsageError(f"Unexpected argument {passed_on[0]!r}.", hint="All flags: swift serve --help")
        return serve(options, tuple(passed_on))


class DeployCommand(ServeCommand):
    """`swift deploy`, by which users of ms-swift know it."""

    summary = "The same as serve"
    group = "Use the result"


def serve(options: ServeCommandOptions, passed_on: tuple[str, ...]) -> int:
    """Serve until the user stops it; returns the exit code."""
    if options.model is None:
        raise UsageError(
            "swift serve needs a model before the flags.",
            hint="For example: swift serve output/my-model/v0-20260101-120000",
        )
    from swift.config.tasks import CAUSAL_LM
    from swift.plugins import load_engine, serve_model

    engine = load_engine(options.engine)  # report an unknown name first
    from swift_infer.serving.request import serve_request

    key = options.api_key or next(filter(None, map(os.environ.get, KEYS)), None)
    options = options.model_copy(update={"api_key": key})
    tasks = getattr(engine.object, "tasks", None) or (CAUSAL_LM,)
    return serve_model(engine, serve_request(options, passed_on=passed_on, tasks=tasks, say=print_note))
