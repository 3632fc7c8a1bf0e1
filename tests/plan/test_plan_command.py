"""`swift plan` as people type it: what fits, what to type, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import typed
from tiny_runs import write_model

from swift_plan import ledger
from swift_plan.ledger import LedgerEntry

FP8 = ["--backend.fp8", "hybrid", "--torch_dtype", "bfloat16"]
LLAMA = ["plan", "llama-3.1-8b", "--gpus", "8xH100", "--train_type", "full", "--max_length", "8192"]


def _json(words: list[str], folder: Path) -> dict[str, Any]:
    ended = typed([*words, "--json"], folder)
    assert ended.code in (0, 3), ended.output
    return json.loads(ended.output)  # type: ignore[no-any-return]


def test_plan_is_five_lines(tmp_path: Path) -> None:
    """The best plan, the next, and a command that runs as it is printed; the table only on request."""
    ended = typed(LLAMA, tmp_path)
    heading, best, behind, run, basis = ended.output.splitlines()
    assert heading.startswith("meta-llama/Llama-3.1-8B: 8.03 billion parameters; 8xH100; ")
    assert re.match(r"Fastest: .* GiB, .* per step, .* tokens/day$", best)
    assert "Plan 2 (" in behind
    assert " --dataset data.jsonl " in run
    assert "--top 5 lists plans" in basis


def test_plans_that_differ_in_pipeline_parts_are_one(tmp_path: Path) -> None:
    layouts = [{**plan["layout"], "vpp": 1, "backend": plan["variant"] or plan["backend"]} for plan in
               _json([*LLAMA, "--top", "40"], tmp_path)["fits"]]  # fmt: skip
    assert len(layouts) == 40
    assert all(layout not in layouts[:index] for index, layout in enumerate(layouts))


def test_equal_modes_of_backend_are_one_plan(tmp_path: Path) -> None:
    """ZeRO 1 and 2 need the same on one device."""
    words = ["plan", "qwen3-8b", "--gpus", "1xH200", "--train_type", "lora", "--per_device_train_batch_size", "1"]
    modes = [plan["variant"] for plan in _json([*words, "--gradient_checkpointing", "false"], tmp_path)["fits"]]
    assert ("zero1" in modes) != ("zero2" in modes)


def test_plan_screen_shows_reason_and_command(tmp_path: Path) -> None:
    ended = typed([*LLAMA, "--price", "2", "--top", "5"], tmp_path)
    assert ended.code == 0, ended.output
    assert "8.03 billion parameters; 8xH100; 64 rows of 8192 tokens per step (assumed" in ended.output
    assert "Plans that fit, fastest first" in ended.output
    assert "10⁹ tokens cost" in ended.output
    assert re.search(r"Plan \d+ \(.*\) is (slower: |as fast, with )", ended.output)
    assert "Common rule of thumb, for comparison: 96 GB over all devices" in ended.output
    for backend in ("megatron", "fsdp", "zero1", "zero3"):  # the best of each is shown, wherever it stands
        assert f"  {backend} " in ended.output


def test_encoders_have_plans_for_vectors_alone(tmp_path: Path) -> None:
    """Megatron, which has no encoders, is named as refused; the task is kept in the command."""
    sizes = {"hidden_size": 384, "num_attention_heads": 12, "num_hidden_layers": 6, "intermediate_size": 1536}
    bert = {"model_type": "bert", "vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(bert))
    words = ["plan", "config.json", "--gpus", "2xH100", "--train_type", "full", "--max_length", "512"]
    ended = typed([*words, "--task_type", "embedding", "--top", "5"], tmp_path)
    assert ended.code == 0, ended.output
    assert "22.6 million parameters" in ended.output
    assert "--task_type embedding" in ended.output
    assert "Run: swift sft --model . " in ended.output, "a run takes a folder"
    assert "megatron does not support some layouts: Megatron does not train bert" in ended.output
    assert "  fsdp " in ended.output
    language_model = typed(words, tmp_path)
    assert language_model.code == 2
    assert "is an encoder (bert)" in language_model.output
    halves = {"model_type": "t5", "vocab_size": 32128, "d_model": 64, "num_heads": 4, "is_encoder_decoder": True}
    (tmp_path / "config.json").write_text(json.dumps(halves))
    assert "t5 models are encoder-decoders" in typed([*words, "--task_type", "embedding"], tmp_path).output


def test_a_cpu_has_wide_bars_and_no_times(tmp_path: Path) -> None:
    """Its allocator keeps what is freed, and its speed is a guess until something is measured."""
    write_model(tmp_path / "model")
    words = ["plan", "model", "--gpus", "cpu", "--train_type", "full", "--max_length", "32"]
    assert "time unknown: use --measure 5" in typed(words, tmp_path).output
    explained = typed([*words, "--explain", "1"], tmp_path).output
    assert "counted, -50% … +100% (assumed, 0 rows)" in explained
    assert re.search(r"one step +unknown +no run was measured: use --measure 5", explained)


def test_many_devices_show_failure_advice(tmp_path: Path) -> None:
    words = ["plan", "llama-3.1-8b", "--backend", "fsdp", "--train_type", "full", "--global_batch_size", "16384"]
    many = typed([*words, "--gpus", "2048x8xH100", "--restart_seconds", "900"], tmp_path)
    assert "Expect a failure every 3.05 h. Best checkpoint interval: 13.2 min" in many.output  # 50,000 h / 16,384
    assert "30 s to save (assumed), 900 s to restart (given)" in many.output
    few = typed([*words, "--gpus", "8xH100"], tmp_path)
    assert "Expect a failure every" not in few.output


@pytest.mark.full
def test_compiled_blocks_keep_less_or_plan_says_unknown(tmp_path: Path) -> None:
    """Compiled blocks keep less, and a plan that does not count them reports it."""
    words = ["plan", "llama-3.1-8b", "--gpus", "1xH200", "--backend", "torch", "--train_type", "full"]
    words += ["--max_length", "4096", "--gradient_checkpointing", "false", "--optim", "adamw_8bit"]
    compiled = [*words, "--train.compile", "true"]
    counted = typed(compiled, tmp_path)
    assert "without torch.compile, which needs less: use --level 1 to trace it" in counted.output
    assert "compiled" not in typed(words, tmp_path).output
    peaks = {}
    for name, more in (("plain", words), ("compiled", compiled), ("fp8", [*compiled, *FP8])):
        found = _json([*more, "--level", "1"], tmp_path)
        (best, *_) = [*found["fits"], *found["nearest"]]
        assert best["basis"]["memory"] == "traced", name
        peaks[name] = best["memory_bytes"]["activations"]
    assert 0.4 < peaks["compiled"] / peaks["plain"] < 0.75
    assert peaks["fp8"] == peaks["compiled"]  # at most


def test_every_plan_is_a_valid_command(tmp_path: Path) -> None:
    plans = _json([*LLAMA, "--top", "40"], tmp_path)["fits"]
    assert len(plans) == 40
    assert len({plan["backend"] for plan in plans}) > 1
    (tmp_path / "data.jsonl").touch()
    for plan in plans[::5]:
        words = shlex.split(plan["command"])
        assert words[:6] == ["swift", "sft", "--model", "llama-3.1-8b", "--train_type", "full"]
        assert "data.jsonl" in words
        shown = typed(["config", "show", *words[1:]], tmp_path)
        assert shown.code == 0, f"{plan['command']}: {shown.output}"
        assert f"name: {plan['backend']}" in shown.output


def test_terms_add_up_and_fit(tmp_path: Path) -> None:
    found = _json(LLAMA, tmp_path)
    for plan in found["fits"]:
        on_device = [size for name, size in plan["memory_bytes"].items() if not name.startswith("host: ")]
        assert sum(on_device) == pytest.approx(plan["peak_bytes"], abs=len(on_device))
        assert plan["peak_bytes"] < found["capacity_bytes"]
        seconds = dict(plan["seconds"])
        assert seconds.pop("step") == pytest.approx(sum(seconds.values()))
    steps = [plan["seconds"]["step"] for plan in found["fits"]]
    assert steps == sorted(steps)


def test_gradients_exist_at_loss_after_first_micro_batch(tmp_path: Path) -> None:
    """The peak is that of an instant: after the first micro-batch the gradients stay, 4 bytes for each weight."""
    words = shlex.split(
        "plan llama-3.1-8b --gpus 1xH200 --backend torch --train_type full --max_length 4096 "
        "--per_device_train_batch_size 2 --gradient_checkpointing false"
    )
    one, two = (
        _json([*words, "--global_batch_size", rows], tmp_path)["nearest"][0]["memory_bytes"] for rows in ("2", "4")
    )
    assert two["gradients"] == pytest.approx(4 * 8.03e9, rel=0.01)
    assert one["gradients"] <= 4 * 128256 * 4096  # of the head, if of anything
    assert one["activations"] == two["activations"]


def test_a_row_of_preferences_is_two_texts(tmp_path: Path) -> None:
    words = shlex.split(
        "plan llama-3.1-8b --gpus 8xH100 --train_type lora --max_length 512 --backend fsdp --top 1 "
        "--per_device_train_batch_size 1 --gradient_checkpointing false"
    )
    one = _json([*words, "--kind", "sft"], tmp_path)["fits"][0]
    two = _json([*words, "--kind", "rlhf", "--rlhf_type", "dpo"], tmp_path)["fits"][0]
    assert two["memory_bytes"]["activations"] == 2 * one["memory_bytes"]["activations"]
    assert two["seconds"]["arithmetic"] == pytest.approx(2 * one["seconds"]["arithmetic"], rel=0.1)


@pytest.mark.parametrize("backend", ["fsdp", "megatron"])
def test_products_in_fp8_are_planned_for_devices_that_have_them(backend: str, tmp_path: Path) -> None:
    """On a machine without any: attention stays as it is, and all other products are 1.6 times as fast."""
    words = ["plan", "llama-3.1-8b", "--gpus", "8xH200", "--train_type", "full", "--max_length", "4096", "--top", "1"]
    words += ["--per_device_train_batch_size", "1", "--gradient_checkpointing", "true"]
    if backend == "megatron":
        words += ["--tp", "2", "--pp", "1", "--cp", "1"]
    slow = _json([*words, "--backend", backend, "--torch_dtype", "bfloat16"], tmp_path)["fits"][0]
    fast = _json([*words, *FP8, "--backend", backend], tmp_path)["fits"][0]
    assert 1.3 < slow["seconds"]["arithmetic"] / fast["seconds"]["arithmetic"] < 1.6
    copies = fast["memory_bytes"].get("casts of weights to FP8", 0)
    assert copies == (pytest.approx(2 * 6.98e9 / 2, rel=0.01) if backend == "megatron" else 0)


def test_tensor_parallel_embedding_is_whole_but_on_megatron(tmp_path: Path) -> None:
    """FSDP2's tensor parallel processes each have embedding and head whole; Megatron's share them."""
    words = ["plan", "llama-3.1-8b", "--gpus", "8xH100", "--train_type", "lora", "--tp", "8", "--top", "1"]
    ends, layers = 2 * 128256 * 4096, 8.03e9 - 2 * 128256 * 4096
    for backend, values in {"fsdp": ends + layers / 8, "megatron": (ends + layers) / 8}.items():
        plan = _json([*words, "--backend", backend], tmp_path)["fits"][0]
        assert plan["memory_bytes"]["weights"] == pytest.approx(2 * values, rel=0.03), backend


def test_nothing_fitting_shows_nearest_layouts(tmp_path: Path) -> None:
    ended = typed(["plan", "llama-3.1-405b", "--gpus", "8xH100", "--train_type", "full"], tmp_path)
    assert ended.code == 3
    assert "No plan fits into" in ended.output
    assert "missing" in ended.output


def test_adapters_and_offload_make_room(tmp_path: Path) -> None:
    words = ["plan", "qwen3-8b", "--gpus", "1xRTX4090"]
    full = _json([*words, "--train_type", "full"], tmp_path)["fits"]
    assert {plan["variant"] for plan in full} <= {"zero2_offload", "zero3_offload"}
    assert _json([*words, "--train_type", "full", "--host_memory", "64"], tmp_path)["fits"] == []
    adapted = _json(words, tmp_path)["fits"]
    assert any(plan["variant"] not in ("zero2_offload", "zero3_offload") for plan in adapted)


def test_what_was_typed_is_kept(tmp_path: Path) -> None:
    plans = _json([*LLAMA, "--backend", "megatron", "--tp", "2", "--gradient_checkpointing", "true"], tmp_path)["fits"]
    assert plans
    for plan in plans:
        assert (plan["backend"], plan["layout"]["tp"], plan["recompute"]) == ("megatron", 2, True)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["qwen3-8b", "--gpus", "8xH1000"], "Did you mean 'H100'"),
        (["qwen3-8b", "--gpus", "8xmine.json"], "File not found: mine.json"),
        (["qwen3-8b", "--gpus", "12xH100"], "is not a multiple of the 8"),
        (["qwen3-8b", "--gpus", "0xH100"], "must be from 1 to"),
        (["qwen3-8b"], "needs --gpus"),
        (["qwen3-9b", "--gpus", "8xH100"], "Did you mean 'qwen3-8b'"),
        (["qwen3-8b", "--gpus", "8xH100", "--backend", "torch", "--tp", "2"], "does not support parallel.tp"),
        (["qwen3-8b", "--gpus", "8xH100", "--backend", "torch", "--global_batch_size", "4"], "fewer than the 8"),
        (["qwen3-8b", "--gpus", "8xH100", "--max_lenght", "4"], "Did you mean"),
        (["qwen3-8b", "--gpus", "8xA100", "--backend", "fsdp", *FP8], "A100 does not support FP8"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_planned_is_refused(words: list[str], says: str, tmp_path: Path) -> None:
    ended = typed(["plan", *words], tmp_path)
    assert ended.code not in (0, 3)
    assert says in ended.output


def test_a_device_may_be_described(tmp_path: Path) -> None:
    device = {"name": "T4", "gigabytes": 16, "tflops": 65, "memory_bandwidth": 320, "link": 16, "network": 3}
    (tmp_path / "t4.json").write_text(json.dumps(device))
    found = _json(["plan", "qwen3-0.6b", "--gpus", "4xt4.json"], tmp_path)
    assert found["cluster"] == "4xT4"
    assert found["fits"]
    (tmp_path / "t4.json").write_text(json.dumps(device | {"tflops": "fast"}))
    refused = typed(["plan", "qwen3-0.6b", "--gpus", "4xt4.json"], tmp_path).output
    assert "t4.json: tflops must be a number above 0" in refused


def test_a_model_that_cannot_be_counted_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 64}')
    ended = typed(["plan", "config.json", "--gpus", "8xH100"], tmp_path)
    assert "its config.json has no num_attention_heads" in ended.output


def test_stages_that_cannot_be_equal_are_named(tmp_path: Path) -> None:
    plans = _json(
        ["plan", "llama-3.1-405b", "--gpus", "2048xH100", "--train_type", "full", "--backend", "megatron", "--pp", "16",
         "--vpp", "1", "--global_batch_size", "512"], tmp_path,
    )["fits"]  # fmt: skip
    words = shlex.split(plans[0]["command"])
    first = words.index("--backend.stages") + 1
    stages = [int(word) for word in words[first : first + 16]]
    assert sum(stages) == 126
    assert stages[0] == stages[-1] == 7


@pytest.mark.parametrize(("times", "shown"), [(1.2, "90 % bar "), (40.0, "unknown")])
def test_useless_time_bar_points_to_measure(
    times: float, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs on this device took so many times what was planned."""
    monkeypatch.setenv("SWIFT_PLAN_LEDGER", str(tmp_path / "plans.jsonl"))
    for _ in range(20):
        ledger.add(LedgerEntry("fsdp", "H100", 0, {}, 10**9, 1e10, 1e10, 1.0, times))
    words = ["plan", "llama-3.1-8b", "--gpus", "8xH100", "--train_type", "full", "--backend", "fsdp", "--explain", "1"]
    (line,) = (each for each in typed(words, tmp_path).output.splitlines() if each.startswith("one step "))
    assert shown in line
    assert ("past runs took up to 40 times as long: use --measure 5" in line) == (times > 3)


@pytest.mark.full
def test_no_torch_is_imported(tmp_path: Path) -> None:
    program = "import sys; from swift.cli.main import run; run(sys.argv[1:]); print('torch' in sys.modules)"
    ended = subprocess.run(
        [sys.executable, "-c", program, *LLAMA], capture_output=True, text=True, cwd=tmp_path, check=True, timeout=300
    )
    assert ended.stdout.endswith("False\n")
