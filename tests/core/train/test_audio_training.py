"""Training on sounds, beside plain transformers: processor, model, AdamW and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, FLAT, LORA, SOUNDS, STEPS, sound_folder
from image_runs import trained_on_sounds as trained
from tiny_images import image_model, processor_of
from transformers import AutoModelForMultimodalLM

from swift.data.audio import open_audio


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sound_folder(tmp_path_factory.mktemp("sounds"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("model"), "qwen2_audio")


def plain(model_folder: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a loop over rows, each of which is asked of the model alone."""
    processor = processor_of("qwen2_audio")
    model: Any = AutoModelForMultimodalLM.from_pretrained(model_folder, dtype=torch.float32)
    model.model.audio_tower.embed_positions.requires_grad_(False)  # as its own code says, which loading forgets
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        sums, count = torch.zeros(()), 0
        for number in range(4 * step, 4 * step + 4):
            content = [*({"type": "audio"} for _ in SOUNDS[number]), {"type": "text", "text": f"What is {number}?"}]
            messages = [{"role": "user", "content": content}]
            prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            sounds = [open_audio(str(folder / f"{each}.wav"), 16000) for each in SOUNDS[number]] or None
            answer = f"{'low ' * (1 + number % 3)}<|im_end|>"
            rate = {} if sounds is None else {"sampling_rate": 16000}
            inputs = processor(text=[f"{prompt}{answer}"], audio=sounds, return_tensors="pt", **rate)
            learned = len(processor.tokenizer(answer)["input_ids"])
            logps = model(**inputs).logits[0, :-1].log_softmax(-1)
            sums = sums - logps.gather(-1, inputs["input_ids"][0, 1:, None])[-learned:].sum()
            count += learned
        optimizer.zero_grad()
        loss = sums / count
        loss.backward()
        norms.append(
            float(torch.stack([each.grad.norm() for each in model.parameters() if each.grad is not None]).norm())
        )
        for each in model.parameters():
            each.grad = torch.zeros_like(each) if each.grad is None else each.grad
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.full
@pytest.mark.parametrize("layout", ["padded", "flat"])
def test_losses_and_gradients_are_those_of_plain_transformers(model: Path, folder: Path, layout: str) -> None:
    run = trained(model, folder, layout, {**ALL, **(FLAT if layout == "flat" else {})})
    losses, norms = plain(model, folder)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-4)


@pytest.mark.full
def test_audio_adapters_learn_and_export(model: Path, folder: Path) -> None:
    settings = {**LORA, "optim.lr": 0.02, "train.epochs": 4, "train.max_steps": 9, "export.to": "hf"}
    run = trained(model, folder, "lora", settings)
    assert run.losses[-1] < 0.9 * run.losses[0]
    (exported,) = {path.parent for path in run.folder.rglob("model*.safetensors")}
    from transformers import AutoProcessor

    processor, written = AutoProcessor.from_pretrained(exported), AutoModelForMultimodalLM.from_pretrained(exported)
    sound = open_audio(str(folder / "0.wav"), 16000)
    inputs = processor(text=["<|AUDIO|>?"], audio=[sound], sampling_rate=16000, return_tensors="pt")
    silent = {**inputs, "input_features": torch.zeros_like(inputs["input_features"])}
    with torch.no_grad():
        assert not torch.allclose(written(**inputs).logits[0, -1], written(**silent).logits[0, -1], atol=1e-3)
