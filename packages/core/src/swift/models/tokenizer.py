"""The tokenizer of a model folder: loaded, checked against the model, and copied into exports."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2

from swift.errors import ConfigError, ModelError, SwiftError
from swift.models.media_processor import stored_template
from swift.models.opening import as_model_error, check_files
from swift.models.tokenizer_file import tell_difference
from swift.models.trust import TRUST_FLAG
from swift.untrusted import Failure, inside, json_kind, read_json_object, read_text, time_limit

if TYPE_CHECKING:
    from swift.config.sections import ModelSection

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model", "*.tiktoken")
"""A folder with none of these has no tokenizer."""
COMPANIONS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)
TEMPLATE = "chat_template.jinja"
LARGEST_TEMPLATE = 1 << 20
PATIENCE = 10.0
"""Seconds for a conversation of one word."""


def check_has_tokenizer(folder: Path) -> None:
    """Refuse a folder without the files of a tokenizer."""
    if not any(True for pattern in TOKENIZER_FILES for _ in folder.glob(pattern)):
        raise ModelError(
            f"{folder} has no tokenizer: tokenizer.json is missing.",
            hint="Copy the tokenizer's files next to the weights.",
        )


def check_tokenizer(folder: Path) -> None:
    """Refuse a folder without a tokenizer, or whose tokenizer's files are invalid; nothing is loaded."""
    check_has_tokenizer(folder)
    check_settings(folder)


def load_tokenizer(folder: Path, section: ModelSection, config: Any, *, say: Callable[[str], None]) -> Any:
    """Return the transformers tokenizer, with the chat template in force."""
    from transformers import AutoTokenizer

    check_settings(folder)
    with as_model_error(
        f"The tokenizer in {folder} cannot be read",
        hint="Copy tokenizer.json and tokenizer_config.json next to the weights; if the model comes with its own "
        f"code, add {TRUST_FLAG}",
    ):
        tokenizer = AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=section.trust_remote_code)
        _ = tokenizer.get_vocab(), tokenizer("a text")
        tell_difference(tokenizer, folder, say)
    if tokenizer.chat_template is None:
        tokenizer.chat_template = stored_template(folder)  # of a model that reads images, in a file of its processor
    if section.chat_template is not None:
        _set_template(tokenizer, section.chat_template)
    elif isinstance(tokenizer.chat_template, str):
        own = folder / TEMPLATE
        _try_template(tokenizer, own if own.exists() else folder / "tokenizer_config.json", ModelError)
    _check_vocabulary(tokenizer, config, folder, say)
    return tokenizer


def copy_tokenizer(source: Path, destination: Path, *, template: str | None) -> None:
    """Copy the tokenizer's files as they are; a chat template that is in force instead of theirs goes over them."""
    for pattern in (*TOKENIZER_FILES, *COMPANIONS):
        for file in source.glob(pattern):
            shutil.copyfile(file, destination / file.name)
    if template is not None:
        (destination / TEMPLATE).write_text(template, encoding="utf-8")


def check_settings(folder: Path) -> None:
    """Refuse invalid tokenizer files, and those that name others outside of their folder."""
    check_files(folder)
    file = folder / "tokenizer_config.json"
    if not file.exists():
        return
    settings = read_json_object(file, ModelError)
    for key in ("gguf_file", "init_inputs"):  # transformers opens the files that they name
        if settings.get(key):
            raise ModelError(f"{file}: {key} is not supported: it can name any file.", hint=f"Remove {key}.")
    files = settings.get("fast_tokenizer_files") or []
    if not isinstance(files, list):
        raise ModelError(f"{file}: fast_tokenizer_files is {json_kind(files)}, not a list.", hint="Copy it again.")
    for name in files:
        inside(folder, name, ModelError, source=f"{file} (fast_tokenizer_files)")


def _set_template(tokenizer: Any, path: Path) -> None:
    if not path.exists():
        raise ConfigError(f"Chat template {path} does not exist.", hint="Check --model.chat_template.")
    tokenizer.chat_template = read_text(path, ConfigError, limit=LARGEST_TEMPLATE)
    _try_template(tokenizer, path, ConfigError)


def _try_template(tokenizer: Any, path: Path, error: Failure) -> None:
    """Raise `error` for a chat template that is invalid or does not end; `path` is named in the message."""
    endless = error(
        f"The chat template {path} takes more than {PATIENCE:g} seconds for one word.",
        hint="Check it for endless loops.",
    )
    try:
        with time_limit(PATIENCE, endless):
            tokenizer.apply_chat_template([{"role": "user", "content": "."}], tokenize=False)
    except jinja2.TemplateSyntaxError as problem:
        raise error(f"{path}, line {problem.lineno}: {problem.message}", hint="Fix the chat template.") from problem
    except SwiftError:
        raise
    except Exception:  # a template may raise anything
        return  # It compiles; which conversations it takes is found out with the data.


def _check_vocabulary(tokenizer: Any, config: Any, folder: Path, say: Callable[[str], None]) -> None:
    """Raise `ModelError` where a token that text can become has no row in the embedding."""
    rows = config.get_text_config().vocab_size
    beyond = {token: index for token, index in tokenizer.get_vocab().items() if index >= rows}
    if not beyond:
        return
    # Some released text models list placeholders of their image-reading relatives: never written, never learned.
    added = {str(token) for token in tokenizer.added_tokens_decoder.values() if token.special}
    used = {getattr(tokenizer, f"{role}_token") for role in ("bos", "eos", "pad", "unk")}
    template = str(tokenizer.chat_template or "")
    reachable = [token for token in beyond if token not in added or token in used or token in template]
    if reachable:
        raise ModelError(
            f"The tokenizer in {folder} has {max(beyond.values()) + 1} tokens, but the model's vocabulary has {rows}: "
            f"{reachable[0]!r} has no embedding.",
            hint="Use the tokenizer that belongs to the model.",
        )
    say(
        f"{len(beyond)} special tokens of the tokenizer have no embedding and must not occur in data: "
        f"{', '.join(beyond)}"
    )
