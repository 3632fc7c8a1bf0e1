"""A run with its adapter and another one, served by vLLM, and asked as its users ask, through the `openai` client.

What answers is compared with transformers and PEFT on the same folders. One server is started for all of these tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from peft import PeftModel
from served import Served
from transformers import AutoModelForCausalLM, AutoTokenizer

QUESTIONS = ("colour?", "number?", "What else is there, in a longer question?")
LENGTH = 24


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served.url, api_key=served.key, max_retries=0)


@cache
def reference(base: Path, adapter: Path | None) -> Any:
    """The model as transformers and PEFT load it."""
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    return (model if adapter is None else PeftModel.from_pretrained(model, adapter)).eval()


def greedy(served: Served, name: str, prompt: list[int]) -> list[int]:
    """The tokens of transformers' answer."""
    model = reference(served.folders["small"], None if name == "small" else served.folders[name])
    tokens = torch.tensor([prompt])
    output = model.generate(
        input_ids=tokens,
        attention_mask=torch.ones_like(tokens),
        do_sample=False,
        max_new_tokens=LENGTH,
        eos_token_id=AutoTokenizer.from_pretrained(served.folders["small"]).eos_token_id,
    )
    return list(output[0, len(prompt) :].tolist())


def rendered(served: Served, question: str) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(served.folders["small"])
    messages = [{"role": "user", "content": question}]
    return list(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"])


def text_of(served: Served, tokens: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(served.folders["small"]).decode(tokens, skip_special_tokens=True))


def chat(client: openai.OpenAI, model: str, question: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        max_tokens=LENGTH,
        temperature=0,
        extra_body={"return_token_ids": True},
        **options,
    )


@pytest.mark.full
def test_served_chats_match_transformers_and_peft(served: Served, client: openai.OpenAI) -> None:
    """Chats with the model and each adapter are those of transformers and PEFT."""
    answers = set()
    for name in ("small", "first", "second"):
        for question in QUESTIONS:
            answer = chat(client, name, question)
            prompt = rendered(served, question)
            assert answer.prompt_token_ids == prompt
            assert answer.choices[0].token_ids == greedy(served, name, prompt), (name, question)
            # Bytes of a character that is not complete are held back by vLLM.
            expected = text_of(served, answer.choices[0].token_ids).rstrip("\N{REPLACEMENT CHARACTER}")
            assert answer.choices[0].message.content.rstrip("\N{REPLACEMENT CHARACTER}") == expected
            answers.add((question, answer.choices[0].message.content))
    assert len(answers) == 9, "models that answer alike would prove nothing"


@pytest.mark.full
def test_streamed_completion_equals_whole(served: Served, client: openai.OpenAI) -> None:
    for name in ("small", "first"):
        pieces = [
            chunk.choices[0].delta.content or ""
            for chunk in chat(client, name, QUESTIONS[2], stream=True)
            if chunk.choices
        ]
        assert len(pieces) > 3
        expected = text_of(served, greedy(served, name, rendered(served, QUESTIONS[2])))
        assert "".join(pieces).rstrip("\N{REPLACEMENT CHARACTER}") == expected.rstrip("\N{REPLACEMENT CHARACTER}")


@pytest.mark.full
def test_completions_have_tokens_and_log_probs(served: Served, client: openai.OpenAI) -> None:
    """Completions have the tokens and log-probabilities of the model."""
    tokenizer = AutoTokenizer.from_pretrained(served.folders["small"])
    prompt = list(tokenizer("Once upon").input_ids)
    for name in ("small", "second"):
        answer: Any = client.completions.create(
            model=name,
            prompt="Once upon",
            max_tokens=LENGTH,
            temperature=0,
            logprobs=1,
            extra_body={"return_token_ids": True},
        )
        tokens = answer.choices[0].token_ids
        assert tokens == greedy(served, name, prompt)
        model = reference(served.folders["small"], None if name == "small" else served.folders[name])
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, torch.tensor(tokens)[:, None])[:, 0]
        assert answer.choices[0].logprobs.token_logprobs == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.full
def test_models_lists_the_base_and_its_adapters(served: Served, client: openai.OpenAI) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert set(listed) == {"small", "first", "second"}
    parents: dict[str, Any] = {name: vars(model).get("parent") or model.model_extra for name, model in listed.items()}
    assert parents["first"]["parent"] == parents["second"]["parent"] == "small"
    assert parents["first"]["root"] == str(served.folders["first"])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        chat(client, "fourth", "colour?")


@pytest.mark.full
def test_embeddings_of_a_model_that_writes_are_not_offered(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="small", input="colour?")


@pytest.mark.full
def test_health_needs_no_key_and_all_else_needs_the_right_one(served: Served) -> None:
    with urllib.request.urlopen(served.url.removesuffix("/v1") + "/health", timeout=60) as answer:
        assert answer.status == 200
    for key in ("wrong", "none"):
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=served.url, api_key=key, max_retries=0).models.list()


@pytest.mark.full
def test_the_key_is_on_no_command_line_and_not_in_the_log(served: Served) -> None:
    assert served.key
    lines = [" ".join(process.cmdline()) for process in served.processes()]
    assert any("api_server" in line for line in lines)
    assert not [line for line in lines if served.key in line]
    log = next(line.split()[-1] for line in served.run.output.splitlines() if line.startswith("  log "))
    assert served.key not in Path(log).read_text() + served.run.output
    assert Path(log).stat().st_mode & 0o077 == 0


@pytest.mark.full
def test_an_adapter_comes_and_goes_while_the_server_runs(served: Served, client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(client, "third", "colour?")
    request = {"lora_name": "third", "lora_path": str(served.folders["third"])}
    client.post("/load_lora_adapter", body=request, cast_to=str)
    prompt = rendered(served, "colour?")
    assert chat(client, "third", "colour?").choices[0].token_ids == greedy(served, "third", prompt)
    assert "third" in {model.id for model in client.models.list()}
    client.post("/unload_lora_adapter", body={"lora_name": "third"}, cast_to=str)
    with pytest.raises(openai.NotFoundError):
        chat(client, "third", "colour?")
    stranger = openai.OpenAI(base_url=served.url, api_key="none", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.post("/load_lora_adapter", body=request, cast_to=str)


@pytest.mark.full
def test_the_lines_that_are_printed_work_as_they_are(served: Served, tmp_path: Path) -> None:
    assert served.key
    environment = {**os.environ, "SWIFT_API_KEY": served.key}
    line = subprocess.run(served.curl_line, shell=True, env=environment, capture_output=True, text=True, check=True)
    answer = json.loads(line.stdout)
    assert answer["model"] == "first"
    assert answer["choices"][0]["message"]["content"]
    script = tmp_path / "ask.py"
    script.write_text(served.python_lines)
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.full
def test_what_swift_does_not_know_reached_the_server(served: Served) -> None:
    (server,) = (process for process in served.processes() if "api_server" in " ".join(process.cmdline()[:4]))
    assert server.cmdline()[-2:] == ["--max-num-seqs", "4"]
