"""Checkpoints of the real Trainer, converted: bit for bit what it had in memory; then resumed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_trainer import STEPS, Held, train, write_args_of_ms_swift
from safetensors.torch import load_file, save_file
from tiny_runs import conversations, run_training, write_model

from swift.checkpoint import open_checkpoint
from swift.errors import CheckpointError
from swift_migrate.convert.run import convert_checkpoint

MODELS: dict[str, dict[str, Any]] = {
    "tied": {"tie_word_embeddings": True},
    "untied": {},
    "lora": {},
    "biases": {"architecture": "Qwen2"},
    "experts": {
        "architecture": "Qwen3Moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "decoder_sparse_step": 1,
    },
}


class Place:
    """A model, and what the Trainer made of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.model = write_model(folder / "model", **MODELS[name])
        self.checkpoint, self.held = train(self.model, folder / "trained", lora=name == "lora")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Place]:
    return {name: Place(tmp_path_factory.mktemp(name), name) for name in MODELS}


def converted(path: Path, out: Path, model: Path | None, **more: Any) -> tuple[Path, list[str]]:
    """The new checkpoint, and what was said."""
    said: list[str] = []
    folder = convert_checkpoint(
        path, model=None if model is None else str(model), out=out, adapter_config=None, say=said.append, **more
    )
    return folder, said


