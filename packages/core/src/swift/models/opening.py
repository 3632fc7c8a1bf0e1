"""Errors that transformers raises while it opens a model's folder, as one `ModelError` that names folder or file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swift.errors import ModelError, SwiftError
from swift.models.config_file import check_config
from swift.untrusted import check_regular, read_json_object, read_text, shown

GENERATION = "generation_config.json"
_SETTINGS = (
    GENERATION, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "chat_template.json", "processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json",
)  # fmt: skip
_OTHERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "merges.txt", "spiece.model")
_TEMPLATES = ("*.jinja", "additional_chat_templates/*.jinja", "*.tiktoken")
LARGEST = 256 << 20
"""Bytes of a tokenizer's file: four times the largest that is known."""


@contextmanager
def as_model_error(message: str, *, hint: str, config: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Raise a `ModelError` for whatever a library raises in the body, with the library's own reason behind `message`.

    With `config`, a name that the library does not know is said with the key that holds it. What a folder brings makes
    transformers, tokenizers and PEFT fail in ways that no list covers: with the errors of Python's operators, of
    dataclasses, of Rust. A `SwiftError` goes through as it is.
    """
    try:
        yield
    except SwiftError:
        raise
    except Exception as error:
        raise ModelError(f"{message}: {_key_of(error, config or {})}{first_line(error)}", hint=hint) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of Rust, which is no Exception
            raise
        raise ModelError(f"{message}: {first_line(error)}", hint=hint) from error


def check_files(folder: Path) -> None:
    """Refuse a folder in which something else than a file of a plausible size lies under the name of one."""
    names = [*_SETTINGS, *_OTHERS]
    # A link to nothing is a file that was not copied.
    found = [folder / name for name in names if (folder / name).exists() or (folder / name).is_symlink()]
    found += [path for pattern in _TEMPLATES for path in folder.glob(pattern)]
    for path in found:
        check_regular(path, ModelError)
        size = path.stat().st_size
        if size > LARGEST:
            raise ModelError(f"{shown(path)} is too large for a file of this kind ({size:,} bytes).")
    for template in folder.glob("*.jinja"):
        read_text(template, ModelError)
    for name in _SETTINGS:
        if (folder / name).exists():
            content = read_json_object(folder / name, ModelError)
            if name == GENERATION:
                check_config(content, str(folder / name))


def _key_of(error: Exception, config: Mapping[str, Any]) -> str:
    """Return which keys of a configuration hold the name that a library did not find in a table."""
    if not isinstance(error, KeyError) or not error.args:
        return ""
    keys = [key for key, value in config.items() if isinstance(value, str) and value == error.args[0]]
    return f"{' and '.join(keys)}: " if keys else ""


def first_line(error: BaseException) -> str:
    """Return the first line of an error that says something, or the error's name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith("Error(s) in loading state_dict"):
        lines = lines[1:]
    line = lines[0] if lines else type(error).__name__
    if line.endswith(":") and len(lines) > 1:  # a heading, as of transformers' validators of configurations
        line = f"{line} {lines[1]}"
    if isinstance(error, KeyError):
        line = f"there is no {line}"
    return line if len(line) <= 300 else f"{line[:250]}…"
