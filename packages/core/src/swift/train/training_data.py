"""The data sets of a run: read, encoded, checked against the model, and reported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swift.config.sections import Config
from swift.contracts import Capabilities, DataFacts, ModelSource, OpenedRun, RejectedSamples
from swift.data.encode import SampleEncoder
from swift.data.encodings import Encoding, encoding_of
from swift.data.media_tokens import MediaRules
from swift.data.pipeline import DataPreparation, PreparedData, media_tokens_of
from swift.errors import ConfigError, DataError
from swift.models.classes import has_encoder
from swift.models.parts import ALIGNER, VIT, frozen_parts
from swift.models.positions import check_longest, limit_note
from swift.parsing.capabilities import lacking_media
from swift.plugins.tuner import tuner_of
from swift.processes.comms import Comms


def open_data(
    run: OpenedRun,
    capabilities: Capabilities,
    comms: Comms,
    tokenizer: Any,
    encoding: str | Encoding,
    rows: Sequence[Any] | None,
    validation_rows: Sequence[Any] | None,
    *,
    images: MediaRules | None = None,
) -> PreparedData:
    """Read, encode and check the data sets, and report what could not be used; a stream is opened only."""
    tokens = media_tokens_of(images, run.config.data, lambda kind: lacking_media(capabilities, run.config, kind))
    encoder = SampleEncoder(tokenizer, run.config.data, encoding_of(encoding), tokens)
    preparation = DataPreparation(encoder, run.config.train.order_seed, run.say, comms.barrier, run.topology.is_main)
    data = preparation.prepare(rows, validation_rows)
    _check_same_data(run.config, data, comms)
    if data.stream is None:
        report_data(run, data)
    if data.train is not None:
        for line in encoder.encoding.remarks(data.train.samples):
            run.say(line)
    return data


def check_positions(run: OpenedRun, model_config: Any, data: PreparedData) -> None:
    """Refuse samples that are longer than the model has positions; what a stream will bring is not known."""
    name = run.config.model.path or "the model"
    stores = [part.store for part in (data.train, data.validation) if part is not None]
    longest = max((store.longest for store in stores), default=0)
    note = check_longest(longest, model_config, name)
    if data.stream is not None:
        note = note or limit_note(run.config.data.max_length, model_config, name)
    if note is not None:
        run.say(note)


def check_encoder(config: Config, source: ModelSource, *, has_media: bool) -> None:
    """Refuse to train an encoder on data without images: nothing would reach it."""
    tuner = config.tuner
    if not has_media and has_encoder(source.config) and False in (tuner.freeze_vit, tuner.freeze_aligner):
        raise ConfigError(
            "tuner.freeze_vit or tuner.freeze_aligner is false, and no row of the data has an image: nothing would "
            "reach what they leave to train.",
            hint="Leave them out, or name a data set with images.",
        )
    for name, part in (("vit_lr", VIT), ("aligner_lr", ALIGNER)):
        if getattr(config.optim, name) is None:
            continue
        if not has_media:
            raise ConfigError(
                f"optim.{name} is a learning rate for what only images reach, and no row of the data has an image.",
                hint="Leave it out, or name a data set with images.",
            )
        if part in frozen_parts(tuner, tuner_of(tuner).options):
            raise ConfigError(
                f"optim.{name} is a learning rate for weights that stay as they are.",
                hint=f"Add --freeze_{part} false, or leave it out.",
            )


def report_data(run: OpenedRun, data: PreparedData) -> None:
    """Print the data report, which of a stream is complete only at the end."""
    for line in data.report.lines():
        run.say(line)
    rejected = {
        reason: RejectedSamples(each.count, f"{each.location}: {each.detail}")
        for reason, each in data.report.rejected.items()
    }
    held_out = validation = 0
    if data.validation is not None:
        is_part = data.train is not None and data.validation.store is data.train.store
        held_out, validation = (len(data.validation.samples), 0) if is_part else (0, len(data.validation.samples))
    run.facts.data = DataFacts(data.report.samples, data.report.tokens, rejected, held_out, validation)


def _check_same_data(config: Config, data: PreparedData, comms: Comms) -> None:
    """Raise the same error on every process when one of them read another content than rank 0 did."""
    prepared = {"training": (data.train, config.data.train), "validation": (data.validation, config.data.validation)}
    mine = {kind: part.samples.fingerprint for kind, (part, _) in prepared.items() if part is not None}
    everyone = comms.gather(mine)
    for rank, theirs in enumerate(everyone):
        for kind in mine:
            if theirs[kind] != everyone[0][kind]:
                names = ", ".join(prepared[kind][1]) or "the rows in memory"
                raise DataError(
                    f"The {kind} data of rank {rank} is not that of rank 0: {names} changed while it was being read, "
                    "or differs between machines.",
                    hint="Start again when nothing writes to it any more, with the same files on every machine.",
                )
