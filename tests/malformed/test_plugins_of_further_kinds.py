"""Optimizers, tuners, planners, commands and rewards that misbehave."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from judge import Case
from plugin_maker import TRAINING, Build, as_property, as_test, case, command, hook, install, plugin

RAISED = {
    "GeneratorExit": ("raise GeneratorExit", "GeneratorExit."),
    "a broken pipe of its own": (
        "raise BrokenPipeError(32, 'Broken pipe')",
        "BrokenPipeError: [Errno 32] Broken pipe.",
    ),
    "colours": ("raise ValueError('\\x1b[2J red')", "ValueError: \\x1b[2J red."),
    "a text that exits": (
        "raise type('Mute', (Exception,), {'__str__': lambda self: exit(0)})()",
        "cannot be shown",
    ),
}
"""How something fails: the statement, and what is message of it."""
RETURNED = {
    "nothing": ("None", "nothing"),
    "a text": ("'done'", "the str 'done'"),
    "no number": ("float('nan')", "the float nan"),
    "a generator": ("(lambda: (yield))()", "a generator"),
    "an object without repr": ("type('Shy', (), {'__repr__': lambda self: 1 / 0})()", "a Shy"),
}
"""What is returned instead, and how it is described."""
RUNS = {
    "choose(self, words, command, processes, machines)": ("planner", 3),
    "run(self, options)": ("command", 3),
    "make(self, groups, options, device)": ("optimizer", 3),
    "attach(self, model, options, context)": ("tuner", 3),
    "lr_scale(self, name, options)": ("tuner", 3),
    "trained(self, names, step, options, seed)": ("tuner", 3),
}
"""Signature of a method → the kind of plugin that has it, and the exit code where it fails."""
PLAN = ("plan", "model", "--gpus", "2xA100", "--train_type", "full")


def _name(signature: str) -> str:
    """The method as messages call it."""
    name = signature.partition("(")[0]
    return "swift hostile" if name == "run" else name


def _method(kind: str, signature: str, body: str) -> str:
    return plugin(kind, f"\ndef {signature}:\n    {body}\n")


def raised() -> Iterator[Case]:
    for how, (statement, message) in RAISED.items():
        at_once = how == "GeneratorExit"  # what a run cannot take for its own error
        yield case(f"import, {how}", "backend", f"{statement}\n{plugin('backend')}", "could not be imported", message)
        for name in ("swift_setup", "swift_train_step"):
            code = 3 if at_once or name == "swift_setup" else 1
            yield case(f"{name}, {how}", "backend", plugin("backend", hook(name, statement)), name, message, code=code)
        yield case(
            f"observer, {how}",
            "observer",
            plugin("observer", hook("swift_step_end", statement)),
            "{who} failed in swift_step_end and is switched off",
            expected="works",
            prints=(message,),
        )
        member = hook("swift_export", statement, arguments="self, weights, request")
        yield case(f"swift_export, {how}", "exporter", plugin("exporter", member), "swift_export", message)
        for signature, (kind, code) in RUNS.items():
            yield case(
                f"{signature}, {how}",
                kind,
                _method(kind, signature, statement),
                _name(signature),
                message,
                code=code,
            )
        stepping = f"""
            def make(self, groups, options, device):
                from swift.testing.momentum import TorchMomentum

                def step(optimizer, closure=None):
                    {statement}

                return type("Own", (TorchMomentum,), {{"step": step}})(groups, options.momentum)
        """
        source = plugin("optimizer", stepping)
        yield case(
            f"step of an optimizer, {how}", "optimizer", source, "step of its optimizer", code=3 if at_once else 1
        )
        foresee = "foresee(self, run, words, command)"
        yield case(
            f"foresee, {how}",
            "planner",
            _method("planner", foresee, statement),
            "{who} failed in foresee",
            expected="works",
            argv=[*command("planner", "hostile")[:-2], "--backend", "torch"],
            prints=(message,),
        )
        yield case(
            f"constructor of a reward, {how}",
            "reward",
            _method("reward", "__init__(self)", statement),
            "constructor",
            message,
        )
        shown = message.rstrip(".")
        yield Case(
            f"score of a reward, {how}", _reward(f"{how} in score", statement), prints=("hostile (", shown), exit_code=1
        )


def _reward(title: str, statement: str) -> Build:
    built = case(title, "reward", _method("reward", "score(self, items)", statement))
    return built.build


def returned() -> Iterator[Case]:
    for how, (value, message) in RETURNED.items():
        for signature, (kind, _) in RUNS.items():
            source = _method(kind, signature, f"return {value}")
            if kind == "command":
                yield case(f"{signature} returns {how}", kind, source, "" if "object" in how else "not an exit code")
                continue
            yield case(f"{signature} returns {how}", kind, source, _name(signature), message)
        source = _method("optimizer", "bytes_per_parameter(self, shape)", f"return {value}")
        argv = [*PLAN, "--optim.name", "hostile"]
        yield case(f"bytes_per_parameter returns {how}", "optimizer", source, "bytes_per_parameter", argv=argv)
        for name in ("memory", "traffic", "activations"):
            if how == "nothing":
                continue
            member = hook(f"swift_estimate_{name}", f"return {value}")
            argv = [*PLAN, "--backend", "hostile"]
            yield case(f"swift_estimate_{name} returns {how}", "backend", plugin("backend", member), name, argv=argv)
        if how != "nothing":
            member = hook("swift_layout", f"return {value}")
            argv = [*PLAN, "--backend", "hostile"]
            yield case(f"swift_layout returns {how}", "backend", plugin("backend", member), "swift_layout", argv=argv)
        for field, completion in (
            ("token_ids", f"Completion({value}, [-1.0], 'length')"),
            ("logprobs", f"Completion([65], {value}, 'length')"),
        ):
            yield case(f"{field} are {how}", "engine", _engine(f"yield from [(0, {completion})]"), "generate")


def others() -> Iterator[Case]:
    yield case(
        "log-probabilities that are no numbers",
        "engine",
        _engine("yield 0, Completion([65], ['a'], 'length')"),
        "logprobs",
    )
    evaluation = ["eval", "model", "--engine", "hostile", "--dataset", "data.jsonl", "--metric", "loss"]
    for method, value, argv in (("generate", "Completion([65], [-1.0]", None), ("score", "Score([-1.0]", evaluation)):
        source = plugin("engine").replace(value, value.replace("-1.0", "float('nan')"))
        yield case(f"a log-probability of {method} is NaN", "engine", source, method, "NaN", argv=argv)
    yield case(
        "needs of a tuner are a text", "tuner", _method("tuner", "needs(self, options)", "return 'full'"), "needs"
    )


def _engine(generate: str) -> str:
    source = plugin("engine", "\npass\nEngine.generate = lambda self, prompts, sampling: completions(prompts)\n")
    return f"{source}\ndef completions(prompts):\n    {generate}\n"


def validated() -> Iterator[Case]:
    """Options whose models fail where something is typed, though their defaults are valid."""
    models = {
        "a validator that fails": ("raise RuntimeError('no device today')", "no device today"),
        "a validator that exits": ("raise SystemExit(0)", "SystemExit: 0"),
    }
    flags = {"optimizer": "--optim.momentum", "tuner": "--tuner.speed", "command": "--speed"}
    head = """
