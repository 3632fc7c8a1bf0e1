"""Compare GRPO with TRL's GRPOTrainer: sampling, training, and both, with the same model, prompts and group size.

All sides alternate step by step, each in a separate process with one thread, after some warm-up steps. A model with
random weights rarely ends a completion, so all have equal lengths; for different lengths the end token is made more
likely. swift runs padded, as TRL does, and padding-free. TRL runs with its defaults, which recompute activations, and
without recomputation.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.alternation import note_on_load
from benchmarks.facts import Figure, peak_memory_mib
from benchmarks.inputs import ENDING, MODEL, PROMPTS, WORK, ensure, write_prompts
from benchmarks.peer import CLOCKS, Turn, common_arguments, read_order, steps_in_turn
from benchmarks.trainers import FLAT, LAYOUTS, PADDED

TRL = {"as it comes": {}, "nothing recomputed": {"gradient_checkpointing": False}}
"""Settings of TRL, by what figures call it."""
LENGTHS = {"completions of one length": MODEL, "completions of their own lengths": ENDING}
QUESTIONS, GENERATIONS, LONGEST = 4, 8, 64
GOALS = (
    *(("drawn", PADDED, 1.3), ("learned from", PADDED, None)),
    *(("learned from", FLAT, 1.5), ("end to end", FLAT, 1.4)),
)
WARM_UP = 1
LEARNING_RATE = 1e-6
"""So small that lengths stay what they are."""

Steps = dict[str, list[dict[str, Any]]]


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Return ratios over TRL, of medians over steps."""
    _make_inputs()
    steps = WARM_UP + (3 if quick else 6)
    runs = {lengths: _turns(model, steps) for lengths, model in LENGTHS.items()}
    figures = [figure for lengths, run in runs.items() for figure in _figures(lengths, run)]
    details = {
        "TRL": metadata.version("trl"),
        "steps": steps,
        **{"prompts_of_a_step": QUESTIONS, "completions_to_each": GENERATIONS, "longest_completion": LONGEST},
        **{lengths: {side: _summary(each) for side, each in run.items()} for lengths, run in runs.items()},
        "notes": [note_on_load()],
    }
    return figures, details


def _turns(model: Path, steps: int) -> Steps:
    """Return the steps of all sides in turn, without the first ones."""
    both = {
        **{"model": str(model), "data": str(PROMPTS), "rewards": str(WORK / "letters.py"), "steps": steps + 1},
        **{"learning_rate": LEARNING_RATE, "prompts": QUESTIONS, "generations": GENERATIONS, "longest": LONGEST},
    }
    orders = {layout: {**both, "side": "swift", "arguments": given} for layout, given in LAYOUTS.items()}
    orders |= {name: {**both, "side": "trl", "arguments": given} for name, given in TRL.items()}
    made = steps_in_turn("benchmarks.grpo", orders, steps)
    print(f"  {model.name}: done", flush=True)
    return {side: each[WARM_UP:] for side, each in made.items()}


def _figures(lengths: str, run: Steps) -> list[Figure]:
    parts: dict[str, Callable[[dict[str, float]], float]] = {
        "drawn": lambda seconds: seconds["drawn"],
        # All but completions and their scores: the step itself, and what belongs to it.
        "learned from": lambda seconds: seconds["whole"] - seconds["prepared"],
        "end to end": lambda seconds: seconds["whole"],
    }
    figures = []
    for name in TRL:
        for clock, unit in (("cpu", "CPU second"), ("seconds", "second")):
            for part, layout, least in GOALS:
                title = f"{lengths}: tokens per {unit} over TRL's, {name}: {part}"
                ratio = _ratio(run, layout, name, clock, parts[part])
                figures.append(Figure(title if part == "drawn" else f"{title}, {layout}", ratio, at_least=least))
        peaks = [max(step["mib"] for step in run[side]) for side in (FLAT, name)]
        title = f"{lengths}: peak memory beyond the model over TRL's, {name}"
        figures.append(Figure(title, peaks[0] / peaks[1], at_most=1.0))
    sent = median(step["cpu"]["sent"] / step["cpu"]["whole"] for step in run[FLAT])
    mean = [median(step["tokens"] for step in run[side]) / QUESTIONS / GENERATIONS for side in (FLAT, next(iter(TRL)))]
    return [
        *figures,
        Figure(f"{lengths}: weights to the engine and their verification, share of a step", 100 * sent, unit="%"),
        Figure(f"{lengths}: mean length over the longest allowed, swift's", mean[0] / LONGEST),
        Figure(f"{lengths}: mean length over TRL's", mean[0] / mean[1]),
    ]


def _ratio(run: Steps, own: str, other: str, clock: str, part: Any) -> float:
    """Return tokens a second over the other's: a median over the steps that were made side by side."""
    pairs = zip(run[own], run[other], strict=True)
    return median(_speed(mine, clock, part) / _speed(theirs, clock, part) for mine, theirs in pairs)


def _speed(step: dict[str, Any], clock: str, part: Any) -> float:
    return float(step["tokens"] / part(step[clock]))


