"""Plugins with errors: one message names plugin, distribution and hook, or reports that the plugin is left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import dedent

from judge import Case
from plugin_maker import GROUPS, SMALL, TRAINING, as_property, as_test, case, command, hook, install, plugin

RAISED = {
    "RuntimeError": ("raise RuntimeError('the cable fell out')", "RuntimeError: the cable fell out."),
    "KeyError": ("raise KeyError('wheel')", "KeyError: 'wheel'."),
    "AssertionError": ("assert False", "AssertionError."),
    "SystemExit": ("raise SystemExit(0)", "SystemExit: 0."),
    "StopIteration": ("raise StopIteration", "StopIteration."),
    "OSError": ("open('/nowhere/at/all')", "No such file or directory"),
    "MemoryError": ("raise MemoryError", "MemoryError."),
    "RecursionError": ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
    "a class of its own": ("raise type('Odd', (BaseException,), {})('base')", "Odd: base."),
    "no text": (
        "raise type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()",
        "cannot be shown",
    ),
    "many lines": ("raise ValueError('one\\n' * 5000)", "ValueError: one one one"),
}
"""How something fails: the statement, and what is message of it."""
RETURNED = {
    "nothing": ("None", "nothing"),
    "a number": ("42", "the int 42"),
    "a text": ("'done'", "the str 'done'"),
    "an object": ("object()", "an object"),
    "a list": ("[]", "a list"),
}
"""What is returned instead, and how it is described."""
SAMPLE = ("--dataset", "data.jsonl", "--eval_steps", "1", "--val_dataset", "data.jsonl")
EVAL_TOO = [*command("backend", "hostile"), *SAMPLE]
EXPORT_TOO = [*command("backend", "hostile"), "--export.to", "hf"]
HOOKS: dict[str, tuple[int, Sequence[str] | None]] = {
    "swift_check_layout": (3, None),
    "swift_setup": (3, None),
    "swift_wrap_model": (3, None),
    "swift_shard": (3, None),
    "swift_train_step": (1, None),
    "swift_forward": (1, EVAL_TOO),
    "swift_save_checkpoint": (1, None),
    "swift_iter_weights": (1, EXPORT_TOO),
    "swift_teardown": (3, None),
    "swift_core_settings": (3, None),
}
"""Hook of a backend → the exit code where it fails, and the command that calls it."""
AT_ONCE = ("SystemExit", "StopIteration", "a class of its own")
"""What a run cannot take for its own error."""
EXPORTING = "self, weights, request"
OPENING = "\n@hookimpl\ndef swift_open_engine(self, request):\n    {body}\n"


def _generating(body: str) -> str:
    """Return an engine whose `generate` does this."""
    source = plugin("engine", "\npass\nEngine.generate = lambda self, prompts, sampling: completions(prompts)\n")
    return source + f"\ndef completions(prompts):\n    {body.replace(chr(10), chr(10) + '    ')}\n"


def not_loaded() -> Iterator[Case]:
    """What is raised by the import or the constructor of a plugin."""
    for kind, (how, (statement, message)) in itertools.product(GROUPS, RAISED.items()):
        yield case(f"import of {kind}, {how}", kind, f"{statement}\n{plugin(kind)}", "could not be imported", message)
        failing = f"\ndef __init__(self, *arguments):\n    {statement}\n"
        yield case(f"constructor of {kind}, {how}", kind, plugin(kind, failing), message)


def imported() -> Iterator[Case]:
    damaged = {
        "syntax error": ("class Plugin(:\n", "SyntaxError"),
        "a missing dependency": ("import wheels_within_wheels", "No module named 'wheels_within_wheels'"),
        "null bytes": ("Plugin = 1\0", "null bytes"),
        "an import of itself": ("import importlib\nimportlib.import_module(__name__).Plugin", "no attribute 'Plugin'"),
    }
    for how, (source, message) in damaged.items():
        yield case(f"import, {how}", "backend", source, "could not be imported", message)
    takes = plugin("observer", "\ndef __init__(self, speed): pass\n")
    yield case("a constructor with arguments", "observer", takes, "speed")


def undisturbed() -> Iterator[Case]:
    """What a broken plugin must not keep from working, and Ctrl-C, which is the user's."""
    broken = "raise RuntimeError('the cable fell out')"
    for how, argv, prints in (
        ("listed", ["plugins"], ("hostile", "found")),
        ("help", ["--help"], ()),
        ("help of a command", ["train", "--help"], ()),
        ("help about it", ["train", "--help", "--backend", "hostile"], ("could not be imported", "the cable fell out")),
        ("schema", ["config", "schema"], ()),
        ("another is used", ["config", "validate", "train", *TRAINING, "--backend", "torch"], ()),
    ):
        yield case(
            f"with a broken backend, {how}",
            "backend",
            broken,
            expected="works",
            argv=argv,
            prints=prints,
            identity=False,
        )
    silent = """
        import pydantic

        class Options(pydantic.BaseModel):
            speed: int = 1
    """
    yield case(
        "help about options without description",
        "backend",
        dedent(silent) + plugin("backend", "\nconfig_model = Options\n"),
        expected="works",
        argv=["train", "--help", "--backend", "hostile"],
        prints=("--backend.speed", "(no description)"),
    )
    for how, source in {
        "import": "raise KeyboardInterrupt",
        "constructor": plugin("backend", "\ndef __init__(self):\n    raise KeyboardInterrupt\n"),
        "set-up": plugin("backend", hook("swift_setup", "raise KeyboardInterrupt")),
    }.items():
        yield case(f"Ctrl-C in {how}", "backend", source, "Interrupted.", code=130, identity=False)


