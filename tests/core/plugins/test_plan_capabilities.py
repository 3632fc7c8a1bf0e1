"""A plan that a backend cannot honour is refused with the reason, who can, and what to type."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_plugin import LabelledEncoding

from swift.config.sections import Config, Section
from swift.contracts import Capabilities, Need
from swift.errors import UnsupportedLayout
from swift.objectives.base import PerSampleObjective
from swift.parsing import parse
from swift.parsing.capabilities import check_capabilities, lacking_media
from swift_testing import third_party


class Thoughtful(PerSampleObjective[Section]):
    name = "thoughtful"

    def loss(self, view: Any, batch: Any) -> Any:
        raise AssertionError("nothing is trained here")


OBJECTIVE = Thoughtful(Section())


def refusal(capabilities: Capabilities, sections: dict[str, Any], objective: Any = OBJECTIVE) -> str:
    with pytest.raises(UnsupportedLayout) as caught:
        check_capabilities(capabilities, Config.model_validate(sections), objective)
    return str(caught.value)


ABLE = Capabilities(tuners=frozenset({"full", "lora"}))


@pytest.mark.parametrize(
    ("sections", "lacking"),
    [
        ({"parallel": {"pp": 2}}, "parallel.pp 2"),
        ({"parallel": {"dp_shard": 4}}, "parallel.dp_shard 4"),
        ({"parallel": {"sequence_parallel": True}}, "parallel.sequence_parallel"),
        ({"model": {"dtype": "bfloat16"}}, "model.dtype bfloat16"),
        ({"tuner": {"dora": True}}, "tuner.dora"),
        ({"tuner": {"quantize": "bnb-nf4"}}, "tuner.quantize bnb-nf4"),
        ({"checkpoint": {"asynchronous": True}}, "checkpoint.asynchronous"),
        ({"train": {"compile": True}}, "train.compile"),
    ],
)
def test_what_is_lacking_is_named(sections: dict[str, Any], lacking: str) -> None:
    message = refusal(ABLE, sections)
    assert f"The torch backend does not support {lacking}." in message
    assert "Type " in message


@pytest.mark.parametrize(
    ("optimizer", "lacking"),
    [
        ("adafactor", "the optimizer 'adafactor' (it needs whole rows of weights)"),
        (third_party.NAME, "the optimizer 'kit-momentum' (the backend declares no optimizers that read elements)"),
    ],
)
def test_undeclared_optimizer_is_refused(optimizer: str, lacking: str) -> None:
    """A backend that declares no optimizers has AdamW."""
    third_party.install()
    message = refusal(ABLE, {"optim": {"name": optimizer}})
    assert lacking in message
    assert "--optim.name adamw" in message


def test_layout_within_capabilities_passes() -> None:
    everything = {"tuner": {"dora": True}, "parallel": {"tp": 2}, "checkpoint": {"asynchronous": True}}
    capable = Capabilities(parallel=frozenset({"tp"}), tuners=frozenset({"lora", "dora"}), async_checkpoint=True)
    check_capabilities(capable, Config.model_validate(everything), OBJECTIVE)
    check_capabilities(ABLE, Config(), OBJECTIVE)


def test_objective_need_missing_in_backend_is_named() -> None:
    """An objective's need that the backend cannot supply is named."""

    class Rewarding(Thoughtful):
        needs = frozenset({Need.SCORES})

    assert "'thoughtful' (it needs scores)" in refusal(ABLE, {}, Rewarding(Section()))


def test_unsupported_modality_is_named_before_weights_load() -> None:
    """An encoding's modality that the backend lacks is named before weights load."""

    class Pictured(LabelledEncoding):
        modalities = frozenset({"text", "image"})

    class Seeing(Thoughtful):
        encoding = Pictured()

    assert "does not support samples with image (the objective 'thoughtful' reads them)." in refusal(
        ABLE, {}, Seeing(Section())
    )
    able = replace(ABLE, modalities=frozenset({"text", "image"}))
    check_capabilities(able, Config(), Seeing(Section()))


def test_an_installed_backend_that_has_it_is_recommended(installed: Path) -> None:
    message = refusal(ABLE, {"parallel": {"tp": 2}})
    assert "acme" in message.partition("Installed backends that support it: ")[2].partition(".")[0]
    assert "--backend acme" in message


def test_capable_backend_is_recommended_if_none_installed(without_megatron: None) -> None:
    """A backend made for it is recommended where none is installed."""
    message = refusal(ABLE, {"parallel": {"pp": 2}})
    assert 'core[megatron]"' in message


def test_the_command_line_refuses_before_anything_is_loaded() -> None:
    with pytest.raises(UnsupportedLayout, match=r"parallel\.tp 4, parallel\.pp 2") as caught:
        parse(["--model", "m", "--dataset", "d", "--tp", "4", "--pp=2"], "sft")
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("cut", ["cp", "ulysses"])
def test_whole_image_backend_does_not_split_images(cut: str) -> None:
    config = Config.model_validate({"parallel": {cut: 2}})
    able = Capabilities(modalities=frozenset({"text", "image"}))
    assert f"parallel.{cut} 2 divides the tokens" in str(lacking_media(able, config, "image"))
    assert lacking_media(replace(able, cuts_media=True), config, "image") is None
