"""From a checkpoint, or from a run that is going on, to a folder that others load; checked before it is called done."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from swift.checkpoint.checksums import sync, write_json
from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.checkpoint.folders import find_checkpoint, is_checkpoint
from swift.checkpoint.load import Checkpoint, open_checkpoint
from swift.checkpoint.manifest import MANIFEST
from swift.checkpoint.names import model_name, weight_name
from swift.checkpoint.storage import StoredTensors
from swift.config.sections import ExportOptions, ExportSection, ModelSection
from swift.config.tasks import CAUSAL_LM, task_of, task_of_config
from swift.contracts import ExportRequest, ModelSource, Run, WeightStream
from swift.errors import CheckpointError, ExportError, SwiftError, UsageError
from swift.export.calibration import calibration_rows
from swift.export.destination import check_destination, default_destination
from swift.export.precision import export_dtypes, main_dtype
from swift.export.push import push
from swift.export.quantised import requested_scheme, scratch, write_quantised
from swift.export.verify.compare import tolerance_of
from swift.export.verify.reference import LogProbabilities, PlainState, Reference, fixed_prompts
from swift.export.verify.run import (
    ADAPTER_WEIGHTS,
    VERIFICATION,
    Digests,
    can_verify,
    is_adapter,
    trusted,
    verify_export,
)
from swift.export.verify.with_engine import compare_by_engine
from swift.export.written import check_written, note_unverified
from swift.infer.find import check_finished
from swift.models.config_file import read_config
from swift.models.memory import check_memory, model_bytes
from swift.models.merge import merged
from swift.models.trust import section_from_file
from swift.plugins.blame import blamed, words_of
from swift.plugins.known import ENGINE, ENGINE_TITLE
from swift.terminal import Say
from swift.untrusted import typed_path

if TYPE_CHECKING:
    from swift.models.source import HfSource
    from swift.plugins.schemes import OfferedScheme


class Exporter(Protocol):
    """Writer of the folder: `swift.plugins.hooks.Hooks` with an exporter registered."""

    def export(self, run: Run | None, weights: WeightStream, request: ExportRequest) -> Path:
        """Write `weights` into `request.destination`."""


def export_checkpoint(
    path: str | Path,
    *,
    to: str,
    options: ExportSection,
    say: Say,
    exporter: Exporter | None = None,
    trust_remote_code: bool = False,
    model: str | None = None,
) -> Path:
    """Export a checkpoint, the last one of a run, or a model folder, without the engine that trained it. One process.

    `to` is the name of an exporter; `exporter` replaces the installed one of that name. With `ExportOptions` the model
    may be quantised, and uploaded. `trust_remote_code` lets Python code run that comes with the model. `model`
    is where the model is now that a checkpoint was trained on.
    """
    requested = options if isinstance(options, ExportOptions) else ExportOptions(**options.model_dump())
    scheme = requested_scheme(to, requested)
    origin = _origin(typed_path(str(path), "The checkpoint", CheckpointError), trust_remote_code, say, model=model)
    destination = options.out or default_destination(
        origin.folder, to=to, quant=requested.quant, is_checkpoint=origin.checkpoint is not None
    )
    check_destination(destination, options)
    exporter = exporter or _installed(to)
    if scheme is not None:
        _quantise(origin, exporter, scheme, to=to, options=requested, destination=destination, say=say)
    else:
        _export_whole(origin, exporter, to=to, options=options, destination=destination, say=say)
    if requested.push is not None:
        push(destination, requested.push, say=say)
    return destination


@dataclass(frozen=True)
class _Origin:
    """Source of an export: a checkpoint with the model that its training started from, or a model alone."""

    folder: Path
    source: HfSource
    checkpoint: Checkpoint | None = None

    @property
    def adapter(self) -> Mapping[str, Any] | None:
        return None if self.checkpoint is None else self.checkpoint.facts.adapter

    def weights(self) -> WeightStream:
        if self.checkpoint is not None:
            return stored_weights(self.checkpoint, self.source, self.adapter)
        return ((name, self.source.read(name)) for name in self.source.names())


def _origin(path: Path, trust_remote_code: bool, say: Say, *, model: str | None = None) -> _Origin:
    from swift.models.source import open_source

    if (path / "config.json").exists() and not is_checkpoint(path):
        check_finished(path)
        folder = path.resolve()
        settings = read_config(folder)
        if settings.get("quantization_config"):
            said = settings["quantization_config"]
            method = said.get("quant_method") if isinstance(said, dict) else "something"
            raise UsageError(
                f"{path} is quantised already ({method}).", hint="Export from the model in full precision."
            )
        say(f"Exporting the model in {folder}")
        section = ModelSection(path=str(folder), trust_remote_code=trust_remote_code)
        section = section.model_copy(update={"task": task_of_config(settings)})
        return _Origin(folder, open_source(section, say=say))
    folder = find_checkpoint(path)
    checkpoint = open_checkpoint(folder)
    say(f"Exporting step {checkpoint.facts.step} of {folder}")
    return _Origin(folder, base_of(checkpoint, say, trust_remote_code=trust_remote_code, model=model), checkpoint)


def _export_whole(
    origin: _Origin,
    exporter: Exporter,
    *,
    to: str,
    options: ExportSection,
    destination: Path,
    say: Say,
    passing: bool = False,
) -> None:
    export_state(
        exporter,
        origin.weights(),
        to=to,
        source=origin.source,
        adapter=origin.adapter,
        options=options,
        destination=destination,
        is_main=True,
        say=say,
        passing=passing,
    )


def _quantise(
    origin: _Origin,
    exporter: Exporter,
    scheme: OfferedScheme,
    *,
    to: str,
    options: ExportOptions,
    destination: Path,
    say: Say,
) -> None:
    """Calibration data is looked at first: what is wrong with it should be said before anything takes long."""
    if task_of(origin.source) != CAUSAL_LM:
        raise ExportError(
            f"Quantising is compared by the loss of generated text, which a model of task {task_of(origin.source)} "
            "does not return.",
            hint="Export it in full precision: leave --quant out, and add --dtype bfloat16 for half the size.",
        )
    calibration = calibration_rows(
        options, scheme, origin.source, None if origin.checkpoint is None else origin.checkpoint.facts, say=say
    )
    whole = scratch(destination)
    temporary = destination.with_name(f".{destination.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        own = origin.checkpoint is None and options.dtype == "auto"
        if not own:
            plain = options.model_copy(
                update={"quant": None, "verify": "none" if options.verify == "none" else "transformers"}
            )
            say("First the model in full precision, which is compared with the training state")
            _export_whole(origin, exporter, to=to, options=plain, destination=whole, say=say, passing=True)
        temporary.mkdir(parents=True)
        write_quantised(
            origin.folder if own else whole,
            temporary,
            trained=origin.source,
            calibration=calibration,
            scheme=scheme,
            options=options,
            to=to,
            say=say,
        )
        put_in_place(temporary, destination)
    except OSError as error:
        message, hint = write_failure("The export", destination, error)
        raise ExportError(message, hint=hint and hint.replace("--output_dir", "--out")) from error
    finally:
        shutil.rmtree(whole, ignore_errors=True)
        shutil.rmtree(temporary, ignore_errors=True)
    say(f"Exported ({to}, {scheme.name}) to {destination}")


def base_of(checkpoint: Checkpoint, say: Say, *, trust_remote_code: bool = False, model: str | None = None) -> HfSource:
    """Return the model that training started from, which must be what it was; `model` is where it is now."""
    from swift.models.source import open_source

    facts = checkpoint.facts
    if not facts.config.get("model"):
        raise CheckpointError(f"{checkpoint.folder / MANIFEST} does not say which model training started from.")
    section = section_from_file(
        ModelSection.model_validate(facts.config.get("model", {})),
        checkpoint.folder / MANIFEST,
        trust_remote_code=trust_remote_code,
    )
    if model is not None:
        section = section.model_copy(update={"path": model})
    source = open_source(section, say=say, seed=facts.seed)
    if source.fingerprint != facts.model_fingerprint:
        raise CheckpointError(
            f"The model {section.path} is not the one that training started from.",
            hint="Put the original model back in its place.",
        )
    return source


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
    passing: bool = False,
) -> Path:
    """Export a stream of weights. Called on every process of a run, since the stream may use collectives.

    `reference` is what the training state says about the prompts of `fixed_prompts`; without it a plain fp32 model
    filled from the stream is asked. The destination appears when it is whole and verified, or not at all. An export
    that is `passing` is no end in itself, and is not announced.
    """

    def work() -> None:
        check_destination(destination, options)
        temporary = destination.with_name(f".{destination.name}.tmp")
        try:
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir(parents=True)
            request = ExportRequest(temporary, source, adapter, options)
            _write_and_verify(exporter, weights, request, reference, run, to=to, say=say)
            put_in_place(temporary, destination)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if not passing:
            say(f"Exported ({to}) to {destination}")

    _on_main(work if is_main else None, weights, destination)
    return destination


def write_model_weights(stored: StoredTensors, *, source: ModelSource, adapter: Mapping[str, Any] | None) -> None:
    """Put weights that others can load beside the tensors that they are made of: the adapter, or all weights.

    For `extra` of `save_checkpoint`: one process, a tensor at a time, out of what is on disk already, so that training
    may go on meanwhile. The manifest's checksums stand in for verification.
    """
    exporter = _installed("hf" if adapter is None else "adapter")
    weights = stored_weights(stored, source, adapter)
    exporter.export(None, weights, ExportRequest(stored.folder, source, adapter, ExportSection()))


def _installed(name: str) -> Exporter:
    from swift.plugins.hooks import open_hooks
    from swift.plugins.load import load_exporter

    return open_hooks(exporter=load_exporter(name))


def stored_weights(
    checkpoint: Checkpoint | StoredTensors, source: ModelSource, adapter: Mapping[str, Any] | None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the canonical stream out of a checkpoint; what was frozen comes from the base model."""
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
        if blamed(error) is not None:
            failure.traceback_of = error
    # After a failure too: the other processes may be inside the stream's collectives.
    deque(weights, maxlen=0)
    agree(comms_for("checkpoint"), failure)


