"""`swift serve MODEL`, and `swift deploy`, which is the same: an engine's own server, with what a run trained."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from swift.cli.app import TrustRemoteCode, run_app, split_unknown
from swift.errors import UsageError
from swift.plugins.inference import serve as serve_with
from swift.plugins.load import load_engine

KEYS = ("SWIFT_API_KEY", "VLLM_API_KEY")
"""Environment variables that hold the key where --api-key is not given."""


def run(verb: str, args: list[str]) -> int:
    """The verbs."""
    own, unknown = split_unknown(serve, args)
    return run_app(f"swift {verb}", serve, [*own, *(f"--passed-on={word}" for word in unknown)])


def serve(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Run, checkpoint, adapter, model folder, hub id; comes first"),
    ] = None,
    model_flag: Annotated[
        str | None, typer.Option("--model", "--ckpt_dir", "--ckpt-dir", help="The same as a flag")
    ] = None,
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapters", "--adapter", metavar="[NAME=]PATH", help="One more adapter; may be repeated"),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--name", "--served-model-name", "--served_model_name", help="What requests call it; default: run or folder"
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="0.0.0.0 lets other machines ask")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes a free one")] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", "--api_key", help="Requests must bring it; better set SWIFT_API_KEY, which nobody else sees"
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", "--torch_dtype", "--torch-dtype", help="auto is what the model's folder says")
    ] = "auto",
    max_length: Annotated[
        int | None,
        typer.Option(
            "--max-length",
            "--max_length",
            "--max-model-len",
            "--max_model_len",
            min=1,
            help="Longest prompt and answer together; default: the model's",
        ),
    ] = None,
    runtime_adapters: Annotated[
        bool,
        typer.Option("--runtime-adapters", "--runtime_adapters", help="Let requests load and unload adapters"),
    ] = False,
    python: Annotated[
        Path | None, typer.Option("--python", help="Serve with this interpreter's packages, of another environment")
    ] = None,
    engine: Annotated[str, typer.Option("--engine", "--infer_backend", "--infer-backend", help="Who serves")] = "vllm",
    verbose: Annotated[bool, typer.Option("--verbose", help="Show the server's own log")] = False,
    trust_remote_code: TrustRemoteCode = False,
    passed_on: Annotated[list[str] | None, typer.Option("--passed-on", hidden=True)] = None,
) -> int:
    """Serve a model to OpenAI clients: completions, chat and models, the base and its adapters by name.

    Flags that are not listed here go to the engine's server as they stand. Ctrl-C stops it.
    """
    named = model or model_flag
    if named is None:
        raise UsageError(
            "swift serve needs a model, before other flags.",
            hint="For example: swift serve output/my-model/v0-20260101-120000",
        )
    found = load_engine(engine)  # a mistake in the name is said before anything is looked for
    from swift.serve.request import Wish, serve_request

    wish = Wish(
        model=named,
        adapters=tuple(adapters or ()),
        name=name,
        host=host,
        port=port,
        api_key=api_key or next(filter(None, map(os.environ.get, KEYS)), None),
        dtype=dtype,
        max_length=max_length,
        python=python,
        runtime_adapters=runtime_adapters,
        verbose=verbose,
        trust_remote_code=trust_remote_code,
        passed_on=tuple(passed_on or ()),
    )
    return serve_with(found, serve_request(wish, say=_say))


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
