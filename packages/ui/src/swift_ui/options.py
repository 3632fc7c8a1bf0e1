"""The flags of `swift ui` and `swift watch`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from swift.config.options import Argument, Section

LOOPBACK = "127.0.0.1"


class UiOptions(Section):
    """Everything that only the terminal can say: which folders, which host, and whether code of models may run."""

    examples = (
        "swift ui",
        "swift ui output /data/runs --port 9000",
        "ssh -L 7860:127.0.0.1:7860 MACHINE swift ui --port 7860",
    )
    roots: Annotated[list[str], Argument("FOLDER")] = Field(
        ["output"], description="Folders with runs in them; the page reads and writes nothing elsewhere", min_length=1
    )
    port: Annotated[int | None, Field(ge=0, le=65535)] = Field(
        None, description="Port to listen on; without this flag 7860, or another one where that is taken"
    )
    host: str = Field(
        LOOPBACK, description="Address to listen on; another one than this machine's own opens it to others"
    )
    open: bool = Field(False, description="Open the page in this machine's browser")
    trust_remote_code: bool = Field(
        False, description="Let commands that the page starts run code that lies in models' folders"
    )


class WatchOptions(Section):
    """Which run, and how often it is drawn."""

    examples = ("swift watch output/qwen3-0.6b/v0-20260101-120000", "swift watch")
    run: Annotated[str, Argument("RUN")] = Field(
        "output", description="A run's folder, or one with runs in it: the newest is shown"
    )
    every: Annotated[float, Field(gt=0, le=3600)] = Field(0.5, description="Seconds between two looks at the run")
    once: bool = Field(False, description="Draw the run once and end, for logs and scripts")
