"""Which tokens are learned, under chat templates of all kinds."""

from __future__ import annotations

from typing import Any

import chat_templates
import numpy as np
import pytest

from swift.config.sections import DataSection
from swift.data.conversation import Unusable
from swift.data.encode import SampleEncoder
from swift.data.encodings import encoding_of
from swift.data.samples import Encoded, Segment
from swift.demo.tokenizer import byte_tokenizer
from swift.errors import ConfigError, DataError, ModelError


def tokenizer_with(template: str | None) -> Any:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def encoded(
    row: dict[str, Any], template: str | None = "", encoding: str = "chat", **section: Any
) -> tuple[Any, tuple[Encoded, ...]]:
    tokenizer = byte_tokenizer() if template == "" else tokenizer_with(template)
    encoder = SampleEncoder(tokenizer, DataSection(**section), encoding_of(encoding))
    return tokenizer, encoder.encode(encoding_of(encoding).understand(row, "row 1"), "row 1").samples


def learned(tokenizer: Any, segment: Segment) -> list[str]:
    """The texts of the runs of tokens that are learned."""
    runs: list[list[int]] = []
    before = False
    for token, weight in zip(segment.input_ids.tolist(), segment.weights.tolist(), strict=True):
        if weight:
            if not before:
                runs.append([])
            runs[-1].append(token)
        before = bool(weight)
    return [tokenizer.decode(run) for run in runs]


def chat(*contents: str, system: str | None = None) -> dict[str, Any]:
    messages = [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]
    return {"messages": ([{"role": "system", "content": system}] if system else []) + messages}


def test_loss_covers_only_responses_and_their_end_tokens() -> None:
    """The loss falls on every response and its end token, and on nothing else."""
    tokenizer, (sample,) = encoded(chat("Hi", "Hello!", "And in Chinese?", "你好"))
    assert learned(tokenizer, sample.segments[0]) == ["Hello!<|im_end|>", "你好<|im_end|>"]


def test_training_tokens_match_inference_template() -> None:
    """The tokens are those that the template gives at inference."""
    row = chat("Hi", "Hello!", "What?", "Nothing.", system="Be brief.")
    tokenizer, (sample,) = encoded(row)
    assert sample.segments[0].input_ids.tolist() == tokenizer.apply_chat_template(row["messages"])["input_ids"]
    # What comes before the last answer is the prompt that inference makes, token by token.
    prompt = tokenizer.apply_chat_template(row["messages"][:-1], add_generation_prompt=True)["input_ids"]
    assert sample.segments[0].input_ids[: len(prompt)].tolist() == prompt
    assert sample.segments[0].weights[len(prompt)] == 1


@pytest.mark.parametrize("template", [chat_templates.LLAMA3, chat_templates.PHI3, chat_templates.TOOLS])
def test_append_only_template_renders_turns_as_one_text(template: str) -> None:
    """Several rounds are one text under templates that only append."""
    tokenizer, samples = encoded(chat("a?", "A.", "b?", "B.", "c?", "C.", system="s"), template)
    assert len(samples) == 1
    assert learned(tokenizer, samples[0].segments[0]) == ["A.<|im_end|>", "B.<|im_end|>", "C.<|im_end|>"]


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


def test_last_round_needs_one_text() -> None:
    """The last round alone needs only one text under such a template."""
    tokenizer, samples = encoded(chat("a?", "A.", "b?", "B."), chat_templates.QWEN3, loss_on="last_round")
    assert [learned(tokenizer, sample.segments[0]) for sample in samples] == [["<think>\n\n</think>\n\nB.<|im_end|>"]]


def test_template_arguments_move_start_of_response() -> None:
    tokenizer, (sample,) = encoded(chat("a?", "A."), chat_templates.QWEN3, template_kwargs={"enable_thinking": False})
    assert learned(tokenizer, sample.segments[0]) == ["A.<|im_end|>"]


@pytest.mark.parametrize("template", [chat_templates.COUNTING, chat_templates.FORCED_THINKING])
def test_template_without_prompt_prefix_shows_first_difference(template: str) -> None:
    """A template whose prompt is no prefix is refused with the first difference."""
    with pytest.raises(DataError, match="not prefix-stable") as error:
        encoded(chat("a?", "A."), template)
    assert "row 1" in error.value.message
    assert error.value.hint
    assert "--model.chat_template" in error.value.hint
    difference = "'1 messages" if template == chat_templates.COUNTING else "'<think>"
    assert difference in error.value.message


