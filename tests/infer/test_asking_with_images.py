"""Questions with images, beside plain transformers: its processor, its `generate` and nothing else."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tiny_images import image_files, image_model, processor_of, sound_files
from transformers import AutoModelForImageTextToText, AutoModelForMultimodalLM, GenerationConfig

from swift.cli.main import run as swift
from swift.contracts import EngineRequest, ImagePrompt
from swift.data.audio import open_audio
from swift.data.media import MediaRef
from swift.errors import DataError
from swift.plugins.inference import CheckedEngine
from swift_infer.chat import _Conversation
from swift_infer.chat_engine import LocalChatEngine, open_chat_engine
from swift_infer.image_messages import for_servers, question_with
from swift_infer.options import ModelOptions, SamplingOptions
from swift_infer.questions import read_questions

KINDS = ("llava", "qwen3_vl")
SIZES = [(56, 56), (84, 56), (56, 112), (90, 61)]
ASKED: list[tuple[str, list[int]]] = [
    ("What is it?", [0]),
    ("Compare <image> with <image>, please.", [1, 2]),
    ("No image here.", []),
    ("And this large one?", [3]),
]
NEW = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    image_files(folder, SIZES)
    rows = [
        {"messages": [{"role": "user", "content": text}], "images": [f"{each}.png" for each in held]}
        for text, held in ASKED
    ]
    (folder / "asked.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    return request.param, image_model(tmp_path_factory.mktemp(request.param), request.param)


def by_transformers(kind: str, model_folder: Path, folder: Path, adapter: Path | None = None) -> list[str]:
    """Answers of the model to each question alone, with an adapter of PEFT where there is one."""
    from PIL import Image

    processor = processor_of(kind)
    model: Any = AutoModelForImageTextToText.from_pretrained(model_folder, dtype=torch.float32).eval()
    model.generation_config = GenerationConfig()
    if adapter is not None:
        model = PeftModel.from_pretrained(model, adapter).eval()
    end = processor.tokenizer.eos_token_id
    answers = []
    for text, held in ASKED:
        pieces = text.split("<image>") if "<image>" in text else [""] * len(held) + [text]
        content: list[dict[str, str]] = []
        for number, piece in enumerate(pieces):
            content += [{"type": "image"}] * (number > 0)
            content += [{"type": "text", "text": piece}] * bool(piece)
        prompt = processor.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        images = [Image.open(folder / f"{each}.png") for each in held] or None
        inputs = processor(text=[prompt], images=images, return_tensors="pt", add_special_tokens=False)
        output = model.generate(**inputs, do_sample=False, max_new_tokens=NEW, eos_token_id=end, pad_token_id=end)
        new = output[0, inputs["input_ids"].shape[1] :]
        answers.append(processor.tokenizer.decode(new, skip_special_tokens=True))
    return answers


@pytest.fixture
def chat_engine(model: tuple[str, Path]) -> Any:
    chat_engine = open_chat_engine(ModelOptions(model=str(model[1]), dtype="float32"), say=print)
    yield chat_engine
    chat_engine.close()


def test_completions_match_transformers(model: tuple[str, Path], folder: Path, chat_engine: LocalChatEngine) -> None:
    sampling = SamplingOptions(max_new_tokens=NEW).sampling
    questions = list(read_questions([str(folder / "asked.jsonl")], {}))
    expected = by_transformers(*model, folder)
    assert len(set(expected)) > 1, "the model answers alike whatever it sees"
    assert [
        answer.text for _, answer in sorted(chat_engine.respond(questions, sampling), key=lambda each: each[0])
    ] == expected
    assert ["".join(chat_engine.stream(question.messages, sampling)) for question in questions] == expected


@pytest.mark.full
def test_adapter_completions_match_peft(folder: Path, tmp_path: Path) -> None:
    path = image_model(tmp_path / "model", "qwen2_5_vl")
    torch.manual_seed(1)
    settings = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    base = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32)
    get_peft_model(base, settings).save_pretrained(tmp_path / "adapter")
    options = ModelOptions(model=str(path), adapters=str(tmp_path / "adapter"), dtype="float32")
    chat_engine = open_chat_engine(options, say=print)
    sampling = SamplingOptions(max_new_tokens=NEW).sampling
    questions = list(read_questions([str(folder / "asked.jsonl")], {}))
    found = [answer.text for _, answer in sorted(chat_engine.respond(questions, sampling), key=lambda each: each[0])]
    chat_engine.close()
    expected = by_transformers("qwen2_5_vl", path, folder, tmp_path / "adapter")
    assert found == expected != by_transformers("qwen2_5_vl", path, folder)


def test_scores_of_pictured_prompts_are_those_of_transformers(
    model: tuple[str, Path], folder: Path, chat_engine: LocalChatEngine
) -> None:
    from PIL import Image

    kind, model_folder = model
    prompts = [
        chat_engine.prompt([question_with(text, [folder / f"{each}.png" for each in held])]) for text, held in ASKED
    ]
    processor = processor_of(kind)
    plain: Any = AutoModelForImageTextToText.from_pretrained(model_folder, dtype=torch.float32).eval()
    for place, score in chat_engine.engine.score(prompts):
        held = ASKED[place][1]
        images = [Image.open(folder / f"{each}.png") for each in held]
        ids = torch.tensor([list(prompts[place])])
        kinds = {"mm_token_type_ids": torch.isin(ids, torch.tensor(processor.image_token_ids[:1])).int()}
        inputs = dict(processor.image_processor(images, return_tensors="pt")) if images else {}
        with torch.no_grad():
            logits = plain(input_ids=ids, **inputs, **(kinds if kind != "llava" else {})).logits[0, :-1]
        expected = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(score.logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.full
def test_infer_prints_completion_about_audio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model_folder = image_model(tmp_path / "model", "qwen2_audio")
    (name,) = sound_files(tmp_path, [1.2])
    words = ["infer", str(model_folder), "--prompt", "What is said?", "--audio", str(tmp_path / name)]
    processor = processor_of("qwen2_audio")
    model: Any = AutoModelForMultimodalLM.from_pretrained(model_folder, dtype=torch.float32).eval()
    content = [{"type": "audio"}, {"type": "text", "text": "What is said?"}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    heard = [open_audio(str(tmp_path / name), 16000)]
    inputs = processor(text=[prompt], audio=heard, sampling_rate=16000, return_tensors="pt", add_special_tokens=False)
    end = processor.tokenizer.eos_token_id
    made = model.generate(**inputs, do_sample=False, max_new_tokens=NEW, eos_token_id=end, pad_token_id=end)
    answer = processor.tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    capsys.readouterr()
    assert swift([*words, "--max_new_tokens", str(NEW), "--torch_dtype", "float32"]) == 0
    assert capsys.readouterr().out.strip() == answer.strip()
    assert swift(["infer", str(model_folder), "--audio", name]) == 2
    assert "--audio needs --prompt" in capsys.readouterr().err


def test_results_name_images(folder: Path, tmp_path: Path) -> None:
    model = image_model(tmp_path / "model", "llava")
    result = tmp_path / "answers.jsonl"
    words = ["infer", str(model), "--dataset", str(folder / "asked.jsonl"), "--max_new_tokens", "4"]
    assert swift([*words, "--result_path", str(result)]) == 0
    lines = [json.loads(line) for line in result.read_text().splitlines()]
    assert lines[0]["messages"][0]["content"] == [
        {"type": "image", "path": str(folder / "0.png")}, {"type": "text", "text": "What is it?"}
    ]  # fmt: skip
    assert lines[2]["messages"][0]["content"] == "No image here."
    assert swift([*words, "--result_path", str(result)]) == 0, "all are answered"


class TextEngine:
    """An engine that reads text alone."""

    def generate(self, prompts: Any, sampling: Any) -> Any:
        return iter(())

    stream = score = generate


def test_text_only_engine_gets_no_images() -> None:
    engine = CheckedEngine("the engine blind", TextEngine())  # type: ignore[arg-type]
    prompt = ImagePrompt.of([1, 2, 3], [MediaRef("image", "a.png", 1, 1)])
    with pytest.raises(DataError, match="reads text alone"):
        list(engine.generate([prompt], SamplingOptions().sampling))
    with pytest.raises(DataError, match="reads text alone"):
        list(engine.stream(prompt, SamplingOptions().sampling))


def test_text_model_refuses_image(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from swift_demo.model import write_model

    write_model(tmp_path / "model")
    assert swift(["infer", str(tmp_path / "model"), "--prompt", "What?", "--image", str(folder / "0.png")]) == 2
    assert "does not read images" in capsys.readouterr().err


def test_missing_image_is_named(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = image_model(tmp_path / "model", "llava")
    assert swift(["infer", str(model), "--prompt", "What?", "--image", str(folder / "none.png")]) == 2
    assert f"there is no file {folder / 'none.png'}" in capsys.readouterr().err
    assert swift(["infer", str(model), "--image", str(folder / "0.png")]) == 2
    assert "--prompt" in capsys.readouterr().err


def test_servers_receive_image_data(folder: Path) -> None:
    (message,) = for_servers([question_with("What is it?", [folder / "0.png"])])
    image, text = message["content"]
    address = image["image_url"]["url"]
    assert address.startswith("data:image/png;base64,")
    assert base64.b64decode(address.partition(",")[2]) == (folder / "0.png").read_bytes()
    assert text == {"type": "text", "text": "What is it?"}


class Recorder:
    """A speaker that keeps what it is told."""

    name, multi_turn, reads_images = "recorder", True, True

    def __init__(self) -> None:
        self.told: list[Any] = []

    def stream(self, messages: Any, sampling: Any) -> Any:
        self.told = list(messages)
        return iter(["seen"])


def test_chat_attaches_image_to_next_question(folder: Path, tmp_path: Path) -> None:
    chat_engine = Recorder()
    talk = _Conversation(chat_engine)  # type: ignore[arg-type]
    assert talk.command(f"/image {folder / '3.png'}") == ["3.png, 90×61 pixels, is attached to the next message."]
    assert "no file" in talk.command("/image nowhere.png")[0]
    list(talk.respond("What is it?", SamplingOptions().sampling))
    assert [part["type"] for part in chat_engine.told[0]["content"]] == ["image", "text"]
    list(talk.respond("Are you sure?", SamplingOptions().sampling))
    assert chat_engine.told[2] == {"role": "user", "content": "Are you sure?"}
    assert talk.command(f"/save {tmp_path / 'talk.jsonl'}") == [f"Appended to {tmp_path / 'talk.jsonl'}."]
    saved = json.loads((tmp_path / "talk.jsonl").read_text())["messages"]
    assert saved[0]["content"][0] == {"type": "image", "path": str(folder / "3.png")}


def test_limits_of_pixels_hold_for_questions(folder: Path, tmp_path: Path) -> None:
    model = image_model(tmp_path / "model", "qwen2_vl")
    lengths = {}
    for most in (None, 56 * 56):
        chat_engine: Any = open_chat_engine(ModelOptions(model=str(model), max_pixels=most), say=print)
        lengths[most] = chat_engine.prompt([question_with("?", [folder / "2.png"])]).media[0].length
        chat_engine.close()
    assert lengths[56 * 56] < lengths[None]
    assert EngineRequest(model=model).max_pixels is None
