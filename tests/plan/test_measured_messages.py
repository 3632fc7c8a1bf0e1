"""What messages between processes of this machine take: fitted, kept, and used by the plans to come."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from commands import typed
from tiny_runs import write_model

from swift.contracts import Traffic
from swift_plan import collectives, ledger
from swift_plan.cluster import Cluster, cluster
from swift_plan.collectives import SIZES, within
from swift_plan.exchanging import groups
from swift_plan.machine import this_machine
from swift_plan.messages import MessageCost, MessageKind, fit_messages
from swift_plan.timing import Timing

PLAN = ["plan", "model", "--gpus", "2xCPU", "--max_length", "32", "--global_batch_size", "2", "--train_type", "full"]
MEGABYTE = Traffic("", "all_reduce", 1e6, 2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("messages")
    write_model(folder / "model")
    return folder


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ledger.LEDGER, str(tmp_path / "plans.jsonl"))


def _here() -> Cluster:
    return this_machine(2, 1)


def test_a_fit_finds_what_times_were_made_of() -> None:
    """30 µs and 2 GB/s, 3 % off at random."""
    source = random.Random(0)
    seconds = [(30e-6 + size / 2e9) * source.uniform(0.97, 1.03) for size in SIZES]
    cost = fit_messages(SIZES, seconds)
    assert cost.latency == pytest.approx(30e-6, rel=0.1)
    assert 1 / cost.per_byte == pytest.approx(2e9, rel=0.05)


@pytest.mark.parametrize("disturbed", range(len(SIZES)))
def test_one_time_that_was_disturbed_moves_a_fit_little(disturbed: int) -> None:
    seconds = [30e-6 + size / 2e9 for size in SIZES]
    seconds[disturbed] *= 5
    cost = fit_messages(SIZES, seconds)
    assert cost.seconds(2e6) == pytest.approx(30e-6 + 1e-3, rel=0.01)


def test_neither_number_of_a_fit_is_below_0() -> None:
    """Small messages that take next to nothing, and messages that take alike whatever their size."""
    assert fit_messages([1e4, 1e5, 1e6], [1e-7, 5e-5, 1e-3]).latency == 0.0
    alike = fit_messages([1e4, 1e5, 1e6], [3e-5, 2.9e-5, 2.8e-5])
    assert (alike.per_byte, alike.latency) == (0.0, pytest.approx(2.9e-5, rel=0.03))


def test_group_bandwidth_uses_measurements_first() -> None:
    """A plan takes what was measured of a group and assumes the rest."""
    where = cluster("4x8xH100")
    kind = MessageKind("all_reduce", 2, 1)
    assumed, known = Timing(where), Timing(where, messages={kind: MessageCost(1e-3, 1e-9)})
    several = Traffic("", "all_reduce", 1e6, 2, calls=10)
    assert known.message(several) == pytest.approx(10 * 1e-3 + several.sent * 1e-9)
    for other in (Traffic("", "all_reduce", 1e6, 2, stride=2), Traffic("", "all_gather", 1e6, 2)):
        assert known.message(other) == assumed.message(other)


def test_message_timings_are_stored_per_machine() -> None:
    """Messages are kept for their machine next to those of earlier measurements."""
    first, second = MessageKind("send", 2, 1), MessageKind("all_gather", 2, 1)
    ledger.keep_messages(_here(), {first: MessageCost(1e-5, 1e-9)})
    ledger.keep_messages(this_machine(4, 1), {first: MessageCost(9e-5, 9e-9)})
    ledger.keep_messages(_here(), {second: MessageCost(2e-5, 2e-9)})
    assert ledger.known_messages(_here()) == {first: MessageCost(1e-5, 1e-9), second: MessageCost(2e-5, 2e-9)}
    assert ledger.known_messages(cluster("2xH100")) == {}


@pytest.mark.parametrize(
    "broken", ["{", "[]", '{"version": 2, "machines": {"2xCPU": [{"operation": "all_reduce", "ways": 2, "stride": 1, '
               '"latency": 1, "per_byte": 1}]}}',
               '{"version": 1, "machines": []}',
               '{"version": 1, "machines": {"2xCPU": [{"operation": "send", "ways": 2}]}}',
               '{"version": 1, "machines": {"2xCPU": [{"operation": "all_reduce", "ways": 2, "stride": 1, '
               '"latency": NaN, "per_byte": 1}]}}'],
)  # fmt: skip
def test_a_file_that_is_broken_or_of_another_version_is_as_none(broken: str) -> None:
    file = ledger.ledger_path().with_name("messages.json")
    file.write_text(broken, encoding="utf-8")
    assert ledger.known_messages(_here()) == {}
    assert ledger.known_timing(_here()).message(MEGABYTE) == Timing(_here()).message(MEGABYTE)
    ledger.keep_messages(_here(), {MessageKind("send", 2, 1): MessageCost(1e-5, 1e-9)})
    assert len(ledger.known_messages(_here())) == 1


def test_group_stride_sets_process_distance() -> None:
    """Processes of a group are as far apart as its stride says."""
    assert groups(MessageKind("send", 2, 2), 8) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert groups(MessageKind("send", 4, 1), 8) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    kinds = {MessageKind("send", 2, 4), MessageKind("send", 2, 8), MessageKind("host", 1, 1), MessageKind("send", 1, 1)}
    assert within(kinds, cluster("2x8xH100")) == [MessageKind("send", 2, 4)]


@pytest.mark.parametrize(
    ("gpus", "said"), [("2xH100", "cannot be measured on this machine"), ("1xCPU", "--level 3 has nothing to measure")]
)
def test_messages_that_this_machine_has_not_are_not_measured(folder: Path, gpus: str, said: str) -> None:
    ended = typed(["plan", "model", "--gpus", gpus, *PLAN[4:], "--level", "3"], folder)
    assert ended.code == 2, ended.output
    assert said in ended.output
    assert not ledger.ledger_path().with_name("messages.json").exists()


@pytest.mark.full
def test_messages_are_timed_once_and_reused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages between real processes are timed once and later plans rest on them."""
    monkeypatch.setattr(collectives, "SIZES", SIZES[:4])
    words = [*PLAN, "--backend", "fsdp", "--dp_shard", "2"]
    ended = typed([*words, "--level", "3", "--explain", "1"], folder)
    assert ended.code == 0, ended.output
    for said in ("all_gather of 2: ", "messages measured", "in one group of processes"):
        assert said in ended.output
    costs = ledger.known_messages(_here())
    assert {kind.operation for kind in costs} == {"all_gather", "reduce_scatter"}
    assert all(0 < cost.seconds(1e6) < 10 for cost in costs.values())
    found = json.loads(typed([*words, "--json"], folder).output)
    assert found["fits"][0]["basis"]["terms_measured"] == ["weights and gradients"]
    assert len(found["messages"]) == len(costs)
