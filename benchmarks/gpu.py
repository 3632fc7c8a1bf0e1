"""Measure speed and memory on a GPU: `python -m benchmarks.gpu [PART ...]`, in parts of at most ten minutes.

Models have the shapes of well known ones and random weights. Each part is a separate process whose results are written
at once. A part that fails or takes too long is recorded, and the next one runs. `--device cpu --shape tiny` runs the
same code on any machine; its figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks import commands
from benchmarks.commands import SWIFT, UNSAVED, environment
from benchmarks.facts import Figure, read_lines, write, write_lines, write_page
from benchmarks.inputs import ROOT, WORK
from swift.hardware import device_called

LIMIT = 570
NOTHING_FITS = 3
"""What `swift plan` exits with where no plan fits; it prints the nearest one all the same."""
STEPS = 12
WARM = 4
"""Steps that are left out of figures: kernels are chosen, compiled and timed in them."""
QWEN = {"head_dim": 128, "max_position_embeddings": 40_960, "vocab_size": 151_936, "num_key_value_heads": 8}
SHAPES: dict[str, dict[str, int]] = {
    "8b": {
        **QWEN, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36, "num_attention_heads": 32,
    },
    "1b": {**QWEN, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 16, "num_attention_heads": 16},
    "tiny": {
        "head_dim": 32, "max_position_embeddings": 4096, "vocab_size": 512, "num_key_value_heads": 2,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    },
}  # fmt: skip
FOLDER = WORK / "gpu"
REWARD = "def short(completions, **_):\n    return [-len(each) / 1000 for each in completions]\n"


@dataclass(frozen=True)
class Setup:
    """Where, and on which shape, a part runs."""

    device: str
    shape: str

    @property
    def dry(self) -> bool:
        return self.device == "cpu"

    @property
    def tokens(self) -> tuple[int, int]:
        return (128, 256) if self.shape == "tiny" else (4096, 16_384)


def training(setup: Setup, name: str, *argv: str, shape: str | None = None, steps: int = STEPS) -> dict[str, Any]:
    """Train, and return the medians of what was logged, and what `swift plan` expected."""
    model, chats = model_of(shape or setup.shape), chats_of(setup)
    settings = [
        "--per_device_train_batch_size", "1", "--torch_dtype", "bfloat16", "--packing", "true",
        "--learning_rate", "1e-5", *argv,
    ]  # fmt: skip
    inputs = ["sft", "--model", str(model), "--dataset", str(chats)]
    command, log = run_of(setup, name, model, [*inputs, *settings, "--export.verify", "none"], steps)
    with ThreadPoolExecutor(1) as pool:  # only its first seconds overlap the plan, and those are of loading
        plan_to_come = pool.submit(planned, model, settings, setup)
        call(command)
        plan = plan_to_come.result()
    measured = [line for line in read_lines(log) if "tokens_per_second" in line]
    ends = [0.0, *(line["elapsed_time"] for line in measured)]
    seconds = [end - begin for begin, end in pairwise(ends)]
    rate = median(line["tokens_per_second"] for line in measured[WARM:])
    memory = max(line["memory(GiB)"] for line in measured)
    size = SHAPES[shape or setup.shape]
    multiplied = plan["model"]["parameters"] - size["vocab_size"] * size["hidden_size"]  # embedding is looking up
    trained = 0 if "lora" in argv else multiplied
    best: dict[str, Any] = next(iter((*plan["fits"], *plan["nearest"])), {})
    facts: dict[str, Any] = {
        "tokens_per_second": rate,
        "peak_gib": memory,
        "planned_gib": best["peak_bytes"] / 2**30 if best else None,
        "planned_tokens_per_second": best.get("tokens_per_second"),
        "parameters": plan["model"]["parameters"],
        "seconds": seconds,
        "command": typed(command),
    }
    known = device_called(device_name(setup))
    if known is not None:
        each_token = 4 * multiplied + 2 * trained + attention_of(size, chats)
        facts["mfu"] = rate * each_token / (known.tflops * 1e12)
    return facts


def run_of(setup: Setup, name: str, model: Path, argv: Sequence[str], steps: int) -> tuple[list[str], Path]:
    """Return the command of a run, and the file that it will log to."""
    output = FOLDER / "runs" / name
    shutil.rmtree(output, ignore_errors=True)
    command = [
        SWIFT, *argv, "--backend.device", setup.device, "--max_steps", str(steps), "--logging_steps", "1",
        "--output_dir", str(output), "--logging.run_name", "run", *UNSAVED, "--report_to", "jsonl",
    ]  # fmt: skip
    return command, output / model.name / "run" / "logging.jsonl"


def attention_of(size: dict[str, int], chats: Path) -> float:
    """Return the operations of attention for a token of these chats, forward and backward, as far as it is causal.

    A token of a chat looks at half of it on average: two products forward, and four backward.
    """
    lengths = [sum(len(message["content"]) for message in line["messages"]) for line in read_lines(chats)]
    attended = sum(length * length for length in lengths) / sum(lengths) / 2
    return 12 * attended * size["num_attention_heads"] * size["head_dim"] * size["num_hidden_layers"]


def planned(model: Path, settings: Sequence[str], setup: Setup) -> dict[str, Any]:
    """Return what `swift plan` says of the run as it is, whether or not it fits."""
    recompute = () if "--gradient_checkpointing" in settings else ("--gradient_checkpointing", "false")
    known = device_called(device_name(setup))
    device = "CPU" if known is None else known.name
    command = [SWIFT, "plan", str(model), "--gpus", f"1x{device}", "--backend", "torch", *settings, *recompute]
    command += ["--level", "1", "--json"]  # without values, as on any other machine
    printed = call(command, fine=(0, NOTHING_FITS))
    found: dict[str, Any] = json.loads(printed[printed.index("{") :])
    return found


ACCUMULATED = ("--gradient_accumulation_steps", "4")


def _lora(setup: Setup, tokens: int, *more: str) -> dict[str, Any]:
    name = f"lora-{tokens}"
    return training(setup, name, "--train_type", "lora", "--max_length", str(tokens), *more)


def _full(setup: Setup, tokens: int, *more: str) -> dict[str, Any]:
    argv = ["--train_type", "full", "--optim", "adamw_8bit", "--max_length", str(tokens), *ACCUMULATED, *more]
    return training(setup, f"full-{tokens}", *argv)


def _compiled(setup: Setup) -> tuple[str, ...]:
    return () if setup.dry else ("--train.compile", "true")


def _fp8(setup: Setup) -> dict[str, Any]:
    emulated = ("--backend.fp8_emulated", "true") if setup.dry else ()
    return _full(setup, setup.tokens[0], "--fp8", "hybrid", *emulated, *_compiled(setup))


def _saving(setup: Setup) -> dict[str, Any]:
    shape = "tiny" if setup.shape == "tiny" else "1b"
    argv = ("--train_type", "full", "--optim", "adamw_8bit", "--max_length", str(setup.tokens[0]), *ACCUMULATED)
    more = ("--save_steps", "4", "--checkpoint.asynchronous", "true", "--save_total_limit", "1")
    facts = training(setup, "saving", *argv, *more, shape=shape, steps=21)
    seconds = facts["seconds"]
    saved = {step for step in range(5, 21) if step % 4 in (0, 1)}  # the step of a save, and the next one
    plain = [seconds[step] for step in range(5, 21) if step + 1 not in saved]
    saving = [seconds[step] for step in range(5, 21) if step + 1 in saved]
    return {**facts, "stall": sum(saving) / len(saving) / median(plain) - 1}


def _serving(setup: Setup) -> dict[str, Any]:
    if find_spec("vllm") is None:
        return {"left_out": "vllm is not installed"}
    from benchmarks.inputs import ensure
    from benchmarks.serving import SETTINGS, course

    ensure()

    model = model_of(setup.shape)
    argv = SETTINGS if setup.dry else ("--dtype", "bfloat16", "--max-model-len", "2048")
    return course(
        lambda port: [SWIFT, "serve", str(model), "--name", "model", "--port", str(port), *argv],
        requests=8 if setup.dry else 200,
    )


def _grpo(setup: Setup) -> dict[str, Any]:
    model = model_of(setup.shape)
    (FOLDER / "reward.py").write_text(REWARD)
    engine = ["--rollout_engine", "transformers"]
    if not setup.dry and find_spec("vllm") is not None:
        engine = ["--rollout_engine", "vllm", "--rollout_options", '{"gpu_memory_utilization": 0.5}']
    argv = [
        "rlhf", "--rlhf_type", "grpo", "--model", str(model), "--dataset", str(chats_of(setup)),
        "--train_type", "lora", "--reward_funcs", f"{FOLDER / 'reward.py'}:short", "--num_generations", "8",
        "--max_completion_length", "16" if setup.dry else "512", "--per_device_train_batch_size", "4",
        "--global_batch_size", "32", "--torch_dtype", "bfloat16", *engine,
    ]  # fmt: skip
    command, log = run_of(setup, "grpo", model, argv, steps=4)
    call(command)
    steps = [line for line in read_lines(log) if "train_speed(s/it)" in line]
    return {"seconds_a_round": median(line["train_speed(s/it)"] for line in steps[1:]), "command": typed(command)}


def _kernels(setup: Setup) -> dict[str, Any]:
    """Return how much faster swift's kernels are than what computes the same without them, in turns."""
    if setup.dry:
        return {"left_out": "kernels run on a GPU alone"}
    import torch
    from triton.testing import do_bench

    from swift.models import fp8_linear, logps
    from swift.toolkit import token_logps
    from swift_tuning import block_codecs

    def ratio(user: Any, what: Callable[[], object]) -> float:
        own = user.kernels_for
        times: dict[bool, list[float]] = {True: [], False: []}
        try:
            for _ in range(5):
                for used, found in times.items():
                    user.kernels_for = own if used else lambda tensor: False
                    found.append(do_bench(what, warmup=10, rep=50, return_mode="median"))
        finally:
            user.kernels_for = own
        return median(times[False]) / median(times[True])

    size = SHAPES["8b"]
    codec, elements = block_codecs.eight_bits(), size["hidden_size"] * size["intermediate_size"]
    weight, grad = torch.randn(2, elements, device="cuda").unbind()
    moments = [codec.zeros(elements, signed=signed, device=weight.device) for signed in (True, False)]
    hyper = block_codecs.AdamStep(3, 1e-5, (0.9, 0.95), 1e-8, 0.1)
    hidden = torch.randn(4096, size["hidden_size"], device="cuda", dtype=torch.bfloat16, requires_grad=True)
    head = torch.randn(size["vocab_size"], size["hidden_size"], device="cuda", dtype=torch.bfloat16)
    targets = torch.randint(size["vocab_size"], (4096,), device="cuda")
    gradient = torch.randn(4096, size["intermediate_size"], device="cuda", dtype=torch.bfloat16)

    def loss() -> None:
        token_logps(hidden, head, targets).logps.sum().backward()

    return {
        "adamw_8bit_over_bitsandbytes": ratio(block_codecs, lambda: codec.update(weight, grad, *moments, hyper)),
        "loss_over_operators": ratio(logps, loss),
        "codes_over_operators": ratio(fp8_linear, lambda: fp8_linear._encoded(gradient, torch.float8_e5m2)),
    }


