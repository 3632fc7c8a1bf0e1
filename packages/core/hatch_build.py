"""Lets `pip install "./packages/core[megatron]"` find swift's other packages, in the same checkout."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

BUILT_BY_PIP = {"_PYPROJECT_HOOKS_BUILD_BACKEND", "PEP517_BUILD_BACKEND"}
"""Set by pip, which builds in the checkout; hatchling itself builds the wheels for an index."""


class ExtrasOfCheckout(MetadataHookInterface):
    """In the extras, replaces versions of swift's own packages by folders, and adds the packages that these need."""

    def update(self, metadata: dict) -> None:
        packages = Path(self.root).parent
        if not BUILT_BY_PIP & os.environ.keys() or not (packages / "core" / "pyproject.toml").is_file():
            return
        folders = {f"swift-{file.parent.name}": file.parent for file in packages.glob("*/pyproject.toml")}
        for requirements in metadata["optional-dependencies"].values():
            requirements[:] = dict.fromkeys(found for each in requirements for found in _found(each, folders))


def _found(requirement: str, folders: Mapping[str, Path]) -> Iterator[str]:
    name, _, version = requirement.partition("==")
    folder = folders.get(name.partition("[")[0])
    if folder is None or not version or folder.name == "core":
        yield requirement
        return
    yield f"{name} @ {folder.as_uri()}"
    for needed in tomllib.loads((folder / "pyproject.toml").read_text())["project"]["dependencies"]:
        if needed.partition("==")[0] in folders.keys() - {"swift-core"}:
            yield from _found(needed, folders)
