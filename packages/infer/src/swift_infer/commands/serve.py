"""`swift serve MODEL` and its alias `swift deploy`: an engine's server for a model and its adapters."""

from __future__ import annotations

import os
from collections.abc import Sequence

from swift.errors import UsageError
from swift.terminal import print_note
from swift_infer.serving.options import ServeOptions

KEYS = ("SWIFT_API_KEY", "VLLM_API_KEY")
"""Environment variables with the key, if --api-key is not given."""


class ServeCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Serve a model to OpenAI clients, with its adapters"
    group = "Use the result"
    options_model = ServeOptions
    passes_on = True

    def run(self, options: ServeOptions, passed_on: Sequence[str] = ()) -> int:
        """Serve until the user stops it; return the exit code."""
        if passed_on and not passed_on[0].startswith("-"):  # positional arguments come first
            raise UsageError(f"Unexpected argument {passed_on[0]!r}.", hint="All flags: swift serve --help")
        if options.model is None:
            raise UsageError(
                "swift serve needs a model before the flags.",
                hint="For example: swift serve output/my-model/v0-20260101-120000",
            )
        from swift.parsing.tasks import CAUSAL_LM
        from swift.plugins import load_engine, serve_model

        engine = load_engine(options.engine)  # report an unknown name first
        from swift_infer.serving.request import serve_request

        key = options.api_key or next(filter(None, map(os.environ.get, KEYS)), None)
        options = options.model_copy(update={"api_key": key})
        tasks = getattr(engine.object, "tasks", None) or (CAUSAL_LM,)
        request = serve_request(options, passed_on=tuple(passed_on), tasks=tasks, say=print_note)
        return serve_model(engine, request)


class DeployCommand(ServeCommand):
    """`swift deploy`, by which users of ms-swift know it."""

    summary = "The same as serve"
    group = "Use the result"
