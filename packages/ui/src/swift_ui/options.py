"""Options of `swift ui` and `swift watch`, and the settings of a server, which no request can change."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from pydantic import Field

from swift.config.options import Argument, Section

LOOPBACK = "127.0.0.1"
LOCAL_HOSTS = frozenset({LOOPBACK, "localhost", "::1"})


class UiOptions(Section):
    """Options that only the terminal can set: folders, host, and whether third-party code may run."""

    examples = (
        "swift ui",
        "swift ui output /data/runs --port 9000",
        "ssh -L 7860:127.0.0.1:7860 MACHINE swift ui --port 7860",
    )
    roots: Annotated[list[str], Argument("FOLDER")] = Field(
        ["output"], description="Folders with runs; the dashboard reads and writes only in them", min_length=1
    )
    port: Annotated[int | None, Field(ge=0, le=65535)] = Field(
        None, description="Port to listen on (default: 7860, or a free port if 7860 is in use)"
    )
    host: str = Field(
        LOOPBACK, description="Address to listen on; addresses other than loopback are reachable from other machines"
    )
    open: bool = Field(False, description="Open the dashboard in this machine's browser")
    trust_remote_code: bool = Field(
        False, description="Let commands from the dashboard run third-party code, such as the code of models"
    )


class WatchOptions(Section):
    """Options of `swift watch`."""

    examples = ("swift watch output/qwen3-0.6b/v0-20260101-120000", "swift watch")
    run: Annotated[str, Argument("RUN")] = Field(
        "output", description="Folder of a run, or of several runs: the newest is shown"
    )
    every: Annotated[float, Field(gt=0, le=3600)] = Field(0.5, description="Seconds between two updates")
    once: bool = Field(False, description="Print the run once and exit, for logs and scripts")


@dataclass(frozen=True)
class UiSettings:
    """Folders, address and token of a server."""

    roots: tuple[Path, ...]
    host: str = LOOPBACK
    port: int = 7860
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Token for the login: 192 bits, new for each server."""
    trust_remote_code: bool = False

    @property
    def address(self) -> str:
        """Address of the page; browsers do not send the part after # to servers, so no log has the token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/#token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie, different for each port."""
        return f"swift_ui_{self.port}"
