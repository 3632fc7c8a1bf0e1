"""Trainings for every backend, and how near its numbers must come to the reference's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from swift.contracts import Capabilities, Need, Reads, Trains
from swift_testing import third_party
from swift_testing.layouts import Layout
from swift_testing.subjects import Row, conversations, marked_steps, pairs, with_images

if TYPE_CHECKING:
    from swift_testing.reference import Expected, Recipe

FEWEST_STEPS = 5
"""So that a run which saved once, past its half, has two to go on with: the second shows what the first has updated."""


def steps_of(setting: str) -> int:
    """Return how many steps a trial has, as `SWIFT_TESTING_STEPS` sets it."""
    if not setting.isdecimal() or int(setting) < FEWEST_STEPS:
        raise ValueError(f"SWIFT_TESTING_STEPS={setting}: type a number of at least {FEWEST_STEPS}, or leave it out.")
    return int(setting)


STEPS = steps_of(os.environ.get("SWIFT_TESTING_STEPS", "10"))
EVALUATED_EVERY = (STEPS + 1) // 2
"""And after the last step."""
FP32 = 1e-4
"""Relative difference of loss and gradient norm that is allowed in fp32, at every step."""
REDUCED = {"bfloat16": (1e-2, 0.1), "float16": (3e-3, 0.05)}
"""The same of loss and gradient norm in lower precisions. With the 8 bits of bfloat16 single products are 0.4 % off."""

LENGTHS = (1, 14, 27, 40)
"""Letters in a response: far apart and few, since DTensor plans each operation anew for every shape that it meets."""
CHATS = tuple(conversations(21, lengths=LENGTHS))
"""Not a multiple of the rows of a step: the last batch of an epoch is short, and dealt out unevenly."""
PAIRS = tuple(pairs(13, lengths=LENGTHS))
MARKED_STEPS = tuple(marked_steps(13))
_ONE, _VIDEO = "<image>", "<video>"
IMAGES = tuple(with_images([*(_ONE, 2 * _ONE, _ONE) * 4, _ONE], lengths=LENGTHS))
FEW_IMAGES = tuple(
    with_images([2 * _ONE if row == 0 else _ONE if row in (1, 13) else "" for row in range(21)], lengths=LENGTHS)
)
"""In their order, 8 a step: of the first step the second half has none, of the second the first, and the third none."""
VIDEOS = tuple(with_images([*(_ONE, _VIDEO, _ONE + _VIDEO, "") * 3, _VIDEO], lengths=LENGTHS))
HELD_OUT = 5
"""So many of the first rows are also evaluated on."""

COMMON: dict[str, Any] = {
    "data.shuffle": True,
    "data.workers": 1,
    "tuner.kind": "full",
    "optim.lr": 1e-3,
    "optim.warmup_steps": 2,
    # Adam divides by the root of a gradient's square: where that is next to nothing, so is the quotient.
    "optim.eps": 1e-6,
    # So much that leaving it out, or putting it where it does not belong, shows within a few steps.
    "optim.weight_decay": 2.0,
    "train.max_steps": STEPS,
    "train.eval_steps": EVALUATED_EVERY,
    "model.dtype": "float32",
    "checkpoint.save_last": False,
    "checkpoint.save_steps": 1000,
    "checkpoint.model_weights": False,
    "logging.report_to": [],
    # The plainest case has a step measured in every layout; in the others it would only take time.
    "logging.time_breakdown": 0,
}


@dataclass(frozen=True, repr=False)
class Case:
    """One training run, evaluated twice, and its weights at the end."""

    name: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Dotted keys over `COMMON`."""
    rows: Sequence[Row] = CHATS
    global_batch: int = 8
    accumulation: int = 1
    tied: bool = False
    architecture: str | None = None
    """Of another model than the backend's own, tried where processes share neither samples, layers nor experts."""
    shape: Mapping[str, Any] = field(default_factory=dict)
    """Other keys of the configuration of that model."""
    tuner: str | None = None
    """Capabilities that a backend must claim for this case to be tried."""
    precision: str | None = None
    feature: str | None = None
    modality: str | None = None
    """What its rows hold besides text. A backend that does not claim it must refuse them."""
    needs: frozenset[Need] = frozenset({Need.TOKEN_LOGPS})
    tokens: bool = False
    """Whether it trains on the kit's own objective, over values of tokens: see `swift_testing.token_trial`."""
    reads: Reads | None = None
    """What the optimizer of this case reads, which a backend must have declared to serve."""
    notes_changes: bool = False
    """Whether the weights are looked at after each step, for those that it has changed."""
    weighed: bool = False
    """Whether memory is looked at while weights are streamed, and the process before and after, which takes time."""
    objectives: tuple[type[Any], ...] = ()
    """Objectives that are made known by their `name` for this case, which no distribution has entry points for."""
    reference: Callable[[Recipe], Expected] | None = None
    """Training written down plainly, that this case is compared with; None is the kit's own."""

    def __repr__(self) -> str:
        """Return its name alone: pytest shows it in every failure."""
        return f"Case({self.name!r})"

    def applies_to(self, capabilities: Capabilities) -> bool:
        """Whether a backend claims what this case takes."""
        return (
            (self.tuner is None or self.tuner in capabilities.tuners)
            and (self.precision is None or self.precision in capabilities.precisions)
            and (self.feature is None or self.feature in capabilities.features)
            and (self.modality is None or self.modality in capabilities.modalities)
            and not self.missing(capabilities)
            and (self.reads is None or self.reads in capabilities.optimizers)
        )

    def kept_whole(self, capabilities: Capabilities, layout: Layout) -> bool:
        """Whether its rows would be shared between processes, by a backend that keeps those with images whole."""
        return self.modality is not None and layout.cuts_rows and not capabilities.cuts_media

    def fits(self, layout: Layout) -> bool:
        """Whether a layout is one that the model of this case is tried in."""
        return self.architecture is None or (layout.data_size == layout.world and "ep" not in layout.parallel)

    def missing(self, capabilities: Capabilities) -> frozenset[Need]:
        """Return the views that this case takes and a backend does not claim."""
        return self.needs - capabilities.provides

    def settings(self, layout: Layout | None = None) -> dict[str, Any]:
        """Dotted keys of the configuration, under a layout or without one."""
        slices = layout.data_size if layout else 1
        batches = {
            "train.global_batch": self.global_batch,
            "train.micro_batch": max(1, self.global_batch // (self.accumulation * slices)),
        }
        return {**COMMON, **batches, **self.changes, **(layout.settings() if layout else {})}

    @property
    def tolerance(self) -> tuple[float, float]:
        """Return the relative tolerances of loss and gradient norm."""
        return REDUCED.get(str(self.changes.get("model.dtype")), (FP32, FP32))


_LORA: dict[str, Any] = {"tuner.kind": "lora", "tuner.dropout": 0.0, "tuner.rank": 4, "optim.lr": 5e-3}
_DPO: dict[str, Any] = {"objective.name": "dpo"}
_PACKED: dict[str, Any] = {"data.packing": True, "data.max_length": 160}
_SCORES: dict[str, Any] = {"objective.name": "kit-scores", "model.task": "reward", "optim.lr": 3e-4}
_SEQ_CLS: dict[str, Any] = {**_SCORES, "model.task": "seq_cls", "model.num_labels": 3}
# Their batches are so large that the held-out rows are compared with each other all at once.
_NEGATIVES: dict[str, Any] = {"objective.name": "kit-negatives", "model.task": "embedding"}
_ALL_PARTS = {"tuner.freeze_vit": False, "tuner.freeze_aligner": False}
_HYBRID: dict[str, Any] = {
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16,
    "full_attention_interval": 2,
}  # fmt: skip
"""Of a Qwen3.5: every second layer has linear attention, which carries state from token to token."""
_ENCODER, _NO_DROPOUT = "Bert", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_REFERENCE = frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS})
_OF_TOKENS = frozenset({Need.TOKEN_LOGPS, Need.TOKEN_ENTROPY, Need.CANDIDATE_LOGPS})

