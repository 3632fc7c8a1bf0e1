"""Write the generated pages of `docs/reference`, and the notebooks of the tutorials: `make docs`.

With `--check`, fail when they are out of date. The sources are `swift.hookspecs`, `swift.toolkit`, the sections of the
configuration, the table of aliases, core's own plugins, the JSON files next to the pages, and the tutorials. A hook or
a key without documentation is an error.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from notebooks import NOTEBOOKS, notebooks
from numbers_page import numbers_page
from pydantic import BaseModel
from real import ChangedRecipe, recipe_pages

from swift import hookspecs
from swift.cli.commands import TRAINING, commands
from swift.cli.options import options_of
from swift.config.fields import Field, model_fields
from swift.config.meanings import Default, Meaning, NotNeeded, Refused
from swift.config.options import examples_of
from swift.config.sections import Config, Section
from swift.parsing.aliases import flags_of, synonyms_of
from swift.plugins.discover import list_plugins
from swift.plugins.entry import CORE
from swift.plugins.kinds import KINDS
from swift.plugins.load import load
from swift.plugins.vocabularies import flag_topics

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs" / "reference"
LISTED = (CORE, "swift-objectives")
"""Distributions whose options the page of the configuration lists; the others have pages of their own."""
CORE_SOURCE = Path(hookspecs.__file__).parent
GENERATED = "<!-- Written by `make docs` from the code. Do not edit. -->"


class Undocumented(Exception):
    """A hook or a key without documentation."""


def main(arguments: list[str], reference: Path = REFERENCE) -> int:
    try:
        pages = {
            "hooks.md": hooks_page(hookspecs),
            "toolkit.md": toolkit_page(CORE_SOURCE / "toolkit.py"),
            "commands.md": commands_page(),
            "configuration.md": configuration_page(),
            "third-party-flags.md": third_party_flags_page(),
            "resume-matrix.md": matrix_page(json.loads((REFERENCE / "resume-matrix.json").read_text())),
            "architectures.md": architectures_page(
                json.loads((REFERENCE / "architectures.json").read_text()),
                json.loads((REFERENCE / "encoders.json").read_text()),
                json.loads((REFERENCE / "serving.json").read_text()),
            ),
            "numbers.md": numbers_page(),
            "proven-where.md": proven_page(_found()),
            **{f"../recipes/{name}": text for name, text in recipe_pages().items()},
            "tuning-pairs.md": tuning_pairs_page(json.loads((REFERENCE / "tuning-pairs.json").read_text())),
        }
    except (Undocumented, ChangedRecipe) as problem:
        print(f"docs: {problem}", file=sys.stderr)
        return 1
    files = {reference / name: text for name, text in pages.items()}
    if reference == REFERENCE:
        files |= {NOTEBOOKS / name: text for name, text in notebooks().items()}
    stale = [file for file, text in files.items() if _written(file) != text]
    if "--check" in arguments:
        for file in stale:
            print(f"docs: {_shown(file)} is out of date. Run: make docs", file=sys.stderr)
        return 1 if stale else 0
    for file in stale:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(files[file], encoding="utf-8")
        print(f"docs: wrote {_shown(file)}")
    return 0


def _shown(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


def _written(page: Path) -> str | None:
    return page.read_text() if page.is_file() else None


def hooks_page(module: ModuleType) -> str:
    """Return every hook with its exact arguments, in the order of the source."""
    parts = [
        "# Hooks",
        GENERATED,
        documentation(module, module.__name__),
        "## Kinds of plugins",
        "A plugin is an entry point in the group of its kind; the entry point's name is the name that users type.",
        "\n".join(["| kind | group | a plugin of this kind | it must have |", "|---|---|---|---|", *_kinds()]),
        "The types in the signatures are defined in `swift.contracts`; `Batch` is in `swift.data.batch`.",
    ]
    for group in hook_groups(module):
        parts += [f"## {group.__name__}", documentation(group, group.__name__)]
        for name, hook in hooks_of(group):
            parts += [f"### {name}", _signature(name, hook), _who_implements(hook), documentation(hook, f"hook {name}")]
    return "\n\n".join(parts) + "\n"


def _kinds() -> Iterator[str]:
    """Yield a row for each kind that there is."""
    for group, kind in KINDS.items():
        needed = _listed(kind.members) if kind.has_hooks else ", ".join(f"`{name}`" for name in kind.members)
        name = kind.contract.__name__
        where = f"the hooks of [{name}](#{name.lower()})" if kind.has_hooks else f"`swift.contracts.{name}`"
        yield f"| {kind.name} | `{group}` | {kind.purpose} | {where}{': ' + needed if needed else ''} |"


def hook_groups(module: ModuleType) -> list[type]:
    """Return the classes of hook specifications, in the order of the source."""
    return [each for each in vars(module).values() if inspect.isclass(each) and any(hooks_of(each))]


def hooks_of(group: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    return ((name, hook) for name, hook in vars(group).items() if name.startswith("swift_"))


def toolkit_page(file: Path) -> str:
    """Return every name of the toolkit as its source declares it: importing it would import torch."""
    toolkit = ast.parse(file.read_text())
    parts = ["# Toolkit of backends", GENERATED, f"`from swift.toolkit import ...`. {inspect.cleandoc(_doc(toolkit))}"]
    sections: dict[str, list[str]] = {}
    for node in toolkit.body:
        if not isinstance(node, ast.ImportFrom) or node.module is None or not node.module.startswith("swift."):
            continue
        section = sections.setdefault(node.module.split(".")[1].replace("_", " ").capitalize(), [])
        for each in node.names:
            section += [f"### {each.name}", *_declared(node.module, each.name)]
    for title, entries in sections.items():
        parts += [f"## {title}", *entries]
    return "\n\n".join(parts) + "\n"


def _declared(module: str, name: str) -> list[str]:
    """Return how a module declares a name, its documentation, and the members of a class."""
    path = CORE_SOURCE.joinpath(*module.split(".")[1:])
    body = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()).body
    for node, text in _with_documentation(body):
        if isinstance(node, ast.ImportFrom) and node.module and any(each.name == name for each in node.names):
            return _declared(node.module, name)
        if name not in _names(node):
            continue
        if not text:
            raise Undocumented(f"swift.toolkit.{name} has no docstring.")
        code = [f"```python\n{_header(node)}\n```"] if isinstance(node, ast.ClassDef | ast.FunctionDef) else []
        members = [*_members(node)] if isinstance(node, ast.ClassDef) else []
        return [*code, text, *(["Members:", "\n".join(members)] if members else [])]
    raise Undocumented(f"swift.toolkit.{name} is not declared in {module}.")


def _with_documentation(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement with its docstring, which follows the declaration of a value."""
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node, inspect.cleandoc(_doc(node))
        else:
            yield node, inspect.cleandoc(_string(following))


