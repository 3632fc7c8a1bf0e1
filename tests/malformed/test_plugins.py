"""Plugins with errors: one message names plugin, distribution and hook, or reports that the plugin is left out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from judge import Build, Case
from plugin_maker import COMMANDS, GOOD, TRAIN, as_property, as_test, case, hook, install, method, plugin

EVAL_TOO = [*COMMANDS["backend"], "--dataset", "data.jsonl", "--eval_steps", "1", "--val_dataset", "data.jsonl"]
EXPORT_TOO = [*COMMANDS["backend"], "--export.to", "hf"]
PLAN = ["plan", "model", "--gpus", "2xA100", "--train_type", "full"]

# ---------------------------------------------------------------- what is raised and returned, everywhere

RAISED = {
    "RuntimeError": ("raise RuntimeError('the cable fell out')", "RuntimeError: the cable fell out."),
    "KeyError": ("raise KeyError('wheel')", "KeyError: 'wheel'."),
    "AssertionError": ("assert False", "AssertionError."),
    "SystemExit": ("raise SystemExit(0)", "SystemExit: 0."),
    "StopIteration": ("raise StopIteration", "StopIteration."),
    "GeneratorExit": ("raise GeneratorExit", "GeneratorExit."),
    "OSError": ("open('/nowhere/at/all')", "No such file or directory"),
    "a broken pipe": ("raise BrokenPipeError(32, 'Broken pipe')", "BrokenPipeError: [Errno 32] Broken pipe."),
    "MemoryError": ("raise MemoryError", "MemoryError."),
    "RecursionError": ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
    "a class of its own": ("raise type('Odd', (BaseException,), {})('base')", "Odd: base."),
    "no text": ("raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "cannot be shown"),
    "a text that exits": ("raise type('Mute', (Exception,), {'__str__': lambda self: exit(0)})()", "cannot be shown"),
    "many lines": ("raise ValueError('one\\n' * 5000)", "ValueError: one one one"),
    "colours": ("raise ValueError('\\x1b[2J red')", "ValueError: \\x1b[2J red."),
}
"""How something fails: the statement, and the message about it."""
AT_ONCE = ("SystemExit", "StopIteration", "GeneratorExit", "a class of its own")
"""What a run cannot take for its own error."""
RETURNED = {
    "nothing": ("None", "nothing"),
    "a number": ("42", "the int 42"),
    "a text": ("'done'", "the str 'done'"),
    "a list": ("[]", "a list"),
    "no number": ("float('nan')", "the float nan"),
    "a generator": ("(lambda: (yield))()", "a generator"),
    "an object": ("type('Shy', (), {'__repr__': lambda self: 1 / 0})()", "a Shy"),
}
"""What is returned instead, and how it is described."""
STEPPING = """
    from swift_testing.third_party import TorchMomentum

    def step(optimizer, closure=None):
        {}

    return type("Own", (TorchMomentum,), {{"step": step}})(groups, options.momentum)