import pydantic
from swift.config.options import Section

class Options(Section):
    speed: int = 1
    momentum: float = 0.5
"""
    for how, (statement, message) in models.items():
        validator = f"""
    @pydantic.model_validator(mode="before")
    @classmethod
    def look(cls, given):
        if given:
            {statement}
        return given
"""
        for kind, flag in flags.items():
            source = plugin(kind, "\noptions_model = Own\n")
            source = f"{head}{validator}\nOwn = Options\n{source}"
            yield case(f"{how}, {kind}", kind, source, "Options", message, argv=[*command(kind, "hostile"), flag, "2"])
        source = f"{head}{validator}\n{plugin('reward', chr(10) + 'options_model = Options' + chr(10))}"
        argv = [*command("reward", "hostile"), "--reward_options", '{"hostile": {"speed": 2}}']
        yield case(f"{how}, reward", "reward", source, "options_model", message, argv=argv)
    nothing = "\n    @classmethod\n    def model_validate(cls, given, **how):\n        return None\n"
    source = f"{head}{nothing}\nOwn = Options\n{plugin('command', chr(10) + 'options_model = Own' + chr(10))}"
    yield case("a model that validates to nothing", "command", source, "nothing (None)")


def shown() -> Iterator[Case]:
    """What a distribution calls itself is shown without what a terminal would act on."""

    def coloured(folder: Path) -> Sequence[str]:
        text = "Metadata-Version: 2.1\nName: hostile-colours\nVersion: \x1b[31m1.2\n"
        source = plugin("command", "\ndef run(self, options):\n    raise ValueError('red')\n")
        install(
            folder,
            "hostile_colours",
            source,
            "[swift.commands]\nhostile = hostile_colours:Plugin\n",
            metadata=text,
        )
        return ["hostile"]

    yield Case("colours in a version", coloured, names=("(hostile-colours \\x1b[31m1.2)",), exit_code=3)


def planners() -> Iterator[Case]:
    def two(folder: Path) -> Sequence[str]:
        for module in ("hostile_planner_one", "hostile_planner_two"):
            install(folder, module, plugin("planner"), f"[swift.planners]\n{module[-3:]} = {module}:Plugin\n")
        os.environ["SWIFT_PLUGINS"] = "hostile-planner-one,hostile-planner-two"
        return command("planner", "auto")

    yield Case("two planners", two, names=("hostile-planner-one 1.2", "hostile-planner-two 1.2"), exit_code=3)


def commands() -> Iterator[Case]:
    """Help, and the refusal of an unknown command, beside a distribution whose entry points cannot be read."""
    for how, argv in (("help", ["--help"]), ("an unknown command", ["trian", *TRAINING])):

        def damaged(folder: Path, how: str = how, argv: Sequence[str] = tuple(argv)) -> Sequence[str]:
            install(folder, f"hostile_points_{how.replace(' ', '_')}", "", "[swift.commands]\nhostile\n")
            return argv

        works = how == "help"
        yield Case(
            f"with damaged entry points, {how}", damaged, "works" if works else "refused", () if works else ("train",)
        )


CASES = [*others(), *validated(), *shown(), *planners(), *commands()]

test_plugin_that_misbehaves_is_named = as_test(CASES)
test_plugin_that_raises_is_named = as_property(list(raised()), 40)
test_wrong_return_value_is_named = as_property(list(returned()), 40)
