"""Training with images on the torch backend, beside plain transformers: processor, model, AdamW and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from image_runs import ALL, FLAT, HELD, LORA, PACKED, RATES, SETTINGS, STEPS, image_folder, plainly_trained
from image_runs import trained_on_images as trained
from tiny_images import image_model, processor_of
from tiny_runs import run_training
from transformers import AutoModelForImageTextToText
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLVisionBlock

from swift.backends.torch.plugin import DataParallelBackend
from swift.errors import ConfigError, ModelError, UnsupportedLayout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    kinds = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
    return {kind: image_model(tmp_path_factory.mktemp(kind), kind) for kind in kinds}


def plain(
    kind: str, model_folder: Path, folder: Path, taught: str, rate_of: Callable[[str], float] = lambda _: 1e-3
) -> tuple[list[float], list[float]]:
    return plainly_trained(processor_of(kind), model_folder, folder, taught, rate_of)


@pytest.mark.parametrize(
    ("kind", "layout", "taught"),
    [
        ("qwen2_5_vl", "padded", "all"),
        ("llava", "flat", "all"),
        pytest.param("qwen2_vl", "padded", "all", marks=pytest.mark.full),
        pytest.param("qwen3_vl", "flat", "all", marks=pytest.mark.full),
        pytest.param("qwen3_vl", "padded", "language", marks=pytest.mark.full),
    ],
)
def test_losses_and_gradients_are_those_of_plain_transformers(
    models: dict[str, Path], folder: Path, kind: str, layout: str, taught: str
) -> None:
    settings = {**(ALL if taught == "all" else {}), **(FLAT if layout == "flat" else {})}
    run = trained(models[kind], folder, f"{kind}-{layout}-{taught}", settings)
    losses, norms = plain(kind, models[kind], folder, taught)
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.grad_norms == pytest.approx(norms, rel=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["llava", "qwen3_vl"])
def test_packed_rows_learn_what_they_learn_alone(models: dict[str, Path], folder: Path, kind: str) -> None:
    packed = trained(models[kind], folder, f"{kind}-packed", {**PACKED, **ALL, "train.max_steps": 2})
    # The packs of a step, each sample in a row of its own.
    assert packed.summary.steps == 2
    one = {"train.global_batch": len(HELD), "train.micro_batch": len(HELD), "train.max_steps": 1, **ALL}
    alone = trained(models[kind], folder, f"{kind}-alone", one)
    whole = {**PACKED, "data.max_length": 4000, "train.global_batch": 1, "train.max_steps": 1, **ALL}
    together = trained(models[kind], folder, f"{kind}-together", whole)
    assert together.losses == pytest.approx(alone.losses, rel=1e-5)
    assert together.grad_norms == pytest.approx(alone.grad_norms, rel=1e-4)


def test_image_adapters_learn_and_frozen_parts_stay(models: dict[str, Path], folder: Path) -> None:
    """Adapters learn from images and leave what is frozen alone."""
    run = trained(
        models["qwen3_vl"], folder, "lora", {**LORA, "optim.lr": 0.02, "train.epochs": 4, "train.max_steps": 9}
    )
    losses, _ = plain("qwen3_vl", models["qwen3_vl"], folder, "language")
    assert run.losses[0] == pytest.approx(losses[0], rel=1e-5)
    assert run.losses[-1] < 0.9 * run.losses[0]


@pytest.mark.full
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_vision_encoder_and_aligner_have_own_lrs(models: dict[str, Path], folder: Path, kind: str) -> None:
    rates = {"vision_tower": 2e-4, "visual": 2e-4, "merger": 3e-3, "multi_modal_projector": 3e-3}

    def rate_of(name: str) -> float:
        return next((rate for part, rate in reversed(rates.items()) if part in name), 1e-3)

    run = trained(models[kind], folder, f"rates-{kind}", {**ALL, **RATES})
    losses, _ = plain(kind, models[kind], folder, "all", rate_of)
    one_rate, _ = plain(kind, models[kind], folder, "all")
    assert run.losses == pytest.approx(losses, rel=1e-5)
    assert run.losses[1:] != pytest.approx(one_rate[1:], rel=1e-4)


def test_checkpointed_vision_encoder_keeps_numbers(
    models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradient checkpointing runs a trained vision encoder again and keeps the numbers."""
    calls: list[bool] = []
    plain = Qwen2_5_VLVisionBlock.forward

    def counted(block: Any, *args: Any, **more: Any) -> Any:
        calls.append(True)
        return plain(block, *args, **more)

    monkeypatch.setattr(Qwen2_5_VLVisionBlock, "forward", counted)
    runs, counts = [], []
    for again in (False, True):
        calls.clear()
        settings = {**ALL, "train.gradient_checkpointing": again}
        runs.append(trained(models["qwen2_5_vl"], folder, f"again {again}", settings))
        counts.append(len(calls))
    assert runs[1].losses == pytest.approx(runs[0].losses, rel=1e-6)
    assert runs[1].grad_norms == pytest.approx(runs[0].grad_norms, rel=1e-5)
    assert counts[1] > counts[0] > 0


