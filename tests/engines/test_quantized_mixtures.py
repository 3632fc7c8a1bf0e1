"""QLoRA of a mixture on several processes: the bytes that each holds, compared with bfloat16 and with the plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import on_processes, succeeded
from torch.distributed.tensor import DTensor
from type_cells import ROWS, preload

from swift.parsing import config_from_mapping
from swift.planning import model_config, planned_backends
from swift.train.prepare import open_job
from swift_plan.memory import StagesOf
from swift_plan.shape import shape_of
from swift_plan.workload import Workload
from swift_testing.subjects import write_model

pytest.importorskip("bitsandbytes")

SHAPE = {
    "hidden_size": 256,
    "head_dim": 64,
    "num_key_value_heads": 4,
    "num_experts": 16,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 4,
}
"""Most of the weights are those of experts, as in models of 30 billion."""
PROCESSES = 4
CUT = {"zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "FSDP2": {"backend.name": "fsdp", "tuner.quantize": "bnb-nf4"},
    "FSDP2, torchao": {"backend.name": "fsdp", "tuner.quantize": "torchao-nf4"},
    "ZeRO 3": {"backend.name": "deepspeed", "backend.config": CUT, "tuner.quantize": "bnb-nf4"},
}


def held(settings: dict[str, Any]) -> tuple[int, int]:
    """Return the bytes of frozen and of trained weights that this process holds."""
    with open_job(config_from_mapping(settings), rows=ROWS) as job:
        model: Any = job.state.model
        sizes = [0, scale_bytes(model)]
        for each in model.parameters():
            sizes[not each.requires_grad] += local_bytes(each)
    return sizes[1], sizes[0]


def local_bytes(parameter: Any) -> int:
    """Return the bytes of a shard: that of ZeRO 3, of FSDP2, or of a tensor that torchao packs."""
    local = getattr(parameter, "ds_tensor", parameter.data)
    local = local.to_local() if isinstance(local, DTensor) else local
    packed = ("quantized_data", "quantized_scalers", "quantization_factor")
    return sum(getattr(local, name).nbytes for name in packed) if hasattr(local, packed[0]) else local.nbytes


def scale_bytes(model: Any) -> int:
    """Return the bytes of the scales that bitsandbytes keeps apart from the weights."""
    held = [each.quant_state for each in (*model.parameters(), *model.modules()) if hasattr(each, "quant_state")]
    for module in model.modules():
        for scales in getattr(module, "expert_scales", {}).values():
            held += getattr(scales, "states", [])
    states = {id(state): state for state in held if state is not None}.values()
    return sum(state.absmax.nbytes + state.state2.absmax.nbytes for state in states)


@pytest.mark.full
@pytest.mark.parametrize("name", LAYOUTS)
def test_process_holds_its_part_in_4_bits(name: str, tmp_path: Path) -> None:
    """At most 0.32 of its part in bfloat16, with at least 90 % of the weights in 4 bits, and as the plan says."""
    preload(LAYOUTS[name]["backend.name"])
    model = write_model(tmp_path / "model", architecture="Qwen3Moe", num_experts_per_tok=2, **SHAPE)
    chosen = {"tuner.kind": "lora", "model.dtype": "bfloat16", **LAYOUTS[name]}
    backend = ["--deepspeed", "zero3"] if name == "ZeRO 3" else ["--backend", "fsdp"]
    words = ["--model", str(model), *backend, "--train_type", "lora", "--torch_dtype", "bfloat16"]
    planned = planned_backends([*words, "--tuner.quantize", chosen["tuner.quantize"]], "sft")[0][0]
    run, shape = planned.run({}, PROCESSES), shape_of(model_config(str(model)), "tiny")
    stages = StagesOf(planned, shape, Workload.of(planned, processes=PROCESSES, on_cpu=True))
    (stage,) = stages.under(planned.layout(run))
    expected = planned.memory(run, stage.weights)
    quantized = stages.trained.quantized
    assert expected is not None
    assert quantized is not None
    assert quantized.share.quantized >= 0.9 * quantized.share.frozen
    settings = {**chosen, "model.path": str(model), "logging.output": str(tmp_path / "out")}
    (answers,) = on_processes(PROCESSES, lambda: held(settings))
    for frozen, trained in succeeded(answers):
        assert frozen <= 0.32 * 2 * quantized.share.frozen / PROCESSES
        assert expected["weights"] == pytest.approx(frozen + trained, rel=0.01)