def on_disk(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Names on disk of a parameter in memory, written out by hand."""
    if name.endswith("mlp.experts.gate_up_proj"):
        layer = name.removesuffix(".gate_up_proj")
        halves = {"gate_proj": 0, "up_proj": 1}
        return {
            f"{layer}.{expert}.{half}.weight": rows.chunk(2)[at]
            for expert, rows in enumerate(tensor)
            for half, at in halves.items()
        }
    if name.endswith("mlp.experts.down_proj"):
        layer = name.removesuffix(".down_proj")
        return {f"{layer}.{expert}.down_proj.weight": rows for expert, rows in enumerate(tensor)}
    return {name.replace(".default", "").replace(".modules_to_save", ""): tensor}


def check_equal(folder: Path, held: Held, step: int = STEPS) -> None:
    """Every weight and moment of the Trainer is in a checkpoint of swift, bit for bit, and nothing else."""
    checkpoint = open_checkpoint(folder)
    compared = 0
    for name, weight in held.weights.items():
        for disk, part in on_disk(name, weight).items():
            assert torch.equal(checkpoint.read(f"model.{disk}"), part), disk
            compared += 1
        for slot in ("exp_avg", "exp_avg_sq"):
            for disk, part in on_disk(name, held.state[name][slot]).items():
                assert torch.equal(checkpoint.read(f"optim.{disk}.{slot}"), part), (disk, slot)
        for disk in on_disk(name, weight):
            assert checkpoint.read(f"optim.{disk}.step") == step
    assert compared == sum(name.startswith("model.") for name in checkpoint.names())


@pytest.mark.parametrize("name", MODELS)
def test_converted_weights_and_optimizer_are_bit_equal(places: dict[str, Place], tmp_path: Path, name: str) -> None:
    """Weights and optimizer state are bit for bit those in memory."""
    place = places[name]
    folder, said = converted(place.checkpoint, tmp_path / "out", place.model)
    assert folder.name == f"checkpoint-{STEPS}"
    check_equal(folder, place.held)
    facts = open_checkpoint(folder).facts
    assert facts.schedule == {"total_steps": STEPS, "peak": 1e-2}
    assert facts.config["optim"]["beta2"] == 0.95  # type: ignore[call-overload, index]  # JSON
    assert any("batch size" in line for line in said)


@pytest.mark.parametrize("name", ["tied", "lora", "experts"])
def test_training_goes_on_from_it(places: dict[str, Place], tmp_path: Path, name: str) -> None:
    place = places[name]
    folder, said = converted(place.checkpoint, tmp_path / "out", place.model)
    tuner = {"tuner.kind": "lora", "tuner.adapter": str(folder)} if name == "lora" else {}
    assert f"--adapters {folder}" in said[-1] or name != "lora"
    run = run_training(
        place.model,
        tmp_path / "runs",
        conversations(16),
        {**tuner, "checkpoint.resume": str(folder), "train.max_steps": 5, "optim.warmup_steps": 0},
    )
    assert list(run.lines) == [4, 5]
    with_state = run.losses[-1]
    bare, _ = converted(place.checkpoint, tmp_path / "bare", place.model, weights_only=True)
    assert not any(each.startswith("optim.") for each in open_checkpoint(bare).names())
    again = run_training(
        place.model,
        tmp_path / "again",
        conversations(16),
        {**tuner, "checkpoint.resume": str(bare), "train.max_steps": 5, "optim.warmup_steps": 0},
    )
    assert again.losses[0] == run.losses[0]
    assert again.losses[-1] != with_state


def test_the_groups_of_an_older_trainer_are_recognised(places: dict[str, Place], tmp_path: Path) -> None:
    place = places["biases"]
    old = shutil.copytree(place.checkpoint, tmp_path / "old")
    content = torch.load(old / "optimizer.pt", weights_only=True)
    names = [name for name in place.held.weights if "bias" not in name]  # its norms had weight decay
    rest = [name for name in place.held.weights if "bias" in name]
    for group, members in zip(content["param_groups"], (names, rest), strict=True):
        group["params"] = [[*names, *rest].index(name) for name in members]
    content["state"] = {index: place.held.state[name] for index, name in enumerate([*names, *rest])}
    torch.save(content, old / "optimizer.pt")
    check_equal(converted(old, tmp_path / "out", place.model)[0], place.held)


def test_a_whole_model_is_its_own_start(places: dict[str, Place], tmp_path: Path) -> None:
    model = places["tied"].model
    folder, said = converted(model, tmp_path / "out", None)
    assert folder.name == "checkpoint-0"
    assert "a Hugging Face model, weights alone" in said[0]
    checkpoint = open_checkpoint(folder)
    for name, tensor in load_file(model / "model.safetensors").items():
        assert torch.equal(checkpoint.read(f"model.{name}"), tensor)
    run = run_training(
        model, tmp_path / "runs", conversations(8), {"checkpoint.resume": str(folder), "train.max_steps": 2}
    )
    fresh = run_training(model, tmp_path / "fresh", conversations(8), {"train.max_steps": 2})
    assert run.losses == fresh.losses


def test_weights_in_bf16_and_in_shards_become_fp32_masters(places: dict[str, Place], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = places["untied"].model
    folder = tmp_path / "halved"
    whole: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16)
    whole.save_pretrained(folder, max_shard_size="100KB")
    assert (folder / "model.safetensors.index.json").is_file()
    checkpoint = open_checkpoint(converted(folder, tmp_path / "out", model)[0])
    for name, parameter in whole.named_parameters():
        read = checkpoint.read(f"model.{name}")
        assert read.dtype == torch.float32
        assert torch.equal(read, parameter.detach().float())


def test_an_adapter_names_its_model(places: dict[str, Place], tmp_path: Path) -> None:
    place = places["lora"]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        shutil.copy(place.checkpoint / name, adapter / name)
    folder, said = converted(adapter, tmp_path / "out", None)
    assert said[0] == f"Training started from {place.model}, according to the files next to the weights."
    assert "an adapter of PEFT, weights alone, step 0" in said[1]
    checkpoint = open_checkpoint(folder)
    for name, weight in place.held.weights.items():
        assert torch.equal(checkpoint.read(f"model.{name.replace('.default', '')}"), weight)


def test_ms_swift_args_give_model_seed_and_rows(places: dict[str, Place], tmp_path: Path) -> None:
    place = places["untied"]
    run = tmp_path / "v0"
    shutil.copytree(place.checkpoint, run / "checkpoint-3")
    values = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "global_world_size": -1}
    write_args_of_ms_swift(run, model=str(place.model), seed=7, **values)
    folder, said = converted(run / "checkpoint-3", tmp_path / "out", None)
    check_equal(folder, place.held)
    facts = open_checkpoint(folder).facts
    assert (facts.seed, facts.rows_per_step) == (7, 8)
    assert not any("batch size" in line for line in said)


def test_another_optimizer_leaves_weights_alone_and_is_named(places: dict[str, Place], tmp_path: Path) -> None:
    model = places["untied"].model
    checkpoint, held = train(model, tmp_path / "other", optim="rmsprop")
    folder, said = converted(checkpoint, tmp_path / "out", model)
    assert "whose optimizer keeps square_avg, step, which is not AdamW's state, weights alone" in said[0]
    read = open_checkpoint(folder)
    assert all(torch.equal(read.read(f"model.{name}"), weight) for name, weight in held.weights.items())
    assert not any(name.startswith("optim.") for name in read.names())


def test_a_pickle_that_does_things_is_refused_and_not_run(places: dict[str, Place], tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harm",))

    place = places["untied"]
    folder = shutil.copytree(place.checkpoint, tmp_path / "bad")
    torch.save({"state": {}, "param_groups": Harmful()}, folder / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"optimizer.pt cannot be read.*\n.*--weights-only"):
        converted(folder, tmp_path / "out", place.model)
    assert not (tmp_path / "harm").exists()
    assert not (tmp_path / "out").exists()
    torch.save(Harmful(), folder / "training_args.bin")
    converted(folder, tmp_path / "out", place.model, weights_only=True)
    assert not (tmp_path / "harm").exists()


def test_what_does_not_fit_is_named(places: dict[str, Place], tmp_path: Path) -> None:
    place = places["untied"]
    other = write_model(tmp_path / "other", intermediate_size=80)
    with pytest.raises(CheckpointError, match=r"layers.0.mlp.gate_proj.weight with shape \(96, 64\).*\(80, 64\)"):
        converted(place.checkpoint, tmp_path / "out", other)
    mixed = shutil.copytree(place.checkpoint, tmp_path / "mixed")
    shutil.copy(train(other, tmp_path / "trained")[0] / "optimizer.pt", mixed)
    with pytest.raises(CheckpointError, match=r"exp_avg of model.layers.0.mlp.gate_proj.weight has the shape \(80, 64"):
        converted(mixed, tmp_path / "out", place.model)
    shutil.copy(places["lora"].checkpoint / "optimizer.pt", mixed)
    with pytest.raises(CheckpointError, match=r"groups of 8 and 0 parameters; for this model the Trainer makes 16 and"):
        converted(mixed, tmp_path / "out", place.model)
    assert not (tmp_path / "out").exists()


def test_folders_that_say_too_little_are_refused(
    places: dict[str, Place], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = places["lora"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="neither safetensors nor a checkpoint that an installed backend"):
        converted(tmp_path / "empty", tmp_path / "out", place.model)
    bare = tmp_path / "inside" / "bare"
    bare.mkdir(parents=True)
    shutil.copy(place.checkpoint / "adapter_model.safetensors", bare)
    with pytest.raises(CheckpointError, match=r"its adapter_config.json is missing"):
        converted(bare, tmp_path / "out", place.model)
    config = json.loads((place.checkpoint / "adapter_config.json").read_text())
    (bare / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": None}))
    with pytest.raises(CheckpointError, match=r"does not name the model that training started from.\nType --model"):
        converted(bare, tmp_path / "out", None)
    short = load_file(bare / "adapter_model.safetensors")
    name = sorted(short)[0]
    del short[name]
    save_file(short, bare / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=f"has no {name}"):
        converted(bare, tmp_path / "out", place.model)

    monkeypatch.setattr("swift_migrate.convert.write.plugin_names", lambda _: [])
    zero = shutil.copytree(places["untied"].checkpoint, tmp_path / "zero")
    (zero / "global_step3").mkdir()
    with pytest.raises(CheckpointError, match=r'saved by deepspeed.*\n.*core\[deepspeed\]".*--weights-only'):
        converted(zero, tmp_path / "out", place.model)
