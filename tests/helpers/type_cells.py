"""Two training steps of a tiny model on every engine, compared with plain transformers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from plain_torch import batches_of, conversation_tokens, likelihood_trajectory, load_model
from safetensors import safe_open
from tiny_runs import Trained, conversations, run_training
from tiny_types import write_tiny
from transformers import AutoModelForCausalLM

from swift.errors import PluginError, SwiftError
from swift.models.peft_targets import named_modules_kept
from swift.parsing import config_from_mapping
from swift.plugins.tuner import tuner_of
from swift_testing.crew import Lost, run_jobs

ROWS = conversations(8, seed=3, lengths=[2, 11, 23, 31, 36, 49, 57, 64])
STEPS = 2
RATE = 1e-3
EPS = 1e-5
"""AdamW's: large enough for gradients that are nothing but rounding to move no weight."""
LOSS, NORM, LATER = 1e-5, 1e-4, 1e-4
"""Largest relative differences: loss and gradient norm of the first step, and loss of the second."""
FAR = 0.05
"""Largest difference of logits after the last step, relative to what the steps have changed them by."""
PROBE = list(range(5, 250, 7))
RESULTS = ("equal", "refused", "wrong", "error")
"""From best to worst."""


@dataclass(frozen=True)
class Verdict:
    """What came of one type under one engine and layout."""

    result: str
    """One of `RESULTS`."""
    note: str = ""

    def __str__(self) -> str:
        return f"{self.result}: {self.note}" if self.note else self.result


@dataclass(frozen=True)
class Cell:
    """A column of the table."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    processes: int = 1
    backend: str = "torch"

    def run(self, subject: Subject, output: Path) -> Trained:
        """Train without output."""
        settings = {
            **COMMON,
            **subject.settings(self),
            **self.settings,
            "backend.name": self.backend,
            "logging.run_name": slug(self.name),
        }
        if "export.to" in settings:
            settings["export.out"] = str(output / EXPORTED)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return run_training(subject.model, output, subject.rows, settings)


COMMON: dict[str, Any] = {
    "train.global_batch": len(ROWS),
    "train.micro_batch": 4,
    "train.max_steps": STEPS,
    "checkpoint.save_steps": STEPS,
    "optim.lr": RATE,
    "optim.eps": EPS,
    "optim.warmup_steps": 0,
    "data.padding_free": False,
    "logging.report_to": ["jsonl"],
}
LORA: dict[str, Any] = {"tuner.kind": "lora", "tuner.dropout": 0.0, "tuner.rank": 4, "tuner.alpha": 8.0}
ZERO3 = {"backend.config": "zero3"}
EXPORTED = "exported"
"""The column of what the padded run exports, read again by transformers."""
CELLS = (
    Cell("padded", {"export.to": "hf", "export.verify": "none"}),
    Cell("padding-free", {"data.padding_free": True}),
    Cell("packed", {"data.packing": True, "data.max_length": 200, "train.micro_batch": 1}),
    Cell("LoRA", {**LORA, "checkpoint.save_last": True}),
    Cell("FSDP2", {}, 2, "fsdp"),
    Cell("FSDP2, TP 2", {"parallel.tp": 2}, 2, "fsdp"),
    Cell("ZeRO 3", ZERO3, 2, "deepspeed"),
    Cell("Megatron, TP 2", {"parallel.tp": 2}, 2, "megatron"),
    Cell("Megatron, PP 2", {"parallel.pp": 2}, 2, "megatron"),
)


def slug(name: str) -> str:
    return name.replace(",", "").replace(" ", "-").lower()


@dataclass
class Expected:
    """What plain transformers makes of a type."""

    losses: list[float]
    grad_norms: list[float]
    logits: torch.Tensor | None = None
    """Of `PROBE` after the last step, saved and loaded by transformers."""
    change: float = 0.0
    """Largest change of these logits by the steps."""


class Subject:
    """A tiny model in a folder, and the numbers that it should train with."""

    cells = CELLS
    rows = ROWS

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self.model = write_tiny(name, folder / "model")
        self.tokens = conversation_tokens(self.model, ROWS)
        self.expected = plain(self)

    @classmethod
    def columns(cls) -> list[str]:
        """Return the names of all columns."""
        alone, together = ([cell.name for cell in cls.cells if (cell.processes > 1) is many] for many in (False, True))
        return [*alone, EXPORTED, *together]

    @classmethod
    def refusal(cls, name: str) -> Verdict | None:
        """Return what comes of a type of which no model needs to be made to know it."""
        return None

    def settings(self, cell: Cell) -> dict[str, Any]:
        """Return what all runs with this model need besides."""
        return {}

    def load(self, folder: Path) -> Any:
        """Return the model in a folder as transformers reads it."""
        return load_model(folder)

    def trained(self, module: Any) -> tuple[list[float], list[float]]:
        """Train plainly, sample by sample; return losses and gradient norms."""
        batches = batches_of(self.tokens, len(ROWS), STEPS)
        module.config.use_cache = False  # states are changed in place
        return likelihood_trajectory(module, batches, steps=STEPS, warmup=0, lr=RATE, eps=EPS)

    @torch.no_grad()
    def probe(self, folder: Path) -> torch.Tensor:
        """Return the logits that transformers computes of a fixed text with the model in a folder."""
        module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        logits: torch.Tensor = module(input_ids=torch.tensor([PROBE]), use_cache=False).logits
        return logits.float()

    def run(self, cell: Cell) -> Verdict:
        """Train under an engine and layout, in this process, and compare."""
        try:
            trained = cell.run(self, self.folder / "out")
        except SwiftError as error:
            return failure(error)
        expected = self.expected
        if cell.name == "LoRA":
            expected = plain_lora(self, trained.folder, cell)
        return compared(trained, expected)

    def exported(self) -> Verdict:
        """Compare what the padded run has exported with the original folder, and with plain training."""
        folder = self.folder / "out" / EXPORTED
        before, after = names_in(self.model), names_in(folder)
        if before != after:
            return Verdict("wrong", f"other names: {sorted(before ^ after)[:3]}")
        assert self.expected.logits is not None
        off = float((self.probe(folder) - self.expected.logits).abs().max()) / self.expected.change
        return Verdict("equal") if off <= FAR else Verdict("wrong", f"logits differ by {off:.1e} of their change")

    def on_torch(self) -> dict[str, Verdict]:
        """Return the verdicts of all layouts of the torch backend, of the adapters and of the export."""
        found = {}
        for cell in self.cells:
            if cell.processes == 1:
                (found[cell.name],) = verdicts(cell, [self])
        found[EXPORTED] = self.exported() if found["padded"].result in ("equal", "wrong") else found["padded"]
        return found


PRELOADED: dict[str, tuple[str, ...]] = {
    "torch": (),
    "fsdp": ("torch.distributed.fsdp", "torch.distributed.tensor.parallel", "swift_backend_fsdp.shard"),
    "deepspeed": ("deepspeed", "swift_backend_deepspeed.shard"),
    "megatron": ("megatron_imported",),
}
"""What processes of a backend import, once for all that are forked from this one."""


def verdicts(cell: Cell, subjects: Sequence[Subject]) -> list[Verdict]:
    """Return what comes of each model: in this process, or in forked ones that train one after the other."""
    if cell.processes == 1:
        return [_alone(partial(subject.run, cell)) for subject in subjects]
    preload(cell.backend)
    jobs = [partial(subject.run, cell) for subject in subjects]
    answers = run_jobs(cell.processes, jobs)
    return [_together(each) for each in answers]


def preload(backend: str) -> None:
    """Import what processes of a backend need, so that those forked from this one find it."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for module in PRELOADED[backend]:
        import_module(module)


