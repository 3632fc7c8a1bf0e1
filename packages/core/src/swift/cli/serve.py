"""`swift serve MODEL` and its alias `swift deploy`: an engine's server for a model and its adapters."""

from __future__ import annotations

import os
from typing import Annotated

from pydantic import Field

from swift.cli.help import asks_for_help, show_help
from swift.cli.options import read_options, unexpected_argument
from swift.config.limits import Name
from swift.config.options import Aliases
from swift.errors import UsageError
from swift.plugins.known import ENGINE
from swift.serve.options import ServeOptions
from swift.terminal import print_note

KEYS = ("SWIFT_API_KEY", "VLLM_API_KEY")
"""Environment variables with the key, if --api-key is not given."""


class ServeCommandOptions(ServeOptions):
    """Serves completions, chat and the list of models: the base model and its adapters, by name.

    Flags that are not listed here are passed to the engine's server. Ctrl-C stops it.
    """

    examples = ("swift serve output/my-model/v0-20260101-120000", "swift serve qwen3-0.6b --adapters law=FOLDER")
    engine: Annotated[Name, Aliases("infer_backend")] = Field(ENGINE, description="Inference engine")


def run(command: str, args: list[str]) -> int:
    """Run the command; return the exit code."""
    if asks_for_help(args):
        show_help(command, "Serve a model to OpenAI clients, with its adapters", ServeCommandOptions)
        return 0
    typed = read_options(command, args, ServeCommandOptions, passes_on=True)
    if typed.positional:
        raise unexpected_argument(typed.positional[0], command)
    return serve(typed.options, typed.passed_on)


def serve(options: ServeCommandOptions, passed_on: tuple[str, ...]) -> int:
    """Serve until the user stops it; returns the exit code."""
    if options.model is None:
        raise UsageError(
            "swift serve needs a model before the flags.",
            hint="For example: swift serve output/my-model/v0-20260101-120000",
        )
    from swift.config.tasks import CAUSAL_LM
    from swift.plugins.inference import serve as serve_with
    from swift.plugins.load import load_engine

    engine = load_engine(options.engine)  # report an unknown name first
    from swift.serve.request import serve_request

    key = options.api_key or next(filter(None, map(os.environ.get, KEYS)), None)
    options = options.model_copy(update={"api_key": key})
    tasks = getattr(engine.object, "tasks", None) or (CAUSAL_LM,)
    return serve_with(engine, serve_request(options, passed_on=passed_on, tasks=tasks, say=print_note))
