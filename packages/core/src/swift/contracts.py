"""The values that core, backends, exporters, objectives and observers hand to each other.

This module is importable without torch: tensors appear in annotations only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from pydantic import BaseModel

    from swift.config.sections import Config
    from swift.data.batch import MicroBatch
    from swift.data.samples import SampleFacts
    from swift.optim.schedule import Schedule

HOOK_API = (1, 0)
"""Version of the hooks that this core speaks: (major, minor)."""


class Need(StrEnum):
    """A view of the model's output that an objective can ask a backend for. Never the full logits."""

    TOKEN_LOGPS = "token_logps"
    """log p(target) at every position, shape of `MicroBatch.targets`."""
    TOKEN_CORRECT = "token_correct"
    """1.0 where the target is the most likely token, without gradient."""
    MEAN_LOGPS = "mean_logps"
    """The mean over the vocabulary of log p, which label smoothing needs."""
    REFERENCE_LOGPS = "reference_logps"
    """Per segment, the reference model's summed log-probability (`MicroBatch.reference_logps`)."""
    HIDDEN = "hidden"
    """Last hidden state at every position."""
    SCORES = "scores"
    """One score per segment from a value or reward head."""


@dataclass(frozen=True)
class Capabilities:
    """What a backend can do. Asking for more raises `UnsupportedPlan` before any weights load."""

    parallel: frozenset[str] = frozenset()
    """Fields of the `parallel` section that may be set above 1 or switched on."""
    precisions: frozenset[str] = frozenset({"float32"})
    tuners: frozenset[str] = frozenset({"full"})
    provides: frozenset[Need] = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_CORRECT, Need.REFERENCE_LOGPS})
    async_checkpoint: bool = False
    calls_before_update: bool = False
    """Every step calls `swift.toolkit.before_update` before it changes a weight: background saves copy until then."""
    features: frozenset[str] = frozenset()
    """Switches outside the plan, by config name: `train.compile`, `train.gradient_checkpointing`, ..."""


@dataclass(frozen=True)
class World:
    """Where this process stands among all processes of the run, before any group exists."""

    rank: int = 0
    local_rank: int = 0
    size: int = 1


@dataclass(frozen=True)
class Topology:
    """What `swift_setup` answers: this process's place, and its slice of every batch."""

    world: World
    data_rank: int
    """Which slice of each global batch this process trains on; processes that share a slice share the number."""
    data_size: int
    """Into how many slices each global batch is cut."""
    device: str = "cpu"
    layout: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the parallel dimensions in force, for people to read: {'dp_replicate': 2}."""

    @property
    def is_main(self) -> bool:
        """The one process that writes to the terminal and renames folders."""
        return self.world.rank == 0


@dataclass(frozen=True)
class ModelFacts:
    """What is known of the model in training, to count with. `Run.facts` has the same in words, for people."""

    precision: str
    """Of the arithmetic: 'float32', 'bfloat16', 'float16', or what a backend calls its own ('bfloat16 fp8 hybrid')."""
    parameters: int
    """All weights, adapters included."""
    trainable: int
    """Those of them that are trained."""


@dataclass
class Run:
    """Everything about one run that hooks may need. One object per process, made by core."""

    config: Config
    backend_options: BaseModel
    """The `backend` section, validated by the backend's own model."""
    folder: Path
    """The run's own, which no other run writes into; in `swift_check_plan` and `swift_setup` still its parent."""
    world: World
    say: Callable[[str], None]
    """Prints a line for the user, on one process only."""
    plugins: Mapping[str, str] = field(default_factory=dict)
    """Plugin → 'distribution version', of those registered."""
    topology: Topology | None = None
    schedule: Schedule | None = None
    """Learning rate by step; set before `swift_shard`."""
    total_steps: int = 0
    adapter_config: dict[str, Any] | None = None
    """PEFT configuration of the adapters in training, as JSON values; set by `swift_wrap_model` where there are any."""
    send_weights: Callable[[InferenceEngine | None], None] | None = None
    """Makes an inference engine go on with the weights in training, adapters merged in. Called on every process
    between two steps, with the engine on the one that has it and None on the others; set once there is a model."""
    model_facts: ModelFacts | None = None
    """Set by `swift_wrap_model` (`build_view` of the toolkit does); without it no MFU is shown."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Decisions that a reader of the run would want to know (attention chosen and why, kernels, ...), for people: what
    is text is shown as it stands."""

    @property
    def timeout(self) -> timedelta:
        """For groups of processes: a collective fails a while after the watchdog would have said who is waited for."""
        return timedelta(minutes=1.5 * self.config.train.timeout_minutes)


