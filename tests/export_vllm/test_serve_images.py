"""A run that learned from images, exported and served by vLLM, and asked with images through the `openai` client.

It starts a server of its own, so `make conformance` runs it. vLLM runs the model by transformers' code there: its own
LLaVA imports torchvision, which CPU builds of torch cannot import from the index of packages.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import transformers
from kit_cases import WHOLE_KIT
from PIL import Image
from served import READY, Served, serving
from tiny_images import QWEN_TEXT, SIGLIP, chat_template, image_files, tokenizer_with

from swift.cli.main import run as swift

QUESTION = "What is it?"
SIZES = [(56, 56), (90, 61), (40, 112)]
NEW = 16


def llava(folder: Path) -> Path:
    """Write a LLaVA with CLIP's images, as released ones; vLLM has attention on the CPU for heads of 32."""
    tokenizer = tokenizer_with(("<image>",), {"image_token": "<image>"})
    tokenizer.chat_template = chat_template("<image>")
    images = transformers.CLIPImageProcessorPil(size={"shortest_edge": 56}, crop_size={"height": 56, "width": 56})
    transformers.LlavaProcessor(
        images, tokenizer, patch_size=14, vision_feature_select_strategy="full", num_additional_image_tokens=0,
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)  # fmt: skip
    config = transformers.LlavaConfig(
        text_config={**QWEN_TEXT, "hidden_size": 128},
        vision_config={**SIGLIP, "hidden_size": 64},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    model: Any = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(std=0.08)
    model.save_pretrained(folder)
    return folder


@pytest.mark.full
@pytest.mark.skipif(not WHOLE_KIT, reason="starts a server of its own: make conformance runs it")
def test_server_conformance_with_images(tmp_path: Path) -> None:
    names = image_files(tmp_path, SIZES)
    rows = [
        {"messages": [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": f"number {number}"}],
         "images": [name]}
        for number, name in enumerate(names)
    ]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = (
        f"sft --model {llava(tmp_path / 'model')} --dataset {tmp_path / 'rows.jsonl'} --train_type full --max_steps 4"
    )
    words += f" --freeze_vit false --freeze_aligner false --learning_rate 1e-3 --output_dir {tmp_path / 'runs'}"
    assert swift([*words.split(), "--logging.run_name", "run", "--backend.cpu_threads", "1"]) == 0
    exported = tmp_path / "exported"
    (checkpoint,) = (tmp_path / "runs").rglob("checkpoint-4")
    assert swift(["export", str(checkpoint), "--to", "vllm", "--out", str(exported), "--verify", "transformers"]) == 0
    with serving(tmp_path, str(exported), "--name", "seer", "--model-impl", "transformers") as run:
        run.until(READY)
        client = openai.OpenAI(base_url=Served(run).url, api_key="none", max_retries=0)
        answers = [asked(client, (tmp_path / name).read_bytes()) for name in names]
    expected = [by_transformers(exported, tmp_path / name) for name in names]
    assert answers == expected
    assert len({tuple(tokens) for _, tokens in expected}) == len(names), "the model answers alike whatever it sees"


def asked(client: openai.OpenAI, content: bytes) -> tuple[list[int], list[int]]:
    """The tokens of the question and of the answer of the server."""
    address = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    parts: Any = [{"type": "image_url", "image_url": {"url": address}}, {"type": "text", "text": QUESTION}]
    answer: Any = client.chat.completions.create(
        model="seer",
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        max_tokens=NEW,
        extra_body={"return_token_ids": True},
    )
    return answer.prompt_token_ids, answer.choices[0].token_ids


def by_transformers(folder: Path, file: Path) -> tuple[list[int], list[int]]:
    """The same by plain transformers, greedily."""
    processor: Any = transformers.AutoProcessor.from_pretrained(folder)
    model: Any = transformers.AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32).eval()
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    prompt = processor.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    inputs = processor(text=[prompt], images=[Image.open(file)], return_tensors="pt", add_special_tokens=False)
    end = processor.tokenizer.eos_token_id
    made = model.generate(**inputs, do_sample=False, max_new_tokens=NEW, eos_token_id=end, pad_token_id=end)
    asked_with = inputs["input_ids"][0].tolist()
    return asked_with, made[0, len(asked_with) :].tolist()
