"""The configuration of a run: one frozen pydantic model per section; unknown keys are errors.

`swift sft --help` and the configuration reference show the field descriptions. This module does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, field_validator

from swift.config.limits import (
    LARGEST,
    MOST_PROCESSES,
    BelowOne,
    FilePath,
    FolderName,
    Fraction,
    Interval,
    Name,
    Rows,
    Seed,
    Steps,
    Tokens,
    Ways,
)
from swift.config.options import Aliases, Shorthand
from swift.config.options import Section as Section

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Options = TypeVar("Options", bound=BaseModel)
DEFAULT_OBSERVERS = ("console", "jsonl", "tensorboard", "report")
COPIES = "copies"
"""The observer that `checkpoint.copy_to` adds."""


class OpenSection(Section):
    """Base class of sections that select a plugin, which owns and validates the other keys."""

    model_config = ConfigDict(frozen=True, extra="allow", validate_default=True)

    def options(self, model: type[Options]) -> Options:
        """Return the plugin's own keys as its model, without keys that the model does not have."""
        given = self.model_extra or {}
        return model.model_validate({name: value for name, value in given.items() if name in model.model_fields})


class ModelSection(Section):
    """The model to train, and its precision."""

    path: Name | None = Field(None, description="Folder, hub id, or a short name such as qwen3-7b")
    revision: Name | None = Field(None, description="Branch, tag or commit on the hub")
    dtype: Dtype = Field(
        "auto", description="Precision of computation; auto is bfloat16 on a GPU that supports it, else float32"
    )
    attention: Literal["auto", "flash_attention_3", "flash_attention_2", "flex_attention", "sdpa", "eager"] = Field(
        "auto", description="Attention kernel; auto selects the fastest on this machine and prints its name"
    )
    experts_impl: Literal["auto", "eager", "batched_mm", "grouped_mm"] = Field(
        "auto", description="How the experts of a mixture are computed; auto is grouped_mm where the model supports it"
    )
    random_weights: bool = Field(False, description="Start from random weights; path needs only a config.json")
    chat_template: FilePath | None = Field(None, description="Jinja file that replaces the tokenizer's chat template")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model")
    rope_scaling: Literal["yarn", "linear", "llama3"] | None = Field(
        None, description="Scale rotary positions for sequences longer than the model's positions; needs max_model_len"
    )
    max_model_len: Tokens | None = Field(None, description="Longest sequence after rope_scaling, in tokens")
    liger: bool = Field(False, description="Liger kernels (GPU only, needs liger-kernel)")
    task: Literal["causal_lm", "seq_cls", "reward", "value", "embedding"] = Field(
        "causal_lm",
        description="What the model returns: the next token (causal_lm), scores of a text (seq_cls, reward), a value "
        "of every token (value), or a vector (embedding)",
    )
    num_labels: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        None, description="Scores per text of a seq_cls head; default: those of the head in path, else 2"
    )
    labels: tuple[Name, ...] = Field((), description="Label names of a seq_cls head, in the order of its scores")
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = Field(
        None,
        description="Meaning of the scores of a seq_cls head: one class per text, several classes, or numbers; "
        "default: regression with one label, else single_label_classification",
    )
    pooling: Literal["last", "mean", "cls"] = Field(
        "last",
        description="The vector of a text: the hidden state of its last token, their mean, or that of its first; "
        "default: what modules.json declares, else mean for an encoder and last for a decoder",
    )
    value_head: bool = Field(
        False,
        description="Add a head that returns a value of every token, for objectives that train it (ppo with --critic "
        "shared sets this); exports leave it out",
    )


