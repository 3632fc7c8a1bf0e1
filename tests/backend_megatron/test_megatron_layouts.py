"""What Megatron refuses and says beforehand, and where every weight lies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import megatron_imported  # noqa: F401
import pytest
import torch
import transformers
from against_torch import LORA, MOE
from processes import on_processes, succeeded
from safetensors.torch import load_file
from tiny_images import image_model
from tiny_runs import conversations, run_training

from swift.config.sections import Config, ParallelSection
from swift.contracts import Run
from swift.errors import ModelError, UnsupportedLayout
from swift.parsing import config_from_mapping
from swift_backend_megatron.architectures import check_architecture
from swift_testing.subjects import write_model

ROWS = conversations(9)
MEGATRON = {"backend.name": "megatron"}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "too few processes": ({"parallel.tp": 2, "parallel.pp": 2}, "The layout tp 2 × pp 2 needs 4 processes, but 2"),
    "too few for the experts": ({"parallel.ep": 4}, "The experts' layout ep 4 × etp 1 takes 4 processes"),
    "sequence parallel alone": ({"parallel.sequence_parallel": True}, "parallel.tp is 1"),
    "virtual stages alone": ({"parallel.vpp": 2}, "parallel.pp is 1"),
    "stages named wrongly": ({"parallel.pp": 2, "backend.stages": [2]}, "names 1 stages, and pp 2 × vpp 1 has 2"),
    "a first stage of no pipeline": ({"backend.first_stage": 1}, "parallel.pp is 1"),
    "ends of interleaved stages": (
        {"parallel.pp": 2, "parallel.vpp": 2, "backend.last_stage": 1},
        "has several on a process",
    ),
    "stages and their ends": (
        {"parallel.pp": 2, "backend.stages": [1, 1], "backend.first_stage": 1},
        "both name the stages",
    ),
    "ends that leave nothing": ({"parallel.pp": 2, "backend.first_stage": 2}, "leave 0 for 1 stages"),
    "biases next to adapters": ({**LORA, "tuner.bias": "all"}, "does not support tuner.bias"),
    "padding without capacity": ({"backend.moe_pad_to_capacity": True}, "none is given"),
    "fp8 without a gpu": ({"backend.fp8": "hybrid"}, "this machine has no GPU"),
    "adafactor": ({"optim.name": "adafactor"}, "does not support the optimizer"),
    "modules to save": ({**LORA, "tuner.modules_to_save": ["lm_head"]}, "makes copies of modules"),
    "dora": ({**LORA, "tuner.dora": True}, "does not support"),
    "flash attention": ({"model.attention": "flash_attention_2"}, "needs an NVIDIA GPU"),
    "stages that do not add up": ({"parallel.pp": 2, "backend.stages": [2, 1]}, "adds up to 3 layers"),
    "experts of a dense model": ({"parallel.ep": 2}, "distributes experts, and qwen3 has none"),
    "a head's adapter": ({**LORA, "tuner.targets": ["lm_head"]}, "lm_head is not offered"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


def test_unsupported_layouts_are_refused_with_hint(model: Path, tmp_path: Path) -> None:
    odd = write_model(tmp_path / "odd", num_hidden_layers=3, num_attention_heads=3, num_key_value_heads=3)
    few = write_model(tmp_path / "few", num_hidden_layers=1, num_key_value_heads=1)
    uneven = write_model(tmp_path / "uneven", num_hidden_layers=1, intermediate_size=255)
    moe = write_model(tmp_path / "moe", architecture="Qwen3Moe", num_hidden_layers=1, **{**MOE, "num_experts": 3})
    gpt = write_model(tmp_path / "gpt2", architecture="GPT2", n_embd=64, n_head=4, n_layer=2)
    sees = image_model(tmp_path / "sees", "qwen3_5")
    cases = [(reason, model, changes) for changes, reason in REFUSED.values()]
    cases += [
        ("3 attention heads are not divisible by tp 2", odd, {"parallel.tp": 2}),
        ("3 layers are not divisible by pp 2 stages", odd, {"parallel.pp": 2}),
        ("1 heads of keys and values are not divisible by tp 2", few, {"parallel.tp": 2}),
        ("3 experts are not divisible by ep 2", moe, {"parallel.ep": 2}),
        ("intermediate_size 255 is not divisible by parallel.tp 2", uneven, {"parallel.tp": 2}),
        ("Megatron does not train gpt2: mcore-bridge does not convert", gpt, {}),
        ("Megatron does not run the vision encoder of qwen3_5", sees, {}),
    ]

    def refusals() -> list[Any]:
        found: list[Any] = []
        for _, folder, changes in cases:
            try:
                found.append(run_training(folder, tmp_path / "out", ROWS, {**MEGATRON, **changes}))
            except (UnsupportedLayout, ModelError) as refused:
                found.append(refused.with_traceback(None))
        return found

    for found in succeeded(on_processes(2, refusals)[0]):
        for (reason, *_), refused in zip(cases, found, strict=True):
            assert reason in refused.message
            assert refused.hint
            if "gpt2" in reason:
                assert "deepseek_v3" in refused.message
                assert "qwen3" in refused.message
            if reason.startswith("3 layers"):
                assert "--backend.stages 2 1" in refused.hint
    assert not (tmp_path / "out").exists()


STREAMED: dict[str, tuple[int, dict[str, Any], str, dict[str, Any]]] = {
    "experts": (2, {"parallel.ep": 2}, "Qwen3Moe", MOE),
    "tied, padded vocabulary": (
        4,
        {"parallel.tp": 2, "parallel.pp": 2, "parallel.sequence_parallel": True},
        "Llama",
        {"tie_word_embeddings": True, "vocab_size": 267},
    ),
}


@pytest.mark.parametrize("name", STREAMED)
def test_what_was_read_is_streamed_bit_for_bit(tmp_path: Path, name: str) -> None:
    processes, plan, architecture, shape = STREAMED[name]
    folder = write_model(tmp_path / "model", architecture=architecture, **shape)

    def streamed() -> list[str]:
        from swift.train.prepare import open_job

        settings = {"model.path": str(folder), "tuner.kind": "full", "model.dtype": "float32", **MEGATRON, **plan}
        original = load_file(folder / "model.safetensors")
        with open_job(config_from_mapping({**settings, "train.global_batch": 4}), rows=ROWS) as job:
            found = dict(job.hooks.swift_iter_weights(job.run, job.state))
        assert found.keys() == original.keys()
        return [key for key, each in found.items() if not torch.equal(each, original[key])]

    (answers,) = on_processes(processes, streamed)
    assert succeeded(answers) == [[]] * processes


def test_zero_with_pipeline_suggests_another_backend(model: Path, tmp_path: Path) -> None:
    """ZeRO with a pipeline suggests the backend that has pipelines."""
    settings = {"backend.name": "deepspeed", "backend.config": "zero2", "parallel.pp": 2}
    with pytest.raises(UnsupportedLayout, match="deepspeed backend does not support") as caught:
        run_training(model, tmp_path, ROWS, settings)
    assert "--backend megatron" in (caught.value.hint or "")


def test_an_adapter_of_peft_is_gone_on_with(model: Path, tmp_path: Path) -> None:
    """It begins with the loss that another backend ended with."""
    lora = {**LORA, "train.max_steps": 3, "train.global_batch": 9, "train.micro_batch": 9, "optim.schedule": "constant"}

    def made() -> list[float]:
        first = run_training(model, tmp_path / "first", ROWS, {**lora, "checkpoint.save_last": True})
        adapter = str(first.folder / "checkpoint-3")
        on_torch = run_training(model, tmp_path / "torch", ROWS, {**lora, "tuner.adapter": adapter})
        return on_torch.losses

    (on_torch,) = on_processes(1, made)
    adapter = tmp_path / "first" / model.name / "run" / "checkpoint-3"
    assert (adapter / "adapter_config.json").is_file()

    def onward() -> list[float]:
        plan = {"parallel.tp": 2, "train.micro_batch": 3, "tuner.adapter": str(adapter)}
        run = run_training(model, tmp_path / "megatron", ROWS, {**lora, **MEGATRON, **plan})
        return run.losses

    (answers,) = on_processes(2, onward)
    assert succeeded(answers)[0] == pytest.approx(succeeded(on_torch)[0], rel=1e-5)


def parallel(**sizes: int) -> Config:
    return Config(parallel=ParallelSection(**sizes))


def test_which_rank_holds_what() -> None:
    from swift_backend_megatron.layout import describe

    assert describe(parallel(tp=2, pp=2, cp=1), 8)[5] == "rank 5: stage 2 of 2, data 1 of 2, tensors 2 of 2"
    assert describe(parallel(ep=2), 2) == [
        "rank 0: data 1 of 2, experts 1 of 2",
        "rank 1: data 2 of 2, experts 2 of 2",
    ]


def test_the_description_is_megatrons_own() -> None:
    """Every process finds itself where `describe` says it is."""

    def place() -> tuple[str, str]:
        import torch.distributed as dist
        from megatron.core import parallel_state as groups

        from swift_backend_megatron.layout import describe

        dist.init_process_group("gloo")
        groups.initialize_model_parallel(
            2, 2, expert_model_parallel_size=2, expert_tensor_parallel_size=1, create_gloo_process_groups=False
        )
        said = describe(parallel(tp=2, pp=2, ep=2), 8)[dist.get_rank()]
        places = {
            "stage": groups.get_pipeline_model_parallel_rank(),
            "data": groups.get_data_parallel_rank(),
            "tensors": groups.get_tensor_model_parallel_rank(),
            "experts": groups.get_expert_model_parallel_rank(),
        }
        own = f"rank {dist.get_rank()}: " + ", ".join(f"{name} {place + 1} of 2" for name, place in places.items())
        groups.destroy_model_parallel()
        dist.destroy_process_group()
        return said, own

    (answers,) = on_processes(8, place)
    for said, own in succeeded(answers):
        assert said == own


def test_rope_by_length_is_refused_above_its_limit() -> None:
    """Dynamic positions depend on each sample's length; Megatron has one set of them."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    config = transformers.LlamaConfig(max_position_embeddings=2048, rope_parameters=rope)

    def check(longest: int) -> None:
        data = SimpleNamespace(max_length=longest)
        check_architecture(cast("Run", SimpleNamespace(config=SimpleNamespace(data=data), planned_only=False)), config)

    check(2048)
    with pytest.raises(UnsupportedLayout, match=r"samples of 4,096 tokens: its rotary positions \(dynamic\)"):
        check(4096)
