"""The schedulers and gym environments that ms-swift brings with it, by its names; its plugin files derive from them."""

from __future__ import annotations

import copy
import importlib
import json
import re
import sys
from collections.abc import Mapping
from typing import Any

from swift.installation import pip_install
from swift_rl.environments.ms_swift import ENVS, SCHEDULERS, GymEnv, TurnScheduler
from swift_rl.rewards.ms_swift import MathAccuracy


class MathTipsScheduler(TurnScheduler):
    """`math_tip_trick`: continues a wrong completion once, with a doubt instead of its conclusion."""

    wants = ("solution",)
    tips_prompt = "But wait... It seems I made a mistake,"

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.acc_func = named.get("acc_function") or MathAccuracy()

    def check_finished(self, infer_request: Any, response_choice: Any, current_turn: int) -> bool:
        """Return whether the completion is right, or was doubted before."""
        text = infer_request.messages[-1]["content"]
        if self.tips_prompt in text or self.acc_func([text], [infer_request.data_dict["solution"]])[0] == 1:
            return True
        return super().check_finished(infer_request, response_choice, current_turn)

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Put the doubt where the reasoning ends."""
        text, last = response_choice.message.content, infer_request.messages[-1]
        ends = [text.index(tag) for tag in ("<answer>", "</think>") if tag in text]
        before = len(last["content"]) - len(text)
        last["content"] = last["content"][: before + min(ends, default=len(text))] + self.tips_prompt
        return {"infer_request": infer_request}


class GymScheduler(TurnScheduler):
    """`gym_scheduler`: continues after a completion with the observation of a gym environment."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.gym_env_name = named.get("gym_env")
        self._envs: dict[str, Any] = {}
        self._total_rewards: dict[str, float] = {}
        self._step_rewards: dict[str, list[float]] = {}
        self._pending_obs: dict[str, Any] = {}

    async def on_trajectory_start(self, requests: Any) -> None:
        """Begin an episode of the environment for each request."""
        for request in requests:
            config = self._config(request)
            env = self._create_env(config)
            question, _, system = await env.reset(request)
            self._begin(request, env, question, system)

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Return whether the episode is over, and its rewards so far."""
        env = self._envs.get(infer_request.uuid)
        if env is None:
            return {"done": True, "rollout_infos": {}}
        seen, reward, done, _ = await env.step(copy.deepcopy(infer_request.messages))
        return await self._end_turn(infer_request.uuid, seen, reward, done)

    def step(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Add what the environment observed."""
        seen = self._pending_obs.get(infer_request.uuid)
        if seen is not None:
            infer_request.messages.append({"role": "user", "content": seen})
            self._pending_obs[infer_request.uuid] = None
        return {"infer_request": infer_request}

    def _config(self, request: Any) -> dict[str, Any]:
        return dict(request.data_dict.get("env_config") or {})

    def _create_env(self, env_config: Mapping[str, Any]) -> Any:
        name = env_config.get("name", self.gym_env_name)
        if name not in ENVS:
            raise LookupError(f"no environment {name!r} is registered. Registered: {', '.join(ENVS)}")
        return ENVS[name](env_config)

    def _begin(self, request: Any, env: Any, question: Any, system: str | None) -> None:
        first = [{"role": "system", "content": system}] if system else []
        request.messages = [*first, {"role": "user", "content": question}]
        self._envs[request.uuid] = env
        self._total_rewards[request.uuid], self._step_rewards[request.uuid] = 0.0, []
        self._pending_obs[request.uuid] = None

    async def _end_turn(self, uuid: str, seen: Any, reward: float, done: bool) -> Mapping[str, Any]:
        self._total_rewards[uuid] += float(reward)
        self._step_rewards[uuid].append(float(reward))
        self._pending_obs[uuid] = None if done else seen
        info = {
            "total_reward": self._total_rewards[uuid],
            "step_rewards": [*self._step_rewards[uuid]],
            "gym_done": done,
        }
        if done:
            await self._close_and_remove(uuid)
        return {"done": done, "rollout_infos": info}

    async def _close_and_remove(self, uuid: str) -> None:
        env = self._envs.pop(uuid, None)
        for kept in (self._total_rewards, self._step_rewards, self._pending_obs):
            kept.pop(uuid, None)
        if env is not None:
            await env.close()


