"""Two training steps of tiny encoders for vectors, scores of pairs and labels, compared with plain transformers."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from plain_torch import PlainTrainer
from tiny_runs import Trained, run_training
from tiny_types import STD, tiny_config
from tokenizers.processors import TemplateProcessing
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, normalize
from transformers import AutoConfig, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
)
from type_cells import (
    COMMON,
    EXPORTED,
    FAR,
    LORA,
    ZERO3,
    Cell,
    Expected,
    Verdict,
    alone,
    compared,
    failure,
    preload,
    slug,
    together,
)

from swift.errors import SwiftError
from swift.parsing import config_from_mapping
from swift.plugins.tuner import tuner_of
from swift_testing.crew import run_jobs
from swift_testing.tokenizer import byte_tokenizer

CLS, SEP, MASK = "[CLS]", "[SEP]", "[MASK]"
STEPS, RATE, LABELS = 2, 1e-3, 3
_WORDS = "the small red fox ran over a wide green hill and saw two old blue boats".split()  # noqa: SIM905


def encoder_tokenizer() -> Any:
    """Return a tokenizer of bytes that puts special tokens around texts and between those of a pair, as BERT's does."""
    made = byte_tokenizer([CLS, SEP, MASK])
    ends = [(token, made.convert_tokens_to_ids(token)) for token in (CLS, SEP)]
    backend = made.backend_tokenizer
    backend.post_processor = TemplateProcessing(
        single=f"{CLS} $A {SEP}", pair=f"{CLS} $A {SEP} $B:1 {SEP}:1", special_tokens=ends
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        cls_token=CLS,
        sep_token=SEP,
        mask_token=MASK,
        pad_token=made.pad_token,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )


def text(seed: int, words: int) -> str:
    """Return so many words."""
    return " ".join([str(seed), *(_WORDS[(seed * 7 + index * (seed + 3)) % len(_WORDS)] for index in range(words))])


_PAIRS = [(text(n, 1 + n % 4), text(n + 20, 2 + 3 * (n % 3)), text(n + 40, 1 + n)) for n in range(6)]
"""A query, a document that answers it, and one that does not; of all lengths."""


@dataclass(frozen=True)
class Task:
    """What is trained, and how a plain loop computes the loss of all rows."""

    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    loss: Callable[[Any, Any], torch.Tensor]
    """Of the model and its tokenizer."""


def _vector(model: Any, tokenizer: Any, sequence: str) -> torch.Tensor:
    return model(**_encoded(model, tokenizer, sequence)).last_hidden_state[0].mean(0)


def _encoded(model: Any, tokenizer: Any, *texts: str) -> dict[str, torch.Tensor]:
    """Return the inputs of one sample, without token types where a model has none."""
    made = tokenizer(*texts, return_tensors="pt")
    if getattr(model.config, "type_vocab_size", 0) < 2:
        made.pop("token_type_ids")
    return dict(made)


def _infonce(model: Any, tokenizer: Any) -> torch.Tensor:
    queries, documents = (
        normalize(torch.stack([_vector(model, tokenizer, each) for each in side]), dim=1)
        for side in ([row[0] for row in _PAIRS], [row[1] for row in _PAIRS] + [row[2] for row in _PAIRS])
    )
    return cross_entropy(queries @ documents.T / 0.1, torch.arange(len(queries)))


def _relevance(model: Any, tokenizer: Any) -> torch.Tensor:
    pairs = [(row[0], row[2 - label], float(label)) for row in _PAIRS for label in (1, 0)]
    logits = [model(**_encoded(model, tokenizer, query, document)).logits[0, 0] for query, document, _ in pairs]
    return binary_cross_entropy_with_logits(torch.stack(logits), torch.tensor([label for *_, label in pairs]))


def _label(model: Any, tokenizer: Any) -> torch.Tensor:
    logits = [model(**_encoded(model, tokenizer, document)).logits[0] for _, _, document in _PAIRS]
    return cross_entropy(torch.stack(logits), torch.arange(len(logits)) % LABELS)


TASKS = {
    "embedding": Task(
        {"objective.name": "embedding", "objective.temperature": 0.1},
        [{"query": query, "positive": right, "negative": wrong} for query, right, wrong in _PAIRS],
        _infonce,
    ),
    "reranker": Task(
        {"objective.name": "reranker"},
        [{"query": query, "positive": right, "negative": wrong} for query, right, wrong in _PAIRS],
        _relevance,
    ),
    "seq_cls": Task(
        {"objective.name": "seq_cls", "model.num_labels": LABELS},
        [{"text": document, "label": index % LABELS} for index, (_, _, document) in enumerate(_PAIRS)],
        _label,
    ),
}
CELLS = (
    Cell("padded", {"export.to": "hf"}),
    Cell("padding-free", {"data.padding_free": True}),
    Cell("LoRA", {**LORA, "checkpoint.save_last": True}),
    Cell("FSDP2", {}, 2, "fsdp"),
    Cell("ZeRO 3", ZERO3, 2, "deepspeed"),
)
NOT_TEXT = {
    "layoutlm": "reads the positions of words on a page",
    "luke": "reads entities",
    "modernvbert": "reads images",
    "perceiver": "reads bytes, or images",
    "tapas": "reads tables",
    "reformer": "trains only in rows of one fixed length",
    **dict.fromkeys(("bart", "mbart", "mvp"), "has a decoder too, and no class for its encoder"),
}
"""Types that transformers maps to masked language models and that are no encoders of plain text."""
ENCODER_HALVES = ("mt5", "t5", "umt5")
"""Types of which the encoder alone makes vectors."""


