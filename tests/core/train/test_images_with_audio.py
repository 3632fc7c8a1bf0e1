"""Training on images, videos and sounds together, beside plain transformers: processor, model, AdamW, no more."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, FLAT, LORA, STEPS
from mixed_media import ROWS, files_of, media_folder, parts_of, trained_on_media
from processes import on_processes, succeeded
from tiny_images import OMNI, image_model, processor_of
from tiny_runs import Trained
from transformers import AutoModelForImageTextToText, GenerationConfig

from swift.data.audio import open_audio
from swift_infer.chat_engine import open_chat_engine
from swift_infer.image_messages import question_of
from swift_infer.options import ModelOptions, SamplingOptions
from swift_infer.questions import Question


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return media_folder(tmp_path_factory.mktemp("media"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_model(tmp_path_factory.mktemp("model"), "qwen2_5_omni_thinker")


@pytest.fixture(scope="module")
def one(model: Path, folder: Path) -> Trained:
    return trained_on_media(model, folder, "one", ALL)


def asked(folder: Path, number: int, *, answered: bool = True) -> tuple[dict[str, Any], int]:
    """Return what the processor makes of a row, and how many tokens of it are learned; or of its question alone."""
    from PIL import Image

    processor = processor_of(OMNI)
    messages = [{"role": "user", "content": parts_of(number)}]
    prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    answer = f"{'low ' * (1 + number % 3)}<|im_end|>" if answered else ""
    images, sounds = files_of(number)
    given: dict[str, Any] = {"images": [Image.open(folder / each) for each in images]} if images else {}
    if sounds:
        given |= {"audio": [open_audio(str(folder / each), 16000) for each in sounds], "sampling_rate": 16000}
    inputs = processor(text=[f"{prompt}{answer}"], return_tensors="pt", **given)
    return dict(inputs), len(processor.tokenizer(answer)["input_ids"])


def plain(path: Path, folder: Path) -> tuple[list[float], list[float]]:
    """Losses and gradient norms of a loop over rows, each of which is asked of the model alone."""
    model: Any = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses, norms = [], []
    for step in range(STEPS):
        for each in model.parameters():
            each.grad = torch.zeros_like(each)  # where nobody has an image, the encoder goes on as it went
        sums, count = torch.zeros(()), 0
        for number in range(4 * step, 4 * step + 4):
            inputs, learned = asked(folder, number)
            logps = model(**inputs).logits[0, :-1].log_softmax(-1)
            sums = sums - logps.gather(-1, inputs["input_ids"][0, 1:, None])[-learned:].sum()
            count += learned
        loss = sums / count
        loss.backward()
        norms.append(float(torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])))
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


@pytest.mark.full
def test_losses_and_gradients_are_those_of_plain_transformers(model: Path, folder: Path, one: Trained) -> None:
    losses, norms = plain(model, folder)
    for run in (one, trained_on_media(model, folder, "flat", {**ALL, **FLAT})):
        assert run.losses == pytest.approx(losses, rel=1e-5)
        assert run.grad_norms == pytest.approx(norms, rel=1e-4)


@pytest.mark.full
def test_two_processes_learn_as_one_where_each_has_another_kind(model: Path, folder: Path, one: Trained) -> None:
    lora = {**LORA, **ALL, **FLAT}
    runs = {"two": ALL, "two-lora": lora}
    for name, settings in runs.items():
        two = partial(trained_on_media, model, folder, name, settings)
        ((first, *_),) = [succeeded(answers) for answers in on_processes(2, two)]
        expected = one if name == "two" else trained_on_media(model, folder, "one-lora", lora)
        assert first.losses == pytest.approx(expected.losses, rel=1e-5)
        assert first.grad_norms == pytest.approx(expected.grad_norms, rel=1e-4)


@pytest.mark.full
def test_image_and_audio_completions_match_transformers(model: Path, folder: Path) -> None:
    """Completions about images and audio are those of transformers."""
    numbers = range(len(ROWS) - 1)  # a question has no video that is a list of images
    questions = []
    for number in numbers:
        images, sounds = files_of(number)
        held = {"image": [folder / each for each in images], "audio": [folder / each for each in sounds]}
        questions.append(Question([question_of(f"{ROWS[number][0]}What is {number}?", held)]))
    chat_engine = open_chat_engine(ModelOptions(model=str(model), dtype="float32"), say=print)
    found = dict(chat_engine.respond(questions, SamplingOptions(max_new_tokens=8).sampling))
    chat_engine.close()
    plainly: Any = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    plainly.generation_config = GenerationConfig()
    tokenizer = processor_of(OMNI).tokenizer
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.eos_token_id}
    for number in numbers:
        inputs, _ = asked(folder, number, answered=False)
        said = plainly.generate(**inputs, do_sample=False, max_new_tokens=8, **ends)[0, inputs["input_ids"].shape[1] :]
        assert found[number].text == tokenizer.decode(said, skip_special_tokens=True), number
