"""Options of `swift serve`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from swift.config.compat.commands import MAX_LENGTH
from swift.config.limits import FilePath, Name, Tokens
from swift.config.options import Aliases, Argument, Section


class ServeOptions(Section):
    """Which model is served, under which name, and where."""

    model: Annotated[Name | None, Argument("MODEL"), Aliases("ckpt_dir")] = Field(
        None, description="Run, checkpoint, adapter, model folder, hub id; comes first"
    )
    adapters: Annotated[tuple[Name, ...], Aliases("adapter")] = Field(
        (), description="Further adapters, as NAME=PATH or PATH; without MODEL, the first with its model"
    )
    name: Annotated[Name | None, Aliases("served_model_name")] = Field(
        None, description="The model's name in requests; default: that of the run or folder"
    )
    host: Name = Field("127.0.0.1", description="0.0.0.0 lets other machines connect")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="0 takes a free one")
    api_key: str | None = Field(
        None, description="API key that requests must send; SWIFT_API_KEY is safer, since others can see command lines"
    )
    dtype: Annotated[Name, Aliases("torch_dtype")] = Field("auto", description="auto is what the model's folder says")
    task_type: Literal["generative_reranker", "causal_lm"] | None = Field(
        None,
        description="generative_reranker: score documents of queries by the model's yes and no; default: as the run "
        "trained",
    )
    max_length: Annotated[Tokens | None, Aliases(*MAX_LENGTH)] = Field(
        None, description="Longest prompt and answer together; default: the model's"
    )
    enable_thinking: bool | None = Field(
        None, description="What the chat template is told about thinking where a request does not say; default: nothing"
    )
    runtime_adapters: bool = Field(False, description="Let requests load and unload adapters")
    python: FilePath | None = Field(None, description="Serve with this interpreter's packages, of another environment")
    verbose: bool = Field(False, description="Show the server's own log")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model: only if you trust who made it"
    )

    @model_validator(mode="before")
    @classmethod
    def _adapters_know_their_model(cls, values: Any) -> Any:
        """Take the first adapter for the model where no model is named: its folder says which one it adapts."""
        adapters = values.get("adapters") if isinstance(values, dict) and values.get("model") is None else None
        if not isinstance(adapters, tuple) or not adapters:
            return values
        name, separator, path = adapters[0].partition("=")
        own = {"name": name} if separator and values.get("name") is None else {}
        return {**values, **own, "model": path if separator else name, "adapters": adapters[1:]}