class DataSection(Section):
    """Data to train and evaluate on."""

    train: tuple[Name, ...] = Field(
        (),
        description="[hf::|ms::]path_or_id[:subset][#N], a URL (s3://...) or tokenized data; several are concatenated",
    )
    validation: tuple[Name, ...] = Field((), description="Same syntax; evaluated every train.eval_steps")
    split_ratio: BelowOne = Field(0.0, description="Fraction of the training set to hold out for validation")
    columns: dict[Name, Name] = Field(default_factory=dict, description='Renames columns: {"question": "query"}')
    system: str | None = Field(None, description="System message of samples that have none")
    max_length: Tokens = Field(2048, description="Maximum length of a sample, and of a pack, in tokens")
    truncation: Literal["delete", "right", "left", "split"] = Field(
        "delete", description="Handling of longer samples: drop, truncate on a side, or split (pt only)"
    )
    loss_on: Literal["auto", "all", "assistant", "last_round"] = Field(
        "auto", description="Tokens with loss: auto is assistant for sft, last_round for preferences, all for pt"
    )
    packing: bool = Field(False, description="Pack several samples into one row; attention stays within each sample")
    padding_free: bool | None = Field(
        None,
        description="Concatenate the samples of a micro-batch instead of padding; default: true for models that score "
        "(model.task) if the attention kernel needs no mask",
    )
    shuffle: bool = Field(True, description="Shuffle the samples in every epoch, by the seed")
    streaming: bool = Field(False, description="Read the data set while training; needs train.max_steps")
    strict: bool = Field(
        False,
        description="Fail on an unusable sample instead of skipping it, and on QLoRA that cannot quantize all matrices",
    )
    workers: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = Field(
        0, description="Processes that tokenize; 0 is the number of cores"
    )
    cache: FilePath | None = Field(None, description="Folder of tokenized data; default: the user's cache folder")
    template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Passed to the chat template")
    media_root: FilePath | None = Field(
        None, description="Folder that image paths are relative to; default: the folder of the data file"
    )
    media_check: Literal["none", "header", "decode"] = Field(
        "header",
        description="Check of every image before training: none once it is tokenized, that its file exists unchanged "
        "(header), or decode it",
    )
    web: Literal["no", "public", "any"] = Field(
        "no",
        description="Download images and audio from http addresses in rows, once each: from public hosts only, or from "
        "any host, including private networks and this machine",
    )
    max_pixels: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Downscale images with more pixels; default: the limit of the model's processor"
    )
    min_pixels: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Upscale images with fewer pixels; default: the limit of the model's processor"
    )
    video_fps: Annotated[float, Field(gt=0, le=1000)] = Field(
        2.0, description="Frames per second that are sampled from a video"
    )
    video_max_frames: Annotated[int, Field(ge=1, le=LARGEST)] = Field(
        32, description="Maximum number of frames per video; those of a longer video are further apart"
    )
    bounding_boxes: Literal["auto", "norm1000", "none"] = Field(
        "auto",
        description="Coordinates of <bbox> in rows with `objects`: thousandths of the image (norm1000), or pixels of "
        "the resized image (none); auto is the model's own format",
    )
    decode_threads: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = Field(
        2, description="Threads per process that decode images during steps; 0 decodes images when they are needed"
    )
    decode_ahead_mb: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        512, description="MiB per process for images decoded ahead; 0 decodes images when they are needed"
    )


class TunerSection(OpenSection):
    """The weights to train. Keys that are not listed here belong to the tuner."""

    kind: Name = Field("lora", description="full (all weights), lora (low-rank adapters), or an installed plugin's")
    quantize: Literal["none", "bnb-nf4", "bnb-fp4", "bnb-int8", "torchao-nf4"] = Field(
        "none", description="QLoRA: storage format of the frozen weights"
    )
    double_quant: bool = Field(True, description="With bnb-nf4 and bnb-fp4, quantize the scales of the weights as well")
    adapter: FilePath | None = Field(None, description="Adapter folder to continue from")
    freeze_vit: bool | None = Field(
        None, description="Freeze the vision and audio encoders; default: true, unless patterns select weights"
    )
    freeze_aligner: bool | None = Field(
        None, description="Freeze the layers between encoder and language model; default: as freeze_vit"
    )
    freeze_llm: bool | None = Field(
        None, description="Freeze the language model, if an encoder or aligner is trained; default: false"
    )
    freeze_router: bool = Field(False, description="Freeze the routers of a mixture of experts")


class ObjectiveSection(OpenSection):
    """The loss to minimize. Keys that are not listed here belong to the objective."""

    name: Name = Field(
        "sft",
        description="pt, sft, dpo, kto, orpo, simpo, cpo, rm, prm, grpo, ppo, gkd, seq_cls, embedding, reranker, "
        "generative_reranker, an installed plugin's, or your own: FILE.py:NAME",
    )


Shape = Literal[
    "cosine", "linear", "constant", "polynomial", "cosine_with_restarts", "inverse_sqrt", "wsd", "warmup_stable_decay"
]
Curve = Literal["linear", "cosine", "1-sqrt"]
_StepCount = Annotated[int, Field(ge=0, le=LARGEST)]