PARTS: dict[str, Callable[[Setup], dict[str, Any]]] = {
    "lora_4k": lambda setup: _lora(setup, setup.tokens[0], *ACCUMULATED, *_compiled(setup)),
    "lora_16k": lambda setup: _lora(setup, setup.tokens[1], "--gradient_checkpointing", "true"),
    "full_4k": lambda setup: _full(setup, setup.tokens[0], *_compiled(setup)),
    "full_16k": lambda setup: _full(setup, setup.tokens[1], "--gradient_checkpointing", "true"),
    "full_4k_fp8": _fp8,
    "kernels": _kernels,
    "saving": _saving,
    "serving": _serving,
    "grpo": _grpo,
}
GOALS = {("lora_4k", "tokens_per_second"): 13_500.0, ("full_4k", "mfu"): 0.5, ("full_4k_fp8", "over_bf16"): 1.3}
"""At least, for the 8B shape on one H200."""
STALL = 0.01
_UNITS = {
    "tokens_per_second": "tokens/s", "peak_gib": "GiB", "planned_gib": "GiB", "planned_tokens_per_second": "tokens/s",
    "mfu": "", "stall": "", "rate": "requests/s", "first_token": "s", "seconds_a_round": "s", "over_bf16": "x",
    "adamw_8bit_over_bitsandbytes": "x", "loss_over_operators": "x", "codes_over_operators": "x",
}  # fmt: skip


