"""Inputs of the benchmarks, written once from a seed: a 5.2M-parameter Qwen3 with random weights, and short chats.

For memory also an 84M-parameter Qwen3 and one chat of maximum length, for checkpoints one of 28M, and for pipelines and
traffic a Qwen3 with twice the layers, one with experts, and chats of equal length.
"""

from __future__ import annotations

import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.facts import read_lines, write_lines

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "benchmarks"
"""Model, data, runs and the environment of ms-swift; git ignores it."""
MODEL = WORK / "model"
MIDDLE = WORK / "model-28m"
LARGE = WORK / "model-84m"
HUGE = WORK / "model-447m"
"""For what loads no optimizer: made when it is first needed."""
DEEP = WORK / "model-deep"
EXPERTS = WORK / "model-experts"
HYBRID = WORK / "model-hybrid"
"""A Qwen3.5 of the size of the first: three of its four layers have linear attention. Made when it is first needed."""
CHATS = WORK / "chats.jsonl"
SOME_CHATS = WORK / "chats-of-a-run.jsonl"
LONG = WORK / "long.jsonl"
EVEN = WORK / "even.jsonl"
PROMPTS = WORK / "prompts.jsonl"
ENDING = WORK / "model-ending"
"""Like the first, but its responses end: one after a few tokens, another after many."""

SAMPLES = 4_000
VOCABULARY = 8_192
WORDS = 6_000
LONGEST = 4_096
"""Tokens that the models have positions for."""
EVEN_TOKENS = 128
"""Of each of the even chats: a long question and a response of one word, so that the head has next to nothing to do."""
EVEN_CHATS = 400
RESPONSE_TOKENS = 24
"""Of the responses of the model whose responses end, on average."""
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

SHAPES = {
    MODEL: {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 4, "num_attention_heads": 4},
    MIDDLE: {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8, "num_attention_heads": 8},
    LARGE: {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12},
    HUGE: {"hidden_size": 1536, "intermediate_size": 4352, "num_hidden_layers": 16, "num_attention_heads": 24},
}

Chat = list[dict[str, str]]


def ensure(*, huge: bool = False) -> None:
    """Make models and data if they aren't there, in a process of their own: this one stays without torch."""
    usual = all(path.exists() for path in (CHATS, MIDDLE, LARGE, LONG, DEEP, EXPERTS, EVEN, ENDING))
    for wanted, what in ((not usual, "usual"), (huge and not HUGE.exists(), "huge")):
        if wanted:
            subprocess.run([sys.executable, "-m", "benchmarks.inputs", what], check=True)


def ensure_hybrid() -> None:
    """Make the hybrid, and before it what it shares with the others."""
    ensure()
    if not HYBRID.exists():
        subprocess.run([sys.executable, "-m", "benchmarks.inputs", "hybrid"], check=True)


def take_chats(count: int) -> None:
    """Make the first so many chats the data of the next runs."""
    lines = CHATS.read_text(encoding="utf-8").splitlines(keepends=True)[:count]
    SOME_CHATS.write_text("".join(lines), encoding="utf-8")


def write_prompts() -> None:
    """Write the questions of the chats, for sampling."""
    write_lines(PROMPTS, ({"messages": line["messages"][:1]} for line in read_lines(CHATS)))


def chats() -> list[Chat]:
    """Return a question of a few words and a response, with the lengths of short chats: many short, few long."""
    source = random.Random(0)
    words = ["".join(source.choices("abcdefghijklmnopqrstuvwxyz", k=source.randint(2, 9))) for _ in range(WORDS)]
    frequency = [1 / (rank + 20) for rank in range(WORDS)]

    def text(median: float, most: int) -> str:
        count = min(most, max(1, round(source.lognormvariate(0, 0.9) * median)))
        return " ".join(source.choices(words, frequency, k=count))

    return [
        [{"role": "user", "content": text(9, 80)}, {"role": "assistant", "content": text(14, 240)}]
        for _ in range(SAMPLES)
    ]


