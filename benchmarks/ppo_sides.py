"""One side of the comparison of PPO's speed, which waits for its turn before every round: swift, or TRL's PPOTrainer.

    python -m benchmarks.ppo_sides ORDER.json

A round is drawn, scored by the reward model, the critic and the reference, and learned from. After each its seconds,
its CPU seconds and the tokens that were drawn are printed.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peer import Turn
from benchmarks.ppo_peer import trainer_of

CLOCKS: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "cpu": time.process_time}


class Rounds:
    """What rounds take, one after the other; a round begins where answers are drawn."""

    def __init__(self) -> None:
        self._turn = Turn()
        self._since: dict[str, float] | None = None
        self.tokens = 0

    def drawing(self, function: Callable[..., Any], count: Callable[[Any], int]) -> Callable[..., Any]:
        """Return the function that draws answers, which waits for its turn; `count` says how many tokens it drew."""

        def work(*given: Any, **named: Any) -> Any:
            self._begin()
            drawn = function(*given, **named)
            self.tokens = count(drawn)
            return drawn

        return work

    def _begin(self) -> None:
        """Say what the round before took, and wait for the next."""
        now = {name: read() for name, read in CLOCKS.items()}
        if self._since is None:
            self._turn.end({"ready": True})
        else:
            self._turn.end({"tokens": self.tokens, **{name: now[name] - self._since[name] for name in CLOCKS}})
        self._since = {name: read() for name, read in CLOCKS.items()}


def swift_side(order: dict[str, Any], rounds: Rounds) -> None:
    from swift.cli.main import run
    from swift_rl.rounds.draw import Rollouts

    def count(drawn: Any) -> int:
        return sum(len(each.token_ids) for each in drawn.values())

    Rollouts.local = rounds.drawing(Rollouts.local, count)  # type: ignore[method-assign]
    raise SystemExit(
        run(
            [
                *("rlhf", "--rlhf_type", "ppo", "--model", order["model"], "--dataset", order["data"]),
                *("--reward_model", order["scorer"], "--critic_model", order["scorer"], "--train_type", "full"),
                *("--learning_rate", str(order["learning_rate"]), "--lr_scheduler_type", "constant"),
                *("--per_device_train_batch_size", str(order["answers"]), "--num_ppo_epochs", str(order["epochs"])),
                *("--max_completion_length", str(order["longest"]), "--temperature", "1.0", "--torch_dtype", "float32"),
                *("--kl_coef", str(order["kl_coef"]), "--missing_eos_penalty", str(order["penalty"])),
                *("--max_steps", str(order["epochs"] * order["rounds"]), "--seed", "1", "--report_to", "jsonl"),
                *("--backend.device", "cpu", "--checkpoint.save_last", "false", "--output_dir", order["folder"]),
                *order["arguments"],
            ]
        )
    )


def trl_side(order: dict[str, Any], rounds: Rounds) -> None:
    sys.path.insert(0, order["python"])
    import trl.experimental.ppo.ppo_trainer as module

    longest, answers = order["longest"], order["answers"]
    module.batch_generation = rounds.drawing(module.batch_generation, lambda drawn: longest * answers)
    trainer_of({**order, "episodes": answers * order["rounds"]}).train()


def main() -> None:
    order = json.loads(Path(sys.argv[1]).read_text())
    {"swift": swift_side, "trl": trl_side}[order["side"]](order, Rounds())


if __name__ == "__main__":
    main()