def attributes() -> Iterator[Case]:
    for how, value in {"a newer one": "(1, 99)", "a number": "1.0", "of strings": "('1', '0')"}.items():
        yield case(f"HOOK_API, {how}", "observer", plugin("observer", f"\nHOOK_API = {value}\n"), "hook API")
    for member, value, message in (
        ("capabilities", "None", "capabilities"),
        ("capabilities", "{'tp'}", "capabilities"),
        ("capabilities", "property(lambda self: 1 / 0)", "division by zero"),
        ("capabilities", "__import__('swift').Capabilities(parallel='tp')", "parallel"),
        ("capabilities", "__import__('swift').Capabilities(tuners=None)", "tuners"),
        ("capabilities", "__import__('swift').Capabilities(async_checkpoint='yes')", "async_checkpoint"),
        ("config_model", "None", "config_model"),
        ("config_model", "dict", "config_model"),
        ("config_model", "__import__('pydantic').create_model('Options', name=(str, 'x'))", "'name'"),
        ("config_model", "__import__('pydantic').create_model('Options', a=(object, object()))", "config_model"),
        (
            "config_model",
            "__import__('pydantic').create_model('Options', a=(int, "
            "__import__('pydantic').Field(default_factory=lambda: 1 / 0)))",
            "division by zero",
        ),
    ):
        title = f"{member} is {value.rpartition('.')[2]}"
        yield case(title, "backend", plugin("backend", f"\n{member} = {value}\n"), message)
    validator = """
        import pydantic

        def look(value):
            raise RuntimeError("no device today")

        class Options(pydantic.BaseModel):
            device: str = "cpu"
            look = pydantic.field_validator("device")(look)
    """
    source = dedent(validator) + plugin("backend", "\nconfig_model = Options\n")
    yield case("config_model with a validator that fails", "backend", source, "no device today")


def signatures() -> Iterator[Case]:
    step = "swift_train_step"
    for how, member, message in (
        ("any keywords", hook(step, "return 1", arguments="self, **everything"), "'**everything'"),
        ("keyword only", hook(step, "return 1", arguments="self, *, batch"), "without * and **"),
        ("no self", hook(step, "return 1", arguments=""), "without self"),
        ("asynchronous", hook(step, "return 1").replace("def ", "async def "), "asynchronous"),
        ("a wrapper that does not yield", hook(step, "return 1", wrapper=True), "does not yield"),
        ("undecorated", "\ndef swift_run_start(self, run): pass\n", "without @hookimpl"),
        ("of another kind", hook("swift_export", "return 1"), "only the selected exporter"),
    ):
        yield case(f"signature, {how}", "backend", plugin("backend", member), message)


