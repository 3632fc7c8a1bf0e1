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
from swift.plugins.known import ENGINE, ENGINE_TITLE, NOT_BY_ENGINE, QUANTIZER
from swift.terminal import Say

if TYPE_CHECKING:
    from swift.models.source import HfSource
    from swift.plugins.hooks import Hooks


def quantizer() -> Hooks:
    """Return the exporter that quantises; a `PluginError` tells the user to install it."""
    from swift.plugins.hooks import open_hooks
    from swift.plugins.load import load_exporter

    return open_hooks(exporter=load_exporter(QUANTIZER))


def check_wish(to: str, options: ExportOptions) -> None:
    """Refuse what cannot be meant, before anything is read."""
    if options.quant is None:
        named = [name for name in ("calibration_dataset", "quant_tolerance") if getattr(options, name)]
        if named:
            flag = named[0].replace("_", "-")
            raise UsageError(f"--{flag} is for --quant, which is not there.", hint="For example: --quant w4a16")
        return
    if to == "adapter":
        raise UsageError(
            "An adapter alone is not quantised: it is small, and stays in the precision that it was trained in.",
            hint=f"Quantise the merged model (--to {QUANTIZER} --quant {options.quant}), or leave --quant out.",
        )
    if options.quant in NOT_BY_ENGINE and to == QUANTIZER:
        raise UsageError(
            f"--quant {options.quant} is not for --to {to}: {NOT_BY_ENGINE[options.quant]}.",
            hint=f"Type --to hf --quant {options.quant}, or --to {to} --quant w4a16 for 4 bits in {ENGINE_TITLE}.",
        )


def write_quantised(
    whole: Path,
    temporary: Path,
    *,
    trained: ModelSource,
    calibration: Calibration,
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
        scheme=str(options.quant),
        calibration=calibration.rows,
        held_out=calibration.held_out,
        prompts=prompts,
        options=options,
        say=say,
    )
    exporter = quantizer()
    found: Quantized = exporter.quantize(request)
    check_written(temporary, str(exporter.plugins[0].entry))
    if options.verify == "none":
        return
    reference = Reference(prompts, found.logps)
    tolerance = Tolerance(largest=float("inf"), mean=found.tolerance)
    report: dict[str, Any] = {
        "verified": True,
        "quantised": options.quant,
        "transformers": _by_transformers(temporary, reference, tolerance, source, say=say),
        ENGINE: _by_engine(
            temporary,
            reference,
            tolerance,
            options,
            dtype=found.dtype,
            required=to == QUANTIZER,
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
        say(f"transformers was not asked: {reason}")
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
    dtype: str,
    required: bool,
    trust_remote_code: bool,
    say: Say,
) -> dict[str, Any]:
    reason = NOT_BY_ENGINE.get(str(options.quant))
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
