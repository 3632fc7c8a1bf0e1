"""The rewards that come with swift-rl, against their formulas and against TRL's functions of the same purpose."""

from __future__ import annotations

import json
import random
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

import pytest

from swift.contracts import RewardItem
from swift.errors import ConfigError
from swift_rl.options import GrpoOptions
from swift_rl.reward_options import RewardOptions
from swift_rl.rewards.loading import load_reward
from swift_rl.rewards.select import select_rewards


def made(name: str, **options: Any) -> Any:
    """Return an installed reward as a process makes it."""
    (selected,) = select_rewards([name], RewardOptions(reward_funcs=(name,), **options))
    return load_reward(selected.described)


def one(reward: Any, completion: str, tokens: int = 0, **columns: Any) -> Any:
    (value,) = reward.score([RewardItem([{"role": "user", "content": "?"}], completion, [7] * tokens, columns=columns)])
    return value


TEXTS = [
    ("exact_match", "<think>Not 7.</think> <answer> Paris </answer>", "paris", 1.0),
    ("exact_match", "It is Paris", "Paris", 0.0),
    ("exact_match", "So \\boxed{\\frac{1}{2}}.", "\\frac{1}{2}", 1.0),
    ("exact_match", "b", ["a", "b"], 1.0),
    ("exact_match", "anything", None, None),
    ("number", "First 3, then it is $1,234.50", "#### 1234.5", 1.0),
    ("number", "The answer is -2", 2, 0.0),
    ("number", "none at all", "2", 0.0),
    ("number", "2", "two", None),
    ("choice", "A is wrong and so is C. The answer is (B). D was close.", "B", 1.0),
    ("choice", "I would say C", "C", 1.0),
    ("choice", "<answer>d</answer>", "(D)", 1.0),
    ("choice", "no idea", "A", 0.0),
]


@pytest.mark.parametrize(("name", "completion", "solution", "value"), TEXTS)
def test_final_answer_is_compared_with_solution(
    name: str, completion: str, solution: object, value: float | None
) -> None:
    assert one(made(name), completion, solution=solution) == value


def test_a_regular_expression_is_the_options_or_the_rows() -> None:
    reward = made("regex", reward_options={"regex": {"pattern": "yes|no", "whole": True}})
    assert [one(reward, text) for text in ("yes", "yes, sir")] == [1.0, 0.0]
    reward = made("regex")
    assert reward.wants == ("pattern",)
    assert [one(reward, "a\nb", pattern=pattern) for pattern in ("a.b", "x", None)] == [1.0, 0.0, None]


FORMS = [
    ("format", "<think>a</think>\n<answer>b</answer>", 1.0),
    ("format", "<think>a</think><answer>b</answer> and more", 0.0),
    ("format", "Well, <think>a</think><answer>b</answer>", 0.0),
    ("react_format", "<think>a</think> Action: find\nAction Input: {}", 1.0),
    ("react_format", "Action: find\nAction Input: {}", 0.0),
]


@pytest.mark.parametrize(("name", "completion", "value"), FORMS)
def test_format_reward_ignores_content(name: str, completion: str, value: float) -> None:
    assert one(made(name), completion) == value


def test_json_is_what_the_schema_allows() -> None:
    schema = {"type": "object", "required": ["name"], "properties": {"age": {"type": "integer"}}}
    reward = made("json_schema", reward_options={"json_schema": {"json_schema": schema}})
    told = ['{"name": 1, "age": 3}', 'Here:\n```json\n{"name": 1}\n```', '{"age": 3}', "no JSON"]
    assert [one(reward, text) for text in told] == [1.0, 1.0, 0.0, 0.0]
    assert one(made("json_schema"), "3", schema=json.dumps({"type": "integer"})) == 1.0


