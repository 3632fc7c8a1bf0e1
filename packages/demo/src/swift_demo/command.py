"""`swift demo`: swift's main workflow, from data to an evaluated model, with a model that any machine can train."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Literal

from pydantic import Field

from swift.config.limits import FilePath, Name
from swift.config.options import Section
from swift.errors import UsageError
from swift.terminal import print_line
from swift_demo.identity import demo_identity
from swift_demo.online_demo import demo_online
from swift_demo.scoring_demo import demo_scoring
from swift_demo.steps import accuracy, export, open_chat, print_title, train_with
from swift_demo.vision_demo import demo_vision

STEPS = 240
PAUSE = 120
"""Step at which the run is interrupted, to show that it resumes from a checkpoint."""
GOAL = 0.95
SHOWN = 5
"""Responses that are printed."""
MARKER = ".swift-demo"


class DemoOptions(Section):
    """Creates a tiny model and a task, trains, resumes, exports and evaluates: two minutes on two CPU cores."""

    task: Literal["identity", "rm", "seq_cls", "embedding", "reranker", "grpo", "vision"] | None = Field(
        None,
        description="Another task: teach a pretrained model its name (identity), or train a tiny model for scores, "
        "rewards (grpo, needs swift-rl) or images (vision)",
    )
    model: Name = Field(
        "HuggingFaceTB/SmolLM2-135M-Instruct", description="Pretrained model of the task identity: a folder or a hub id"
    )
    out: FilePath = Field(Path("output/demo"), description="Folder of the demo; replaced each time")


class DemoCommand:
    """Implements `swift.contracts.Command`."""

    summary = "Train, export and evaluate a tiny model in minutes"
    group = "Inspect"
    options_model = DemoOptions

    def run(self, options: DemoOptions) -> int:
        """Run swift's main workflow, or the demo of a task, and print each command; return the exit code."""
        out = options.out
        started = time.monotonic()
        _fresh(out)
        if options.task == "identity":
            return demo_identity(options.model, out)
        if options.task == "grpo":
            return demo_online(out)
        if options.task == "vision":
            return demo_vision(out)
        if options.task is not None:
            return demo_scoring(options.task, out)
        print_title("1. A tiny model of Qwen3's architecture, and a task: read numbers aloud")
        from swift_demo.model import write_model
        from swift_demo.task import question, split_numbers, write_data

        model = write_model(out / "model")
        train_file, test_file = write_data(out)
        print_line(f"  {model}: random weights, a byte-level tokenizer, a chat template")
        print_line(f"  {train_file}: 800 numbers to learn from; {test_file}: 100 others for the evaluation")

        command = (
            f"sft --model {model} --dataset {train_file} --train_type full --packing true --max_length 512 "
            f"--per_device_train_batch_size 4 --max_steps {STEPS} --learning_rate 4e-3 --logging_steps 30 "
            f"--backend.cpu_threads 1 --save_steps {PAUSE} --output_dir {model.parent / 'runs'}"
        )
        print_title(f"2. Train, and stop in the middle\n   $ swift {command}")
        paused = train_with(command, pause_at=PAUSE)
        print_title(
            "3. Resume from the checkpoint: same samples, same schedule, same optimizer state\n"
            f"   $ swift sft ... --resume_from_checkpoint {paused}"
        )
        done = train_with(f"{command} --resume_from_checkpoint {paused}")

        exported = out / "exported"
        print_title(
            f"4. Export, and compare what was written with what was trained\n"
            f"   $ swift export {done} --to hf --out {exported}"
        )
        export(done, exported)

        print_title(
            f"5. Evaluate on questions that it has never seen\n   $ swift eval {exported} --dataset {test_file}"
        )
        questions = [question(number) for number in split_numbers()[1][:SHOWN]]
        right = accuracy(open_chat(str(exported)), test_file, questions)

        print_line(f"\nAccuracy on held-out questions: {right:.0%}. All of it took {time.monotonic() - started:.0f} s.")
        if right < GOAL:
            print_line(f"That is less than the {GOAL:.0%} that this demo should reach.")
            return 1
        print_line(f"Curves of the run: {done.parent / 'report.html'}")
        print_line("\nNext, with your own model and data:")
        print_line("  swift sft --model Qwen/Qwen3-0.6B --dataset your_data.jsonl      fine-tune with LoRA")
        print_line("  swift sft --help                                                 the most used flags")
        print_line(f"  swift chat {exported}                                  talk to the model of this demo")
        return 0


def _fresh(out: Path) -> None:
    """Remove an earlier demo, and nothing that is not one."""
    if out.exists():
        if not (out / MARKER).is_file() and any(out.iterdir()):
            raise UsageError(f"{out} is not empty and not an earlier demo.", hint="Type: swift demo --out FOLDER")
        shutil.rmtree(out)
    out.mkdir(parents=True)
    (out / MARKER).touch()
