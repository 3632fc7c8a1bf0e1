"""Names of FSDP's and Megatron's settings as Trainer, accelerate and Megatron spell them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from swift.errors import ConfigError
from swift.parsing import Parsed, parse

MEGATRON = "--backend megatron"


def parsed(line: str) -> Parsed:
    return parse(shlex.split(f"--model m --dataset d {line}"), "sft")


def differing(line: str, beside: str) -> dict[str, Any]:
    """Return the keys that a line changes compared with `beside` alone."""
    one, other = (parsed(each).config.model_dump() for each in (f"{beside} {line}", beside))
    return {
        f"{section}.{key}": value
        for section, keys in one.items()
        for key, value in keys.items()
        if other[section].get(key) != value
    }


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("--fsdp 'auto_wrap full_shard'", {}),
        ("--fsdp full_shard,offload", {"backend.offload": True}),
        ("--fsdp 'shard_grad_op auto_wrap'", {"backend.reshard_after_forward": False}),
        ("--fsdp 'hybrid_shard_zero2'", {"backend.hybrid": True, "backend.reshard_after_forward": False}),
        ("--fsdp_reshard_after_forward false", {"backend.reshard_after_forward": False}),
        ("--fsdp_reshard_after_forward FULL_SHARD", {}),
        ("--fsdp_sharding_strategy 2", {"backend.reshard_after_forward": False}),
        ("--fsdp_offload_params true", {"backend.offload": True}),
        ('--fsdp_config \'{"cpu_offload": true, "version": 2}\'', {"backend.offload": True}),
        ("--fsdp_config '{\"activation_checkpointing\": true}'", {"train.gradient_checkpointing": True}),
    ],
)
def test_fsdp_flags_of_trainer_and_accelerate_set_keys(line: str, meant: dict[str, Any]) -> None:
    assert parsed(line).config.backend.name == "fsdp"
    assert differing(line, "--backend fsdp" if "--fsdp " not in line else "--fsdp full_shard") == meant


def test_fsdp_config_file_keys_are_handled(tmp_path: Path) -> None:
    file = tmp_path / "fsdp.json"
    content = {"fsdp_transformer_layer_cls_to_wrap": "Qwen3DecoderLayer", "fsdp_state_dict_type": "X", "xla": False}
    file.write_text(json.dumps({**content, "fsdp_offload_params": True}))
    run = parsed(f"--fsdp_config {file}")
    assert (run.config.backend.name, run.config.backend.model_dump()["offload"]) == ("fsdp", True)
    assert len(run.notes) == len(content)
    assert all("is not needed: " in note or "off anyway" in note for note in run.notes)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (
            "--recompute_granularity full --recompute_method block --recompute_num_layers 2",
            {"train.gradient_checkpointing": True, "backend.recompute_method": "block", "backend.recompute_layers": 2},
        ),
        (
            "--recompute_granularity selective --recompute_modules core_attn mlp",
            {
                "train.gradient_checkpointing": True,
                "backend.recompute": "selective",
                "backend.recompute_modules": ("core_attn", "mlp"),
            },
        ),
        ("--recompute_granularity none", {}),
        (
            "--moe_aux_loss_coeff 0.001 --moe_z_loss_coeff 0.01",
            {"train.router_aux_loss": 1e-3, "train.router_z_loss": 0.01},
        ),
        ("--moe_router_bias_update_rate 0.001", {"train.router_bias_rate": 1e-3}),
        ("--overlap_grad_reduce --overlap_param_gather true", {"backend.overlap": True}),
        ("--moe_token_dispatcher_type allgather", {"backend.dispatcher": "allgather"}),
        ("--fp8_format hybrid --fp8_recipe tensorwise", {"backend.fp8": "hybrid"}),
        ("--attention_backend unfused", {"model.attention": "eager"}),
        (
            "--pp 4 --decoder_first_pipeline_num_layers 3 --decoder_last_pipeline_num_layers 2",
            {"parallel.pp": 4, "backend.first_stage": 3, "backend.last_stage": 2},
        ),
        (
            "--save out2 --eval_interval 7 --save_interval 8 --log_interval 9",
            {"logging.output": Path("out2"), "train.eval_steps": 7, "checkpoint.save_steps": 8, "logging.steps": 9},
        ),
        ("--distributed_backend nccl --finetune true --num_layers 2 --moe_permute_fusion true --no_save_rng true", {}),
        ("--no_save_optim true", {"checkpoint.optimizer_state": False}),
    ],
)
def test_megatron_flags_set_keys(line: str, meant: dict[str, Any]) -> None:
    assert differing(line, MEGATRON) == meant


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--fsdp full_shrad", "Did you mean 'full_shard'"),
        ("--fsdp no_shard", "would shard nothing"),
        ("--fsdp full_shard --fsdp_config '{\"cpu_ofload\": true}'", "Did you mean 'cpu_offload'"),
        ('--fsdp_config \'{"ignored_modules": ["x"]}\'', "all modules are sharded"),
        ("--fsdp_config nowhere.json", "there is no file"),
        ("--deepspeed zero2 --fsdp_offload_params true", "needs the fsdp backend"),
        ("--backend torch --recompute_method block", "needs the megatron backend, and the backend is torch"),
        (f"{MEGATRON} --load x", "are two settings"),
        (f"{MEGATRON} --use_precision_aware_optimizer true", "in fp32"),
        (f"{MEGATRON} --optimizer_cpu_offload true", "stays on the device"),
        (f"{MEGATRON} --fp8_recipe blockwise", "only FP8 recipe"),
        (f"{MEGATRON} --attention_backend flsh", "Did you mean 'flash'"),
        (f"{MEGATRON} --recompute_modules mlpp", "'core_attn', 'mlp'"),
        ("--lora_dtype bfloat16", "always fp32"),
    ],
)
def test_unsupported_backend_flags_are_refused(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parsed(line)
    assert sentence in refusal.value.message
