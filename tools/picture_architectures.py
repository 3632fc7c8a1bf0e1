"""Writes docs/reference/picture-architectures.md: what was proven for each architecture that reads pictures.

    .venv/vision/bin/python tools/picture_architectures.py

That environment has torchvision, which some need. It makes a tiny model of each with random weights and compares, in
about a minute. Tests compare the page with what they find.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "picture-architectures.md"
HEAD = """# Architectures that read pictures

<!-- Written by `.venv/vision/bin/python tools/picture_architectures.py`. Do not edit. -->

No architecture is on a list in swift: the processor of a model says what a picture becomes, and before it trains each
run compares samples with pictures that share a batch with each of them alone. This page holds what comes of that for
tiny models with random weights, in float32 on a CPU. No released weights were tried.

- **Rows**: tokens of a row with two pictures are those of the model's own processor.
- **Padded, padding-free, packed**: *equal* means that log-probabilities of samples with none, one and two pictures of
  several sizes are those of the model asked for each sample alone, within 1e-5. *refused* means that the run stops
  before it trains, and says so: the model cannot keep samples apart that lie end to end.
- **Trained**: backends on which tests train a tiny model of it, and compare losses and gradient norms with plain
  transformers (torch) or with one process of torch (the others). `tests/.../test_*pictures*.py` hold them.
- **Asked**: *equal* where tests compare answers and log-probabilities with those of plain transformers.

| `model_type` | rows | padded | padding-free | packed | trained | asked |
|---|---|---|---|---|---|---|
"""
TRAINED = {
    "torch": (
        "core/train/test_pictures_training.py",
        "core/train/test_pictures_with_sounds.py",
        "core/train/test_pictures_with_torchvision.py",
    ),
    "FSDP2": ("backend_fsdp/test_fsdp_pictures.py",),
    "DeepSpeed": ("backend_deepspeed/test_deepspeed_pictures.py",),
    "Megatron": ("backend_megatron/test_megatron_pictures.py",),
}
"""Backends, and the tests that name the architectures that they train."""
ASKED = "core/infer/test_asking_with_pictures.py"
TAIL = """
Of models that hear, `qwen2_audio` is trained and asked in tests: padded, padding-free and packed on torch, and on FSDP2
and ZeRO 3. `qwen2_5_omni_thinker` reads and hears: its samples hold as many sounds as pictures. Videos are shown to
models as their pictures, so that what holds for pictures holds for them. vLLM is asked about pictures with a LLaVA
(`tests/export_vllm/test_serve_pictures.py`).

Processors of Mistral3, Pixtral (a `llava` with another tower) and SmolVLM need torchvision or num2words, which the
extra `vision` brings: these three were compared with it. Without torchvision, other processors are made without their
part for videos.

LLaVA-OneVision's processor cuts pictures into tiles, unless it is told that several belong to one text: swift gives it
pictures one by one, so each is cut into tiles.
"""


def page() -> str:
    """Return the page, with what is found now."""
    tiny = import_module("tiny_architectures")  # of the tests' helpers
    lines = []
    for kind in tiny.ARCHITECTURES:
        found = tiny.proven(kind)
        rows = "equal" if tiny.rows_are_read(kind) else "differ"
        layouts = f"{found.padded} | {found.padding_free} | {found.packed}"
        asked = "equal" if _named(kind, ASKED) else ""
        lines.append(f"| `{kind}` | {rows} | {layouts} | {trained_on(kind)} | {asked} |\n")
    return HEAD + "".join(lines) + TAIL


def trained_on(kind: str) -> str:
    """Return the backends whose tests train an architecture on pictures."""
    return ", ".join(name for name, files in TRAINED.items() if any(_named(kind, file) for file in files))


def _named(kind: str, file: str) -> bool:
    return f'"{kind}"' in (ROOT / "tests" / file).read_text(encoding="utf-8")


def main() -> None:
    import_module("swift.models.quiet").import_torchvision()  # before transformers imports it
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