class ModelSource(Protocol):
    """Where a model comes from, lazily: nothing big is read until a tensor is asked for by name.

    `swift.models.source` has the implementation for folders, hub ids and random weights.
    """

    @property
    def config(self) -> Any:
        """The transformers configuration."""

    @property
    def tokenizer(self) -> Any:
        """The transformers tokenizer."""

    @property
    def fingerprint(self) -> str:
        """Changes when the weights or the architecture change."""

    def names(self) -> list[str]:
        """Hugging Face names of all weights, tied ones once."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one weight, without reading it."""

    def read(self, name: str) -> torch.Tensor:
        """One weight, from disk."""

    def build(self, *, dtype: torch.dtype, device: str = "cpu", weights: bool = True) -> torch.nn.Module:
        """The transformers module; with `weights=False` on the meta device, uninitialised."""

    def write_assets(self, folder: Path, dtype: str) -> None:
        """Put beside exported weights what makes them a model: config, generation config, tokenizer, template."""


class TrainState(Protocol):
    """What `swift_shard` returns. Core touches only these; the rest is the backend's own business."""

    step: int
    """Optimizer steps completed."""


@dataclass
class LossSums:
    """What an objective says of one micro-batch: sums, never means, so that batches add up exactly."""

    loss: torch.Tensor
    """Sum over the micro-batch; the backend divides it by the weight of the *global* batch."""
    metrics: dict[str, tuple[torch.Tensor, torch.Tensor | float]] = field(default_factory=dict)
    """Name → (sum, weight); the reported value is the quotient of the global sums."""
    segments: torch.Tensor | None = None
    """One value per segment of the micro-batch, when the objective scores segments."""


@dataclass
class ModelView:
    """What the model says about a micro-batch, in the views that the objective asked for."""

    token_logps: torch.Tensor | None = None
    token_correct: torch.Tensor | None = None
    mean_logps: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    scores: torch.Tensor | None = None


class Objective(Protocol):
    """A pure function from a view of the model and a batch to sums.

    Entry points of the group `swift.objectives` name a class with these members; it is made as
    `cls(options)` where `options` is an instance of its `options_model`. One that needs reference log-probabilities
    may have an option `reference`: 'auto', 'adapter' or 'cached'.
    """

    name: str
    needs: frozenset[Need]
    encoding: str
    """How samples are encoded: 'text', 'chat', 'preference' or 'unpaired'."""
    adapters_off: bool
    """True when the model is to be viewed with its adapter switched off (a reference)."""
    baseline: Objective | None
    """Evaluated without gradient over the global batch before the step; see `given`."""

    def row_weight(self, samples: Iterable[SampleFacts]) -> float:
        """How much these samples weigh in the global normalisation; known before the step."""

    def loss(self, view: ModelView, batch: MicroBatch) -> LossSums:
        """Sums over one micro-batch."""

    def given(self, metrics: Mapping[str, float]) -> Objective:
        """This objective with the global metrics of its baseline filled in."""


@dataclass
class StepResult:
    """Of the global batch, the same on every process. Loss and gradient norm are before clipping, unrounded."""

    loss: float
    grad_norm: float
    learning_rate: float
    metrics: dict[str, float] = field(default_factory=dict)
    skipped: bool = False
    """True when the update was left out (an overflow under fp16)."""