"""


def generating(body: str) -> str:
    """Return an engine whose `generate` does this."""
    source = plugin("engine", "Engine.generate = lambda self, prompts, sampling: completions(prompts)")
    return f"{source}\n\n{method('completions(prompts)', body)}\n"


@dataclass(frozen=True)
class Called:
    """A hook or method that swift calls."""

    kind: str
    signature: str
    code: int = 3
    """The exit code where it fails."""
    argv: Sequence[str] | None = None
    name: str = ""
    """As messages call it, where that is not the name in the signature."""
    body: str = "{}"
    valid: Collection[str] = ()
    """What it may return of `RETURNED`."""
    left_out: str = ""
    """What is printed if the command goes on without the plugin."""

    @property
    def shown(self) -> str:
        return self.name or self.signature.partition("(")[0]

    def source(self, statement: str) -> str:
        """Return a plugin in which it executes this."""
        body = dedent(self.body).format(statement)
        if self.kind == "engine" and self.shown == "generate":
            return generating(body)
        decorator = "@hookimpl\n" if self.signature.startswith("swift_") else ""
        return plugin(self.kind, decorator + method(self.signature, body))


GOES_ON = "{who} failed in NAME and is switched off; the training continues without it. "
RAISING = (
    *(Called("backend", f"swift_{name}(self)") for name in ("check_layout", "setup", "wrap_model", "shard")),
    *(Called("backend", f"swift_{name}(self)") for name in ("teardown", "core_settings")),
    *(Called("backend", f"swift_{name}(self)", 1) for name in ("train_step", "save_checkpoint")),
    Called("backend", "swift_forward(self)", 1, EVAL_TOO),
    Called("backend", "swift_iter_weights(self)", 1, EXPORT_TOO),
    *(
        Called("observer", f"swift_{name}(self)", left_out=GOES_ON.replace("NAME", f"swift_{name}"))
        for name in ("run_start", "step_end", "checkpoint_saved", "run_end")
    ),
    Called("objective", "loss(self, view, batch)", 1),
    Called("exporter", "swift_export(self, weights, request)"),
    Called("engine", "swift_open_engine(self, request)"),
    Called("engine", "generate(self, prompts)", body="{}\nyield"),
    Called("planner", "choose(self, words, command, processes, machines)"),
    Called(
        "planner",
        "foresee(self, run, words, command)",
        argv=[*COMMANDS["planner"][:-2], "--backend", "torch"],
        left_out="{who} failed in foresee",
    ),
    Called("command", "run(self, options)", name="swift hostile"),
    Called("optimizer", "make(self, groups, options, device)"),
    Called("optimizer", "make(self, groups, options, device)", 1, name="step of its optimizer", body=STEPPING),
    Called("tuner", "attach(self, model, options, context)"),
    Called("tuner", "lr_scale(self, name, options)"),
    Called("tuner", "trained(self, names, step, options, seed)"),
    Called("reward", "__init__(self)", name="constructor"),
)


def raised() -> Iterator[Case]:
    """What is raised by an import, a constructor, a hook or a method."""
    for (how, (statement, message)), kind in itertools.product(RAISED.items(), GOOD):
        if kind in ("backend", "objective", "observer", "exporter", "engine"):
            source = f"{statement}\n{plugin(kind)}"
            yield case(f"import of {kind}, {how}", kind, source, "could not be imported", message)
            failing = plugin(kind, method("__init__(self, *arguments)", statement))
            yield case(f"constructor of {kind}, {how}", kind, failing, message)
    for each, (how, (statement, message)) in itertools.product(RAISING, RAISED.items()):
        title, source = f"{each.kind}: {each.shown} raises {how}", each.source(statement)
        if each.left_out:
            yield case(title, each.kind, source, each.left_out, message, expected="works", argv=each.argv)
        elif each.kind == "exporter" and how == "OSError":  # as if the folder to write into were gone
            yield case(title, each.kind, source, code=1)
        else:
            code = 3 if how in AT_ONCE else each.code
            yield case(title, each.kind, source, each.shown, message, code=code, argv=each.argv)
    for how, (statement, message) in RAISED.items():
        scoring = case(f"score, {how}", "reward", plugin("reward", method("score(self, items)", statement)))
        shown = ("hostile (", message.rstrip("."))
        yield Case(f"reward: score raises {how}", scoring.build, prints=shown, exit_code=1)


ESTIMATING = [*PLAN, "--backend", "hostile"]
RETURNING = (
    *(Called("backend", f"swift_{name}(self)") for name in ("setup", "shard", "train_step")),
    Called("backend", "swift_forward(self)", argv=EVAL_TOO),
    Called("backend", "swift_iter_weights(self)", argv=EXPORT_TOO, valid=("a list", "a generator")),
    *(
        Called("backend", f"swift_estimate_{name}(self)", argv=ESTIMATING, name=name, valid=("nothing", *more))
        for name, more in (("memory", ()), ("traffic", ("a list",)), ("activations", ("a number",)))
    ),
    Called("backend", "swift_layout(self)", argv=ESTIMATING, valid=("nothing",)),
    Called("objective", "loss(self, view, batch)"),
    Called("exporter", "swift_export(self, weights, request)"),
    Called("engine", "swift_open_engine(self, request)"),
    Called("planner", "choose(self, words, command, processes, machines)"),
    Called("command", "run(self, options)", name="exit code", valid=("a number", "an object")),
    Called("optimizer", "make(self, groups, options, device)"),
    Called(
        "optimizer", "bytes_per_parameter(self, shape)", argv=[*PLAN, "--optim.name", "hostile"], valid=("a number",)
    ),
    Called("tuner", "attach(self, model, options, context)"),
    Called("tuner", "lr_scale(self, name, options)", valid=("a number",)),
    Called("tuner", "trained(self, names, step, options, seed)", valid=("a list",)),
)


def returned() -> Iterator[Case]:
    """Return values of the wrong type."""
    for each, (how, (value, message)) in itertools.product(RETURNING, RETURNED.items()):
        if how in each.valid:
            continue
        names = ["nothing"] if how == "nothing" else [each.shown]
        if each.kind not in ("command", "optimizer") and "estimate" not in each.signature:
            names.append(message)
        yield case(f"{each.signature} returns {how}", each.kind, each.source(f"return {value}"), *names, argv=each.argv)
    for how, (value, _) in RETURNED.items():
        for field, completion in (
            ("token_ids", f"Completion({value}, [-1.0], 'length')"),
            ("logprobs", f"Completion([65], {value}, 'length')"),
        ):
            yield case(f"{field} are {how}", "engine", generating(f"yield from [(0, {completion})]"), "generate")


# ---------------------------------------------------------------- members of a plugin, each with its own error

CREATED = "__import__('pydantic').create_model('Options', {})"
LAZY = CREATED.format("a=(int, __import__('pydantic').Field(default_factory=lambda: 1 / 0))")
MEMBERS: tuple[tuple[str, str, str], ...] = (
    ("observer", "HOOK_API = (1, 99)", "hook API"),
    ("backend", "capabilities = property(lambda self: 1 / 0)", "division by zero"),
    ("backend", "capabilities = __import__('swift').Capabilities(parallel='tp')", "parallel"),
    ("backend", "config_model = dict", "config_model"),
    ("backend", f"config_model = {CREATED.format('name=(str, 1)')}", "'name'"),
    ("backend", f"config_model = {CREATED.format('a=(object, object())')}", "config_model"),
    ("backend", f"config_model = {LAZY}", "division by zero"),
    ("backend", hook("swift_train_step", "return 1", arguments="self, **everything"), "'**everything'"),
    ("backend", hook("swift_train_step", "return 1", arguments="self, *, batch"), "without * and **"),
    ("backend", hook("swift_train_step", "return 1", arguments=""), "without self"),
    ("backend", hook("swift_train_step", "return 1").replace("def ", "async def "), "asynchronous"),
    ("backend", hook("swift_train_step", "return 1", wrapper=True), "does not yield"),
    ("backend", "def swift_run_start(self, run): pass", "without @hookimpl"),
    ("backend", hook("swift_export", "return 1"), "only the selected exporter"),
    ("observer", "def __init__(self, speed): pass", "speed"),
    ("tuner", "def needs(self, options): return 'full'", "needs"),
    ("objective", "def row_weight(self, samples): return -1.0", "row_weight"),
    ("objective", "def __init__(self, options): self.needs = ['logits']", "needs"),
    ("objective", "def __init__(self, options): self.needs = frozenset({'logits'})", "the str 'logits'"),
    ("objective", "encoding = 'morse'", "encoding"),
)
GOOD_LOSS = "-(view.token_logps * batch.weights).sum()"
SUMS = {
    "1.0": "the float 1.0",
    f"({GOOD_LOSS}).detach()": "without gradient",
    "-view.token_logps": "one value",
    f"{GOOD_LOSS}, {{'speed': ('fast', 1.0)}}": "'speed'",
    f"{GOOD_LOSS}, {{'speed': 1.0}}": "metrics['speed'] is the float 1.0",
    f"{GOOD_LOSS}, {{'speed': (view.token_logps, 1.0)}}": "'speed'",
    f"{GOOD_LOSS}, {{1: (1.0, 1.0)}}": "metrics key",
    f"{GOOD_LOSS}, [1]": "metrics is a list",
    f"{GOOD_LOSS}, segments=[1.0]": "segments",
    f"{GOOD_LOSS}, tokens={{'seen': {GOOD_LOSS}}}": "tokens['seen']",
    f"{GOOD_LOSS}, tokens=view.token_logps": "tokens is a tensor",
}
"""Arguments of LossSums → what is wrong with them."""
STEPS = {
    "loss=__import__('torch').zeros(()), grad_norm=1.0": "loss",
    "loss=1.0, grad_norm=None": "grad_norm",
    "loss=1.0, grad_norm=1.0, metrics={'speed': 'fast'}": "'speed'",
    "loss=1.0, grad_norm=1.0, metrics=[1]": "metrics",
}
"""Arguments of StepResult → what is wrong with them."""
COMPLETION = "Completion([65], [-1.0], 'length')"
YIELDED = {
    f"yield 0, {COMPLETION}": "returned 1 of 2 prompts",
    f"yield from [(0, {COMPLETION}), (0, {COMPLETION})]": "the index 0 again",
    f"yield '0', {COMPLETION}": "[0] is the str '0'",
    f"yield {COMPLETION}": "a Completion",
    "yield 0, 'hello'": "the str 'hello'",
    "return None": "nothing (None)",
    "yield 0, Completion(['a'], [-1.0], 'stop')": "token_ids",
    "yield 0, Completion([65], ['a'], 'stop')": "logprobs",
    "yield 0, Completion([65], [float('nan')], 'stop')": "NaN",
    "yield 0, Completion([65], [], 'stop')": "log-probability for each token",
}
"""What `generate` does → what is wrong with it."""


def members() -> Iterator[Case]:
    for kind, member, message in MEMBERS:
        yield case(f"{kind}: {member}", kind, plugin(kind, member), message)
    for arguments, message in SUMS.items():
        loss = method("loss(self, view, batch)", f"return LossSums({arguments})")
        yield case(f"LossSums({arguments})", "objective", plugin("objective", loss), "loss", message)
    for arguments, message in STEPS.items():
        step = hook("swift_train_step", f"return __import__('swift').StepResult({arguments}, learning_rate=0.1)")
        yield case(f"StepResult({arguments})", "backend", plugin("backend", step), "swift_train_step", message)
    for body, message in YIELDED.items():
        yield case(f"generate: {body}", "engine", generating(body), "generate", message)
    score = plugin("engine").replace("Score([-1.0]", "Score([float('nan')]")
    argv = ["eval", "model", "--engine", "hostile", "--dataset", "data.jsonl", "--metric", "loss"]
    yield case("a log-probability of score is NaN", "engine", score, "score", "NaN", argv=argv)
    for place in ("data_rank=3, data_size=2", "data_rank=0, data_size=0", "data_rank='0', data_size=1"):
        member = hook("swift_setup", f"return __import__('swift').Topology(run.world, {place})", arguments="self, run")
        yield case(f"Topology({place})", "backend", plugin("backend", member), "swift_setup", "data_")
    for body in ("yield 1, __import__('torch').zeros(2)", "yield 'weight', [1.0]", "yield 'weight'"):
        member = hook("swift_iter_weights", body)
        names = ("swift_iter_weights",)
        yield case(f"swift_iter_weights: {body}", "backend", plugin("backend", member), *names, argv=EXPORT_TOO)


VALIDATOR = """
import pydantic
from swift.config.options import Section

