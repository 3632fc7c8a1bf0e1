"""Write docs/reference/image-architectures.md: what was tested for each vision-language architecture.

    .venv/vision/bin/python tools/image_architectures.py

That environment has torchvision, which some need. It takes about a minute, with tiny models with random weights. Tests
compare the page with their results.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "image-architectures.md"
HEAD = """# Vision-language model types

<!-- Written by `.venv/vision/bin/python tools/image_architectures.py`. Do not edit. -->

swift has no list of supported vision-language models. The model's processor turns images into tokens, and before
training swift checks that samples with images in one batch do not affect each other. This page has the results for
tiny models with random weights, in float32 on a CPU. Pretrained weights were not tried.

- **Rows**: a row with two images has the same tokens as from the model's own processor.
- **Padded, padding-free, packed**: *equal* means that samples with no, one and two images of several sizes have the
  same log-probabilities in a batch as alone, within 1e-5. *refused* means that the run stops before training, because
  the model cannot keep packed samples separate.
- **Trained**: backends on which tests (`tests/.../test_*images*.py`) train a tiny model, and compare losses and
  gradient norms with plain transformers (torch) or with one process of torch (the others).
- **Inference**: *equal* means that tests compare completions and log-probabilities with plain transformers.

| `model_type` | rows | padded | padding-free | packed | trained | inference |
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
INFERENCE = "infer/test_asking_with_images.py"
TAIL = """
Audio: tests train `qwen2_audio` and generate with it, padded, padding-free and packed on torch, and on FSDP2 and ZeRO
3. The samples of `qwen2_5_omni_thinker` have as many audio clips as images. Videos are passed to models as frames, so
the results for images apply to them. vLLM is tested with images on a LLaVA
(`tests/export_vllm/test_serve_images.py`).

The processors of Mistral3, Pixtral (a `llava` with another vision encoder) and SmolVLM need torchvision or num2words.
The extra `vision` installs both, and was used for these three. Without torchvision, swift loads other processors
without their video part.

LLaVA-OneVision's processor cuts an image into tiles only if it is the only one of a text. swift passes images one by
one, so each is cut into tiles.
"""


def page() -> str:
    """Return the page, with what is found now."""
    tiny = import_module("tiny_architectures")  # of the tests' helpers
    lines = []
    for kind in tiny.ARCHITECTURES:
        found = tiny.proven(kind)
        rows = "equal" if tiny.rows_are_read(kind) else "differ"
        layouts = f"{found.padded} | {found.padding_free} | {found.packed}"
        inference = "equal" if _named(kind, INFERENCE) else ""
        lines.append(f"| `{kind}` | {rows} | {layouts} | {trained_on(kind)} | {inference} |\n")
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
