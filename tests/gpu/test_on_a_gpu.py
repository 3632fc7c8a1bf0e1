"""Runs on a GPU against runs that are known to be right. `make gpu` runs them, and writes down what was proven.

`SWIFT_GPU_TESTS_ON=cpu` runs them on any machine, without what only a GPU has: that the tests themselves work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from gpu_cases import BF16, CASES, EXPORTS, PACKED, Case
from tiny_runs import conversations, write_jsonl, write_model

DRY = os.environ.get("SWIFT_GPU_TESTS_ON") == "cpu"
STEPS = 4


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_run_on_a_gpu(case: Case, place: Path) -> None:
    lacking = [
        name for name in case.needs if find_spec(name) is None and not (DRY and name in ("flash_attn", "liger_kernel"))
    ]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    if DRY and case.no_dry:
        pytest.skip(f"no dry run: {case.no_dry}")
    found, expected = trained(place, flags_of(case)), trained(place, case.against)
    assert len(found[0]) == STEPS
    assert found[0] == pytest.approx(expected[0], rel=case.tolerance)
    if case.saves:
        assert saved(found[1]) == saved(expected[1])


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["causal", "window"])
def test_attention_of_packs(kind: str) -> None:
    import torch
    from torch.nn.functional import cosine_similarity

    from swift.toolkit import packing_of, varlen_attention

    device = torch.device("cpu" if DRY else "cuda")
    torch.manual_seed(0)
    inputs = [torch.randn(1, heads, 700, 64) for heads in (8, 2, 2)]
    weights = torch.randn(1, 700, 8, 64)

    def answers(place: torch.device, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [each.to(place, dtype, copy=True).requires_grad_() for each in inputs]
        packing = packing_of([0, 1, 300, 333], 700, place)
        assert (packing.edges is None) == (place.type == "cpu")
        window = {"causal": None, "window": 50}[kind]
        output, _ = varlen_attention(torch.nn.Module(), *given, None, sliding_window=window, packing=packing)
        (output * weights.to(place, dtype)).sum().backward()
        return [each.detach().float().cpu().flatten() for each in (output, *(each.grad for each in given))]

    found, expected = answers(device, torch.bfloat16), answers(torch.device("cpu"), torch.float32)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 0.02 * other.norm()
        assert cosine_similarity(one, other, dim=0) > 0.999


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> str:
    """Have kernels used, by Triton's interpreter where there is no GPU; answers the device."""
    if not DRY:
        return "cuda"
    if find_spec("triton") is None or "TRITON_INTERPRET" not in os.environ:
        pytest.skip("needs Triton's interpreter: make gpu DRY=1, where there is Triton")
    for user in ("swift.models.logps", "swift_tuning.block_codecs"):
        monkeypatch.setattr(f"{user}.kernels_for", lambda tensor: True)
    return "cpu"


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("views", ["logps", "entropy"])
def test_views_by_kernels(views: str, kernels: str) -> None:
    import torch

    from swift.contracts import Need
    from swift.models.logits import LogitTransform
    from swift.models.logps import token_logps

    want = {Need.TOKEN_LOGPS, Need.TOKEN_CORRECT}
    want |= {Need.TOKEN_ENTROPY, Need.MEAN_LOGPS} if views == "entropy" else set()
    torch.manual_seed(0)
    hidden, weight, pull = torch.randn(37, 64), torch.randn(9001, 64) * 0.5, torch.randn(3, 37)
    targets = torch.randint(9001, (37,))
    targets[5] = (hidden @ weight.t())[5].argmax()  # one that is right

    def answers(device: str, **how: int) -> list[torch.Tensor]:
        given = [each.to(device, copy=True).requires_grad_() for each in (hidden, weight)]
        with torch.autocast(device, torch.bfloat16):
            found = token_logps(
                *given, targets.to(device), want=want, transform=LogitTransform(scale=0.7, temperature=1.3), **how
            )
        columns = (found.logps, found.entropy, found.mean_logps) if views == "entropy" else (found.logps,)
        sum((each * row.to(device)).sum() for each, row in zip(columns, pull, strict=False)).backward()
        return [each.detach().float().cpu() for each in (*columns, found.correct, *(one.grad for one in given))]

    with pytest.MonkeyPatch.context() as without:
        without.setattr("swift.models.logps.kernels_for", lambda tensor: False)
        expected = answers("cpu")
    for how in ({"keep_bytes": 0, "chunk_tokens": 16}, {}):
        for one, other in zip(answers(kernels, **how), expected, strict=True):
            assert (one - other).norm() <= 0.01 * other.norm()


