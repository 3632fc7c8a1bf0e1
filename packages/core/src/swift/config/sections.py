"""The configuration of a run: one frozen pydantic model per section, unknown keys refused.

Field descriptions are what `swift sft --help` and the configuration reference show. This module does not import torch.
"""

from __future__ import annotations

import re
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
from swift.errors import UnsupportedLayout

Dtype = Literal["auto", "float32", "bfloat16", "float16"]
Options = TypeVar("Options", bound=BaseModel)
COPIES = "copies"
"""The observer that `checkpoint.copy_to` brings."""


class OpenSection(Section):
    """Base of sections that a plugin is selected in: the other keys are that plugin's own, and validated by it."""

    model_config = ConfigDict(frozen=True, extra="allow", validate_default=True)

    def options(self, model: type[Options]) -> Options:
        """Return the plugin's own keys as its model; keys that the model does not know are left out."""
        given = self.model_extra or {}
        return model.model_validate({name: value for name, value in given.items() if name in model.model_fields})


class ModelSection(Section):
    """Which model is trained, and in which precision."""

    path: Name | None = Field(None, description="Folder, hub id, or a short name such as qwen3-7b")
    revision: Name | None = Field(None, description="Branch, tag or commit on the hub")
    dtype: Dtype = Field(
        "auto", description="Precision of the arithmetic; auto is bfloat16 on a GPU that has it, else float32"
    )
    attention: Literal["auto", "flash_attention_2", "sdpa", "eager"] = Field(
        "auto", description="Attention kernel; auto takes the fastest that this machine has and says which"
    )
    random_weights: bool = Field(False, description="Start from random weights; path needs only a config.json")
    chat_template: FilePath | None = Field(None, description="Jinja file that replaces the tokenizer's chat template")
    trust_remote_code: bool = Field(False, description="Run Python code that comes with the model")
    liger: bool = Field(False, description="Liger kernels (GPU only, needs liger-kernel)")
    task: Literal["causal_lm", "seq_cls", "reward", "value", "embedding"] = Field(
        "causal_lm",
        description="What the model is to return: the next token (causal_lm), scores of a text (seq_cls, reward), a "
        "value of every token (value), or a vector (embedding)",
    )
    num_labels: Annotated[int, Field(ge=1, le=2**16)] | None = Field(
        None, description="Scores per text of a seq_cls head; default: as many as the head in path has, or else 2"
    )
    labels: tuple[Name, ...] = Field(
        (), description="Names of the labels of a seq_cls head, in the order of its scores"
    )
    problem_type: Literal["single_label_classification", "multi_label_classification", "regression"] | None = Field(
        None,
        description="What the scores of a seq_cls head are: of one class for each text, of several, or numbers; "
        "default: regression with one label, else single_label_classification",
    )
    pooling: Literal["last", "mean", "cls"] = Field(
        "last", description="The vector of a text: the hidden state of its last token, of its first, or their mean"
    )
    value_head: bool = Field(
        False,
        description="Put a head next to the unembedding that returns a value of every token, for objectives that train "
        "it (ppo with --critic shared sets this); exports leave it out",
    )


