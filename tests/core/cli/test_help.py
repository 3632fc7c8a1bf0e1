"""Help of every verb: what it shows, and that it is made without importing what takes long."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from swift.cli.main import run
from swift.cli.options import flag_table, options_of
from swift.cli.verbs import TRAINING, VERBS

PROGRAM = """
import contextlib, io, json, os, sys

from swift.cli.main import run

found = {}
for verb in json.loads(sys.argv[1]):
    reader, writer = os.pipe()
    if os.fork() == 0:  # as in an interpreter of its own: nothing of another verb is imported
        with contextlib.redirect_stdout(io.StringIO()):
            code = run([verb, "--help"])
        os.write(writer, json.dumps([code, sorted(sys.modules)]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        found[verb] = json.loads(answer.read())
    os.wait()
print(json.dumps(found))
"""
HEAVY = {"torch", "transformers", "datasets", "peft", "numpy", "safetensors", "huggingface_hub", "jinja2", "psutil"}
SLOW = {"rich", "typer", "yaml", "packaging", "pyarrow", "ssl"}
"""Light enough for a verb's work, and too slow for its help."""
OWN_VERBS = sorted(set(VERBS) - set(TRAINING))


@pytest.fixture(scope="module")
def imported() -> dict[str, set[str]]:
    """Verb → modules that its help imports."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(list(VERBS))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {verb: code for verb, (code, _) in found.items()} == dict.fromkeys(VERBS, 0)
    return {verb: set(modules) for verb, (_, modules) in found.items()}


@pytest.mark.parametrize("verb", VERBS)
def test_help_imports_nothing_that_takes_long(imported: dict[str, set[str]], verb: str) -> None:
    assert not (HEAVY | SLOW) & imported[verb]


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_help_of_a_verb_imports_neither_plugins_nor_the_sections_of_training(
    imported: dict[str, set[str]], verb: str
) -> None:
    others = {"swift.plugins.load", "swift.plugins.discover", "swift.contracts", "swift.config.parse"}
    if verb not in ("export", "merge-lora"):  # whose options are a section of the configuration, too
        others.add("swift.config.sections")
    assert not others & imported[verb]


@pytest.mark.parametrize("verb", OWN_VERBS)
def test_help_of_a_verb_shows_every_flag_with_its_meaning_and_its_default(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "250")
    assert run([verb, "--help"]) == 0
    printed = capsys.readouterr().out
    assert f"swift {verb}: {VERBS[verb].summary}" in printed
    options = options_of(verb)
    assert options is not None
    table = flag_table(verb, options)
    for flag in (*table.fields, *table.aliases):
        assert f"--{flag}" in printed
    for field in table.fields.values():
        assert field.description
        assert field.description in printed


def test_lines_of_help_are_no_longer_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    for verb in ("infer", "export", "serve", "sft"):
        assert run([verb, "--help"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, (line for line in lines if not line.startswith("  swift ")))) <= 92
