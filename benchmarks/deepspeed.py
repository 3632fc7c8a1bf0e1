"""The DeepSpeed backend: speed against `deepspeed.initialize` by hand and the Trainer's, and memory by stage."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.engines import Engine, memory, speed, swift_memory
from benchmarks.facts import Figure
from benchmarks.inputs import WORK, ensure

JSON = {
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
}
FILE = WORK / "ds_config.json"
ZERO = Engine(
    "deepspeed",
    ("--deepspeed", str(FILE)),
    "benchmarks.deepspeed_loop",
    "deepspeed-loop-in-turn",
    "DeepSpeed by hand",
    {"deepspeed": JSON},
)
STAGES = ("zero0", "zero1", "zero2", "zero3")


def measure(quick: bool) -> tuple[list[Figure], dict[str, Any]]:
    """Figures, and what they were made of."""
    ensure()
    FILE.write_text(json.dumps(JSON))
    of_speed, speed_details = speed(ZERO, quick)
    of_memory, memory_details = memory(ZERO, (2,))
    stages = {
        stage: {
            count: swift_memory(Engine(stage, ("--deepspeed", stage), "", "", ""), count)
            for count in ((2,) if quick else (1, 2, 4))
        }
        for stage in STAGES
    }
    of_stages = [
        Figure(f"{stage}, {count} processes: weights and moments of each", found["rest"], "MiB")
        for stage, counts in stages.items()
        for count, found in counts.items()
    ]
    return [*of_speed, *of_memory, *of_stages], {**speed_details, **memory_details, "stages_mib": stages}