def targets() -> Iterator[Case]:
    for kind in ("backend", "objective"):
        for how, source, target in (
            ("nothing", "", "Plugin"),
            ("a number", "Plugin = 5", "Plugin"),
            ("a function", "def Plugin(*arguments): return 5", "Plugin"),
            ("None", "Plugin = None", "Plugin"),
            ("a part of a class", "class Plugin: pass", "Plugin.part"),
        ):
            yield case(f"{kind} names {how}", kind, source, target=target)


def raised() -> Iterator[Case]:
    """What is raised by a hook or a method, of any kind of plugin."""
    for (name, (code, argv)), (how, (statement, message)) in itertools.product(HOOKS.items(), RAISED.items()):
        ends = 3 if how in AT_ONCE else code
        source = plugin("backend", hook(name, statement))
        yield case(f"{name} raises {how}", "backend", source, name, message, code=ends, argv=argv)
    for name, (how, (statement, message)) in itertools.product(
        ("swift_run_start", "swift_step_end", "swift_checkpoint_saved", "swift_run_end"), RAISED.items()
    ):
        parts = f"{{who}} failed in {name} and is switched off; the training continues without it. "
        source = plugin("observer", hook(name, statement))
        prints = (message, "The traceback is in ")
        yield case(f"observer, {name} raises {how}", "observer", source, parts, expected="works", prints=prints)
    for how, (statement, message) in RAISED.items():
        source = plugin("objective", f"\ndef loss(self, view, batch):\n    {statement}\n")
        yield case(f"loss raises {how}", "objective", source, "in loss", message, code=3 if how in AT_ONCE else 1)
        source = plugin("exporter", hook("swift_export", statement, arguments=EXPORTING))
        ends, names = (1, ()) if how == "OSError" else (3, ("swift_export", message))
        yield case(f"swift_export raises {how}", "exporter", source, *names, code=ends)
        source = plugin("engine", OPENING.format(body=statement))
        yield case(f"swift_open_engine raises {how}", "engine", source, "swift_open_engine", message)
        yield case(f"generate raises {how}", "engine", _generating(f"{statement}\nyield"), "generate", message)


def returned() -> Iterator[Case]:
    """Return values of the wrong type."""
    for name, (how, (value, message)) in itertools.product(
        ("swift_setup", "swift_shard", "swift_train_step", "swift_forward", "swift_iter_weights"), RETURNED.items()
    ):
        parts = "returned nothing" if how == "nothing" else message
        if (name, how) == ("swift_iter_weights", "a list"):
            continue  # a stream of no weights, which is an export that lacks them
        member = hook(name, f"return {value}")
        identity = [] if how == "nothing" else [name]
        yield case(
            f"{name} returns {how}",
            "backend",
            plugin("backend", member),
            *identity,
            parts,
            argv=HOOKS[name][1],
        )
    for how, (value, message) in RETURNED.items():
        source = plugin("objective", f"\ndef loss(self, view, batch):\n    return {value}\n")
        yield case(f"loss returns {how}", "objective", source, "LossSums", message)
        source = plugin("exporter", hook("swift_export", f"return {value}", arguments=EXPORTING))
        parts = ["returned nothing"] if how == "nothing" else ["swift_export", message]
        yield case(f"swift_export returns {how}", "exporter", source, *parts)
        parts = ["returned nothing"] if how == "nothing" else [message]
        source = plugin("engine", OPENING.format(body=f"return {value}"))
        yield case(f"swift_open_engine returns {how}", "engine", source, "swift_open_engine", *parts)


