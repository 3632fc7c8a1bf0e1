"""Options that `swift infer`, `chat` and `eval` share: the model, the sampling, and the questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, NonNegativeFloat

from swift.config.limits import FilePath, Fraction, Name, Rows, Tokens
from swift.config.options import Aliases, Argument, Section

if TYPE_CHECKING:
    from swift.contracts import Sampling


class ModelOptions(Section):
    """Which model answers, and how it is loaded."""

    model: Annotated[Name | None, Argument("MODEL"), Aliases("ckpt_dir")] = Field(
        None, description="Run, checkpoint, adapter, model folder or hub id; of a server, its name"
    )
    engine: Annotated[Name, Aliases("infer_backend")] = Field(
        "transformers", description="An installed inference engine, or the address of a server: http://HOST:PORT"
    )
    adapters: Annotated[FilePath | None, Aliases("adapter")] = Field(None, description="Adapter on top of the model")
    system: str | None = Field(None, description="System message where a conversation has none")
    dtype: Annotated[Name, Aliases("torch_dtype")] = Field("auto", description="auto, float32, bfloat16, float16")
    device: Name | None = Field(None, description="cpu or cuda; default: a GPU if there is one")
    max_length: Annotated[Tokens | None, Aliases("max_model_len")] = Field(
        None, description="Longest question and answer together; default: the engine decides"
    )
    engine_options: dict[str, Any] = Field(
        default_factory=dict, description='The engine\'s own options: {"max_num_seqs": 64}'
    )
    api_key: str | None = Field(None, description="For a server; default: SWIFT_API_KEY or OPENAI_API_KEY")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model: only if you trust who made it"
    )


class SamplingOptions(Section):
    """How answers are drawn."""

    max_new_tokens: Tokens = Field(512, description="Longest answer")
    temperature: NonNegativeFloat = Field(0.0, description="0 takes the most likely token, always")
    top_p: Fraction = Field(1.0, description="Nucleus sampling")
    seed: int = Field(0, description="Seed of sampling at a temperature above 0")

    @property
    def sampling(self) -> Sampling:
        """Return the sampling for an engine."""
        from swift.contracts import Sampling  # only now: help needs no contract

        return Sampling(self.max_new_tokens, self.temperature, self.top_p, self.seed)


class QuestionOptions(Section):
    """Where questions come from, and where answers go."""

    dataset: Annotated[tuple[Name, ...], Aliases("val_dataset")] = Field((), description="Questions, one per row")
    columns: dict[Name, Name] = Field(default_factory=dict, description='Renames columns: {"question": "query"}')
    batch_size: Rows | None = Field(None, description="Questions at a time; default: the engine decides")
    result_path: FilePath | None = Field(None, description="File to write every answer to, as JSON lines")
    overwrite: bool = Field(False, description="Start over instead of continuing what is in --result_path")


def is_address(engine: str) -> bool:
    """Whether `--engine` names a server."""
    return engine.startswith(("http://", "https://"))