def _members(node: ast.ClassDef) -> Iterator[str]:
    """Yield the public fields and methods of a class, with the first paragraph of their documentation."""
    for each, text in _with_documentation(node.body):
        summary = " ".join(text.partition("\n\n")[0].split())
        for name in _names(each):
            if not name.startswith("_") and summary:
                yield f"- `{_header(each).removeprefix('def ') if _is_called(each) else name}`: {summary}"


def _is_called(node: ast.stmt) -> bool:
    """Return whether a member of a class is a method, and no property."""
    return isinstance(node, ast.FunctionDef) and not any("property" in ast.unparse(of) for of in node.decorator_list)


def _names(node: ast.stmt) -> list[str]:
    """Return the names that a statement declares."""
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]


def _header(node: ast.stmt) -> str:
    """Return the signature of a function, or a class with its bases."""
    if isinstance(node, ast.ClassDef):
        return f"class {node.name}({', '.join(map(ast.unparse, node.bases))})".replace("()", "")
    assert isinstance(node, ast.FunctionDef)
    arguments = ast.unparse(node.args).removeprefix("self, ").removeprefix("self")
    return f"def {node.name}({arguments})" + (f" -> {ast.unparse(node.returns)}" if node.returns else "")


def _doc(node: ast.Module | ast.ClassDef | ast.FunctionDef) -> str:
    return ast.get_docstring(node) or ""


def _string(node: ast.stmt | None) -> str:
    """Return the string that a statement is; empty for other statements."""
    value = node.value if isinstance(node, ast.Expr) else None
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""


