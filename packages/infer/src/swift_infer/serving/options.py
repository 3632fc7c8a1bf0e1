"""Options of `swift serve`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, model_validator

from swift.config.limits import FilePath, Name, Tokens
from swift.config.options import Aliases, Argument, Section
from swift.plugins import ENGINE
from swift_infer.options import MAX_LENGTH_FLAGS


class ServeOptions(Section):
    """Serves completions, chat and the list of models: the base model and its adapters, by name.

    Flags that are not listed here are passed to the engine's server. Ctrl-C stops it.
    """

    examples = ("swift serve output/my-model/v0-20260101-120000", "swift serve qwen3-0.6b --adapters law=FOLDER")
    model: Annotated[Name | None, Argument("MODEL"), Aliases("ckpt_dir")] = Field(
        None, description="Run, checkpoint, adapter, model folder or hub id"
    )
    adapters: Annotated[tuple[Name, ...], Aliases("adapter")] = Field(
        (), description="Adapters to serve with MODEL, as NAME=PATH or PATH; without MODEL, on top of their base model"
    )
    name: Annotated[Name | None, Aliases("served_model_name")] = Field(
        None, description="Name of the model in requests; default: that of the run or folder"
    )
    host: Name = Field("127.0.0.1", description="Address to listen on; 0.0.0.0 accepts connections from other machines")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="Port to listen on; 0 picks a free one")
    api_key: str | None = Field(
        None,
        description="API key that requests must send; SWIFT_API_KEY is safer, as others see command lines",
    )
    dtype: Annotated[Name, Aliases("torch_dtype")] = Field(
        "auto", description="Data type of the weights; auto: that of the model's folder"
    )
    task_type: Name | None = Field(
        None,
        description="Objective by which a language model returns scores, such as generative_reranker, or causal_lm for "
        "none; default: that of the run or export",
    )
    max_length: Annotated[Tokens | None, Aliases(*MAX_LENGTH_FLAGS)] = Field(
        None, description="Maximum tokens of prompt and response together; default: the model's"
    )
    enable_thinking: bool | None = Field(
        None, description="Default of enable_thinking of the chat template; default: the template decides"
    )
    runtime_adapters: bool = Field(False, description="Allow requests to load and unload adapters")
    python: FilePath | None = Field(None, description="Python interpreter to run the server with")
    verbose: bool = Field(False, description="Print the server's log")
    trust_remote_code: bool = Field(
        False, description="Run Python code from the model's repository; only for models that you trust"
    )

    engine: Annotated[Name, Aliases("infer_backend")] = Field(ENGINE, description="Inference engine")

    @model_validator(mode="before")
    @classmethod
    def _adapters_know_their_model(cls, values: Any) -> Any:
        """Use the first adapter as the model if none is named: its folder names the base model."""
        adapters = values.get("adapters") if isinstance(values, dict) and values.get("model") is None else None
        if not isinstance(adapters, tuple) or not adapters:
            return values
        name, separator, path = adapters[0].partition("=")
        own = {"name": name} if separator and values.get("name") is None else {}
        return {**values, **own, "model": path if separator else name, "adapters": adapters[1:]}
