"""Build the documentation site: `make site`.

Copies the pages of `docs`, the files that they link to, and a page for each public module into build/site-pages, and
builds them with MkDocs in strict mode: a broken link is an error. `tools/setup.py site` installs MkDocs into a separate
environment.

A version is built into a folder of its own, `build/site/VERSION`. Other versions in `build/site` stay, and the pages
offer them. Any host of static files can serve `build/site`: its `index.html` leads to the newest version.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import import_rules
from packaging.version import Version

from swift import __version__

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = ROOT / "build" / "site-pages"
BUILDER = ROOT / ".venv" / "site" / "bin" / "python"
OUTSIDE = "repository"
ASSETS = Path(__file__).resolve().parent / "site"
PARTS = ("tutorial", "how-to", "plugins", "reference", "explanation", "zh")
TITLES = {"how-to": "How to", "plugins": "Write plugins", "zh": "中文"}
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")
_FILE_NAME = re.compile(r"^(```\w+) \S+$", re.MULTILINE)
_REMOTE = re.compile(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["'](?:https?:)?//[^"']+""")
SETTINGS: dict[str, Any] = {
    "site_name": "swift",
    "theme": {"name": "readthedocs", "highlightjs": False},
    "plugins": [{"search": {"lang": ["en", "zh"], "min_search_length": 2}}],
    "extra_javascript": ["versions.js"],
    "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": "#"}}],
    "strict": True,
    "use_directory_urls": False,
    "validation": {"links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"}},
}


def main() -> int:
    site = ROOT / "build" / "site"
    print(build(site / __version__))
    print(f"{site}: versions {', '.join(write_versions(site))}")
    return 0


def write_versions(site: Path) -> list[str]:
    """Write the list of the versions in a folder, and a page that leads to the newest; return the list."""
    versions = sorted((page.parent.name for page in site.glob("*/index.html")), key=Version, reverse=True)
    (site / "versions.json").write_text(json.dumps(versions))
    newest = f"{versions[0]}/index.html"
    page = f'<!doctype html><title>swift</title><meta http-equiv="refresh" content="0; url={newest}">'
    (site / "index.html").write_text(f'{page}<a href="{newest}">swift {versions[0]}</a>\n')
    (site / ".nojekyll").touch()
    return versions


def build(site: Path) -> str:
    """Build the site and return what it has; `SystemExit` for a link to nothing, or a file of another host."""
    if not BUILDER.exists():
        raise SystemExit("MkDocs is not installed. Type: make site")
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(DOCS, PAGES)
    (PAGES / "README.md").rename(PAGES / "index.md")
    outside: set[Path] = set()
    for page in sorted(PAGES.rglob("*.md")):
        page.write_text(_with_inner_links(page, outside))
    _bring(outside)
    for module in import_rules.PUBLIC:
        (PAGES / "reference" / "api").mkdir(exist_ok=True)
        (PAGES / "reference" / "api" / f"{module}.md").write_text(api_page(importlib.import_module(module)))
    shutil.copy(ASSETS / "versions.js", PAGES)
    settings = PAGES.parent / "site.yml"
    settings.write_text(json.dumps({**SETTINGS, "docs_dir": str(PAGES), "site_dir": str(site), "nav": navigation()}))
    done = subprocess.run([BUILDER, "-m", "mkdocs", "build", "-f", settings], capture_output=True, text=True)
    if done.returncode:  # with --quiet it would count no warnings
        problems = [line for line in done.stderr.splitlines() if line.startswith(("WARNING", "ERROR"))]
        raise SystemExit("the site was not built: " + " ".join(problems[:4] or done.stderr.splitlines()[-4:]))
    shutil.copy(ASSETS / "lunr.zh.js", site / "search")
    built = sorted(site.rglob("*.html"))
    for page in built:
        if found := _REMOTE.search(page.read_text(encoding="utf-8")):
            raise SystemExit(f"{page.relative_to(site)} would ask another host: {found[0]}")
    return f"{len(built)} pages, {len(import_rules.PUBLIC)} of them of public modules, no request to another host"


def navigation() -> list[dict[str, Any]]:
    """Return the parts of the documentation with their pages; titles come from the pages."""
    parts: list[dict[str, Any]] = [{"Documentation": "index.md"}]
    for part in PARTS:
        files = (PAGES / part).glob("*/*.md" if part == "zh" else "*.md")
        pages = [str(page.relative_to(PAGES)) for page in sorted(files)]
        parts.append({TITLES.get(part, part.capitalize()): pages})
    modules = [{module: f"reference/api/{module}.md"} for module in import_rules.PUBLIC]
    return [*parts, {"Public modules": modules}]


