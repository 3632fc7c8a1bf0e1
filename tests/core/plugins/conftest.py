"""One folder with all the distributions, good and broken, side by side: a broken one must never disturb the others."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from small_distributions import Distribution, backend, install

OBSERVERS = '''
from swift import hookimpl

seen = []


class Doubler:
    """Goes around the backend's step."""

    @hookimpl(wrapper=True)
    def swift_train_step(self, batch):
        seen.append(("before", batch))
        result = yield
        seen.append(("after", result.loss))
        result.loss *= 2
        return result


class Listener:
    @hookimpl
    def swift_step_end(self, record):
        seen.append(("told", record))


class Rogue:
    """Steps itself, which is the backend's business."""

    @hookimpl
    def swift_train_step(self, batch):
        return 99
'''
BUILTIN_COMMANDS = """
class Greet:
    summary = "Say hello"

    def run(self, words):
        return 0 if words else 2


class Mute:
    def run(self, words):
        return 0
"""
TYPER_COMMANDS = """
import typer

from swift.errors import UsageError

app = typer.Typer(help="Weigh things.")


@app.command()
def weigh(thing: str, unit: str = "kg"):
    if thing == "air":
        raise UsageError("Air cannot be weighed here.")
    if thing == "crash":
        raise RuntimeError("the scales broke")
    if thing == "nothing":
        raise typer.Exit(4)
    typer.echo(f"{thing} in {unit}")


empty = typer.Typer()
"""
MORE_COMMANDS = """
from typing import Annotated

from pydantic import Field

from swift import Section
from swift.config.options import Aliases, Argument
from swift.errors import UsageError


class Options(Section):
    \"\"\"Measures what is named.\"\"\"

    what: Annotated[str, Argument("WHAT"), Aliases("thing")] = Field(description="What is measured")
    unit_size: int = Field(1, description="Size of the unit")


class Measure:
    summary = "Measure something"
    options_model = Options

    def run(self, options):
        if options.what == "nothing":
            raise UsageError("Nothing has no size.")
        if options.what == "crash":
            raise RuntimeError("the ruler broke")
        if options.what == "words":
            return "many"
        print(f"{options.what}: {options.unit_size}")
        return 0


class Doctor:
    summary = "Examine something else"

    def run(self, words):
        raise AssertionError("took the place of a command of swift itself")
"""
EXPORTERS = """
from swift import hookimpl
from swift.contracts import EngineLibrary, SchemeFacts


class Small:
    schemes = {
        "acme3": SchemeFacts("3-bit weights", not_served_by={"small": "it reads whole bits only"}),
        "acme-rounded": SchemeFacts("2-bit weights", calibrated=False),
    }

    tasks = frozenset({"causal_lm", "embedding"})

    @hookimpl
    def swift_export(self, request): ...

    @hookimpl
    def swift_quantize(self, request): ...


class Smaller(Small):
    schemes = {"acme3": Small.schemes["acme3"]}


class Boastful:
    schemes = {"acme1": SchemeFacts("1-bit weights")}

    @hookimpl
    def swift_export(self, request): ...


class Spelled:
    tasks = "causal_lm"

    @hookimpl
    def swift_export(self, request): ...


class Vague:
    schemes = {"acme1": "1-bit weights"}

    @hookimpl
    def swift_export(self, request): ...

    @hookimpl
    def swift_quantize(self, request): ...


class Ask:
    library = EngineLibrary("acme_answers", {"acme-answers": "acme-ask[answers]"})

    @hookimpl
    def swift_open_engine(self, request): ...


class Mumble(Ask):
    library = "acme-answers"
"""
STEP = "    def swift_train_step(self, batch):"
DISTRIBUTIONS = [
    backend("acme-good", "acme"),
    backend("acme-import", "broken-import", ("from swift.contracts", "import acme_needs_this\nfrom swift.contracts")),
    backend("acme-crash", "crashing", ("class Options", "raise RuntimeError('no driver')\n\n\nclass Options")),
    backend("acme-future", "future", ("HOOK_API = HOOK_API", "HOOK_API = (HOOK_API[0], HOOK_API[1] + 1)")),
    backend("acme-ancient", "ancient", ("HOOK_API = HOOK_API", "HOOK_API = (HOOK_API[0] - 1, 7)")),
    backend("acme-silent", "silent", ("    HOOK_API = HOOK_API\n", "")),
    backend("acme-misspelt", "misspelt", ("def swift_train_step", "def swift_trian_step")),
    backend(
        "acme-twice",
        "twice",
        ("class Engine:", "class Engine:\n    @hookimpl(specname='swift_setup')\n    def other(self): ...\n"),
    ),
    backend("acme-missing", "missing-hook", ("    @hookimpl\n    def swift_teardown", "    def _teardown")),
    backend("acme-undecorated", "undecorated", (f"    @hookimpl\n{STEP}", STEP)),
    backend("acme-default", "default", (STEP, STEP.replace("batch", "batch=None"))),
    backend("acme-argument", "argument", (STEP, STEP.replace("batch", "batches"))),
    backend("acme-newer-core", "newer-core", requires=("swift-core>=99",)),
    backend("acme-capable", "no-capabilities", ("    capabilities = Capabilities", "    ability = Capabilities")),
    backend(
        "acme-optional",
        "misspelt-optional",
        (STEP, f"    def swift_read_third_prty(self, folder): ...\n\n    @hookimpl\n{STEP}"),
    ),
    Distribution("acme-more-verbs", MORE_COMMANDS, {"swift.commands": {"measure-it": "Measure", "doctor": "Doctor"}}),
    Distribution(
        "acme-exporters",
        EXPORTERS,
        {
            "swift.exporters": {
                "small": "Small",
                "smaller": "Smaller",
                "boastful": "Boastful",
                "spelled": "Spelled",
                "vague": "Vague",
            },
            "swift.engines": {"ask": "Ask", "mumble": "Mumble"},
        },
    ),
    Distribution("acme-typer", TYPER_COMMANDS, {"swift.commands": {"weigh": "app", "empty": "empty"}}),
    Distribution("acme-verbs", BUILTIN_COMMANDS, {"swift.commands": {"greet": "Greet", "mute": "Mute"}}),
    backend("twin-one", "twin"),
    backend("twin-two", "twin"),
    backend("acme-torch", "torch"),
    Distribution(
        "acme-observers",
        OBSERVERS,
        {"swift.observers": {"doubler": "Doubler", "listener": "Listener", "rogue": "Rogue"}},
    ),
]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the distributions are installed in."""
    folder = tmp_path_factory.mktemp("site")
    install(DISTRIBUTIONS, folder, tmp_path_factory.mktemp("wheels"))
    return folder


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The distributions, installed for one test."""
    monkeypatch.delenv("SWIFT_PLUGINS", raising=False)
    monkeypatch.syspath_prepend(str(site))
    yield site
    for distribution in DISTRIBUTIONS:
        sys.modules.pop(distribution.module, None)
