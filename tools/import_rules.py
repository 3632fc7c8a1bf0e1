"""Check the import rules by reading the code: `make imports`.

1. Core imports no other package.
2. Other packages import only the packages that they declare as dependencies or in an extra, and only their public
   modules.
3. Modules of commands that neither train nor load a model import no torch or transformers, however indirectly.
4. There are no import cycles, and in core a folder imports only folders of lower layers.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from swift.lazy import public_imports

ROOT = Path(__file__).resolve().parent.parent

CORE = "swift"
HEAVY = frozenset({"torch", "transformers", "peft", "datasets"})
LIGHT = (
    "swift.cli",
    "swift.config",
    "swift.contracts",
    "swift.errors",
    "swift.forms",
    "swift.hardware",
    "swift.hookspecs",
    "swift.installation",
    "swift.parsing",
    "swift.planning",
    "swift.plugins",
    "swift_infer.chat",
    "swift_infer.commands",
    "swift_infer.evaluate",
    "swift_infer.options",
    "swift_infer.remote",
    "swift_infer.servers",
    "swift_infer.serving.options",
    "swift_infer.serving.request",
    "swift_ui",
    "swift_demo.command",
)
"""Imported, with all that lies in them, without anything of HEAVY."""

PUBLIC = (
    "swift",
    "swift.checkpoint",
    "swift.cli.train",
    "swift.config",
    "swift.config.limits",
    "swift.config.media",
    "swift.config.options",
    "swift.config.own_options",
    "swift.parsing",
    "swift.config.problems",
    "swift.config.sections",
    "swift.parsing.tasks",
    "swift.contracts",
    "swift.data",
    "swift.data.batch",
    "swift.data.conversation",
    "swift.data.encodings",
    "swift.data.formats",
    "swift.data.images",
    "swift.data.media",
    "swift.data.schedules",
    "swift.data.rendering",
    "swift.data.samples",
    "swift.data.text",
    "swift.errors",
    "swift.export",
    "swift.files",
    "swift.forms",
    "swift.hardware",
    "swift.hookspecs",
    "swift.installation",
    "swift.lazy",
    "swift.model_names",
    "swift.models",
    "swift.models.adapter_file",
    "swift.models.files",
    "swift.models.fp8",
    "swift.models.quiet",
    "swift.models.positions",
    "swift.models.sizes",
    "swift.objectives",
    "swift.objectives.across_rows",
    "swift.objectives.base",
    "swift.observers",
    "swift.observers.lines",
    "swift.observers.text",
    "swift.optim",
    "swift.optim.selected",
    "swift.planning",
    "swift.plugins",
    "swift.plugins.tuner",
    "swift.terminal",
    "swift.toolkit",
    "swift.train",
    "swift.untrusted",
    "swift_demo",
    "swift_infer",
    "swift_infer.servers",
    "swift_migrate",
    "swift_objectives",
    "swift_testing",
    "swift_trackers",
    "swift_tuning.matrix_sharding",
)
"""What other packages may import from; to add a module here is to promise to keep it."""

FLOORS = (
    "lazy",
    "version",
    "installation",
    "errors",
    "files",
    "hardware",
    "model_names",
    "terminal",
    "untrusted",
    "untrusted_pickle",
    "remote",
    "safetensors_header",
    "config",
    "data",
    "contracts",
    "hookspecs",
    "processes",
    "plugins",
    "parsing",
    "kernels",
    "optim",
    "objectives",
    "models",
    "tuners",
    "planning",
    "checkpoint",
    "export",
    "train",
    "observers",
    "convert",
    "imports",
    "backends",
    "toolkit",
    "script",
    "api",
    "llm",
    "",
    "cli",
    "forms",
    "__main__",
)
"""The folders and top-level modules of core from the ground up ('' is `swift` itself): who imports stands above."""

UPWARDS = {
    ("data", "contracts"): "plans are made for an objective",
    ("optim", "models"): "which weights decay is decided by their names",
    ("processes", "plugins"): "an error of another process is blamed on the plugin that raised it",
}
"""Imports that run back up, folder by folder, and why. There may be at most MOST_UPWARDS of them."""
MOST_UPWARDS = 3


@dataclass(frozen=True)
class Import:
    """One module that a file imports: `from a.b import c` imports `a.b`, and perhaps the module `a.b.c`."""

    module: str
    names: tuple[str, ...]
    line: int
    at_once: bool
    """Whether it happens when the file itself is imported."""
    typed: bool = False
    """Whether it is for type checking only."""

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def main(root: Path = ROOT) -> int:
    packages = {file.parent.name: file.parent for file in sorted(root.glob("packages/*/src/*/__init__.py"))}
    broken = [problem for name, folder in packages.items() for problem in check_package(name, folder, set(packages))]
    broken += check_light(list(packages.values()))
    broken += [problem for folder in packages.values() for problem in check_circles(folder)]
    upwards = arrows_upwards(packages[CORE])
    broken += check_upwards(upwards)
    for problem in broken:
        print(problem)
    print(f"floors of core: {len(FLOORS)}, imports that run back up: {len(upwards)} (at most {MOST_UPWARDS})")
    print(f"import rules: {len(broken)} broken" if broken else f"import rules: kept by {len(packages)} packages")
    return 1 if broken else 0


def sources(folder: Path) -> Iterator[Path]:
    """Yield the modules of a package, without templates of other packages."""
    return (file for file in folder.rglob("*.py") if "templates" not in file.relative_to(folder).parts)


def check_package(name: str, folder: Path, packages: set[str]) -> Iterator[str]:
    """Rules 1 and 2; imports for type checking count too."""
    allowed = {name, *dependencies(folder)}
    for file in sorted(sources(folder)):
        for each in imports(file, module_name(file, folder), typed=True):
            where = f"{file}:{each.line}: "
            if each.top in packages - allowed:
                yield where + f"{name} may not import {each.top}"
            elif each.top in packages - {name} and not is_public(each):
                yield where + f"{name} may import only the public modules of {each.top}, not {full_name(each)}"


def dependencies(folder: Path) -> set[str]:
    """Return the modules of the packages that a package declares; the extras of core only install the others."""
    file = folder.parent.parent / "pyproject.toml"
    project = tomllib.loads(file.read_text())["project"] if file.is_file() else {}
    extras = {} if folder.name == CORE else project.get("optional-dependencies", {})
    declared = [*project.get("dependencies", ["swift-core"]), *(each for extra in extras.values() for each in extra)]
    names = {re.split(r"[^\w.-]", each)[0] for each in declared}
    return {CORE if name == "swift-core" else name.replace("-", "_") for name in names}


def check_light(folders: list[Path]) -> Iterator[str]:
    """Rule 3: follow what is imported at once, from each light module, through all packages."""
    modules = {module_name(file, folder): file for folder in folders for file in sources(folder)}
    for start in sorted(name for name in modules if any(within(name, light) for light in LIGHT)):
        seen: dict[str, str | None] = {start: None}
        waiting = [start]
        while waiting:
            module = waiting.pop()
            for each in imports(modules[module], module):
                if each.at_once and each.top in HEAVY:
                    yield f"{modules[module]}:{each.line}: {each.top} is imported at once by {trail(seen, module)}"
                for found in loaded(each, modules) if each.at_once else ():
                    if found not in seen:
                        seen[found] = module
                        waiting.append(found)


def check_circles(folder: Path) -> Iterator[str]:
    """Rule 4, file by file; imports for type checking count too."""
    modules = {module_name(file, folder): file for file in sources(folder)}
    imported = {
        module: {name for each in imports(file, module, typed=True) for name in targets(each, modules)} - {module}
        for module, file in modules.items()
    }
    for circle in circles(imported):
        yield f"{modules[circle[0]]}: imports in a circle: {' -> '.join([*circle, circle[0]])}"


def circles(imported: dict[str, set[str]]) -> Iterator[list[str]]:
    """Yield one circle of each group of modules that reach each other."""
    reached = {module: _reached(module, imported) for module in imported}
    circular: set[str] = set()
    for module in sorted(imported):
        if module in reached[module] and module not in circular:
            circular |= {each for each in reached[module] if module in reached[each]}
            yield _way_back(module, imported)


def _reached(start: str, imported: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = imported[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def _way_back(start: str, imported: dict[str, set[str]]) -> list[str]:
    """Return the shortest way from a module through its imports back to it."""
    ways = [[start]]
    for way in ways:
        for module in sorted(imported[way[-1]]):
            if module == start:
                return way
            if module not in way:
                ways.append([*way, module])
    raise AssertionError(f"{start} is in no circle")


def arrows_upwards(core: Path) -> dict[tuple[str, str], str]:
    """Folders of core that import from a higher floor, imports for type checking included, with one import of each."""
    modules = {module_name(file, core): file for file in sources(core)}
    floors = {room: floor for floor, room in enumerate(FLOORS)}
    found: dict[tuple[str, str], str] = {}
    for module, file in sorted(modules.items()):
        for each in imports(file, module, typed=True):
            for target in targets(each, modules):
                rooms = (room_of(module), room_of(target))
                if rooms[0] != rooms[1] and not floors.get(rooms[0], -1) > floors.get(rooms[1], -1):
                    found.setdefault(rooms, f"{file}:{each.line}: {module} imports {target}")
    return found


def check_upwards(upwards: dict[tuple[str, str], str]) -> Iterator[str]:
    """Rule 4, folder by folder."""
    for (importer, imported), where in upwards.items():
        for room in (importer, imported):
            if room not in FLOORS:
                yield f"{where}: say in FLOORS on which floor {room} stands"
        if (importer, imported) not in UPWARDS:
            yield f"{where}, and {importer or CORE} stands below {imported}"
    for importer, imported in UPWARDS.keys() - upwards.keys():
        yield f"{Path(__file__).name}: nothing in {importer} imports {imported} any more: take it out of UPWARDS"
    if len(upwards) > MOST_UPWARDS:
        yield f"{len(upwards)} imports run back up, and at most {MOST_UPWARDS} may"


def room_of(module: str) -> str:
    """Return the folder or top-level module of core that a module belongs to."""
    return module.split(".")[1] if "." in module else ""


def targets(each: Import, modules: dict[str, Path]) -> set[str]:
    """Return the files that one import names: modules among the imported names, else the module itself."""
    inside = {f"{each.module}.{name}" for name in each.names} & modules.keys()
    itself = {each.module} & modules.keys() if len(inside) < max(1, len(each.names)) else set()
    return inside | itself


def imports(file: Path, module: str, *, typed: bool = False) -> Iterator[Import]:
    """Everything that a file imports; what is for type checking only where `typed` asks for it."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return (each for each in _imports_of(file, file.stat().st_mtime_ns, package) if typed or not each.typed)


