"""`swift ui`: prints the address of the dashboard, and serves it until it is interrupted."""

from __future__ import annotations

import socket
from pathlib import Path

from swift.errors import UsageError
from swift.terminal import print_line
from swift_ui.options import LOCAL_HOSTS, UiOptions, UiSettings

PORT = 7860


class UiCommand:
    """Implements `swift.contracts.Command`."""

    group = "Inspect"
    summary = "Show and start runs in a browser"
    options_model = UiOptions

    def run(self, options: UiOptions) -> int:
        """Serve until Ctrl+C; return the exit code."""
        from swift_ui.app import serve

        roots = tuple(Path(root).expanduser().absolute() for root in options.roots)
        for root in roots:
            if root.exists() and not root.is_dir():
                raise UsageError(f"{root} is a file, not a folder of runs.", hint="For example: swift ui output")
        with _listen(options.host, options.port) as listening:
            settings = UiSettings(
                roots, options.host, listening.getsockname()[1], trust_remote_code=options.trust_remote_code
            )
            print_line(f"Open {settings.address}")
            print_line(f"Serving the runs in {', '.join(map(str, roots))}. Ctrl+C stops the server; runs continue.")
            if options.host not in LOCAL_HOSTS:
                print_line(
                    "Warning: other machines can reach this address, unencrypted. The token allows running commands."
                )
            serve(settings, listening, show=options.open)
        return 0


def _listen(host: str, port: int | None) -> socket.socket:
    """Return a listening socket: on `port`, or on the default port or a free one if `port` is None."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    for wanted in (PORT, 0) if port is None else (port,):
        try:
            listening.bind((host, wanted))
            listening.listen(64)
            return listening
        except OSError as error:
            reason = error.strerror
    listening.close()
    raise UsageError(f"Cannot listen on {host}, port {port}: {reason}.", hint="Use a free port: swift ui --port 0")
