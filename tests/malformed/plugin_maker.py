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
Build = Callable[[Path], Sequence[str]]

GROUPS = {
    "backend": "swift.backends",
    "exporter": "swift.exporters",
    "objective": "swift.objectives",
    "observer": "swift.observers",
    "engine": "swift.engines",
}
FURTHER = {
    "optimizer": "swift.optimizers",
    "tuner": "swift.tuners",
    "planner": "swift.planners",
    "command": "swift.commands",
    "reward": "swift.rewards",
}
"""Kinds whose cases stand in a file of their own."""
TRAINING = ("--model", "model", "--dataset", "data.jsonl", "--max_steps", "2", "--train_type", "full")
SMALL = ("--backend.device", "cpu", "--data.workers", "1", "--logging.run_name", "run")

GOOD = {
    "backend": """
        from swift import hookimpl
        from swift.backends.torch.plugin import DataParallelBackend

        class Plugin(DataParallelBackend):
            pass
    """,
    "objective": """
        from swift import LossSums, Need, Section
        from swift.objectives.likelihood import Sft

        class Plugin(Sft):
            name = "hostile"
    """,
    "observer": """
        from swift import hookimpl

        class Plugin:
            @hookimpl
            def swift_checkpoint_saved(self, folder):
                pass
    """,
    "exporter": """
        import json
        from swift import hookimpl
        from swift.export.plugins import HuggingFaceExporter

        class Plugin(HuggingFaceExporter):
            pass
    """,
    "engine": """
        from swift import hookimpl
        from swift.contracts import Completion, Score

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

        class Plugin:
            @hookimpl
            def swift_open_engine(self, request):
                return Engine()
    """,
    "optimizer": """
        from swift.contracts import Reads, Slot
        from swift.testing.third_party import Momentum

        class Plugin(Momentum):
            pass
    """,
    "tuner": """
        from swift.testing.third_party import EverySecond

        class Plugin(EverySecond):
            pass
    """,
    "planner": """
        from swift.contracts.planner import ChosenPlan, ExpectedMemory

        class Plugin:
            def choose(self, words, command, processes, machines):
                return ChosenPlan(("--backend", "torch"), "It is there.")
    """,
    "command": """
        from swift.config.options import Section

        class Options(Section):
            speed: int = 1

        class Plugin:
            summary = "Go fast"
            options_model = Options

            def run(self, options):
                return 0
    """,
    "reward": """
        class Plugin:
            isolation = "inline"

            def score(self, items):
                return [1.0 for _ in items]
    """,
}
"""Kind → a plugin that works."""


def command(kind: str, name: str) -> list[str]:
    """The command line that makes use of a plugin."""
    if kind == "exporter":
        return ["export", "model", "--to", name, "--out", "exported", "--verify", "transformers"]
    if kind == "engine":
        return ["infer", "model", "--engine", name, "--prompt", "one", "--prompt", "two", "--max_new_tokens", "2"]
    if kind == "command":
        return [name]
    if kind == "reward":
        return ["rewards", "test", "answers.jsonl", "--reward_funcs", name]
    if kind == "planner":
        return ["train", *TRAINING, *SMALL[2:], "--report_to", "jsonl", "--backend", "auto"]
    if kind == "tuner":
        return ["train", *TRAINING[:-2], *SMALL, "--report_to", "jsonl", "--tuner.kind", name]
    chosen = {
        "backend": "--backend",
        "objective": "--objective",
        "observer": "--report_to",
        "optimizer": "--optim.name",
    }[kind]
    return ["train", *TRAINING, *SMALL, *([] if kind == "observer" else ["--report_to", "jsonl"]), chosen, name]


def plugin(kind: str, *changes: str) -> str:
    """The source of a good plugin of a kind; changes are members of its class that replace what is there."""
    source = dedent(GOOD[kind])
    return source + "".join(indent(dedent(change), "    ") for change in changes)


def install(
    folder: Path,
    module: str,
    source: str,
    points: str,
    *,
    metadata: str | None = None,
) -> None:
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
    prints: tuple[str, ...] = (),
    identity: bool = True,
) -> Case:
    """One plugin that is used; a refusal must name it, its distribution and `names`.

    In `names` of a plugin that is left out, `{who}` is the plugin. Without `identity` it need not be named: the error
    is its own, or about what it wrote.
    """
    module = module_of(title)
    distribution = module.replace("_", "-")

    def build(folder: Path) -> Sequence[str]:
        install(folder, module, source, f"[{(GROUPS | FURTHER)[kind]}]\nhostile = {module}:{target}\n")
        if kind == "planner":  # without swift's own, and what else is installed
            os.environ["SWIFT_PLUGINS"] = distribution
        if kind == "reward":
            row = {"messages": [{"role": "user", "content": "?"}], "completion": "abc"}
            (folder / "answers.jsonl").write_text(json.dumps(row), encoding="utf-8")
        return command(kind, "hostile") if argv is None else argv

    who = f"{kind} 'hostile' ({distribution} {VERSION})"
    refused = expected == "refused"
    shown = tuple(name.replace("{who}", who) for name in names)
    return Case(
        title,
        build,
        expected,
        ((who,) if identity else ()) + shown if refused else (),
        prints=prints if refused else prints + shown,
        exit_code=code,
        leaves=() if kind == "exporter" else ("output*",),
    )


def hook(name: str, *body: str, arguments: str = "self", wrapper: bool = False) -> str:
    """One hook's implementation."""
    lines = "\n".join(indent(dedent(each), "    ") for each in body)
    return f"\n@hookimpl{'(wrapper=True)' if wrapper else ''}\ndef {name}({arguments}):\n{lines}\n"


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
    names = st.sampled_from(list(known))

    @pytest.mark.usefixtures("tracebacks")
    @examples(count)
    @given(name=names)
    def test(name: str, template: Path) -> None:
        judge(known[name], template)

    return test
