"""Adapters of PEFT other than LoRA: PEFT's own numbers, on several processes, merged and loaded by PEFT."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import plain_torch
import pytest
import torch
from adapters import LINEAR, ROWS, STEPS, adapter_of, assert_follows, assert_leaves, assert_same, logits
from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
from processes import on_processes, succeeded
from tiers import tiered
from tiny_runs import Trained, run_training, write_model

from swift.errors import SwiftError
from swift.models.quiet import without_bitsandbytes

KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "miss": ({"tuner.rank": 12}, {"r": 12}),
    "oft": ({"tuner.block_size": 8}, {"r": 0, "oft_block_size": 8}),
    "hira": ({"tuner.rank": 4}, {"r": 4}),
    "loha": ({"tuner.rank": 4, "tuner.alpha": 8.0}, {"r": 4, "alpha": 8}),
    "lokr": ({"tuner.rank": 2, "tuner.factor": 4}, {"r": 2, "alpha": 8, "decompose_factor": 4}),
    "gralora": ({"tuner.rank": 4, "tuner.alpha": 8.0}, {"r": 4, "alpha": 8}),
    "ia3": ({}, {"feedforward_modules": ["down_proj"]}),
    "vera": ({"tuner.rank": 8}, {"r": 8, "save_projection": False}),
    "boft": ({}, {"boft_block_size": 4, "boft_n_butterfly_factor": 1}),
}
"""Options of swift, and PEFT's."""
SHARED: dict[str, Any] = {
    "optim.lr": 5e-3,
    "train.max_steps": STEPS,
    "train.global_batch": 8,
    "optim.eps": 1e-8,
    "checkpoint.save_last": True,
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "two processes": {},
    "fsdp": {"backend.name": "fsdp"},
    "fsdp with tensor parallel": {"backend.name": "fsdp", "parallel.tp": 2},
    "AutoTP": {"backend.name": "deepspeed", "backend.config": "zero2", "parallel.tp": 2},
    "zero 2": {"backend.name": "deepspeed", "backend.config": "zero2"},
    "zero 3": {"backend.name": "deepspeed", "backend.config": "zero3"},
}
FEW = {
    "two processes": ("oft", "lokr"),
    "zero 2": ("oft", "lokr"),
    "zero 3": ("miss", "oft", "ia3", "vera", "boft"),
    "AutoTP": ("miss", "oft", "hira", "ia3", "gralora"),
}
"""Kinds that layouts are tried with; other layouts with all. They differ where weights are on the meta device at first,
and beside matrices that are cut.
"""


def trained(model: Path, out: Path, kind: str, changes: dict[str, Any]) -> Trained:
    settings = {**SHARED, "tuner.kind": kind, **KINDS[kind][0], "logging.run_name": kind, **changes}
    return run_training(model, out, ROWS, settings)


@pytest.mark.parametrize("kind", tiered(KINDS, (), ("miss", "loha", "gralora", "hira")))
def test_other_adapters_follow_peft_are_merged_and_load(tmp_path: Path, kind: str) -> None:
    # IA³ scales biases too.
    model = write_model(tmp_path / "tiny", architecture="Qwen2" if kind == "ia3" else "Qwen3")
    # The first step has a learning rate of 0: it saves what the adapters begin with.
    run = trained(model, tmp_path, kind, {"checkpoint.save_steps": 1})
    config = PeftConfig.from_peft_type(peft_type=kind.upper(), target_modules=LINEAR, **KINDS[kind][1])
    with without_bitsandbytes():  # and without torchao, whose newest version PEFT's MiSS does not know
        tuned = get_peft_model(plain_torch.load_model(model), config)
    assert not set_peft_model_state_dict(tuned, adapter_of(run, 1)).unexpected_keys
    torch.testing.assert_close(logits(tuned), logits(plain_torch.load_model(model)), rtol=1e-5, atol=1e-5)
    assert_follows(run, tuned, model, falls=0.005)
    assert_leaves(run, model, logits(tuned), tmp_path)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Trained]]:
    """The model, and the run of each kind in one process."""
    folder = tmp_path_factory.mktemp("alone")
    model = write_model(folder / "tiny")
    return model, {kind: trained(model, folder, kind, {"optim.eps": 1e-6}) for kind in KINDS}


@pytest.mark.parametrize("layout", tiered(LAYOUTS, (), ("two processes", "fsdp", "zero 2", "AutoTP")))
def test_other_adapters_have_the_numbers_of_one_process(
    tmp_path: Path, layout: str, alone: tuple[Path, dict[str, Trained]]
) -> None:
    model, runs = alone
    # BOFT rotates whole weights.
    kinds = FEW.get(layout, [kind for kind in KINDS if "parallel.tp" not in LAYOUTS[layout] or kind != "boft"])
    plan = {**LAYOUTS[layout], "optim.eps": 1e-6}
    answers = on_processes(2, *[partial(trained, model, tmp_path / "runs", kind, plan) for kind in kinds])
    for kind, answer in zip(kinds, answers, strict=True):
        assert_same(succeeded(answer)[0], runs[kind], kind)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"backend.name": "megatron"}, "megatron backend does not support the tuner 'miss'"),
        ({"tuner.quantize": "bnb-nf4"}, "works with tuner.kind lora only"),
        ({"tuner.kind": "boft", "backend.name": "fsdp", "parallel.tp": 2}, "the tuner declares no cut"),
        ({"tuner.kind": "hira", "tuner.dropout": 0.1, "backend.name": "fsdp", "parallel.tp": 2}, "declares no cut"),
        # Without a GPU there is no kernel, and PEFT would train one factor.
        ({"tuner.kind": "boft", "tuner.factors": 2}, "PEFT uses 1"),
    ],
)
def test_other_adapters_are_refused_where_they_cannot_be(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    model = write_model(tmp_path / "tiny")
    with pytest.raises(SwiftError, match=reason):
        trained(model, tmp_path, "miss", changes)