def _with_inner_links(page: Path, outside: set[Path]) -> str:
    """Return a page whose links to files of the repository lead to copies of them in the site."""
    at = DOCS / ("README.md" if page == PAGES / "index.md" else page.relative_to(PAGES))

    def moved(found: re.Match[str]) -> str:
        target = found["target"]
        if "://" in target or target.startswith("mailto:"):
            return found[0]
        file = Path(os.path.normpath(at.parent / target))
        if file.is_dir():
            file = file / "README.md"
        if file.is_relative_to(DOCS):
            inner = PAGES / ("index.md" if file == DOCS / "README.md" else file.relative_to(DOCS))
        else:
            outside.add(file)
            inner = PAGES / OUTSIDE / file.relative_to(ROOT)
        return f"[{found['text']}]({os.path.relpath(inner, page.parent)}{found['anchor'] or ''})"

    return _LINK.sub(moved, _without_file_names(page))


def _without_file_names(page: Path) -> str:
    """Return a page whose blocks of code name only their language: MkDocs does not see `python FILE` as a block."""
    return _FILE_NAME.sub(r"\1", page.read_text(encoding="utf-8"))


def _bring(files: set[Path]) -> None:
    """Copy files of the repository that pages link to, and what the pages among them link to in turn."""
    for file in sorted(files):
        if not file.is_file():
            raise SystemExit(f"a page links to {file.relative_to(ROOT)}, which is not there")
        copy = PAGES / OUTSIDE / file.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix == ".md":  # its own links lead through the repository, which the site has not
            text = _IMAGE.sub("", _without_file_names(file))
            copy.write_text(_LINK.sub(lambda found: found["text"], text))
        else:
            shutil.copy(file, copy)


def api_page(module: ModuleType) -> str:
    """Return the page of a public module: what it is for, and each of its names with its docstring."""
    lines = [f"# {module.__name__}", "", _text(module), ""]
    for name, each in public(module):
        lines += [f"## {name}", ""]
        if inspect.isclass(each):
            lines += ["```python", f"class {name}({', '.join(base.__name__ for base in each.__bases__)})", "```", ""]
            lines += [_text(each), "", *_fields(each), ""]
            for member, method in sorted(vars(each).items()):
                if inspect.isfunction(method) and not member.startswith("_"):
                    lines += [*_called(f"{name}.{member}", method), "", _text(method), ""]
        elif callable(each):
            lines += [*_called(name, each), "", _text(each), ""]
        else:
            lines += ["```python", f"{name} = {each!r}"[:400], "```", ""]
    return "\n".join(lines) + "\n"


def _fields(each: type) -> Iterator[str]:
    """Yield the fields of a class, with the texts that stand below them."""
    try:
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
    except (OSError, TypeError, ValueError):
        return
    assert isinstance(tree, ast.ClassDef)
    for line, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and not ast.unparse(line.target).startswith("_"):
            value = below.value if isinstance(below, ast.Expr) else None
            text = value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
            yield f"- `{ast.unparse(line)}`" + (f": {' '.join(text.split())}" if text else "").replace("<", "&lt;")


def _called(name: str, each: Any) -> list[str]:
    """Return a signature, one parameter a line where it is long."""
    try:
        signature = inspect.signature(each)
    except (TypeError, ValueError):
        return ["```python", f"{name}(...)", "```"]
    line = f"{name}{signature}".replace("'", "")
    if len(line) > 100:
        parameters = ",\n    ".join(map(str, signature.parameters.values())).replace("'", "")
        line = f"{name}(\n    {parameters},\n) -> {signature.return_annotation}".replace("'", "")
    return ["```python", line, "```"]


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the names that a module offers: those of `__all__`, or those that it defines itself."""
    names = getattr(module, "__all__", None)
    for name in sorted(names if names is not None else vars(module)):
        each = getattr(module, name)
        own = getattr(each, "__module__", None) == module.__name__
        if not name.startswith("_") and not inspect.ismodule(each) and (names is not None or own):
            yield name, each


def _text(each: Any) -> str:
    """Return a docstring as Markdown: what looks like a tag or a heading there is none."""
    docstring = inspect.cleandoc(each.__doc__ or "")
    return re.sub(r"^#", r"\\#", docstring.replace("<", "&lt;"), flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
