"""Verifies an export that its exporter reads back: every weight, and the outputs of a model filled with them."""

from __future__ import annotations

from typing import Any

import torch

from swift.checkpoint.checksums import write_json
from swift.checkpoint.manifest import installed_versions
from swift.contracts import Reloaded
from swift.errors import ExportError, listed
from swift.export.destination import VERIFICATION
from swift.export.job import ExportJob
from swift.export.verify.compare import Reference, Tolerance, compare, tolerance_of
from swift.export.verify.reference import PlainState, module_outputs
from swift.export.verify.run import BIT_FOR_BIT, Digests

_CAUSE = "The exporter, or the hook that reads the export back, alters weights. Report it to the exporter's authors."
_LOGP_OF_ROUNDING = 20.0
"""Mean difference of log-probabilities that rounding may make, for each unit of relative error of the weights."""


def verify_own_format(
    job: ExportJob, reloaded: Reloaded, expected: Digests, reference: Reference, trained: PlainState | None
) -> dict[str, Any]:
    """Compare what was read back, write `verification.json`, and return its content.

    Values are compared bit for bit where the format stores them as they are, else with those of the training state.
    """
    folder, state = job.temporary, PlainState(job.source)
    left, largest = dict(expected.found), 0.0
    for name, tensor in state.watch(reloaded.weights):
        digest = left.pop(name, None)
        if digest is None:
            raise ExportError(f"The export in {folder} has a weight that was not trained, or twice: {name}.")
        if reloaded.rounding == 0:
            if expected.digest(name, tensor) != digest:
                raise ExportError(f"The export in {folder} has other values in {name}.", hint=_CAUSE)
        elif trained is not None:
            largest = max(largest, _error(name, tensor, trained.tensor(name), reloaded.rounding))
    if left:
        raise ExportError(f"The export in {folder} lacks weights: {listed(list(left))}.", hint=_CAUSE)
    tolerance = tolerance_of(expected.dtype)
    if reloaded.rounding:
        tolerance = Tolerance(float("inf"), max(tolerance.largest, _LOGP_OF_ROUNDING * reloaded.rounding))
    rounded = "read back" if trained is None else f"within a relative error of {largest:.2g}"
    outputs = module_outputs(state.model, reference.prompts, job.source)
    report = {
        "verified": True,
        "read_back_by": job.to,
        "weights": {
            "compared": len(expected.found),
            "equal": BIT_FOR_BIT if reloaded.rounding == 0 else rounded,
        },
        **compare(reference, outputs, tolerance, who=f"what {job.to} reads back", cause=_CAUSE),
        "media": None,
        "rendering": None,
        "versions": installed_versions(),
    }
    write_json(folder / VERIFICATION, report)
    return report


@torch.no_grad()
def _error(name: str, tensor: torch.Tensor, trained: torch.Tensor, most: float) -> float:
    """Return the relative error of a tensor; raise `ExportError` where rounding does not explain it."""
    difference = tensor.float().cpu() - trained.float().cpu()
    error = float(difference.norm() / trained.float().norm().clamp(min=1e-30))
    if not error <= most:
        raise ExportError(
            f"The export differs from the training state: {name} is off by {error:.2g} of its norm, and the format "
            f"explains {most:g}.",
            hint=_CAUSE,
        )
    return error
