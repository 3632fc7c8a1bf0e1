"""Bytes that processes exchange, by formulas that `python -m benchmarks plan_traffic` compares with counted bytes."""

from dataclasses import replace

import pytest

from swift.contracts import LocalWeights, ProcessLayout, Traffic
from swift_plan.cluster import cluster
from swift_plan.memory import Stage
from swift_plan.shape import ModelShape
from swift_plan.timing import Timing
from swift_plan.traffic import model_traffic, step_traffic
from swift_plan.workload import Workload

LAYERS, HIDDEN, TOKENS, CHOSEN = 6, 64, 512, 2
SHAPE = ModelShape("small", "llama", LAYERS, HIDDEN, 4, 2, 16, 1000, 128)
SINGLE = Workload(rows=4, length=128, rows_assumed=False, compute_bytes=4.0, adapted=False)


def _bytes(layout: ProcessLayout, operation: str, *, recompute: bool = False, experts: int = 0) -> float:
    shape = replace(SHAPE, experts=experts, experts_per_token=CHOSEN, expert_width=32)
    messages = model_traffic(shape, layout, SINGLE, TOKENS, LAYERS, recompute=recompute)
    return sum(message.bytes for message in messages if message.operation == operation)


def test_tensor_parallel_reduces_four_times_per_layer() -> None:
    """Tensor parallelism adds up four times a layer and at both ends."""
    # (4 layers + 1) x tokens x hidden + learned x hidden, all tokens learned
    assert _bytes(ProcessLayout(tp=2), "all_reduce") == 4 * (4 * LAYERS + 2) * TOKENS * HIDDEN


def test_sequence_parallel_gathers_eight_times_per_layer() -> None:
    """Sequence parallelism gathers and cuts eight times a layer."""
    layout = ProcessLayout(tp=2, sequence_parallel=True)
    both = _bytes(layout, "all_gather") + _bytes(layout, "reduce_scatter")
    assert both == 4 * (8 * LAYERS + 4) * TOKENS * HIDDEN


def test_a_stage_within_the_pipeline_sends_on_and_back() -> None:
    # tokens x hidden for each of two stages, which send one way each
    assert _bytes(ProcessLayout(pp=2), "send") / 2 == 4 * TOKENS * HIDDEN


def test_tokens_go_to_their_experts_and_back_in_both_directions() -> None:
    assert _bytes(ProcessLayout(ep=2), "all_to_all", experts=8) == 4 * 4 * LAYERS * TOKENS * CHOSEN * HIDDEN


def test_gradients_of_shared_inputs_are_reduced_per_matrix() -> None:
    """Forward twice; backward for queries, keys and values, and for gate and up, as was counted."""
    apart = replace(SINGLE, own_layers=False)
    (message,) = model_traffic(SHAPE, ProcessLayout(tp=2), apart, TOKENS, LAYERS, recompute=False)
    assert message.bytes == 4 * 7 * LAYERS * TOKENS * HIDDEN


def test_keys_and_values_are_gathered_where_there_is_no_ring() -> None:
    apart, layout = replace(SINGLE, own_layers=False), ProcessLayout(cp=2)
    found = {m.operation: m.bytes for m in model_traffic(SHAPE, layout, apart, TOKENS, LAYERS, recompute=False)}
    both = 4 * LAYERS * 2 * TOKENS * 2 * (2 * 16)
    assert found == {"all_gather": both, "reduce_scatter": both}
    assert _bytes(layout, "send") > 0


def test_tied_embedding_is_reduced_between_pipeline_ends() -> None:
    """An embedding that is the head is added up between the ends of a pipeline."""
    shape = ModelShape("small", "llama", LAYERS, HIDDEN, 4, 2, 16, 1000, 128, tied=True)
    (message,) = step_traffic(shape, ProcessLayout(pp=2, shard=2))
    assert (message.bytes, message.ways, message.stride) == (4 * 1000 * HIDDEN, 2, 2)
    assert not list(step_traffic(replace(shape, tied=False), ProcessLayout(pp=2)))


def test_recomputing_repeats_what_the_forward_pass_exchanged() -> None:
    once, again = (_bytes(ProcessLayout(tp=2), "all_reduce", recompute=recompute) for recompute in (False, True))
    assert again - once == 4 * 2 * LAYERS * TOKENS * HIDDEN


def test_cross_machine_traffic_uses_ports_of_participants() -> None:
    """What leaves a machine goes through the ports of those that take part."""
    where = cluster("4x8xH100")
    assert where.bandwidth(8, 1) == 450e9
    assert where.bandwidth(4, 8) == 50e9
    assert where.bandwidth(8, 4) == 100e9
    assert where.bandwidth(32, 1) == 400e9


def test_reduce_uses_trees_and_gather_uses_rings() -> None:
    """A sum goes through trees and what is gathered around a ring of all."""
    timing = Timing(cluster("64x8xH100"))
    alone = timing.calibration.latency
    small, large = ((8, 1), (512, 1))
    waits = {
        (operation, ways): timing.message(Traffic("", operation, 0.0, ways, stride, calls=3)) / alone
        for operation in ("all_reduce", "all_gather", "reduce_scatter")
        for ways, stride in (small, large)
    }
    assert waits["all_reduce", 8] == pytest.approx(3 * 7) == waits["all_gather", 8]
    assert waits["all_reduce", 512] == pytest.approx(3 * 32)
    # 63 neighbours on other machines; of the same machine a message is there four times as soon.
    assert waits["all_gather", 512] == pytest.approx(3 * (63 + 448 / 4)) == waits["reduce_scatter", 512]


def test_messages_hide_behind_the_same_arithmetic_together() -> None:
    timing, layout = Timing(cluster("4x8xH100")), ProcessLayout(shard=32)
    stage = Stage(LocalWeights(layout, 1e6, 0.0), LAYERS, 1.0, has_head=True)

    def waiting(hidden: float, count: int) -> float:
        messages = [Traffic("weights", "all_gather", 1e9, 32, hidden=hidden)] * count
        return timing.step(SHAPE, SINGLE, stage, messages, 1, 100.0, recompute=False).gradients

    computing = timing.step(SHAPE, SINGLE, stage, [], 1, 100.0, recompute=False).compute
    one = waiting(0.0, 1)
    assert waiting(1.0, 2) == pytest.approx(2 * one - computing)
    assert waiting(1.0, 3) == pytest.approx(3 * one - computing)


def test_to_all_others_a_part_stays_within_the_machine() -> None:
    where = cluster("4x8xH100")
    assert where.port(8, 1, to_all=True) == 450e9
    assert where.port(32, 1, to_all=True) == pytest.approx(50e9 * 31 / 24)
    assert where.port(32, 1, to_all=False) == 50e9
