"""Verifies an export: every tensor, the reloaded model's outputs, and the rendering of conversations."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import xxhash
from safetensors import safe_open

from swift.checkpoint.checksums import write_json
from swift.checkpoint.manifest import installed_versions
from swift.checkpoint.safetensors_write import tensor_bytes
from swift.contracts import ModelSource, WeightStream
from swift.errors import ExportError
from swift.export.destination import VERIFICATION
from swift.export.job import ExportJob, is_adapter, trusted
from swift.export.precision import main_dtype
from swift.export.verify.compare import Reference, compare, tolerance_of
from swift.export.verify.reference import module_outputs
from swift.export.verify.rendering import compare_rendering
from swift.export.verify.seeing import compare_perceived
from swift.export.writer import WEIGHTS, WEIGHTS_INDEX
from swift.models.adapter_file import ADAPTER_WEIGHTS
from swift.models.classes import auto_class, is_encoder
from swift.models.files import SafetensorsFolder
from swift.models.heads import class_of_task, loads_in_transformers
from swift.models.quiet import without_bitsandbytes
from swift.models.source import HfSource, reordered_in
from swift.parsing.tasks import CAUSAL_LM, EMBEDDING, HEADED, task_of

BIT_FOR_BIT = "bit for bit"
_CONFIGURATION = (
    "All weights are equal: its configuration does not describe the model that was trained. See its config.json."
)


class Digests:
    """Checksums of the tensors that ought to be in an export, taken as they pass."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]) -> None:
        self._expected = dtypes
        self.dtypes: dict[str, torch.dtype] = {}
        self.found: dict[str, str] = {}

    @property
    def dtype(self) -> str:
        """Return the precision of most tensors."""
        return main_dtype(self.dtypes.values())

    def take(self, name: str, tensor: torch.Tensor) -> None:
        """Note a tensor in the precision that the export gives it; its own where none is given."""
        self.dtypes[name] = self._expected.get(name, tensor.dtype)
        self.found[name] = self.digest(name, tensor)

    def digest(self, name: str, tensor: torch.Tensor) -> str:
        """Return the digest of a tensor in the precision that the export gives it."""
        return _digest(tensor.to(self.dtypes[name]))

    def watch(self, weights: WeightStream) -> Iterator[tuple[str, torch.Tensor]]:
        """Hand the stream on and note every tensor."""
        for name, tensor in weights:
            self.take(name, tensor)
            yield name, tensor


def can_verify(folder: Path) -> bool:
    """Return whether the folder is one that transformers or PEFT load as it is; quantised exports verify themselves."""
    if is_adapter(folder):
        return True
    if not (folder / WEIGHTS).is_file() and not (folder / WEIGHTS_INDEX).is_file():
        return False
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ExportError(
            f"The export in {folder} has no readable config.json next to its weights: {error}."
        ) from error
    return "quantization_config" not in settings


def verify_export(job: ExportJob, expected: Digests, reference: Reference) -> dict[str, Any]:
    """Compare, write `verification.json`, and return its content; `ExportError` names the first difference."""
    folder, source = job.temporary, job.source
    _compare_weights(folder, expected.found, source)
    model = reload(folder, source)
    outputs = module_outputs(model, reference.prompts, source)
    tolerance, whole, media = tolerance_of(expected.dtype), not is_adapter(folder), None
    if reference.perceived is not None:
        media = compare_perceived(reference.perceived, model, folder, source, largest=tolerance.largest, whole=whole)
    del model
    report = {
        "verified": True,
        "weights": {"compared": len(expected.found), "dtype": expected.dtype, "equal": BIT_FOR_BIT},
        **compare(reference, outputs, tolerance, who="transformers", cause=_CONFIGURATION),
        "media": media,
        "rendering": None,
        "versions": installed_versions(),
    }
    if whole:
        report["rendering"] = compare_rendering(source.tokenizer, folder, trust_remote_code=trusted(source))
    write_json(folder / VERIFICATION, report)
    return report


def _digest(tensor: torch.Tensor) -> str:
    head = f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    digest = xxhash.xxh3_128(head)
    digest.update(tensor_bytes(tensor))
    return str(digest.hexdigest())


def _weight_files(folder: Path) -> list[Path]:
    if is_adapter(folder):
        return [folder / ADAPTER_WEIGHTS]
    if not (folder / WEIGHTS_INDEX).is_file():
        return [folder / WEIGHTS]
    weight_map = json.loads((folder / WEIGHTS_INDEX).read_text(encoding="utf-8"))["weight_map"]
    return [folder / name for name in sorted(set(weight_map.values()))]


def _compare_weights(folder: Path, expected: Mapping[str, str], source: ModelSource) -> None:
    left, extra = dict(expected), set(source.extra_names())
    reordered = set()
    if not is_adapter(folder) and isinstance(source, HfSource):
        groups = reordered_in(source)
        reordered = {name for group in groups for name in group.tensors}
        for group in groups:
            files = SafetensorsFolder(folder)
            for name in group.parameters:
                if _digest(source.read_from(files, name)) != left.pop(name):
                    raise _other_values(folder, name)
    for path in _weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in sorted({*file.keys()} - reordered):
                original = _digest(source.read(name)) if name in extra else left.pop(name, None)
                if original is None:
                    raise ExportError(f"The export in {folder} has a weight that was not trained: {name}.")
                if _digest(file.get_tensor(name)) != original:
                    raise _other_values(folder, name)
    if left:
        raise ExportError(f"The export in {folder} lacks {len(left)} weights, the first is {next(iter(left))}.")


def _other_values(folder: Path, name: str) -> ExportError:
    return ExportError(
        f"The export in {folder} differs from the training state: {name} has other values.",
        hint="Export again; if it happens twice, the disk or the exporter alters data.",
    )


def reload(folder: Path, source: ModelSource) -> torch.nn.Module:
    """Load the export as a user would, in fp32."""
    if is_adapter(folder):
        from peft import PeftModel

        base = source.build(dtype=torch.float32)
        with without_bitsandbytes():
            adapted: torch.nn.Module = PeftModel.from_pretrained(base, folder)
        return adapted
    model, info = _loader(source).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, trust_remote_code=trusted(source)
    )
    has_extra = bool(source.extra_names())  # which transformers may report, by other names than on disk
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[kind] and not (kind == "unexpected_keys" and has_extra):
            raise ExportError(
                f"The export in {folder} does not load: {kind.replace('_', ' ')} {sorted(info[kind])[0]}."
            )
    reloaded: torch.nn.Module = model
    return reloaded


def _loader(source: ModelSource) -> Any:
    """Return the class by which users load a model of this task."""
    from transformers import AutoModel, AutoModelForSequenceClassification

    task = task_of(source)
    if is_encoder(source.config):  # AutoModel would make a pooler, which no vector needs and no export has
        return class_of_task(source.config, task)
    if task in HEADED and not loads_in_transformers(source.config):
        return class_of_task(source.config, task)
    autos = {CAUSAL_LM: auto_class(source.config), EMBEDDING: AutoModel}
    return autos.get(task, AutoModelForSequenceClassification)
