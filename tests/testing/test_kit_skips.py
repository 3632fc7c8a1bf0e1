"""A backend that was written before a view existed is not asked for it, and its tests say so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from swift.backends.torch.plugin import DataParallelBackend
from swift.contracts import Need
from swift.train import training_data
from swift_testing import Layout
from swift_testing.cases import BY_NAME
from swift_testing.checks import Checks, near
from swift_testing.conformance import _left_out
from swift_testing.trials import Trials


def test_unsupported_views_are_skipped_by_name() -> None:
    """Cases over views that a backend does not claim are skipped with their names."""
    older = replace(DataParallelBackend.capabilities, provides=frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS}))
    assert not BY_NAME["tokens"].applies_to(older)
    (mark,) = _left_out(BY_NAME["tokens"], older)
    assert mark.kwargs["reason"] == "capabilities.provides lacks Need.CANDIDATE_LOGPS, Need.TOKEN_ENTROPY"
    assert not _left_out(BY_NAME["dpo"], older)
    assert not _left_out(BY_NAME["tokens"], DataParallelBackend.capabilities)


def test_backends_without_image_capability_skip_image_cases() -> None:
    """Backends that claim no images, or split no rows with them, skip those cases."""
    case, whole = BY_NAME["images"], DataParallelBackend.capabilities
    assert case.applies_to(whole)
    assert not case.applies_to(replace(whole, modalities=frozenset({"text"})))
    cut = Layout(2, {"ulysses": 2})
    assert case.kept_whole(whole, cut)
    assert not case.kept_whole(whole, Layout(2, {"dp_shard": 2}))
    assert not case.kept_whole(replace(whole, cuts_media=True), cut)
    assert not BY_NAME["clipped"].kept_whole(whole, cut)


@pytest.mark.full
def test_unclaimed_images_are_refused_on_every_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images that a backend does not claim are refused on every process."""
    two = Layout(2)
    text = replace(DataParallelBackend.capabilities, modalities=frozenset({"text"}))
    monkeypatch.setattr(DataParallelBackend, "capabilities", text)
    Checks(Trials("torch", tmp_path), [two]).refuses_media(two)
    # Whoever trains on what it does not claim is caught.
    monkeypatch.setattr(training_data, "lacking_media", lambda *_: None)
    with pytest.raises(AssertionError, match="the plan was not refused"):
        Checks(Trials("torch", tmp_path / "unrefused"), [two]).refuses_media(two)


@pytest.mark.parametrize(
    ("found", "cause"), [(2.11, "averaged over 2 processes"), (8.45, "summed 2 times"), (4.0, "allowed is 1e-04$")]
)
def test_failure_names_likely_cause(found: float, cause: str) -> None:
    with pytest.raises(AssertionError, match=cause):
        near("gradient norm", found, 4.22, 1e-4)