def encoder_types() -> list[str]:
    """Return the types of transformers' encoders of text."""
    found = [name for name in MODEL_FOR_MASKED_LM_MAPPING_NAMES if name not in NOT_TEXT]
    return [name for name in (*found, *ENCODER_HALVES) if name in CONFIG_MAPPING_NAMES]


def tasks_of(name: str) -> list[str]:
    """Return the tasks that transformers has a class of this type for."""
    scores = name in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES and name not in ENCODER_HALVES
    return [task for task in TASKS if scores or task == "embedding"]


def write_encoder(name: str, folder: Path, task: str) -> Path:
    """Write a tiny encoder, with a head where the task has one, and its tokenizer."""
    config, tokenizer = tiny_config(name), encoder_tokenizer()
    config.pad_token_id, config.eos_token_id, config.bos_token_id = tokenizer.pad_token_id, None, None
    config.num_labels = {"embedding": 2, "reranker": 1, "seq_cls": LABELS}[task]
    torch.manual_seed(0)
    model = _class_of(config, task)._from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.normal_(std=STD)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def load_encoder(folder: Path, task: str) -> Any:
    """Return the model as transformers reads it, in fp32; for vectors without training the pooler."""
    kind = _class_of(AutoConfig.from_pretrained(folder), task)
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    if task == "embedding" and getattr(model, "pooler", None) is not None:
        model.pooler.requires_grad_(False)
    return model.train()


def _class_of(config: Any, task: str) -> Any:
    """Return transformers' class for a task: of those that it has for vectors, the one of an encoder alone."""
    if task != "embedding":
        return MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING[type(config)]
    if config.model_type in ENCODER_HALVES:
        return MODEL_FOR_TEXT_ENCODING_MAPPING[type(config)]
    found = MODEL_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found


class EncoderSubject:
    """A tiny encoder in a folder, with a task, and the numbers that it should train with."""

    def __init__(self, name: str, folder: Path, task: str) -> None:
        self.name, self.task, self.folder = name, task, folder / f"{slug(name)}-{task}"
        self.model = write_encoder(name, self.folder / "model", task)
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self.expected = self.trained(load_encoder(self.model, task))
        self.expected_outputs = self.outputs

    def trained(self, model: Any) -> Expected:
        """Train a plain model, sample by sample."""
        trainer = PlainTrainer(model, steps=STEPS, warmup=0, lr=RATE, eps=1e-5)
        made = [trainer.step(TASKS[self.task].loss(model, self.tokenizer)) for _ in range(STEPS)]
        self.outputs = self.outputs_of(model)
        return Expected([loss for loss, _ in made], [norm for _, norm in made])

    @torch.no_grad()
    def outputs_of(self, model: Any) -> torch.Tensor:
        """Return the vectors or scores of some texts."""
        if self.task == "embedding":
            return torch.stack([_vector(model, self.tokenizer, row[2]) for row in _PAIRS])
        texts = [row[:2] if self.task == "reranker" else row[2:] for row in _PAIRS]
        return torch.cat([model(**_encoded(model, self.tokenizer, *each)).logits for each in texts])

    def train(self, cell: Cell) -> Trained:
        """Train under an engine and layout, without output."""
        task = TASKS[self.task]
        settings = {**COMMON, **task.settings, **cell.settings, "backend.name": cell.backend}
        settings |= {"train.global_batch": len(task.rows), "train.micro_batch": 4 // cell.processes}
        settings |= {"logging.run_name": slug(cell.name)}
        if "export.to" in settings:
            settings["export.out"] = str(self.folder / EXPORTED)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return run_training(self.model, self.folder / "out", task.rows, settings)

    def run(self, cell: Cell) -> Verdict:
        """Train and compare."""
        try:
            trained = self.train(cell)
        except SwiftError as error:
            return failure(error)
        expected = self.expected if cell.name != "LoRA" else self.trained(self.with_adapter(trained.folder, cell))
        return compared(trained, expected)

    def with_adapter(self, run: Path, cell: Cell) -> Any:
        """Return the plain model with the adapter that a run has trained, as it began."""
        settings = json.loads((run / "last-checkpoint" / "adapter_config.json").read_text())
        kept = ("r", "lora_alpha", "lora_dropout", "target_modules", "task_type", "modules_to_save")
        config = LoraConfig(**{name: settings[name] for name in kept if settings.get(name) is not None})
        module = get_peft_model(load_encoder(self.model, self.task), config)
        tuner = config_from_mapping({"model.path": str(self.model), **cell.settings}).config.tuner
        with torch.no_grad():
            for path, parameter in module.named_parameters():
                if ".lora_" in path:
                    parameter.copy_(tuner_of(tuner).initial(path.replace(".default", ""), parameter.shape, 42))
        return module

    def exported(self) -> Verdict:
        """Compare the vectors or scores of what the padded run has exported, read by transformers."""
        folder = self.folder / EXPORTED
        before, after = (self.outputs_of(load_encoder(each, self.task).eval()) for each in (self.model, folder))
        off = float((after - self.expected_outputs).abs().max() / (before - after).abs().max())
        return Verdict("equal") if off <= FAR else Verdict("wrong", f"outputs differ by {off:.1e} of their change")


def encoder_verdicts(subject: EncoderSubject) -> dict[str, Verdict]:
    """Return the verdicts of the layouts of one process, and of the export."""
    found = {cell.name: alone(partial(subject.run, cell)) for cell in CELLS if cell.processes == 1}
    found[EXPORTED] = alone(subject.exported) if found["padded"].result == "equal" else found["padded"]
    return found


def encoder_verdicts_together(cell: Cell, subjects: Sequence[EncoderSubject]) -> list[Verdict]:
    """Return what comes of each encoder in forked processes."""
    preload(cell.backend)
    return [together(each) for each in run_jobs(cell.processes, [partial(each.run, cell) for each in subjects])]
