"""Megatron-core and mcore-bridge on the CPU layer: whole models, and what is left of the process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

WHOLE = """
import importlib.util, os, subprocess, sys, tempfile, warnings

import peft
from swift_backend_megatron import cpu
from swift_backend_megatron.cpu.cuda_means_cpu import cuda_on_cpu

compiler = __import__("torch").compile
with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    cpu.prepare()
cpu.prepare()
import torch, torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

assert torch.compile is compiler and "TORCH_COMPILE_DISABLE" not in os.environ
assert "triton" not in sys.modules
assert importlib.util.find_spec("transformer_engine") is not None
import accelerate
from accelerate.utils import is_transformer_engine_available
assert not is_transformer_engine_available()
import transformer_engine.pytorch as te
for name in ("Float8BlockQuantizer", "Nothing"):
    try:
        getattr(te, name)
    except AttributeError:
        continue
    raise AssertionError(name)
try:
    import transformer_engine.pytorch.permutation
except ImportError:
    pass
else:
    raise AssertionError("permutation")

from peft import LoraConfig, get_peft_model
SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, tie_word_embeddings=False, max_position_embeddings=64)
tokens = torch.randint(96, (2, 16), generator=torch.Generator().manual_seed(0))
adapted = get_peft_model(Qwen3ForCausalLM(Qwen3Config(**SIZES)), LoraConfig(target_modules=["q_proj", "down_proj"]))
assert type(adapted.base_model.model.model.layers[0].self_attn.q_proj).__name__ == "Linear"
adapted(tokens, labels=tokens).loss.backward()

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
with cuda_on_cpu():
    from mcore_bridge import ModelConfig, get_mcore_model, hf_to_mcore_config
    from megatron.core import parallel_state, tensor_parallel

    parallel_state.initialize_model_parallel()
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    moe = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, norm_topk_prob=True)
    sparse = Qwen3MoeConfig(**SIZES, **moe)
    for kind, config in ((Qwen3ForCausalLM, Qwen3Config(**SIZES)), (Qwen3MoeForCausalLM, sparse)):
        torch.manual_seed(0)
        reference = kind(config).eval()
        expected = reference(tokens).logits
        with tempfile.TemporaryDirectory() as folder:
            reference.save_pretrained(folder)
            megatron = ModelConfig(
                params_dtype=torch.float32, perform_initialization=True, gradient_accumulation_fusion=False,
                masked_softmax_fusion=False, bias_activation_fusion=False, bias_dropout_fusion=False,
                apply_rope_fusion=False, moe_permute_fusion=False, moe_router_dtype="fp32",
                **hf_to_mcore_config(config))
            model, = get_mcore_model(megatron)
            megatron.bridge.load_weights([model], folder)
        positions = torch.arange(16).expand(2, -1)
        ours = model(tokens, positions, None)
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)
        model(tokens[:, :2], positions[:, :2], None).sum().backward()
        missing = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert not missing, missing
        again = Qwen3ForCausalLM(Qwen3Config(**SIZES))
        again(tokens)
try:
    with cuda_on_cpu():
        te.Linear(4, 4); te.fp8_autocast(enabled=True)
except NotImplementedError as problem:
    assert "fp8" in str(problem)
else:
    raise AssertionError("fp8")
dist.destroy_process_group()
print("all is well")
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("mcore_bridge") is None, reason="needs megatron-core and mcore-bridge")
def test_bridge_models_match_transformers(tmp_path: Path) -> None:
    """Models of the bridge return what those of transformers do, and other libraries still work."""
    (tmp_path / "whole.py").write_text(WHOLE)
    result = run(f"import runpy; runpy.run_path({str(tmp_path / 'whole.py')!r}, run_name='__main__')")
    assert result.returncode == 0, result.stderr
    assert "all is well" in result.stdout
    assert "[INFO:mcore_bridge]" not in result.stderr


@pytest.mark.full
def test_what_was_imported_too_early_is_named() -> None:
    result = run(
        "import sys, types; sys.modules['megatron.core'] = types.ModuleType('megatron.core')\n"
        "from swift_backend_megatron import cpu; cpu.prepare()"
    )
    assert "imported before swift_backend_megatron.cpu.prepare(): megatron.core" in result.stderr