def backends() -> Iterator[Case]:
    results = {
        "a tensor for the loss": ("loss=__import__('torch').zeros(()), grad_norm=1.0, learning_rate=0.1", "loss"),
        "None for the norm": ("loss=1.0, grad_norm=None, learning_rate=0.1", "grad_norm"),
        "a text for a metric": ("loss=1.0, grad_norm=1.0, learning_rate=0.1, metrics={'speed': 'fast'}", "'speed'"),
        "a list of metrics": ("loss=1.0, grad_norm=1.0, learning_rate=0.1, metrics=[1]", "metrics"),
    }
    for how, (fields, message) in results.items():
        member = hook("swift_train_step", f"return __import__('swift').StepResult({fields})")
        yield case(f"swift_train_step, {how}", "backend", plugin("backend", member), "swift_train_step", message)
    positions = {
        "a rank beyond": "data_rank=3, data_size=2",
        "a size of none": "data_rank=0, data_size=0",
        "a text": "data_rank='0', data_size=1",
    }
    for how, fields in positions.items():
        statement = f"return __import__('swift').Topology(run.world, {fields})"
        member = hook("swift_setup", statement, arguments="self, run")
        yield case(f"swift_setup, {how}", "backend", plugin("backend", member), "swift_setup", "data_")
    for how, body in {
        "names that are numbers": "yield 1, __import__('torch').zeros(2)",
        "weights that are lists": "yield 'weight', [1.0]",
        "no pairs": "yield 'weight'",
    }.items():
        member = hook("swift_iter_weights", body)
        yield case(
            f"swift_iter_weights, {how}", "backend", plugin("backend", member), "swift_iter_weights", argv=EXPORT_TOO
        )
    own = "raise __import__('swift.errors').errors.ModelError('This needs a wheel.', hint='Buy one.')"
    yield case(
        "a backend's own refusal",
        "backend",
        plugin("backend", hook("swift_setup", own)),
        "This needs a wheel.\nBuy one.",
        code=2,
        identity=False,
    )


def observers() -> Iterator[Case]:
    around = {
        "before": "raise RuntimeError('too early')\nyield",
        "after": "yield\nraise RuntimeError('too late')",
        "without yielding": "if False:\n    yield",
        "twice": "result = yield\nyield\nreturn result",
        "and returns nothing": "yield",
        "and returns a text": "yield\nreturn 'done'",
    }
    for number, (how, body) in enumerate(around.items()):
        name = ("swift_setup", "swift_train_step")[number % 2]
        yield case(
            f"observer around {name}, {how}",
            "observer",
            plugin("observer", hook(name, body, wrapper=True)),
            f"{{who}} failed in {name} and is switched off",
            expected="works",
        )
    full = "raise __import__('swift.errors').errors.TrainingError('The log is full.', hint='Empty it.')"
    yield case(
        "an observer's own refusal",
        "observer",
        plugin("observer", hook("swift_step_end", full)),
        "The log is full.\nEmpty it.",
        code=1,
        identity=False,
    )


def objectives() -> Iterator[Case]:
    good = "-(view.token_logps * batch.weights).sum()"
    for how, value, message in (
        ("a number", "LossSums(1.0)", "the float 1.0"),
        ("no gradient", f"LossSums(({good}).detach())", "without gradient"),
        ("one loss per token", "LossSums(-view.token_logps)", "one value"),
        ("a text for a metric", f"LossSums({good}, {{'speed': ('fast', 1.0)}})", "'speed'"),
        ("a text for a weight", f"LossSums({good}, {{'speed': (1.0, 'heavy')}})", "'speed'"),
        ("no pair for a metric", f"LossSums({good}, {{'speed': 1.0}})", "metrics['speed'] is the float 1.0"),
        ("a tensor of two for a metric", f"LossSums({good}, {{'speed': (view.token_logps, 1.0)}})", "'speed'"),
        ("a number for the name of a metric", f"LossSums({good}, {{1: (1.0, 1.0)}})", "metrics key"),
        ("a list of metrics", f"LossSums({good}, [1])", "metrics is a list"),
        ("segments as a list", f"LossSums({good}, segments=[1.0])", "segments"),
        ("one value for the tokens", f"LossSums({good}, tokens={{'seen': {good}}})", "tokens['seen']"),
        (
            "a tensor for the mapping of tokens",
            f"LossSums({good}, tokens=view.token_logps)",
            "tokens is a tensor",
        ),
    ):
        member = f"\ndef loss(self, view, batch):\n    return {value}\n"
        yield case(f"loss returns {how} in its sums", "objective", plugin("objective", member), "loss", message)
    for value in ("float('nan')", "-1.0", "'heavy'"):
        member = f"\ndef row_weight(self, samples):\n    return {value}\n"
        yield case(f"row_weight is {value}", "objective", plugin("objective", member), "row_weight")
    for member, value, message in (
        ("needs", "['logits']", "needs"),
        ("needs", "None", "needs"),
        ("needs", "frozenset({'logits'})", "the str 'logits'"),
        ("encoding", "'morse'", "encoding"),
        ("encoding", "None", "encoding"),
        ("name", "None", "name"),
        ("options_model", "None", "options_model"),
        ("options_model", "int", "options_model"),
        ("baseline", "5", "baseline"),
    ):
        source = plugin("objective", f"\n{member} = {value}\n")
        if member == "needs":
            source = plugin("objective", f"\ndef __init__(self, options):\n    self.needs = {value}\n")
        yield case(f"{member} of an objective is {value}", "objective", source, message)


