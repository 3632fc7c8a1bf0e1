"""Export of a stream of weights by the processes of a run, or by one alone: written, and compared with them."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from swift.checkpoint.checksums import write_json
from swift.checkpoint.coordination import agree, comms_for, write_failure
from swift.config.media import NAMES
from swift.contracts import WeightStream
from swift.errors import ExportError, SwiftError
from swift.export.destination import VERIFICATION, check_destination, put_in_place
from swift.export.job import ExportJob, is_adapter
from swift.export.objective import add_files_of_objective
from swift.export.precision import export_dtypes
from swift.export.verify.compare import tolerance_of
from swift.export.verify.own_format import verify_own_format
from swift.export.verify.reference import PlainState, fixed_prompts
from swift.export.verify.run import BIT_FOR_BIT, Digests, can_verify, verify_export
from swift.export.verify.with_engine import compare_by_engine
from swift.export.written import check_written, note_unverified
from swift.models.memory import check_memory, model_bytes
from swift.models.merge import merged
from swift.plugins.blame import blamed, error_line
from swift.plugins.known import ENGINE, ENGINE_TITLE
from swift.terminal import Say, waiting


def export_state(job: ExportJob, weights: WeightStream, *, is_main: bool) -> None:
    """Export a stream of weights. Called on every process of a run, since the stream may use collectives.

    The destination appears when it is complete and verified, or not at all, and all processes fail together.
    """
    failure: SwiftError | None = None
    try:
        if is_main:
            with complete(job):
                _write_and_verify(job, weights)
            if not job.intermediate:
                job.say(f"Exported ({job.to}) to {job.destination}")
    except SwiftError as error:
        failure = error
    # After a failure too: the other processes may be inside the stream's collectives.
    deque(weights, maxlen=0)
    agree(comms_for("checkpoint"), failure)


@contextmanager
def complete(job: ExportJob) -> Iterator[None]:
    """Make the job's temporary folder, which becomes the destination when the body has filled it, or goes."""
    try:
        check_destination(job.destination, job.options)
        shutil.rmtree(job.temporary, ignore_errors=True)
        job.temporary.mkdir(parents=True)
        yield
        put_in_place(job.temporary, job.destination)
    except OSError as error:
        message, hint = write_failure("The export", job.destination, error)
        failure = ExportError(message, hint=hint and hint.replace("--output_dir", "--out"))
        if blamed(error) is not None:
            failure.traceback_of = error
        raise failure from error
    finally:
        shutil.rmtree(job.temporary, ignore_errors=True)


def _write_and_verify(job: ExportJob, weights: WeightStream) -> None:
    """Write the weights into the job's temporary folder, and compare what lies there with them."""
    if job.options.verify == "none":
        _write_files(job, weights)
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
        with _loading(job):
            if reloaded is not None:
                # With adapters on, the plain state has no merged weights to compare with.
                trained = plain if job.adapter is None else None
                report = verify_own_format(job, reloaded, digests, reference, trained)
            else:
                del plain  # as large as the model that is reloaded next
                report = verify_export(job, digests, reference)
        if reloaded is None and job.options.verify == "all":
            report[ENGINE] = compare_by_engine(job, reference, tolerance_of(digests.dtype), dtype="float32")
            write_json(job.temporary / VERIFICATION, report)
    _say_verified(report, job.say)


def _write_files(job: ExportJob, weights: WeightStream) -> None:
    with waiting(f"Writing {job.destination}"):
        job.exporter.swift_export(job.run, weights, job.request)
    add_files_of_objective(job.temporary, job.objective, model=job.base, system=job.system, say=job.say)


def _write(job: ExportJob, weights: WeightStream, plain: PlainState) -> Digests:
    """Let the exporter write the weights, and return the digests of what ought to be in the folder."""
    if job.adapter is None:
        digests = Digests(export_dtypes(job.source, job.options.dtype))
        _write_files(job, digests.watch(plain.watch(weights)))
        # An exporter that stopped halfway is not to be measured by the half that it read.
        deque(digests.watch(plain.watch(weights)), maxlen=0)
        return digests
    # Adapters are small, and the stream can only be read once.
    adapters = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights}
    _write_files(job, iter(adapters.items()))
    plain.attach(adapters, job.adapter)
    return _adapter_digests(job, job.adapter, adapters)


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
