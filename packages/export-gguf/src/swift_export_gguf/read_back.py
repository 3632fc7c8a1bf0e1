"""Read a GGUF export back with transformers, for the comparison with what was trained."""

from __future__ import annotations

from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.contracts import ModelSource, Reloaded
from swift.errors import ExportError
from swift.toolkit import canonical_weights
from swift_export_gguf.architectures import architecture_of, rope_of
from swift_export_gguf.plugin import ROUNDING
from swift_export_gguf.vocabulary import ROLES
from swift_export_gguf.write import FILE

_STRINGS = (
    "The quick brown fox jumps over the lazy dog, doesn't it?",
    "def area(width, height):\n    return width * height\n",
    "床前明月光，疑是地上霜。",
    "Ünïcode  and   spaces",
)
"""Without digits: transformers reads GGUF files of some tokenizers without the rule that splits them."""


def reload(folder: Path, source: ModelSource) -> Reloaded:
    """Load the weights by transformers, once metadata and tokenizer are seen to be those of the model."""
    _check_config(folder, source.config)
    _check_tokenizer(folder, source.tokenizer)
    with redirect_stderr(StringIO()):  # a progress bar
        model: Any = AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=FILE, config=source.config, dtype=torch.float32
        )
    rounding = max(ROUNDING[kind] for kind in _kinds(folder / FILE))
    if architecture_of(source.config).norm_offset:
        rounding = max(rounding, 1e-5)
    return Reloaded(canonical_weights(model), rounding)


def _kinds(file: Path) -> set[str]:
    from gguf import GGUFReader

    return {tensor.tensor_type.name.lower() for tensor in GGUFReader(file).tensors}


def _check_config(folder: Path, config: Any) -> None:
    """Compare the hyperparameters that transformers reads from the file."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    read = load_gguf_checkpoint(str(folder / FILE))["config"]
    for name, value in read.items():
        own = rope_of(config)["rope_theta"] if name == "rope_theta" else getattr(config, name, None)
        if own is None or name == "_model_name_or_path" or name.endswith("_token_id"):
            continue  # tokens are compared with those of the tokenizer
        if abs(own - value) > 1e-6 * abs(own) if isinstance(own, float) else own != value:
            raise ExportError(f"{FILE} has {name} {value}; the model has {own}.")


def _check_tokenizer(folder: Path, own: Any) -> None:
    read = AutoTokenizer.from_pretrained(folder, gguf_file=FILE)
    for role in ROLES:
        name = f"{role}_token_id"
        if getattr(own, name) is not None and getattr(read, name) != getattr(own, name):
            raise ExportError(f"{FILE} has {name} {getattr(read, name)}; the tokenizer has {getattr(own, name)}.")
    if isinstance(own.chat_template, str) and read.chat_template != own.chat_template:
        raise ExportError(f"{FILE} has another chat template than the tokenizer.")
    for text in _STRINGS:
        expected = own(text, add_special_tokens=False)["input_ids"]
        found = read(text, add_special_tokens=False)["input_ids"]
        if found != expected:
            raise ExportError(f"The tokenizer in {FILE} encodes {text!r} as {found} instead of {expected}.")
