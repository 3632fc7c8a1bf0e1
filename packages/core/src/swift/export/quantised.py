"""Quantised exports: first the whole model, verified like any export, then its quantised form.

Quantising reads layers in an order of its own and several times, which a stream of weights does not allow; so the
whole model is on disk for a while. Who writes the quantised form is an exporter that implements `swift_quantize`.
"""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.checkpoint.checksums import write_json
from swift.checkpoint.manifest import installed_versions
from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import ModelSource, Quantized, QuantizeRequest
from swift.errors import ExportError, ModelError, UsageError
from swift.export.calibration import Calibration
from swift.export.destination import VERIFICATION
from swift.export.job import ExportJob, trusted
from swift.export.verify.compare import Outputs, Reference, Tolerance, compare
from swift.export.verify.reference import fixed_prompts, module_outputs
from swift.export.verify.rendering import compare_rendering
from swift.export.verify.run import reload
from swift.export.verify.with_engine import compare_by_engine, not_compared
from swift.export.written import check_written
from swift.models.memory import check_memory, model_bytes
from swift.plugins.hooks import open_hooks
from swift.plugins.known import ENGINE, ENGINE_TITLE
from swift.plugins.schemes import OfferedScheme, advice, find_scheme, schemes_of
from swift.terminal import Say

if TYPE_CHECKING:
    from swift.models.source import HfSource


def requested_scheme(to: str, options: ExportOptions) -> OfferedScheme | None:
    """Return how to quantise, where that is asked for; reject invalid options before anything is read."""
    if options.quant is None:
        named = [name for name in ("calibration_dataset", "quant_tolerance") if getattr(options, name)]
        if named:
            flag = named[0].replace("_", "-")
            raise UsageError(f"--{flag} needs --quant.", hint=advice())
        return None
    scheme = find_scheme(options.quant, to)
    unserved = scheme.facts.not_served_by
    if to == "adapter":
        merged = "hf" if scheme.writer in unserved else scheme.writer
        raise UsageError(
            "An adapter alone cannot be quantised.",
            hint=f"Quantise the merged model (--to {merged} --quant {scheme.name}), or remove --quant.",
        )
    if to in unserved:
        served = [each.name for each in schemes_of(scheme.exporter) if to not in each.facts.not_served_by]
        other = f", or --to {to} with one of {', '.join(served)}" if served else ""
        raise UsageError(
            f"--quant {scheme.name} does not work with --to {to}: {unserved[to]}.",
            hint=f"Pass --to hf --quant {scheme.name}{other}.",
        )
    return scheme


def write_quantised(
    unquantised: Path, job: ExportJob, *, calibration: Calibration, scheme: OfferedScheme, options: ExportOptions
) -> None:
    """Quantise a model into the job's temporary folder, check the result, and write what was found beside it."""
    from swift.models.source import open_source, reordered_in

    section = ModelSection(path=str(unquantised), trust_remote_code=trusted(job.source))
    source: HfSource = open_source(section, say=job.say)
    if reordered := reordered_in(source):
        first = next(iter(reordered[0].tensors))
        raise ExportError(
            f"{source.config.model_type} models cannot be quantised: files hold {first} in another order than memory.",
            hint="Export the model in full precision: remove --quant.",
        )
    if extra := source.extra_names():
        job.say(f"{len(extra)} weights that are not part of the model are left out, first: {extra[0]}")
    prompts = fixed_prompts(source)
    request = QuantizeRequest(
        source=source,
        destination=job.temporary,
        scheme=scheme.name,
        calibration=calibration.rows,
        held_out=calibration.held_out,
        prompts=prompts,
        options=options,
        say=job.say,
    )
    exporter = open_hooks(exporter=scheme.exporter)
    quantised: Quantized = exporter.swift_quantize(request)
    check_written(job.temporary, str(exporter.plugins[0].entry))
    if options.verify == "none":
        return
    reference = Reference(prompts, Outputs(quantised.logps))
    tolerance = Tolerance(largest=float("inf"), mean=quantised.tolerance)
    report: dict[str, Any] = {
        "verified": True,
        "quantised": scheme.name,
        "transformers": _by_transformers(job, reference, tolerance, source),
        ENGINE: _by_engine(job, reference, tolerance, quantised.dtype, scheme),
        "rendering": compare_rendering(job.source.tokenizer, job.temporary, trust_remote_code=trusted(job.source)),
        "calibration": calibration.described,
        "versions": installed_versions(),
    }
    write_json(job.temporary / VERIFICATION, report)


def _by_transformers(job: ExportJob, reference: Reference, tolerance: Tolerance, source: ModelSource) -> dict[str, Any]:
    """Compare the model as transformers decodes it; some formats need libraries that may not be installed."""
    try:
        check_memory(model_bytes(source, 4), "Decoded, the model", hint="")
        with redirect_stderr(StringIO()):  # progress bars of compressed-tensors
            model = reload(job.temporary, source)
            outputs = module_outputs(model, reference.prompts, source, greedy=False)
    except (ImportError, ModelError) as error:
        reason = str(error).splitlines()[0]
        job.say(f"Not compared with transformers: {reason}. To compare with {ENGINE_TITLE}: --verify all")
        return {"compared": False, "reason": reason}
    cause = "transformers reads the format differently. Report it with this model's config.json."
    found = compare(reference, outputs, tolerance, who="transformers", cause=cause)
    _say_verified("transformers", found, job.say)
    return {"compared": True, "dtype": "float32", **found}


def _by_engine(
    job: ExportJob, reference: Reference, tolerance: Tolerance, dtype: str, scheme: OfferedScheme
) -> dict[str, Any]:
    """Compare the model as the inference engine computes it; return why not where it is not asked."""
    unserved = scheme.facts.not_served_by.get(ENGINE)
    if unserved is not None:
        return not_compared(job, unserved)
    if job.options.verify != "all":
        return {"compared": False, "reason": f"--verify {job.options.verify}"}
    found = compare_by_engine(job, reference, tolerance, dtype=dtype)
    if found["compared"]:
        _say_verified(ENGINE_TITLE, found, job.say)
    return found


def _say_verified(who: str, found: dict[str, Any], say: Say) -> None:
    mean = found["log_probabilities"]["mean_difference"]
    say(f"Verified by {who}: mean difference of log-probabilities {mean:.1e} from the quantised weights")
