"""Reward models and classifiers in training, against transformers' models with labels, one text at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils import set_peft_model_state_dict
from plain_torch import PlainTrainer, batches_of
from safetensors.torch import load_file
from tiny_runs import pairs, run_training
from torch.nn.functional import cross_entropy, logsigmoid, normalize
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

STEPS = 5
END = "<|im_end|>"
"""Ends texts, and is what pads batches too: a search for the last token that is no padding would score another one."""
TEXTS = ["a", "bc def", f"g{END}", "hij", f"k{END}{END}", "lm n", f"opq rs{END}", "tu", f"v{END}", "wxyz"]
KINDS: dict[str, tuple[int, list[Any]]] = {
    "single_label_classification": (3, [0, 2, 1, 1, 0, 2, 2, 1, 0, 0]),
    "multi_label_classification": (2, [[0], [], [0, 1], [1], [0], [1], [], [0, 1], [0], [1]]),
    "regression": (1, [0.5, -1.0, 2.0, 0.0, 1.0, 1.5, -0.5, 0.25, 3.0, 1.0]),
}
Loss = Callable[[torch.nn.Module, Sequence[Any]], torch.Tensor]


def headed(tiny: Path, folder: Path, labels: int, **settings: Any) -> Path:
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(tiny, num_labels=labels, **settings)
    model.save_pretrained(folder / "tiny")
    AutoTokenizer.from_pretrained(tiny, pad_token=END, eos_token=END).save_pretrained(folder / "tiny")
    return folder / "tiny"


def by_transformers(folder: Path) -> Any:
    """Return the model, that scores the last token of one text: without padding in its configuration, once built."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.config.pad_token_id = None
    return model


def check(trained: Any, model: torch.nn.Module, rows: Any, loss: Loss) -> None:
    trainer = PlainTrainer(model, steps=STEPS, lr=1e-3)
    expected = [trainer.step(loss(model, batch)) for batch in batches_of(rows, 4, STEPS)]
    assert abs(expected[-1][0] - expected[0][0]) > 0.01, "the reference learned nothing"
    assert trained.losses == pytest.approx([value for value, _ in expected], rel=1e-5)
    assert trained.grad_norms == pytest.approx([norm for _, norm in expected], rel=1e-5)


