"""Online learning on quantized weights: the model in training samples the completions, not the published one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from kit_cases import WHOLE_KIT
from peft import PeftModel
from processes import on_processes, succeeded
from test_rounds import rounds
from tiny_runs import Trained, run_training, write_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

ROWS = [{"messages": [{"role": "user", "content": f"Say {word}."}]} for word in "abcd"]
SETTINGS: dict[str, Any] = {
    "objective.name": "grpo",
    "objective.num_generations": 4,
    "objective.max_completion_length": 6,
    "objective.num_iterations": 2,
    "objective.beta": 0.1,
    "train.global_batch": 8,
    "train.max_steps": 4,
    "checkpoint.save_steps": 2,
    "optim.lr": 5e-3,
    "optim.eps": 1e-6,
    "optim.warmup_steps": 0,
    "tuner.kind": "lora",
    "tuner.rank": 4,
    "tuner.quantize": "bnb-nf4",
}
SHARDED: dict[str, dict[str, Any]] = {
    "fsdp": {"backend.name": "fsdp"},
    **({"zero3": {"backend.name": "deepspeed", "backend.config": "zero3"}} if WHOLE_KIT else {}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    return write_model(folder, hidden_size=128, intermediate_size=256, tie_word_embeddings=True)


def trained(model: Path, out: Path, rewards: Path, **changes: Any) -> Trained:
    return run_training(model, out, ROWS, {**SETTINGS, "objective.reward_funcs": [f"{rewards}:evens"], **changes})


@torch.no_grad()
def said(model: Any, run: Trained) -> list[np.ndarray]:
    """What a model says of the tokens of the second round, completion by completion."""
    (*_, made), found = rounds(run), []
    for completion in made.completions:
        prompt = made.prompts[completion.prompt].token_ids
        ids = torch.tensor(np.concatenate([prompt, completion.token_ids])[None].astype("int64"))
        logps = model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])
        found.append(logps[len(prompt) - 1 :, 0].numpy())
    return found


def test_qlora_rollouts_use_quantized_weights(model: Path, rewards: Path, tmp_path: Path) -> None:
    """Rollouts use the quantized weights that the adapters are trained on."""
    run = trained(model, tmp_path, rewards)
    sampled = np.concatenate([completion.logps for completion in rounds(run)[1].completions])
    config = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )  # fmt: skip
    few = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, quantization_config=config)
    for layer in few.modules():  # which on some processors would be repacked for a product in bfloat16
        if hasattr(layer, "support_avx512bf16_for_cpu"):
            layer.support_avx512bf16_for_cpu = False
    published = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapter = str(run.folder / "checkpoint-2")
    theirs, others = (np.concatenate(said(PeftModel.from_pretrained(base, adapter), run)) for base in (few, published))
    assert sampled == pytest.approx(theirs, abs=1e-5)
    assert np.abs(sampled - others).mean() > 0.01


@pytest.mark.full
def test_sharded_quantized_weights_match_one_process(model: Path, rewards: Path, tmp_path: Path) -> None:
    """Sharded quantized weights sample and learn as those of one process do."""
    alone = trained(model, tmp_path / "alone", rewards)
    jobs = [partial(trained, model, tmp_path / name, rewards, **schedule) for name, schedule in SHARDED.items()]
    for completions in on_processes(2, *jobs):
        run = succeeded(completions)[0]
        assert [a.text for made in rounds(run) for a in made.completions] == [
            a.text for made in rounds(alone) for a in made.completions
        ]
        for name in ("loss", "grad_norm", "kl"):
            mine, theirs = ([line[name] for line in each.lines.values()] for each in (run, alone))
            assert mine == pytest.approx(theirs, rel=1e-4, abs=1e-6), name
        assert max(line["mismatch/max"] for line in run.lines.values()) < 1e-4


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "furthest"),
    [
        pytest.param({"tuner.init": "loftq"}, 1e-4, id="loftq"),
        pytest.param({"tuner.bias": "all"}, 1e-4, id="biases"),
        pytest.param({"tuner.dora": True}, 1e-4, id="dora"),
        pytest.param({"tuner.quantize": "bnb-int8", "objective.beta": 0.0}, 0.2, id="8 bits, which round inputs too"),
    ],
)
def test_engine_matches_training_model_for_every_adapter(
    model: Path, rewards: Path, tmp_path: Path, changes: dict[str, Any], furthest: float
) -> None:
    """For every kind of adapter, the engine matches the model in training."""
    lines = trained(model, tmp_path, rewards, **changes).lines
    assert max(line["mismatch/max"] for line in lines.values()) < furthest
    assert changes.get("objective.beta") == 0 or (lines[1]["kl"] == pytest.approx(0, abs=1e-6) and lines[4]["kl"] > 0)
    assert ("is_weight" in lines[1]) == (furthest > 0.1)  # corrected where engine and trainer compute otherwise
