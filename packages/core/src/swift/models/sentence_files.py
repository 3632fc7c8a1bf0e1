"""Files by which sentence-transformers, and engines that read its format, know how vectors are made from a model.

The names of classes and keys are those that every release of sentence-transformers reads, not those of the newest.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swift.errors import ModelError
from swift.untrusted import check_unicode, inside, json_kind, read_json, read_json_object, shown

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
_LENGTH = "sentence_bert_config.json"
_POOLING = "1_Pooling"
_NORMALISE = "2_Normalize"
_KINDS = ("Transformer", "Pooling", "Normalize")
_MODES = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens", "last": "pooling_mode_lasttoken"}
"""`model.pooling` → the switch of sentence-transformers."""
_NEWER = {"cls": "cls", "mean": "mean", "lasttoken": "last"}
"""The word for the same in the newest releases → `model.pooling`."""


def write_sentence_files(folder: Path, *, size: int, pooling: str) -> None:
    """Write what makes a folder with a model of vectors one of sentence-transformers: pooling, then unit length."""
    modules = [("", "Transformer"), (_POOLING, "Pooling"), (_NORMALISE, "Normalize")]
    _write(
        folder / MODULES,
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    (folder / _NORMALISE).mkdir(exist_ok=True)
    _write(folder / _NORMALISE / "config.json", {})
    (folder / _POOLING).mkdir(exist_ok=True)
    switches = {switch: name == pooling for name, switch in _MODES.items()}
    _write(folder / _POOLING / "config.json", {"word_embedding_dimension": size, **switches, "include_prompt": True})
    write_prompts(folder, {})


def copy_length(source: Path, folder: Path) -> None:
    """Copy the file that says how long texts may be, where a folder of sentence-transformers has it."""
    if (source / _LENGTH).is_file():
        shutil.copyfile(source / _LENGTH, folder / _LENGTH)


def write_prompts(folder: Path, prompts: Mapping[str, str]) -> None:
    """Write which texts are put before a query and before a document; `encode_query` of sentence-transformers does."""
    every = {"query": "", "document": "", **prompts}
    _write(folder / SETTINGS, {"prompts": every, "default_prompt_name": None, "similarity_fn_name": "cosine"})


def add_prompts(folder: Path, prompts: Mapping[str, str], *, unit_length: bool = True) -> None:
    """Write into an export how its vectors were made in training; nothing where the folder makes no vectors.

    `prompts` has the texts that were put before a `query` and before a `document`. Without `unit_length` vectors are
    compared by their dot product.
    """
    if not (folder / SETTINGS).is_file():
        return
    write_prompts(folder, prompts)
    if unit_length:
        return
    modules = read_json(folder / MODULES, ModelError)
    _write(folder / MODULES, [each for each in modules if each["path"] != _NORMALISE])
    shutil.rmtree(folder / _NORMALISE)
    settings = read_json_object(folder / SETTINGS, ModelError)
    _write(folder / SETTINGS, {**settings, "similarity_fn_name": "dot"})


def stored_pooling(folder: Path) -> str | None:
    """Return the pooling that a folder of sentence-transformers asks for; None where it does not say."""
    path = _pooling_file(folder)
    if path is None:
        return None
    settings = read_json_object(path, ModelError)
    mode = settings.get("pooling_mode")
    found = [name for name, switch in _MODES.items() if settings.get(switch) is True]
    if isinstance(mode, str):
        found = [_NEWER[mode]] if mode in _NEWER else []
    if len(found) != 1:
        raise ModelError(
            f"{path} declares a pooling mode that swift does not support.",
            hint=f"Supported modes: {', '.join(_MODES)}.",
        )
    return found[0]


def stored_prompts(folder: Path) -> dict[str, str]:
    """Return the prompts of a folder of sentence-transformers, by their names."""
    path = folder / SETTINGS
    if not os.path.lexists(path):
        return {}
    prompts = read_json_object(path, ModelError).get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ModelError(f"{path}: prompts is {json_kind(prompts)}, not an object.", hint="Copy the file again.")
    for name, text in prompts.items():
        if not isinstance(text, str | None):
            raise ModelError(
                f"{path}: the prompt {shown(name)!r} is {json_kind(text)}, not a string.", hint="Copy the file again."
            )
        check_unicode(f"{name}{text}", f"{path}: a prompt", ModelError)
    return {name: text for name, text in prompts.items() if text is not None}


def _pooling_file(folder: Path) -> Path | None:
    """Return the settings of the module that pools, if the folder lists one.

    What has their name and is no file is refused where it is read, and not passed over.
    """
    file = folder / MODULES
    if not os.path.lexists(file):
        return None
    modules: Any = read_json(file, ModelError)
    if not isinstance(modules, list):
        raise ModelError(f"{file} must hold a list, not {json_kind(modules)}.", hint="Copy it again.")
    for index, module in enumerate(modules):
        if not isinstance(module, dict):
            raise ModelError(
                f"{file} must hold a list of objects; item {index} is {json_kind(module)}.", hint="Copy it again."
            )
    kinds = [str(module.get("type", "")).rpartition(".")[2] for module in modules]
    if others := [kind for kind in kinds if kind not in _KINDS]:
        raise ModelError(
            f"{file} lists a module that swift does not compute: {', '.join(others)}.",
            hint="Use a model whose vectors are pooled hidden states.",
        )
    for module in modules:
        if str(module.get("type", "")).endswith(".Pooling"):
            path = inside(folder, module.get("path"), ModelError, source=str(file)) / "config.json"
            return path if os.path.lexists(path) else None
    return None


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