def _alone(job: Callable[[], Verdict]) -> Verdict:
    try:
        return job()
    except Exception as error:
        return failure(error)


def _together(answers: Sequence[Any]) -> Verdict:
    """Return the worst verdict of all processes."""
    each = [answer if isinstance(answer, Verdict) else failure(answer) for answer in answers]
    return max(each, key=lambda verdict: RESULTS.index(verdict.result))


def plain(subject: Subject) -> Expected:
    """Train with transformers alone, sample by sample."""
    module = subject.load(subject.model).train()
    losses, norms = subject.trained(module)
    with TemporaryDirectory() as folder:
        module.save_pretrained(folder)
        logits = subject.probe(Path(folder))
    return Expected(losses, norms, logits, float((logits - subject.probe(subject.model)).abs().max()))


def plain_lora(subject: Subject, run: Path, cell: Cell) -> Expected:
    """Train the adapters that a run has trained, from where they started, with PEFT alone."""
    settings = json.loads((run / "last-checkpoint" / "adapter_config.json").read_text())
    kept = ("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "task_type", "target_parameters")
    config = LoraConfig(**{name: settings[name] for name in kept if settings.get(name) is not None})
    with named_modules_kept():  # else PEFT takes shared experts for the routed ones
        module = get_peft_model(subject.load(subject.model).train(), config)
    tuner = config_from_mapping({"model.path": str(subject.model), **cell.settings}).config.tuner
    with torch.no_grad():
        for path, parameter in module.named_parameters():
            if ".lora_" in path:
                name = path.replace(".default", "")
                parameter.copy_(tuner_of(tuner).initial(name, parameter.shape, 42))
    return Expected(*subject.trained(module))


def names_in(folder: Path) -> set[str]:
    """Return the names of the weights in a folder."""
    names: set[str] = set()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, "pt") as opened:
            names |= {*opened.keys()}
    return names


def compared(trained: Trained, expected: Expected) -> Verdict:
    """Return whether a run has the numbers of plain transformers."""
    pairs = (
        ("loss of step 1", trained.losses[0], expected.losses[0], LOSS),
        ("gradient norm of step 1", trained.grad_norms[0], expected.grad_norms[0], NORM),
        ("loss of step 2", trained.losses[1], expected.losses[1], LATER),
    )
    wrong = [
        f"{what} {found:.6f}, plain {plain:.6f}"
        for what, found, plain, tolerance in pairs
        if not abs(found - plain) <= tolerance * abs(plain)
    ]
    return Verdict("wrong", "; ".join(wrong)) if wrong else Verdict("equal")


def failure(error: Any) -> Verdict:
    """Return what an exception means: a sentence for a user, or an internal error."""
    if isinstance(error, Lost):
        return Verdict("error", error.reason[:300])
    if isinstance(error, SwiftError) and not isinstance(error, PluginError):
        return Verdict("refused", " ".join(f"{error.message} {error.hint or ''}".split()))
    cause = error.__notes__[-1].strip().splitlines()[-1] if getattr(error, "__notes__", None) else ""
    return Verdict("error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} {cause[:200]}".strip())


@contextlib.contextmanager
def subject(name: str, folder: Path) -> Iterator[Subject]:
    """Make a subject, and remove its folder in the end."""
    made = folder / slug(name)
    try:
        yield Subject(name, made)
    finally:
        shutil.rmtree(made, ignore_errors=True)