@dataclass
class ForwardResult:
    """Of the global batch, the same on every process; `segments` of this process's slice, in order."""

    loss: float
    weight: float
    metrics: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Name → (sum, weight) over the global batch."""
    segments: torch.Tensor | None = None


class CheckpointWriter(Protocol):
    """What a backend writes its part of a checkpoint into."""

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Tensors by canonical name: plain, DTensor or `swift.checkpoint.Boxes`. Called once, on every process."""

    def stream(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        """The same one whole tensor at a time, where views are not valid; the main process writes."""

    def facts(self, facts: Mapping[str, Any]) -> None:
        """JSON values of this backend for the manifest; main process's are kept."""


class ForeignCheckpoint(Protocol):
    """A checkpoint in an engine's own format, as the hook `swift_read_foreign` answers it.

    It may have two more methods. `attach(source)` is given the model before anything is read; `names` and `read` then
    go by names on disk. `left_out()` answers the names of tensors that it holds and that are not among what is trained.
    """

    description: str
    """What it is: 'DeepSpeed ZeRO 2 of 8 processes'."""
    step: int
    """Updates that were made."""
    rows_per_step: int
    """Samples per update; 0 where that is not known."""
    total_steps: int = 0
    """Updates that were planned; 0 where that is not known."""
    param_groups: Sequence[Mapping[str, Any]] = ()
    """The settings of AdamW's groups, under torch's keys, where they are known."""

    def names(self) -> Collection[str]:
        """Names of the parameters in memory, tied ones once: those of the transformers or PEFT model."""

    def read(self, name: str) -> Mapping[str, torch.Tensor]:
        """One parameter: `weight` in fp32, and `exp_avg`, `exp_avg_sq` and `step` if it was trained by then."""


class TrainedState(Protocol):
    """A checkpoint of swift by the parameters of the transformers or PEFT model in memory, as `swift_write_foreign`
    takes it.
    """

    step: int
    """Updates that were made."""
    rows_per_step: int
    """Samples per update; 0 where that is not known."""
    total_steps: int
    """Updates of the whole training; 0 where that is not known."""
    warmup_steps: int
    groups: list[list[str]]
    """Names in memory of what is trained: with weight decay, and without."""
    adapter: Mapping[str, Any] | None
    """The PEFT configuration when adapters were trained."""
    source: ModelSource
    """The model that training started from."""
    optim: Any
    """The `optim` section."""
    peak: float
    """The highest learning rate of the schedule."""
    learning_rate: float
    """Of the next update."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one parameter."""

    def slots(self) -> list[str]:
        """What the optimizer keeps of every parameter: `exp_avg`, `exp_avg_sq` and `step`, or nothing."""

    def read(self, name: str, slot: str) -> torch.Tensor:
        """One tensor in fp32, whole: the slot `weight`, or one of `slots`."""

    def read_stored(self, name: str, slot: str) -> torch.Tensor:
        """The same by a name as it is in Hugging Face files. Any weight of the model; what was not trained is what it
        was in the beginning, and has zeros for the optimizer's slots."""


class CheckpointReader(Protocol):
    """What a backend reads its part of a checkpoint from."""

    folder: Path
    manifest: Mapping[str, Any]

    def names(self) -> list[str]:
        """Canonical names of all tensors."""

    def tensors(self, tensors: Mapping[str, Any]) -> None:
        """Fills these tensors in place (plain, DTensor or `Boxes`), reading only what they hold."""

    def read(self, name: str) -> torch.Tensor:
        """One whole tensor."""


@dataclass(frozen=True)
class ExportRequest:
    """What an exporter is asked for, besides the weights."""

    destination: Path
    source: ModelSource
    adapter: Mapping[str, Any] | None
    """The PEFT configuration when adapters were trained."""
    options: Any
    """The `export` section."""
    training_dtype: str = "float32"


@dataclass(frozen=True)
class CalibrationRow:
    """A text as the model reads it, and how much predicting each token counts; `weights[0]` is always 0."""

    tokens: list[int]
    weights: list[float]


@dataclass(frozen=True)
class QuantizeRequest:
    """What is to be stored in fewer bits, and what its cost is measured on."""

    source: ModelSource
    """The whole model in full precision, on disk."""
    destination: Path
    scheme: str
    """One of `swift.config.sections.QUANTISATIONS`."""
    calibration: Sequence[CalibrationRow]
    held_out: Sequence[CalibrationRow]
    """Not among those of `calibration`."""
    prompts: Sequence[Sequence[int]]
    options: Any
    """`swift.config.sections.ExportOptions`."""
    say: Callable[[str], None]


@dataclass(frozen=True)
class Quantized:
    """What was written, as its exporter understands it."""

    logps: list[list[float]]
    """For each prompt, the log-probability of every token after the first, in fp32 from the quantised weights."""
    tolerance: float
    """Mean difference from `logps` that the arithmetic of an engine explains: it computes in bf16, and the most
    quantised layers round their inputs as well."""
    dtype: str
    """Precision of what is not quantised, in which engines compute."""
    report: Mapping[str, Any]
    """JSON values; what stands in `quantisation.json`."""


WeightStream = Iterator[tuple[str, "torch.Tensor"]]
"""(Hugging Face name, whole tensor), one at a time: every weight of the model, or, where adapters are
trained, the adapters alone by their PEFT names."""


@dataclass(frozen=True)
class Sampling:
    """How answers are drawn; the default is the most likely token, always."""

    max_new_tokens: int = 512
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    numbers: Sequence[int] | None = None
    """The prompts' numbers, by which they draw; their places where nothing is said. Part of a larger set of prompts
    draws what it draws as part of the whole."""

    def seed_of(self, place: int) -> int:
        """What decides the draws of the prompt at this place of a call, and nothing else does: 63 bits."""
        number = place if self.numbers is None else self.numbers[place]
        digest = hashlib.blake2b(f"{self.seed} {number}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1


@dataclass(frozen=True)
class Completion:
    """One answer, as tokens."""

    token_ids: list[int]
    """With the token that ended it, where one did."""
    logprobs: list[float]
    """Of each of these tokens, under the model as it is: before temperature and nucleus are applied."""
    finish_reason: str
    """'stop' (it ended by itself) or 'length'."""


@dataclass(frozen=True)
class Score:
    """What a model says about a text that is there: one value for every token after the first."""

    logprobs: list[float]
    likeliest: list[bool]
    """Whether it is the token that the model would have taken."""


@dataclass(frozen=True)
class EngineRequest:
    """What an inference engine is asked to load."""

    model: Path
    """A folder as Hugging Face lays it out, with tokenizer and template."""
    adapter: Path | None = None
    """A PEFT adapter on top of it."""
    dtype: str = "auto"
    """'auto' is what the folder says, where the device has it."""
    device: str | None = None
    batch_size: int | None = None
    """Prompts at a time; None leaves it to the engine."""
    max_length: int | None = None
    """Longest prompt and answer together; None leaves it to the engine."""
    end_tokens: tuple[int, ...] = ()
    """Tokens that end an answer, beside those of the folder's generation config."""
    trust_remote_code: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    """The engine's own settings, by its own names."""
    say: Callable[[str], None] = print
    """Prints a line for the user."""


class InferenceEngine(Protocol):
    """A loaded model that answers. Tokens in, tokens out: templates are rendered by whoever asks."""

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[tuple[int, Completion]]:
        """(place of the prompt, its answer), in the order in which answers are ready. What is drawn at a temperature
        above 0 is decided by `sampling.seed_of(place)` alone. For several answers, repeat the prompt."""

    def stream(self, prompt: Sequence[int], sampling: Sampling) -> Iterator[int]:
        """The tokens of one answer, while it is made."""

    def score(self, prompts: Sequence[Sequence[int]]) -> Iterator[tuple[int, Score]]:
        """(place of the prompt, what the model says about its tokens), in the order in which scores are ready."""

    def update_weights(self, weights: WeightStream) -> None:
        """Go on with these: every weight of the model by its Hugging Face name, as `swift_iter_weights` streams them.
        Answers afterwards owe nothing to the weights before. An engine that was opened with an adapter goes on
        without it: such weights have it merged in."""

    def close(self) -> None:
        """Give memory and processes back. May be called twice."""


@dataclass(frozen=True)
class ServeRequest:
    """What is to be served, and where."""

    model: Path
    """A folder as Hugging Face lays it out, with tokenizer and template."""
    name: str
    """What requests call it."""
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """Name → PEFT adapter, each a model of its own to requests; the first is what users are shown how to ask."""
    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    dtype: str = "auto"
    max_length: int | None = None
    system: str | None = None
    """The system message of the run: requests must bring it themselves, so it stands in what users are shown."""
    chat_template: Path | None = None
    """Replaces the folder's own."""
    trust_remote_code: bool = False
    runtime_adapters: bool = False
    """Whether requests may load and unload adapters."""
    python: Path | None = None
    """The interpreter of another environment to serve from."""
    verbose: bool = False
    """Whether the server's own log is shown while it is written."""
    passed_on: tuple[str, ...] = ()
    """Flags that are not swift's, for the server as they stand."""


@dataclass(frozen=True)
class StepRecord:
    """What observers are told after an optimizer step."""

    step: int
    total_steps: int
    epoch: float
    result: StepResult
    tokens: int
    """Real tokens of the global batch (padding left out)."""
    padded_tokens: int
    """Tokens that went through the model, padding included."""
    seconds: float
    """Wall-clock seconds of this step, waiting for data included."""
    data_seconds: float
    evaluation: Mapping[str, float] | None = None
    memory_gib: float = 0.0


@dataclass(frozen=True)
class RunSummary:
    """What observers are told at the end."""

    status: str
    """'completed', 'stopped' (a signal) or 'failed'."""
    steps: int
    seconds: float
    tokens: int
    last_checkpoint: Path | None
    best_checkpoint: Path | None
    message: str = ""
    signal: int | None = None
    """The signal that stopped the run."""
