"""Task of the model in a third-party checkpoint, as settings of the `model` section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.contracts import ThirdPartyCheckpoint
from swift.errors import CheckpointError
from swift.models import HfSource, read_config, settings_of_adapter, settings_of_folder
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING, HEADED, trained_by
from swift.terminal import Say
from swift.toolkit import ADAPTER, HEAD
from swift_migrate.convert.hf_folder import PREFIX, HfFolder
from swift_migrate.convert.ms_swift import TrainingArgs

_IN_MEMORY = (HEAD, f"{PREFIX}{HEAD.removesuffix('.weight')}.modules_to_save.{ADAPTER}.weight")
"""The head's name in checkpoints of engines: in a model, and in modules_to_save of an adapter."""


def model_settings(
    path: Path,
    third_party: ThirdPartyCheckpoint,
    adapter: Mapping[str, Any] | None,
    args: TrainingArgs,
    *,
    model: str,
    task: str | None,
    say: Say,
) -> dict[str, Any]:
    """Return the task with its labels or pooling; the user's `task` takes precedence over files."""
    stored = settings_of_adapter(path, adapter) if adapter is not None else _stored(path, Path(model))
    chosen = task or args.task or str(stored["task"])
    labels = _labels(third_party, expected=chosen in HEADED)
    if labels is None:
        if chosen in HEADED:
            raise CheckpointError(
                f"{path} has no head ({HEAD}), which task {chosen} needs.", hint=f"Type --task {CAUSAL_LM}"
            )
        return {"task": chosen} | {key: stored[key] for key in ("pooling",) if chosen == EMBEDDING and key in stored}
    if chosen not in HEADED:
        chosen = "seq_cls"
    config = read_config(path) if (path / "config.json").is_file() else {}
    kind = args.problem_type or config.get("problem_type")
    if labels == 1 and task is None and args.task is None:
        chosen, other = ("reward", "seq_cls") if kind is None else ("seq_cls", "reward")
        say(f"The head in {path} returns one score, so its task is {chosen}. For {other} add --task {other}.")
    if chosen != "seq_cls":
        return {"task": chosen}
    return {"task": chosen, "num_labels": labels, "labels": _names(config, labels), "problem_type": kind}


def resume_command(source: HfSource, args: TrainingArgs) -> str:
    """Return the command that trains a model of this task."""
    objective = args.objective or ("rm" if source.task == "reward" else trained_by(source.task))
    if source.task == CAUSAL_LM:
        return "swift sft"
    if objective == "rm":
        return "swift rlhf --rlhf_type rm"
    labels = f" --num_labels {source.config.num_labels}" if objective == "seq_cls" else ""
    pooling = f" --model.pooling {source.pooling}" if source.task == EMBEDDING else ""
    return f"swift sft {f'--task_type {objective}' if objective else f'--model.task {source.task}'}{labels}{pooling}"


def _stored(*folders: Path) -> Mapping[str, Any]:
    """Return the settings in the files of the checkpoint, or else of the base model."""
    for folder in folders:
        if (folder / "config.json").is_file():
            return settings_of_folder(folder)
    return {"task": CAUSAL_LM}


def _labels(third_party: ThirdPartyCheckpoint, *, expected: bool) -> int | None:
    """Return the number of scores of the head; None without a head.

    Checkpoints that get their names from the model cannot distinguish a head from an unembedding, so the head must be
    `expected`.
    """
    if isinstance(third_party, HfFolder):
        return third_party.labels()
    if getattr(third_party, "attach", None) is not None:
        labels = getattr(third_party, "labels", None)
        return labels() if labels is not None and expected else None
    heads = [name for name in third_party.names() if name in _IN_MEMORY]
    return int(third_party.read(heads[0])["weight"].shape[0]) if heads else None


def _names(config: Mapping[str, Any], labels: int) -> list[str]:
    """Return the names of the labels, unless they are placeholders."""
    named = config.get("id2label")
    names = [str(named.get(str(label))) for label in range(labels)] if isinstance(named, dict) else []
    placeholders = [f"LABEL_{label}" for label in range(labels)]
    return [] if names == placeholders or len(set(names)) < labels else names
