"""Writes docs/reference/image-architectures.md: what was proven for each architecture that reads images.

    .venv/vision/bin/python tools/image_architectures.py

That environment has torchvision, which some need. It makes a tiny model of each with random weights and compares, in
about a minute. Tests compare the page with what they find.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "image-architectures.md"
HEAD = """# Architectures that read images

<!-- Written by `.venv/vision/bin/python tools/image_architectures.py`. Do not edit. -->

No architecture is on a list in swift: the processor of a model says what an image becomes, and before it trains each
run compares samples with images that share a batch with each of them alone. This page holds what comes of that for
tiny models with random weights, in float32 on a CPU. No released weights were tried.

- **Rows**: tokens of a row with two images are those of the model's own processor.
- **Padded, padding-free, packed**: *equal* means that log-probabilities of samples with none, one and two images of
  several sizes are those of the model asked for each sample alone, within 1e-5. *refused* means that the run stops
  before it trains, and says so: the model cannot keep samples apart that lie end to end.
- **Trained**: backends on which tests train a tiny model of it, and compare losses and gradient norms with plain
  transformers (torch) or with one process of torch (the others). `tests/.../test_*images*.py` hold them.
- **Asked**: *equal* where tests compare answers and log-probabilities with those of plain transformers.

| `model_type` | rows | padded | padding-free | packed | trained | asked |
|---|---|---|---|---|---|---|
"""
TRAINED = {
    "torch": (
        "core/train/test_images_training.py",
        "core/train/test_images_with_audio.py",
        "core/train/test_images_with_torchvision.py",
    ),
    "FSDP2": ("backend_fsdp/test_fsdp_images.py",),
    "DeepSpeed": ("backend_deepspeed/test_deepspeed_images.py",),
    "Megatron": ("backend_megatron/test_megatron_images.py",),
}
"""Backends, and the tests that name the architectures that they train."""
ASKED = "core/infer/test_asking_with_images.py"
TAIL = """
Of models that hear, `qwen2_audio` is trained and asked in tests: padded, padding-free and packed on torch, and on FSDP2
and ZeRO 3. `qwen2_5_omni_thinker` reads and hears: its samples hold as many sounds as images. Videos are shown to
models as their images, so that what holds for images holds for them. vLLM is asked about images with a LLaVA
(`tests/export_vllm/test_serve_images.py`).

Processors of Mistral3, Pixtral (a `llava` with another tower) and SmolVLM need torchvision or num2words, which the
extra `vision` brings: these three were compared with it. Without torchvision, other processors are made without their
part for videos.

LLaVA-OneVision's processor cuts images into tiles, unless it is told that several belong to one text: swift gives it
images one by one, so each is cut into tiles.
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
    """Return the backends whose tests train an architecture on images."""
    return ", ".join(name for name, files in TRAINED.items() if any(_named(kind, file) for file in files))


def _named(kind: str, file: str) -> bool:
    return f'"{kind}"' in (ROOT / "tests" / file).read_text(encoding="utf-8")


def main() -> None:
    import_module("swift.models.quiet").import_torchvision()  # before transformers imports it
    sys.path.insert(0, str(ROOT / "tests" / "helpers"))
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