def _write_and_verify(
    exporter: Exporter,
    weights: WeightStream,
    request: ExportRequest,
    reference: LogProbabilities | Reference | None,
    run: Run | None,
    *,
    to: str,
    say: Say,
) -> None:
    who = name_of(exporter, to)
    if request.options.verify == "none":
        exporter.export(run, weights, request)
        check_written(request.destination, who)
        return
    source = request.source
    check_memory(
        model_bytes(source, 4),
        "Comparing the export with the training state loads the model in fp32, which",
        hint="Export without comparing (--verify none), or on a machine with more memory.",
    )
    plain = PlainState(source) if reference is None else None
    if request.adapter is None:
        digests = Digests(export_dtypes(source, request.options.dtype))
        exporter.export(run, digests.watch(weights if plain is None else plain.watch(weights)), request)
        # An exporter that stopped halfway is not to be measured by the half that it read.
        deque(digests.watch(weights if plain is None else plain.watch(weights)), maxlen=0)
    else:
        # Adapters are small, and the stream can only be read once.
        adapters = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
        exporter.export(run, iter(adapters.items()), request)
        digests = _adapter_digests(adapters, request)
        if plain is not None:
            plain.attach(adapters, request.adapter)
    check_written(request.destination, who)
    with _loading(request.destination, who):
        loads = can_verify(request.destination)
    if not loads:
        reason = "transformers and PEFT do not load this format as it is, so nothing was compared"
        note_unverified(request.destination, who, reason)
        say(f"NOT VERIFIED: {reason}. Only the {who} knows whether it holds what was trained")
        return

    if not isinstance(reference, Reference):
        prompts = fixed_prompts(source)
        if reference is not None:
            reference = Reference.ask(reference, prompts)
        else:
            assert plain is not None
            reference = plain.reference(prompts)
    del plain  # as large as the model that is reloaded next
    dtype = main_dtype(digests.dtypes.values())
    with _loading(request.destination, who):
        report = verify_export(
            request.destination, expected=digests.found, reference=reference, source=source, dtype=dtype
        )
    if request.options.verify == "all":
        report[ENGINE] = _by_engine(request.destination, reference, dtype, source, required=to == ENGINE, say=say)
        write_json(request.destination / VERIFICATION, report)
    _say_verified(report, say)