def test_a_rate_for_what_is_not_trained_is_refused(models: dict[str, Path], folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"optim\.vit_lr is a learning rate for weights that stay") as refused:
        trained(models["llava"], folder, "frozen", {"optim.vit_lr": 1e-4})
    assert "--freeze_vit false" in str(refused.value.hint)
    text = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    paths = {"data.cache": str(folder / "cache"), "optim.aligner_lr": 1e-4}
    with pytest.raises(ConfigError, match="no row of the data has an image"):
        run_training(models["llava"], folder / "runs", text * 4, {**SETTINGS, **paths})


@pytest.mark.full
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_image_preferences_match_transformers(models: dict[str, Path], folder: Path, kind: str) -> None:
    """Preferences about images are learned as by plain transformers."""
    from PIL import Image

    rows = [
        {
            "messages": [
                {"role": "user", "content": f"<image>Is it {number}?"},
                {"role": "assistant", "content": "yes, it is"},
            ],
            "rejected_response": "no",
            "images": [f"{number}.png"],
        }
        for number in range(4)
    ]
    changes = {
        **SETTINGS, **ALL, "objective.name": "dpo", "data.media_root": str(folder),
        "data.cache": str(folder / "cache"), "logging.run_name": f"dpo-{kind}",
    }  # fmt: skip
    run = run_training(models[kind], folder / "runs", rows, changes)

    processor = processor_of(kind)
    model: Any = AutoModelForImageTextToText.from_pretrained(models[kind], dtype=torch.float32)

    def logp(row: dict[str, Any], answer: str) -> torch.Tensor:
        text = row["messages"][0]["content"].removeprefix("<image>")
        messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
        prompt = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [Image.open(folder / row["images"][0])]
        whole = processor(
            text=[f"{prompt}{answer}<|im_end|>"], images=images, return_tensors="pt", add_special_tokens=False
        )
        learned = len(processor.tokenizer(answer, add_special_tokens=False)["input_ids"]) + 1
        logps = model(**whole).logits[0, :-1].log_softmax(-1)
        total: torch.Tensor = logps.gather(-1, whole["input_ids"][0, 1:, None])[-learned:].sum()
        return total

    with torch.no_grad():
        reference = [float(logp(row, "yes, it is") - logp(row, "no")) for row in rows]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.0)
    losses = []
    for _ in range(STEPS):
        of_pairs = [
            -torch.nn.functional.logsigmoid(0.1 * (logp(row, "yes, it is") - logp(row, "no") - before))
            for row, before in zip(rows, reference, strict=True)
        ]
        loss = torch.stack(of_pairs).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert run.losses == pytest.approx(losses, rel=1e-4)


@pytest.mark.parametrize(("kind", "other"), [("image", "1.png"), ("video", "1.mp4"), ("audio", "1.wav")])
@pytest.mark.parametrize("worse", ["rejected_messages", "rejected_response", "rejected"])
def test_worse_response_to_other_prompt_is_no_pair(folder: Path, kind: str, other: str, worse: str) -> None:
    from swift.data.conversation import Unusable
    from swift_objectives import PreferenceEncoding

    said = [{"role": "user", "content": f"<{kind}>What?"}, {"role": "assistant", "content": "red"}]
    blue = {"role": "assistant", "content": "blue"}
    file = f"0{other[1:]}"
    row = {
        **({"chosen": said} if worse == "rejected" else {"messages": said}),
        worse: "blue" if worse == "rejected_response" else [said[0], blue],
        f"{kind}s": [file],
        f"rejected_{kind}s": [file],
    }
    sample = PreferenceEncoding().understand(row, "row 1", root=folder)
    assert sample.rejected is not None
    assert [each.path for each in sample.rejected.media] == [str(folder / file)]
    assert sample.rejected.media == sample.conversation.media
    assert not sample.extras
    with pytest.raises(Unusable, match=r"different prompts|twice"):
        PreferenceEncoding().understand({**row, f"rejected_{kind}s": [other]}, "row 1", root=folder)