@cache
def _imports_of(file: Path, _changed: int, package: str) -> tuple[Import, ...]:
    return tuple(_imports(ast.parse(file.read_text()), package, at_once=True, typed=False))


def _imports(node: ast.AST, package: str, *, at_once: bool, typed: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, (), node.lineno, at_once, typed)
        return
    if isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level else ""
        module = ".".join(filter(None, (base, node.module)))
        yield Import(module, tuple(alias.name for alias in node.names), node.lineno, at_once, typed)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        at_once = False
    guarded = isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else ():
            if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):  # no expression imports anything
                yield from _imports(child, package, at_once=at_once, typed=typed or (guarded and field == "body"))


def loaded(each: Import, modules: dict[str, Path]) -> Iterator[str]:
    """Modules that one import runs: parents, the module itself, names that are modules, and homes of lazy names."""
    parts = each.module.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))] + [f"{each.module}.{name}" for name in each.names]
    if each.module in modules and modules[each.module].name == "__init__.py":
        homes = lazy_homes(modules[each.module])
        names += [homes[name] for name in each.names if name in homes]
    return (name for name in names if name in modules)


@cache
def lazy_homes(file: Path) -> dict[str, str]:
    """Return the names that a package takes from its modules by `lazy_names`, and the module of each."""
    source = file.read_text()
    return public_imports(source) if "lazy_names(__name__)" in source else {}


def is_public(each: Import) -> bool:
    names = {f"{each.module}.{name}" for name in each.names}
    private = any(name.startswith("_") and not name.startswith("__") for name in each.names)
    return not private and (each.module in PUBLIC or (bool(names) and names <= set(PUBLIC)))


def full_name(each: Import) -> str:
    return f"{each.module} ({', '.join(each.names)})" if each.names else each.module


def module_name(file: Path, package: Path) -> str:
    parts = file.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def trail(seen: dict[str, str | None], module: str) -> str:
    chain = [module]
    while (before := seen[chain[-1]]) is not None:
        chain.append(before)
    return " <- ".join(chain)


if __name__ == "__main__":
    sys.exit(main())
