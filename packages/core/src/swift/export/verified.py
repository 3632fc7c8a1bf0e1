"""Writing an export, and checking what was written: weights, outputs, and where it is asked for an inference engine."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from swift.checkpoint.checksums import write_json
from swift.config.media import NAMES
from swift.config.tasks import CAUSAL_LM, returns, task_of
from swift.contracts import ModelSource, Reloaded, WeightStream
from swift.errors import ExportError, SwiftError
from swift.export.job import ExportJob
from swift.export.objective import add_files_of_objective
from swift.export.precision import export_dtypes, main_dtype
from swift.export.verify.compare import tolerance_of
from swift.export.verify.own_format import verify_own_format
from swift.export.verify.reference import PlainState, Reference, fixed_prompts
from swift.export.verify.run import (
    BIT_FOR_BIT,
    VERIFICATION,
    Digests,
    can_verify,
    is_adapter,
    trusted,
    verify_export,
)
from swift.export.verify.with_engine import compare_by_engine, engine_returns
from swift.export.written import check_written, note_unverified
from swift.models.memory import check_memory, model_bytes
from swift.models.merge import merged
from swift.plugins.blame import error_line
from swift.plugins.known import ENGINE, ENGINE_TITLE
from swift.terminal import Say, waiting


def write_and_verify(job: ExportJob, weights: WeightStream) -> None:
    """Write the weights into the job's temporary folder, and compare what lies there with them."""
    if job.options.verify == "none":
        _export(job, weights)
        check_written(job.temporary, job.writer)
        return
    check_memory(
        model_bytes(job.source, 4),
        "Comparing the export with the training state loads the model in fp32, which",
        hint="Skip the comparison with --verify none, or use a machine with more memory.",
    )
    plain = PlainState(job.source)
    digests = _write(job, weights, plain)
    check_written(job.temporary, job.writer)
    with _loading(job):
        loads = can_verify(job.temporary)
    reloaded = None if loads else job.exporter.swift_reload(job.temporary, job.source)
    if not loads and reloaded is None:
        reason = "transformers and PEFT cannot load this format, so nothing was compared"
        note_unverified(job.temporary, job.writer, reason)
        job.say(f"NOT VERIFIED: {reason}. The {job.writer} is responsible for it")
        return
    with waiting("Comparing the export with what was trained"):
        reference = plain.reference(fixed_prompts(job.source))
        if reloaded is not None:
            report = _read_back(job, reloaded, digests, reference, plain)
        else:
            del plain  # as large as the model that is reloaded next
            report = _compared(job, digests, reference)
    _say_verified(report, job.say)


def _export(job: ExportJob, weights: WeightStream) -> None:
    with waiting(f"Writing {job.destination}"):
        job.exporter.swift_export(job.run, weights, job.request)
    add_files_of_objective(job.temporary, job.objective, model=_folder_of(job.source), system=job.system, say=job.say)


def _write(job: ExportJob, weights: WeightStream, plain: PlainState) -> Digests:
    """Let the exporter write the weights, and return the digests of what ought to be in the folder."""
    if job.adapter is None:
        digests = Digests(export_dtypes(job.source, job.options.dtype))
        _export(job, digests.watch(plain.watch(weights)))
        # An exporter that stopped halfway is not to be measured by the half that it read.
        deque(digests.watch(plain.watch(weights)), maxlen=0)
        return digests
    # Adapters are small, and the stream can only be read once.
    adapters = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
    _export(job, iter(adapters.items()))
    plain.attach(adapters, job.adapter)
    return _adapter_digests(job, job.adapter, adapters)


def _read_back(
    job: ExportJob, reloaded: Reloaded, digests: Digests, reference: Reference, plain: PlainState
) -> dict[str, Any]:
    """Compare what the exporter read back with the training state."""
    with _loading(job):
        return verify_own_format(
            job.temporary,
            reloaded,
            expected=digests,
            # With adapters on, the plain state has no merged weights to compare with.
            trained=plain if job.adapter is None else None,
            reference=reference,
            source=job.source,
            dtype=main_dtype(digests.dtypes.values()),
            reader=job.to,
        )


