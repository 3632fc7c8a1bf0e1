"""The engine `transformers` under the kit that every engine is checked with."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swift.cli.main import run
from swift.contracts import Sampling
from swift_infer.chat_engine import end_tokens
from swift_testing import EngineConformance


class TestTransformers(EngineConformance):
    engine = "transformers"


class TokenizerWithAnotherEnd:
    """The end of a text is not what the template puts after a turn."""

    chat_template = "there is one"
    eos_token_id = 2
    all_special_ids = (2, 7)

    def apply_chat_template(self, messages: list[dict[str, str]], tokenize: bool) -> str:
        assert not tokenize
        return "".join(f"{message['content']}<end>\n" for message in messages)

    def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[int]]:
        assert not add_special_tokens
        return {"input_ids": [7 if part == "<end>" else 40 for part in re.split("(<end>)", text) if part]}


def test_template_end_of_turn_ends_completion() -> None:
    assert end_tokens(TokenizerWithAnotherEnd()) == (2, 7)


def test_sample_depends_on_seed_and_index() -> None:
    whole = Sampling(seed=5)
    part = Sampling(seed=5, numbers=(3, 9))
    assert [part.seed_of(0), part.seed_of(1)] == [whole.seed_of(3), whole.seed_of(9)]
    assert len({Sampling(seed=seed).seed_of(place) for seed in range(50) for place in range(50)}) == 2500


@pytest.mark.parametrize(
    ("flags", "code", "sentence"),
    [
        (["--engine", "vlm"], 3, "There is no engine 'vlm'. Did you mean 'vllm'?"),
        (["--engine", "transfomers"], 3, "Did you mean 'transformers'?"),
        (["--engine_options", '{"max_num_seqs": 3}'], 2, "no option 'max_num_seqs'"),
        (["--engine_options", "3"], 2, "--engine_options must be a JSON object, not '3'"),
        (["--max_length", "20"], 2, "exceed the maximum length of 20"),
    ],
)
def test_mistakes_with_engines_are_one_sentence(
    tiny: Path, capsys: pytest.CaptureFixture[str], flags: list[str], code: int, sentence: str
) -> None:
    assert run(["infer", str(tiny), "--prompt", "hello", *flags]) == code
    printed = capsys.readouterr()
    assert sentence in printed.err
    assert "Traceback" not in printed.err