class ScheduleOptions(Section):
    """Options of individual schedules, by their names in transformers."""

    num_cycles: Annotated[float, Field(gt=0.0, le=1e6)] | None = Field(
        None, description="Waves of cosine (default 0.5), or restarts of cosine_with_restarts (default 1)"
    )
    power: Annotated[float, Field(gt=0.0, le=1e3)] = Field(1.0, description="Power of polynomial")
    timescale: Steps | None = Field(
        None, description="Timescale of inverse_sqrt; default: the warm-up steps, else 10000"
    )
    num_decay_steps: _StepCount | None = Field(None, description="Decay steps of wsd; overrides decay_ratio")
    num_stable_steps: _StepCount | None = Field(None, description="Stable steps of wsd; default: the remaining steps")
    decay_type: Curve = Field("cosine", description="Curve of the decay of wsd")
    warmup_type: Curve = Field("linear", description="Curve of the warm-up of wsd")


LEARNING_RATE = 1e-4
"""Learning rate where neither the user nor the tuner sets one."""


class OptimSection(OpenSection):
    """Optimizer and learning-rate schedule. Keys that are not listed here belong to the optimizer."""

    name: Name = Field("adamw", description="adamw, adafactor, or an installed plugin's, such as adamw_8bit")
    lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="Peak learning rate; default 1e-5 full, 1e-4 LoRA"
    )
    vit_lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="Peak learning rate of the vision encoder; default: optim.lr"
    )
    aligner_lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="Peak learning rate of the layers between encoder and language model; default: optim.lr"
    )
    schedule: Shape = Field("cosine", description="Shape of the learning rate after the warm-up")
    schedule_options: ScheduleOptions | None = Field(
        None, description='Options of individual schedules: {"num_cycles": 2}, {"power": 2.0}'
    )
    warmup_ratio: Fraction = Field(0.05, description="Warm-up as a fraction of all steps")
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        None, description="Warm-up steps, or below 1 a fraction of all steps; overrides warmup_ratio"
    )
    min_lr: Annotated[float, Field(ge=0.0, le=1e3)] | None = Field(
        None, description="Final learning rate; default 0, and 1e-7 for polynomial"
    )
    min_lr_ratio: Fraction | None = Field(None, description="Final learning rate as a fraction of the peak")
    decay_ratio: Fraction = Field(0.1, description="Decay of wsd as a fraction of all steps")
    weight_decay: NonNegativeFloat = Field(0.1, description="Weight decay of matrices and embeddings")
    max_grad_norm: NonNegativeFloat = Field(1.0, description="Maximum gradient norm; 0 does not clip")


class ParallelSection(Section):
    """The layout of processes: world = dp × tp × pp × cp × ulysses, where dp = dp_replicate × dp_shard."""

    dp_replicate: Ways | None = Field(None, description="Replicas of the model")
    dp_shard: Ways | None = Field(None, description="Processes that share one replica's state")
    tp: Ways = Field(1, description="Tensor parallel: a layer's matrices are sharded")
    pp: Ways = Field(1, description="Pipeline parallel: the layers are divided into stages")
    vpp: Ways = Field(1, description="Virtual stages per pipeline rank (interleaving)")
    cp: Ways = Field(1, description="Context parallel: a sequence is sharded")
    ep: Ways = Field(1, description="Expert parallel: the experts of an MoE are distributed")
    etp: Ways = Field(1, description="Tensor parallel inside the experts")
    sequence_parallel: bool = Field(False, description="Shard activations between tensor parallel regions")
    ulysses: Ways = Field(1, description="Sequence parallel by all-to-all over attention heads")


