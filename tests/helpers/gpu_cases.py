"""Cases of what is to be proven on a GPU, as data: read by the tests, and by the page that says what was proven where.

Each case is a run that is compared with another one: the losses of its steps, or what it saves. Torch is not imported.
"""

from __future__ import annotations

from dataclasses import dataclass

BF16 = ("--torch_dtype", "bfloat16")
FULL = ("--train_type", "full")
FP32 = (*FULL, "--torch_dtype", "float32")
SAVED = (*FP32, "--train.deterministic", "true", "--save_steps", "2", "--save_total_limit", "9")
MASKED = "tests/core/models/test_attention.py (attention with a mask instead)"
INTERPRETED = "by Triton's interpreter, where there is Triton: `make gpu DRY=1`"
PACKED = ("--packing", "true", "--max_length", "256")


@dataclass(frozen=True)
class Case:
    """One comparison of two runs."""

    name: str
    proves: str
    flags: tuple[str, ...]
    against: tuple[str, ...]
    cpu: str
    """Where the same is proven on the CPU, or why it cannot be: a test's file, or words."""
    tolerance: float = 0.03
    """Of losses, relative."""
    needs: tuple[str, ...] = ()
    """Packages."""
    only_gpu: tuple[str, ...] = ()
    """Flags that a dry run on the CPU leaves out of `flags`."""
    no_dry: str = ""
    """Why there is no dry run; empty where there is one."""
    saves: bool = False
    """Whether what the runs save is compared too, bit for bit."""


