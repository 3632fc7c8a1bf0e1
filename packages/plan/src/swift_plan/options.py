"""Options of `swift plan`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from swift.config.options import Aliases, Argument, Section
from swift_plan.failures import HOURS_OF_A_DEVICE


class PlanOptions(Section):
    """Options of `swift plan`. All other flags are those of the run."""

    examples = (
        "swift plan qwen3-8b --gpus 8xH100 --train_type full --max_length 8192",
        "swift plan llama-3.1-70b --gpus 4x8xH100 --global_batch_size 128 --price 2.5",
        "swift plan model/config.json --gpus 8xmine.json --backend fsdp --explain 1",
    )
    model: Annotated[str, Argument("MODEL"), Aliases("model_id_or_path")] = Field(
        description="A folder or config.json, a model on this machine, or a known name: llama-3.1-8b"
    )
    gpus: str = Field(description="8xH100, 4x8xH100 (machines × devices), or 8xFILE.json that describes a device")
    kind: Literal["pt", "sft", "rlhf", "train"] = Field("sft", description="Training command of the run")
    top: Annotated[int | None, Field(ge=1, le=1000)] = Field(
        None, description="Show a table of the N fastest plans, and of the best of each backend"
    )
    explain: Annotated[int | None, Field(ge=1)] = Field(None, description="Show memory and time of plan N by term")
    level: Annotated[int, Field(ge=0, le=3)] = Field(
        0,
        description="0 estimates activations; 1 traces a step without values (imports torch); 2 also runs two and "
        "four blocks of the model on this machine, for the first plans; 3 traces, and measures messages between this "
        "machine's devices, which later plans use",
    )
    measure: Annotated[int | None, Field(ge=1, le=50)] = Field(
        None, description="Run the first N plans for a few steps on this machine and show the fastest, for example 5"
    )
    price: PositiveFloat | None = Field(None, description="Price of one device per hour, in any currency")
    host_memory: PositiveFloat = Field(2000.0, description="Host memory per machine in GB, for offloading")
    save_seconds: PositiveFloat = Field(30.0, description="Seconds that saving a checkpoint interrupts training")
    restart_seconds: PositiveFloat = Field(600.0, description="Seconds from a failure until training resumes")
    device_hours: PositiveFloat = Field(HOURS_OF_A_DEVICE, description="Mean hours between failures of one device")
    json_out: Annotated[bool, Aliases("json")] = Field(False, description="Print everything as JSON")
