"""From a checkpoint, or from a run that is going on, to a folder that others load; checked before it is called done."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from swift.checkpoint.container import sync
from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.checkpoint.folders import find_checkpoint
from swift.checkpoint.load import Checkpoint, open_checkpoint
from swift.checkpoint.names import model_name, weight_name
from swift.config.sections import ExportSection, ModelSection
from swift.contracts import ExportRequest, ModelSource, Run, WeightStream
from swift.errors import CheckpointError, ExportError, SwiftError
from swift.export.merge import merged
from swift.export.precision import export_dtypes, main_dtype
from swift.export.reference import LogProbabilities, PlainState, Reference, fixed_prompts
from swift.export.verify import ADAPTER_WEIGHTS, VERIFICATION, Digests, can_verify, verify_export

Say = Callable[[str], None]


class Exporter(Protocol):
    """What writes the folder: `swift.plugins.facade.Engine` with an exporter registered."""

    def export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        """Write `weights` into `request.destination`."""


def export_checkpoint(
    path: str | Path, *, to: str, options: ExportSection, say: Say, exporter: Exporter | None = None
) -> Path:
    """Export a checkpoint, or the last one of a run, without the engine that trained it. One process.

    `to` is the name of an exporter; `exporter` replaces the installed one of that name.
    """
    from swift.models.source import open_source

    folder = find_checkpoint(path)
    checkpoint = open_checkpoint(folder)
    facts = checkpoint.facts
    say(f"Exporting step {facts.step} of {folder}")
    section = ModelSection.model_validate(facts.config.get("model", {}))
    source = open_source(section, say=say, seed=facts.seed)
    if source.fingerprint != facts.model_fingerprint:
        raise CheckpointError(
            f"The model {section.path} is not the one that training started from.",
            hint="Put the original model back in its place.",
        )
    return export_state(
        exporter or _installed(to),
        _stored_weights(checkpoint, source, facts.adapter),
        to=to,
        source=source,
        adapter=facts.adapter,
        options=options,
        destination=options.out or folder.parent / f"export-{to}",
        is_main=True,
        say=say,
    )


def export_state(
    exporter: Exporter,
    weights: WeightStream,
    *,
    to: str,
    source: ModelSource,
    adapter: Mapping[str, Any] | None,
    options: ExportSection,
    destination: Path,
    is_main: bool,
    say: Say,
    run: Run | None = None,
    reference: LogProbabilities | Reference | None = None,
) -> Path:
    """Export a stream of weights. Called on every process of a run, since the stream may use collectives.

    `reference` is what the training state says about the prompts of `fixed_prompts`; without it a plain fp32 model
    filled from the stream is asked. The destination appears when it is whole and verified, or not at all.
    """

    def work() -> None:
        check_destination(destination, options)
        temporary = destination.with_name(f".{destination.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            request = ExportRequest(temporary, source, adapter, options)
            _write_and_verify(exporter, weights, request, reference, run, say)
            _put_in_place(temporary, destination)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        say(f"Exported ({to}) to {destination}")

    _on_main(work if is_main else None, weights, destination)
    return destination


def write_model_weights(
    folder: Path, weights: WeightStream, *, source: ModelSource, adapter: Mapping[str, Any] | None, is_main: bool
) -> None:
    """Put weights that others can load into a checkpoint's folder: the adapter, or all weights.

    For `extra` of `save_checkpoint`; called on every process. The manifest's checksums stand in for verification.
    """

    def work() -> None:
        from swift.plugins.facade import open_engine
        from swift.plugins.load import load_exporter

        engine = open_engine(exporter=load_exporter("hf" if adapter is None else "adapter"))
        engine.export(None, weights, ExportRequest(folder, source, adapter, ExportSection()))

    _on_main(work if is_main else None, weights, folder)


def _installed(name: str) -> Exporter:
    from swift.plugins.facade import open_engine
    from swift.plugins.load import load_exporter

    return open_engine(exporter=load_exporter(name))


def _stored_weights(
    checkpoint: Checkpoint, source: ModelSource, adapter: Mapping[str, Any] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """The canonical stream out of a checkpoint; what was frozen comes from the base model."""
    stored = [name for name in map(weight_name, checkpoint.names()) if name is not None]
    if adapter is not None:
        for name in stored:
            yield name, checkpoint.read(model_name(name))
        return
    trained = set(stored)
    for name in source.names():
        yield name, checkpoint.read(model_name(name)) if name in trained else source.read(name)


def _on_main(work: Callable[[], None] | None, weights: WeightStream, folder: Path) -> None:
    """Do `work` on the main process (None on the others); everybody reads the stream to its end and fails together."""
    failure: SwiftError | None = None
    try:
        if work is not None:
            work()
    except SwiftError as error:
        failure = error
    except OSError as error:
        message, hint = write_failure("The export", folder, error)
        failure = ExportError(message, hint=hint and hint.replace("--output_dir", "--out"))
        failure.__cause__ = error
    # After a failure too: the other processes may be inside the stream's collectives.
    deque(weights, maxlen=0)
    agree(comms_for("checkpoint"), failure)


def _write_and_verify(
    exporter: Exporter,
    weights: WeightStream,
    request: ExportRequest,
    reference: LogProbabilities | Reference | None,
    run: Run | None,
    say: Say,
) -> None:
    if not request.options.verify:
        exporter.export(run, weights, request)
        return
    source = request.source
    plain = PlainState(source) if reference is None else None
    if request.adapter is None:
        digests = Digests(export_dtypes(source, request.options.dtype))
        exporter.export(run, digests.watch(weights if plain is None else plain.watch(weights)), request)
    else:
        # Adapters are small, and the stream can only be read once.
        adapters = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        exporter.export(run, iter(adapters.items()), request)
        digests = _adapter_digests(adapters, request)
        if plain is not None:
            plain.attach(adapters, request.adapter)
    if not can_verify(request.destination):
        say("This format is not one that transformers loads as it is: its exporter vouches for it")
        return

    if not isinstance(reference, Reference):
        ask = reference or (plain.logps if plain is not None else None)
        assert ask is not None
        reference = Reference.ask(ask, fixed_prompts(source))
    del plain  # as large as the model that is reloaded next
    report = verify_export(
        request.destination,
        expected=digests.found,
        reference=reference,
        source=source,
        dtype=main_dtype(digests.dtypes.values()),
    )
    say(
        f"Verified: {report['weights']['compared']} weights equal, log-probabilities within "
        f"{report['log_probabilities']['largest_difference']:.1e}"
    )


def _adapter_digests(adapters: Mapping[str, torch.Tensor], request: ExportRequest) -> Digests:
    """What ought to be in the folder: the adapters, or every weight with them merged in."""
    assert request.adapter is not None
    choice = request.options.dtype
    if (request.destination / ADAPTER_WEIGHTS).is_file():
        digests = Digests({} if choice == "auto" else dict.fromkeys(adapters, getattr(torch, choice)))
        stream: WeightStream = iter(adapters.items())
    else:
        digests = Digests(export_dtypes(request.source, choice))
        stream = merged(request.source, adapters, request.adapter)
    for name, tensor in stream:
        digests.take(name, tensor)
    return digests


def check_destination(
    destination: Path, options: ExportSection, *, out: str = "--out", exist_ok: str = "--exist-ok"
) -> None:
    """Refuse to write over what is there; `out` and `exist_ok` are the flags that choose otherwise."""
    if not destination.exists():
        return
    if not options.exist_ok:
        raise ExportError(
            f"{destination} is there already.",
            hint=f"Choose another folder with {out}, or add {exist_ok} to replace it.",
        )
    if not destination.is_dir() or (any(destination.iterdir()) and not _is_export(destination)):
        raise ExportError(
            f"{destination} is not an export, and is left as it is.", hint=f"Choose another folder with {out}."
        )


def _is_export(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (VERIFICATION, "config.json", "adapter_config.json"))


def _put_in_place(temporary: Path, destination: Path) -> None:
    for path in temporary.rglob("*"):
        sync(path)
    sync(temporary)
    if destination.exists():
        replaced = destination.with_name(f".{destination.name}.replaced")
        shutil.rmtree(replaced, ignore_errors=True)
        destination.rename(replaced)
        temporary.rename(destination)
        shutil.rmtree(replaced)
    else:
        temporary.rename(destination)
    sync(destination.parent)