def _compared(job: ExportJob, digests: Digests, reference: Reference) -> dict[str, Any]:
    """Compare the folder with the reference, and return the report that was written into it."""
    dtype = main_dtype(digests.dtypes.values())
    with _loading(job):
        report = verify_export(
            job.temporary, expected=digests.found, reference=reference, source=job.source, dtype=dtype
        )
    if job.options.verify == "all":
        report[ENGINE] = _by_engine(job, reference, dtype)
        write_json(job.temporary / VERIFICATION, report)
    return report


@contextmanager
def _loading(job: ExportJob) -> Iterator[None]:
    """Turn whatever libraries raise that load an export into a refusal that names who wrote it."""
    try:
        yield
    except ExportError as error:
        error.message = f"{error.message} It was written by the {job.writer}."
        raise
    except SwiftError:
        raise
    except Exception as error:
        failure = ExportError(
            f"The output of the {job.writer} in {job.temporary} does not load. {error_line(error)}",
            hint="Nothing was exported. Report it to the exporter's authors.",
        )
        failure.traceback_of = error
        raise failure from error


def _by_engine(job: ExportJob, reference: Reference, dtype: str) -> dict[str, Any]:
    """Compare the folder as an inference engine computes it; return why not where it cannot be asked."""
    task = task_of(job.source)
    if not engine_returns(task):
        return _not_compared(f"it does not return the {returns(task)} of a {task} model", job.say)
    base = None
    if is_adapter(job.temporary):
        if task != CAUSAL_LM:
            return _not_compared(f"it takes no adapter of a model that returns {returns(task)}", job.say)
        base = _folder_of(job.source)
        if base is None:
            reason = "the adapter's base model has random weights, which are not stored"
            return _not_compared(reason, job.say)
    return compare_by_engine(
        job.temporary,
        reference,
        tolerance_of(dtype),
        dtype="float32",
        required=job.to == ENGINE,
        say=job.say,
        base=base,
        task=task,
        trust_remote_code=trusted(job.source),
    )


def _not_compared(reason: str, say: Say) -> dict[str, Any]:
    say(f"Not compared with {ENGINE_TITLE}: {reason}")
    return {"compared": False, "reason": reason}


def _folder_of(source: ModelSource) -> Path | None:
    """Return where others can load a model from."""
    from swift.models.source import HfSource

    return source.folder if isinstance(source, HfSource) and not source.random else None


def _say_verified(report: Mapping[str, Any], say: Say) -> None:
    who = [
        report.get("read_back_by", "transformers"),
        *([ENGINE_TITLE] if report.get(ENGINE, {}).get("compared") else []),
    ]
    kind, what = ("outputs", "outputs") if "outputs" in report else ("log_probabilities", "log-probabilities")
    largest = max(each[kind]["largest_difference"] for each in (report, report.get(ENGINE, {})) if len(each) > 2)
    equal = "equal" if report["weights"]["equal"] == BIT_FOR_BIT else report["weights"]["equal"]
    agreed = [f"{report['weights']['compared']} weights {equal}", f"{what} within {largest:.1e}"]
    if "greedy" in report:
        agreed.append(f"{report['greedy']['tokens_equal']} greedy tokens equal")
    agreed += [f"equal outputs for a fixed {NAMES[kind]}" for kind in report["media"] or ()]
    if report["rendering"] is not None:
        agreed.append("conversations rendered alike")
    say(f"Verified by {' and '.join(who)}: {', '.join(agreed)}")


def _adapter_digests(job: ExportJob, config: Mapping[str, Any], adapters: Mapping[str, torch.Tensor]) -> Digests:
    """Return the digests expected in the folder: of the adapters, or of every weight with them merged in."""
    choice = job.options.dtype
    if is_adapter(job.temporary):
        digests = Digests({} if choice == "auto" else dict.fromkeys(adapters, getattr(torch, choice)))
        stream: WeightStream = iter(adapters.items())
    else:
        digests = Digests(export_dtypes(job.source, choice))
        stream = merged(job.source, adapters, config)
    for name, tensor in stream:
        digests.take(name, tensor)
    return digests
