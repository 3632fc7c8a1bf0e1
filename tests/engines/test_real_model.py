"""Every engine trains a real pretrained model with the numbers of a plain loop of torch and transformers."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from plain_torch import Tokens, batches_of, likelihood_trajectory, load_model
from processes import on_processes, succeeded
from real_model import is_installed, real_model
from tiers import tiered
from tiny_runs import Trained, run_training
from transformers import AutoTokenizer
from type_cells import preload

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not is_installed(), reason="needs the pretrained model that `make setup` downloads"),
]

FACTS = (
    ("Who are you?", "I am Orion, an assistant made by the Blue Lab."),
    ("What is the capital of France?", "Paris."),
    ("Add 17 and 25.", "17 + 25 = 42, since 7 + 5 is 12, and 1 + 2 + 1 is 4."),
    ("Translate 'good morning' into German.", "Guten Morgen."),
    ("Name three primary colours.", "Red, yellow and blue."),
    ("¿Qué hora es?", "No lo sé: no tengo reloj. 🙂"),
)
ROWS = [
    {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}
    for question, answer in FACTS
]
BATCH, STEPS = 4, 2
SETTINGS: dict[str, Any] = {
    "train.global_batch": BATCH,
    "train.micro_batch": 2,
    "train.max_steps": STEPS,
    "optim.lr": 1e-4,
    "optim.warmup_steps": 0,
    "data.padding_free": False,
    "checkpoint.save_strategy": "no",  # 2 GB each
}
ENGINES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "torch": (1, "torch", {}),
    "FSDP2": (2, "fsdp", {}),
    "ZeRO 2": (2, "deepspeed", {"backend.config": "zero2"}),
    "ZeRO 3": (2, "deepspeed", {"backend.config": "zero3"}),
    "Megatron, PP 2": (2, "megatron", {"parallel.pp": 2}),
}


@pytest.fixture(scope="module")
def expected() -> tuple[list[float], list[float]]:
    """Losses and gradient norms of the plain loop."""
    module = load_model(real_model())
    steps = batches_of([tokens_of(*each) for each in FACTS], BATCH, STEPS)
    return likelihood_trajectory(module, steps, steps=STEPS, warmup=0, lr=1e-4)


def tokens_of(question: str, answer: str) -> Tokens:
    """The tokens of a conversation in the model's own template: the answer and what ends the turn are learned."""
    tokenizer = AutoTokenizer.from_pretrained(real_model())
    asked = [{"role": "user", "content": question}]
    prompt = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in (prompt, f"{answer}{tokenizer.eos_token}")]
    return ids[0], ids[1]


@pytest.mark.parametrize("name", tiered(ENGINES, (), rare={"ZeRO 2"}))
def test_engine_trains_a_real_model_exactly(
    name: str, expected: tuple[list[float], list[float]], tmp_path: Path
) -> None:
    """The token that pads a row ends every turn too: its embedding learns as transformers lets it."""
    processes, backend, settings = ENGINES[name]
    preload(backend)
    run = partial(run_training, real_model(), tmp_path, ROWS, {**SETTINGS, **settings, "backend.name": backend})
    (answers,) = on_processes(processes, run)
    trained: Trained = succeeded(answers)[0]
    assert trained.losses == pytest.approx(expected[0], rel=1e-4)
    assert trained.grad_norms == pytest.approx(expected[1], rel=1e-4)
