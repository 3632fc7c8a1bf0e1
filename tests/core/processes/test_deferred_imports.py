"""A process that trains alone does without what torch and transformers only mention, and loses nothing by it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import conversations, run_training, write_jsonl

from swift import deferred
from swift.config.parse import config_from_mapping

HEAVY = (
    "torch._dynamo.convert_frame",
    "torch._inductor",
    "torch.distributed.tensor",
    "torch.distributed.checkpoint",
    "torchao",
    "bitsandbytes",
    "deepspeed",
    "vllm",
)
"""What nothing of a plain run uses; of the compiler a module, since the package itself has a stand-in."""

PROGRAM = """
import gc, json, os, sys
import swift.cli.main as cli
try:
    sys.argv = ["swift", *sys.argv[1:]]
    cli.main()
except SystemExit as done:
    assert not done.code, done.code
imported = sorted(sys.modules)
frozen, collects = gc.get_freeze_count(), gc.isenabled()
scans = sys.modules["transformers.utils.import_utils"].create_import_structure_from_path.cache_info()

import torch
from torch import nn

counted = []

@torch._dynamo.allow_in_graph
def opaque(value):
    counted.append(1)
    return value + 1

torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
wrapped = nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
wrapped(torch.ones(1, 2)).sum().backward()
reduced = wrapped.module.bias.grad.tolist()
torch.distributed.destroy_process_group()

deferred = "torch._dynamo.eval_frame" not in sys.modules
from torch._dynamo.eval_frame import OptimizedModule  # the real package comes with it

real = sys.modules["torch._dynamo"]
graphs = []

def backend(module, _):
    graphs.append([node.target for node in module.graph.nodes])
    return module.forward

compiled = torch.compile(lambda value: opaque(value) * 2, backend=backend)
answer = compiled(torch.ones(2)).tolist()

import transformers.models
from transformers import masking_utils

sizes = dict(batch_size=2, q_length=5, kv_length=5, q_offset=0, kv_offset=0, allow_is_causal_skip=False)
masks = [masking_utils.sdpa_mask(use_vmap=each, **sizes) for each in (False, True)]
print("FOUND " + json.dumps({
    "imported": imported,
    "deferred": deferred,
    "reduced": reduced,
    "modes": [torch._dynamo.utils.get_optimize_ddp_mode(), torch._dynamo.trace_rules.clear_lru_cache()],
    "one package": real.eval_frame.OptimizedModule is OptimizedModule and torch._dynamo is real,
    "compiled module": isinstance(torch.compile(nn.Linear(2, 2)), OptimizedModule),
    "in graph": any(target is opaque for targets in graphs for target in targets),
    "answer": answer,
    "same masks": torch.equal(*masks),
    "folders looked into": scans.misses,
    "folders of models": sum("__pycache__" not in folder for folder, *_ in os.walk(transformers.models.__path__[0])),
    "frozen": frozen,
    "collects": collects,
}))
"""


@pytest.fixture(scope="module")
def alone(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[float], Path]:
    """What a process found that ran `swift sft` and compiled something afterwards, its losses, and its data."""
    folder = tmp_path_factory.mktemp("alone")
    data = write_jsonl(folder / "chats.jsonl", conversations(16))
    arguments = [
        "sft", "--model", str(tiny), "--dataset", str(data), "--backend.device", "cpu", "--tuner.kind", "lora",
        "--tuner.dropout", "0.0", "--optim.lr", "1e-3", "--optim.warmup_steps", "2", "--data.shuffle", "false",
        "--data.workers", "1", "--train.micro_batch", "4", "--train.max_steps", "3", "--logging.steps", "1",
        "--logging.run_name", "run", "--logging.report_to", "jsonl", "--logging.output", str(folder),
        "--data.cache", str(folder / "cache"),
    ]  # fmt: skip
    done = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.split("FOUND ")[1])
    lines = map(json.loads, (folder / tiny.name / "run" / "logging.jsonl").read_text().splitlines())
    return found, [line["loss"] for line in lines if "loss" in line and "step" in line], data


@pytest.mark.full
def test_single_rank_run_imports_no_compiler_or_sharding(alone: Any) -> None:
    """A run on one process imports neither compiler nor sharding nor quantization."""
    imported = set(alone[0]["imported"])
    assert "transformers.modeling_utils" in imported
    assert [name for name in HEAVY if name in imported] == []


@pytest.mark.full
def test_model_folders_are_scanned_once(alone: Any) -> None:
    """Folders of models are looked into once and imports are no garbage."""
    found = alone[0]
    assert found["folders looked into"] < 1.1 * found["folders of models"]  # and into a few others
    assert found["collects"]
    assert found["frozen"] > 100_000


@pytest.mark.full
def test_its_losses_are_those_of_a_process_that_defers_nothing(alone: Any, tiny: Path, tmp_path: Path) -> None:
    changes = {"tuner.kind": "lora", "tuner.dropout": 0.0}
    changes |= {"train.max_steps": 3, "data.train": [str(alone[2])], "data.cache": str(tmp_path / "cache")}
    assert alone[1] == run_training(tiny, tmp_path, None, changes).losses


@pytest.mark.full
def test_the_compiler_is_whole_as_soon_as_it_is_used(alone: Any) -> None:
    found = alone[0]
    assert found["deferred"], "joining a group of processes, or DDP, has imported it"
    assert found["reduced"] == [1.0, 1.0]
    assert found["modes"] == ["ddp_optimizer", None], "the real ones answer otherwise than was said for them"
    assert found["one package"]
    assert found["compiled module"]
    assert found["in graph"], "what was marked before the compiler was there is not marked"
    assert found["answer"] == [4.0, 4.0]
    assert found["same masks"]


def test_a_process_that_is_not_swifts_own_is_left_as_it_is(tmp_path: Path) -> None:
    before = sys.modules.get(deferred.COMPILER), list(sys.meta_path)
    config = config_from_mapping({"model.path": "m", "data.train": ["d"], "logging.output": str(tmp_path)}).config
    deferred.defer_heavy_imports(config)
    assert (sys.modules.get(deferred.COMPILER), list(sys.meta_path)) == before
    assert torch.distributed.is_available()


SHARDING = """
import sys
import torch._dynamo
from swift import deferred
from swift.config.parse import config_from_mapping

deferred.has_own_process()
needed = {"model.path": "m", "data.train": ["d"], "logging.output": ".", "train.compile": True}
deferred.defer_heavy_imports(config_from_mapping(needed).config)
print("transformers.modeling_utils" in sys.modules, "torchao" in sys.modules)

from transformers.quantizers.quantizer_torchao import flatten_tensor_state_dict

tensors, about = flatten_tensor_state_dict({"bias": torch.ones(2)})
print(tensors["bias"].tolist(), "bias" in about, "torchao" in sys.modules)
"""


@pytest.mark.full
def test_torchao_is_imported_only_when_called() -> None:
    """A process that compiles or shards does without torchao until it is called."""
    done = subprocess.run([sys.executable, "-c", SHARDING], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["True False", "[1.0, 1.0] True True"], done.stdout + done.stderr
