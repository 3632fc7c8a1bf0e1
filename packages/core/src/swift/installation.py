"""How swift was installed: commands for hints, and other distributions that install the same files.

Imports nothing of swift, so that it works where another distribution has replaced the rest.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

CORE = "swift-core"
ON_INDEX = False
"""Whether package indexes have swift. Until then hints name the folder that `make wheels` fills."""
_OWN = re.compile(r"(swift-([\w-]+))(\[[^]]*\])?")
"""A requirement of this project: distribution, folder in a checkout, extras."""
_PLAIN = re.compile(r"[\w@%+=:,./-]+")
_OF_SWIFT = re.compile(r"^(?:swift/|\S*/bin/swift,)", re.MULTILINE)
"""Lines of a RECORD that list files of swift."""


def pip_install(*requirements: str, upgrade: bool = False) -> str:
    """Return the command that installs packages in this environment, swift's own from where swift itself came from."""
    own, folder = any(map(_own, requirements)), _folder()
    options = [*(["--upgrade"] if upgrade else []), *(_find_links() if own else [])]
    command = _shown([*_pip("install"), *options, *(part for each in requirements for part in _requirement(each))])
    if own and upgrade and folder is not None and (folder / "core").is_dir():
        return f"{_shown(['git', '-C', str(folder.parent), 'pull'])} && {command}"
    return command


def pip_uninstall(distribution: str) -> str:
    """Return the command that removes a distribution from this environment."""
    return _shown([*_pip("uninstall"), distribution])


def _pip(command: str) -> list[str]:
    """Return the start of a pip command for this environment, and of uv's for an environment without pip."""
    if not _has_pip():
        active = os.environ.get("VIRTUAL_ENV") == sys.prefix
        return ["uv", "pip", command, *([] if active else ["--python", sys.executable])]
    found = shutil.which("pip")
    if found is not None and os.path.dirname(found) == sysconfig.get_path("scripts"):  # noqa: PTH120
        return ["pip", command]
    return [sys.executable, "-m", "pip", command]


def _has_pip() -> bool:
    """Return whether pip is installed; not by its import spec, at which setuptools gives up distutils for good."""
    return any(metadata.distributions(name="pip"))


@cache
def _origin() -> dict[str, Any]:
    """Return what the installer recorded about swift's origin (PEP 610); empty for an index or a folder of wheels."""
    try:
        found = json.loads(metadata.distribution(CORE).read_text("direct_url.json") or "{}")
    except (metadata.PackageNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _folder() -> Path | None:
    """Return the folder that swift was installed from: `packages` of a checkout, or a folder of wheels."""
    from urllib.parse import unquote, urlsplit

    url = urlsplit(str(_origin().get("url", "")))
    folder = Path(unquote(url.path)).parent
    return folder if url.scheme == "file" and folder.is_dir() else None


def _find_links() -> list[str]:
    folder = _folder()
    if folder is not None:
        return [] if (folder / "core").is_dir() else ["--find-links", str(folder)]
    return [] if ON_INDEX or "vcs_info" in _origin() else ["--find-links", "dist"]


def _own(requirement: str) -> re.Match[str] | None:
    """Return the parts of a requirement of this project's packages, the extras of core; None for third-party ones."""
    found = _OWN.match(requirement)
    return found if found is not None and found[1] in _own_names() else None


@cache
def _own_names() -> frozenset[str]:
    try:
        requirements = metadata.requires(CORE) or []
    except metadata.PackageNotFoundError:
        requirements = []
    return frozenset({CORE, *(found[1] for each in requirements if (found := _OWN.match(each)))})


def _requirement(requirement: str) -> list[str]:
    """Return a requirement as it is installed; one of this project's packages from the checkout or repository."""
    own = _own(requirement)
    if own is None:
        return [requirement]
    (name, part, extras), folder, origin = own.groups(default=""), _folder(), _origin()
    if folder is not None and (folder / part / "pyproject.toml").is_file():
        here = Path("packages", part)
        path = f"./{here}" if here.is_dir() and here.samefile(folder / part) else str(folder / part)
        return [*(["-e"] if origin.get("dir_info", {}).get("editable") else []), path + extras]
    if vcs := origin.get("vcs_info"):
        source = f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}"
        return [f"{name}{extras} @ {source}#subdirectory=packages/{part}"]
    return [requirement]


def _shown(argv: Iterable[str]) -> str:
    return " ".join(each if _PLAIN.fullmatch(each) else f'"{each}"' for each in argv)


@dataclass(frozen=True)
class Conflict:
    """Another distribution that installs into the package `swift`, or installs the command `swift`."""

    name: str
    version: str
    damaged: tuple[str, ...]
    """Files of swift-core that it has replaced, or hides from Python."""

    @property
    def problem(self) -> str:
        other = f"{self.name} {self.version}"
        if not self.damaged:
            return f"{other} in this environment also installs files of swift. Removing it would remove them."
        more = f" and {len(self.damaged) - 3} more" if len(self.damaged) > 3 else ""
        return f"{other} has replaced files of {CORE}: {', '.join(self.damaged[:3])}{more}."

    @property
    def repair(self) -> str:
        """Return what to type."""
        again = ["--force-reinstall", "--no-deps", *_find_links(), *_requirement(CORE)]
        commands = [pip_uninstall(self.name), _shown([*_pip("install"), *again])]
        return f"Install swift in an environment of its own. To repair this one: {' && '.join(commands)}"


def conflicts(names: Iterable[str] | None = None) -> Iterator[Conflict]:
    """Yield the distributions of these names that install files of swift; without names, look at all."""
    found = (
        metadata.distributions() if names is None else (d for name in names for d in metadata.distributions(name=name))
    )
    for distribution in found:
        if _OF_SWIFT.search(_record(distribution)) and distribution.name != CORE:
            yield Conflict(distribution.name, distribution.version, tuple(sorted(_damaged(distribution))))


def _record(distribution: metadata.Distribution) -> str:
    try:
        return distribution.read_text("RECORD") or ""
    except (OSError, UnicodeError):
        return ""


def _damaged(other: metadata.Distribution) -> Iterator[str]:
    theirs = {os.path.normpath(str(other.locate_file(file))) for file in other.files or ()}
    for file in metadata.distribution(CORE).files or ():
        path = os.path.normpath(str(file.locate()))
        hidden = f"{path.removesuffix('.py')}/__init__.py" in theirs
        if hidden or (path in theirs and file.hash is not None and not _has_hash(Path(path), file.hash)):
            yield str(file).replace("../", "")


def _has_hash(path: Path, expected: metadata.FileHash) -> bool:
    try:
        digest = hashlib.new(expected.mode, path.read_bytes()).digest()
    except OSError:
        return False
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == expected.value