@pytest.mark.full
@pytest.mark.gpu
def test_adamw_8bit_by_a_kernel(kernels: str) -> None:
    import torch

    from swift_tuning.block_codecs import AdamStep, BlockCodec, eight_bits

    codec, blocks = eight_bits(), 1001
    torch.manual_seed(0)
    grad, weight, before = (torch.randn(blocks * codec.block) * torch.rand(blocks * codec.block) ** 6 for _ in range(3))
    grad[: codec.block] = before[: codec.block] = 0.0  # a block without any scale

    def updated(device: str, update: object) -> list[torch.Tensor]:
        moments = [
            codec.encode(each.to(device), signed=signed) for each, signed in ((before, True), (before**2, False))
        ]
        given = weight.to(device, copy=True)
        update(given, grad.to(device), *moments, AdamStep(3, 1e-2, (0.9, 0.95), 1e-8, 0.1, 0.5))
        return [each.cpu() for each in (given, *(part for one in moments for part in (one.quantized, one.scales)))]

    found = updated(kernels, codec.update)
    expected = updated("cpu", lambda *given: BlockCodec.update(codec, *given))
    for one, other in zip(found, expected, strict=True):
        if one.dtype == torch.uint8:  # rounding may differ where a number lies between two codes
            assert (one != other).float().mean() < 1e-4
            assert (one.int() - other.int()).abs().max() <= 1
        else:
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])  # weights, and what is multiplied with them
def test_fp8_encode_kernels_match_reference(precision: str, kernels: str) -> None:
    import torch

    pytest.importorskip("torchao.float8")
    from swift.kernels.fp8 import encode
    from swift.models import fp8_linear

    torch.manual_seed(0)
    matrix = (torch.randn(200, 1040) * torch.rand(200, 1040) ** 4).to(getattr(torch, precision))
    for kind in (torch.float8_e4m3fn, torch.float8_e5m2):
        found = [each.cpu() for each in encode(matrix.to(kernels), kind)]
        expected = fp8_linear._by_operators(matrix, kind)
        for one, other in zip(found[:2], expected[:2], strict=True):
            if DRY:  # Triton's interpreter rounds some to another code
                assert (one.float() - other.float()).norm() < 0.2 * other.float().norm()
            else:
                assert torch.equal(one.view(torch.uint8), other.view(torch.uint8))
        assert found[2] == pytest.approx(float(expected[2]), rel=1e-6)
        if not DRY:  # nor does it know what is no number
            unknown = matrix.index_fill(0, torch.tensor([3]), torch.nan)
            assert encode(unknown.to(kernels), kind)[0].float().isnan().sum() == matrix.shape[1]
            assert fp8_linear._kernel_is_right(torch.device("cuda"), matrix.dtype, kind)


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bf16", "fp8"])
def test_weights_cast_once(kind: str) -> None:
    import torch

    from swift.models.step_copies import use_copies, weights_cast_once

    device = "cpu" if DRY else "cuda"

    def gradients(*, copies: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        layers = [torch.nn.Linear(64, 96, bias=kind == "bf16"), torch.nn.SiLU(), torch.nn.Linear(96, 64, bias=False)]
        model = torch.nn.Sequential(*layers).to(device)
        if kind == "fp8":
            ao = pytest.importorskip("torchao.float8")
            gradient = ao.CastConfig(target_dtype=torch.float8_e5m2)
            ao.convert_to_float8_training(
                model, config=ao.Float8LinearConfig(cast_config_grad_output=gradient, emulate=DRY)
            )
        if copies:
            use_copies([model])
        with weights_cast_once(model, torch.bfloat16):
            for seed in range(3):
                inputs = torch.randn(2, 48, 64, generator=torch.Generator().manual_seed(seed)).to(device)
                # On the CPU torchao's layers do not look whether autocast is on.
                with torch.autocast(device, torch.bfloat16, enabled=not (DRY and kind == "fp8")):
                    output = model(inputs.requires_grad_())
                (output.float() ** 2).mean().backward()
        found = [parameter.grad for parameter in model.parameters()]
        return [each.cpu() for each in found if each is not None]

    found, expected = gradients(copies=True), gradients(copies=False)
    assert len(found) == (3 if kind == "bf16" else 2)
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() < 0.01 * other.norm()


WITHOUT_WAITING = """
import sys, torch
from swift.backends.torch import state
real, calls = state.accumulate, []
def accumulate(*given, **named):
    calls.append(None)
    if len(calls) == 1 or not torch.cuda.is_available():  # kernels are loaded and chosen in the first step
        return real(*given, **named)
    torch.cuda.set_sync_debug_mode("error")
    try:
        return real(*given, **named)
    finally:
        torch.cuda.set_sync_debug_mode("default")
state.accumulate = accumulate
from swift.cli.main import main
main()
"""


@pytest.mark.full
@pytest.mark.gpu
def test_micro_batches_do_not_wait(place: Path) -> None:
    words = (*BF16, *PACKED, "--attn_impl", "sdpa", "--gradient_accumulation_steps", "2", "--train_type", "full")
    assert len(trained(place, words, start=("-c", WITHOUT_WAITING))[0]) == STEPS


@pytest.mark.full
@pytest.mark.gpu
@pytest.mark.parametrize("scheme", EXPORTS)
def test_export_generates_on_gpu(scheme: str, place: Path, tmp_path: Path) -> None:
    if find_spec("vllm") is None:
        pytest.skip("needs vllm")
    run = trained(place, ("--train_type", "lora"), model="wide")[1]
    out = tmp_path / scheme
    words = ["export", str(run), "--to", "vllm", "--quant", scheme, "--out", str(out), "--verify", "all"]
    swift([*words, "--quant_tolerance", "2.0"], place)
    assert "vllm" in json.dumps(json.loads((out / "verification.json").read_text())).lower()


def flags_of(case: Case) -> tuple[str, ...]:
    """Return a case's flags; in a dry run, without those that only a GPU has."""
    if not DRY or not case.only_gpu:
        return case.flags
    flags = list(case.flags)
    at = flags.index(case.only_gpu[0])
    return (*flags[:at], *flags[at + len(case.only_gpu) :])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model whose sides fit FP8, and chats."""
    folder = tmp_path_factory.mktemp("gpu")
    write_model(folder / "tiny", intermediate_size=128, num_attention_heads=4, num_key_value_heads=4, head_dim=32)
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "initializer_range": 0.2}
    write_model(folder / "wide", num_attention_heads=4, num_key_value_heads=4, **wide)  # as wide as kernels want it
    write_jsonl(folder / "chats.jsonl", conversations(32))
    return folder


@cache
def trained(
    place: Path, flags: tuple[str, ...], model: str = "tiny", start: tuple[str, ...] = ("-m", "swift")
) -> tuple[list[float], Path]:
    """Train in a new interpreter, and return the losses and the run's folder; a run is made once."""
    output = place / f"run-{abs(hash(flags))}"
    device = [] if "--backend.device" in flags else ["--backend.device", "cpu" if DRY else "cuda"]
    words = [
        "sft", "--model", model, "--dataset", "chats.jsonl", "--learning_rate", "1e-3", "--logging_steps", "1",
        "--max_steps", str(STEPS), "--per_device_train_batch_size", "4", "--report_to", "jsonl", "--seed", "0",
        "--output_dir", str(output), "--logging.run_name", "run", *flags, *device,
    ]  # fmt: skip
    swift(words, place, start)
    folder = output / model / "run"
    lines = map(json.loads, (folder / "logging.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if "loss" in line], folder


def swift(words: list[str], folder: Path, start: tuple[str, ...] = ("-m", "swift")) -> None:
    """Run a command to its end."""
    done = subprocess.run(
        [sys.executable, *start, *words], cwd=folder, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def saved(run: Path) -> dict[str, bytes]:
    """Return the bytes of the tensors of all checkpoints."""
    files = sorted(run.glob("checkpoint-*/**/*.safetensors"))
    assert files
    return {str(path.relative_to(run)): path.read_bytes() for path in files}