class DataSection(Section):
    """Data to train and evaluate on."""

    train: tuple[Name, ...] = Field(
        (),
        description="[hf::|ms::]path_or_id[:subset][#N], a URL (s3://...) or tokenised data; several are concatenated",
    )
    validation: tuple[Name, ...] = Field((), description="Same syntax; evaluated every train.eval_steps")
    split_ratio: BelowOne = Field(0.0, description="Part of the training set to keep for validation")
    columns: dict[Name, Name] = Field(default_factory=dict, description='Renames columns: {"question": "query"}')
    system: str | None = Field(None, description="System message where a sample has none")
    max_length: Tokens = Field(2048, description="Longest sample, and size of a pack, in tokens")
    truncation: Literal["delete", "right", "left", "split"] = Field(
        "delete", description="How longer samples are shortened; split is for pt only"
    )
    loss_on: Literal["auto", "all", "assistant", "last_round"] = Field(
        "auto", description="Which text is learned: auto is assistant for sft, last_round for preference, all for pt"
    )
    packing: bool = Field(False, description="Pack several samples into one row; attention never crosses them")
    padding_free: bool | None = Field(
        None,
        description="Concatenate the samples of a micro-batch instead of padding; default: true for models that score "
        "(model.task), where the attention kernel needs no mask for it",
    )
    shuffle: bool = Field(True, description="Permute the samples in every epoch (the seed decides how)")
    streaming: bool = Field(False, description="Read the data set while training; needs train.max_steps")
    strict: bool = Field(
        False,
        description="An unusable sample is an error instead of a counted one, and so is QLoRA that quantizes a part "
        "of the matrices only",
    )
    workers: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = Field(
        0, description="Processes that tokenise; 0 takes the number of cores"
    )
    cache: FilePath | None = Field(None, description="Folder of tokenised data; default: the user's cache folder")
    template_kwargs: dict[str, Any] = Field(default_factory=dict, description="Passed to the chat template")
    media_root: FilePath | None = Field(
        None, description="Folder that paths of images begin at; default: the one of the data file"
    )
    media_check: Literal["none", "header", "decode"] = Field(
        "header",
        description="What is looked at of every image before training: nothing again once it is tokenised, that its "
        "file is there and unchanged, or all of it",
    )
    web: Literal["no", "public", "any"] = Field(
        "no",
        description="Whether images and sounds are fetched, once each, from the http addresses that rows name: from "
        "the public web alone, or from any host, those of private networks and this machine included",
    )
    max_pixels: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Images with more pixels are made smaller; default: as the model's processor says"
    )
    min_pixels: Annotated[int, Field(ge=1, le=LARGEST)] | None = Field(
        None, description="Images with fewer pixels are made larger; default: as the model's processor says"
    )
    video_fps: Annotated[float, Field(gt=0, le=1000)] = Field(
        2.0, description="Images of each second of a video that a model is shown, one after the other"
    )
    video_max_frames: Annotated[int, Field(ge=1, le=LARGEST)] = Field(
        32, description="Images of a video at most; those of a longer one are further apart"
    )
    boxes: Literal["auto", "norm1000", "none"] = Field(
        "auto",
        description="How <bbox> of rows with `objects` is written: in thousandths of the image (norm1000), or in "
        "pixels of the image as the model sees it (none); auto is what the model was taught",
    )
    decode_threads: Annotated[int, Field(ge=0, le=MOST_PROCESSES)] = Field(
        2, description="Threads of each process that decode images while steps run; 0 decodes when they are needed"
    )
    decode_ahead_mb: Annotated[int, Field(ge=0, le=LARGEST)] = Field(
        512, description="MiB of each process for images that are decoded ahead; 0 decodes when they are needed"
    )


class TunerSection(OpenSection):
    """Which weights are trained. Keys that are not listed here are the tuner's own."""

    kind: Name = Field("lora", description="full (all weights), lora (low-rank adapters), or an installed plugin's")
    quantize: Literal["none", "bnb-nf4", "bnb-fp4", "bnb-int8", "torchao-nf4"] = Field(
        "none", description="QLoRA: how the frozen weights are stored"
    )
    double_quant: bool = Field(
        True, description="With bnb-nf4 and bnb-fp4, store the scales of the weights in fewer bits as well"
    )
    adapter: FilePath | None = Field(None, description="Adapter folder to continue from")
    freeze_vit: bool | None = Field(
        None, description="Leave the tower that reads images as it is; default: true, unless patterns choose weights"
    )
    freeze_aligner: bool | None = Field(
        None, description="Leave the layers between tower and language model as they are; default: as freeze_vit"
    )
    freeze_llm: bool | None = Field(
        None, description="Leave the language model as it is, where a tower or aligner is trained; default: false"
    )


class ObjectiveSection(OpenSection):
    """The loss to minimise. `name` is an entry point of `swift.objectives`; the other keys are that objective's own."""

    name: Name = Field(
        "sft",
        description="pt, sft, dpo, kto, orpo, simpo, cpo, rm, prm, grpo, ppo, gkd, seq_cls, embedding, reranker, "
        "generative_reranker, or an installed plugin's",
    )