def name_of(exporter: Exporter, to: str) -> str:
    """Return an exporter, with the distribution that it came with where that is known."""
    entries = [plugin.entry for plugin in getattr(exporter, "plugins", ())]
    return str(entries[0]) if entries else f"exporter {to!r}"


@contextmanager
def _loading(folder: Path, exporter: str) -> Iterator[None]:
    """Whatever the libraries raise that load an export says that it cannot be loaded, and who wrote it."""
    try:
        yield
    except ExportError as error:
        error.message = f"{error.message} It was written by the {exporter}."
        raise
    except SwiftError:
        raise
    except Exception as error:
        failure = ExportError(
            f"What the {exporter} wrote into {folder} does not load. {words_of(error)}",
            hint="Nothing was exported. Report it to those who publish the exporter.",
        )
        failure.traceback_of = error
        raise failure from error


def _by_engine(
    folder: Path, reference: Reference, dtype: str, source: ModelSource, *, required: bool, say: Say
) -> dict[str, Any]:
    base = None
    if task_of(source) != CAUSAL_LM:
        reason = "this model does not generate text"
        say(f"{ENGINE_TITLE} was not asked: {reason}")
        return {"asked": False, "reason": reason}
    if is_adapter(folder):
        base = _folder_of(source)
        if base is None:
            reason = "the adapter's base model has random weights, which are stored in no folder"
            say(f"{ENGINE_TITLE} was not asked: {reason}")
            return {"asked": False, "reason": reason}
    return compare_by_engine(
        folder,
        reference,
        tolerance_of(dtype),
        dtype="float32",
        required=required,
        say=say,
        base=base,
        trust_remote_code=trusted(source),
    )