def _summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    clocks = ("seconds", "cpu")
    return {
        "tokens": median(step["tokens"] for step in steps),
        "peak_mib_beyond_the_model": max(step["mib"] for step in steps),
        **{clock: {part: median(step[clock][part] for step in steps) for part in steps[0][clock]} for clock in clocks},
    }


def _make_inputs() -> None:
    ensure()
    (WORK / "letters.py").write_text(REWARD)
    write_prompts()


REWARD = """
def letters(completions, **columns):
    contents = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [text.count("e") / max(1, len(text)) for text in contents]
"""


class Clock:
    """Seconds by what was done, step by step."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._before_mib: float | None = None

    def begin(self, reported: dict[str, Any]) -> None:
        """Say what was, wait for the turn, and begin a step."""
        self._turn.end(reported)
        self.tokens = 0
        self._parts = {name: dict.fromkeys(("prepared", "drawn", "sent"), 0.0) for name in CLOCKS}
        self._since = {name: read() for name, read in CLOCKS.items()}

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a note of what its calls take; the first call of all waits for the first turn."""

        def work(*given: Any, **named: Any) -> Any:
            if self._before_mib is None:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                self._before_mib = peak_memory_mib()
                self.begin({"ready": True})
            begun = {name: read() for name, read in CLOCKS.items()}
            try:
                return function(*given, **named)
            finally:
                for name, read in CLOCKS.items():
                    self._parts[name][part] += read() - begun[name]

        return work

    def step(self) -> None:
        """End a step, and begin the next when it is this side's turn."""
        for name, read in CLOCKS.items():
            self._parts[name]["whole"] = read() - self._since[name]
        assert self._before_mib is not None
        beyond = peak_memory_mib() - self._before_mib
        self.begin({"tokens": self.tokens, "mib": beyond, **self._parts})


def swift_side(order: dict[str, Any], clock: Clock) -> None:
    from swift.cli.main import run
    from swift.plugins.hooks import Hooks
    from swift_rl.rounds.rollouts import Rollouts
    from swift_rl.rounds.schedule import RolloutSchedule

    local, train_step = Rollouts.local, Hooks.swift_train_step

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        sampled = local(self, *given, **named)
        clock.tokens += sum(len(each.token_ids) for each in sampled.values())
        return sampled

    def step(*given: Any, **named: Any) -> Any:
        result = train_step(*given, **named)
        clock.step()
        return result

    for owner, name, wrapped in (
        (RolloutSchedule, "batch", clock.timed("prepared", RolloutSchedule.batch)),
        (Rollouts, "local", clock.timed("drawn", counted)),
        (Rollouts, "sync", clock.timed("sent", Rollouts.sync)),
        (Hooks, "swift_train_step", step),
    ):
        setattr(owner, name, wrapped)
    completions = str(order["prompts"] * order["generations"])
    raise SystemExit(
        run(
            [
                *("rlhf", "--rlhf_type", "grpo", "--model", order["model"], "--dataset", order["data"]),
                *("--train_type", "full", "--learning_rate", str(order["learning_rate"]), "--report_to", "jsonl"),
                *("--reward_funcs", f"{order['rewards']}:letters", "--num_generations", str(order["generations"])),
                *("--max_completion_length", str(order["longest"]), "--temperature", "1.0", "--torch_dtype", "float32"),
                *("--per_device_train_batch_size", completions, "--max_steps", str(order["steps"]), "--seed", "1"),
                *("--backend.device", "cpu", "--checkpoint.save_last", "false", "--output_dir", order["folder"]),
                *order["arguments"],
            ]
        )
    )


def trl_side(order: dict[str, Any], clock: Clock) -> None:
    import torch
    from datasets import load_dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    space: dict[str, Any] = {}
    exec(REWARD, space)

    class Steps(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock.step()

    class Timed(GRPOTrainer):  # type: ignore[misc]  # TRL has no types
        def _generate_single_turn(self, *given: Any, **named: Any) -> Any:
            found = clock.timed("drawn", super()._generate_single_turn)(*given, **named)
            clock.tokens += sum(map(len, found[0]))
            return found

        def _generate_and_score_completions(self, *given: Any, **named: Any) -> Any:
            return clock.timed("prepared", super()._generate_and_score_completions)(*given, **named)

    prompts = load_dataset("json", data_files=order["data"], split="train", cache_dir=order["folder"])
    trainer = Timed(
        model=AutoModelForCausalLM.from_pretrained(order["model"], dtype=torch.float32),
        reward_funcs=space["letters"],
        train_dataset=prompts.rename_column("messages", "prompt"),
        processing_class=AutoTokenizer.from_pretrained(order["model"]),
        callbacks=[Steps()],
        args=GRPOConfig(
            **common_arguments(order), per_device_train_batch_size=order["prompts"] * order["generations"],
            num_generations=order["generations"], max_completion_length=order["longest"], max_steps=order["steps"],
            temperature=1.0, use_vllm=False, logging_steps=1, seed=1, **order["arguments"],
        ),
    )  # fmt: skip
    trainer.train()


def main() -> None:
    order = read_order()
    {"swift": swift_side, "trl": trl_side}[order["side"]](order, Clock())


if __name__ == "__main__":
    main()
