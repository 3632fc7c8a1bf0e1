"""One side of the comparison of GRPO, which waits for its turn before every step: swift, or TRL's GRPOTrainer.

    python -m benchmarks.grpo_sides ORDER.json

Prints after each step the seconds and the CPU seconds of its parts, the tokens that were drawn, and the peak of its
memory beyond what it had before the first answers. The reward is the share of the letter e, which takes no time.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.facts import peak_memory_mib
from benchmarks.peer import Turn

REWARD = """
def letters(completions, **columns):
    texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
    return [text.count("e") / max(1, len(text)) for text in texts]
"""
CLOCKS: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "cpu": time.process_time}


class Clock:
    """Seconds by what was done, step by step."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._before_mib: float | None = None

    def begin(self, said: dict[str, Any]) -> None:
        """Say what was, wait for the turn, and begin a step."""
        self._turn.end(said)
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
    from swift_rl.rounds.draw import Rollouts
    from swift_rl.rounds.plan import RolloutPlan

    local, train_step = Rollouts.local, Hooks.swift_train_step

    def counted(self: Any, *given: Any, **named: Any) -> Any:
        drawn = local(self, *given, **named)
        clock.tokens += sum(len(each.token_ids) for each in drawn.values())
        return drawn

    def step(*given: Any, **named: Any) -> Any:
        result = train_step(*given, **named)
        clock.step()
        return result

    for owner, name, wrapped in (
        (RolloutPlan, "batch", clock.timed("prepared", RolloutPlan.batch)),
        (Rollouts, "local", clock.timed("drawn", counted)),
        (Rollouts, "sync", clock.timed("sent", Rollouts.sync)),
        (Hooks, "swift_train_step", step),
    ):
        setattr(owner, name, wrapped)
    answers = str(order["prompts"] * order["generations"])
    raise SystemExit(
        run(
            [
                *("rlhf", "--rlhf_type", "grpo", "--model", order["model"], "--dataset", order["data"]),
                *("--train_type", "full", "--learning_rate", str(order["learning_rate"]), "--report_to", "jsonl"),
                *("--reward_funcs", f"{order['rewards']}:letters", "--num_generations", str(order["generations"])),
                *("--max_completion_length", str(order["longest"]), "--temperature", "1.0", "--torch_dtype", "float32"),
                *("--per_device_train_batch_size", answers, "--max_steps", str(order["steps"]), "--seed", "1"),
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
            output_dir=order["folder"],
            per_device_train_batch_size=order["prompts"] * order["generations"],
            num_generations=order["generations"],
            max_completion_length=order["longest"],
            learning_rate=order["learning_rate"],
            lr_scheduler_type="constant",
            max_steps=order["steps"],
            temperature=1.0,
            bf16=False,
            use_cpu=True,
            use_vllm=False,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            seed=1,
            **order["arguments"],
        ),
    )
    trainer.train()


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    {"swift": swift_side, "trl": trl_side}[order["side"]](order, Clock())


if __name__ == "__main__":
    main()
