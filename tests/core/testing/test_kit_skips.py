"""A backend that was written before a view existed is not asked for it, and its tests say so."""

from __future__ import annotations

from dataclasses import replace

from swift.backends.torch.plugin import TorchBackend
from swift.contracts import Need
from swift.testing.cases import BY_NAME
from swift.testing.conformance import _left_out


def test_cases_over_views_that_a_backend_does_not_claim_are_skipped_with_their_names() -> None:
    older = replace(TorchBackend.capabilities, provides=frozenset({Need.TOKEN_LOGPS, Need.REFERENCE_LOGPS}))
    assert not BY_NAME["tokens"].applies_to(older)
    (mark,) = _left_out(BY_NAME["tokens"], older)
    assert mark.kwargs["reason"] == "capabilities.provides lacks Need.CANDIDATE_LOGPS, Need.TOKEN_ENTROPY"
    assert not _left_out(BY_NAME["dpo"], older)
    assert not _left_out(BY_NAME["tokens"], TorchBackend.capabilities)
