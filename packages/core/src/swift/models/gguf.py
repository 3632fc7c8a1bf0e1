"""A GGUF file as a model: dequantized once by transformers into a folder of the cache."""

from __future__ import annotations

import hashlib
from collections import Counter
from contextlib import redirect_stderr
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from swift.errors import ModelError
from swift.files import user_cache
from swift.installation import pip_install
from swift.models.opening import as_model_error

SUFFIX = ".gguf"


def gguf_file(path: Path) -> Path | None:
    """Return the GGUF file that a path means: the file, or the only one in a folder that is no model otherwise."""
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob(f"*{SUFFIX}"))
    if len(found) > 1:
        raise ModelError(f"{path} has {len(found)} GGUF files.", hint=f"Type: --model {found[0]}")
    return found[0] if found else None


def dequantized(file: Path) -> Path:
    """Return a folder with the model of a GGUF file in fp32. The first call makes it."""
    if find_spec("gguf") is None or find_spec("accelerate") is None:
        raise ModelError(f"Reading {file} needs the package gguf.", hint=f"Type: {pip_install('swift-core[gguf]')}")
    about = file.resolve().stat()
    key = hashlib.sha256(f"{file.resolve()} {about.st_size} {about.st_mtime_ns}".encode()).hexdigest()[:12]
    folder = user_cache() / "gguf" / f"{file.stem}-{key}"
    if not folder.is_dir():
        from swift.remote.fetch import locked

        with locked(folder.parent, f".{folder.name}.lock"):
            if not folder.is_dir():
                with TemporaryDirectory(dir=folder.parent, prefix=".making-") as made:
                    _write(file, Path(made) / "model")
                    (Path(made) / "model").rename(folder)
    return folder


def described(file: Path, folder: Path) -> str:
    """Return in one line what was dequantized."""
    from gguf import GGUFReader

    kinds = Counter(tensor.tensor_type.name for tensor in GGUFReader(file).tensors)
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"{file.name}: {listed} tensors, dequantized to float32 in {folder}"


def _write(file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where: dict[str, Any] = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with (
        as_model_error(f"{file} cannot be read", hint="transformers does not support it, or the file is incomplete."),
        redirect_stderr(StringIO()),  # progress bars
    ):
        model: Any = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
        with torch.device("meta"):
            plain: Any = type(model)(type(model.config)(**settings))  # the first one refuses to be saved
        plain.load_state_dict(model.state_dict(), assign=True)
        plain.tie_weights()
        plain.generation_config = GenerationConfig.from_model_config(plain.config)
        plain.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