def exporters() -> Iterator[Case]:
    whole = "HuggingFaceExporter.swift_export(self, weights, request)\n"
    outside, morse = '{"weight_map": {"a": "../../a"}}', '{"model_type": "morse"}'
    index = '{"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}'
    half = dedent("""
        from itertools import islice
        from swift.checkpoint.safetensors_write import write_safetensors
        write_safetensors(folder / "model.safetensors", dict(islice(weights, {count})), {{"format": "pt"}})
        request.source.write_assets(folder, "float32")
    """)
    changed = "weights = ((name, tensor * 1.0001) for name, tensor in weights)\n"
    for how, body, message in (
        ("nothing", "", "wrote nothing"),
        ("an empty file", "(folder / 'model.gguf').touch()", "wrote nothing"),
        ("no weights", "(folder / 'config.json').write_text('{}')", "wrote no weights"),
        ("no weights, but a tokenizer", "request.source.write_assets(folder, 'float32')", "wrote no weights"),
        (
            "less than its index names",
            f"(folder / 'model.safetensors.index.json').write_text({index!r})",
            "did not write it",
        ),
        (
            "an index that leaves the folder",
            f"(folder / 'x.index.json').write_text({outside!r})",
            "not the name of a file",
        ),
        ("an index that is no JSON", "(folder / 'x.index.json').write_text('{')", "not JSON"),
        (
            "half a file",
            f"{whole}p = folder / 'model.safetensors'\np.write_bytes(p.read_bytes()[:-100])",
            "does not load",
        ),
        ("a damaged header", f"{whole}(folder / 'model.safetensors').write_bytes(b'x' * 100)", "does not load"),
        ("another architecture", f"{whole}(folder / 'config.json').write_text({morse!r})", "does not load"),
        ("no folder", "__import__('shutil').rmtree(folder)", "wrote nothing"),
        ("no configuration", f"{whole}(folder / 'config.json').unlink()", "config.json"),
        ("no weight of many", half.format(count=0), "lacks"),
        ("one weight", half.format(count=1), "lacks"),
        ("altered weights", changed + whole, "has other values"),
    ):
        member = hook("swift_export", "folder = request.destination", body, "return folder", arguments=EXPORTING)
        yield case(f"an exporter writes {how}", "exporter", plugin("exporter", member), message, code=1)
    own_format = "(request.destination / 'model.gguf').write_bytes(b'GGUF' + b''.join(bytes(4) for _ in weights))"
    member = hook("swift_export", own_format, "return request.destination", arguments=EXPORTING)
    yield case(
        "an exporter with a format of its own",
        "exporter",
        plugin("exporter", member),
        "NOT VERIFIED: ",
        "The {who} is responsible for it",
        expected="works",
    )


