"""Published baselines as objectives of this library, with lightly's losses (``pip install 'vergence[baselines]'``)."""

from lightly.loss import NegativeCosineSimilarity, VICRegLoss
from torch import Tensor

from vergence.encoders.networks import mlp
from vergence.objectives import Objective


class VICReg(Objective):
    """VICReg's loss with its paper's weights 25, 25, 1 (arXiv:2105.04906) on the run's projector."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.loss = dim, VICRegLoss()

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        return {"vicreg": self.loss(za, zb)}


class SimSiam(Objective):
    """SimSiam's predictor of one hidden layer and stopped gradient (arXiv:2011.10566), on the run's projector."""

    def __init__(self, dim: int, hidden: int | None = None) -> None:
        super().__init__()
        self.dim, self.loss = dim, NegativeCosineSimilarity()
        self.predictor = mlp((dim, hidden or max(dim // 2, 16), dim))

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        ab, ba = self.loss(self.predictor(za), zb.detach()), self.loss(self.predictor(zb), za.detach())
        return {"cosine": 0.5 * (ab + ba)}


class Nothing(Objective):
    """A loss that is always zero: leaves the encoder untrained."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, za: Tensor, zb: Tensor) -> dict[str, Tensor]:
        return {"nothing": 0.0 * (za.sum() + zb.sum())}
