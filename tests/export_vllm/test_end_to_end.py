"""From training on three engines to an answer over HTTP: what was trained is what answers.

Each engine trains the demo's task on processes of its own, `swift export --to vllm` and `swift serve` take the result
to a vLLM server, and the official `openai` client asks the questions that were held out. The answers must be those of
plain transformers on the weights in the checkpoint, which are read without swift.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from processes import on_processes, succeeded
from safetensors import safe_open
from served import READY, Served, serving
from tiers import tiered
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.cli.main import run as swift
from swift.parsing import parse
from swift.train.loop import train
from swift_demo.model import write_model
from swift_demo.task import write_data

pytestmark = pytest.mark.usefixtures("imported")

ENGINES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "fsdp": (2, "--parallel_method fsdp", ("swift_backend_fsdp.shard",)),
    "zero3": (2, "--deepspeed zero3", ("deepspeed", "swift_backend_deepspeed.shard")),
    "megatron": (2, "--parallel_method megatron --tp 2", ("megatron_imported",)),
}
"""Name → processes, what a user types, and what is imported once for all of them."""
GOAL = 0.95
LENGTH = 32


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    write_model(folder / "model")
    write_data(folder)
    return folder


@pytest.mark.parametrize("engine", tiered(ENGINES, (), ("fsdp", "zero3")))
def test_trained_model_is_served_by_vllm(engine: str, task: Path, tmp_path: Path) -> None:
    checkpoint = trained(engine, task, tmp_path / "runs")
    exported = tmp_path / "exported"
    words = ["export", str(checkpoint), "--to", "vllm", "--out", str(exported)]
    assert swift([*words, "--verify", "transformers"]) == 0  # vLLM is asked below, and more
    questions, expected = held_out(task)
    reference = by_transformers(checkpoint, task / "model", questions)
    with serving(tmp_path, str(exported), "--name", "reader") as run:
        run.until(READY)
        answers = asked(Served(run).url, questions)
    assert answers == reference
    right = sum(answer == other for answer, other in zip(answers, expected, strict=True))
    assert right >= GOAL * len(questions), f"{right} of {len(questions)} are right, for example {answers[:3]}"


def trained(engine: str, task: Path, output: Path) -> Path:
    """The last checkpoint of a run on this engine."""
    size, flags, modules = ENGINES[engine]
    words = (
        f"--model {task / 'model'} --dataset {task / 'train.jsonl'} --train_type full --packing true --max_length 256 "
        f"--per_device_train_batch_size {4 if engine == 'megatron' else 2} --max_steps 160 --learning_rate 5e-3 "
        f"--logging_steps 160 --backend.cpu_threads 1 --output_dir {output} --logging.run_name run {flags}"
    ).split()
    for module in modules:
        importlib.import_module(module)
    with environment(DS_ACCELERATOR="cpu"):
        (summaries,) = on_processes(size, partial(last_checkpoint, words))
    return Path(succeeded(summaries)[0])


def last_checkpoint(words: list[str]) -> str:
    """Train, on one of the processes."""
    return str(train(parse(words, "sft")).last_checkpoint)


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def held_out(task: Path) -> tuple[list[str], list[str]]:
    """Questions and their answers."""
    rows = [json.loads(line)["messages"] for line in (task / "test.jsonl").read_text().splitlines()]
    return [question["content"] for question, _ in rows], [answer["content"] for _, answer in rows]


@torch.no_grad()
def by_transformers(checkpoint: Path, base: Path, questions: list[str]) -> list[str]:
    """Plain transformers' greedy answers, with the fp32 weights that the optimizer updates."""
    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    missing, unexpected = model.load_state_dict(master_weights(checkpoint), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}, "the embedding is tied to it"
    messages = [[{"role": "user", "content": question}] for question in questions]
    prompts = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=True, return_tensors="pt", padding=True
    )
    output = model.generate(**prompts, do_sample=False, max_new_tokens=LENGTH, pad_token_id=tokenizer.pad_token_id)
    return tokenizer.batch_decode(output[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)


def master_weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Put together from the pieces on disk, as the page on the checkpoint's format describes them."""
    weights = {}
    for name, tensor in json.loads((checkpoint / "state" / "index.json").read_text())["tensors"].items():
        if not name.startswith("model."):
            continue
        whole = torch.full(tensor["shape"], torch.nan)
        for chunk in tensor["chunks"]:
            place = tuple(slice(at, at + size) for at, size in zip(chunk["offsets"], chunk["sizes"], strict=True))
            with safe_open(checkpoint / chunk["file"], framework="pt") as file:
                whole[place] = file.get_tensor(chunk["key"])
        weights[name.removeprefix("model.")] = whole
    return weights


def asked(url: str, questions: list[str]) -> list[str]:
    """Many at a time, as a server's users do."""
    client: Any = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=300)

    def ask(question: str) -> str:
        reply = client.chat.completions.create(
            model="reader", messages=[{"role": "user", "content": question}], max_tokens=LENGTH, temperature=0
        )
        return str(reply.choices[0].message.content)

    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(ask, questions))