def configuration_page() -> str:
    """Return every key of core's sections and of core's plugins: type, default, flags, meaning."""
    parts = [
        "# Configuration",
        GENERATED,
        "You configure a run with a YAML file, with flags, or with both; flags override the file. Every key is a flag: "
        "`--optim.lr 1e-5` sets `lr` in the section `optim`. Most keys have shorter flags, in which `-` and `_` mean "
        "the same. swift refuses unknown keys. `swift config show` prints the resolved configuration of a command.",
        "`swift sft --help` shows the most used flags, `swift sft --help data` those of a section, and "
        "`swift sft --help all` every flag. The tables list the flags that mean the same as a key; those after *also* "
        "set one of its values, or translate theirs: `--bf16` sets `model.dtype` to bfloat16.",
    ]
    for name, info in Config.model_fields.items():
        model = info.annotation
        assert isinstance(model, type)
        assert issubclass(model, BaseModel)
        parts += [f"## {name}", documentation(model, f"section {name}"), *_table(model_fields(model, name))]
        for title, options in plugin_options(name):
            parts += [f"### {title}", *_table(model_fields(options, name))]
    return "\n\n".join(parts) + "\n"


def third_party_flags_page() -> str:
    """Return what swift does with each third-party flag that it does not have."""
    parts = [
        "# Third-party flags",
        GENERATED,
        "Flags of ms-swift, the Hugging Face Trainer, LLaMA-Factory, axolotl, TRL and Megatron-LM that swift does not "
        "have. (The [configuration](configuration.md) lists those that it has.) If a flag does not change the result, "
        "swift prints a note and ignores it. Otherwise swift refuses it and names what to type instead. The same "
        "applies to keys of a YAML file and to keyword arguments in Python.",
    ]
    for topic in sorted(flag_topics(), key=lambda each: bool(each.commands)):
        rows = topic.meanings
        if rows:
            table = ["| flag | swift |", "|---|---|", *map(_third_party, rows, rows.values())]
            parts += [f"## {topic.title}", "\n".join(table)]
    return "\n\n".join(parts) + "\n"


def _third_party(flags: Iterable[str], meaning: Meaning) -> str:
    if isinstance(meaning, NotNeeded):
        shown = f"not needed: {meaning.note}"
    else:
        shown = f"{meaning.reason[0].upper()}{meaning.reason[1:]} {meaning.hint}"
    if isinstance(meaning, Default):
        values = ", ".join(f"`{value}`" for value in meaning.values)
        shown = f"{values}: not needed, {meaning.note}. Else refused: {shown}"
    elif isinstance(meaning, Refused):
        shown = f"refused: {shown}"
    text = shown.replace("|", "\\|")
    return f"| {' '.join(f'`--{flag}`' for flag in flags)} | {text} |"


def commands_page() -> str:
    """Return every command that does not train with its arguments and flags; training ones have the configuration."""
    parts = [
        "# Commands",
        GENERATED,
        "Every command of swift with its flags, as `swift COMMAND --help` prints them. In flags, `-` and `_` mean the "
        "same. You can repeat a flag that takes a list; of any other flag the last one counts, with a note. "
        f"{', '.join(f'`{name}`' for name in TRAINING)} take every key of the [configuration](configuration.md).",
    ]
    for name, command in commands().items():
        options = options_of(name)
        if options is None:
            continue
        parts += [f"## swift {name}", f"{command.summary}.", documentation(options, f"command {name}")]
        examples = examples_of(options)
        if examples:
            parts.append("\n".join(("```text", *examples, "```")))
        fields = sorted(model_fields(options), key=lambda field: field.argument is None)
        parts += _table(fields, _flags_of_option)
    return "\n\n".join(parts) + "\n"


def _flags_of_option(field: Field) -> str:
    return _flags((field.key, *field.flags) if field.argument else field.flags)