COMMON = {"train.max_steps": STEPS, "train.micro_batch": 2, "train.accumulation": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_is_transformers_model_with_labels(tiny: Path, tmp_path: Path, kind: str) -> None:
    labels, wanted = KINDS[kind]
    folder = headed(tiny, tmp_path, labels, problem_type=kind)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == tokenizer(f"g{END}").input_ids[-1]

    def loss(model: torch.nn.Module, batch: Sequence[tuple[str, Any]]) -> torch.Tensor:
        losses = []
        for text, label in batch:
            ids = tokenizer(text, return_tensors="pt").input_ids
            given = torch.tensor([label])
            if kind == "multi_label_classification":
                given = torch.tensor([[float(index in label) for index in range(labels)]])
            losses.append(model(ids, labels=given).loss)
        return torch.stack(losses).mean()

    rows = [{"text": text, "label": label} for text, label in zip(TEXTS, wanted, strict=True)]
    settings = {"objective.name": "seq_cls", "model.num_labels": labels, "model.problem_type": kind}
    # One token alone has no target, so that such a text is left out.
    used = [(text, label) for text, label in zip(TEXTS, wanted, strict=True) if len(tokenizer(text).input_ids) > 1]
    settings["data.padding_free"] = kind == "regression"
    trained = run_training(folder, tmp_path, rows, {**COMMON, **settings})
    model = by_transformers(folder)
    check(trained, model, used, loss)


@pytest.mark.parametrize(
    ("kind", "labels", "expected"),
    [
        ("single_label_classification", [0, 0, 1, 0, 0, 3, 0, 1, 0, 1], [10 / 18, 10 / 9, 1, 10 / 3]),
        ("multi_label_classification", [[0, 3], [0], [], [0], [1, 3], [3], [3], [3], [3], [3]], [7 / 3, 9, 1, 3 / 7]),
    ],
)
def test_balanced_class_weights_are_counted_and_logged(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, labels: list[Any], expected: list[float]
) -> None:
    """Balanced class weights are counted in the training set and logged."""
    rows = [{"text": f"text {index}", "label": label} for index, label in enumerate(labels)]
    settings = {"objective.name": "seq_cls", "model.num_labels": 4, "model.problem_type": kind, **COMMON}

    def losses(name: str, weights: Any) -> list[float]:
        changes = {"objective.class_weights": weights, "logging.run_name": name}
        return run_training(tiny, tmp_path, rows, settings | changes, validation=rows[:3]).losses

    balanced = losses("balanced", "balanced")
    shown = ", ".join(f"{label} {weight:.4g}" for label, weight in enumerate(expected))
    assert f"Class weights: {shown}" in capsys.readouterr().out.splitlines()
    assert balanced == losses("given", expected)
    assert balanced != losses("unweighted", [])


@pytest.mark.parametrize("flat", [False, True], ids=["padded", "padding-free"])
def test_reward_model_matches_pairwise_loss(tiny: Path, tmp_path: Path, flat: bool) -> None:
    """A reward model learns pairs by their scores margins and centre."""
    folder = headed(tiny, tmp_path, 1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = [{**row, **({"margin": 0.5} if index % 3 == 0 else {})} for index, row in enumerate(pairs(10))]

    def score(model: torch.nn.Module, question: str, answer: str) -> torch.Tensor:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        return model(tokenizer(text, return_tensors="pt").input_ids).logits[0, 0]

    def loss(model: torch.nn.Module, batch: Sequence[dict[str, Any]]) -> torch.Tensor:
        losses = []
        for row in batch:
            chosen, rejected = (score(model, row["query"], row[name]) for name in ("response", "rejected_response"))
            losses.append(-logsigmoid(chosen - rejected - row.get("margin", 0.0)) + 0.1 * (chosen + rejected) ** 2)
        return torch.stack(losses).mean()

    settings = {"objective.name": "rm", "objective.center_rewards_coefficient": 0.1, "data.padding_free": flat}
    trained = run_training(folder, tmp_path, rows, {**COMMON, **settings})
    model = by_transformers(folder)
    check(trained, model, rows, loss)


LORA = {"tuner.kind": "lora", "tuner.rank": 4, "tuner.dropout": 0.0}


def adapted(model: torch.nn.Module, start: Path, task_type: str) -> torch.nn.Module:
    """The model with PEFT's adapter, and its head, as a run had them at its start."""
    config = LoraConfig(
        r=4,
        lora_alpha=32,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        modules_to_save=["score"] if task_type == "SEQ_CLS" else None,
        task_type=task_type,
    )
    wrapped: torch.nn.Module = get_peft_model(model, config)  # type: ignore[arg-type]  # a transformers model
    initial = load_file(start / "checkpoint-1" / "adapter_model.safetensors")
    assert not set_peft_model_state_dict(wrapped, initial).unexpected_keys
    return wrapped


ONE_STEP = {"train.max_steps": 1, "checkpoint.save_last": True, "logging.run_name": "start"}
"""The learning rate of the first step is 0: what is saved is where a run starts."""


@pytest.mark.full
def test_qlora_reward_model_matches_peft(tiny: Path, tmp_path: Path) -> None:
    """A reward model with adapters on weights in four bits is PEFT's on the same weights."""
    bitsandbytes = pytest.importorskip("bitsandbytes")
    folder, rows = headed(tiny, tmp_path, 1), pairs(10)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    settings = {"objective.name": "rm", **LORA, "tuner.quantize": "bnb-nf4", "tuner.double_quant": False}
    start = run_training(folder, tmp_path, rows, {**COMMON, **settings, **ONE_STEP})
    trained = run_training(folder, tmp_path, rows, {**COMMON, **settings})

    model = by_transformers(folder)
    exact = model.model.layers[0].mlp.up_proj.weight.detach().clone()
    for module in model.model.modules():
        if isinstance(module, torch.nn.Linear):
            packed, state = bitsandbytes.functional.quantize_4bit(module.weight.data, quant_type="nf4")
            module.weight.data = bitsandbytes.functional.dequantize_4bit(packed, state)
    assert (model.model.layers[0].mlp.up_proj.weight - exact).abs().max() > 1e-3
    model = adapted(model, start.folder, "SEQ_CLS")

    def score(question: str, answer: str) -> torch.Tensor:
        messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        logits: torch.Tensor = model(tokenizer(text, return_tensors="pt").input_ids).logits
        return logits[0, 0]

    def loss(_: torch.nn.Module, batch: Sequence[dict[str, Any]]) -> torch.Tensor:
        gaps = [score(row["query"], row["response"]) - score(row["query"], row["rejected_response"]) for row in batch]
        return -logsigmoid(torch.stack(gaps)).mean()

    check(trained, model, rows, loss)


def test_packed_embedding_adapters_match_peft_one_by_one(tiny: Path, tmp_path: Path) -> None:
    """Adapters of a packed embedding model learn as PEFT's of all texts one at a time."""
    rows = [{"query": f"find {number}", "positive": f"here is {number}"} for number in range(100, 110)]
    whole = {"data.packing": True, "data.max_length": 64, "train.micro_batch": 1, "train.global_batch": 100}
    settings = {"objective.name": "embedding", "train.max_steps": STEPS, **LORA, **whole}
    start = run_training(tiny, tmp_path, rows, {**settings, **ONE_STEP})
    trained = run_training(tiny, tmp_path, rows, settings)
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    model = adapted(AutoModel.from_pretrained(tiny, dtype=torch.float32), start.folder, "FEATURE_EXTRACTION")

    def vectors(column: str) -> torch.Tensor:
        texts = [tokenizer(row[column], return_tensors="pt").input_ids for row in rows]
        return normalize(torch.stack([model(input_ids=text).last_hidden_state[0, -1] for text in texts]), dim=1)

    def loss(_: torch.nn.Module, batch: Sequence[dict[str, Any]]) -> torch.Tensor:
        assert len(batch) == len(rows)
        return cross_entropy(vectors("query") @ vectors("positive").T / 0.1, torch.arange(len(rows)))

    trainer = PlainTrainer(model, steps=STEPS, lr=1e-3)
    expected = [trainer.step(loss(model, rows)) for _ in range(STEPS)]
    assert expected[-1][0] < expected[0][0] - 0.01, "the reference learned nothing"
    assert trained.losses == pytest.approx([value for value, _ in expected], rel=1e-5)
    assert trained.grad_norms == pytest.approx([norm for _, norm in expected], rel=1e-5)
