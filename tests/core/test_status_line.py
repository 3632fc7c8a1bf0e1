"""What a terminal shows while something takes its time."""

from __future__ import annotations

import io
import sys

import pytest
from screen import on_a_terminal

from swift.terminal import print_line, print_note, shows_work, waiting, work_at_hand


def test_status_line_appears_and_disappears(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as screen:
        with waiting("Importing torch"):
            assert screen.wait_for("Importing torch ...")
        print_line("done")
    assert [line for line in screen.lines if line] == ["done"]


def test_printed_lines_do_not_mix_with_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as screen, waiting("Loading"):
        assert screen.wait_for("Loading ...")
        print_line("one")
        with waiting("Building"):
            assert screen.wait_for("Building ...")
            print_note("two")
    assert [line for line in screen.lines if line] == ["one", "two"]


def test_status_line_shows_elapsed_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as screen, waiting("vLLM loads tiny"):
        assert screen.wait_for("vLLM loads tiny ... 1 s")


def test_own_display_replaces_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_a_terminal(monkeypatch) as screen, shows_work(), waiting("saving"):
        assert work_at_hand() == "saving ..."
    assert work_at_hand() is None
    assert "saving" not in screen.raw


@pytest.mark.parametrize("variables", [{"CI": "true"}, {"TERM": "dumb"}, {"RANK": "1"}])
def test_ci_dumb_terminal_and_other_ranks_print_nothing(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    """CI dumb terminals and other processes of the run get nothing."""
    with on_a_terminal(monkeypatch) as screen:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with waiting("Importing torch"):
            print_line("done")
    assert screen.raw == "done\r\n"


def test_status_line_is_off_for_files_and_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with waiting("Importing torch"):
        pass
    assert sys.stderr.getvalue() == ""