def model_of(shape: str) -> Path:
    """Return the folder of a model with random weights, made once: by a process that gives its memory back."""
    folder = FOLDER / f"model-{shape}"
    if not (folder / "config.json").is_file():
        call([sys.executable, "-c", f"from benchmarks.gpu import make_model; make_model({shape!r})"])
    return folder


def make_model(shape: str) -> None:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from swift_testing.tokenizer import byte_tokenizer

    folder = FOLDER / f"model-{shape}"
    making = folder.with_name(folder.name + ".making")
    shutil.rmtree(making, ignore_errors=True)
    torch.set_default_dtype(torch.bfloat16)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = Qwen3ForCausalLM(Qwen3Config(**SHAPES[shape], tie_word_embeddings=False))
    model.save_pretrained(making)
    byte_tokenizer().save_pretrained(making)
    making.rename(folder)


def chats_of(setup: Setup) -> Path:
    """Return chats of letters, of a few hundred each; as many tokens as letters."""
    path = FOLDER / f"chats-{setup.shape}.jsonl"
    if path.is_file():
        return path
    source = random.Random(0)
    longest, count = (60, 800) if setup.shape == "tiny" else (1600, 1200)

    def text() -> str:
        return "".join(source.choices("abcdefghijklmnopqrstuvwxyz     ", k=source.randint(longest // 4, longest)))

    rows = (
        {"messages": [{"role": "user", "content": text()[:40]}, {"role": "assistant", "content": text()}]}
        for _ in range(count)
    )
    return write_lines(path, rows)


def device_name(setup: Setup) -> str:
    """Return the name of the first GPU, as its driver tells it; nothing of its memory is taken for that."""
    if setup.dry:
        return "CPU"
    return call(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]).splitlines()[0].strip()


def call(command: Sequence[str], fine: Sequence[int] = (0,)) -> str:
    # Packs are of many lengths: without it, the allocator keeps blocks that fit none of those to come.
    return commands.call(command, environment(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"), fine=fine)


def typed(command: Sequence[str]) -> str:
    """Return a command as it is typed in the repository's folder."""
    return " ".join(["swift", *(word.removeprefix(f"{ROOT}/") for word in command[1:])])


def apart(name: str, setup: Setup) -> dict[str, Any]:
    """Run a part in a process of its own, which is ended with all that it started when its time is up."""
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--device", setup.device, "--shape", setup.shape, "--here"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        started = psutil.Process(process.pid)
        for each in (*started.children(recursive=True), started):  # servers have a session of their own
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.communicate()
        return {"failed": f"it took longer than {LIMIT} seconds"}
    last = printed.strip().splitlines()[-1] if printed.strip() else ""
    if process.returncode or not last.startswith("{"):
        return {"failed": "\n".join(printed.splitlines()[-15:])}
    facts: dict[str, Any] = json.loads(last)
    return facts


def report(out: Path, setup: Setup, results: dict[str, dict[str, Any]]) -> Path:
    """Write what is known so far, with the goals where they are meant."""
    if all("tokens_per_second" in results.get(name, {}) for name in ("full_4k", "full_4k_fp8")):
        results["full_4k_fp8"]["over_bf16"] = (
            results["full_4k_fp8"]["tokens_per_second"] / results["full_4k"]["tokens_per_second"]
        )
    shown: list[dict[str, str]] = []
    for name, facts in results.items():
        if "left_out" in facts:
            shown.append({"what": name, "figure": "not measured", "verdict": facts["left_out"]})
        if "failed" in facts:
            shown.append({"what": name, "figure": "failed", "verdict": facts["failed"].strip().splitlines()[-1][:200]})
        for key, unit in _UNITS.items():
            if facts.get(key) is None:
                continue
            meant = setup.shape == "8b" and not setup.dry
            goal = GOALS.get((name, key)) if meant else None
            most = STALL if key == "stall" and meant else None
            title = f"{name}: {key.replace('_', ' ')}"
            shown.append(Figure(title, facts[key], unit, at_least=goal, at_most=most).shown)
    details = {"parts": results, **({"notes": ["A dry run: its figures mean nothing."]} if setup.dry else {})}
    command = f"python -m benchmarks.gpu --device {setup.device} --shape {setup.shape}"
    path = write(out, "gpu", command, shown, details, device=device_name(setup))
    write_page(out)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", choices=[*PARTS, []], help=", ".join(PARTS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="8b")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="folder of the results")
    parser.add_argument("--here", action="store_true", help="run one part in this process and print its facts")
    arguments = parser.parse_args()
    setup = Setup(arguments.device, arguments.shape)
    if arguments.here:
        print(json.dumps(PARTS[arguments.parts[0]](setup)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    for name in arguments.parts or PARTS:
        print(f"{name} ...", flush=True)
        results[name] = apart(name, setup)
        path = report(arguments.out, setup, results)
        facts = {
            key: results[name][key] for key in ("failed", "left_out", *_UNITS) if results[name].get(key) is not None
        }
        print(f"  {facts}\n  written to {path}", flush=True)
    return int(any("failed" in facts for facts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