Shape = Literal[
    "cosine",
    "linear",
    "constant",
    "polynomial",
    "cosine_with_restarts",
    "inverse_sqrt",
    "wsd",
    "warmup_stable_decay",
]
Curve = Literal["linear", "cosine", "1-sqrt"]
_StepCount = Annotated[int, Field(ge=0, le=LARGEST)]


class ScheduleOptions(Section):
    """Options of some schedules besides warm-up and floor, by the names that transformers gives them."""

    num_cycles: Annotated[float, Field(gt=0.0, le=1e6)] | None = Field(
        None, description="Waves of cosine (0.5 unless given), or restarts of cosine_with_restarts (1)"
    )
    power: Annotated[float, Field(gt=0.0, le=1e3)] = Field(1.0, description="Of polynomial")
    timescale: Steps | None = Field(None, description="Of inverse_sqrt; default: the steps of warm-up, or else 10000")
    num_decay_steps: _StepCount | None = Field(None, description="Of wsd; overrides decay_ratio")
    num_stable_steps: _StepCount | None = Field(None, description="Of wsd; default: those that are left")
    decay_type: Curve = Field("cosine", description="Of wsd")
    warmup_type: Curve = Field("linear", description="Of wsd")


LEARNING_RATE = 1e-4
"""Where neither the user nor a tuner names one."""


class OptimSection(OpenSection):
    """Optimizer and learning-rate schedule. Keys that are not listed here are the optimizer's own."""

    name: Name = Field("adamw", description="adamw, adamw_8bit, adafactor, or an installed plugin's")
    lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="Peak learning rate; default 1e-5 full, 1e-4 LoRA"
    )
    vit_lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="That of the tower which sees images; default: optim.lr"
    )
    aligner_lr: Annotated[float, Field(gt=0.0, le=1e3)] | None = Field(
        None, description="That of what leads from the tower to the language model; default: optim.lr"
    )
    schedule: Shape = Field("cosine", description="Shape after the warm-up")
    schedule_options: ScheduleOptions | None = Field(
        None, description='What some schedules take: {"num_cycles": 2}, {"power": 2.0}'
    )
    warmup_ratio: Fraction = Field(0.05, description="Part of all steps spent warming up")
    warmup_steps: Annotated[int, Field(ge=0, le=LARGEST)] | None = Field(
        None, description="Steps of warm-up; overrides warmup_ratio, and is a part of all steps below 1"
    )
    min_lr: Annotated[float, Field(ge=0.0, le=1e3)] | None = Field(
        None, description="Learning rate at the end; default 0, and 1e-7 for polynomial"
    )
    min_lr_ratio: Fraction | None = Field(None, description="The same as part of the peak")
    decay_ratio: Fraction = Field(0.1, description="Part of all steps in which wsd decays")
    weight_decay: NonNegativeFloat = Field(0.1, description="On matrices and embeddings, not on biases and norms")
    max_grad_norm: NonNegativeFloat = Field(1.0, description="Clip the gradient norm to this; 0 does not clip")


