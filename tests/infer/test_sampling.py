"""How answers are drawn by the transformers engine, against the logits processors of transformers themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from swift.cli.main import run
from swift.contracts import Sampling
from swift.errors import UsageError
from swift.terminal import say_nothing
from swift_infer.chat_engine import LocalChatEngine, find_model, open_local
from swift_infer.options import ModelOptions, SamplingOptions
from swift_infer.questions import Question
from swift_infer.sampling import Sampler, sample_tokens
from swift_infer.stop_strings import StopStrings

VOCABULARY, ROWS = 12, 4000


@pytest.mark.parametrize(
    ("sampling", "processors"),
    [
        (Sampling(temperature=0.7, top_k=3), [TemperatureLogitsWarper(0.7), TopKLogitsWarper(3)]),
        (Sampling(temperature=1.0, repetition_penalty=1.8), [RepetitionPenaltyLogitsProcessor(1.8)]),
        (
            Sampling(temperature=1.5, top_k=6, top_p=0.8, repetition_penalty=1.4),
            [
                RepetitionPenaltyLogitsProcessor(1.4),
                TemperatureLogitsWarper(1.5),
                TopKLogitsWarper(6),
                TopPLogitsWarper(0.8),
            ],
        ),
    ],
)
def test_sampling_probabilities_match_transformers(sampling: Sampling, processors: list[Any]) -> None:
    generator = torch.Generator().manual_seed(3)
    scores, prompt = torch.randn(1, VOCABULARY, generator=generator) * 2, [1, 4, 4, 7]
    expected = LogitsProcessorList(processors)(torch.tensor([prompt]), scores.clone()).softmax(-1)[0].double()
    sampler = Sampler(replace(sampling, max_new_tokens=1), list(range(ROWS)), [prompt] * ROWS, torch.device("cpu"))
    drawn, _ = sampler.choose(scores.expand(ROWS, -1))
    found = torch.bincount(drawn, minlength=VOCABULARY) / ROWS
    assert not found[expected == 0].any()
    # The seeds are fixed, so this is the same each time: four standard deviations leave room for another seed, too.
    assert ((found - expected).abs() < 4 * (expected * (1 - expected) / ROWS).sqrt() + 1e-9).all()


@pytest.mark.parametrize("vocabulary", [5, 64, 200, 4099])
def test_random_number_selects_token_by_cumulative_share(vocabulary: int) -> None:
    """A random number falls on the token whose part of the whole it lies in."""
    generator = torch.Generator().manual_seed(vocabulary)
    scores = torch.randn(ROWS, vocabulary, generator=generator) * 3
    scores[torch.rand(ROWS, vocabulary, generator=generator) < 0.3] = -torch.inf
    scores[:, vocabulary // 2] = 0.0
    chance = torch.rand(ROWS, generator=generator, dtype=torch.float64)
    chance[:3] = torch.tensor([0.0, 0.5, 1 - 2.0**-53])
    drawn, logps = sample_tokens(scores, chance, temperature=0.7, top_k=0, top_p=1.0)
    known = (scores.double() / 0.7).softmax(-1).numpy()
    ends = known.cumsum(-1)
    rows = np.arange(ROWS)
    before, after = (ends - known)[rows, drawn], ends[rows, drawn]
    assert ((before - 1e-6 <= chance.numpy()) & (chance.numpy() <= after + 1e-6)).all()
    assert (known[rows, drawn] > 0).all()
    np.testing.assert_allclose(logps, np.log(known[rows, drawn]), atol=1e-5)


@pytest.fixture(scope="module")
def chat_engine(tied: Path) -> Iterator[LocalChatEngine]:
    options = ModelOptions(model=str(tied), dtype="float32")
    opened = open_local(find_model(options, say=say_nothing), options, say=say_nothing)
    yield opened
    opened.close()


def test_repetition_penalty_matches_generate_in_batches(chat_engine: LocalChatEngine, tied: Path) -> None:
    """A penalty is that of generate whatever stands next to a prompt."""
    model: Any = AutoModelForCausalLM.from_pretrained(tied, dtype=torch.float32).eval()
    prompts = [[5, 9, 11], [3, 7, 7, 40, 41, 42, 43, 44, 45]]
    said = dict(chat_engine.engine.generate(prompts, Sampling(max_new_tokens=12, repetition_penalty=1.6)))
    for place, prompt in enumerate(prompts):
        alone = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=12,
            repetition_penalty=1.6,
        )[0, len(prompt) :]
        assert said[place].token_ids == alone.tolist()


def test_stop_string_ends_completion_and_is_omitted(chat_engine: LocalChatEngine) -> None:
    question = Question([{"role": "user", "content": "?"}])
    free = Sampling(max_new_tokens=40)
    ((_, whole),) = chat_engine.respond([question], free)
    stop = whole.text[9:12]
    kept = whole.text[: whole.text.find(stop)]
    asked = Sampling(max_new_tokens=40, stop=("never said", stop))
    ((_, answer),) = chat_engine.respond([question], asked)
    assert (answer.text, answer.finish_reason) == (kept, "stop")
    assert "".join(chat_engine.stream(question.messages, asked)) == kept
    told = StopStrings(chat_engine.tokenizer, asked.stop).applied_to(asked)
    prompt = chat_engine.prompt(question.messages)
    ((_, completion),) = chat_engine.engine.generate([prompt], told)
    assert stop in chat_engine.tokenizer.decode(completion.token_ids)
    assert stop not in chat_engine.tokenizer.decode(completion.token_ids[:-1])
    assert len(completion.token_ids) < 40


def test_special_token_is_a_stop_string(chat_engine: LocalChatEngine) -> None:
    """A special token that --stop names ends a completion, though decoding leaves it out."""
    tokenizer = chat_engine.tokenizer
    mark = tokenizer.eos_token
    stops = StopStrings(tokenizer, (mark,))
    said = tokenizer.encode("an answer", add_special_tokens=False)
    assert not stops.is_over(said)
    assert stops.is_over([*said, tokenizer.convert_tokens_to_ids(mark)])


def test_text_that_may_be_the_beginning_of_a_stop_string_waits(chat_engine: LocalChatEngine) -> None:
    stops = StopStrings(chat_engine.tokenizer, ("###", "\nQ:"))
    assert stops.certain("an answer#") == "an answer"
    assert stops.certain("an answer\nQ") == "an answer"
    assert stops.certain("an answer\nA") == "an answer\nA"
    assert stops.before("one### two\nQ:") == ("one", True)
    assert stops.before("one## two") == ("one## two", False)


def test_too_high_temperature_is_refused_by_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """A temperature above that of any server is refused by its flag."""
    assert run(["infer", "--model", "m", "--prompt", "hello", "--temperature", "2.5"]) == 2
    assert "--temperature" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": True}, 1.0),
        ({"do_sample": False, "temperature": 0.7}, 0.0),
        ({"temperature": 2.0}, 2.0),
    ],
)
def test_do_sample_enables_sampling(options: dict[str, Any], temperature: float) -> None:
    assert SamplingOptions(**options).sampling.temperature == temperature


def test_drawing_at_temperature_zero_is_refused() -> None:
    with pytest.raises(UsageError, match="--do_sample true samples"):
        _ = SamplingOptions(do_sample=True, temperature=0).sampling
