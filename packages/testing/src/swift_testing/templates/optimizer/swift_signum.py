"""Updates by the sign of the momentum (arXiv:1802.04434)."""

from pydantic import Field

from swift import Section
from swift.contracts import Reads, Slot


class SignumOptions(Section):
    """Options of `signum`; each is a flag, such as `--optim.beta`."""

    beta: float = Field(0.9, ge=0, lt=1, description="How slowly the momentum changes")


class Signum:
    options_model = SignumOptions
    reads = Reads.ELEMENTS
    slots = (Slot("momentum"),)

    def bytes_per_parameter(self, shape):
        return 4.0

    def make(self, groups, options, device):
        from swift_signum_torch import TorchSignum

        return TorchSignum(groups, options.beta)