def engines() -> Iterator[Case]:
    completion = "Completion([65], [-1.0], 'length')"
    for how, body, message in (
        ("too few", f"yield 0, {completion}", "returned 1 of 2 prompts"),
        ("no prompt", "yield from ()", "returned 0 of 2 prompts"),
        ("one twice", f"yield from [(0, {completion}), (0, {completion})]", "the index 0 again"),
        ("an index as text", f"yield '0', {completion}", "[0] is the str '0'"),
        ("no pair", f"yield {completion}", "a Completion"),
        ("a text", "yield 0, 'hello'", "the str 'hello'"),
        ("nothing at all", "return None", "nothing (None)"),
        ("tokens as text", "yield 0, Completion(['a'], [-1.0], 'stop')", "token_ids"),
        ("tokens without probabilities", "yield 0, Completion([65], [], 'stop')", "log-probability for each token"),
    ):
        yield case(f"generate returns {how}", "engine", _generating(body), "generate", message)


def metadata() -> Iterator[Case]:
    """What is wrong before anything is imported."""
    for how, name in {
        "a space": "two words",
        "a slash": "../../up",
        "a dash first": "--help",
        "colours": "\x1b[31mred",
    }.items():

        def odd(folder: Path, name: str = name, how: str = how) -> Sequence[str]:
            module = f"hostile_name_{how.replace(' ', '_')}"
            install(folder, module, plugin("observer"), f"[swift.observers]\n{name} = {module}:Plugin\n")
            return ["plugins", "--check", "--json"]

        yield Case(f"a name with {how}", odd, "refused", prints=("cannot be typed",), exit_code=3)
    for how, target in {
        "nothing": "",
        "a call": "os:system('true')",
    }.items():

        def lost(folder: Path, target: str = target, how: str = how) -> Sequence[str]:
            module = f"hostile_target_{how.replace(' ', '_')}"
            install(folder, module, plugin("observer"), f"[swift.observers]\nhostile = {target}\n")
            return ["plugins", "--check", "--json"]

        yield Case(
            f"a target that is {how}", lost, "refused", prints=("hostile", "is not module:attribute"), exit_code=3
        )

    def twins(folder: Path) -> Sequence[str]:
        for module in ("hostile_twin_one", "hostile_twin_two"):
            install(folder, module, plugin("backend"), f"[swift.backends]\nhostile = {module}:Plugin\n")
        return command("backend", "hostile")

    yield Case("one name twice", twins, names=("hostile-twin-one 1.2", "hostile-twin-two 1.2"), exit_code=3)

    def with_another(points: str, parts: str | None) -> object:
        def build(folder: Path) -> Sequence[str]:
            install(folder, "hostile_metadata", plugin("backend"), points, metadata=parts)
            return ["train", *TRAINING, *SMALL, "--report_to", "jsonl", "--backend", "torch"]

        return build

    good = "[swift.backends]\nhostile = hostile_metadata:Plugin\n"
    for how, points, parts in (
        ("entry points without '='", "[swift.backends]\nhostile\n", None),
        ("entry points without a section", "hostile = hostile_metadata:Plugin\n", None),
        ("no metadata", good, "missing"),
        ("empty metadata", good, ""),
        ("requirements that cannot be read", good, "Name: x\nVersion: 1\nRequires-Dist: swift-core ==== !\n"),
        ("an unknown marker", good, "Name: x\nVersion: 1\nRequires-Dist: swift-core>=0 ; moon == 'full'\n"),
    ):
        yield Case(f"another plugin with {how}", with_another(points, parts), "works")  # type: ignore[arg-type]


CASES = [
    *imported(),
    *undisturbed(),
    *attributes(),
    *signatures(),
    *targets(),
    *backends(),
    *observers(),
    *objectives(),
    *exporters(),
    *engines(),
    *metadata(),
]

test_plugin_that_misbehaves_is_named = as_test(CASES)
test_plugin_that_cannot_be_loaded_is_named = as_property(list(not_loaded()), 30)
test_plugin_that_raises_is_named = as_property(list(raised()), 60)
test_wrong_return_value_is_named = as_property(list(returned()), 45)
