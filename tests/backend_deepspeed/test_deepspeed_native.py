"""Checkpoints that DeepSpeed itself has written, against plain torch on the same batches; then resumed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import typed
from processes import on_processes, succeeded
from tiers import tiered
from torch import nn

from swift.checkpoint import open_checkpoint
from swift.errors import CheckpointError
from swift_migrate.convert.run import convert_checkpoint
from swift_migrate.convert.write import convert_to
from swift_testing.subjects import conversations, write_jsonl, write_model

STEPS, RANKS, ROWS = 3, 2, 2
ZERO = {
    "zero1": {"stage": 1},
    "zero2": {"stage": 2},
    "zero3": {"stage": 3, "sub_group_size": 40_000, "stage3_param_persistence_threshold": 0},
}


def batch(step: int, rank: int) -> torch.Tensor:
    """The tokens of one process."""
    return torch.randint(0, 200, (ROWS, 12), generator=torch.Generator().manual_seed(10 * step + rank))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups, as trainers make them."""
    trained = [each for each in model.parameters() if each.requires_grad]
    matrices = {"params": [each for each in trained if each.ndim > 1], "weight_decay": 0.1}
    vectors = {"params": [each for each in trained if each.ndim < 2], "weight_decay": 0.0}
    return torch.optim.AdamW([each for each in (matrices, vectors) if each["params"]], lr=1e-3, eps=1e-6)


def model_of(folder: Path, *, lora: bool) -> nn.Module:
    """The model as it is, or with adapters whose start is no matter of chance."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    if lora:
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj", "down_proj"]))
    trained: nn.Module = model
    return trained


def by_deepspeed(model: Path, out: Path, zero: dict[str, Any], *, lora: bool) -> None:
    """DeepSpeed alone."""
    import deepspeed
    import torch.distributed as dist

    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 10**9,
    }
    module = model_of(model, lora=lora)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer_of(module), config=config)
    for step in range(STEPS):
        tokens = batch(step, dist.get_rank())
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
    engine.save_checkpoint(str(out))
    if lora and dist.get_rank() == 0:
        module.peft_config["default"].save_pretrained(str(out))
    dist.barrier()


def resumed_by_deepspeed(model: Path, source: Path, out: Path, zero: dict[str, Any], *, lora: bool) -> None:
    """DeepSpeed alone goes on from a universal checkpoint: what it holds then, and after one more step."""
    import deepspeed
    import torch.distributed as dist
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    vars(deepspeed.ops).setdefault("__compatible_ops__", {})
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "gradient_clipping": 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "checkpoint": {"load_universal": True},
        "steps_per_print": 10**9,
    }
    module = model_of(model, lora=lora)
    engine, *_ = deepspeed.initialize(model=module, optimizer=optimizer_of(module), config=config)
    assert engine.load_checkpoint(str(source))[0] is not None
    assert engine.global_steps == STEPS

    def held() -> dict[str, list[torch.Tensor]]:
        return {
            name: [
                safe_get_full_fp32_param(each).clone(),
                *(safe_get_full_optimizer_state(each, slot).clone() for slot in ("exp_avg", "exp_avg_sq")),
            ]
            for name, each in module.named_parameters()
            if each.requires_grad
        }

    found = [held()]
    if zero["stage"] == 3:  # here DeepSpeed counts for its own Adams, with an integer that torch's AdamW refuses
        if dist.get_rank() == 0:
            torch.save([*found, {}], out)
        dist.barrier()
        return
    tokens = batch(STEPS, dist.get_rank())
    engine.backward(engine(input_ids=tokens, labels=tokens).loss)
    engine.step()
    found.append(held())
    if dist.get_rank() == 0:
        torch.save(found, out)
    dist.barrier()


def by_torch(model: Path, *, lora: bool, steps: int = STEPS) -> dict[str, list[torch.Tensor]]:
    """Plain torch on the batches of both processes: name → weight, moments, step."""
    module: Any = model_of(model, lora=lora)
    optimizer = optimizer_of(module)
    for step in range(steps):
        for rank in range(RANKS):
            tokens = batch(step, rank)
            (module(input_ids=tokens, labels=tokens).loss / RANKS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return {
        name: [each.detach(), *(optimizer.state[each][slot] for slot in ("exp_avg", "exp_avg_sq", "step"))]
        for name, each in module.named_parameters()
        if each.requires_grad
    }


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A model, its data, and what DeepSpeed made of it in all ways."""
    folder = tmp_path_factory.mktemp("native")
    model = write_model(folder / "tiny")
    write_jsonl(folder / "data.jsonl", conversations(16))
    before = os.environ.get("DS_ACCELERATOR")
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed  # noqa: F401  # once, for all processes

    jobs = [partial(by_deepspeed, model, folder / name, zero, lora=False) for name, zero in ZERO.items()]
    jobs.append(partial(by_deepspeed, model, folder / "lora", {"stage": 2}, lora=True))
    for answers in on_processes(RANKS, *jobs, fresh=True):
        succeeded(answers)
    universal = ["--input_folder", "zero1/global_step3", "--output_folder", "zero1/universal"]
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", *universal, "--inject_missing_state"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    yield folder
    if before is None:
        del os.environ["DS_ACCELERATOR"]