class TrainSection(Section):
    """Duration, batches, precision and evaluation."""

    epochs: Annotated[float, Field(gt=0.0, le=1e6)] = Field(1.0, description="Passes over the data")
    max_steps: Steps | None = Field(None, description="Optimizer steps; overrides epochs")
    micro_batch: Rows = Field(1, description="Rows per process and forward pass")
    accumulation: Rows = Field(1, description="Micro-batches per process and optimizer step")
    global_batch: Rows | None = Field(
        None, description="Rows per optimizer step over all processes; sets accumulation, or else micro_batch"
    )
    neftune_alpha: Annotated[float, Field(ge=0.0, le=1e6)] = Field(
        0.0, description="NEFTune: scale of the noise added to embeddings in training; 0 is off"
    )
    pad_token: bool = Field(
        False,
        description="Train the embedding of the padding token too; transformers gives it no gradient (padding_idx), "
        "even where the padding token also ends every text",
    )
    router_aux_loss: NonNegativeFloat = Field(
        0.0, description="Mixture of experts: weight of the loss that balances the load of experts within each sample"
    )
    router_z_loss: NonNegativeFloat = Field(
        0.0, description="Mixture of experts: weight of the loss that keeps the logits of routers small"
    )
    router_bias_rate: NonNegativeFloat = Field(
        0.0,
        description="Mixture of experts: change, per step, of the biases that correct the choice of experts towards "
        "equal load (DeepSeek-V3)",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass")
    compile: bool = Field(False, description="torch.compile the model")
    seed: Seed = Field(42, description="Seed of adapter initialization, order of samples and dropout")
    data_seed: Seed | None = Field(
        None, description="Seed of the order of samples and of the held-out rows; default: seed"
    )
    deterministic: bool = Field(False, description="Use only deterministic kernels, which are slower on a GPU")
    tf32: bool | None = Field(
        None, description="Multiply float32 matrices in TF32 on a GPU that supports it; default: torch's setting (off)"
    )
    eval_strategy: Literal["steps", "epoch", "no"] | None = Field(
        None, description="When to evaluate; default: steps if eval_steps is set, else epoch"
    )
    eval_steps: Interval | None = Field(None, description="Evaluate every N steps; 0.1 is a tenth of all steps")
    eval_on_start: bool = Field(False, description="Also evaluate before the first step")
    eval_batch: Rows | None = Field(None, description="Rows per process in evaluation; default: micro_batch")
    metric_for_best: Name = Field("loss", description="Evaluation metric that selects the best checkpoint")
    greater_is_better: bool | None = Field(
        None, description="Whether a larger metric is better; default: true, unless it is a loss"
    )
    early_stopping: Steps | None = Field(None, description="Stop after N evaluations without improvement")
    detect_nan: bool = Field(True, description="Stop before an update with a non-finite loss or gradient")
    timeout_minutes: Annotated[float, Field(ge=0.001, le=525_600)] = Field(
        8.0,
        description="Stop a run of several processes after this long without progress, and name the stalled processes",
    )

    @property
    def order_seed(self) -> int:
        """Return the seed of the order of samples."""
        return self.seed if self.data_seed is None else self.data_seed


class CheckpointSection(Section):
    """The checkpoints that a run keeps, and the one that it resumes from."""

    save_strategy: Literal["steps", "epoch", "best", "no"] | None = Field(
        None,
        description="When to save: best is after each evaluation that improves, no is only at the end; default: steps "
        "if save_steps is set, else after each epoch, or after every few that have 50 steps together",
    )
    save_steps: Interval | None = Field(None, description="Save every N steps; 0.1 is a tenth of all steps")
    keep: Steps | None = Field(3, description="Keep the N newest checkpoints and the best; none keeps all of them")
    resume: Name | None = Field(
        None,
        description="Checkpoint or run folder to resume from; 'last' is the newest run, 'auto' the run of "
        "logging.run_name (started if it does not exist)",
    )
    asynchronous: bool = Field(False, description="Write in the background while training continues")
    optimizer_state: bool = Field(
        True, description="Save the optimizer state; a checkpoint without it cannot be resumed"
    )
    model_weights: bool = Field(True, description="Also save the adapter or weights in Hugging Face format")
    save_last: bool = Field(True, description="Save after the last step")
    copy_to: Name | None = Field(
        None,
        description="URL (s3://bucket/runs) to copy each checkpoint and the run's files to during training; "
        "--resume_from_checkpoint auto downloads them on another machine",
    )


class LoggingSection(Section):
    """The run's folder, and what is logged into it."""

    output: FilePath = Field(Path("output"), description="Parent of the run's folder")
    run_name: FolderName | None = Field(None, description="Name of the run's folder; default: MODEL/vN-DATE-TIME")
    strategy: Literal["steps", "epoch", "no"] = Field(
        "steps", description="When to log; the first step, the last step and evaluations are always logged"
    )
    steps: Interval = Field(5, description="Log every N steps; 0.1 is a tenth of all steps")
    time_breakdown: _StepCount = Field(
        50,
        description="Measure the time breakdown every N steps: compute, communication, waiting for data and optimizer, "
        "and the slowest process; 0 is off",
    )
    expert_load: bool = Field(True, description="Log how tokens are distributed over the experts of a mixture")
    report_to: tuple[Name, ...] = Field(
        DEFAULT_OBSERVERS,
        description="Observers, by entry-point name; by default those of the four that are installed",
    )
    project: Name | None = Field(
        None, description="Project in an experiment tracker; default: the tracker's environment variable, else swift"
    )


class BackendSection(OpenSection):
    """The backend that trains. Keys that are not listed here belong to the backend."""

    name: Name = Field("torch", description="torch, or an installed plugin's: see `swift plugins`")


class ExportSection(OpenSection):
    """Export at the end of a run."""

    to: Name | None = Field(None, description="Export at the end of the run: hf (merged), adapter, or a plugin's")
    out: FilePath | None = Field(None, description="Destination; default: a folder in the run's")
    dtype: Dtype = Field("auto", description="Precision of the exported weights; auto is the model's own")
    shard_size_gb: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(5.0, description="Largest safetensors file, in GB")
    exist_ok: bool = Field(False, description="Replace an existing export")
    verify: Literal["transformers", "all", "none"] = Field(
        "transformers",
        description="Reload the export and compare it with the training state: with transformers, or (all) also with "
        "an installed inference engine",
    )

    @field_validator("verify", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        """Accept true and false."""
        name = str(value).lower() if isinstance(value, bool | str) else ""
        return {"true": "transformers", "false": "none"}.get(name, value)


class ExportOptions(ExportSection):
    """Format, verification and quantization of the export."""

    verify: Annotated[Literal["transformers", "all", "none"], Shorthand("no_verify", "none")] = Field(
        "transformers",
        description="Reload the export and compare it with the training state: with transformers (seconds), or (all) "
        "also with an installed inference engine (a minute or more)",
    )
    shard_size_gb: Annotated[float, Field(ge=1e-6, le=1e6), Aliases("max_shard_size")] = Field(
        5.0, description="Largest safetensors file, in GB; 5GB and 500MB are valid too"
    )
    quant: Annotated[Name | None, Aliases("quant_method")] = Field(
        None, description="Quantization scheme of an installed exporter; an unknown name lists the schemes"
    )
    quant_tolerance: PositiveFloat | None = Field(
        None,
        description="Maximum increase of the loss per token by quantization, in nats; default: the scheme's tolerance",
    )
    calibration_dataset: Annotated[tuple[Name, ...], Aliases("dataset")] = Field(
        (), description="Calibration data, with the syntax of data.train; default: the run's training data"
    )
    calibration_samples: Annotated[Rows, Aliases("quant_n_samples")] = Field(
        128, description="Number of calibration samples"
    )
    push: Annotated[Name | None, Aliases("hub_model_id")] = Field(
        None, description="Hugging Face Hub repository, or URL (s3://bucket/model), to upload to after verification"
    )

    @field_validator("shard_size_gb", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        """Accept a size with its unit, as the Hugging Face libraries do: 5GB."""
        found = re.fullmatch(r"([\d.]+) ?(G|M)i?B", value.strip(), re.IGNORECASE) if isinstance(value, str) else None
        return value if found is None else float(found[1]) / (1 if found[2] in "Gg" else 1000)


class Config(Section):
    """The whole configuration of a run."""

    model: ModelSection = Field(default_factory=ModelSection)
    data: DataSection = Field(default_factory=DataSection)
    tuner: TunerSection = Field(default_factory=TunerSection)
    objective: ObjectiveSection = Field(default_factory=ObjectiveSection)
    optim: OptimSection = Field(default_factory=OptimSection)
    parallel: ParallelSection = Field(default_factory=ParallelSection)
    train: TrainSection = Field(default_factory=TrainSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    logging: LoggingSection = Field(default_factory=LoggingSection)
    backend: BackendSection = Field(default_factory=BackendSection)
    export: ExportSection = Field(default_factory=ExportSection)

    @property
    def learning_rate(self) -> float:
        """Return the peak learning rate; parsing fills in the tuner's where the user set none."""
        return self.optim.lr or LEARNING_RATE

    @property
    def observers(self) -> tuple[str, ...]:
        """Return the names of the run's observers."""
        return (*self.logging.report_to, *((COPIES,) if self.checkpoint.copy_to is not None else ()))

    def changed(self, **sections: Mapping[str, Any]) -> Config:
        """Return the configuration with other values: section → key → value, which is valid already."""
        update = {name: getattr(self, name).model_copy(update=values) for name, values in sections.items()}
        return self.model_copy(update=update)
