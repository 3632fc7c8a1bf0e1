"""Options that `swift infer`, `chat` and `eval` share: the model, the sampling, and the questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from swift.config.compat.commands import ENGINE_KWARGS, MAX_LENGTH
from swift.config.compat.unsupported import ENGINE_OPTIONS
from swift.config.limits import FilePath, Fraction, Name, Rows, Tokens
from swift.config.media import LIMITS
from swift.config.options import Aliases, Argument, Parts, Section, Verbatim
from swift.errors import UsageError
from swift.plugins.known import TRANSFORMERS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from swift.contracts import Sampling


StopText = Annotated[str, Field(min_length=1, max_length=512)]


class ModelOptions(Section):
    """Which model answers, and how it is loaded."""

    model: Annotated[Name | None, Argument("MODEL"), Aliases("ckpt_dir")] = Field(
        None, description="Run, checkpoint, adapter, model folder or hub id; of a server, its name"
    )
    engine: Annotated[Name, Aliases("infer_backend")] = Field(
        TRANSFORMERS,
        description="An installed inference engine (pt is another word for transformers), or the address of a server: "
        "http://HOST:PORT",
    )
    adapters: Annotated[FilePath | None, Aliases("adapter")] = Field(
        None, description="Adapter on top of the model; alone, with the model that it was trained on"
    )
    system: str | None = Field(None, description="System message where a conversation has none")
    enable_thinking: bool | None = Field(
        None, description="What the chat template is told about thinking; default: the template decides"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description='Further arguments of the chat template: {"reasoning_effort": "low"}'
    )
    dtype: Annotated[Name, Aliases("torch_dtype")] = Field("auto", description="auto, float32, bfloat16, float16")
    device: Name | None = Field(None, description="cpu or cuda; default: a GPU if there is one")
    max_length: Annotated[Tokens | None, Aliases(*MAX_LENGTH)] = Field(
        None, description="Longest question and answer together; default: the engine decides"
    )
    engine_options: Annotated[
        dict[str, Any],
        Aliases(ENGINE_KWARGS, "engine_kwargs"),
        Parts(
            attn_impl="attention",
            attn_implementation="attention",
            gpu_memory_utilization="gpu_memory_utilization",
            tensor_parallel_size="tensor_parallel_size",
            max_num_seqs="max_num_seqs",
            enforce_eager="enforce_eager",
            **ENGINE_OPTIONS,
        ),
    ] = Field(
        default_factory=dict,
        description='The engine\'s own options: {"max_num_seqs": 64}. transformers has attention: sdpa, eager or '
        "flash_attention_2",
    )
    max_pixels: PositiveInt | None = Field(
        None, description="Images with more pixels are made smaller; default: as the run was trained"
    )
    min_pixels: PositiveInt | None = Field(
        None, description="Images with fewer pixels are made larger; default: as the run was trained"
    )
    video_fps: Annotated[float, Field(gt=0, le=1000), Aliases("fps")] | None = Field(
        None, description="Images of each second of a video that the model is shown; default: as the run was trained"
    )
    video_max_frames: Annotated[PositiveInt, Aliases("fps_max_frames")] | None = Field(
        None, description="Images of a video at most; default: as the run was trained"
    )
    api_key: str | None = Field(None, description="For a server; default: SWIFT_API_KEY or OPENAI_API_KEY")
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model: only if you trust who made it"
    )

    @model_validator(mode="before")
    @classmethod
    def _adapters_know_their_model(cls, values: Any) -> Any:
        """Take the adapters for the model where no model is named: their folder says which one they adapt."""
        alone = isinstance(values, dict) and values.get("model") is None and values.get("adapters") is not None
        if alone and not is_address(str(values.get("engine", ""))):
            return {**values, "model": str(values["adapters"]), "adapters": None}
        return values

    @field_validator("engine")
    @classmethod
    def _by_another_name(cls, engine: str) -> str:
        return TRANSFORMERS if engine in ("pt", "hf", "huggingface") else engine

    def pixels(self, trained: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of images and videos: as the user says, else as the run was trained."""
        given = {name: getattr(self, name) for name in LIMITS}
        return {**trained, **{name: value for name, value in given.items() if value is not None}}

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Return what the chat template is given besides the messages."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**self.chat_template_kwargs, **thinking}


class SamplingOptions(Section):
    """How answers are drawn."""

    max_new_tokens: Annotated[Tokens, Aliases("max_tokens", "max_completion_tokens")] = Field(
        512, description="Longest answer"
    )
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = Field(
        0.0, description="0 takes the most likely token, always; up to 2, as OpenAI's API has it"
    )
    do_sample: bool | None = Field(
        None, description="off takes the most likely token; on draws, at temperature 1 where none is given"
    )
    top_p: Fraction = Field(1.0, description="Nucleus sampling")
    top_k: Annotated[int, Field(ge=-1)] = Field(0, description="Draw among the likeliest so many tokens; 0 means all")
    repetition_penalty: PositiveFloat = Field(
        1.0, description="Above 1 makes tokens of the question and of the answer so far less likely"
    )
    stop: Annotated[tuple[StopText, ...], Aliases("stop_words", "stop_sequences"), Verbatim()] = Field(
        (), description="Texts that end an answer, and are left out of it"
    )
    seed: int = Field(0, description="Seed of sampling at a temperature above 0")

    @property
    def sampling(self) -> Sampling:
        """Return the sampling for an engine; `UsageError` where it is to draw and not to draw."""
        if self.do_sample and self.temperature == 0 and "temperature" in self.model_fields_set:
            raise UsageError(
                "--do_sample true draws, and --temperature 0 takes the most likely token.",
                hint="Leave one of them out.",
            )
        from swift.contracts import Sampling  # only now: help needs no contract

        drawn = self.temperature > 0 if self.do_sample is None else self.do_sample
        return Sampling(
            self.max_new_tokens,
            (self.temperature or 1.0) if drawn else 0.0,
            self.top_p,
            self.seed,
            top_k=max(0, self.top_k),
            repetition_penalty=self.repetition_penalty,
            stop=self.stop,
        )


class BatchOptions(Section):
    """Where questions come from, and where answers go."""

    dataset: Annotated[tuple[Name, ...], Aliases("val_dataset")] = Field((), description="Questions, one per row")
    columns: dict[Name, Name] = Field(default_factory=dict, description='Renames columns: {"question": "query"}')
    batch_size: Annotated[Rows | None, Aliases("max_batch_size")] = Field(
        None, description="Questions at a time; default: the engine decides"
    )
    result_path: Annotated[FilePath | None, Aliases("result_jsonl")] = Field(
        None, description="File to write every answer to, as JSON lines"
    )
    overwrite: bool = Field(False, description="Start over instead of continuing what is in --result_path")


class QuestionOptions(BatchOptions):
    """Questions for models that may return scores instead of text."""

    task_type: Literal["generative_reranker"] | None = Field(
        None,
        description="Score documents of queries by how much rather a language model says yes than no; default: as the "
        "run trained",
    )


class AnsweringOptions(BatchOptions, ModelOptions):
    """Options of a command that has many questions answered."""


def is_address(engine: str) -> bool:
    """Whether `--engine` names a server."""
    return engine.startswith(("http://", "https://"))