def _folder_of(source: ModelSource) -> Path | None:
    """Return where others can load a model from."""
    from swift.models.source import HfSource

    return source.folder if isinstance(source, HfSource) and not source.random else None


def _say_verified(report: Mapping[str, Any], say: Say) -> None:
    who = ["transformers", *([ENGINE_TITLE] if report.get(ENGINE, {}).get("asked") else [])]
    kind, what = ("outputs", "outputs") if "outputs" in report else ("log_probabilities", "log-probabilities")
    largest = max(each[kind]["largest_difference"] for each in (report, report.get(ENGINE, {})) if len(each) > 2)
    told = [f"{report['weights']['compared']} weights equal", f"{what} within {largest:.1e}"]
    if "greedy" in report:
        told.append(f"{report['greedy']['tokens_equal']} greedy tokens equal")
    if report["rendering"] is not None:
        told.append("conversations rendered alike")
    say(f"Verified by {' and '.join(who)}: {', '.join(told)}")


def _adapter_digests(adapters: Mapping[str, torch.Tensor], request: ExportRequest) -> Digests:
    """Return the digests expected in the folder: of the adapters, or of every weight with them merged in."""
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


def put_in_place(temporary: Path, destination: Path) -> None:
    """Make what was written last, and give it its name at once."""
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
