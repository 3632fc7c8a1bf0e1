"""`swift export CHECKPOINT --to hf|vllm|adapter --out DIR`; `swift merge-lora` is the same with `--to hf`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from swift.cli.app import TrustRemoteCode, run_app
from swift.config.sections import QUANTISATIONS, ExportOptions
from swift.errors import UsageError, did_you_mean
from swift.plugins.load import find


def run(verb: str, args: list[str]) -> int:
    """The verbs."""
    return run_app(f"swift {verb}", merge_lora if verb == "merge-lora" else export, args)


Checkpoint = Annotated[
    Path | None, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="Folder of a run (its last checkpoint) or checkpoint")
]
Adapters = Annotated[Path | None, typer.Option("--adapters", "--checkpoint", help="The same, for ms-swift's users")]
Out = Annotated[Path | None, typer.Option("--out", "--output_dir", "--output-dir", help="Destination folder")]
Dtype = Annotated[
    str, typer.Option("--dtype", "--torch_dtype", "--torch-dtype", help="auto, float32, bfloat16, float16")
]
ShardSize = Annotated[float, typer.Option("--shard-size-gb", "--shard_size_gb", help="Largest safetensors file")]
ExistOk = Annotated[bool, typer.Option("--exist-ok", "--exist_ok", help="Replace an export that is there already")]
Verify = Annotated[
    str,
    typer.Option(
        help="Who reloads it and is compared with the training state: all (transformers, and vLLM where it is "
        "installed), transformers, none"
    ),
]
NoVerify = Annotated[bool, typer.Option("--no-verify", "--no_verify", help="The same as --verify none")]
Push = Annotated[
    str | None, typer.Option(metavar="REPO", help="Upload it to this repository of the Hub, once verified")
]
Quant = Annotated[
    str | None,
    typer.Option("--quant", "--quant_method", "--quant-method", help=f"Fewer bits: {', '.join(QUANTISATIONS)}"),
]
CalibrationDataset = Annotated[
    list[str] | None,
    typer.Option(
        "--calibration-dataset",
        "--calibration_dataset",
        help="What to quantise for, as for --dataset; default: the run's own training data",
    ),
]
CalibrationSamples = Annotated[
    int, typer.Option("--calibration-samples", "--calibration_samples", help="Samples to calibrate with")
]
QuantTolerance = Annotated[
    float | None,
    typer.Option(
        "--quant-tolerance", "--quant_tolerance", help="How much the loss per token may rise, in nats, by quantising"
    ),
]


def export(
    checkpoint: Checkpoint = None,
    adapters: Adapters = None,
    to: Annotated[str, typer.Option(help="hf (merged), vllm, adapter, or an installed exporter")] = "hf",
    out: Out = None,
    dtype: Dtype = "auto",
    quant: Quant = None,
    calibration_dataset: CalibrationDataset = None,
    calibration_samples: CalibrationSamples = 128,
    quant_tolerance: QuantTolerance = None,
    shard_size_gb: ShardSize = 5.0,
    exist_ok: ExistOk = False,
    verify: Verify = "all",
    no_verify: NoVerify = False,
    push: Push = None,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Write a checkpoint, or a model folder, for others to load, and check it against the training state."""
    path = checkpoint or adapters
    if path is None:
        raise UsageError(
            "swift export needs the folder of a run, of a checkpoint or of a model.",
            hint="For example: swift export output/my-model/v1-20260101-120000 --to hf --out exported",
        )
    if quant is not None and quant not in QUANTISATIONS:
        raise UsageError(
            f"There is no quantisation {quant!r}.{did_you_mean(quant, QUANTISATIONS)}",
            hint=f"There are: {', '.join(QUANTISATIONS)}.",
        )
    settings = {
        "to": to,
        "out": out,
        "dtype": dtype,
        "quant": quant,
        "calibration_dataset": tuple(calibration_dataset or ()),
        "calibration_samples": calibration_samples,
        "quant_tolerance": quant_tolerance,
        "shard_size_gb": shard_size_gb,
        "exist_ok": exist_ok,
        "verify": "none" if no_verify else verify,
        "push": push,
    }
    return _export(path, to, settings, trust_remote_code=trust_remote_code)


def merge_lora(
    checkpoint: Checkpoint = None,
    adapters: Adapters = None,
    out: Out = None,
    dtype: Dtype = "auto",
    shard_size_gb: ShardSize = 5.0,
    exist_ok: ExistOk = False,
    verify: Verify = "all",
    no_verify: NoVerify = False,
    trust_remote_code: TrustRemoteCode = False,
) -> int:
    """Merge a checkpoint's adapters into the model's weights: swift export --to hf."""
    return export(
        checkpoint,
        adapters,
        out=out,
        dtype=dtype,
        shard_size_gb=shard_size_gb,
        exist_ok=exist_ok,
        verify=verify,
        no_verify=no_verify,
        trust_remote_code=trust_remote_code,
    )


def _export(path: Path, to: str, settings: dict[str, Any], *, trust_remote_code: bool) -> int:
    from pydantic import ValidationError

    from swift.config.problems import config_error

    try:
        options = ExportOptions.model_validate(settings)
    except ValidationError as problem:
        raise config_error(problem, lambda key: f"--{key.replace('_', '-')}", ()) from None
    find("swift.exporters", to)
    # Only now: the module imports torch, and a mistake should be answered at once.
    from swift.export.run import export_checkpoint

    export_checkpoint(path, to=to, options=options, say=_say, trust_remote_code=trust_remote_code)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
