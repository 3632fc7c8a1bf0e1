"""Options that `swift infer`, `chat` and `eval` share: the model, the sampling, and the questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt, field_validator, model_validator

from swift.config.limits import FilePath, Fraction, Name, Rows, Tokens
from swift.config.media import LIMITS
from swift.config.options import Aliases, Argument, Parts, Section, Verbatim
from swift.errors import UsageError, did_you_mean
from swift.plugins import ENGINE, ENGINE_TITLE, TRANSFORMERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from swift.contracts import Sampling


MAX_LENGTH_FLAGS = ("max_model_len", "vllm_max_model_len")
"""Third-party flags for the maximum length of prompt and completion together."""
_ENGINE_SETTINGS = (
    *("gpu_memory_utilization", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *("max_num_seqs", "enforce_eager", "enable_prefix_caching", "quantization", "kv_cache_dtype"),
    *("limit_mm_per_prompt", "disable_custom_all_reduce", "max_lora_rank", "enable_expert_parallel"),
)
ENGINE_OPTIONS = {f"vllm_{name}": name for name in _ENGINE_SETTINGS}
"""Third-party flag for a setting of vLLM → the setting's own name."""
_ENGINE_KWARGS = "vllm_engine_kwargs"
_TRANSFORMERS_OPTIONS = ("attention",)
"""Settings of the engine transformers."""
StopString = Annotated[str, Field(min_length=1, max_length=512)]


class ModelOptions(Section):
    """The model, and how it is loaded."""

    model: Annotated[Name | None, Argument("MODEL"), Aliases("ckpt_dir")] = Field(
        None, description="Run, checkpoint, adapter, model folder or hub id; with a server, the name of the model there"
    )
    engine: Annotated[Name, Aliases("infer_backend")] = Field(
        TRANSFORMERS,
        description="Inference engine (pt is an alias of transformers), or address of a server: http://HOST:PORT",
    )
    adapters: Annotated[FilePath | None, Aliases("adapter")] = Field(
        None, description="Adapter to load on top of the model; without a model, on top of the one it was trained on"
    )
    system: str | None = Field(None, description="System message for conversations without one")
    enable_thinking: bool | None = Field(
        None, description="enable_thinking of the chat template; default: the template decides"
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default_factory=dict, description='Other arguments of the chat template: {"reasoning_effort": "low"}'
    )
    dtype: Annotated[Name, Aliases("torch_dtype")] = Field("auto", description="auto, float32, bfloat16, float16")
    device: Name | None = Field(None, description="cpu or cuda; default: a GPU if there is one")
    max_length: Annotated[Tokens | None, Aliases(*MAX_LENGTH_FLAGS)] = Field(
        None, description="Maximum tokens of prompt and completion together; default: the engine decides"
    )
    engine_options: Annotated[
        dict[str, Any],
        Aliases(_ENGINE_KWARGS, "engine_kwargs"),
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
        description='Options of the engine: {"max_num_seqs": 64}. transformers has attention: sdpa, eager, '
        "flash_attention_2 or flash_attention_3",
    )
    max_pixels: PositiveInt | None = Field(
        None, description="Downscale images with more pixels; default: as in training"
    )
    min_pixels: PositiveInt | None = Field(
        None, description="Upscale images with fewer pixels; default: as in training"
    )
    video_fps: Annotated[float, Field(gt=0, le=1000), Aliases("fps")] | None = Field(
        None, description="Frames per second to sample from videos; default: as in training"
    )
    video_max_frames: Annotated[PositiveInt, Aliases("fps_max_frames")] | None = Field(
        None, description="Maximum frames per video; default: as in training"
    )
    api_key: str | None = Field(None, description="API key of the server; default: SWIFT_API_KEY or OPENAI_API_KEY")
    trust_remote_code: bool = Field(
        False, description="Run Python code from the model's repository; only for models that you trust"
    )

    @model_validator(mode="before")
    @classmethod
    def _adapters_know_their_model(cls, values: Any) -> Any:
        """Use the adapters as the model if none is named: their folder names the base model."""
        alone = isinstance(values, dict) and values.get("model") is None and values.get("adapters") is not None
        if alone and not is_address(str(values.get("engine", ""))):
            return {**values, "model": str(values["adapters"]), "adapters": None}
        return values

    @field_validator("engine")
    @classmethod
    def _by_another_name(cls, engine: str) -> str:
        return TRANSFORMERS if engine in ("pt", "hf", "huggingface") else engine

    def pixels(self, trained: Mapping[str, Any]) -> dict[str, Any]:
        """Return the limits of images and videos: the user's, else those of the training."""
        given = {name: getattr(self, name) for name in LIMITS}
        return {**trained, **{name: value for name, value in given.items() if value is not None}}

    @property
    def template_arguments(self) -> dict[str, Any]:
        """Return the arguments of the chat template besides the messages."""
        thinking = {} if self.enable_thinking is None else {"enable_thinking": self.enable_thinking}
        return {**self.chat_template_kwargs, **thinking}


