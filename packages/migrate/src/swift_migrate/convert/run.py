"""Import of third-party checkpoints: the same tensors under canonical names, one at a time."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from swift.checkpoint import (
    INVALID_VALUES,
    Manifest,
    StoredTensors,
    checkpoint_folder,
    invalid_tensors,
    save_checkpoint,
)
from swift.config.own_options import AdamOptions
from swift.config.sections import Config, ModelSection
from swift.contracts import CheckpointWriter, ThirdPartyCheckpoint
from swift.errors import CheckpointError, PluginError, SwiftError
from swift.export import write_model_weights
from swift.models import HfSource, open_source
from swift.models.quiet import quiet_libraries
from swift.plugins import CHECKPOINT_MARKS, install_command, read_third_party
from swift.terminal import Say, progress
from swift.toolkit import ADAPTER, model_name, optim_name
from swift.untrusted import shown
from swift_migrate.convert.hf_folder import has_weights, is_whole, open_hf_folder
from swift_migrate.convert.ms_swift import TrainingArgs, find_adapter_config, read_args
from swift_migrate.convert.task import model_settings, resume_command
from swift_migrate.convert.write import backends_with

SLOTS = ("exp_avg", "exp_avg_sq", "step")
Adapter = Mapping[str, Any]


def convert_checkpoint(
    path: Path,
    *,
    model: str | None,
    out: Path,
    adapter_config: Path | None,
    say: Say,
    weights_only: bool = False,
    trust_remote_code: bool = False,
    task: str | None = None,
) -> Path:
    """Write `out/checkpoint-<step>`, after comparing the trained weights with the model by name and shape.

    `model` and `task` default to those that the checkpoint names.
    """
    quiet_libraries()
    adapter: Adapter | None = find_adapter_config(path, adapter_config)
    third_party = _recognised(path, adapter, weights_only=weights_only)
    _check_counts(path, third_party)
    args = read_args(path)
    model = model or _base(path, args, adapter, say)
    if checkpoint_folder(out, third_party.step).exists():
        raise CheckpointError(
            f"{checkpoint_folder(out, third_party.step)} already exists.", hint="Choose another folder with --out."
        )
    settings = model_settings(path, third_party, adapter, args, model=model, task=task, say=say)
    section = ModelSection(path=model, trust_remote_code=trust_remote_code, **settings)
    seed = Config().train.seed if args.seed is None else args.seed
    source = open_source(section, say=say, seed=seed)
    attach = getattr(third_party, "attach", None)
    if attach is not None:
        attach(source)
    names = list(third_party.names())
    adapter = _checked(adapter) if any(name.startswith("base_model.model.") for name in names) else None
    say(f"{path} is {third_party.description}, step {third_party.step}.")
    _say_left_out(third_party, say)
    tensors = _finite(_tensors(third_party, source, adapter, names, weights_only=weights_only), path)

    def fill(writer: CheckpointWriter) -> None:
        writer.stream(_counted(tensors, len(names), say))

    def ready_to_load(stored: StoredTensors) -> None:
        if adapter is not None:
            write_model_weights(stored, source=source, adapter=adapter)

    try:
        manifest = _manifest(third_party, source, section, adapter, rows_per_step=args.rows_per_step, seed=seed)
    except _NoSetting as error:
        raise CheckpointError(
            f"{path}: the optimizer state has the invalid value {error}.",
            hint="Copy it again, or convert the weights only: --weights-only",
        ) from None
    new = not out.exists()
    try:
        folder = save_checkpoint(
            out, third_party.step, fill=fill, manifest=manifest, is_main=True, extra=ready_to_load
        ).wait()
    except SwiftError:
        if new:
            shutil.rmtree(out, ignore_errors=True)  # it has only the unfinished checkpoint
        raise
    say(f"Converted to {folder}")
    if not manifest.rows_per_step:
        say("The rows per step are unknown: pass the batch size and accumulation of the original training.")
    tuner = "--train_type full" if adapter is None else f"--adapters {folder}"
    command = f"{resume_command(source, args)} --model {model} {tuner} --dataset DATA --resume_from_checkpoint {folder}"
    say(f"To resume from it type {command}")
    return folder


def _manifest(
    third_party: ThirdPartyCheckpoint,
    source: HfSource,
    section: ModelSection,
    adapter: Adapter | None,
    *,
    rows_per_step: int,
    seed: int,
) -> Manifest:
    tuner = (
        {"kind": "full"} if adapter is None else {"kind": "lora", "rank": adapter["r"], "alpha": adapter["lora_alpha"]}
    )
    optim, total = _hyperparameters(getattr(third_party, "param_groups", ())), getattr(third_party, "total_steps", 0)
    try:
        AdamOptions.model_validate({name: optim[name] for name in AdamOptions.model_fields if name in optim})
        config = Config.model_validate({"model": section, "tuner": tuner, "optim": optim})
    except ValidationError as error:
        first = error.errors()[0]
        raise _NoSetting(str(first["loc"][-1]), first["input"]) from None
    known = ("model", "tuner", "optim") if optim else ("model", "tuner")
    return Manifest(
        step=third_party.step,
        rows_per_step=third_party.rows_per_step or rows_per_step,
        seed=seed,
        model_fingerprint=source.fingerprint,
        data_fingerprint="",
        backend="",
        config={name: value for name, value in config.model_dump(mode="json").items() if name in known},
        schedule={"total_steps": total, "peak": optim.get("lr")} if total else {},
        adapter=None if adapter is None else dict(adapter),
        facts={"imported": third_party.description},
    )


def _hyperparameters(groups: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the hyperparameters of the `optim` section."""
    if not groups:
        return {}
    first = groups[0]
    betas = first.get("betas")
    beta1, beta2 = betas if isinstance(betas, list | tuple) and len(betas) == 2 else (betas, betas)
    decays = [_number("weight_decay", group.get("weight_decay", 0.0)) for group in groups]
    found = {
        "lr": _number("lr", first.get("initial_lr", first.get("lr"))),
        "weight_decay": max(decays),
        "beta1": _number("betas", beta1),
        "beta2": _number("betas", beta2),
        "eps": _number("eps", first.get("eps")),
    }
    return found if found["lr"] else {name: value for name, value in found.items() if name != "lr"}


