"""Settings of a server, which no request can change."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path

from swift_ui.options import LOOPBACK


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
