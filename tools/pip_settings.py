"""Pass pip's settings (environment, pip.conf) to uv, which does not read them."""

from __future__ import annotations

import ast
import subprocess
import sys

# pip's option: uv's environment variable, and its separator for several values.
UV_NAMES = {
    "index-url": ("UV_DEFAULT_INDEX", ""),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", ""),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", ""),
    "timeout": ("UV_HTTP_TIMEOUT", ""),
    "proxy": ("ALL_PROXY", ""),
    "cert": ("SSL_CERT_FILE", ""),
}
# Names that offer packages beside the index: they have no part in a lock, nor where only the index's hashes are known.
OFFERS = ("UV_INDEX", "UV_FIND_LINKS")


def for_uv(*, offers: bool = True) -> dict[str, str]:
    """Return the settings in force as environment variables of uv; without `offers` only the index itself remains."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    ).stdout
    return {name: value for name, value in translate(listing).items() if offers or name not in OFFERS}


def translate(listing: str) -> dict[str, str]:
    """Return the output of `pip config list` as environment variables of uv."""
    by_section: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        if section in by_section:
            by_section[section][option] = str(ast.literal_eval(value))
    settings: dict[str, str] = {}
    for options in by_section.values():  # what comes later outranks what comes before, as in pip
        for option, value in options.items():
            if option in UV_NAMES and value:
                name, separator = UV_NAMES[option]
                settings[name] = separator.join(value.split()) if separator else value
    if "UV_INDEX" in settings:
        # pip looks at all indexes together. Hashes are pinned, so it doesn't matter which of them answers.
        settings["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return settings