class Validated(Section):
    speed: int = 1
    momentum: float = 0.5

    @pydantic.model_validator(mode="before")
    @classmethod
    def look(cls, given):
        if given:
            raise {}
        return given
"""


def validated() -> Iterator[Case]:
    """Options whose models fail where something is typed, though their defaults are valid."""
    flags = {
        "optimizer": ("--optim.momentum", "2"),
        "tuner": ("--tuner.speed", "2"),
        "command": ("--speed", "2"),
        "reward": ("--reward_options", '{"hostile": {"speed": 2}}'),
    }
    for kind, flag in flags.items():
        for error, shown in (
            ("RuntimeError('no device today')", "no device today"),
            ("SystemExit(0)", "SystemExit: 0"),
        ):
            source = f"{VALIDATOR.format(error)}\n{plugin(kind, 'options_model = Validated')}"
            name = "options_model" if kind == "reward" else "Validated"
            yield case(f"{kind}: {error}", kind, source, name, shown, argv=[*COMMANDS[kind], *flag])


# ---------------------------------------------------------------- imports, and distributions


def imported() -> Iterator[Case]:
    damaged = {
        "syntax error": ("class Plugin(:\n", "SyntaxError"),
        "a missing dependency": ("import wheels_within_wheels", "No module named 'wheels_within_wheels'"),
        "null bytes": ("Plugin = 1\0", "null bytes"),
        "an import of itself": ("import importlib\nimportlib.import_module(__name__).Plugin", "no attribute 'Plugin'"),
    }
    for how, (source, message) in damaged.items():
        yield case(f"import, {how}", "backend", source, "could not be imported", message)
    for source in ("", "Plugin = 5", "def Plugin(*arguments): return 5", "Plugin = None", "class Plugin: pass"):
        target = "Plugin.part" if "class" in source else "Plugin"
        yield case(f"the target is {source!r}", "backend", source, target=target)
    for how, source in {
        "import": "raise KeyboardInterrupt",
        "constructor": plugin("backend", method("__init__(self)", "raise KeyboardInterrupt")),
        "set-up": plugin("backend", hook("swift_setup", "raise KeyboardInterrupt")),
    }.items():
        yield case(f"Ctrl-C in {how}", "backend", source, "Interrupted.", code=130, identity=False)


def undisturbed() -> Iterator[Case]:
    """What a broken plugin must not keep from working."""
    for argv, prints in (
        (["plugins"], ("hostile", "found")),
        (["--help"], ()),
        (["train", "--help"], ()),
        (["train", "--help", "--backend", "hostile"], ("could not be imported", "the cable fell out")),
        (["config", "schema"], ()),
        (["config", "validate", *TRAIN[:7], "--backend", "torch"], ()),
    ):
        title = f"with a broken backend, {' '.join(argv)}"
        yield case(title, "backend", "raise RuntimeError('the cable fell out')", *prints, expected="works", argv=argv)


def refusals() -> Iterator[Case]:
    """Errors that a plugin raises for users, and wrappers around the hooks of others."""
    own = "raise __import__('swift.errors').errors.{}('This needs a wheel.', hint='Buy one.')"
    for kind, name, error, code in (
        ("backend", "swift_setup", "ModelError", 2),
        ("observer", "swift_step_end", "TrainingError", 1),
    ):
        source = plugin(kind, hook(name, own.format(error)))
        yield case(f"own refusal of {kind}", kind, source, "This needs a wheel.\nBuy one.", code=code, identity=False)
    for number, body in enumerate(
        (
            "raise RuntimeError('too early')\nyield",
            "yield\nraise RuntimeError('too late')",
            "if False:\n    yield",
            "result = yield\nyield\nreturn result",
            "yield\nreturn 'done'",
        )
    ):
        name = ("swift_setup", "swift_train_step")[number % 2]
        source = plugin("observer", hook(name, body, wrapper=True))
        message = f"{{who}} failed in {name} and is switched off"
        yield case(f"around {name}: {body}", "observer", source, message, expected="works")


def distributed() -> Iterator[Case]:
    """What is wrong before anything is imported."""

    def installed(
        title: str, points: str, argv: Sequence[str], *, metadata: str | None = None, source: str = plugin("backend")
    ) -> Build:
        module = f"hostile_{title.replace(' ', '_')}"

        def build(folder: Path) -> Sequence[str]:
            install(folder, module, source, points.replace("MODULE", f"{module}:Plugin"), metadata=metadata)
            return argv

        return build

    check = ["plugins", "--check", "--json"]
    for name in ("two words", "../../up", "--help", "\x1b[31mred"):
        build = installed(f"name_{name.encode().hex()}", f"[swift.observers]\n{name} = MODULE\n", check)
        yield Case(f"the name {name!r}", build, prints=("cannot be typed",), exit_code=3)
    for target in ("", "os:system('true')"):
        build = installed(f"target_{len(target)}", f"[swift.observers]\nhostile = {target}\n", check)
        yield Case(f"the target {target!r}", build, prints=("hostile", "is not module:attribute"), exit_code=3)

    def twins(folder: Path, kind: str) -> Sequence[str]:
        for module in (f"hostile_{kind}_one", f"hostile_{kind}_two"):
            name = module[-3:] if kind == "planner" else "hostile"
            install(folder, module, plugin(kind), f"[swift.{kind}s]\n{name} = {module}:Plugin\n")
        if kind == "planner":
            os.environ["SWIFT_PLUGINS"] = "hostile-planner-one,hostile-planner-two"
        return COMMANDS[kind]

    for kind in ("backend", "planner"):
        names = (f"hostile-{kind}-one 1.2", f"hostile-{kind}-two 1.2")
        yield Case(f"two {kind}s", lambda folder, kind=kind: twins(folder, kind), names=names, exit_code=3)

    good = "[swift.backends]\nhostile = MODULE\n"
    train = [*TRAIN, "--report_to", "jsonl", "--backend", "torch"]
    for number, (points, metadata) in enumerate(
        (
            ("[swift.backends]\nhostile\n", None),
            ("hostile = MODULE\n", None),
            (good, "missing"),
            (good, ""),
            (good, "Name: x\nVersion: 1\nRequires-Dist: swift-core ==== !\n"),
            (good, "Name: x\nVersion: 1\nRequires-Dist: swift-core>=0 ; moon == 'full'\n"),
        )
    ):
        build = installed(f"metadata_{number}", points, train, metadata=metadata)
        yield Case(f"another plugin with {points!r} and {metadata!r}", build, "works")
    damaged = "[swift.commands]\nhostile\n"
    yield Case("help with damaged entry points", installed("points help", damaged, ["--help"]), "works")
    build = installed("points unknown", damaged, ["trian", *TRAIN[1:]])
    yield Case("an unknown command with damaged entry points", build, names=("train",))
    red = plugin("command", method("run(self, options)", "raise ValueError('red')"))
    metadata = "Metadata-Version: 2.1\nName: hostile-colours\nVersion: \x1b[31m1.2\n"
    build = installed("colours", "[swift.commands]\nhostile = MODULE\n", ["hostile"], metadata=metadata, source=red)
    yield Case("colours in a version", build, names=("(hostile-colours \\x1b[31m1.2)",), exit_code=3)


# ---------------------------------------------------------------- what exporters write

WHOLE = "HuggingFaceExporter.swift_export(self, weights, request)\n"
SOME = """
from itertools import islice
from swift.checkpoint.safetensors_write import write_safetensors
write_safetensors(folder / "model.safetensors", dict(islice(weights, {})), {{"format": "pt"}})
request.source.write_assets(folder, "float32")
"""
INDEX = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
CUT = "p = folder / 'model.safetensors'\np.write_bytes(p.read_bytes()[:-100])"
MORSE = '{"model_type": "morse"}'
WRITTEN = {
    "nothing": ("", "wrote nothing"),
    "no weights": ("request.source.write_assets(folder, 'float32')", "wrote no weights"),
    "less than its index": (f"(folder / 'model.safetensors.index.json').write_text({INDEX!r})", "did not write it"),
    "a file outside": (
        '(folder / \'x.index.json\').write_text(\'{"weight_map": {"a": "../../a"}}\')',
        "not the name of a file",
    ),
    "an index that is no JSON": ("(folder / 'x.index.json').write_text('{')", "not JSON"),
    "half a file": (WHOLE + CUT, "does not load"),
    "another architecture": (f"{WHOLE}(folder / 'config.json').write_text({MORSE!r})", "does not load"),
    "no folder": ("__import__('shutil').rmtree(folder)", "wrote nothing"),
    "no configuration": (f"{WHOLE}(folder / 'config.json').unlink()", "config.json"),
    "one weight": (SOME.format(1), "lacks"),
    "altered weights": (
        f"weights = ((name, tensor * 1.0001) for name, tensor in weights)\n{WHOLE}",
        "has other values",
    ),
}


def exporters() -> Iterator[Case]:
    arguments = "self, weights, request"
    for how, (body, message) in WRITTEN.items():
        member = hook("swift_export", "folder = request.destination", body, "return folder", arguments=arguments)
        source = f"from swift.export.plugins import HuggingFaceExporter\n{plugin('exporter', member)}"
        yield case(f"an exporter writes {how}", "exporter", source, message, code=1)
    own_format = "(request.destination / 'model.gguf').write_bytes(b'GGUF' + b''.join(bytes(4) for _ in weights))"
    member = hook("swift_export", own_format, "return request.destination", arguments=arguments)
    names = ("NOT VERIFIED: ", "The {who} is responsible for it")
    yield case("an exporter with its own format", "exporter", plugin("exporter", member), *names, expected="works")


CASES = [
    *members(),
    *validated(),
    *imported(),
    *undisturbed(),
    *refusals(),
    *distributed(),
    *exporters(),
]

test_plugin_that_misbehaves_is_named = as_test(CASES)
test_plugin_that_raises_is_named = as_property(list(raised()), 45)
test_wrong_return_value_is_named = as_property(list(returned()), 45)