CASES = (
    Case("clipped", {"logging.time_breakdown": STEPS}, weighed=True),
    Case("accumulated", {"optim.max_grad_norm": 0}, global_batch=12, accumulation=3),
    Case("clipped hard, tied", {"optim.max_grad_norm": 0.05, "optim.schedule": "linear"}, tied=True),
    Case("packed", _PACKED, global_batch=4),
    Case(
        "hybrid, packed",
        {**_PACKED, "train.gradient_checkpointing": True},
        global_batch=4,
        architecture="Qwen3_5Text",
        shape=_HYBRID,
        feature="data.padding_free",
    ),
    Case("encoder", _SEQ_CLS, architecture=_ENCODER, shape=_NO_DROPOUT, needs=frozenset({Need.SCORES})),
    Case(
        "encoder, lora, packed",
        {**_NEGATIVES, **_LORA, **_PACKED, "model.pooling": "mean"},
        PAIRS,
        accumulation=2,
        architecture=_ENCODER,
        shape=_NO_DROPOUT,
        tuner="lora",
        needs=frozenset({Need.POOLED}),
    ),
    Case("checkpointed", {"train.gradient_checkpointing": True}, feature="train.gradient_checkpointing"),
    Case("padding token trained", {"train.pad_token": True}, tied=True, feature="train.pad_token"),
    Case("a part of the weights", {"tuner.freeze": ("*embed_tokens*", "*.self_attn.*")}, notes_changes=True),
    Case("layer rotation", {"tuner.kind": third_party.TUNER}, tuner=Trains.ROTATION, notes_changes=True),
    Case("lora", _LORA, tuner="lora"),
    Case(
        third_party.CASE,
        {"optim.name": third_party.NAME, "optim.lr": 0.1, "optim.weight_decay": 0.02},
        reads=Reads.ELEMENTS,
    ),
    Case("dora", {**_LORA, "tuner.dora": True}, tuner="dora"),
    Case("dpo", {**_DPO, "optim.lr": 3e-4}, PAIRS, global_batch=4, needs=_REFERENCE),
    Case("dpo, lora", {**_DPO, **_LORA}, PAIRS, global_batch=4, tuner="lora", needs=_REFERENCE),
    Case("reward", _SCORES, tied=True, needs=frozenset({Need.SCORES})),
    Case(
        "seq_cls, lora, packed",
        {**_SEQ_CLS, **_LORA, **_PACKED},
        global_batch=4,
        tuner="lora",
        needs=frozenset({Need.SCORES}),
    ),
    Case("value", {"objective.name": "kit-values", "model.task": "value"}, needs=frozenset({Need.VALUES})),
    Case(
        "steps of responses",
        {"objective.name": "prm", "model.task": "value"},
        MARKED_STEPS,
        needs=frozenset({Need.VALUES}),
    ),
    Case(
        "embedding",
        {"objective.name": "kit-vectors", "model.task": "embedding", "model.pooling": "mean"},
        needs=frozenset({Need.POOLED}),
    ),
    Case("negatives", _NEGATIVES, PAIRS, global_batch=8, needs=frozenset({Need.POOLED})),
    Case(
        "negatives, lora, packed",
        {**_NEGATIVES, **_LORA, **_PACKED},
        PAIRS,
        global_batch=8,
        accumulation=2,
        tuner="lora",
        needs=frozenset({Need.POOLED}),
    ),
    Case("tokens", global_batch=12, accumulation=3, needs=_OF_TOKENS, tokens=True),
    Case("tokens, packed, lora", {**_LORA, **_PACKED}, global_batch=4, tuner="lora", needs=_OF_TOKENS, tokens=True),
    Case("own plan", {"objective.name": "kit-plan"}),
    Case("images", rows=IMAGES, modality="image"),
    Case(
        "images, mixed",
        # A process that waits for others in vain is named before the kit loses its patience.
        {**_ALL_PARTS, "data.shuffle": False, "optim.max_grad_norm": 0, "train.timeout_minutes": 2.0},
        FEW_IMAGES,
        accumulation=2,
        modality="image",
    ),
    Case("images, lora", {**_LORA, **_ALL_PARTS}, IMAGES, tuner="lora", modality="image"),
    Case(
        "vit trained",
        # The gradient of the vision encoder is a small part of the whole: alone, its norm shows what is wrong with it.
        {**_PACKED, "tuner.freeze_vit": False, "tuner.freeze_llm": True, "optim.max_grad_norm": 0.05},
        IMAGES,
        global_batch=4,
        modality="image",
        notes_changes=True,
    ),
    Case("two kinds", _ALL_PARTS, VIDEOS, modality="image"),
    Case("bfloat16", {"model.dtype": "bfloat16"}, precision="bfloat16"),
    Case("float16", {"model.dtype": "float16"}, precision="float16"),
)
DROPOUT = Case(
    "negatives, dropout",
    {**_NEGATIVES, **_LORA, "tuner.dropout": 0.5},
    PAIRS,
    global_batch=8,
    accumulation=2,
    tuner="lora",
    needs=frozenset({Need.POOLED}),
)
"""Not compared with the reference, which has no dropout: its first pass and its step are, with each other."""
LORA_DROPOUT = Case("lora, dropout", {**_LORA, "tuner.dropout": 0.5}, tuner="lora")
"""Its last evaluation is compared with that of transformers' model with the weights that the backend streams then."""
BY_NAME = {case.name: case for case in (*CASES, DROPOUT, LORA_DROPOUT)}
RESUMED = ("clipped", "lora", "reward", "seq_cls, lora, packed", third_party.CASE, "vit trained")
"""Cases that save on their way, and are resumed from there."""
SAVED_AT = STEPS // 2 + 1
"""The step after which they save: past the half, so that they save once."""