class OpenEnvScheduler(GymScheduler):
    """`openenv_scheduler`: the environment is one of an OpenEnv server, which the row's `env_config` names."""

    env_config_defaults: Mapping[str, Any] = {}

    async def on_trajectory_start(self, requests: Any) -> None:
        """Begin an episode on the server for each request."""
        for request in requests:
            config = self._config(request)
            env = self._create_env(config)
            seen, _ = env.reset()
            self._begin(request, env, self.format_observation(seen), config.get("system_message"))

    async def on_turn_end(self, infer_request: Any, response_choice: Any, current_turn: int) -> Mapping[str, Any]:
        """Take the action in the completion."""
        env = self._envs.get(infer_request.uuid)
        if env is None:
            return {"done": True, "rollout_infos": {}}
        seen, reward, done, _ = env.step(self.parse_action(response_choice.message.content))
        return await self._end_turn(infer_request.uuid, None if done else self.format_observation(seen), reward, done)

    def parse_action(self, text: str) -> Any:
        """Return the JSON object of a completion, fenced or not, or else the completion as a message."""
        fenced = re.fullmatch(r"```[^\n]*\n(.*)\n\s*```", text.strip(), re.DOTALL)
        content = (fenced[1] if fenced else text).strip()
        try:
            found = json.loads(content)
        except ValueError:
            return {"message": content}
        return found if isinstance(found, dict) else {"message": str(found)}

    def format_observation(self, observation: Any) -> Any:
        """Return an observation as the model reads it."""
        return json.dumps(observation, ensure_ascii=False, default=str)

    def _config(self, request: Any) -> dict[str, Any]:
        return {**self.env_config_defaults, **super()._config(request)}

    def _create_env(self, env_config: Mapping[str, Any]) -> Any:
        return OpenEnvClient(env_config)

    async def _close_and_remove(self, uuid: str) -> None:
        env = self._envs.pop(uuid, None)
        await super()._close_and_remove(uuid)
        if env is not None:
            env.close()


class OpenEnvClient:
    """Connection to an OpenEnv server, for one episode: `base_url` and `reset_kwargs` of the row's `env_config`."""

    def __init__(self, env_config: Mapping[str, Any]) -> None:
        try:
            client = importlib.import_module("openenv.core.generic_client").GenericEnvClient
        except ImportError as error:
            raise RuntimeError(f"openenv_scheduler needs OpenEnv's client: {pip_install('openenv')}") from error
        self._reset_with = dict(env_config.get("reset_kwargs") or {})
        self._client = client(base_url=env_config.get("base_url", "http://localhost:8000")).sync()
        self._client.__enter__()

    def reset(self) -> tuple[Any, Any]:
        """Return the first observation, and the metadata of the server."""
        found = self._client.reset(**self._reset_with)
        return found.observation, getattr(found, "metadata", None)

    def step(self, action: Mapping[str, Any]) -> tuple[Any, float, bool, Any]:
        """Return observation, reward, whether the episode is over, and the metadata of the server."""
        found = self._client.step(action)
        return found.observation, float(found.reward or 0.0), bool(found.done), getattr(found, "metadata", None)

    def close(self) -> None:
        """Close the connection."""
        self._client.__exit__(None, None, None)


class MathEnv(GymEnv):
    """`math_env`: repeats a problem until the answer is right."""

    wants = ("problem", "solution")
    tips_prompt = "The answer is not correct, It seems You made a mistake, you need to recheck very carefully."
    system_prompt = (
        "A conversation between User and Assistant.\n"
        "The user asks a question, and the Assistant solves it.\n"
        "The assistant first thinks about the reasoning process in the mind and then provides the user with the "
        "answer.\n"
        "The reasoning process and answer are enclosed within <think> </think> and <answer> </answer> tags,\n"
        "respectively, i.e., <think> reasoning process here </think><answer> answer here </answer>\n"
    )

    def __init__(self, env_config: Any) -> None:
        super().__init__(env_config)
        self.acc_func = MathAccuracy()
        self.solution = ""

    async def reset(self, config: Any) -> tuple[str, dict[str, Any], str]:
        """Ask the problem of the row."""
        self.solution = config.data_dict["solution"]
        return config.data_dict["problem"], {}, self.system_prompt

    async def step(self, action: Any) -> tuple[str, float, bool, dict[str, Any]]:
        """Return 1 for a right answer, which ends the episode."""
        right = self.acc_func([action[-1]["content"]], [self.solution])[0] == 1
        return self.tips_prompt, float(right), right, {"math_reward": float(right)}

    async def close(self) -> None:
        """Hold nothing."""


SCHEDULERS |= {
    "math_tip_trick": MathTipsScheduler,
    "gym_scheduler": GymScheduler,
    "openenv_scheduler": OpenEnvScheduler,
}
ENVS["math_env"] = MathEnv


def provide() -> None:
    """Let plugin files import these, after what `swift_rl.environments.ms_swift` provides."""
    names = {
        "MathTipsScheduler": MathTipsScheduler,
        "GYMScheduler": GymScheduler,
        "OpenEnvScheduler": OpenEnvScheduler,
        "SimpleMathEnv": MathEnv,
    }
    for module in ("swift.rollout", "swift.rollout.gym_env", "swift.rollout.multi_turn", "swift.plugin.multi_turn"):
        vars(sys.modules[module]).update(names)