def test_calls_of_tools_are_compared_whatever_the_notation() -> None:
    wanted = [{"name": "find", "arguments": {"what": "x", "n": 2}}, {"name": "stop", "arguments": {}}]
    tagged = "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in reversed(wanted))
    react = 'Action: find\nAction Input: {"what": "x", "n": 2}\nObservation: 3\nAction: stop\nAction Input: {}'
    half = '<tool_call>{"name": "find", "arguments": {"what": "x", "n": 3}}</tool_call>'
    reward, partial = made("toolcalls"), made("toolcalls", reward_options={"toolcalls": {"partial": True}})
    assert [one(reward, text, solution=wanted) for text in (tagged, react, half, "none")] == [1.0, 1.0, 0.0, 0.0]
    # Of two calls one is made, with one of its two arguments: F1 of the arguments 2·1/4, of the calls 2·0.5/3.
    assert one(partial, half, solution=wanted) == pytest.approx(1 / 3)
    assert one(partial, half, solution=json.dumps(wanted)) == pytest.approx(1 / 3)
    assert one(reward, half, solution="talk to them") is None


def test_lengths_are_counted_in_tokens() -> None:
    length = made("length", reward_options={"length": {"max_completion_length": 200}})
    target = made("target_length", reward_options={"target_length": {"tokens": 100}})
    assert [one(length, "", tokens) for tokens in (0, 50, 200)] == [0.0, -0.25, -1.0]
    assert [one(target, "", tokens) for tokens in (100, 75, 150, 900)] == [0.0, -0.25, -0.5, -1.0]


def test_soft_overlong_and_repetition_are_trls_formulas() -> None:
    from trl.rewards.other_rewards import get_repetition_penalty_reward, get_soft_overlong_punishment

    ours, theirs = (
        made("soft_overlong", soft_max_length=100, soft_cache_length=20),
        get_soft_overlong_punishment(100, 20),
    )
    for tokens in (0, 79, 80, 81, 90, 100, 101, 500):
        assert [one(ours, "", tokens)] == pytest.approx(theirs([[1] * tokens]))
    rng = random.Random(5)
    ours, trl = (
        made("repetition", repetition_n_grams=2, repetition_max_penalty=-2.0),
        get_repetition_penalty_reward(2, -2.0),
    )
    for count in range(12):
        words = [rng.choice("ab") for _ in range(count)]
        assert [one(ours, " ".join(words))] == pytest.approx(trl([words]))


def test_a_length_that_is_left_out_is_the_runs() -> None:
    options = GrpoOptions(max_completion_length=40, soft_cache_length=10)
    (selected,) = select_rewards(["soft_overlong"], options)
    assert one(load_reward(selected.described), "", 35) == -0.5
    with pytest.raises(ConfigError, match="needs --soft_cache_length"):
        select_rewards(["soft_overlong"], GrpoOptions())
    with pytest.raises(ConfigError, match="needs --cosine_max_len"):
        select_rewards(["cosine"], RewardOptions())


ANSWERS = [
    r"\boxed{\frac{1}{3}}",
    r"The final answer is $\frac{2}{6}$",
    r"\boxed{0.5}",
    r"<answer>1/3</answer>",
    "one third",
    r"\boxed{\frac{1}",
]


def test_accuracy_and_cosine_are_trls_off_the_main_thread_too() -> None:
    pytest.importorskip("math_verify")
    from trl.rewards.accuracy_rewards import accuracy_reward, get_cosine_scaled_reward

    accuracy = made("accuracy")
    cosine = made("cosine", cosine_max_len=100, cosine_min_len_value_wrong=-1.0, cosine_max_len_value_wrong=-0.5)
    theirs = get_cosine_scaled_reward(100)
    found: list[Any] = []

    def compare() -> None:
        for text in ANSWERS:
            message, solution = [{"content": text}], r"$\frac{1}{3}$"
            if "<answer>" not in text:
                found.append((one(accuracy, text, solution=solution), *accuracy_reward([message], [solution])))
                for tokens in (1, 50, 99, 250):
                    expected = theirs([message], [solution], [[7] * tokens])[0]
                    found.append((one(cosine, text, tokens, solution=solution), pytest.approx(expected)))
        found.append((one(accuracy, "<answer>1/3</answer>", solution="<answer>1/3</answer>"), 1.0))
        found.append((one(accuracy, r"\boxed{3}", solution=""), None))

    thread = threading.Thread(target=compare)
    thread.start()
    thread.join()
    assert len(found) == 5 * 5 + 2
    assert [ours for ours, _ in found] == [theirs for _, theirs in found]
    assert [ours for ours, _ in found][::5][:5] == [1.0, 1.0, 0.0, 0.0, 0.0]


