"""An objective that leaves the encoder untrained, as a control of benchmarks."""

from torch import Tensor

from vergence.objectives import Objective


class Nothing(Objective):
    """A loss that is always zero: leaves the encoder untrained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        return {"nothing": 0.0 * (za.sum() + zb.sum())}
