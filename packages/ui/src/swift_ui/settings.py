"""Settings of a server from its start: nothing of them can be changed by a request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from swift_ui.options import LOOPBACK


@dataclass(frozen=True)
class UiSettings:
    """Folders, address and token of one start."""

    roots: tuple[Path, ...]
    host: str = LOOPBACK
    port: int = 7860
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """Opens the page: 192 bits, new at each start."""
    trust_remote_code: bool = False

    @property
    def address(self) -> str:
        """Address to type into a browser; what stands after # is never sent to a server or written into its logs."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/#token={self.token}"

    @property
    def cookie(self) -> str:
        """Name of the cookie: servers on other ports of this machine have cookies of their own."""
        return f"swift_ui_{self.port}"