CASES = (
    Case(
        "fp32",
        "plain training on a GPU against the CPU",
        FP32,
        (*FP32, "--backend.device", "cpu"),
        "tests/core/train/test_trajectory.py",
        tolerance=1e-4,
    ),
    Case("bf16", "bfloat16 against float32", (*FULL, *BF16), FP32, "tests/core/train/test_trajectory.py"),
    Case(
        "fp16",
        "float16 with a scaled loss against float32",
        (*FULL, "--torch_dtype", "float16"),
        FP32,
        "tests/core/train/test_trajectory.py",
    ),
    Case(
        "compile",
        "compiled blocks against the same without",
        (*FULL, *BF16, "--train.compile", "true"),
        (*FULL, *BF16),
        "tests/testing/test_torch_conformance.py",
        only_gpu=("--train.compile", "true"),
    ),
    Case(
        "packed",
        "torch's FlashAttention on samples that lie end to end against float32 on the CPU, one by one",
        (*FULL, *BF16, *PACKED, "--attn_impl", "sdpa"),
        (*FP32, *PACKED, "--backend.device", "cpu"),
        "tests/core/models/test_attention.py (the call, and attention with a mask instead)",
    ),
    Case(
        "packed_compiled",
        "the same, in compiled blocks",
        (*FULL, *BF16, *PACKED, "--attn_impl", "sdpa", "--train.compile", "true"),
        (*FULL, *BF16, *PACKED, "--attn_impl", "sdpa"),
        "tests/core/models/test_attention.py (compiled once for packs of any samples)",
        only_gpu=("--train.compile", "true"),
    ),
    Case(
        "flash",
        "flash-attn on samples that lie end to end against SDPA, one by one",
        (*FULL, *BF16, *PACKED, "--attn_impl", "flash_attention_2"),
        (*FULL, *BF16, *PACKED, "--attn_impl", "sdpa"),
        "tests/core/models/test_attention.py (the choice, and SDPA's side)",
        needs=("flash_attn",),
        only_gpu=("--attn_impl", "flash_attention_2"),
    ),
    Case(
        "liger",
        "Liger's kernels against transformers' own",
        (*FULL, *BF16, "--use_liger_kernel", "true"),
        (*FULL, *BF16),
        "not at all: its kernels are Triton's",
        needs=("liger_kernel",),
        only_gpu=("--use_liger_kernel", "true"),
    ),
    Case(
        "fp8",
        "FP8 by torchao against bfloat16",
        (*FULL, *BF16, "--fp8", "hybrid"),
        (*FULL, *BF16),
        "tests/core/models/test_fp8.py (emulated)",
        needs=("torchao",),
        tolerance=0.05,
        only_gpu=("--fp8", "hybrid"),
    ),
    Case(
        "fp8_of_the_cpu",
        "FP8's kernels against its emulation",
        (*FULL, *BF16, "--fp8", "hybrid"),
        (*FULL, *BF16, "--fp8", "hybrid", "--backend.fp8_emulated", "true"),
        "tests/core/models/test_fp8.py (emulated)",
        needs=("torchao",),
        no_dry="the kernels are what is compared",
    ),
    Case(
        "adamw_8bit",
        "AdamW in 8 bits by bitsandbytes against AdamW",
        (*FP32, "--optim", "adamw_8bit"),
        FP32,
        "tests/core/optim/test_build.py",
        needs=("bitsandbytes",),
    ),
    Case(
        "qlora",
        "LoRA on weights of 4 bits, on a GPU against the CPU",
        ("--train_type", "qlora", "--torch_dtype", "float32"),
        ("--train_type", "qlora", "--torch_dtype", "float32", "--backend.device", "cpu"),
        "tests/core/models/test_tuners.py",
        needs=("bitsandbytes",),
    ),
    Case(
        "nccl",
        "FSDP2 over NCCL, one process, against torch",
        (*FULL, *BF16, "--backend", "fsdp", "--nproc", "1"),
        (*FULL, *BF16),
        "tests/backend_fsdp/test_fsdp_conformance.py (over gloo)",
        needs=("swift_backend_fsdp",),
    ),
    Case(
        "offload",
        "weights and optimizer in the CPU's memory against FSDP2 without",
        (*FULL, *BF16, "--backend", "fsdp", "--backend.offload", "true"),
        (*FULL, *BF16, "--backend", "fsdp"),
        "tests/backend_fsdp/test_fsdp_conformance.py",
        needs=("swift_backend_fsdp",),
    ),
    Case(
        "saving",
        "saving in the background from pinned memory against saving at once",
        (*SAVED, "--checkpoint.asynchronous", "true"),
        SAVED,
        "tests/core/train/test_saving.py",
        tolerance=0.0,
        saves=True,
    ),
    Case(
        "deepspeed",
        "DeepSpeed's fused operators, ZeRO 2, against torch",
        (*FULL, *BF16, "--backend", "deepspeed"),
        (*FULL, *BF16),
        "tests/backend_deepspeed/test_deepspeed_conformance.py",
        needs=("swift_backend_deepspeed",),
    ),
    Case(
        "megatron",
        "Megatron on Transformer Engine against torch",
        (*FULL, *BF16, "--backend", "megatron"),
        (*FULL, *BF16),
        "tests/backend_megatron/test_megatron_conformance.py (layers in plain torch)",
        needs=("swift_backend_megatron",),
    ),
    Case(
        "megatron_fp8",
        "FP8 by Transformer Engine against bfloat16",
        (*FULL, *BF16, "--backend", "megatron", "--fp8", "hybrid"),
        (*FULL, *BF16, "--backend", "megatron"),
        "tests/backend_megatron/test_megatron_fp8.py (configuration, padding and refusals alone)",
        needs=("swift_backend_megatron", "transformer_engine"),
        tolerance=0.05,
        no_dry="Transformer Engine has no CPU",
    ),
)
KERNELS = {
    "attention_of_packs[causal]": ("torch's FlashAttention on packs, values and gradients, against float32", MASKED),
    "attention_of_packs[window]": ("the same with a sliding window", MASKED),
    "views_by_kernels[logps]": ("kernels of the loss, values and gradients, against torch's operators", INTERPRETED),
    "views_by_kernels[entropy]": ("the same with entropy and mean", INTERPRETED),
    "micro_batches_do_not_wait": (
        "micro-batches of a step are given to the GPU without waiting for it",
        "tests/core/data/test_batches.py (values known on the CPU are not read back)",
    ),
    "fp8_encode_kernels_match_reference[float32]": (
        "weights in eight bits, along and across, against torch's operators",
        INTERPRETED,
    ),
    "fp8_encode_kernels_match_reference[bfloat16]": (
        "inputs and gradients in eight bits, along and across, likewise",
        INTERPRETED,
    ),
    "weights_cast_once[bf16]": (
        "gradients that products add up in fp32, and weights that are cast once a step, against autocast",
        "tests/core/models/test_step_copies.py (added up by torch's operators)",
    ),
    "weights_cast_once[fp8]": (
        "the same in FP8, against torchao's layers",
        "tests/core/models/test_step_copies.py (emulated)",
    ),
    "adamw_8bit_by_a_kernel": ("the update of AdamW in 8 bits against its definition", INTERPRETED),
}
"""What each test of a kernel proves, and where on the CPU."""
EXPORTS = {
    "gptq": "4 bits by GPTQ, read by vLLM's kernels",
    "awq": "4 bits by AWQ, read by vLLM's kernels",
}
"""Schemes whose exports vLLM loads and compares with the training state."""
EXPORTS_ON_CPU = "tests/export_vllm (vLLM's kernels for the CPU)"


def everything() -> dict[str, tuple[str, str]]:
    """Return what each test proves, and where on the CPU, by the test's name as pytest says it."""
    runs = {f"test_a_run_on_a_gpu[{case.name}]": (case.proves, case.cpu) for case in CASES}
    kernels = {f"test_{name}": facts for name, facts in KERNELS.items()}
    exports = {f"test_export_generates_on_gpu[{name}]": (text, EXPORTS_ON_CPU) for name, text in EXPORTS.items()}
    return runs | kernels | exports