@pytest.mark.parametrize("name", [*ZERO, "zero1/universal", "lora"])
def test_weights_and_optimizer_state_are_those_of_plain_torch(place: Path, name: str) -> None:
    out = place / f"out-{name.replace('/', '-')}"
    folder = convert_checkpoint(
        place / name, model=str(place / "tiny"), out=out, adapter_config=None, say=lambda _: None
    )
    checkpoint = open_checkpoint(folder)
    expected = by_torch(place / "tiny", lora=name == "lora")
    assert expected
    for parameter, (weight, first, second, step) in expected.items():
        disk = parameter.replace(".default", "")
        torch.testing.assert_close(checkpoint.read(f"model.{disk}"), weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(checkpoint.read(f"optim.{disk}.exp_avg"), first, rtol=1e-3, atol=1e-7)
        torch.testing.assert_close(checkpoint.read(f"optim.{disk}.exp_avg_sq"), second, rtol=1e-3, atol=1e-10)
        assert checkpoint.read(f"optim.{disk}.step") == step == STEPS
    assert checkpoint.facts.rows_per_step == RANKS * ROWS
    optim: Any = checkpoint.facts.config["optim"]
    assert (optim["lr"], optim["eps"], optim["beta2"], optim["weight_decay"]) == (1e-3, 1e-6, 0.999, 0.1)


def test_training_goes_on_from_what_was_converted(place: Path) -> None:
    run = typed(["convert", "zero2", "--model", "./tiny", "--out", "taken-over"], place)
    assert run.code == 0, run.output
    assert f"zero2 is DeepSpeed ZeRO 2 of 2 processes, step {STEPS}." in run.output
    folder = place / "taken-over" / f"checkpoint-{STEPS}"
    command = "sft --model ./tiny --dataset data.jsonl --max_steps 4 --tuner.kind full --backend torch"
    run = typed([*command.split(), "--resume_from_checkpoint", str(folder)], place)
    assert run.code == 0, run.output
    assert "at step 3 of 4" in run.output
    assert "Completed after 4 steps" in run.output


@pytest.mark.parametrize("name", tiered(["zero1", "zero2", "zero3", "lora"], ["zero3"]))
def test_deepspeed_goes_on_from_what_it_is_handed(place: Path, tmp_path: Path, name: str) -> None:
    lora = name == "lora"
    said: list[str] = []
    stored = convert_checkpoint(
        place / ("lora" if lora else "zero1"),
        model=str(place / "tiny"),
        out=tmp_path / "stored",
        adapter_config=None,
        say=said.append,
    )
    handed = convert_to(stored, to="deepspeed", out=tmp_path / "handed", say=said.append)
    zero = ZERO.get(name, {"stage": 2})
    job = partial(resumed_by_deepspeed, place / "tiny", handed, tmp_path / "held.pt", zero, lora=lora)
    for answers in on_processes(RANKS, job, fresh=True):
        succeeded(answers)
    loaded, stepped = torch.load(tmp_path / "held.pt", weights_only=True)
    checkpoint = open_checkpoint(stored)
    assert loaded
    for parameter, tensors in loaded.items():
        disk = parameter.replace(".default", "")
        names = (f"model.{disk}", f"optim.{disk}.exp_avg", f"optim.{disk}.exp_avg_sq")
        for canonical, tensor in zip(names, tensors, strict=True):
            assert torch.equal(checkpoint.read(canonical), tensor), canonical
    expected = by_torch(place / "tiny", lora=lora, steps=STEPS + 1) if stepped else {}
    for parameter, (weight, *_) in stepped.items():
        torch.testing.assert_close(weight, expected[parameter][0], rtol=1e-4, atol=1e-5)
    back = convert_checkpoint(
        handed,
        model=str(place / "tiny"),
        out=tmp_path / "back",
        adapter_config=place / "lora" / "adapter_config.json" if lora else None,
        say=said.append,
    )
    again = open_checkpoint(back)
    assert sorted(again.names()) == sorted(checkpoint.names())
    assert all(torch.equal(again.read(each), checkpoint.read(each)) for each in again.names())


def test_trainer_deepspeed_folder_uses_deepspeed_reader(place: Path, tmp_path: Path) -> None:
    """A Trainer's folder under DeepSpeed goes to the reader of DeepSpeed."""
    import shutil

    folder = tmp_path / "checkpoint-3"
    shutil.copytree(place / "tiny", folder)
    shutil.copytree(place / "zero2", folder, dirs_exist_ok=True)
    (tmp_path / "args.json").write_text('{"model": "' + str(place / "tiny") + '", "seed": 5}')
    said: list[str] = []
    stored = convert_checkpoint(folder, model=None, out=tmp_path / "out", adapter_config=None, say=said.append)
    assert any("DeepSpeed ZeRO 2 of 2 processes" in line for line in said)
    checkpoint = open_checkpoint(stored)
    weight, first, *_ = by_torch(place / "tiny", lora=False)["model.norm.weight"]
    torch.testing.assert_close(checkpoint.read("model.model.norm.weight"), weight, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(checkpoint.read("optim.model.norm.weight.exp_avg"), first, rtol=1e-3, atol=1e-7)
    assert checkpoint.facts.seed == 5


def test_a_pickle_that_does_things_is_not_run(place: Path, tmp_path: Path) -> None:
    from swift_backend_deepspeed.native import open_native

    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "harm",))

    folder = tmp_path / "global_step1"
    folder.mkdir()
    (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    torch.save({"module": Harmful()}, folder / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match="cannot be read"):
        open_native(tmp_path)
    assert not (tmp_path / "harm").exists()


class ByName:
    """What Python 3.11.0 to 3.11.3 makes of a member of an enumeration, when it pickles it."""

    def __init__(self, kind: type, name: str) -> None:
        self.reduced = (getattr, (kind, name))

    def __reduce__(self) -> Any:
        return self.reduced


def test_stage_enum_pickled_by_older_python_is_read(tmp_path: Path) -> None:
    """A stage is read that an older Python saved by its name and no other attribute."""
    from deepspeed.runtime.zero.config import ZeroStageEnum

    from swift_backend_deepspeed import native

    file = tmp_path / "states.pt"
    for stage in (ZeroStageEnum.disabled, *set(ZeroStageEnum)):
        torch.save({"zero_stage": ByName(ZeroStageEnum, stage.name)}, file)
        assert native._load(file) == {"zero_stage": stage.value}
    torch.save({"zero_stage": ByName(ZeroStageEnum, "__class__")}, file)
    with pytest.raises(CheckpointError, match="cannot be read"):
        native._load(file)


def test_missing_rank_and_unrelated_folder_are_named(place: Path, tmp_path: Path) -> None:
    """A missing process and an unrelated folder are named."""
    import shutil

    from swift_backend_deepspeed.native import open_native

    assert open_native(place / "tiny") is None
    shutil.copytree(place / "zero2", tmp_path / "part")
    (tmp_path / "part" / "global_step3" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(CheckpointError, match="the files of 1 of 2 processes"):
        open_native(tmp_path / "part")


@pytest.mark.parametrize("told", ["../zero3/global_step3", "/etc", "a\0b", "x" * 5000, b"\xff", "elsewhere"])
def test_the_name_of_the_newest_folder_leads_nowhere_else(tmp_path: Path, told: str | bytes) -> None:
    from swift_backend_deepspeed.native import open_native

    (tmp_path / "zero3" / "global_step3" / "zero").mkdir(parents=True)
    (folder := tmp_path / "zero2").mkdir()
    (folder / "elsewhere").symlink_to(tmp_path / "zero3" / "global_step3")
    (folder / "latest").write_bytes(told if isinstance(told, bytes) else told.encode())
    with pytest.raises(CheckpointError, match="latest"):
        open_native(folder)


STATES: dict[str, Any] = {"param_shapes": [{"a": torch.Size([2])}], "shared_params": {}, "global_steps": 3}


@pytest.mark.parametrize(
    "change",
    [
        {"param_shapes": None},
        {"param_shapes": [{"a": 5}]},
        {"param_shapes": [{5: torch.Size([2])}]},
        {"global_steps": -1},
        {"global_steps": float("nan")},
        {"dp_world_size": "two"},
        {"ds_config": 5},
    ],
)
def test_states_of_other_kinds_are_the_folders_fault(tmp_path: Path, change: dict[str, Any]) -> None:
    from swift_backend_deepspeed.native import open_native

    folder = tmp_path / "global_step3"
    folder.mkdir()
    inner = {"state": {}, "param_groups": []}
    ranks = {"zero_stage": 2, "single_partition_of_fp32_groups": [torch.zeros(2)], "base_optimizer_state": inner}
    torch.save(STATES, folder / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": ranks}, folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    assert open_native(tmp_path) is not None
    torch.save(STATES | change, folder / "mp_rank_00_model_states.pt")
    with pytest.raises(CheckpointError, match="global_step3 holds something else than DeepSpeed writes"):
        open_native(tmp_path)


def test_pieces_that_are_too_short_are_named_by_their_parameter(tmp_path: Path) -> None:
    from swift_backend_deepspeed.native import open_native

    inner = {"state": {}, "param_groups": []}
    ranks = {"zero_stage": 2, "single_partition_of_fp32_groups": [torch.zeros(1)], "base_optimizer_state": inner}
    torch.save(STATES, tmp_path / "mp_rank_00_model_states.pt")
    torch.save({"optimizer_state_dict": ranks}, tmp_path / "zero_pp_rank_0_mp_rank_00_optim_states.pt")
    opened = open_native(tmp_path)
    assert opened is not None
    with pytest.raises(CheckpointError, match="/a holds something else"):
        opened.read("a")
