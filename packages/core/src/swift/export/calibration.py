"""Samples for quantising, as the model read them in training: some to calibrate with, some to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from swift.checkpoint.manifest import Manifest
from swift.config.sections import DataSection, ExportOptions
from swift.contracts import CalibrationRow, ModelSource
from swift.errors import DataError, SwiftError
from swift.terminal import Say

if TYPE_CHECKING:
    from swift.data.encodings import Encoding
    from swift.plugins.schemes import OfferedScheme


SMALLEST = 32
"""Samples without which 4 bits would be fitted to a handful of texts; a quarter of them are held out."""
FEWEST_TOKENS = 1024


@dataclass(frozen=True)
class Calibration:
    """Samples for both purposes, and where they came from."""

    name: str
    """Of the data set; empty where there is none."""
    rows: list[CalibrationRow]
    held_out: list[CalibrationRow]
    read: int
    """Samples that there were to choose from."""

    @property
    def tokens(self) -> int:
        """Tokens to calibrate with."""
        return sum(len(row.tokens) for row in self.rows)

    @property
    def described(self) -> str:
        """For the report of the export."""
        return f"{self.name}: {len(self.rows)} samples, {self.tokens} tokens" if self.name else "none"


def calibration_rows(
    options: ExportOptions, scheme: OfferedScheme, source: ModelSource, trained: Manifest | None, *, say: Say
) -> Calibration:
    """Read and tokenise them, as training does. `trained` is the run's, where there is one."""
    config: dict[str, Any] = {} if trained is None else dict(trained.config)
    own = DataSection.model_validate(config.get("data", {}))
    seed = 42 if trained is None else trained.seed
    encoding = _encoding(config)
    if options.calibration_dataset:
        section = own.model_copy(update={"train": options.calibration_dataset})
        if trained is None and getattr(source.tokenizer, "chat_template", None) is None:
            encoding = "text"
    elif own.train:
        section = own
        say(f"Calibrating with the run's own training data: {', '.join(own.train)}")
    elif not scheme.facts.calibrated:
        say("No calibration data: the cost of quantisation is measured on a few fixed prompts only")
        return Calibration("", [], [], 0)
    else:
        raise DataError(
            f"{scheme.name} needs calibration samples, but the model's training data is unknown.",
            hint="Pass some: --calibration-dataset data/train.jsonl",
        )
    section = section.model_copy(update={"streaming": False, "split_ratio": 0.0, "validation": ()})
    calibration = _choose(_encoded(section, source, encoding, own, say), options, section, seed)
    if scheme.facts.calibrated:
        _check_enough(calibration, options, say)
    return calibration


def _encoding(config: dict[str, Any]) -> str | Encoding:
    from swift.plugins.load import load_objective
    from swift.plugins.objective import make_objective_of_run

    objective = config.get("objective", {})
    if objective.get("name") is None:
        return "chat"
    plugin = load_objective(objective["name"])
    encoding = plugin.object.encoding
    if isinstance(encoding, property):
        encoding = make_objective_of_run(plugin, objective).encoding
    return cast("str | Encoding", encoding)


def _encoded(section: DataSection, source: ModelSource, encoding: str | Encoding, own: DataSection, say: Say) -> Any:
    from swift.data.pipeline import prepare_data

    try:
        data = prepare_data(section, source.tokenizer, encoding=encoding, seed=0, say=say)
    except SwiftError as error:
        if section.train != own.train:
            raise
        raise DataError(
            f"The run's own training data cannot be read for calibration: {error.message}",
            hint="Pass other samples: --calibration-dataset data/train.jsonl",
        ) from error
    assert data.train is not None
    return data.train.samples


def _choose(samples: Any, options: ExportOptions, section: DataSection, seed: int) -> Calibration:
    """Choose the same samples every time, regardless of the order of files."""
    from swift.data.schedules.epochs import shuffler

    count = len(samples)
    requested = max(options.calibration_samples, SMALLEST - SMALLEST // 4)
    held_out = min(max(requested // 4, SMALLEST // 4), 64, max(1, count // 4))
    order = shuffler(seed, 0).permutation(count)
    chosen = [_row(samples[int(index)]) for index in order[: held_out + requested]]
    return Calibration(", ".join(section.train), chosen[held_out:], chosen[:held_out], count)


def _check_enough(calibration: Calibration, options: ExportOptions, say: Say) -> None:
    """Refuse samples that are too few to calibrate with."""
    name, rows, count = calibration.name, calibration.rows, calibration.read
    if count < SMALLEST or calibration.tokens < FEWEST_TOKENS:
        raise DataError(
            f"{name} is too small for calibration: {count} samples, {calibration.tokens} tokens (held-out ones aside).",
            hint=f"{options.quant} needs at least {SMALLEST} samples (a quarter of them to measure on) and "
            f"{FEWEST_TOKENS} tokens. Pass more with --calibration-dataset.",
        )
    if len(rows) < options.calibration_samples:
        say(f"{name} has only {len(rows)} calibration samples instead of {options.calibration_samples}")


def _row(encoded: Any) -> CalibrationRow:
    """Return the row of a sample; of a pair, the better one."""
    segment = encoded.segments[0]
    weights = np.asarray(segment.weights, dtype=np.float64)
    return CalibrationRow([int(token) for token in segment.input_ids], [float(weight) for weight in weights])
