"""Make distributions with one plugin each that misbehaves in one way, and put them on the path of a case."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import dedent, indent
from typing import Literal
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge import Case, judge, sampled
from strategies import examples

VERSION = "1.2"
TRAINING = ("--model", "model", "--dataset", "data.jsonl", "--max_steps", "2", "--train_type", "full")
SMALL = ("--backend.device", "cpu", "--data.workers", "1", "--logging.run_name", "run")
TRAIN = ["train", *TRAINING, *SMALL]
COMMANDS = {
    "backend": [*TRAIN, "--report_to", "jsonl", "--backend", "hostile"],
    "objective": [*TRAIN, "--report_to", "jsonl", "--objective", "hostile"],
    "observer": [*TRAIN, "--report_to", "hostile"],
    "optimizer": [*TRAIN, "--report_to", "jsonl", "--optim.name", "hostile"],
    "tuner": ["train", *TRAINING[:-2], *SMALL, "--report_to", "jsonl", "--tuner.kind", "hostile"],
    "planner": ["train", *TRAINING, *SMALL[2:], "--report_to", "jsonl", "--backend", "auto"],
    "exporter": ["export", "model", "--to", "hostile", "--out", "exported", "--verify", "transformers"],
    "engine": [
        *("infer", "model", "--engine", "hostile", "--prompt", "one", "--prompt", "two"),
        *("--max_new_tokens", "2"),
    ],
    "command": ["hostile"],
    "reward": ["rewards", "test", "completions.jsonl", "--reward_funcs", "hostile"],
}
"""Kind → the command line that makes use of a plugin."""
IMPORTS = """
from swift import LossSums, Need, Section, hookimpl
from swift.contracts import Completion, Reads, Score, Slot
from swift.contracts.planner import ChosenPlan, ExpectedMemory
"""
GOOD = {
    "backend": "from swift.backends.torch.plugin import DataParallelBackend as Base",
    "objective": "from swift.objectives.likelihood import Sft as Base",
    "optimizer": "from swift_testing.third_party import Momentum as Base",
    "tuner": "from swift_testing.third_party import EverySecond as Base",
    "exporter": "from swift.export.plugins import HuggingFaceExporter as Base",
    "observer": """
        class Base:
            @hookimpl
            def swift_checkpoint_saved(self, folder):
                pass
    """,
    "engine": """
        class Engine:
            def generate(self, prompts, sampling):
                for index, _ in enumerate(prompts):
                    yield index, Completion([65], [-1.0], "length")

            def stream(self, prompt, sampling):
                yield 65

            def score(self, prompts):
                for index, prompt in enumerate(prompts):
                    yield index, Score([-1.0] * (len(prompt) - 1), [False] * (len(prompt) - 1))

            def update_weights(self, weights):
                pass

            def close(self):
                pass

        class Base:
            @hookimpl
            def swift_open_engine(self, request):
                return Engine()
    """,
    "planner": """
        class Base:
            def choose(self, words, command, processes, machines):
                return ChosenPlan(("--backend", "torch"), "It is there.")
    """,
    "command": """
        from swift.config.options import Section

        class Options(Section):
            speed: int = 1

        class Base:
            summary = "Go fast"
            options_model = Options

            def run(self, options):
                return 0
    """,
    "reward": """
        class Base:
            isolation = "inline"

            def score(self, items):
                return [1.0 for _ in items]
    """,
}
"""Kind → the base class of a plugin that works."""


def plugin(kind: str, *members: str) -> str:
    """The source of a plugin that works but for these members of its class."""
    name = 'name = "hostile"' if kind == "objective" else "pass"
    return f"{IMPORTS}{dedent(GOOD[kind])}\n" + "\n".join(
        ["class Plugin(Base):", *(indent(dedent(each), "    ") for each in (name, *members))]
    )


def method(signature: str, *body: str) -> str:
    """One method, or with `hook` one hook's implementation."""
    return f"def {signature}:\n" + "\n".join(indent(dedent(each), "    ") for each in body)


def hook(name: str, *body: str, arguments: str = "self", wrapper: bool = False) -> str:
    return f"@hookimpl{'(wrapper=True)' if wrapper else ''}\n{method(f'{name}({arguments})', *body)}"


def install(folder: Path, module: str, source: str, points: str, *, metadata: str | None = None) -> None:
    """Put a distribution on the path, as pip would unpack it; `points` is its `entry_points.txt`."""
    site = folder.parent / "site"
    site.mkdir(exist_ok=True)
    (site / f"{module}.py").write_text(source, encoding="utf-8")
    info = site / f"{module}-{VERSION}.dist-info"
    info.mkdir()
    known = f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: {VERSION}\n"
    if metadata != "missing":
        (info / "METADATA").write_text(known if metadata is None else metadata, encoding="utf-8")
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    if str(site) not in sys.path:
        sys.path.insert(0, str(site))


def module_of(title: str) -> str:
    """A name that no other case has: modules stay imported from one case to the next."""
    return f"hostile_{crc32(title.encode()):08x}"


def case(
    title: str,
    kind: str,
    source: str,
    *names: str,
    expected: Literal["refused", "works"] = "refused",
    code: int = 3,
    target: str = "Plugin",
    argv: Sequence[str] | None = None,
    identity: bool = True,
) -> Case:
    """One plugin that is used; a refusal must name it, its distribution and `names`, and what works must print them.

    In `names`, `{who}` is the plugin. Without `identity` it need not be named: the error is its own, or about what it
    wrote.
    """
    module = module_of(title)
    distribution = module.replace("_", "-")

    def build(folder: Path) -> Sequence[str]:
        install(folder, module, source, f"[swift.{kind}s]\nhostile = {module}:{target}\n")
        if kind == "planner":  # without swift's own, and what else is installed
            os.environ["SWIFT_PLUGINS"] = distribution
        if kind == "reward":
            row = {"messages": [{"role": "user", "content": "?"}], "completion": "abc"}
            (folder / "completions.jsonl").write_text(json.dumps(row), encoding="utf-8")
        return COMMANDS[kind] if argv is None else argv

    who = f"{kind} 'hostile' ({distribution} {VERSION})"
    shown = tuple(name.replace("{who}", who) for name in names)
    leaves = () if kind == "exporter" else ("output*",)
    if expected == "works":
        return Case(title, build, expected, prints=shown)
    return Case(title, build, expected, ((who,) if identity else ()) + shown, exit_code=code, leaves=leaves)


def as_test(cases: Sequence[Case]) -> Callable[[Case, Path], None]:
    """Return the test that all of these plugins are named where they misbehave."""

    @pytest.mark.usefixtures("tracebacks")
    @pytest.mark.parametrize("case", sampled(cases))
    def test(case: Case, template: Path) -> None:
        judge(case, template)

    return test


def as_property(cases: Sequence[Case], count: int) -> Callable[..., None]:
    """Return the property that any of these plugins is named where it misbehaves, with so many examples."""
    known = {case.name: case for case in cases}

    @pytest.mark.usefixtures("tracebacks")
    @examples(count)
    @given(name=st.sampled_from(list(known)))
    def test(name: str, template: Path) -> None:
        judge(known[name], template)

    return test