def test_a_tool_call_is_learned_and_its_result_is_not() -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    row = {
        "messages": [
            {"role": "user", "content": "1+1?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "2"},
            {"role": "assistant", "content": "Two."},
        ],
        "tools": '[{"name": "add", "description": "adds", "parameters": {}}]',
    }
    tokenizer, (sample,) = encoded(row, chat_templates.TOOLS)
    text = tokenizer.decode(sample.segments[0].input_ids)
    assert text.startswith("<|im_start|>tools\n[")
    assert '"description": "adds"' in text
    assert learned(tokenizer, sample.segments[0]) == [
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><|im_end|>',
        "Two.<|im_end|>",
    ]


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


def test_messages_weigh_what_they_say() -> None:
    row = chat("a?", "A.", "b?", "B.", "c?", "C.")
    row["messages"][1]["loss"] = False
    row["messages"][3]["loss"] = 0.5
    tokenizer, (sample,) = encoded(row)
    assert learned(tokenizer, sample.segments[0]) == ["B.<|im_end|>", "C.<|im_end|>"]
    assert sample.loss_weight == 3 * 0.5 + 3
    tokenizer, (sample,) = encoded(row, loss_on="all")
    text = tokenizer.decode(sample.segments[0].input_ids)
    assert sample.loss_weight == len(tokenizer(text)["input_ids"]) - 1 - 3 - 3 * 0.5


def test_system_message_is_from_row_or_config() -> None:
    """The system message is the row's or else the configured one."""
    tokenizer, (own,) = encoded(chat("a?", "A.", system="mine"), system="configured")
    tokenizer, (other,) = encoded(chat("a?", "A."), system="configured")
    assert "mine" in tokenizer.decode(own.segments[0].input_ids)
    assert "configured" not in tokenizer.decode(own.segments[0].input_ids)
    assert tokenizer.decode(other.segments[0].input_ids).startswith("<|im_start|>system\nconfigured<|im_end|>")


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
    sample = (
        SampleEncoder(tokenizer, DataSection(), encoding_of("chat"))
        .encode(encoding_of("chat").understand(row, "r"), "r")
        .samples[0]
    )
    ids = sample.segments[0].input_ids.tolist()
    prompt = tokenizer.apply_chat_template(row["messages"][:1], add_generation_prompt=True)["input_ids"]
    assert tokenizer.convert_tokens_to_ids("ĊĊ") in tokenizer.apply_chat_template(row["messages"])["input_ids"]
    assert ids[: len(prompt)] == prompt
    assert learned(tokenizer, sample.segments[0]) == ["\nA.<|im_end|>"]


def test_template_without_end_of_turn_token_is_reported() -> None:
    encoder = SampleEncoder(tokenizer_with(chat_templates.NO_END), DataSection(), encoding_of("chat"))
    assert not encoder.ends_turns
    (sample,) = encoder.encode(encoding_of("chat").understand(chat("a?", "A."), "r"), "r").samples
    assert learned(encoder.tokenizer, sample.segments[0]) == [" A.\n"]


def test_conversation_needs_chat_template() -> None:
    """Conversations need a chat template and prompt with completion does not."""
    with pytest.raises(ModelError, match="no chat template") as error:
        encoded(chat("a?", "A."), template=None)
    assert error.value.hint
    assert "--model.chat_template" in error.value.hint
    tokenizer, (sample,) = encoded({"prompt": "1+1=", "completion": "2"}, template=None)
    assert tokenizer.decode(sample.segments[0].input_ids) == "1+1=2<|im_end|>"
    assert learned(tokenizer, sample.segments[0]) == ["2<|im_end|>"]


def test_raw_text_is_learned_whole_and_ends_with_the_end_token() -> None:
    tokenizer, (sample,) = encoded({"text": "Once."}, template=None, encoding="text")
    assert tokenizer.decode(sample.segments[0].input_ids) == "Once.<|im_end|>"
    assert sample.segments[0].weights.tolist() == [0, 1, 1, 1, 1, 1]


def test_conversations_are_learned_whole_by_pt() -> None:
    tokenizer, (sample,) = encoded(chat("a?", "A."), encoding="text")
    text = tokenizer.decode(sample.segments[0].input_ids)
    assert learned(tokenizer, sample.segments[0]) == [text.removeprefix("<|im_start|>")]


@pytest.mark.parametrize(
    ("truncation", "expected"),
    [("right", ["abcdef"]), ("left", ["efghi<|im_end|>"]), ("split", ["abcdef", "ghi<|im_end|>"])],
)
def test_longer_texts_are_truncated_as_configured(truncation: str, expected: list[str]) -> None:
    tokenizer, samples = encoded({"text": "abcdefghi"}, encoding="text", max_length=6, truncation=truncation)
    assert [tokenizer.decode(sample.segments[0].input_ids) for sample in samples] == expected
    assert all(sample.segments[0].weights[0] == 0 for sample in samples)


def test_long_samples_drop_by_default_and_split_needs_raw_text() -> None:
    """Longer samples are left out by default and split is for raw text only."""
    with pytest.raises(Unusable, match=r"10 tokens, and data\.max_length is 6"):
        encoded({"text": "abcdefghi"}, encoding="text", max_length=6)
    with pytest.raises(ConfigError, match="split"):
        encoded(chat("a?", "A."), truncation="split")


def test_sample_with_truncated_response_is_skipped() -> None:
    with pytest.raises(Unusable, match="nothing to learn"):
        encoded(chat("a long question?", "A."), max_length=12, truncation="right")


def test_a_pair_is_learned_in_its_last_round_only() -> None:
    row = chat("a?", "A.", "b?", "good") | {"rejected_response": "bad", "margin": 0.5}
    tokenizer, (sample,) = encoded(row, encoding="preference")
    assert [learned(tokenizer, segment) for segment in sample.segments] == [["good<|im_end|>"], ["bad<|im_end|>"]]
    assert dict(sample.values) == {"margin": 0.5}


def test_unpaired_response_uses_next_response_as_kl() -> None:
    """An unpaired response is set against the next sample's response to the same prompt."""
    tokenizer = byte_tokenizer()
    encoder = SampleEncoder(tokenizer, DataSection(max_length=60), encoding_of("kto"))
    first = encoding_of("kto").understand(chat("a?", "A.") | {"label": True}, "r")
    second = encoding_of("kto").understand(chat("b?", "B" * 90) | {"label": False}, "r")
    (sample,) = encoder.encode(first, "r", second).samples
    assert dict(sample.values) == {"label": 1.0}
    own, mismatched = sample.segments
    assert learned(tokenizer, own) == ["A.<|im_end|>"]
    assert "a?" in tokenizer.decode(mismatched.input_ids)
    assert len(mismatched) == 60  # cut, because it only estimates a divergence
    (answer,) = learned(tokenizer, mismatched)
    assert set(answer) == {"B"}


def test_conversation_decodes_to_its_responses() -> None:
    random = np.random.RandomState(0)
    letters = list("ab \n你é<>|_")
    for _ in range(50):
        contents = [
            "x" + "".join(random.choice(letters, size=random.randint(0, 9))) for _ in range(2 * random.randint(1, 5))
        ]
        tokenizer, samples = encoded(chat(*contents))
        assert len(samples) == 1
        assert learned(tokenizer, samples[0].segments[0]) == [f"{answer}<|im_end|>" for answer in contents[1::2]]


def test_a_text_is_left_whole_where_cutting_would_add_a_space() -> None:
    """SentencePiece's tokenizers put a space in front of every text, so also in front of a part of one."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    symbols = sorted({*"▁:asintueroqA.", "user", ":A"})
    backend = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(symbols)}, merges=[(":", "A")], fuse_unk=False))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    backend.decoder = decoders.Metaspace(prepend_scheme="always", split=False)
    backend.add_special_tokens(["<|im_end|>"])
    template = "{% for m in messages %}{{ m.role + ':' + m.content + '<|im_end|>' }}{% endfor %}"
    template += "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", chat_template=template)
    row = chat("q", "A.")
    sample = (
        SampleEncoder(tokenizer, DataSection(), encoding_of("chat"))
        .encode(encoding_of("chat").understand(row, "r"), "r")
        .samples[0]
    )
    whole = tokenizer.apply_chat_template(row["messages"])["input_ids"]
    assert sample.segments[0].input_ids.tolist() == whole
    assert tokenizer.convert_ids_to_tokens(sample.segments[0].input_ids[sample.segments[0].weights > 0].tolist()) == [
        ":A",
        ".",
        "<|im_end|>",
    ]