def make() -> None:
    """Write the folder of the model, with its tokenizer, and the file of chats."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    conversations = chats()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    contents = (text for chat in conversations for message in chat for text in message.values())
    tokenizer.train_from_iterator(contents, trainer)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL_TOKENS])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    small = SHAPES[MODEL]
    for folder, shape in (
        *((folder, SHAPES[folder]) for folder in (MODEL, MIDDLE, LARGE)),
        (DEEP, {**small, "num_hidden_layers": 8}),
        (EXPERTS, {**small, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256}),
    ):
        _write_model(folder, fast, shape)
    _write_model(ENDING, fast, small, ends=True)
    write_lines(CHATS, ({"messages": chat} for chat in conversations))
    words = " ".join(text for chat in conversations[:400] for text in (message["content"] for message in chat))
    room = LONGEST - len(fast.apply_chat_template(_chat(""), return_dict=True)["input_ids"])
    response = fast.decode(fast(words, add_special_tokens=False)["input_ids"][: room - 8])
    write_lines(LONG, [{"messages": _chat(response)}])
    write_lines(EVEN, ({"messages": chat} for chat in _even(fast)))


def _even(tokenizer: Any) -> list[Chat]:
    source = random.Random(1)
    words = [word[1:] for word in sorted(tokenizer.get_vocab()) if word[0] == "Ġ" and word[1:].isascii()]

    def chat(count: int) -> Chat:
        question, response = "? " + " ".join(source.choices(words, k=count)), "! " + source.choice(words)
        return [{"role": "user", "content": question}, {"role": "assistant", "content": response}]

    def tokens(chat: Chat) -> int:
        return len(tokenizer.apply_chat_template(chat, return_dict=True)["input_ids"])

    count = EVEN_TOKENS - tokens(chat(1)) + 1
    chosen = (chat(count) for _ in range(2 * EVEN_CHATS))
    return [each for each in chosen if tokens(each) == EVEN_TOKENS][:EVEN_CHATS]


def _chat(response: str) -> Chat:
    return [{"role": "user", "content": "?"}, {"role": "assistant", "content": response}]


def _write_model(folder: Path, tokenizer: Any, shape: dict[str, int], *, ends: bool = False) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = "num_experts" in shape
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        vocab_size=VOCABULARY, num_key_value_heads=shape["num_attention_heads"] // 2, head_dim=64,
        max_position_embeddings=LONGEST, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, dtype="float32", **shape,
    )  # fmt: skip
    torch.manual_seed(0)
    model = (Qwen3MoeForCausalLM if experts else Qwen3ForCausalLM)(config)
    if ends:
        _let_end(model, tokenizer.eos_token_id)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _let_end(model: Any, end: int) -> None:
    """Make the token that ends a response equally likely everywhere, so that lengths have a geometric distribution."""
    import torch

    weights = model.lm_head.weight
    with torch.no_grad():
        weights[:, 0] = 1.0  # one feature that all tokens share: it tells them apart in the head alone
        ids = torch.randint(len(weights), (8, 32), generator=torch.Generator().manual_seed(0))
        shared = model.model(input_ids=ids).last_hidden_state[..., 0].mean()
        weights[end, 0] += math.log(len(weights) / RESPONSE_TOKENS) / shared


def make_huge() -> None:
    from transformers import AutoTokenizer

    _write_model(HUGE, AutoTokenizer.from_pretrained(MODEL), SHAPES[HUGE])


def make_hybrid() -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    tokenizer: Any = AutoTokenizer.from_pretrained(MODEL)
    config = Qwen3_5TextConfig(
        vocab_size=VOCABULARY, num_key_value_heads=2, head_dim=64, max_position_embeddings=LONGEST,
        linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=64, linear_value_head_dim=64,
        layer_types=["linear_attention", "linear_attention", "linear_attention", "full_attention"],
        tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        dtype="float32", **SHAPES[MODEL],
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen3_5ForCausalLM(config).save_pretrained(HYBRID)
    tokenizer.save_pretrained(HYBRID)


if __name__ == "__main__":
    {"usual": make, "huge": make_huge, "hybrid": make_hybrid}[sys.argv[1]]()