class ParallelSection(Section):
    """The parallel plan: world = dp × tp × pp × cp × ulysses, where dp = dp_replicate × dp_shard."""

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

    @property
    def sharing(self) -> int:
        """How many processes work on the same samples."""
        return self.tp * self.pp * self.cp * self.ulysses

    def data_parallel(self, world: int, *, replicas: int | None = None) -> tuple[int, int]:
        """`dp_replicate` and `dp_shard` in force on so many processes; `dp_shard` takes up what was left open.

        `replicas` is for a backend that has a number of its own where `dp_replicate` is left open. Raises
        `UnsupportedLayout` where the sizes do not multiply to `world`.
        """
        replicate = self.dp_replicate or replicas or 1
        shard = self.dp_shard or max(1, world // (self.sharing * replicate))
        requested = self.sharing * replicate * shard
        if requested == world:
            return replicate, shard
        sizes = {
            "tp": self.tp, "pp": self.pp, "cp": self.cp, "ulysses": self.ulysses,
            "dp_replicate": replicate, "dp_shard": shard,
        }  # fmt: skip
        product = " × ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "dp_shard 1"
        instead = ", or leave --parallel.dp_shard out." if self.dp_shard else " or a multiple of it."
        raise UnsupportedLayout(
            f"The plan {product} takes {requested} processes, but {world} were started.",
            hint=f"Start with --nproc {requested}{instead}",
        )


class TrainSection(Section):
    """How long, in which batches, and what is watched."""

    epochs: Annotated[float, Field(gt=0.0, le=1e6)] = Field(1.0, description="Passes over the data")
    max_steps: Steps | None = Field(None, description="Optimizer steps; overrides epochs")
    micro_batch: Rows = Field(1, description="Rows that one process takes at a time")
    accumulation: Rows = Field(1, description="Micro-batches per process and optimizer step")
    global_batch: Rows | None = Field(
        None,
        description="Rows per optimizer step over all processes; accumulation, or else micro_batch, follows from it",
    )
    neftune_alpha: Annotated[float, Field(ge=0.0, le=1e6)] = Field(
        0.0, description="NEFTune: size of the noise on embeddings while training; 0 is none"
    )
    pad_token: bool = Field(
        False,
        description="Let the padding token's row of the embedding learn from inputs; transformers gives it no gradient "
        "(padding_idx), also where the padding token ends every text",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in the backward pass")
    compile: bool = Field(False, description="torch.compile the model")
    seed: Seed = Field(42, description="Seed of initial adapters, order of samples and dropout")
    data_seed: Seed | None = Field(
        None, description="Seed of the order of samples and of which rows are held out; default: seed"
    )
    deterministic: bool = Field(False, description="Use deterministic kernels only, which are slower on a GPU")
    tf32: bool | None = Field(
        None, description="Multiply float32 matrices in TF32 on a GPU that has it; default: as torch is set (off)"
    )
    eval_strategy: Literal["steps", "epoch", "no"] | None = Field(
        None, description="When to evaluate; default: epoch, or steps where eval_steps is given"
    )
    eval_steps: Interval | None = Field(None, description="Evaluate every N steps; 0.1 is a tenth of all steps")
    eval_on_start: bool = Field(False, description="Evaluate before the first step too")
    eval_batch: Rows | None = Field(None, description="Rows per process in evaluation; default micro_batch")
    metric_for_best: Name = Field("loss", description="Which evaluation metric picks the best checkpoint")
    greater_is_better: bool | None = Field(
        None, description="Whether a larger value of it is better; default: yes, unless it is a loss"
    )
    early_stopping: Steps | None = Field(None, description="Stop after N evaluations without a better one")
    detect_nan: bool = Field(True, description="Stop before an update whose loss or gradient is not finite")
    timeout_minutes: Annotated[float, Field(ge=0.001, le=525_600)] = Field(
        8.0,
        description="End a run of several processes that made no progress for this long, and name the ones waited for",
    )

    @property
    def order_seed(self) -> int:
        """Return the seed of the order of samples in force."""
        return self.seed if self.data_seed is None else self.data_seed


class CheckpointSection(Section):
    """Which checkpoints a run keeps, and which one it starts from."""

    save_strategy: Literal["steps", "epoch", "best", "no"] | None = Field(
        None,
        description="When to save: best after an evaluation that is the best so far, no only where the run ends; "
        "default: epoch, or steps where save_steps is given",
    )
    save_steps: Interval | None = Field(None, description="Save every N steps; 0.1 is a tenth of all steps")
    keep: Steps | None = Field(3, description="Keep the N newest checkpoints and the best; none keeps all")
    resume: Name | None = Field(
        None,
        description="Checkpoint or run folder to resume from; 'last' for the newest run; 'auto' for the run of "
        "logging.run_name, which is started if it does not exist",
    )
    asynchronous: bool = Field(False, description="Write in the background while training continues")
    optimizer_state: bool = Field(
        True, description="Write the optimizer's state; a checkpoint without it cannot be resumed from"
    )
    model_weights: bool = Field(True, description="Also write the adapter or Hugging Face weights, ready to load")
    save_last: bool = Field(True, description="Save after the last step")
    copy_to: Name | None = Field(
        None,
        description="URL (s3://bucket/runs) to copy each checkpoint and the run's files to while the training goes on; "
        "--resume_from_checkpoint auto finds them there on a machine that lost them",
    )


class LoggingSection(Section):
    """Where a run's folder is and what is written into it."""

    output: FilePath = Field(Path("output"), description="Parent of the run's folder")
    run_name: FolderName | None = Field(
        None, description="Name of the run's folder; default vN-date-time under the model's"
    )
    strategy: Literal["steps", "epoch", "no"] = Field(
        "steps", description="When to log; the first step, the last and evaluations are logged always"
    )
    steps: Interval = Field(5, description="Log every N steps; 0.1 is a tenth of all steps")
    shares: _StepCount = Field(
        50,
        description="Measure every N steps what their time goes into: computing, communication, waiting for data, the "
        "optimizer, and on which process; 0 measures nothing",
    )
    report_to: tuple[Name, ...] = Field(
        ("console", "jsonl", "tensorboard", "report"), description="Observers, by entry point name"
    )
    project: Name | None = Field(
        None, description="Project in an experiment tracker; default: the tracker's own environment variable, or swift"
    )


class BackendSection(OpenSection):
    """Which backend trains. The other keys are that backend's own and are validated by its plugin."""

    name: Name = Field("torch", description="torch, or an installed plugin's: see `swift plugins`")


class ExportSection(Section):
    """Export at the end of a run, and how `swift export` writes."""

    to: Name | None = Field(None, description="Export at the end of the run: hf (merged), adapter, or a plugin's")
    out: FilePath | None = Field(None, description="Destination; default: a folder in the run's")
    dtype: Dtype = Field("auto", description="Precision of the exported weights; auto is the model's own")
    shard_size_gb: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(5.0, description="Largest safetensors file")
    exist_ok: bool = Field(False, description="Replace an existing export")
    verify: Literal["transformers", "all", "none"] = Field(
        "transformers",
        description="Reload and compare with the training state before calling it done: by transformers, or by "
        "an inference engine as well where one is installed (all)",
    )

    @field_validator("verify", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        """Accept true and false."""
        word = str(value).lower() if isinstance(value, bool | str) else ""
        return {"true": "transformers", "false": "none"}.get(word, value)


class ExportOptions(ExportSection):
    """How the export is written, checked and quantised."""

    verify: Annotated[Literal["transformers", "all", "none"], Shorthand("no_verify", "none")] = Field(
        "transformers",
        description="Who reloads the export and is compared with the training state: transformers (seconds), all (an "
        "inference engine as well where one is installed, which takes a minute or more) or none",
    )
    shard_size_gb: Annotated[float, Field(ge=1e-6, le=1e6), Aliases("max_shard_size")] = Field(
        5.0, description="Largest safetensors file; 5GB and 500MB are understood"
    )
    quant: Annotated[Name | None, Aliases("quant_method")] = Field(
        None,
        description="Store the weights in fewer bits, by a scheme that an installed exporter offers; a name that none "
        "has lists them",
    )
    quant_tolerance: PositiveFloat | None = Field(
        None,
        description="How much the loss per token may rise, in nats, by quantising; default: the scheme's own tolerance",
    )
    calibration_dataset: Annotated[tuple[Name, ...], Aliases("dataset")] = Field(
        (), description="Calibration data, as for --dataset; default: the run's own training data"
    )
    calibration_samples: Annotated[Rows, Aliases("quant_n_samples")] = Field(
        128, description="Samples to calibrate with"
    )
    push: Annotated[Name | None, Aliases("hub_model_id")] = Field(
        None, description="Repository on the Hugging Face Hub, or URL (s3://bucket/model), to upload to once verified"
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
        """Return the peak learning rate in force; parsing puts the tuner's where the user named none."""
        return self.optim.lr or LEARNING_RATE

    @property
    def observers(self) -> tuple[str, ...]:
        """Return the names of the observers that the run tells what happens."""
        return (*self.logging.report_to, *((COPIES,) if self.checkpoint.copy_to is not None else ()))