class SamplingOptions(Section):
    """How completions are sampled."""

    max_new_tokens: Annotated[Tokens, Aliases("max_tokens", "max_completion_tokens")] = Field(
        512, description="Maximum tokens per response"
    )
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = Field(
        0.0, description="0 for greedy decoding; at most 2, as in OpenAI's API"
    )
    do_sample: bool | None = Field(
        None, description="false for greedy decoding; true samples, at temperature 1 by default"
    )
    top_p: Fraction = Field(1.0, description="Nucleus sampling: cumulative probability to sample from")
    top_k: Annotated[int, Field(ge=-1)] = Field(0, description="Sample from the k most likely tokens; 0 for all")
    repetition_penalty: PositiveFloat = Field(
        1.0, description="Values above 1 penalize tokens of the prompt and of the completion so far"
    )
    stop: Annotated[tuple[StopString, ...], Aliases("stop_words", "stop_sequences"), Verbatim()] = Field(
        (), description="Strings that end a completion; not part of it"
    )
    seed: int = Field(0, description="Seed for sampling")

    @property
    def sampling(self) -> Sampling:
        """Return the sampling for an engine; raise `UsageError` for contradicting options."""
        if self.do_sample and self.temperature == 0 and "temperature" in self.model_fields_set:
            raise UsageError(
                "--do_sample true samples, but --temperature 0 is greedy decoding.",
                hint="Remove one of them.",
            )
        from swift.contracts import Sampling  # here, because --help does not need it

        sampled = self.temperature > 0 if self.do_sample is None else self.do_sample
        return Sampling(
            self.max_new_tokens,
            (self.temperature or 1.0) if sampled else 0.0,
            self.top_p,
            self.seed,
            top_k=max(0, self.top_k),
            repetition_penalty=self.repetition_penalty,
            stop=self.stop,
        )


class BatchOptions(Section):
    """Where questions come from, and where responses go."""

    dataset: Annotated[tuple[Name, ...], Aliases("val_dataset")] = Field((), description="Data sets of questions")
    columns: dict[Name, Name] = Field(default_factory=dict, description='Rename columns: {"question": "query"}')
    batch_size: Annotated[Rows | None, Aliases("max_batch_size")] = Field(
        None, description="Prompts per batch; default: the engine decides"
    )
    result_path: Annotated[FilePath | None, Aliases("result_jsonl")] = Field(
        None, description="JSON Lines file to write the responses to"
    )
    overwrite: bool = Field(False, description="Overwrite --result_path instead of resuming it")


class QuestionOptions(BatchOptions):
    """Questions for models that may return scores instead of text."""

    task_type: Name | None = Field(
        None,
        description="Objective by which a language model returns scores, such as generative_reranker, or causal_lm for "
        "none; default: that of the run or export",
    )


class InferenceOptions(BatchOptions, ModelOptions):
    """Options of a command that generates responses to many questions."""


def check_transformers_options(names: Iterable[str]) -> None:
    """Raise `UsageError` for options that the engine transformers does not have."""
    for name in names:
        if name not in _TRANSFORMERS_OPTIONS:
            raise UsageError(
                f"The engine {TRANSFORMERS} has no option {name!r}.{did_you_mean(name, _TRANSFORMERS_OPTIONS)}",
                hint=f"Remove it, or pass --engine {ENGINE} if it is an option of {ENGINE_TITLE}.",
            )


def is_address(engine: str) -> bool:
    """Return whether `--engine` is the address of a server."""
    return engine.startswith(("http://", "https://"))
