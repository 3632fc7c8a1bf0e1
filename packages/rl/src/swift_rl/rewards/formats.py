"""Rewards for the form of a completion, whatever its content."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

from pydantic import Field

from swift.config.options import Section
from swift.contracts import RewardItem
from swift.errors import ConfigError
from swift.installation import pip_install
from swift_rl.rewards.base import CompletionReward, final_answer

_THINK_TAGS = re.compile(r"<think>.*?</think>\s*<answer>.*?</answer>", re.DOTALL)
_REACT = re.compile(r"<think>.*?</think>\s*Action:.*?Action Input:.*", re.DOTALL)
_FENCED = re.compile(r"```(?:json)?\s*\n(.*?)```", re.DOTALL)


class FormatReward(CompletionReward):
    """1 for `<think>...</think><answer>...</answer>` and nothing else, 0 otherwise."""

    _form = _THINK_TAGS

    def score_one(self, item: RewardItem) -> float:
        """Return the value of a completion."""
        return float(self._form.fullmatch(item.completion) is not None)


class ReactFormatReward(FormatReward):
    """1 for `<think>...</think>` with `Action:` and `Action Input:` after it, 0 otherwise."""

    _form = _REACT


class JsonSchemaOptions(Section):
    """Options of `json_schema`."""

    json_schema: dict[str, Any] | None = Field(None, description="The schema; without it, the column `schema`")


class JsonSchemaReward(CompletionReward):
    """1 if the final answer, or its last fenced block, is JSON that a schema allows, else 0."""

    options_model = JsonSchemaOptions

    def __init__(self, options: JsonSchemaOptions) -> None:
        if importlib.util.find_spec("jsonschema") is None:
            raise ConfigError(
                "The reward 'json_schema' needs jsonschema, which is not installed.",
                hint=f"Run: {pip_install('swift-rl[schema]')}",
            )
        self._schema = options.json_schema
        self.wants = () if self._schema is not None else ("schema",)

    def score_one(self, item: RewardItem) -> float | None:
        """Return the value of a completion."""
        import jsonschema

        schema = self._schema if self._schema is not None else item.columns.get("schema")
        if schema is None:
            return None
        final = final_answer(item.completion)
        fenced = _FENCED.findall(final)
        try:
            jsonschema.validate(
                json.loads(fenced[-1] if fenced else final),
                json.loads(schema) if isinstance(schema, str) else schema,
            )
        except (json.JSONDecodeError, RecursionError, jsonschema.ValidationError):
            return 0.0
        return 1.0