def _number(name: str, value: object) -> float:
    """Return a hyperparameter of the optimizer state as a number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise _NoSetting(name, value)
    return float(value)


class _NoSetting(Exception):
    """A hyperparameter of an optimizer with an invalid value."""

    def __init__(self, name: str, value: object) -> None:
        super().__init__(f"{name} {shown(repr(value), 60)}")


def _recognised(path: Path, adapter: Adapter | None, *, weights_only: bool) -> ThirdPartyCheckpoint:
    """Return the checkpoint, by installed backends first: they also read their optimizer state next to safetensors."""
    if weights_only and has_weights(path):
        weights = open_hf_folder(path, adapter=adapter, weights_only=True)
        assert weights is not None
        return weights
    readers: list[str] = []
    broken: list[PluginError] = []
    found: ThirdPartyCheckpoint | None
    for backend_name, backend in backends_with("swift_read_third_party"):
        readers.append(backend_name)
        try:
            found = read_third_party(backend, path)
        except PluginError as error:
            broken.append(error)  # the folder may be another backend's
            continue
        if found is not None:
            return found
    if broken:
        raise broken[0]
    _refuse_without_backend(path, readers)
    found = open_hf_folder(path, adapter=adapter, weights_only=weights_only)
    if found is not None:
        return found
    tried = ", ".join(readers) or "none"
    commands = [install_command("swift.backends", name) for name in CHECKPOINT_MARKS if name not in readers]
    hint = f"Other backends read more formats: {' or '.join(filter(None, commands))}" if commands else ""
    raise CheckpointError(
        f"{path} has neither safetensors nor a checkpoint that an installed backend can read (tried: {tried}).",
        hint=hint,
    )


def _check_counts(path: Path, third_party: ThirdPartyCheckpoint) -> None:
    """Raise `CheckpointError` for an invalid number of steps or rows."""
    for what, count in (("step", third_party.step), ("number of rows per step", third_party.rows_per_step)):
        if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count < 1 << 53:
            raise CheckpointError(
                f"{path} has the invalid {what} {shown(repr(count), 40)}.",
                hint="Copy the folder again, or convert an earlier one.",
            )


def _refuse_without_backend(path: Path, readers: list[str]) -> None:
    """Raise `CheckpointError` naming the package that reads the checkpoint, where it is not installed."""
    for name, patterns in CHECKPOINT_MARKS.items():
        if name not in readers and any(True for pattern in patterns for _ in path.glob(pattern)):
            instead = " Or convert the weights only: --weights-only" if has_weights(path) else ""
            raise CheckpointError(
                f"{path} was saved by {name}, and the backend that reads it is not installed.",
                hint=f"Type: {install_command('swift.backends', name)}{instead}",
            )


def _base(path: Path, args: TrainingArgs, adapter: Adapter | None, say: Say) -> str:
    """Return the model that training started from, as named in the checkpoint."""
    named = args.model or (adapter or {}).get("base_model_name_or_path")
    if named:
        say(f"Training started from {named}, according to the files next to the weights.")
        return str(named)
    if is_whole(path) and (path / "config.json").is_file():
        return str(path)
    raise CheckpointError(f"{path} does not name the model that training started from.", hint="Type --model MODEL")


def _checked(adapter: Adapter | None) -> Adapter:
    if adapter is None:
        raise CheckpointError(
            "The checkpoint has an adapter, but its adapter_config.json is missing.",
            hint="Type --adapter-config FILE",
        )
    if adapter.get("peft_type") != "LORA":
        raise CheckpointError(
            f"The adapter is of type {adapter.get('peft_type')}; only LoRA adapters can be converted.",
            hint="Merge it into the model with PEFT, and convert the model.",
        )
    return adapter


def _say_left_out(third_party: ThirdPartyCheckpoint, say: Say) -> None:
    left_out: Callable[[], list[str]] | None = getattr(third_party, "left_out", None)
    names = left_out() if left_out is not None else []
    if names:
        say(f"{len(names)} tensors of its files are not trained weights, and are left out; the first is {names[0]}.")


def _tensors(
    third_party: ThirdPartyCheckpoint,
    source: HfSource,
    adapter: Adapter | None,
    names: list[str],
    *,
    weights_only: bool,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors to write, by canonical name."""
    if getattr(third_party, "attach", None) is not None:
        tensors = _read(third_party, {name: name for name in names})
    elif adapter is not None:
        own = [name for name in names if ".lora_" in name or ".modules_to_save." in name]
        of_peft = {name: name.replace(f".modules_to_save.{ADAPTER}", "").replace(f".{ADAPTER}", "") for name in own}
        tensors = _read(third_party, of_peft)
    else:
        tensors = _weights(third_party, source)
    return (each for each in tensors if each[0].startswith(model_name(""))) if weights_only else tensors


