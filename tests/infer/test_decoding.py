"""Answers of the decoding loop, for families of caches and masks, against each prompt alone without any cache."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from swift.contracts import Completion, EngineRequest, Sampling
from swift.terminal import say_nothing
from swift_infer import by_generate, decoding, growing_cache
from swift_infer.decoding import DecodingBatch, Ending, Room
from swift_infer.local import LocalEngine
from swift_infer.sampling import Sampler

VOCABULARY = 64
by_generated = partial(by_generate.completions, inputs={})
SHARED: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
HEADS = {**SHARED, "head_dim": 8}
PADDED = {**HEADS, "pad_token_id": 0}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
WINDOW = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
DECODED: dict[str, dict[str, Any]] = {
    "Llama": HEADS,
    "Mistral": {**HEADS, "sliding_window": 6},
    "Gemma2": {**HEADS, **WINDOW},
    "Gemma3Text": {**HEADS, **WINDOW},
    "Qwen3Moe": {**HEADS, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "GptOss": {**HEADS, **WINDOW, "num_local_experts": 4, "num_experts_per_tok": 2},
    "DeepseekV3": {
        **{**SHARED, "num_key_value_heads": 4},
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 8,
        "kv_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
    },
    "Lfm2": {**SHARED, "layer_types": ["conv", "full_attention"], "conv_L_cache": 3},
    "Qwen3Next": {**HEADS, **LINEAR},
    "GPT2": {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}
LEFT_TO_GENERATE: dict[str, dict[str, Any]] = {
    "Phi3": {**PADDED, "eos_token_id": 2},
    "Bloom": {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4, "initializer_range": 0.3},
    "Mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "state_size": 8, "num_hidden_layers": 2},
}
PROMPTS = [[5, 9, 11], [7] * 13, [5, 9, 11], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7] * 13, [12, 13]]
NEW = 12


def model_of(architecture: str, keys: dict[str, Any]) -> Any:
    torch.manual_seed(1)
    config = getattr(transformers, f"{architecture}Config")(**keys)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.generation_config = transformers.GenerationConfig()  # as the engine does: no end that was not asked for
    return model


@torch.no_grad()
def alone(model: Any, prompt: Sequence[int]) -> tuple[list[int], list[float]]:
    tokens, logps = list(prompt), []
    for _ in range(NEW):
        told = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].float().log_softmax(-1)
        tokens.append(int(told.argmax()))
        logps.append(float(told.max()))
    return tokens[len(prompt) :], logps


def ends_at(count: int) -> Any:
    return lambda tokens: len(tokens) >= count + tokens[0] % 5


def answers(made: Any, model: Any, sampling: Sampling) -> dict[int, Completion]:
    sampler = Sampler(sampling, range(len(PROMPTS)), PROMPTS, torch.device("cpu"))
    return dict(made(model, PROMPTS, sampler, Ending(sampling, frozenset())))


@pytest.mark.parametrize("architecture", [*DECODED, *LEFT_TO_GENERATE])
def test_batched_completions_match_single_prompts(architecture: str) -> None:
    model = model_of(architecture, DECODED.get(architecture) or LEFT_TO_GENERATE[architecture])
    assert decoding.decodes(model) == (architecture in DECODED)
    made = decoding.completions if architecture in DECODED else by_generated
    # Answers end at different steps, so that rows leave the batch in between.
    said = answers(made, model, Sampling(max_new_tokens=NEW, is_over=ends_at(4)))
    assert len({len(completion.token_ids) for completion in said.values()}) > 1
    for place, prompt in enumerate(PROMPTS):
        tokens, logps = alone(model, prompt)
        length = len(said[place].token_ids)
        assert said[place].token_ids == tokens[:length]
        assert said[place].logprobs == pytest.approx(logps[:length], abs=2e-4)


def test_equal_prompts_run_once_and_finished_rows_leave() -> None:
    """Equal prompts are computed once and rows that ended leave."""
    model = model_of("Llama", DECODED["Llama"])
    rows: list[tuple[int, int]] = []
    model.register_forward_pre_hook(lambda _, __, given: rows.append(tuple(given["input_ids"].shape)), with_kwargs=True)
    said = answers(decoding.completions, model, Sampling(max_new_tokens=NEW, is_over=ends_at(2)))
    lengths = [len(said[place].token_ids) for place in range(len(PROMPTS))]
    assert rows[0] == (4, 13)
    assert rows[1:] == [(sum(length > step for length in lengths), 1) for step in range(1, max(lengths))]


def test_a_row_waits_until_leaving_pays() -> None:
    model, prompts = model_of("Llama", DECODED["Llama"]), [[5, 9, number] for number in range(20)]
    sampling = Sampling(max_new_tokens=NEW)
    with torch.no_grad():
        batch = DecodingBatch(model, prompts, Sampler(sampling, range(20), prompts, torch.device("cpu")))
        batch.step()
        batch.keep(range(1, 20))
        assert [place for place, _, _ in batch.step()] == list(range(20))
        batch.keep(range(3, 20))
        assert [place for place, _, _ in batch.step()] == list(range(3, 20))


def test_sample_does_not_depend_on_batch() -> None:
    model = model_of("Llama", DECODED["Llama"])
    drawn = Sampling(max_new_tokens=NEW, temperature=1.4, top_k=20, repetition_penalty=1.2, seed=5, is_over=ends_at(3))
    whole = answers(decoding.completions, model, drawn)
    assert {place: said.token_ids for place, said in answers(by_generated, model, drawn).items()} == {
        place: said.token_ids for place, said in whole.items()
    }
    assert whole[0].token_ids != whole[2].token_ids
    for place, prompt in enumerate(PROMPTS):
        sampler = Sampler(drawn, [place], [prompt], torch.device("cpu"))
        ((_, completion),) = decoding.completions(model, [prompt], sampler, Ending(drawn, frozenset()))
        assert completion.token_ids == whole[place].token_ids


def test_batches_fill_the_room_that_the_cache_of_a_prompt_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("Llama", DECODED["Llama"])
    of_token, of_row = 2 * 2 * 2 * 8 * 4, 40 * VOCABULARY  # keys and values, of 2 layers, 2 heads of 8, in fp32
    monkeypatch.setattr(decoding, "_memory", lambda _: 8 * 3 * (of_row + 100 * of_token))
    lengths = [90, 10, 60, 10, 90, 90, 90, 10]
    batches = [[lengths[place] for place in batch] for batch in Room(model).batches([[1] * n for n in lengths], 10)]
    assert batches == [[10, 10, 10, 60], [90, 90, 90], [90]]


def test_batch_size_may_be_set(tied: Path) -> None:
    request = EngineRequest(model=tied, dtype="float32", device="cpu", batch_size=2, say=say_nothing)
    engine = LocalEngine(request)
    whole = LocalEngine(EngineRequest(model=tied, dtype="float32", device="cpu", say=say_nothing))
    sampling = Sampling(max_new_tokens=4, temperature=1.0)
    few, many = dict(engine.generate(PROMPTS, sampling)), dict(whole.generate(PROMPTS, sampling))
    assert {place: said.token_ids for place, said in few.items()} == {p: said.token_ids for p, said in many.items()}


@pytest.mark.parametrize("at_a_time", [None, 2])
def test_each_batch_by_itself_is_one_batch_with_the_same_bits(tied: Path, at_a_time: int | None) -> None:
    engine = LocalEngine(
        EngineRequest(model=tied, dtype="float32", device="cpu", batch_size=at_a_time, say=say_nothing)
    )
    numbers = [7 * place for place in range(len(PROMPTS))]
    sampling = Sampling(max_new_tokens=NEW, temperature=1.0, numbers=numbers)
    whole = dict(engine.generate(PROMPTS, sampling))
    batches = engine.batches(PROMPTS, sampling)
    assert sorted(place for batch in batches for place in batch) == list(range(len(PROMPTS)))
    for batch in batches:
        asked, own = [PROMPTS[place] for place in batch], [numbers[place] for place in batch]
        assert engine.batches(asked, sampling) == [list(range(len(batch)))]
        again = dict(engine.generate(asked, replace(sampling, numbers=own)))
        assert [again[row] for row in range(len(batch))] == [whole[place] for place in batch]


def test_interleaved_scoring_does_not_change_sampling(tied: Path) -> None:
    """Scores in between change nothing of how completions are sampled."""
    engine = LocalEngine(EngineRequest(model=tied, dtype="float32", device="cpu", say=say_nothing))
    model: Any = engine._model
    before = model.config._attn_implementation
    sampling = Sampling(max_new_tokens=NEW, temperature=1.0)
    drawn = dict(engine.generate(PROMPTS, sampling))
    deque(engine.score(PROMPTS), maxlen=0)
    assert dict(engine.generate(PROMPTS, sampling)) == drawn
    assert model.config._attn_implementation == before == growing_cache.GROUPED
