"""Verifies what an export makes of something drawn or heard: its processor's inputs, and the model's log-probabilities.

A processor that lacks a file, or has other limits of pixels than those of the training, gives the same weights another
image to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from swift.config.media import KINDS, NAMES
from swift.config.sections import DataSection
from swift.contracts import ModelSource
from swift.errors import ExportError
from swift.export.job import trusted
from swift.models.media_processor import MediaProcessor, load_processor
from swift.parsing.tasks import CAUSAL_LM, task_of

_QUESTION = "What is it?"
_SIZE = (320, 240)
"""Of the image: more pixels than small limits leave."""
_SECONDS = 1
_HINT = "Look at the processor's files in the export (processor_config.json, preprocessor_config.json)."


@dataclass(frozen=True)
class Perceived:
    """One of each kind of media that the model takes, as training's processor prepares it, and what the model says."""

    inputs: Mapping[str, Mapping[str, torch.Tensor]]
    """By kind: the tokens of a question about it, and inputs of the encoder."""
    logps: Mapping[str, list[float]]
    """By kind: the training state's log-probability of every token after the first."""


def perceived(model: torch.nn.Module, source: ModelSource) -> Perceived | None:
    """Ask the training state about something fixed of each kind; None where the model reads text alone."""
    inputs = _inputs(getattr(source, "processor", None)) if task_of(source) == CAUSAL_LM else {}
    if not inputs:
        return None
    return Perceived(inputs, {kind: token_logps(model, each) for kind, each in inputs.items()})


def compare_perceived(
    expected: Perceived, model: torch.nn.Module, folder: Path, source: ModelSource, *, largest: float, whole: bool
) -> dict[str, Any]:
    """Compare and return the report; `ExportError` names the first thing that differs by more than `largest`.

    `whole` exports have a processor of their own, whose inputs the reloaded model is given.
    """
    inputs = expected.inputs
    if whole:
        trust = trusted(source)
        inputs = _inputs(load_processor(folder, source.config, source.tokenizer, trust_remote_code=trust))
        for kind, wanted in expected.inputs.items():
            _compare_inputs(kind, wanted, inputs.get(kind))
    report = {}
    for kind, before in expected.logps.items():
        after = token_logps(model, inputs[kind])
        difference = max(abs(one - other) for one, other in zip(before, after, strict=True))
        if not difference <= largest:
            raise ExportError(
                f"The export differs from the training state: log-probabilities of a question about a fixed "
                f"{NAMES[kind]} are up to {difference:.4f} apart, more than {largest:g}.",
                hint="Text outputs agree: check the vision or audio configuration in config.json.",
            )
        report[kind] = {"tokens": len(before), "inputs_equal": whole, "largest_difference": difference}
    return report


def _compare_inputs(kind: str, wanted: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor] | None) -> None:
    if found is None:
        raise ExportError(f"The export has no processor that takes the {NAMES[kind]}s of training.", hint=_HINT)
    for name in sorted(wanted.keys() | found.keys()):
        one, other = wanted.get(name), found.get(name)
        if one is None or other is None or one.shape != other.shape or not torch.equal(one, other):
            raise ExportError(
                f"The export's processor prepares a fixed {NAMES[kind]} otherwise than that of training: "
                f"{name} differs ({_shape(other)} instead of {_shape(one)}).",
                hint=_HINT,
            )


def _shape(tensor: torch.Tensor | None) -> str:
    return "nothing" if tensor is None else f"a tensor of shape {tuple(tensor.shape)}"


def _inputs(processor: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Return what a processor makes of a question about one of each kind that it takes."""
    if processor is None:
        return {}
    rules = MediaProcessor(processor, DataSection())
    contents: dict[str, Callable[[], Any]] = {"image": _image, "audio": lambda: _audio(rules.rate)}
    return {
        kind: rules.prompt([(kind, contents[kind]())], _QUESTION)
        for kind in KINDS
        if kind in rules.placeholders and kind in contents
    }


def _image() -> Any:
    """Draw colours that change over the image, and edges."""
    from PIL import Image

    width, height = _SIZE
    across, down = np.meshgrid(np.arange(width), np.arange(height))
    colours = np.stack([across % 256, down % 256, ((across // 32 + down // 24) % 2) * 255], -1)
    return Image.fromarray(colours.astype(np.uint8))


def _audio(rate: int) -> np.ndarray:
    moments = np.arange(_SECONDS * rate) / rate
    return (0.5 * np.sin(2 * np.pi * 440 * moments * (1 + moments))).astype(np.float32)


@torch.no_grad()
def token_logps(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> list[float]:
    """Return the log-probability of every token after the first by a transformers module."""
    model.eval()
    device = next(model.parameters()).device
    given = {name: each.to(device) for name, each in inputs.items()}
    logits = model(**given, use_cache=False).logits[0, :-1].float()
    logps: list[float] = logits.log_softmax(-1).gather(1, given["input_ids"][0, 1:, None])[:, 0].tolist()
    return logps