def _weights(third_party: ThirdPartyCheckpoint, source: HfSource) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all weights of the model; those that the checkpoint lacks were not trained, and come from the model."""
    known = set(third_party.names())
    if not known & set(source.name_map.parameters()):
        raise CheckpointError(
            "The checkpoint has no parameters of this model.",
            hint="Type --model with the model that training started from, and add --task embedding for an embedding "
            "model.",
        )
    for name in source.name_map.parameters():
        pieces = source.name_map.pieces(name)
        if name not in known:
            yield from ((model_name(piece.name), source.read(piece.name)) for piece in pieces)
            continue
        tensors = third_party.read(name)
        numel = sum(piece.numel for piece in pieces)
        if tensors["weight"].numel() != numel:
            raise CheckpointError(
                f"{name} has {tensors['weight'].numel()} elements in the checkpoint and {numel} in the model.",
                hint="Type --model with the model that training started from.",
            )
        for piece in pieces:
            parts = {key: each if key == "step" else piece.view_of(each.contiguous()) for key, each in tensors.items()}
            yield from _named(piece.name, parts)


def _read(third_party: ThirdPartyCheckpoint, names: Mapping[str, str]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of parameters, which are given with their names on disk."""
    for name, disk in names.items():
        yield from _named(disk, third_party.read(name))


def _named(disk: str, tensors: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, torch.Tensor]]:
    yield model_name(disk), tensors["weight"].float()
    for slot in SLOTS:
        if slot in tensors:
            yield optim_name(disk, slot), torch.as_tensor(tensors[slot]).float()


def _finite(tensors: Iterator[tuple[str, torch.Tensor]], path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors; raise `CheckpointError` for invalid values."""
    for name, tensor in tensors:
        if invalid_tensors({name: tensor}):
            raise CheckpointError(
                f"{path} has {INVALID_VALUES} in {name}: its training diverged, or it is damaged.",
                hint="Convert an earlier checkpoint.",
            )
        yield name, tensor


def _counted(
    tensors: Iterator[tuple[str, torch.Tensor]], parameters: int, say: Say
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors with a progress bar, then print their number and size."""
    count = size = 0
    weights = model_name("")
    bar = progress(range(parameters), "Converting", total=parameters)
    for name, tensor in tensors:
        if name.startswith(weights):
            next(bar, None)
        count, size = count + 1, size + tensor.nbytes
        yield name, tensor
    next(bar, None)
    say(f"{count} tensors of {parameters} parameters, {size / 2**20:,.1f} MiB")
