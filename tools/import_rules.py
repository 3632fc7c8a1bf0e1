"""Who may import whom, checked by reading the code: `make imports`.

1. Core imports no backend and no exporter package.
2. These packages import only the public modules of swift, and never each other.
3. The modules of verbs that neither train nor load a model import neither torch nor transformers, however indirectly.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CORE = "swift"
HEAVY = frozenset({"torch", "transformers", "peft", "datasets"})
LIGHT = (
    "swift.cli",
    "swift.config",
    "swift.contracts",
    "swift.deferred",
    "swift.cli.doctor",
    "swift.errors",
    "swift.hookspecs",
    "swift.infer.chat",
    "swift.cli.infer",
    "swift.infer.evaluate",
    "swift.infer.remote",
    "swift.serve.request",
    "swift.plugins",
)
"""Imported, with all that lies in them, without anything of HEAVY."""

PUBLIC = (
    "swift",
    "swift.checkpoint",
    "swift.config.limits",
    "swift.config.sections",
    "swift.contracts",
    "swift.data.batch",
    "swift.data.samples",
    "swift.errors",
    "swift.export",
    "swift.hookspecs",
    "swift.infer",
    "swift.models",
    "swift.models.adapter_file",
    "swift.models.files",
    "swift.objectives",
    "swift.optim",
    "swift.plugins",
    "swift.testing",
    "swift.toolkit",
    "swift.untrusted",
)
"""What other packages may import from; to add a module here is to promise to keep it."""


@dataclass(frozen=True)
class Import:
    """One module that a file imports: `from a.b import c` imports `a.b`, and perhaps the module `a.b.c`."""

    module: str
    names: tuple[str, ...]
    line: int
    at_once: bool
    """Whether it happens when the file itself is imported."""

    @property
    def top(self) -> str:
        return self.module.split(".")[0]


def main(root: Path = ROOT) -> int:
    packages = {file.parent.name: file.parent for file in sorted(root.glob("packages/*/src/*/__init__.py"))}
    broken = [problem for name, folder in packages.items() for problem in check_package(name, folder, set(packages))]
    broken += check_light(packages[CORE])
    for problem in broken:
        print(problem)
    print(f"import rules: {len(broken)} broken" if broken else f"import rules: kept by {len(packages)} packages")
    return 1 if broken else 0


def check_package(name: str, folder: Path, packages: set[str]) -> Iterator[str]:
    """Rules 1 and 2."""
    for file in sorted(folder.rglob("*.py")):
        for each in imports(file, module_name(file, folder)):
            where = f"{file}:{each.line}: "
            if each.top in packages - {CORE, name}:
                yield where + f"{name} may not import {each.top}"
            elif name != CORE and each.top == CORE and not is_public(each):
                yield where + f"{name} may import only the public modules of swift, not {full_name(each)}"


def check_light(core: Path) -> Iterator[str]:
    """Rule 3: follow what is imported at once, from each light module, through core."""
    modules = {module_name(file, core): file for file in core.rglob("*.py")}
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


def imports(file: Path, module: str) -> Iterator[Import]:
    """Everything that a file imports, except for type checking only."""
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return _imports(ast.parse(file.read_text()), package, at_once=True)


def _imports(node: ast.AST, package: str, *, at_once: bool) -> Iterator[Import]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Import(alias.name, (), node.lineno, at_once)
        return
    if isinstance(node, ast.ImportFrom):
        base = package.rsplit(".", node.level - 1)[0] if node.level else ""
        module = ".".join(filter(None, (base, node.module)))
        yield Import(module, tuple(alias.name for alias in node.names), node.lineno, at_once)
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        at_once = False
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        children = node.orelse
    for child in children:
        yield from _imports(child, package, at_once=at_once)


def loaded(each: Import, modules: dict[str, Path]) -> Iterator[str]:
    """Modules of core that one import runs: parents, the module itself, and names that are modules."""
    parts = each.module.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))] + [f"{each.module}.{name}" for name in each.names]
    return (name for name in names if name in modules)


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
