"""Messages for pydantic's validation errors, one sentence each: the source, the value and the rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from swift.config.values import clipped, quoted
from swift.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_MOST = 20
"""Maximum number of problems in one message."""
_RULES: dict[str, str] = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "a string",
    "path_type": "a path",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "literal_error": "one of {expected}",
    "enum": "one of {expected}",
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


def config_error(
    problem: ValidationError, source: Callable[[str], str], known: Iterable[str], *, section: str = "", owner: str = ""
) -> ConfigError:
    """Return the error for `problem`; `source` returns where a key was set.

    A plugin's model has keys without their `section`; `owner` names the plugin.
    """
    sentences = [_sentence(detail, source, list(known), section, owner) for detail in problem.errors(include_url=False)]
    different = list(dict.fromkeys(sentences))
    more = [f"And {len(different) - _MOST} more."] if len(different) > _MOST else []
    return ConfigError("\n".join(different[:_MOST] + more))


def _sentence(detail: ErrorDetails, source: Callable[[str], str], known: list[str], section: str, owner: str) -> str:
    key = ".".join([*filter(None, [section]), *(clipped(str(part)) for part in detail["loc"])])
    if detail["type"] == "extra_forbidden":
        of_whom = f" for the {owner}" if owner else ""
        parent, _, leaf = key.rpartition(".")
        siblings = [other.rpartition(".")[2] for other in known if other.rpartition(".")[0] == parent]
        where = source(key)
        meant = did_you_mean(leaf, siblings)
        if where.startswith("--"):  # as it would be typed
            meant = did_you_mean(f"--{key}", [f"--{parent}.{sibling}" for sibling in siblings])
        elif key in where:
            meant = did_you_mean(key, [f"{parent}.{sibling}" for sibling in siblings])
        return f"{where}: unknown key {key!r}{of_whom}.{meant}"
    if detail["type"] == "missing":
        return f"{key} is required."
    if not detail["loc"]:  # a rule about several keys, which names them
        return f"{section}: {_message(detail)}." if section else f"{_message(detail)}."
    rule = _RULES.get(detail["type"])
    if rule is None:
        message = _message(detail)
        came = ": " if message.startswith("must not") else ", not "
        return f"{subject(source(key), key)} {message}{came}{quoted(detail['input'])}."
    expected = rule.format(**detail.get("ctx", {}))
    return f"{subject(source(key), key)} must be {expected}, not {quoted(detail['input'])}."


def _message(detail: ErrorDetails) -> str:
    """Return the message of a validator of swift or pydantic as the end of a sentence."""
    complaint = detail["msg"]
    own = complaint.removeprefix("Value error, ")
    return own.rstrip(".") if own != complaint else f"is invalid: {clipped(complaint)}"


def first_problem(error: ValidationError) -> str:
    """Return the first problem of a file's content: 'tensors.norm.shape.0 must be at least 0, not -1'."""
    detail = error.errors(include_url=False)[0]
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "missing":
        return f"{key} is missing"
    rule = _RULES.get(detail["type"])
    if rule is not None:
        expected = rule.format(**detail.get("ctx", {})).replace("a mapping", "an object")
        return f"{key or 'it'} must be {expected}, not {quoted(detail['input'])}"
    if detail["msg"].startswith("Value error, "):  # of a validator of ours, which begins with the key in a section
        reason = detail["msg"].removeprefix("Value error, ")
        return f"{key}.{reason}" if key else reason
    return f"{key or 'it'} is invalid: {clipped(detail['msg'])}"


def subject(source: str, key: str) -> str:
    """Return the subject of a message: the flag, or the line of a file with the key."""
    return source if source.startswith("--") or key in source else f"{source}: {key}"
