"""Recipes of `make real`: their data hold nothing out twice, and their runs are valid commands."""

from __future__ import annotations

import json
import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest
from real import recipe_pages, run
from real_recipes import RECIPES

from swift.parsing import parse
from swift_demo.identity import HELD_OUT, identity_rows, named

TRAINING = {"pt", "sft", "rlhf"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_trains_on_none_of_held_out_rows(name: str) -> None:
    (trained, *others) = [{json.dumps(row) for row in rows} for rows in RECIPES[name].rows().values()]
    assert trained
    assert all(rows and not rows & trained for rows in others)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_commands_are_valid_runs(name: str) -> None:
    """A flag that changes its name is found without running the recipe."""
    for command in RECIPES[name].commands:
        _, verb, *words = shlex.split(command)
        if verb in TRAINING:
            assert parse(words, verb).config.model.path == RECIPES[name].model


def test_pages_have_score_time_and_losses() -> None:
    pages = recipe_pages()
    for name, page in pages.items():
        if name != "README.md":
            assert "** before, **" in page
            assert "| command | wall clock | CPU time | peak memory |" in page
            assert f"]({name})" in pages["README.md"]


def test_identity_is_asked_with_other_questions() -> None:
    learned = {row["messages"][0]["content"] for row in identity_rows()}
    assert not learned & set(HELD_OUT)
    assert named(["I am Orion.", "Blue Lab made me.", "I am a language model.", "Elena"]) == 0.5


def test_server_of_recipe_runs_until_recipe_ends(tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(
        "import signal, sys\ndef end(*_):\n    open('ended', 'w')\n    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\nprint('Loading')\nprint('Serving it', flush=True)\nsignal.pause()\n"
    )
    with ExitStack() as servers:
        server = run("python serve.py &", tmp_path, servers)
        assert run("echo hello", tmp_path, servers)["output"] == "hello"
        assert not (tmp_path / "ended").exists()
    assert (tmp_path / "ended").exists()
    assert server["peak_gib"] > 0
    assert "output" not in server
