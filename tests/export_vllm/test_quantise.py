"""Every quantisation: what is in the files, what it costs, and what the real vLLM makes of it."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import decoded
from imported import interpreter
from safetensors.torch import load_file, save_file
from trained_demo import Trained
from transformers import AutoModelForCausalLM, AutoTokenizer

from swift.config.sections import ExportOptions
from swift.errors import DataError, ExportError, UsageError
from swift.export.run import export_checkpoint
from swift_demo.task import question
from swift_export_vllm.quantise.schemes import SCHEMES

torch.set_num_threads(1)
QUANTISATIONS = tuple(SCHEMES)
IN_VLLM = [name for name, scheme in SCHEMES.items() if scheme.not_in_vllm is None]
_OF_8_BITS = ("w8a8", "fp8")
WITHOUT_KERNELS = "vLLM's build for processors without AVX-512 has no kernels for weights of 4 bits"
_FEW_KERNELS = "avx512f" not in Path("/proc/cpuinfo").read_text()
HERE = [name for name in IN_VLLM if name in _OF_8_BITS or not _FEW_KERNELS]
"""Schemes that vLLM can be asked about on this processor."""


def quantise(path: Path, scheme: str, out: Path, said: list[str] | None = None, **options: Any) -> Path:
    settings = {"quant": scheme, "verify": "transformers", "out": out, **options}
    say = (said if said is not None else []).append
    return export_checkpoint(path, to="hf", options=ExportOptions(**settings), say=say)


def logits(folder: Path, weights: Mapping[str, torch.Tensor], tokens: list[int]) -> torch.Tensor:
    """What the model says with these weights."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}  # tied
    with torch.no_grad():
        output: torch.Tensor = model(input_ids=torch.tensor([tokens])).logits[0]
    return output


@pytest.fixture(scope="module")
def folders(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("quantised")
    accepted = {"bnb": 1.0}  # rounding to the nearest costs this small model more than is accepted by itself
    made = {"gptq": quantise(trained.run, "gptq", place / "gptq")}  # the others spare the export in full precision
    for scheme in QUANTISATIONS:
        if scheme not in made:
            options = {"quant_tolerance": accepted.get(scheme), "calibration_dataset": (str(trained.data),)}
            made[scheme] = quantise(trained.exported, scheme, place / scheme, **options)
    return made


@pytest.fixture(scope="module")
def questions(trained: Trained) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(trained.exported)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question(number)}], add_generation_prompt=True, return_dict=False
        )
        for number in (438, 705, 912)
    ]


