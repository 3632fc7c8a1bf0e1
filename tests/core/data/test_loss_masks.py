"""Which tokens are learned, under chat templates of all kinds."""

from __future__ import annotations

from typing import Any

import chat_templates
import pytest
from encode_row import encode_row, encoder_of, learned_runs

from swift.data.conversation import Unusable
from swift.data.samples import Encoded, Segment
from swift.errors import ConfigError, DataError, ModelError
from swift_testing.tokenizer import byte_tokenizer


def tokenizer_with(template: str | None) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def encoded(
    row: dict[str, Any], template: str | None = "", encoding: str = "chat", **section: Any
) -> tuple[Any, tuple[Encoded, ...]]:
    tokenizer = byte_tokenizer() if template == "" else tokenizer_with(template)
    return tokenizer, encode_row(encoder_of(tokenizer, encoding, **section), row)


def learned(tokenizer: Any, segment: Segment) -> list[str]:
    return [text for text, _ in learned_runs(tokenizer, segment)]


def chat(*contents: str, system: str | None = None) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"messages": ([{"role": "system", "content": system}] if system else []) + messages}


def test_template_dropping_reasoning_is_split_by_turn() -> None:
    """A template that drops earlier reasoning is laid out turn by turn."""
    row = chat("a?", "<think>\nhm\n</think>\n\nA.", "b?", "<think>\nso\n</think>\n\nB.")
    tokenizer, samples = encoded(row, chat_templates.QWEN3)
    texts = [tokenizer.decode(sample.segments[0].input_ids) for sample in samples]
    assert [learned(tokenizer, sample.segments[0]) for sample in samples] == [
        ["<think>\nhm\n</think>\n\nA.<|im_end|>"],
        ["<think>\nso\n</think>\n\nB.<|im_end|>"],
    ]
    # Each turn is learned after exactly what inference puts before it.
    for index, text in zip((1, 3), texts, strict=True):
        prompt = tokenizer.apply_chat_template(row["messages"][:index], add_generation_prompt=True, tokenize=False)
        assert text.startswith(prompt)
        assert text[len(prompt) :].startswith("<think>")
    assert "hm" not in texts[1]


@pytest.mark.parametrize("template", [chat_templates.COUNTING, chat_templates.FORCED_THINKING])
def test_template_without_prompt_prefix_shows_first_difference(template: str) -> None:
    """A template whose prompt is no prefix is refused with the first difference."""
    with pytest.raises(DataError, match="not prefix-stable") as error:
        encoded(chat("a?", "A."), template)
    assert "row 1" in error.value.message
    assert "--model.chat_template" in str(error.value.hint)
    difference = "'1 messages" if template == chat_templates.COUNTING else "'<think>"
    assert difference in error.value.message


def test_template_without_tools_is_refused_tools() -> None:
    """A template that knows no tools is not fed any silently."""
    row = chat("a?", "A.") | {"tools": [{"name": "add", "parameters": {}}]}
    with pytest.raises(Unusable, match="does not write tools"):
        encoded(row)


def test_template_errors_become_skip_reasons() -> None:
    """What a template refuses or leaves out is a reason and not a crash."""
    with pytest.raises(Unusable, match="System role not supported"):
        encoded(chat("a?", "A.", system="s"), chat_templates.STRICT)
    deaf = "{% for m in messages if m.role != 'system' %}{{ m.content + '<|im_end|>' }}{% endfor %}"
    with pytest.raises(Unusable, match="the system's, is not in the rendered text"):
        encoded(chat("a?", "A.", system="heard?"), deaf)


def test_a_message_keeps_its_own_loss_where_all_is_learned() -> None:
    row = chat("a?", "A.", "b?", "B.", "c?", "C.")
    row["messages"][1]["loss"] = False
    row["messages"][3]["loss"] = 0.5
    tokenizer, (sample,) = encoded(row, loss_on="all")
    text = tokenizer.decode(sample.segments[0].input_ids)
    assert sample.loss_weight == len(tokenizer(text)["input_ids"]) - 1 - 3 - 3 * 0.5


def test_token_across_response_start_is_cut_as_inference() -> None:
    """Two newlines are one token, so an answer that starts with one merges with the end of the prompt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: index for index, symbol in enumerate([*alphabet, "ĊĊ"])}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[("Ċ", "Ċ")]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    template = byte_tokenizer().chat_template
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=template)
    row = chat("a?", "\nA.")
    (sample,) = encode_row(encoder_of(tokenizer), row)
    ids = sample.segments[0].input_ids.tolist()
    prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
    assert tokenizer.convert_tokens_to_ids("ĊĊ") in tokenizer.apply_chat_template(row["messages"])["input_ids"]
    assert ids[: len(prompt)] == prompt
    assert learned(tokenizer, sample.segments[0]) == ["\nA.<|im_end|>"]


def test_template_without_end_of_turn_token_is_reported() -> None:
    encoder = encoder_of(tokenizer_with(chat_templates.NO_END))
    assert not encoder.ends_turns
    (sample,) = encode_row(encoder, chat("a?", "A."))
    assert learned(encoder.tokenizer, sample.segments[0]) == [" A.\n"]


def test_conversation_needs_chat_template() -> None:
    """Conversations need a chat template and prompt with completion does not."""
    with pytest.raises(ModelError, match="no chat template") as error:
        encoded(chat("a?", "A."), template=None)
    assert "--model.chat_template" in str(error.value.hint)
    tokenizer, (sample,) = encoded({"prompt": "1+1=", "completion": "2"}, template=None)
    assert tokenizer.decode(sample.segments[0].input_ids) == "1+1=2<|im_end|>"
    assert learned(tokenizer, sample.segments[0]) == ["2<|im_end|>"]


def test_long_samples_drop_by_default_and_split_needs_raw_text() -> None:
    """Longer samples are left out by default and split is for raw text only."""
    with pytest.raises(Unusable, match=r"10 tokens, and data\.max_length is 6"):
        encoded({"text": "abcdefghi"}, encoding="text", max_length=6)
    with pytest.raises(ConfigError, match="split"):
        encoded(chat("a?", "A."), truncation="split")


def test_system_message_is_from_row_or_config() -> None:
    """The system message is the row's or else the configured one."""
    tokenizer, (own,) = encoded(chat("a?", "A.", system="mine"), system="configured")
    tokenizer, (other,) = encoded(chat("a?", "A."), system="configured")
    assert "mine" in tokenizer.decode(own.segments[0].input_ids)
    assert "configured" not in tokenizer.decode(own.segments[0].input_ids)
    assert tokenizer.decode(other.segments[0].input_ids).startswith("<|im_start|>system\nconfigured<|im_end|>")