def matrix_page(results: dict[str, Any]) -> str:
    """Return the page of the resume matrix: which pairs of backends were tested, and how close they came."""
    facts, pairs = results["facts"], results["pairs"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# Resume matrix",
        "<!-- Written by `make docs` from resume-matrix.json, which `make matrix` writes. Do not edit. -->",
        "Any checkpoint resumes on any backend and layout. Each test runs five steps in the layout of the row, kills "
        "the processes after the checkpoint, and resumes for five more steps in the layout of the column, with AdamW's "
        "state, the learning-rate schedule and the order of samples. Each step on each process is compared with "
        "ten uninterrupted steps of plain transformers and torch in one process, in float32. A cell is the largest "
        f"relative difference of loss or gradient norm; the test fails above {facts['tolerance']:g}.",
        f"{len(pairs)} of {facts['tried']} pairs passed. Command: `{facts['command']}`. Versions: {versions}.",
    ]
    titles = {
        ("Qwen3", "clipped"): "All weights trained",
        ("Qwen3Moe", "clipped"): "A mixture of experts",
        ("Qwen3", "lora"): "LoRA",
        ("Qwen3", "dpo"): "DPO, all weights trained",
        ("Qwen3", "dpo, lora"): "DPO with LoRA",
    }
    for (model, case), title in titles.items():
        found = [pair for pair in pairs if (pair["model"], pair["case"]) == (model, case)]
        if found:
            parts += [f"## {title}", _pairs(found)]
    return "\n\n".join(parts) + "\n"


def architectures_page(results: dict[str, Any], encoders: dict[str, Any], serving: dict[str, Any]) -> str:
    """Return the page of the model types of transformers: which train on which engine, and why the others do not."""
    facts, types = results["facts"], results["types"]
    engines = ", ".join(f"{name} {version}" for name, version in serving["versions"].items())
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    parts = [
        "# Model types",
        "<!-- Written by `make docs` from architectures.json, which `make architectures` writes. Do not edit. -->",
        "Each type of causal language model in transformers, trained for two steps as a tiny model with random "
        "weights, in float32 on the CPU. Pretrained weights were not tried. Your model's type is `model_type` in its "
        "`config.json`.",
        "- **equal**: the loss and gradient norm of the first step and the loss of the second equal those of plain "
        "transformers (PEFT in the column *LoRA*), computed sample by sample, within 1e-5, 1e-4 and 1e-4. The samples "
        "are longer than the windows, chunks and top-k of sparse attention, and the padding token also ends every "
        "turn.\n"
        "- **refused**: the run stops before training with one of the errors below.\n"
        "- **exported**: the export of the padded run has the tensor names of the original folder, and transformers "
        "loads it with the expected logits.\n"
        f"- **served by**: engines that have the type in their own list ({engines}; `tools/serving_lists.py`). swift's "
        "tests serve only some types, with vLLM.",
        f"Command: `{facts['command']}`. Versions: {versions}.",
        _types(types, serving["types"]),
        "## Why types are refused",
        "… stands for names of types, classes and modules.",
        _refusals(types),
        "## Types that were not made",
        _not_made(facts),
        *_encoders(encoders),
        *_types_with_images(results["images"], serving["images"]),
    ]
    return "\n\n".join(parts) + "\n"


