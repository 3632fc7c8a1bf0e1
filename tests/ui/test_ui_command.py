"""Flags and output of `swift ui`."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
from commands import typed

from swift.errors import UsageError
from swift_ui import app, command
from swift_ui.command import UiCommand
from swift_ui.options import UiOptions, UiSettings


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[UiSettings]:
    """The settings of servers, which are not started."""
    found: list[UiSettings] = []

    def serve(settings: UiSettings, listening: socket.socket, **_: Any) -> None:
        assert listening.getsockname()[1] == settings.port
        found.append(settings)

    monkeypatch.setattr(app, "serve", serve)
    return found


def test_printed_address_has_new_token_each_start(
    served: list[UiSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The address with the token is printed and another one at each start."""
    for _ in range(2):
        assert UiCommand().run(UiOptions(roots=[str(tmp_path)], port=0)) == 0
    first, second = served
    assert first.token != second.token
    assert (first.host, first.trust_remote_code) == ("127.0.0.1", False)
    printed = capsys.readouterr().out
    assert f"Open http://127.0.0.1:{first.port}/#token={first.token}\n" in printed
    assert "other machines can reach" not in printed


def test_taken_port_is_skipped_by_default_or_reported(
    served: list[UiSettings], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A taken port is skipped by default and reported where it was requested."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(command, "PORT", taken)
        UiCommand().run(UiOptions(roots=[str(tmp_path)]))
        assert served[0].port != taken
        with pytest.raises(UsageError, match=f"port {taken}: Address already in use") as refused:
            UiCommand().run(UiOptions(roots=[str(tmp_path)], port=taken))
    assert refused.value.hint is not None
    assert "--port 0" in refused.value.hint


def test_another_host_is_warned_of(
    served: list[UiSettings], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    UiCommand().run(UiOptions(roots=[str(tmp_path)], host="0.0.0.0", port=0))
    assert "other machines can reach this address" in capsys.readouterr().out


def test_file_instead_of_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ended = typed(["ui", str(tmp_path / "file")], tmp_path)
    assert ended.code == 2
    assert "is a file, not a folder of runs" in ended.output