def test_an_export_keeps_its_processor_with_the_limits_in_force(models: dict[str, Path], folder: Path) -> None:
    settings = {"train.max_steps": 1, "data.max_pixels": 28 * 28 * 4, "export.to": "hf"}
    run = trained(models["qwen2_5_vl"], folder, "export", settings)
    (exported,) = {path.parent for path in run.folder.rglob("model*.safetensors")}
    written = (exported / "processor_config.json").read_text()
    assert '"longest_edge": 3136' in written
    model = AutoModelForImageTextToText.from_pretrained(exported)
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava"])
def test_adapters_on_every_part_are_merged_as_peft_merges_them(
    models: dict[str, Path], folder: Path, kind: str
) -> None:
    from peft import PeftModel

    # transformers calls the modules of these models otherwise in memory than in their files.
    run = trained(models[kind], folder, f"merged-{kind}", {**LORA, **ALL, "optim.lr": 0.02, "export.to": "hf"})
    (exported,) = {path.parent for path in run.folder.rglob("model*.safetensors")}
    found = dict(AutoModelForImageTextToText.from_pretrained(exported).named_parameters())
    base = AutoModelForImageTextToText.from_pretrained(models[kind], dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, str(run.summary.last_checkpoint)).merge_and_unload()
    changed = 0
    start = dict(AutoModelForImageTextToText.from_pretrained(models[kind], dtype=torch.float32).named_parameters())
    for name, parameter in merged.named_parameters():
        torch.testing.assert_close(found[name].float(), parameter, atol=1e-5, rtol=1e-5)
        changed += not torch.equal(parameter, start[name])
    assert changed > 20


def test_backend_without_images_refuses_before_loading(
    models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backend without images refuses them before weights load."""
    monkeypatch.setattr("swift.train.prepare.load_model", lambda *_: pytest.fail("weights were loaded"))
    text = replace(DataParallelBackend.capabilities, modalities=frozenset({"text"}))
    monkeypatch.setattr(DataParallelBackend, "capabilities", text)
    with pytest.raises(UnsupportedLayout, match="has images, which the torch backend does not train on") as refused:
        trained(models["llava"], folder, "refused", {})
    assert "--backend" in str(refused.value.hint)


def test_unreachable_vision_encoder_is_refused(models: dict[str, Path], folder: Path) -> None:
    text = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    changes = {**SETTINGS, **ALL, "data.cache": str(folder / "cache")}
    with pytest.raises(ConfigError, match="no row of the data has an image"):
        run_training(models["llava"], folder / "runs", text * 4, changes)


def test_image_broken_during_training_names_row(models: dict[str, Path], folder: Path) -> None:
    """An image that breaks while it is trained on names its row."""
    from swift.config.sections import DataSection
    from swift.data.media import MediaRef
    from swift.data.samples import Encoded
    from swift.errors import DataError
    from swift.models.media import ProcessorReader
    from swift.models.media_processor import MediaProcessor

    reader = ProcessorReader(MediaProcessor(processor_of("llava"), DataSection()), None, "train.jsonl:{}".format)
    sample = reader.probe([(56, 56)])
    gone = MediaRef("image", str(folder / "gone.png"), 6, 16, 56, 56, 10)
    segment = sample.segments[0]
    broken = Encoded(7, (type(segment)(segment.input_ids, segment.weights, media=(gone,)),))
    with pytest.raises(DataError, match=r"train\.jsonl:7: the image .*gone\.png"):
        reader.collated([sample, broken], flat=False)


def test_model_mixing_packed_images_is_refused(
    models: dict[str, Path], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swift.models.media.ProcessorReader._positions", lambda *_: None)
    with pytest.raises(ModelError, match="different results when samples with images"):
        trained(models["qwen2_5_vl"], folder, "mixed", {**FLAT, "train.max_steps": 1})
