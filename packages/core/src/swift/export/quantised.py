"""Exports in fewer bits: the whole model first, checked like any export, then its quantised form beside it.

Quantising reads layers in an order of its own and several times, which a stream of weights does not allow; so the
whole model is on disk for a while. Who writes the quantised form is an exporter that implements `swift_quantize`.
"""

from __future__ import annotations

import shutil
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swift.checkpoint.checksums import write_json
from swift.checkpoint.manifest import installed_versions
from swift.config.sections import ExportOptions, ModelSection
from swift.contracts import ModelSource, Quantized, QuantizeRequest
from swift.errors import ModelError, UsageError
from swift.export.calibration import Calibration
from swift.export.verify.compare import Tolerance, account_of_module, compare
from swift.export.verify.reference import Reference, fixed_prompts
from swift.export.verify.rendering import compare_rendering
from swift.export.verify.run import VERIFICATION, reload, trusted
from swift.export.verify.with_engine import compare_by_engine
from swift.export.written import check_written
from swift.models.memory import check_memory, model_bytes
from swift.plugins.hooks import open_hooks
from swift.plugins.known import ENGINE, ENGINE_TITLE
from swift.plugins.schemes import OfferedScheme, advice, find_scheme, schemes_of
from swift.terminal import Say

if TYPE_CHECKING:
    from swift.models.source import HfSource


def requested_scheme(to: str, options: ExportOptions) -> OfferedScheme | None:
    """Return how to quantise, where that is asked for; refuse what cannot be meant, before anything is read."""
    if options.quant is None:
        named = [name for name in ("calibration_dataset", "quant_tolerance") if getattr(options, name)]
        if named:
            flag = named[0].replace("_", "-")
            raise UsageError(f"--{flag} is for --quant, which is not there.", hint=advice())
        return None
    scheme = find_scheme(options.quant, to)
    unserved = scheme.facts.not_served_by
    if to == "adapter":
        merged = "hf" if scheme.writer in unserved else scheme.writer
        raise UsageError(
            "An adapter alone is not quantised: it is small, and stays in the precision that it was trained in.",
            hint=f"Quantise the merged model (--to {merged} --quant {scheme.name}), or leave --quant out.",
        )
    if to in unserved:
        served = [each.name for each in schemes_of(scheme.exporter) if to not in each.facts.not_served_by]
        other = f", or --to {to} with one of {', '.join(served)}" if served else ""
        raise UsageError(
            f"--quant {scheme.name} is not for --to {to}: {unserved[to]}.",
            hint=f"Type --to hf --quant {scheme.name}{other}.",
        )
    return scheme


def write_quantised(
    whole: Path,
    temporary: Path,
    *,
    trained: ModelSource,
    calibration: Calibration,
    scheme: OfferedScheme,
    options: ExportOptions,
    to: str,
    say: Say,
) -> None:
    """Quantise the model in `whole` into `temporary`, check the result, and write what was found beside it."""
    from swift.models.source import open_source

    section = ModelSection(path=str(whole), trust_remote_code=trusted(trained))
    source: HfSource = open_source(section, say=say)
    prompts = fixed_prompts(source)
    request = QuantizeRequest(
        source=source,
        destination=temporary,
        scheme=scheme.name,
        calibration=calibration.rows,
        held_out=calibration.held_out,
        prompts=prompts,
        options=options,
        say=say,
    )
    exporter = open_hooks(exporter=scheme.exporter)
    found: Quantized = exporter.quantize(request)
    check_written(temporary, str(exporter.plugins[0].entry))
    if options.verify == "none":
        return
    reference = Reference(prompts, found.logps)
    tolerance = Tolerance(largest=float("inf"), mean=found.tolerance)
    report: dict[str, Any] = {
        "verified": True,
        "quantised": scheme.name,
        "transformers": _by_transformers(temporary, reference, tolerance, source, say=say),
        ENGINE: _by_engine(
            temporary,
            reference,
            tolerance,
            options,
            reason=scheme.facts.not_served_by.get(ENGINE),
            dtype=found.dtype,
            required=to == ENGINE,
            trust_remote_code=trusted(trained),
            say=say,
        ),
        "rendering": compare_rendering(trained.tokenizer, temporary, trust_remote_code=trusted(trained)),
        "calibration": calibration.described,
        "versions": installed_versions(),
    }
    write_json(temporary / VERIFICATION, report)


def _by_transformers(
    folder: Path, reference: Reference, tolerance: Tolerance, source: ModelSource, *, say: Say
) -> dict[str, Any]:
    """Return which decodes what it loads; some formats it leaves to libraries that may not be there."""
    try:
        check_memory(model_bytes(source, 4), "Decoded, the model", hint="")
        with redirect_stderr(StringIO()):  # progress bars of compressed-tensors
            model = reload(folder, source)
            account = account_of_module(model, reference.prompts, greedy=False)
    except (ImportError, ModelError) as error:
        reason = str(error).splitlines()[0]
        say(f"transformers was not asked: {reason}. --verify all asks {ENGINE_TITLE}")
        return {"asked": False, "reason": reason}
    cause = "The format is not what transformers takes it for. Report it with this model's config.json."
    told = compare(reference, account, tolerance, cause=cause)
    _say_verified("transformers", told, say)
    return {"asked": True, "dtype": "float32", **told}


def _by_engine(
    folder: Path,
    reference: Reference,
    tolerance: Tolerance,
    options: ExportOptions,
    *,
    reason: str | None,
    dtype: str,
    required: bool,
    trust_remote_code: bool,
    say: Say,
) -> dict[str, Any]:
    if options.verify != "all" or reason is not None:
        if reason is not None:
            say(f"{ENGINE_TITLE} was not asked: {reason}")
        return {"asked": False, "reason": reason or f"--verify {options.verify}"}
    told = compare_by_engine(
        folder, reference, tolerance, dtype=dtype, required=required, say=say, trust_remote_code=trust_remote_code
    )
    if told["asked"]:
        _say_verified(ENGINE_TITLE, told, say)
    return told


def _say_verified(who: str, told: dict[str, Any], say: Say) -> None:
    mean = told["log_probabilities"]["mean_difference"]
    say(f"Verified by {who}: log-probabilities {mean:.1e} from those of the quantised weights, in the mean")


def scratch(destination: Path) -> Path:
    """Return where the whole model lies meanwhile: on the disk that the export goes to."""
    folder = destination.with_name(f".{destination.name}.whole")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder
