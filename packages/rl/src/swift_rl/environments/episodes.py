"""Episodes: turns of the model and the environment alternate and become one sample of tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from swift.contracts import EpisodeStart, InferenceEngine, Observation, Sampling, ScheduleContext, Turn
from swift.toolkit import heartbeat
from swift_infer import StopStrings
from swift_rl.environments.pool import EnvironmentPool, EpisodeCall
from swift_rl.environments.turns import TurnRenderer
from swift_rl.options import OnlineOptions
from swift_rl.rewards.tool_calls import calls_in
from swift_rl.rounds.data import Episode, Prompt
from swift_rl.rounds.files import Generated

_TURN_BITS = 96
"""Bits of the number of a sample, below the bits of the turn."""


@dataclass
class _Played:
    """An episode under way."""

    number: int
    prompt: Prompt
    call: EpisodeCall
    episode: Episode
    """As far as it has come; the rest is filled in at its end."""
    rendered: str
    """The conversation so far, as the template writes it."""
    prompt_ids: list[int]
    logps: list[float] = field(default_factory=list)
    finish_reason: str = "stop"

    @property
    def context(self) -> list[int]:
        return [*self.prompt_ids, *self.episode.token_ids]

    def sampled(self) -> Generated:
        """Return the episode as it is kept."""
        call, episode = self.call, self.episode
        own = [token for token, mine in zip(episode.token_ids, episode.written, strict=True) if mine]
        rewards = [seen.reward for seen in call.seen if seen.reward is not None]
        episode.turns = len(call.turns)
        episode.reward = sum(rewards) if rewards else None
        episode.rewards = [seen.reward for seen in call.seen]
        for seen in call.seen:
            episode.info |= seen.info
        episode.failure, episode.output = call.failure, call.output
        return Generated(own, self.logps, self.finish_reason, episode)


class Episodes:
    """Plays the episodes of this process, all of a call at the same time, turn by turn."""

    def __init__(self, context: ScheduleContext, options: OnlineOptions, described: Mapping[str, Any]) -> None:
        self._options = options
        self._tokenizer = context.tokenizer
        self._stops = StopStrings(context.tokenizer, options.stop_words)
        data = context.config.data
        self._system = None if data.system is None else {"role": "system", "content": data.system}
        arguments = data.template_kwargs
        self._turns = TurnRenderer(context.tokenizer, arguments, keep=options.template_drift == "keep")
        self._turns.check()
        self._pool = EnvironmentPool(described, options, heartbeat, context.say)
        self._positions = getattr(context.source.config.get_text_config(), "max_position_embeddings", None)

    def play(
        self, engine: InferenceEngine, samples: Sequence[tuple[int, Prompt]], sampling: Sampling
    ) -> Iterator[tuple[int, Generated]]:
        """Yield (number of the sample, generated episode) as episodes end."""
        played = [_begun(number, prompt, sampling.seed) for number, prompt in samples]
        self._pool.advance([each.call for each in played])
        for each in played:
            self._first(each)
        while played:
            live = [each for each in played if not each.call.over and self._budget(each) > 0]
            self._sample_turns(engine, live, sampling)
            self._pool.advance([each.call for each in live])
            going_on = [each for each in live if self._goes_on(each)]
            over = [each for each in played if not any(each is other for other in going_on)]
            self._pool.forget([each.call for each in over])
            for each in over:
                yield each.number, each.sampled()
            played = going_on

    def close(self) -> None:
        """End the processes of the environment."""
        self._pool.close()

    def _first(self, each: _Played) -> None:
        """Take the conversation that the environment begins with."""
        if each.call.first is not None:
            system = [] if self._system is None or _has_system(each.call.first) else [self._system]
            each.episode.messages = [*system, *each.call.first]
        rendering = self._turns.first(each.episode.messages, each.prompt.tools, each.prompt.source)
        each.rendered = rendering.text
        if each.call.first is None:
            return
        each.episode.begins_with = each.prompt_ids = rendering.token_ids
        if not each.call.failure and not self._budget(each):
            each.call.failure = (
                f"its prompt has {len(each.prompt_ids)} tokens, which leaves no room for a completion in the "
                f"{self._positions} positions of the model"
            )

    def _budget(self, each: _Played) -> int:
        """Return how many tokens the next completion may have."""
        most = self._options.max_completion_length
        if self._options.completion_length_limit_scope == "total":
            most -= len(each.episode.token_ids)
        if self._positions is not None:
            most = min(most, self._positions - len(each.prompt_ids) - len(each.episode.token_ids))
        return max(most, 0)

    def _sample_turns(self, engine: InferenceEngine, live: Sequence[_Played], sampling: Sampling) -> None:
        """Sample the next turn of each episode, as a function of seed, prompt, index and turn."""
        if not live:
            return
        budgets = [self._budget(each) for each in live]
        numbers = [each.number | len(each.call.turns) << _TURN_BITS for each in live]
        request = replace(sampling, numbers=numbers, max_new_tokens=max(budgets))
        for index, found in engine.generate([each.context for each in live], request):
            heartbeat()
            # A shorter limit gives the beginning of the same completion: samples do not depend on max_new_tokens.
            cut = len(found.token_ids) > budgets[index]
            ids, logps = list(found.token_ids)[: budgets[index]], list(found.logprobs)[: budgets[index]]
            self._take(live[index], ids, logps, "length" if cut else found.finish_reason)

    def _take(self, each: _Played, ids: list[int], logps: list[float], finish_reason: str) -> None:
        text = text_of(self._tokenizer, self._stops, ids, finish_reason)
        each.episode.token_ids += ids
        each.episode.written += [True] * len(ids)
        each.logps += logps
        each.finish_reason = finish_reason
        each.episode.text = text
        number = len(each.call.turns) + 1
        each.call.turns.append(Turn(text, number, ids, finish_reason, self._tool_calls(text)))

    def _goes_on(self, each: _Played) -> bool:
        """Append what the environment returned; return whether the model takes another turn."""
        call = each.call
        turn = call.turns[-1]
        last = each.episode.messages[-1] if each.episode.messages else {}
        own = {"role": "assistant", "content": turn.text}
        continued = last.get("role") == "assistant"
        ended = [*each.episode.messages[:-1], _longer(last, turn.text)] if continued else [*each.episode.messages, own]
        if call.over or turn.finish_reason == "length" or len(call.turns) == self._options.max_turns:
            each.episode.messages = ended
            return False
        seen = call.seen[-1]
        if seen.text:
            self._continue_completion(each, seen, continued)
        else:
            self._observe(each, seen, continued)
        if self._budget(each) > 0:
            return True
        # The model does not see this any more.
        while each.episode.written and not each.episode.written[-1]:
            del each.episode.token_ids[-1], each.episode.written[-1]
        each.episode.messages = ended
        each.finish_reason = "length"
        return False

    def _observe(self, each: _Played, seen: Observation, continued: bool) -> None:
        turn = each.call.turns[-1]
        ids = list(turn.token_ids)
        by_token = turn.finish_reason == "stop" and not self._stops.before(self._text(ids))[1]
        completion = self._raw(ids[:-1] if by_token else ids)
        before = each.episode.messages[:-1] if continued else each.episode.messages
        if continued:
            completion = str(each.episode.messages[-1]["content"]) + completion
        observed = [dict(message) for message in seen.messages]
        rendering = self._turns.following(
            each.rendered,
            before,
            completion,
            observed,
            each.prompt.tools,
            f"{each.prompt.source}, turn {turn.number}",
            ended=ids[-1] if by_token else None,
        )
        each.episode.messages = [*before, {"role": "assistant", "content": completion}, *observed]
        each.rendered = rendering.text
        self._append(each, rendering.token_ids)

    def _continue_completion(self, each: _Played, seen: Observation, continued: bool) -> None:
        """Remove what the environment does not keep of the completion, and append its text to the rest."""
        turn = each.call.turns[-1]
        ids = list(turn.token_ids)
        kept = turn.text if seen.keep is None else turn.text[: seen.keep]
        stays = next((count for count in range(len(ids) + 1) if len(self._text(ids[:count])) >= len(kept)), len(ids))
        if taken := len(ids) - stays:
            del each.episode.token_ids[-taken:], each.episode.written[-taken:], each.logps[-taken:]
        self._append(each, list(self._tokenizer(seen.text, add_special_tokens=False)["input_ids"]))
        so_far = self._raw(ids[:stays]) + seen.text
        last = each.episode.messages[-1] if each.episode.messages else {}
        longer = _longer(last, so_far) if continued else {"role": "assistant", "content": so_far}
        each.episode.messages = [*(each.episode.messages[:-1] if continued else each.episode.messages), longer]

    def _append(self, each: _Played, ids: Sequence[int]) -> None:
        each.episode.token_ids += ids
        each.episode.written += [False] * len(ids)

    def _tool_calls(self, text: str) -> list[dict[str, Any]]:
        """Return the tool calls in a completion: parsed by the tokenizer if it can, else by their notation."""
        parse: Callable[[str], Any] | None = getattr(self._tokenizer, "parse_response", None)
        if parse is not None and getattr(self._tokenizer, "response_schema", None):
            try:
                found = parse(text).get("tool_calls") or []
                return [dict(each.get("function", each)) for each in found]
            except Exception:  # the tokenizer cannot parse the completion
                return []
        return [{"name": name, "arguments": arguments} for name, arguments in calls_in(text) or ()]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _raw(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids))


def _begun(number: int, prompt: Prompt, seed: int) -> _Played:
    start = EpisodeStart(prompt.messages, prompt.columns, episode_seed(seed, prompt.position), prompt.source)
    ids = prompt.token_ids.tolist()
    return _Played(number, prompt, EpisodeCall(str(number), start), Episode([*prompt.messages], 0, [], []), "", ids)


def text_of(tokenizer: Any, stops: StopStrings, ids: list[int], finish_reason: str) -> str:
    """Return the text of a completion, without what ended it."""
    text, found = stops.before(str(tokenizer.decode(ids, skip_special_tokens=True)))
    if not found and finish_reason == "stop":
        return str(tokenizer.decode(ids[:-1], skip_special_tokens=True))
    return text


def episode_seed(seed: int, turn: int) -> int:
    """Return the seed of the episodes of a prompt, by its position in the order of the run."""
    digest = hashlib.blake2b(f"episode {seed} {turn}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def _has_system(messages: Sequence[Mapping[str, Any]]) -> bool:
    return bool(messages) and messages[0].get("role") == "system"


def _longer(message: dict[str, Any], text: str) -> dict[str, Any]:
    return {**message, "content": f"{message.get('content', '')}{text}"}
