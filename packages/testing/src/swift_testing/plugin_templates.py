"""Write a package with a new plugin: `swift plugins new KIND NAME`.

A template is a working plugin: `templates/KIND` has its modules and its test, under the plugin's own name. A new plugin
is a copy under another name, with a `pyproject.toml`. The pages of the documentation show the same files.
"""

from __future__ import annotations

import re
from pathlib import Path
from string import Template

from swift import __version__

_TEMPLATES = Path(__file__).parent / "templates"


def template_kinds() -> list[str]:
    """Return the kinds of plugins that have a template."""
    return sorted(folder.name for folder in _TEMPLATES.iterdir() if folder.is_dir())


def template_name(kind: str) -> str:
    """Return the name of the plugin in a template, with `_` between words."""
    (test,) = (_TEMPLATES / kind).glob("test_*.py")
    return test.stem.removeprefix("test_")


def new_plugin(kind: str, group: str, name: str) -> dict[str, str]:
    """Return the files of a package with a plugin of a kind: name → text. `group` is that of its entry point."""
    module = f"swift_{name.replace('-', '_')}"
    class_name = "".join(part.capitalize() for part in module.split("_")[1:])
    files = {}
    for file in sorted((_TEMPLATES / kind).glob("*.py")):
        files[_renamed(file.name, kind, name, class_name)] = _renamed(file.read_text("utf-8"), kind, name, class_name)
    release, minor, *_ = __version__.split(".")
    project = Template((_TEMPLATES / "pyproject.toml.in").read_text("utf-8")).substitute(
        distribution=module.replace("_", "-"),
        module=module,
        name=name,
        class_name=class_name,
        group=group,
        versions=f">={release}.{minor},<{release}.{int(minor) + 1}",
    )
    return {"pyproject.toml": project, **files}


def _renamed(text: str, kind: str, name: str, class_name: str) -> str:
    """Return a text of a template with another name of the plugin, in each way in which names are written."""
    old = template_name(kind).split("_")
    identifier = name.replace("-", "_")
    spellings = {
        rf"(?<=_){'_'.join(old)}|{'_'.join(old)}(?=_)": identifier,
        "".join(part.capitalize() for part in old): class_name,
        "[-_]".join(old): name,
    }
    found = re.compile("|".join(f"({pattern})" for pattern in spellings))
    replaced = [*spellings.values()]
    return found.sub(lambda match: replaced[(match.lastindex or 1) - 1], text)
