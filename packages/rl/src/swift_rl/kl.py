"""Estimators of the KL divergence KL(policy ‖ reference) from the tokens that the policy sampled.

With x = log policy − log reference of a token: k1 = x, k2 = x²/2, k3 = exp(−x) − 1 + x (John Schulman, "Approximating
KL divergence"). The mean of k1 and of k3 is the divergence. The mean gradient of k2 is the gradient of the divergence;
that of k1 is zero, that of k3 another divergence's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from swift_rl.algorithm_options import KlOptions


def divergence(logps: torch.Tensor, reference: torch.Tensor, options: KlOptions) -> torch.Tensor:
    """Return the chosen estimate for every token."""
    apart = logps - reference
    if options.kl_log_ratio_clamp is not None:
        apart = apart.clamp(-options.kl_log_ratio_clamp, options.kl_log_ratio_clamp)
    if options.kl_kind == "k1":
        estimate = apart
    elif options.kl_kind == "k2":
        estimate = apart.square() / 2
    else:
        estimate = (-apart).expm1() + apart
    return estimate if options.kl_clamp is None else estimate.clamp(-options.kl_clamp, options.kl_clamp)


def of_completions(
    logps: Sequence[np.ndarray], reference: Sequence[np.ndarray], options: KlOptions
) -> list[np.ndarray]:
    """Return the chosen estimate for every token of every completion, in float64."""
    import torch

    def double(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.float64))

    pairs = zip(logps, reference, strict=True)
    return [divergence(double(ours), double(other), options).numpy() for ours, other in pairs]