def _encoders(results: dict[str, Any]) -> list[str]:
    """Return the section of encoders: for which tasks each trains in which layout."""
    facts, types = results["facts"], results["types"]
    columns = list(dict.fromkeys(cell for tasks in types.values() for cells in tasks.values() for cell in cells))
    rows = [f"| type | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    refused: dict[str, list[str]] = {}
    every = max(len(tasks) for tasks in types.values())
    for name, tasks in types.items():
        rows.append(f"| `{name}` | {' | '.join(_tasks(tasks, column, every) for column in columns)} |")
        notes = {each["note"] for cells in tasks.values() for each in cells.values() if each["result"] == "refused"}
        for sentence in sorted({_general(note, name) for note in notes}):
            refused.setdefault(sentence, []).append(name)
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return [
        "## Encoders",
        "Encoders of text in transformers, trained in the same way for the tasks `embedding` (InfoNCE of mean "
        "vectors), `reranker` (pairs as the tokenizer joins them) and `seq_cls`. **all**: losses and gradient norms of "
        "all three equal those of plain transformers, and the export makes the expected vectors and scores. An empty "
        "cell was not tried. Megatron trains no encoder.",
        f"Command: `{facts['command']}`. Versions: {versions}.",
        "\n".join(rows),
        "Refusals:",
        "\n".join(f"- {text} ({', '.join(f'`{name}`' for name in names)})" for text, names in refused.items()),
    ]


def _tasks(tasks: dict[str, Any], column: str, every: int) -> str:
    """Return the tasks for which a type trains in a layout; an empty string where none was tried."""
    tried = {task: cells[column]["result"] for task, cells in tasks.items() if column in cells}
    equal = [task for task, result in tried.items() if result == "equal"]
    if len(equal) == every:
        return "all"
    return ", ".join(equal) or ("refused" if tried else "")


def _types_with_images(results: dict[str, Any], served: dict[str, list[str]]) -> list[str]:
    """Return the section of the types that read images."""
    facts, types = results["facts"], results["types"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return [
        "## Models that read images",
        "Each type that transformers lists for images and text, trained for two steps on eight rows of which some have "
        "one image, one has two, and some have none, in several sizes. What *equal* and *refused* mean is as above. "
        "The samples of plain transformers are made by the model's own processor, called as its documentation shows. "
        "All weights are trained, the vision encoder included, but with LoRA the language model alone. swift has no "
        "list of types: the processor turns images into tokens, and before training swift checks that samples with "
        "images in one batch do not affect each other. Batch normalization uses its stored statistics. The logits of "
        "each tiny model depend on the images. An empty cell was not measured.",
        f"Command: `{facts['command']}`, which uses torchvision for these. Versions: {versions}. Without torchvision, "
        "swift uses the processors that transformers has for Pillow, and leaves out the part for videos.",
        _types(types, served),
        "### Why types that read images are refused",
        _refusals(types),
        "### Types that read images and were not made",
        _not_made(facts),
    ]


def _types(types: dict[str, Any], served: dict[str, list[str]]) -> str:
    """Return the table of types, what came of each, and which engines serve it."""
    columns = list(dict.fromkeys(column for cells in types.values() for column in cells))
    results = [[_result(cells.get(each)) for each in columns] for cells in types.values()]
    trained = [sum(result.startswith("equal") for result in column) for column in zip(*results, strict=True)]
    rows = [
        f"| type | {' | '.join(columns)} | served by |",
        f"|---|{'---|' * (len(columns) + 1)}",
        f"| **{len(types)} in all** | {' | '.join(f'**{count}**' for count in trained)} | |",
    ]
    for name, cells in zip(types, results, strict=True):
        engines = ", ".join(served.get(name.partition(",")[0], ()))
        rows.append(f"| `{name}` | {' | '.join(cells)} | {engines} |")
    return "\n".join(rows)


def _result(verdict: dict[str, str] | None) -> str:
    """Return what came of a type in a column, and with which flag where one was needed."""
    if verdict is None:
        return ""
    return f"equal with `{verdict['note']}`" if verdict["result"] == "equal" and verdict["note"] else verdict["result"]


def _not_made(facts: dict[str, Any]) -> str:
    return "\n".join(f"- `{name}`: {reason}." for name, reason in facts["not_made"].items())


def _refusals(types: dict[str, Any]) -> str:
    """Return the sentences of refusals, each with the columns and types that it stands for."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, cells in types.items():
        for column, verdict in cells.items():
            if verdict["result"] == "refused" and column != "exported":
                found.setdefault((_general(verdict["note"], name), column), []).append(name)
    columns: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (sentence, column), names in found.items():
        columns.setdefault((sentence, tuple(names)), []).append(column)
    return "\n".join(
        f"- *{', '.join(which)}*: {sentence} ({', '.join(f'`{name}`' for name in names)})"
        for (sentence, names), which in columns.items()
    )


def _general(sentence: str, name: str) -> str:
    """Return the sentence of a refusal without the names of one type."""
    sentence = re.sub(r"\b\w+(For|LMHead|Model|Decoder)\w*\b|\bmodel\.[\w.]+", "…", sentence)
    sentence = re.sub(r" Did you mean '[^']*'\?", "", sentence)
    sentence = re.sub(rf"\b{re.escape(name.partition(',')[0])}\b", "…", sentence)
    return sentence.replace("<", "&lt;")


def _found() -> dict[str, Any]:
    path = REFERENCE / "proven-where.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"device": "", "found": {}}
    return found


def proven_page(results: dict[str, Any]) -> str:
    """Return the page of what was proven on which device, from the results of the tests marked `gpu`."""
    cases = runpy.run_path(str(REFERENCE.parent.parent / "tests" / "helpers" / "gpu_cases.py"))["everything"]()
    rows = ["| what | on the CPU | on a GPU |", "|---|---|---|"]
    for name, (what, cpu) in cases.items():
        outcome = results["found"].get(name, "")
        where = {"passed": f"proven on {results['device']}", "failed": f"**fails** on {results['device']}"}
        on_gpu = where.get(outcome, f"nowhere yet ({outcome})" if outcome else "nowhere yet")
        rows.append(f"| {what} | {_linked(cpu)} | {on_gpu} |")
    versions = ", ".join(f"{name} {version}" for name, version in results.get("versions", {}).items())
    parts = [
        "# What was proven where",
        "<!-- Written by `make docs` from tests/helpers/gpu_cases.py and proven-where.json, which `make gpu` writes. "
        "Do not edit. -->",
        "Which features were tested on the CPU, and which on a GPU. swift's ordinary tests need no GPU. `make gpu` "
        "runs the tests in `tests/gpu`, each of which compares a run with a known correct one, and then "
        "`benchmarks/gpu.py`. The last column has the result; swift promises nothing for a GPU that is not in it.",
        "\n".join(rows),
        *([f"Versions: {versions}."] if versions else []),
        *results.get("notes", []),
        "Tested on the CPU only: several processes (over gloo; NCCL with one process), and several machines (emulated "
        "on one). Not tested: several GPUs.",
    ]
    return "\n\n".join(parts) + "\n"


def _linked(text: str) -> str:
    """Return words about a test with the name of its file set apart."""
    first, _, rest = text.partition(" ")
    return f"`{first}` {rest}".rstrip() if first.startswith("tests/") else text


def _pairs(pairs: list[dict[str, Any]]) -> str:
    """Return a square table where every layout resumes from every other, otherwise a list."""
    off = {(pair["wrote"], pair["reads"]): max(pair["loss"], pair["grad_norm"]) for pair in pairs}
    layouts = list(dict.fromkeys(pair["wrote"] for pair in pairs))
    if len(off) < len(layouts) ** 2:
        rows = [f"| {wrote} | {reads} | {value:.0e} |" for (wrote, reads), value in off.items()]
        return "\n".join(["| saved by | resumed by | difference |", "|---|---|---|", *rows])
    rows = [
        f"| **{wrote}** | " + " | ".join(f"{off[wrote, reads]:.0e}" for reads in layouts) + " |" for wrote in layouts
    ]
    head = f"| saved by ↓ resumed by → | {' | '.join(layouts)} |"
    return "\n".join([head, "|---" * (len(layouts) + 1) + "|", *rows])


def tuning_pairs_page(results: dict[str, Any]) -> str:
    """Return the page of optimizers and tuners by layout: how near each pair comes to one process, or why not."""
    facts, found = results["facts"], results["found"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    steps = facts["steps"]
    reasons: list[str] = []
    tables = {kind: _tuning_pairs(found[kind], reasons) for kind in ("optimizer", "tuner")}
    tried = [cell for rows in found.values() for row in rows.values() for name, cell in row.items()]
    refused = sum("refused" in cell for cell in tried)
    parts = [
        "# Optimizers and tuners by layout",
        "<!-- Written by `make docs` from tuning-pairs.json, which `make pairs` writes. Do not edit. -->",
        f"Each optimizer ({steps['optimizer']} steps, all weights of a tiny Qwen3) and each tuner ({steps['tuner']} "
        "steps with AdamW) in each layout, compared with a run in one process, in float32. A cell is the largest "
        f"relative difference of loss or gradient norm; the test fails above {facts['tolerance']:g}. A letter is a "
        "layout that swift refuses before it loads weights, with one of the errors below. … was not tested.",
        f"{len(tried) - refused} cells were measured, {refused} are refused. Command: `{facts['command']}`. "
        f"Versions: {versions}.",
        "## Optimizers",
        tables["optimizer"],
        "## Tuners",
        "`begins` is the difference between the first loss and that of the same model in transformers. `exported` is "
        "the difference between the last evaluation of the run and the loss of its export (`swift export --to hf`) in "
        "transformers. Both must be below 1e-05. They do not apply to `qlora`, `loftq` and `neftune`: 4-bit weights "
        "and noise change the first loss, and adapters on 4-bit weights are exported for the unquantized model.",
        tables["tuner"],
        "## Why pairs are refused",
        "\n".join(f"- **{_letter(at)}**: {reason}" for at, reason in enumerate(reasons)),
    ]
    return "\n\n".join(parts) + "\n"


def _tuning_pairs(rows: dict[str, Any], reasons: list[str]) -> str:
    columns = list(dict.fromkeys(name for row in rows.values() for name in row))
    columns.sort(key=lambda name: ("begins", "exported").index(name) if name in ("begins", "exported") else 2)

    def shown(name: str, column: str, cell: dict[str, Any] | None) -> str:
        if cell is None:
            return "–" if column in ("begins", "exported") else "…"
        if "refused" not in cell:
            return f"{max(cell.values()):.0e}"
        # With names in it each pair would have its own reason; advice depends on what is installed.
        reason = " ".join(cell["refused"].split("\n")[0].replace(f"'{name}'", "'…'").replace(f" {name}", " …").split())
        if reason not in reasons:
            reasons.append(reason)
        return _letter(reasons.index(reason))

    lines = [
        f"| `{name}` | {' | '.join(shown(name, each, row.get(each)) for each in columns)} |"
        for name, row in rows.items()
    ]
    return "\n".join([f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|", *lines])


def _letter(number: int) -> str:
    """Return a, b, ..., z, aa, ab, ..."""
    return (_letter(number // 26 - 1) if number >= 26 else "") + chr(ord("a") + number % 26)


def plugin_options(section: str) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the options that plugins of LISTED add to a section that is open to them."""
    for entry in list_plugins():
        if KINDS[entry.group].section != section:
            continue
        model = load(entry).config_model if entry.distribution in LISTED else None
        if model is not None and set(model.model_fields) - set(Section.model_fields) - {"name"}:
            yield f"With `{section}.{KINDS[entry.group].selected_by}: {entry.name}`", model


def documentation(thing: object, name: str) -> str:
    text = vars(thing).get("__doc__") if isinstance(thing, type) else getattr(thing, "__doc__", None)
    if not text or not text.strip():
        raise Undocumented(f"{name} has no docstring.")
    return inspect.cleandoc(text)


def _signature(name: str, hook: Callable[..., Any]) -> str:
    signature = inspect.signature(hook)
    arguments = ", ".join(
        f"{each.name}: {each.annotation}" for each in signature.parameters.values() if each.name != "self"
    )
    return f"```python\ndef {name}({arguments}) -> {signature.return_annotation}\n```"


def _who_implements(hook: Callable[..., Any]) -> str:
    first: bool = getattr(hook, f"{hookspecs.hookspec.project_name}_spec")["firstresult"]
    return "*One plugin implements it.*" if first else "*Every plugin that implements it is called.*"


def _flags_of_key(field: Field) -> str:
    """Return the flags that set a key unchanged, and then those that set one of its values or translate theirs."""
    same = synonyms_of(field)
    others = [flag for flag in flags_of(field.key) if flag not in same]
    return "; also ".join(_flags(each) for each in (same, others) if each)


def _flags(names: Iterable[str]) -> str:
    return " ".join(f"`--{name}`" for name in names)


def _table(fields: Iterable[Field], flags: Callable[[Field], str] = _flags_of_key) -> list[str]:
    rows = [_row(field, flags(field)) for field in fields]
    if not rows:
        return []
    return ["\n".join(["| key | type | default | flags | meaning |", "|---|---|---|---|---|", *rows])]


def _row(field: Field, flags: str) -> str:
    if not field.description:
        raise Undocumented(f"key {field.key} has no description.")
    default = "required" if field.required else _default(field.default)
    cells = [f"`{field.argument or field.key}`", field.type_name, default, flags, field.description]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _default(value: Any) -> str:
    if value is None or value in ((), "", {}):
        return ""
    plain = list(value) if isinstance(value, tuple) else value
    shown = str(plain) if isinstance(plain, str | Path) else json.dumps(plain, default=str)
    return "`" + shown.replace("\n", "\\n") + "`"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"[`{name}`](#{name})" for name in names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