PROGRAM = """Here:
```python
import sys


def double(n):
    return 2 * n


if __name__ == "__main__":
    print(double(int(sys.stdin.readline() or 0)))
```"""


def test_code_gets_the_part_of_the_tests_that_it_passes() -> None:
    code = made("code", reward_options={"code": {"seconds": 60}})
    assert one(code, PROGRAM, tests=["assert double(2) == 4", "assert double(2) == 5"]) == 0.5
    assert one(code, PROGRAM, tests=[{"input": "3\n", "output": "6"}, {"input": "4", "output": " 8\n"}]) == 1.0
    assert one(code, "def double(n: return", tests="assert double(2) == 4") == 0.0
    assert one(code, PROGRAM, tests=None) is None


@pytest.mark.full
def test_code_that_never_ends_or_wants_all_memory_fails_its_test() -> None:
    code = made("code", reward_options={"code": {"seconds": 2, "memory": 0.5}})
    assert one(code, "while True: pass", tests="pass") == 0.0
    assert one(code, "a = bytearray(2**33)", tests="pass") == 0.0
    assert one(code, "import os; os._exit(0)", tests=[{"input": "", "output": "1"}]) == 0.0


class _Judge(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, **body})
        text = body["messages"][-1]["content"]
        if self.path == "/classify":
            completion: dict[str, Any] = {"data": [{"probs": [len(text) / 4]}]}
        else:
            said = "I cannot say." if "unclear" in text else "It is fine.\nScore: 7"
            completion = {"choices": [{"message": {"content": said}}]}
        data = json.dumps(completion).encode()
        self.send_response(500 if "broken" in text else 200)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Any:
    _Judge.asked = []
    with HTTPServer(("127.0.0.1", 0), _Judge) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.05,))
        thread.start()
        yield f"http://127.0.0.1:{listening.server_address[1]}"
        listening.shutdown()
        thread.join()


def _items(*texts: str) -> list[RewardItem]:
    return [RewardItem([{"role": "user", "content": "Why?"}], text, columns={"solution": "so"}) for text in texts]


def test_judge_is_asked_once_for_equal_completions(server: str) -> None:
    """A judge scores equal completions once, at temperature 0."""
    judge = made("judge", reward_options={"judge": {"base_url": f"{server}/v1"}})
    first, again, unclear, broken = judge.score(_items("good", "good", "unclear", "broken"))
    assert (first, again) == (0.7, 0.7)
    assert "no score from 0 to 10" in str(unclear)
    assert "500" in str(broken)
    assert judge.score(_items("good")) == [0.7]
    assert len(_Judge.asked) == 3
    assert {(body["path"], body["temperature"]) for body in _Judge.asked} == {("/v1/chat/completions", 0)}
    with pytest.raises(ConfigError, match="needs the address of a server"):
        made("judge")


def test_remote_reward_model_scores_conversations(server: str) -> None:
    """A reward model behind an address scores whole conversations."""
    (selected,) = select_rewards([], RewardOptions(reward_model=(server,), reward_weights=(0.5,)))
    assert (selected.name, selected.weight, selected.batched) == ("reward_model", 0.5, True)
    assert selected.reward is not None
    four, broken = selected.reward.score(_items("four", "broken"))
    assert four == 1.0
    assert "500" in str(broken)
    assert _Judge.asked[0]["messages"] == [
        {"role": "user", "content": "Why?"},
        {"role": "assistant", "content": _Judge.asked[0]["messages"][1]["content"]},
    ]
    assert _Judge.asked[0]["use_activation"] is False
