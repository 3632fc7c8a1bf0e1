"""The flags of `swift plan`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from swift.config.options import Aliases, Argument, Section
from swift_plan.failures import HOURS_OF_A_DEVICE


class PlanOptions(Section):
    """All other flags are those of the run, as the command that trains takes them: what is typed is kept."""

    examples = (
        "swift plan qwen3-8b --gpus 8xH100 --train_type full --max_length 8192",
        "swift plan llama-3.1-70b --gpus 4x8xH100 --global_batch_size 128 --price 2.5",
        "swift plan model/config.json --gpus 8xmine.json --backend fsdp --explain 1",
    )
    model: Annotated[str, Argument("MODEL"), Aliases("model_id_or_path")] = Field(
        description="A folder or config.json, a model on this machine, or a known name: llama-3.1-8b"
    )
    gpus: str = Field(description="8xH100, 4x8xH100 (machines × devices), or 8xFILE.json that describes a device")
    kind: Annotated[Literal["pt", "sft", "rlhf", "train"], Aliases("verb")] = Field(
        "sft", description="The command that the plan is for"
    )
    top: Annotated[int, Field(ge=1, le=1000)] = Field(5, description="How many plans to show")
    explain: Annotated[int | None, Field(ge=1)] = Field(
        None, description="Show memory and time of plan N by term; the first one's without this flag"
    )
    level: Annotated[int, Field(ge=0, le=3)] = Field(
        0,
        description="0 counts activations, 1 traces the step without values (seconds; imports torch), 2 also runs "
        "two blocks and four of the model on this machine, for the first plans; 3 traces, and times messages between "
        "this machine's devices, which is kept",
    )
    measure: Annotated[int | None, Field(ge=1, le=50)] = Field(
        None, description="Run the first N plans for a few steps on this machine, and choose among them: 5"
    )
    price: PositiveFloat | None = Field(None, description="Cost of one device for an hour, in any currency")
    host_memory: PositiveFloat = Field(2000.0, description="GB of memory of one machine, for what is offloaded")
    save_seconds: PositiveFloat = Field(
        30.0, description="How long a checkpoint keeps training waiting, of many devices"
    )
    restart_seconds: PositiveFloat = Field(
        600.0, description="From a failure until training goes on: noticing it, starting, reading the checkpoint"
    )
    device_hours: PositiveFloat = Field(
        HOURS_OF_A_DEVICE, description="Hours that one device runs until something stops its job"
    )
    json_out: Annotated[bool, Aliases("json")] = Field(False, description="Print everything as JSON")