@pytest.fixture(scope="module")
def told_by_vllm(
    folders: dict[str, Path], questions: list[list[int]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    place = tmp_path_factory.mktemp("asked")
    (place / "prompts.json").write_text(json.dumps(questions))
    command = [str(interpreter()), str(Path(__file__).with_name("ask_vllm.py")), "answers.json", "prompts.json"]
    done = subprocess.run(
        [*command, *(str(folders[scheme]) for scheme in HERE)],
        cwd=place, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads((place / "answers.json").read_text())
    return told


@pytest.mark.full
@pytest.mark.parametrize("scheme", QUANTISATIONS)
def test_quantization_error_is_measured_on_saved_files(
    scheme: str, folders: dict[str, Path], trained: Trained, questions: list[list[int]]
) -> None:
    folder = folders[scheme]
    report = json.loads((folder / "quantisation.json").read_text())
    assert report["bytes"]["after"] == sum(
        tensor.nbytes for file in folder.glob("*.safetensors") for tensor in load_file(file).values()
    )
    assert report["bytes"]["after"] < (0.3 if scheme in _OF_8_BITS else 0.2) * report["bytes"]["before"]
    assert report["loss"]["after"] - report["loss"]["before"] == pytest.approx(report["loss"]["rise"])
    assert report["loss"]["rise"] < report["loss"]["tolerance"]
    assert report["greedy_agreement_percent"] > 95
    whole = {name: tensor.float() for name, tensor in load_file(trained.exported / "model.safetensors").items()}
    weights = decoded(folder)
    assert weights.keys() == whole.keys()
    bits = 8 if scheme in _OF_8_BITS else 4
    if scheme != "awq":  # which moves factors from one matrix to the next
        for name, weight in weights.items():
            off = (weight - whole[name]).norm() / whole[name].norm()
            assert off < {8: 0.04, 4: 0.25}[bits], name
            quantised = name.endswith("proj.weight")
            assert (off > 1e-4) == quantised or not quantised, name
    for tokens in questions:
        before, after = (logits(trained.exported, each, tokens).log_softmax(-1)[-1] for each in (whole, weights))
        assert int(before.argmax()) == int(after.argmax())


@pytest.mark.full
@pytest.mark.parametrize(
    "scheme",
    [pytest.param(scheme, marks=pytest.mark.skipif(scheme not in HERE, reason=WITHOUT_KERNELS)) for scheme in IN_VLLM],
)
def test_vllm_matches_decoded_weights(
    scheme: str, told_by_vllm: dict[str, Any], folders: dict[str, Path], trained: Trained, questions: list[list[int]]
) -> None:
    weights = decoded(folders[scheme])
    for tokens, told in zip(questions, told_by_vllm[scheme], strict=True):
        said = logits(trained.exported, weights, [*tokens, *told["tokens"]]).log_softmax(-1)[len(tokens) - 1 : -1]
        assert said.argmax(-1).tolist() == told["tokens"]
        expected = said.gather(1, torch.tensor(told["tokens"])[:, None])[:, 0]
        apart = (expected - torch.tensor(told["logps"])).abs()
        assert float(apart.mean()) < 0.05, scheme


@pytest.mark.full
def test_quantized_model_still_generates_correctly(told_by_vllm: dict[str, Any], trained: Trained) -> None:
    tokenizer = AutoTokenizer.from_pretrained(trained.exported)
    right = ["four three eight", "seven zero five", "nine one two"]
    for scheme in HERE:
        texts = [tokenizer.decode(each["tokens"], skip_special_tokens=True) for each in told_by_vllm[scheme]]
        assert sum(text == answer for text, answer in zip(texts, right, strict=True)) >= 2, (scheme, texts)


@pytest.mark.full
def test_outliers_in_inputs_do_not_fail_verification(trained: Trained, tmp_path: Path) -> None:
    """One large input of each layer, as in pretrained models, makes the rounding of all others coarse.

    The same model with it: a norm multiplies one channel by 3000, and the layers after it divide.
    """
    shutil.copytree(trained.exported, tmp_path / "outliers")
    file = tmp_path / "outliers" / "model.safetensors"
    weights = load_file(file)
    for name, weight in weights.items():
        if name.endswith(("input_layernorm.weight", "post_attention_layernorm.weight")):
            weight[0] *= 3000
        elif name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")):
            weight[:, 0] /= 3000
    save_file(weights, file, metadata={"format": "pt"})
    options = {"quant_tolerance": 20.0, "calibration_dataset": (str(trained.data),)}
    report = json.loads((quantise(file.parent, "w8a8", tmp_path / "w8a8", **options) / "verification.json").read_text())
    found = report["transformers"]["log_probabilities"]
    assert 0.1 < found["mean_difference"] < found["tolerance"]


@pytest.mark.full
def test_error_feedback_costs_less_than_rounding(trained: Trained, folders: dict[str, Path]) -> None:
    """The same groups rounded to the nearest, in plain torch, on rows of the task."""
    whole = {name: tensor.float() for name, tensor in load_file(trained.exported / "model.safetensors").items()}
    tokenizer = AutoTokenizer.from_pretrained(trained.exported)
    rows = [json.loads(line)["messages"] for line in trained.data.read_text().splitlines()[:12]]
    asked = [tokenizer.apply_chat_template(row, return_dict=False) for row in rows]
    size = json.loads((folders["w4a16"] / "quantisation.json").read_text())["group_size"]

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        groups = weight.reshape(len(weight), -1, size)
        scale = groups.abs().amax(-1, keepdim=True) / 7
        return ((groups / scale).round().clamp(-8, 7) * scale).reshape(weight.shape)

    nearest = {name: rounded(each) if name.endswith("proj.weight") else each for name, each in whole.items()}
    before = [logits(trained.exported, whole, tokens) for tokens in asked]

    def apart(weights: Mapping[str, torch.Tensor]) -> float:
        """Squared change of all logits, over all rows."""
        after = [logits(trained.exported, weights, tokens) for tokens in asked]
        return sum(float(((now - was) ** 2).mean()) for now, was in zip(after, before, strict=True))

    for scheme in ("w4a16", "gptq"):
        assert apart(decoded(folders[scheme])) < apart(nearest), scheme


def test_scaling_inputs_that_matter_costs_less_than_rounding() -> None:
    from swift_export_vllm.quantise.rounding import asymmetric_grid, input_scales

    torch.manual_seed(0)
    strength = torch.ones(128)
    strength[::32] = 30.0  # a few inputs are much larger than the others, as in trained models
    inputs = torch.randn(500, 128) * strength
    weight = torch.randn(32, 128)
    moments = inputs.T @ inputs / len(inputs)
    settings: dict[str, Any] = {"bits": 4, "group": 32, "dtype": torch.float32}
    scales = input_scales([weight], moments, inputs.abs().mean(0), **settings)

    def lost(factors: torch.Tensor) -> float:
        scaled = weight * factors
        grid = asymmetric_grid(scaled, importance=torch.diagonal(moments) / factors**2, **settings)
        return float((inputs @ (grid.nearest(scaled) / factors - weight).T).norm())

    assert lost(scales) < 0.8 * lost(torch.ones(128))


@pytest.mark.full
@pytest.mark.parametrize("scheme", QUANTISATIONS)
def test_transformers_loads_quantized_model_and_is_measured(scheme: str, folders: dict[str, Path]) -> None:
    told = json.loads((folders[scheme] / "verification.json").read_text())["transformers"]
    if scheme in ("gptq", "awq"):
        assert not told["compared"]
        assert "pip install" in told["reason"]
        return
    off = told["log_probabilities"]["mean_difference"]
    # Inputs of eight bits are rounded to 255 steps there and to 254 in vLLM; NF4 is computed in bfloat16.
    assert off < (1e-5 if scheme in ("w4a16", "fp8") else 0.05)


@pytest.mark.full
def test_quantized_model_misread_by_transformers_is_refused(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quantized model that transformers reads otherwise is not exported."""
    from swift.export import quantised

    honest = quantised.open_hooks

    class Careless:
        def __init__(self, exporter: Any) -> None:
            self.honest = honest(exporter=exporter)
            self.plugins = self.honest.plugins

        def swift_quantize(self, request: Any) -> Any:
            found = self.honest.swift_quantize(request)
            file = request.destination / "model.safetensors"
            tensors = load_file(file)
            tensors["model.layers.1.mlp.down_proj.weight_scale"] *= 2
            save_file(tensors, file, {"format": "pt"})
            return found

    monkeypatch.setattr(quantised, "open_hooks", Careless)
    with pytest.raises(ExportError, match=r"log-probabilities by transformers differ by .* on average"):
        quantise(trained.exported, "fp8", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_little_data_and_quantized_models_are_refused(
    trained: Trained, folders: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="training data is unknown") as caught:
        quantise(trained.exported, "w4a16", tmp_path / "out")
    assert "--calibration-dataset" in (caught.value.hint or "")
    with pytest.raises(UsageError, match=r"is already quantised \(compressed-tensors\)"):
        quantise(folders["w8a8"], "gptq", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_model_that_loses_too_much_is_not_exported(trained: Trained, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="raises the loss per token") as caught:
        quantise(trained.exported, "bnb", tmp_path / "out", quant_tolerance=1e-9)
    assert "--quant-tolerance" in (caught.value.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_adapters_and_bitsandbytes_are_refused_before_reading(tmp_path: Path) -> None:
    """Adapters and vLLM with bitsandbytes are refused before anything is read."""
    with pytest.raises(UsageError, match="An adapter alone cannot be quantised"):
        export_checkpoint(tmp_path, to="adapter", options=ExportOptions(quant="awq"), say=lambda _: None)
    with pytest.raises(UsageError, match="no bitsandbytes"):
        export_checkpoint(tmp_path, to="vllm", options=ExportOptions(quant="bnb"), say=lambda _: None)


def test_grids_and_feedback_against_their_definitions() -> None:
    """Error feedback must lose less than rounding, measured by the inputs that it was calibrated on."""
    from swift_export_vllm.quantise.rounding import symmetric_grid, with_feedback

    torch.manual_seed(0)
    mixing = torch.randn(64, 64)
    inputs = torch.randn(400, 64) @ mixing
    weight = torch.randn(32, 64)
    moments = inputs.T @ inputs / len(inputs)
    settings: dict[str, Any] = {"bits": 4, "group": 32, "dtype": torch.float32}
    integers, grid = with_feedback(weight, moments, search=True, **settings)
    assert integers.abs().max() <= 8
    nearest = symmetric_grid(weight, importance=torch.diagonal(moments), search=False, **settings).nearest(weight)

    def lost(rounded: torch.Tensor) -> float:
        return float((inputs @ (rounded - weight).T).norm())

    assert lost(grid.values(integers)) < 0.7 * lost(nearest)
    assert math.isfinite(lost(nearest))
